"""The commands that act on jobs: at once on those that do not run, through the supervisor on those
that do.

Each prints a line of JSON for each id it was given, and ends with 1 where anything could not be
done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hpcdash.embedded.job import ACTIVE, HOLD, Job
from hpcdash.embedded.query_commands import find_jobs, write
from hpcdash.embedded.script import parse_time_change, read_throttle, signal_number
from hpcdash.embedded.start import ensure_supervisor
from hpcdash.embedded.store import QueueStore, readable
from hpcdash.errors import UsageError

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.005
_NO_JOB = "no such job in this queue"


def _report(job_id: str, complaints: list[str]) -> bool:
    text = "; ".join(dict.fromkeys(complaints))
    write({"job_id": readable(job_id), "done": not complaints, "words": readable(text)})
    return not complaints


def _act(folder: Path, ids: list[str], verb: str, argument: str = "") -> int:
    store = QueueStore(folder)
    requested = [(text, *_queue_call(store, text, verb, argument)) for text in ids]
    ensure_supervisor(folder)
    answers = _answers(store, [call for _, calls, _ in requested for call in calls])
    reported = [
        _report(text, complaints + [message for call in calls if (message := answers[call]) != ""])
        for text, calls, complaints in requested
    ]
    return 0 if all(reported) else 1


def _queue_call(
    store: QueueStore, text: str, verb: str, argument: str
) -> tuple[list[int], list[str]]:
    """Do it to the jobs of one id that do not run; (calls to the supervisor for the others,
    complaints).
    """
    calls: list[int] = []
    changed: set[int] = set()
    too_late: list[str] = []
    with store.writing():
        jobs, complaints = _found(store, text)
        for job in jobs:
            if job.state in ACTIVE:
                if verb in ("hold", "release"):
                    complaints.append("it is already running")
                else:
                    calls.append(store.call(job.id, verb, argument))
                continue
            message = _act_on_resting(store, job, verb, argument)
            if not message:
                changed.add(job.number)
            elif job.state == "pending":
                complaints.append(message)
            else:
                too_late.append(message)
        if verb == "cancel":
            for number in changed:
                store.judge_dependents(number)
    # For a whole array, finished tasks are no failure if others were affected.
    return calls, complaints if calls or changed or complaints else too_late


def _found(store: QueueStore, text: str) -> tuple[list[Job], list[str]]:
    """The jobs of an id, or what is wrong with it: the other ids are seen to all the same."""
    try:
        jobs = find_jobs(store, text)
    except UsageError as error:
        return [], [error.message]
    return jobs, [] if jobs else [_NO_JOB]


def _act_on_resting(store: QueueStore, job: Job, verb: str, argument: str) -> str:
    """Inside `writing`, to a job that does not run; the complaint where it cannot be done."""
    if job.state != "pending":
        if verb != "requeue" or argument == HOLD:
            return f"it has already ended ({job.state})"
        if not store.submission(job.number).request.requeue:
            return "it was submitted with --no-requeue"
        store.run_again(job)
    elif verb == "cancel":
        store.end(job.id, "cancelled", now=time.time(), elapsed=0.0, exit_code=0, exit_signal=0)
    elif verb in ("hold", "release") or argument == HOLD:
        store.set_held(job.id, verb != "release")
    else:
        return f"it is not running: nothing to {verb}"
    return ""


def _answers(store: QueueStore, calls: list[int]) -> dict[int, str]:
    """The complaint about each call, '' where it was done."""
    answers = dict.fromkeys(calls, "the queue's supervisor does not respond; the request is queued")
    missing = set(calls)
    over = time.monotonic() + _ANSWER_SECONDS
    while missing and time.monotonic() < over:
        for call, (done, text) in store.call_answers(min(missing), max(missing)).items():
            if call in missing:
                answers[call] = "" if done else text
                missing.remove(call)
        if missing:
            time.sleep(_LOOK_SECONDS)
    return answers


def _requeue(folder: Path, parts: list[str]) -> int:
    """[--hold] ID…; held it waits for its release, and one that has ended is left alone."""
    if parts[:1] == ["--hold"]:
        return _act(folder, parts[1:], "requeue", HOLD)
    return _act(folder, parts, "requeue")


def _signal(folder: Path, parts: list[str]) -> int:
    """NAME RECIPIENT ID…; the recipient is steps, batch or full."""
    if len(parts) < 3 or parts[1] not in ("steps", "batch", "full"):
        raise UsageError("signal needs a name, a recipient (steps, batch or full) and a job")
    try:
        number = signal_number(parts[0])
    except ValueError as error:
        raise UsageError(str(error)) from error
    return _act(folder, parts[2:], "signal", f"{number} {parts[1]}")


def _alter(folder: Path, parts: list[str]) -> int:
    """KEY=VALUE… -- ID…: time (a limit, or + or - some), throttle and comment."""
    if "--" not in parts:
        raise UsageError("alter needs changes (time=30:00), then -- and a job")
    at = parts.index("--")
    changes = [word.partition("=")[::2] for word in parts[:at]]
    store = QueueStore(folder)
    reported = []
    for text in parts[at + 1 :]:
        with store.writing():
            jobs, complaints = _found(store, text)
            for name, value in changes:
                complaints += [one for one in _alter_all(store, jobs, name, value) if one]
        reported.append(_report(text, complaints))
    ensure_supervisor(folder)
    return 0 if all(reported) else 1


def _alter_all(store: QueueStore, jobs: list[Job], name: str, value: str) -> list[str]:
    """Inside `writing`; the complaints, '' where there is none."""
    if name == "time":
        # For a whole array, finished tasks are no failure.
        left = [job for job in jobs if job.state == "pending" or job.state in ACTIVE] or jobs
        return [_alter_limit(store, job, value) for job in left]
    if name == "comment":
        for number in {job.number for job in jobs}:
            store.set_comment(number, value)
        return []
    if name != "throttle":
        return [f"this queue's jobs have no {name}"]
    try:
        throttle = read_throttle(value)
    except ValueError as error:
        return [str(error)]
    for number in {job.number for job in jobs if job.task is not None}:
        store.set_throttle(number, throttle)
    return ["it is not an array" for job in jobs if job.task is None]


def _alter_limit(store: QueueStore, job: Job, value: str) -> str:
    if job.state != "pending":
        return (
            "already running: its limit cannot change"
            if job.state in ACTIVE
            else "it has already ended"
        )
    try:
        sign, seconds = parse_time_change(value)
    except ValueError as error:
        return str(error)
    if sign and seconds is not None:
        if job.limit_seconds is None:
            return "it has no limit to change relatively"
        seconds = job.limit_seconds + (seconds if sign == "+" else -seconds)
    if seconds is not None and seconds <= 0:
        return f"{value} leaves no time"
    store.set_limit(job.id, seconds)
    return ""


COMMANDS: dict[str, Callable[[Path, list[str]], int]] = {
    **{
        verb: partial(_act, verb=verb)
        for verb in ("cancel", "hold", "release", "suspend", "resume")
    },
    "requeue": _requeue,
    "signal": _signal,
    "alter": _alter,
}
