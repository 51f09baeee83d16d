"""An action on jobs in words: what is asked, what was done, what each signal means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcdash.backends.actions import COMMENT, ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.domain import impact
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.text import clip, visible
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
}
# Actions that cannot be undone, or that end a program that is not made for it, prompt with No as
# the first answer.
_DANGEROUS = frozenset({Verb.CANCEL, Verb.REQUEUE, Verb.SIGNAL, Verb.DELETE})
_HARMLESS_SIGNALS = frozenset({"CONT"})

SIGNALS: dict[str, str] = {
    "USR1": "many trainings save a checkpoint; other programs end",
    "USR2": "like USR1, for another purpose",
    "TERM": "requests termination; a cancel sends it first",
    "INT": "like ctrl+c: KeyboardInterrupt in Python",
    "HUP": "reloads its configuration, or ends",
    "CONT": "continues after STOP",
    "STOP": "pauses it; the time limit keeps running",
    "KILL": "ends at once: nothing is saved",
}
RECIPIENTS: dict[str, tuple[str, str]] = {
    "": ("job steps", "processes started by srun, not by the script itself"),
    "batch": ("batch script", "its shell only; without a trap it ends, and the job with it"),
    "full": ("both", "script and steps; a script without a trap ends the job"),
}
# Where a signal is for all of a job.
ALL_OF_A_JOB = ("all its processes", "a script without a trap ends, with the job")
CHANGED = {
    "time": "time limit",
    "memory": "memory",
    "queue": "queue",
    "qos": "QoS",
    "nice": "nice",
    "throttle": "tasks at once",
    "comment": "comment",
}
_ASKED = {Verb.ALTER: "Change", Verb.SUBMIT: "Resubmit"}


def format_changeable(names: Sequence[str]) -> str:
    """`change time limit, queue or nice`: what this scheduler lets one change, by the names of
    ALTERABLE.
    """
    labels = ["throttle" if name == "throttle" else CHANGED[name] for name in names]
    return f"change {' or '.join(filter(None, [', '.join(labels[:-1]), labels[-1]]))}"


def is_dangerous(request: ActionRequest) -> bool:
    """Whether `enter` alone must not do it."""
    if request.verb is Verb.SIGNAL:
        return signal_name(request.signal) not in _HARMLESS_SIGNALS
    return request.verb in _DANGEROUS


def signal_name(signal: str) -> str:
    """`SIGUSR1` and `usr1` are USR1."""
    return signal.strip().upper().removeprefix("SIG")


def title(plan: Plan) -> str:
    """`Cancel job 12 (train, alice)?`, `Cancel 12 jobs of alice?`"""
    request = plan.request
    what = subject(request.job_ids, plan.rows, _format_owners(plan.rows))
    if request.verb is Verb.SIGNAL:
        return f"Send {visible(signal_name(request.signal))} to {what}?"
    if request.verb is Verb.SUBMIT and not plan.rows:
        return f"Submit {' and '.join(map(visible, request.job_ids))}?"
    requested = _ASKED.get(request.verb, request.verb.capitalize())
    return f"{requested} {what}{' by force' if request.force else ''}?"


def format_running(plan: Plan) -> str:
    """`cancel of 12 jobs`, for while it runs."""
    return f"{plan.request.verb} of {_jobs(_count(plan))}"


def _count(plan: Plan) -> int:
    return impact.count_jobs(plan.rows) or len(plan.request.job_ids)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def subject(job_ids: Sequence[str], rows: Sequence[Row], owners: str = "") -> str:
    """`job 12_3 (train)`, `array 12 (train, 10 jobs)`, `12 jobs`; of `owners`, where they are
    named.
    """
    count = _jobs(impact.count_jobs(rows) or len(job_ids))
    if len(job_ids) != 1:
        return f"{count} of {owners}" if owners else count
    names = {str(row["name"] or "") for row in rows}
    name = clip(visible(names.pop()), _NAME_CELLS) if len(names) == 1 else ""
    is_array = any(row["array_id"] == job_ids[0] for row in rows)
    details = ", ".join(filter(None, (name, count if is_array else "", owners)))
    return f"{'array' if is_array else 'job'} {visible(job_ids[0])}" + (
        f" ({details})" if details else ""
    )


def _format_owners(rows: Sequence[Row]) -> str:
    names = [visible(name) for name in impact.owners(rows) if name]
    if len(names) > _MAX_OWNERS:
        return f"{len(names)} people"
    return " and ".join(", ".join(names).rsplit(", ", 1)) if names else ""


def format_others(rows: Sequence[Row], user: str) -> str:
    """`3 of them are bob's, not yours`; '' where all are one's own, or nobody knows who one is."""
    others = {name: count for name, count in impact.owners(rows).items() if name and name != user}
    if not user or not others:
        return ""
    if len(impact.owners(rows)) == 1:
        word = "it is" if impact.count_jobs(rows) == 1 else "all of them are"
        return f"{word} {visible(next(iter(others)))}'s, not yours"
    listed = [
        f"{count} of them {'is' if count == 1 else 'are'} {visible(name)}'s"
        for name, count in others.items()
    ]
    more = [f"{len(listed) - _MAX_OWNERS} more people's"] if len(listed) > _MAX_OWNERS else []
    return ", ".join([*listed[:_MAX_OWNERS], *more]) + ", not yours"


