"""Text of an action on jobs: its question, its effect, its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcdash.backends.actions import COMMENT, ActionRequest, Outcome, Verb
from hpcdash.domain import impact
from hpcdash.domain.array_tasks import read_tasks
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import MINUTE, format_clock, format_span, parse_duration
from hpcdash.errors import HpcdashError
from hpcdash.services.jobs.actions import Plan, Report

Row = Mapping[str, Any]
_NO_FOLDERS: Mapping[str, str] = {}
_NAME_CELLS = 30
_MAX_OWNERS = 3
_MAX_LEFT_BEHIND = 10

_DONE = {
    Verb.CANCEL: "cancelled",
    Verb.HOLD: "held",
    Verb.RELEASE: "released",
    Verb.REQUEUE: "requeued",
    Verb.SUSPEND: "suspended",
    Verb.RESUME: "resumed",
    Verb.ALTER: "changed",
    Verb.DELETE: "deleted",
    Verb.SUBMIT: "submitted",
    Verb.MOVE: "moved",
}
# Actions that cannot be undone, or may end a program, prompt with No as the first answer.
_DANGEROUS = frozenset({Verb.CANCEL, Verb.REQUEUE, Verb.SIGNAL, Verb.DELETE, Verb.DELETE_FILES})
_HARMLESS_SIGNALS = frozenset({"CONT"})

SIGNALS: dict[str, str] = {
    "USR1": "many training programs save a checkpoint; others exit",
    "USR2": "like USR1, for other purposes",
    "TERM": "requests termination; cancel sends it first",
    "INT": "same as ctrl+c: KeyboardInterrupt in Python",
    "HUP": "reloads the configuration, or exits",
    "CONT": "continues after STOP",
    "STOP": "pauses the job; the time limit keeps running",
    "KILL": "kills at once: nothing is saved",
}
RECIPIENTS: dict[str, tuple[str, str]] = {
    "": ("job steps", "processes started by srun, not by the script itself"),
    "batch": ("batch script", "batch shell only; without a trap, the shell and the job end"),
    "full": ("both", "script and steps; a script without a trap ends the job"),
}
# The only recipient on a scheduler that cannot signal parts of a job.
ALL_OF_A_JOB = ("all processes of the job", "without a trap, the script and the job end")
CHANGED = {
    "time": "time limit",
    "memory": "memory",
    "queue": "queue",
    "qos": "QoS",
    "nice": "nice",
    "throttle": "tasks at once",
    "comment": "comment",
}
_QUESTION_VERBS = {Verb.ALTER: "Change", Verb.SUBMIT: "Resubmit"}


def format_changeable(names: Sequence[str]) -> str:
    """Format the fields that a scheduler can change: `change time limit, queue or nice`."""
    labels = ["throttle" if name == "throttle" else CHANGED[name] for name in names]
    return f"change {' or '.join(', '.join(labels).rsplit(', ', 1))}"


def is_dangerous(request: ActionRequest) -> bool:
    """Whether `enter` must not confirm it."""
    if request.verb is Verb.SIGNAL:
        return signal_name(request.signal) not in _HARMLESS_SIGNALS
    return request.verb in _DANGEROUS


def signal_name(signal: str) -> str:
    """Normalise `SIGUSR1` and `usr1` to `USR1`."""
    return signal.strip().upper().removeprefix("SIG")


def title(plan: Plan) -> str:
    """Format the question of a plan: `Cancel 12 jobs of alice?`"""
    request = plan.request
    owners = [visible(name) for name in impact.owners(plan.rows) if name]
    if len(owners) > _MAX_OWNERS:
        names = f"{len(owners)} people"
    else:
        names = " and ".join(", ".join(owners).rsplit(", ", 1))
    what = subject(request.job_ids, plan.rows, names)
    if request.verb is Verb.SIGNAL:
        return f"Send {visible(signal_name(request.signal))} to {what}?"
    if request.verb is Verb.SUBMIT and not plan.rows:
        return f"Submit {' and '.join(map(visible, request.job_ids))}?"
    verb = _QUESTION_VERBS.get(request.verb, request.verb.capitalize())
    return f"{verb} {what} by force?" if request.force else f"{verb} {what}?"


def format_running(plan: Plan) -> str:
    """Format a running plan: `cancel of 12 jobs`."""
    return f"{plan.request.verb} of {_format_count(plan)}"


def _format_count(plan: Plan) -> str:
    return counted(impact.count_jobs(plan.rows) or len(plan.request.job_ids), "job")


def subject(job_ids: Sequence[str], rows: Sequence[Row], owners: str = "") -> str:
    """Format jobs: `job 12_3 (train)`, `array 12 (train, 10 jobs)`, `12 jobs of alice`."""
    count = counted(impact.count_jobs(rows) or len(job_ids), "job")
    if len(job_ids) != 1:
        return f"{count} owned by {owners}" if owners else count
    [job_id] = job_ids
    is_array = any(row["array_id"] == job_id for row in rows)
    names = {str(row["name"] or "") for row in rows}
    details = [clip(visible(name), _NAME_CELLS) for name in names if len(names) == 1]
    if is_array:
        details.append(count)
    details.append(owners)
    text = f"{'array' if is_array else 'job'} {visible(job_id)}"
    known = ", ".join(filter(None, details))
    return f"{text} ({known})" if known else text


def format_others(rows: Sequence[Row], user: str) -> str:
    """Format other users' jobs: `3 of them are bob's, not yours`.

    '' if all jobs are the user's, or the user is unknown.
    """
    owners = impact.owners(rows)
    others = {visible(name): count for name, count in owners.items() if name and name != user}
    if not user or not others:
        return ""
    if len(owners) == 1:
        subject = "the job is" if impact.count_jobs(rows) == 1 else "all jobs are"
        return f"{subject} {next(iter(others))}'s, not yours"
    parts = []
    for name, count in list(others.items())[:_MAX_OWNERS]:
        parts.append(f"{count} {'is' if count == 1 else 'are'} {name}'s")
    if (left := len(others) - _MAX_OWNERS) > 0:
        parts.append(f"{left} more users'")
    return f"{', '.join(parts)}, not yours"


def format_left_behind(rows: Sequence[Row], others: Iterable[Row]) -> str:
    """Format the dependents: `2 jobs 15 16 depend on it and may never start`; '' for none."""
    ids = impact.left_behind(rows, others)
    if not ids:
        return ""
    listed = " ".join(visible(job_id) for job_id in ids[:_MAX_LEFT_BEHIND])
    if len(ids) > _MAX_LEFT_BEHIND:
        listed += " …"
    who, depend = ("job", "depends") if len(ids) == 1 else (f"{len(ids)} jobs", "depend")
    on = "it" if len(rows) == 1 else "them"
    return f"{who} {listed} {depend} on {on} and may never start"


def format_pause(plan: Plan) -> str:
    """Format the minimum duration of a plan, and its reason; '' if it has no pauses."""
    if not plan.pause_seconds:
        return ""
    duration = format_span(plan.pause_seconds)
    return (
        f"This takes at least {duration}: hpcdash pauses between commands to spare the scheduler."
    )


def format_impact(
    plan: Plan, *, has_recipients: bool = True, checkpoints: Mapping[str, str] = _NO_FOLDERS
) -> tuple[str, ...]:
    """Describe the effect on the jobs and what is lost, a sentence each.

    `has_recipients`: the scheduler can signal a part of a job. `checkpoints` are those of
    describe_impact.
    """
    request = plan.request
    if request.verb is Verb.SIGNAL:
        name = signal_name(request.signal)
        if has_recipients:
            step = (f"step {visible(request.recipient)}", "")
            recipient, meaning = RECIPIENTS.get(request.recipient, step)
        else:
            recipient, meaning = ALL_OF_A_JOB
        to = f"to {recipient}: {meaning}" if meaning else f"to {recipient}"
        return (f"{visible(name)}: {SIGNALS[name]}", to) if name in SIGNALS else (to,)
    if request.verb is Verb.ALTER:
        # The question describes the comment of a pool's task.
        changes = [(name, value) for name, value in request.changes.items() if name != COMMENT]
        return tuple(_format_change(name, value, plan.rows) for name, value in changes)
    folders = {row_id: visible(folder) for row_id, folder in checkpoints.items()}
    return impact.describe_impact(request.verb, plan.rows, folders)


def _format_change(name: str, value: str, rows: Sequence[Row]) -> str:
    if name == "time" and value[:1] not in ("+", "-"):
        # In the form of the present limit.
        try:
            seconds = parse_duration(value, bare_unit_seconds=MINUTE)
        except ValueError:
            seconds = None
        value = format_clock(seconds) if seconds else value
    text = f"{CHANGED.get(name, name)}: {visible(value)}"
    before = present_value(name, rows) if len(rows) == 1 else ""
    return f"{text} (was {visible(before)})" if before else text


def present_value(name: str, rows: Sequence[Row]) -> str:
    """Return the present value of an alterable field, in the form a person types.

    '' if the job is unknown or differs between the rows.
    """
    values = set()
    for row in rows:
        if name == "time":
            values.add(format_clock(row["limit_seconds"]) if row["limit_seconds"] else "")
        elif name == "throttle":
            # Only the record of the pending tasks has it.
            tasks = read_tasks(row["array_task"])
            if tasks is not None and tasks.throttle:
                values.add(str(tasks.throttle))
        else:
            values.add(str(row.get(name) or ""))
    return values.pop() if len(values) == 1 else ""


def format_error(error: HpcdashError) -> str:
    """Format an error and its next step in one line."""
    parts = [part for part in (error.message, error.next_step) if part]
    return visible(". ".join(" ".join(part.split()).rstrip(".") for part in parts))


def format_done(report: Report) -> str:
    """Format an action that succeeded for every job: `12 jobs cancelled`."""
    request = report.plan.request
    jobs = _format_count(report.plan)
    if request.verb is Verb.SIGNAL:
        return f"{visible(signal_name(request.signal))} sent to {jobs}"
    if request.verb is Verb.SUBMIT:
        ids = ", ".join(outcome.text for outcome in report.outcomes)
        return f"{jobs} submitted: {visible(ids)}"
    if request.verb is Verb.DELETE_FILES:
        return visible("; ".join(outcome.text for outcome in report.outcomes))
    return f"{jobs} {_DONE[request.verb]}"


def outcome_counts(outcomes: Sequence[Outcome]) -> str:
    """Format the number of each outcome: `11 done, 1 refused, 2 unknown`."""
    counts = Counter(outcome.done for outcome in outcomes)
    labels = {True: "done", False: "refused", None: "unknown"}
    return ", ".join(f"{counts[done]} {label}" for done, label in labels.items() if counts[done])
