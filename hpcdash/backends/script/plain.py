"""Plain scripts: the shebang, the directives and the command, as a person writes them.

They name nothing of hpcdash but the folder of the logs. Requests that need more are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.domain.request import (
    Request,
    Runtime,
    is_secret,
    request_slots,
)
from hpcdash.errors import UsageError

if TYPE_CHECKING:
    from hpcdash.backends.script.body import Place

NOTE = (
    "plain script: hpcdash.job is not on PYTHONPATH; the command runs once, without early "
    "signals, switches or a checkpoint to resume from"
)
_FIRST_NODE = (
    "plain script: the command runs only on the job's first node; start the others with srun, or "
    "put them on one node (slots_per_node)"
)
_RESTARTS = "a restart needs hpcdash code to save and resume"
_SWITCH = "the command gets the path from a variable that hpcdash sets"
_POOL = "hpcdash asks the command to suspend through variables it sets"
_BEFORE = "hpcdash code runs it before the command"
_RANKS = "hpcdash code numbers the ranks"
# Why a key of a request needs lines besides the command.
_REASONS = {
    "files": "the script would use a folder that hpcdash unpacks",
    "signal": "the batch shell gets it, and hpcdash code passes it to the command",
    "requeue": _RESTARTS,
    "max_requeues": _RESTARTS,
    "checkpoints": "hpcdash code finds the checkpoint at each start",
    "kill_switch": _SWITCH,
    "save_switch": _SWITCH,
    "share": _POOL,
    "pool": _POOL,
    "rank_variables": _RANKS,
    "rank_logs": _RANKS,
    "startup_hook": _BEFORE,
    "launcher": "hpcdash writes its command; put it in your own",
    "call": "hpcdash.job runs the function and stores its result",
}
_IN_CONTAINER = "hpcdash code starts it; put apptainer exec in the command"
_LIBRARY = "a plain script does not set PYTHONPATH"
_SECRET = "hpcdash would read the secret from a file; let the command read it"
_USUAL = Request()


def plain_conflicts(request: Request) -> list[tuple[tuple[str, ...], str]]:
    """Return the keys of a request, as paths, that no plain script can serve, each with the reason;
    [] for a request that is not plain.
    """
    if not request.plain:
        return []
    found: list[tuple[tuple[str, ...], str]] = [
        ((name,), why)
        for name, why in _REASONS.items()
        if getattr(request, name) != getattr(_USUAL, name)
    ]
    if request.job_library and "job_library" in request.said:
        found.append((("job_library",), _LIBRARY))
    if "site.node_probe" in request.said and request.site.node_probe.strip():
        found.append((("site", "node_probe"), _BEFORE))
    if request.container is not None and request.container.runtime is not Runtime.NONE:
        found.append((("container",), _IN_CONTAINER))
    found += [
        (("environment", name), _SECRET)
        for name, value in request.environment.items()
        if is_secret(name, value)
    ]
    return [(path, f"cannot be combined with plain: {why}") for path, why in found]


def plain_request(request: Request, place: Place) -> tuple[Request, tuple[str, ...]]:
    """Return a plain request without what its queue's settings add and no plain script can have,
    and sentences on that.

    Raises UsageError for what the person asked for, and for a launch whose files need to be
    checked.
    """
    if place.waiting is not None or place.is_run:
        raise UsageError(
            "plain: allocations and their runs need hpcdash's own scripts", "Remove plain."
        )
    if place.copies:
        raise UsageError(
            "plain: others could replace the script in storage_root, and a plain script does not "
            "check it",
            "Set storage_root to a folder that only you and root can replace, or set command.",
        )
    added = []
    for path, message in plain_conflicts(request):
        name = path[0]
        if len(path) > 1 or name not in _REASONS or name in request.said:
            raise UsageError(f"{'.'.join(path)}: {message}", "Remove one of them.")
        added.append(name)
    notes = [NOTE]
    if request.site.node_probe.strip():
        added.append("node_probe")
    if added:
        notes.append(f"plain script: omits {', '.join(added)} from the queue's settings")
    usual = {name: getattr(_USUAL, name) for name in added if name != "node_probe"}
    request = replace(request, **usual, job_library=False)
    if request_slots(request).nodes > 1:
        notes.append(_FIRST_NODE)
    return request, tuple(notes)


def plain_text(options: Iterable[str], prefix: str, lines: Iterable[str]) -> str:
    """Return the whole script: directives, a blank line, then bash.

    Raises UsageError for a directive before its first command.
    """
    body = "\n".join(line.strip("\n") for line in lines if line.strip())
    for line in body.split("\n"):
        if line.startswith(prefix):
            raise UsageError(
                f"command: {line!r} would be read as a directive", "Put it in extra_args."
            )
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return "\n".join(["#!/bin/bash", *(f"{prefix} {one}" for one in options), "", body]) + "\n"