def format_left_behind(rows: Sequence[Row], others: Iterable[Row]) -> str:
    """`Jobs 15 16 depend on them and may never start`; '' where none does."""
    ids = impact.left_behind(rows, others)
    if not ids:
        return ""
    listed = " ".join(visible(job_id) for job_id in ids[:_MAX_LEFT_BEHIND]) + (
        " …" if len(ids) > _MAX_LEFT_BEHIND else ""
    )
    who, depend = ("job", "depends") if len(ids) == 1 else (f"{len(ids)} jobs", "depend")
    on = "it" if len(rows) == 1 else "them"
    return f"{who} {listed} {depend} on {on} and may never start"


def format_pause(plan: Plan) -> str:
    """Format the least duration of a plan, and its reason; '' if no command waits for another."""
    if not plan.pause_seconds:
        return ""
    span = format_span(plan.pause_seconds)
    return f"Takes at least {span}: hpcdash pauses between commands to spare the scheduler."


def format_impact(
    plan: Plan, *, has_recipients: bool = True, checkpoints: Mapping[str, str] = _NO_FOLDERS
) -> tuple[str, ...]:
    """Describe the effect on the jobs and what is lost, a sentence each.

    `has_recipients`: a signal can be for a part of a job. `checkpoints` are as describe_impact
    takes them.
    """
    request = plan.request
    if request.verb is Verb.SIGNAL:
        name = signal_name(request.signal)
        to, meaning = (
            ALL_OF_A_JOB
            if not has_recipients
            else RECIPIENTS.get(request.recipient, (f"step {visible(request.recipient)}", ""))
        )
        return tuple(
            part
            for part in (
                f"{visible(name)}: {SIGNALS[name]}" if name in SIGNALS else "",
                f"to {to}: {meaning}" if meaning else f"to {to}",
            )
            if part
        )
    if request.verb is Verb.ALTER:
        # What a pool's task has in its comment its question says.
        changes = ((name, value) for name, value in request.changes.items() if name != COMMENT)
        return tuple(_format_change(name, value, plan.rows) for name, value in changes)
    shown = {row_id: visible(folder) for row_id, folder in checkpoints.items()}
    return impact.describe_impact(request.verb, plan.rows, shown)


def _format_change(name: str, value: str, rows: Sequence[Row]) -> str:
    before = present_value(name, rows) if len(rows) == 1 else ""
    was = f" (was {visible(before)})" if before else ""
    return f"{CHANGED.get(name, name)}: {visible(_as_present(name, value))}{was}"


def _as_present(name: str, value: str) -> str:
    """A new value as present_value writes the old one."""
    if name != "time" or value[:1] in ("+", "-"):
        return value
    try:
        seconds = parse_duration(value, bare_unit_seconds=MINUTE)
    except ValueError:
        return value
    return format_clock(seconds) if seconds else value


def present_value(name: str, rows: Sequence[Row]) -> str:
    """Return the present value of an alterable field, as one would type it.

    '' if it is unknown or differs between the rows.
    """

    def value(row: Row) -> str:
        if name == "time":
            return format_clock(row["limit_seconds"]) if row["limit_seconds"] else ""
        if name == "throttle":
            try:
                return str(parse_tasks(row["array_task"] or "").throttle or "")
            except ValueError:
                return ""
        return str(row.get(name) or "")

    values = {value(row) for row in rows}
    if name == "throttle":
        # Only the record of the waiting tasks reports it.
        values -= {""}
    return values.pop() if len(values) == 1 else ""


def shown_command(command: ActionCommand) -> str:
    """A command as a person reads it, whole; control bytes made visible."""
    return visible(command.text)


def format_error(error: HpcdashError) -> str:
    """Format an error and its next step in one line."""
    messages = [
        " ".join(part.split()).rstrip(".") for part in (error.message, error.next_step) if part
    ]
    return visible(". ".join(messages))


def format_done(report: Report) -> str:
    """`12 jobs cancelled`, of an action that all went well."""
    request = report.plan.request
    jobs = _jobs(_count(report.plan))
    if request.verb is Verb.SIGNAL:
        return f"{visible(signal_name(request.signal))} sent to {jobs}"
    if request.verb is Verb.SUBMIT:
        return (
            f"{jobs} submitted: {visible(', '.join(outcome.text for outcome in report.outcomes))}"
        )
    return f"{jobs} {_DONE[request.verb]}"


def outcome_counts(outcomes: Sequence[Outcome]) -> str:
    """`11 done, 1 refused, 2 unknown`."""
    counts = {
        "done": sum(outcome.done is True for outcome in outcomes),
        "refused": sum(outcome.done is False for outcome in outcomes),
        "unknown": sum(outcome.done is None for outcome in outcomes),
    }
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)
