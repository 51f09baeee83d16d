"""The embedded queue's commands that act on jobs; each prints a JSON object per job."""

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
_ALTERABLE = ("time", "throttle")
# A login node accepts 120 000 bytes, Linux 131 072 in an argument; IDs are short.
_IDS_PER_COMMAND = 2000


def _typed(request: ActionRequest, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the same action as a command of hpcdash."""
    if request.verb is Verb.SIGNAL:
        recipient = ("--to", request.recipient) if request.recipient else ()
        return ("signal", request.signal, *ids, *recipient)
    parts = [str(request.verb), *ids]
    for name, value in request.changes.items():
        parts += [f"--{name}", value]
    return tuple(parts)


def _require(read: Callable[[str], object], text: str) -> None:
    try:
        read(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def read_outcomes(answer: Answer, *, job_ids: tuple[str, ...]) -> tuple[Outcome, ...]:
    """Return the outcome of each job, which is the same for all if the command failed."""
    reported: dict[str, Outcome] = {}
    for line in answer.stdout.splitlines():
        found = decoded(line)
        if found.keys() >= {"job_id", "done", "words"}:
            job_id = str(found["job_id"])
            reported[job_id] = Outcome(job_id, bool(found["done"]), str(found["words"]))
    text = excerpt(answer.stderr) or f"the command exited with status {answer.status}"
    return tuple(reported.get(job_id, Outcome(job_id, False, text)) for job_id in job_ids)


def action_commands(program: tuple[str, ...], request: ActionRequest) -> tuple[ActionCommand, ...]:
    """Return the commands for an action; raises UsageError if this queue does not support it."""
    parts: tuple[str, ...]
    if request.force:
        raise UsageError("force: not needed on this queue")
    if request.verb in _PLAIN:
        parts = (str(request.verb), *(("--hold",) if request.hold else ()))
    elif request.verb is Verb.SIGNAL:
        if request.recipient not in ("", "batch", "full"):
            raise UsageError(
                f"{request.recipient!r}: jobs in this queue have no numbered steps",
                "Use batch or full.",
            )
        _require(signal_number, request.signal)
        parts = ("signal", request.signal, request.recipient or "steps")
    elif request.verb is Verb.ALTER:
        _check_changes(request)
        parts = ("alter", *(f"{name}={value}" for name, value in request.changes.items()), "--")
    else:
        raise UsageError(f"{request.verb} is not a job action in this queue")
    commands = []
    for start in range(0, len(request.job_ids), _IDS_PER_COMMAND):
        ids = request.job_ids[start : start + _IDS_PER_COMMAND]
        read = partial(read_outcomes, job_ids=ids)
        shown = typed(*_typed(request, ids))
        commands.append(ActionCommand((*program, *parts, *ids), ids, read, shown=shown))
    return tuple(commands)


def _check_changes(request: ActionRequest) -> None:
    for name, value in request.changes.items():
        if name == "time":
            _require(parse_time_change, value)
        elif name == "throttle":
            _require(read_throttle, value)
            # The queue would change it for the whole array.
            if task := next(filter(is_task, request.job_ids), ""):
                raise UsageError(
                    f"throttle: {task} is an array task", f"Use its array: {parse_array_id(task)}"
                )
        elif name != COMMENT:
            raise UsageError(
                f"{name}: not supported for jobs in this queue",
                f"It supports: {', '.join(_ALTERABLE)}.",
            )
