"""The embedded queue's commands that act on jobs; each answers with one JSON object a line, one a
job.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hpcdash.backends.actions import COMMENT, ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.embedded.answers import decoded
from hpcdash.backends.embedded.typed import typed
from hpcdash.backends.queries import Answer
from hpcdash.domain.job_ids import is_task, parse_array_id
from hpcdash.embedded.script import parse_time_change, read_throttle, signal_number
from hpcdash.errors import UsageError, excerpt

_PLAIN = frozenset({Verb.CANCEL, Verb.HOLD, Verb.RELEASE, Verb.REQUEUE, Verb.SUSPEND, Verb.RESUME})
_HAS = ("time", "throttle")
# A login node takes 120 000 bytes, Linux 131 072 in one argument; ids are short.
_IDS_A_COMMAND = 2000


def _typed(request: ActionRequest, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The one-shot command of hpcdash that does the same."""
    if request.verb is Verb.SIGNAL:
        return (
            "signal",
            request.signal,
            *ids,
            *(("--to", request.recipient) if request.recipient else ()),
        )
    changes = (word for name, value in request.changes.items() for word in (f"--{name}", value))
    return str(request.verb), *ids, *changes


def _require(read: Callable[[str], object], text: str) -> None:
    try:
        read(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def read_outcomes(answer: Answer, *, job_ids: tuple[str, ...]) -> tuple[Outcome, ...]:
    """Return the outcome of each job; the same for all if the whole command failed."""
    reported: dict[str, Outcome] = {}
    for line in answer.stdout.splitlines():
        found = decoded(line)
        if found.keys() >= {"job_id", "done", "words"}:
            job_id = str(found["job_id"])
            reported[job_id] = Outcome(job_id, bool(found["done"]), str(found["words"]))
    text = excerpt(answer.stderr) or f"the command exited with status {answer.status}"
    return tuple(reported.get(job_id, Outcome(job_id, False, text)) for job_id in job_ids)


def action_commands(program: tuple[str, ...], request: ActionRequest) -> tuple[ActionCommand, ...]:
    """One command for all jobs; raises UsageError for a change this queue has no word for."""
    parts: tuple[str, ...]
    if request.force:
        raise UsageError("force: not needed on this queue")
    if request.verb in _PLAIN:
        parts = (str(request.verb), *(("--hold",) if request.hold else ()))
    elif request.verb is Verb.SIGNAL:
        if request.recipient not in ("", "batch", "full"):
            raise UsageError(
                f"{request.recipient!r}: this queue's jobs have no numbered steps",
                "Use batch or full.",
            )
        _require(signal_number, request.signal)
        parts = ("signal", request.signal, request.recipient or "steps")
    elif request.verb is Verb.ALTER:
        if unknown := [name for name in request.changes if name not in (*_HAS, COMMENT)]:
            raise UsageError(
                f"{unknown[0]}: this queue's jobs have none",
                f"It supports: {', '.join(_HAS)}.",
            )
        for name, value in request.changes.items():
            if name != COMMENT:
                _require(parse_time_change if name == "time" else read_throttle, value)
        if "throttle" in request.changes and (
            tasks := [job_id for job_id in request.job_ids if is_task(job_id)]
        ):
            # The queue would change it for the whole array.
            raise UsageError(
                f"throttle: {tasks[0]} is an array task",
                f"Use its array: {parse_array_id(tasks[0])}",
            )
        parts = ("alter", *(f"{name}={value}" for name, value in request.changes.items()), "--")
    else:
        raise UsageError(f"{request.verb} is not an action on a job of this queue")
    commands = []
    for start in range(0, len(request.job_ids), _IDS_A_COMMAND):
        ids = request.job_ids[start : start + _IDS_A_COMMAND]
        read = partial(read_outcomes, job_ids=ids)
        commands.append(
            ActionCommand((*program, *parts, *ids), ids, read, shown=typed(*_typed(request, ids)))
        )
    return tuple(commands)
