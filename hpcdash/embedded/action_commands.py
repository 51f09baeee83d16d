"""The commands that act on jobs: directly, or through the supervisor if a job runs.

Each prints a line of JSON for each ID, and exits with 1 if any action failed.
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
_POLL_SECONDS = 0.005


def _report(job_id: str, problems: list[str]) -> bool:
    text = "; ".join(dict.fromkeys(problems))
    write({"job_id": readable(job_id), "done": not problems, "words": readable(text)})
    return not problems


def _act(folder: Path, ids: list[str], verb: str, argument: str = "") -> int:
    store = QueueStore(folder)
    requested = [(job_id, *_request_action(store, job_id, verb, argument)) for job_id in ids]
    ensure_supervisor(folder)
    all_calls = [call for _, calls, _ in requested for call in calls]
    answers = _await_answers(store, all_calls)
    is_done = True
    for job_id, calls, problems in requested:
        problems += [answers[call] for call in calls if answers[call]]
        is_done &= _report(job_id, problems)
    return 0 if is_done else 1


def _request_action(
    store: QueueStore, job_id: str, verb: str, argument: str
) -> tuple[list[int], list[str]]:
    """Act on the jobs of an ID that do not run.

    Returns the calls to the supervisor for the other jobs, and the problems.
    """
    calls: list[int] = []
    changed: set[int] = set()
    finished: list[str] = []
    with store.writing():
        jobs, problems = _find_jobs(store, job_id)
        for job in jobs:
            if job.state in ACTIVE:
                if verb in ("hold", "release"):
                    problems.append("already running")
                else:
                    calls.append(store.call(job.id, verb, argument))
                continue
            problem = _act_on_inactive(store, job, verb, argument)
            if not problem:
                changed.add(job.number)
            elif job.state == "pending":
                problems.append(problem)
            else:
                finished.append(problem)
        if verb == "cancel":
            for number in changed:
                store.update_dependents(number)
    # Finished tasks of an array are not a failure if the action applied to others.
    if not (calls or changed or problems):
        problems = finished
    return calls, problems


def _find_jobs(store: QueueStore, job_id: str) -> tuple[list[Job], list[str]]:
    """Return the jobs of an ID, or the problem: actions on other IDs go on."""
    try:
        jobs = find_jobs(store, job_id)
    except UsageError as error:
        return [], [error.message]
    return jobs, [] if jobs else ["no such job in this queue"]


def _act_on_inactive(store: QueueStore, job: Job, verb: str, argument: str) -> str:
    """Act on a job that does not run, in `writing`; return the problem or ''."""
    if job.state != "pending":
        if verb != "requeue" or argument == HOLD:
            return f"already finished ({job.state})"
        if not store.submission(job.number).request.requeue:
            return "submitted with --no-requeue"
        store.run_again(job)
    elif verb == "cancel":
        store.end(job.id, "cancelled", now=time.time(), elapsed=0.0, exit_code=0, exit_signal=0)
    elif verb in ("hold", "release") or argument == HOLD:
        store.set_held(job.id, verb != "release")
    else:
        return f"not running: nothing to {verb}"
    return ""


def _await_answers(store: QueueStore, calls: list[int]) -> dict[int, str]:
    """Return the problem of each call, '' if it was done."""
    answers = dict.fromkeys(calls, "the queue's supervisor does not respond; the request is queued")
    missing = set(calls)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while missing and time.monotonic() < deadline:
        for call, (done, text) in store.call_answers(min(missing), max(missing)).items():
            if call in missing:
                answers[call] = "" if done else text
                missing.remove(call)
        if missing:
            time.sleep(_POLL_SECONDS)
    return answers


def _requeue(folder: Path, parts: list[str]) -> int:
    """Run `requeue [--hold] ID…`; with --hold, finished jobs are not requeued."""
    if parts[:1] == ["--hold"]:
        return _act(folder, parts[1:], "requeue", HOLD)
    return _act(folder, parts, "requeue")


def _signal(folder: Path, parts: list[str]) -> int:
    """Run `signal NAME RECIPIENT ID…`; the recipient is steps, batch or full."""
    if len(parts) < 3 or parts[1] not in ("steps", "batch", "full"):
        raise UsageError("signal needs a name, a recipient (steps, batch or full) and a job")
    try:
        number = signal_number(parts[0])
    except ValueError as error:
        raise UsageError(str(error)) from error
    return _act(folder, parts[2:], "signal", f"{number} {parts[1]}")


def _alter(folder: Path, parts: list[str]) -> int:
    """Run `alter KEY=VALUE… -- ID…`; keys are time (a limit, +TIME or -TIME), throttle, comment."""
    if "--" not in parts:
        raise UsageError("alter needs changes (time=30:00), then -- and a job")
    position = parts.index("--")
    store = QueueStore(folder)
    is_done = True
    for job_id in parts[position + 1 :]:
        with store.writing():
            jobs, problems = _find_jobs(store, job_id)
            for change in parts[:position]:
                name, _, value = change.partition("=")
                problems += filter(None, _alter_all(store, jobs, name, value))
        is_done &= _report(job_id, problems)
    ensure_supervisor(folder)
    return 0 if is_done else 1


def _alter_all(store: QueueStore, jobs: list[Job], name: str, value: str) -> list[str]:
    """Alter jobs, in `writing`; return the problem or '' of each."""
    if name == "time":
        # Finished tasks of an array are not a failure.
        unfinished = [job for job in jobs if job.state == "pending" or job.state in ACTIVE]
        return [_alter_limit(store, job, value) for job in unfinished or jobs]
    if name == "comment":
        for number in {job.number for job in jobs}:
            store.set_comment(number, value)
        return []
    if name != "throttle":
        return [f"jobs in this queue have no {name}"]
    try:
        throttle = read_throttle(value)
    except ValueError as error:
        return [str(error)]
    for number in {job.number for job in jobs if job.task is not None}:
        store.set_throttle(number, throttle)
    return ["not an array" for job in jobs if job.task is None]


def _alter_limit(store: QueueStore, job: Job, value: str) -> str:
    if job.state in ACTIVE:
        return "already running: its limit cannot change"
    if job.state != "pending":
        return "already finished"
    try:
        sign, seconds = parse_time_change(value)
    except ValueError as error:
        return str(error)
    if sign and seconds is not None:
        if job.limit_seconds is None:
            return "no time limit to change relatively"
        seconds = job.limit_seconds + (seconds if sign == "+" else -seconds)
    if seconds is not None and seconds <= 0:
        return f"{value} leaves no time"
    store.set_limit(job.id, seconds)
    return ""


COMMANDS: dict[str, Callable[[Path, list[str]], int]] = {
    "cancel": partial(_act, verb="cancel"),
    "hold": partial(_act, verb="hold"),
    "release": partial(_act, verb="release"),
    "suspend": partial(_act, verb="suspend"),
    "resume": partial(_act, verb="resume"),
    "requeue": _requeue,
    "signal": _signal,
    "alter": _alter,
}
