"""Scripts that check, drop and clear a switch on a login node: POSIX sh."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer, Query
from hpcdash.domain.switch_text import MAX_SWITCH_BYTES, SwitchSnapshot, Thing, parse_snapshot
from hpcdash.errors import UnreadableOutput, excerpt
from hpcdash.services.files import Chunk, FileRange, files_query
from hpcdash.shell_files import shell_text

LOOK_SECONDS = 15.0
LOG_SECONDS = 10.0
# A file system that hangs as it is written to holds a drop or a clearing no longer than this.
ACT_SECONDS = 20.0
_MAX_WRITTEN = 64 << 10

_REFUSALS = {
    66: "the folder is gone or was replaced; nothing was done",
    68: "the folder's owner has changed; nothing was done",
    69: "the path is a link or not a regular file; nothing was done",
    70: "already set",
    71: "already removed",
    72: "the file grew after the check; not removed",
    74: "the path was replaced; nothing was done",
}


def _parts(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder or "/", name


def snapshot_query(path: str, owner: str) -> Query[SwitchSnapshot]:
    """Build the query for the entry at an absolute path without `..`.

    Its parser raises UnreadableOutput if the answer was cut.
    """
    token = f"\x1e{secrets.token_hex(8)}"
    script = shell_text("services/switches/inspect.sh")
    argv = ("sh", "-c", script, "sh", token, *_parts(path), owner)
    parse = partial(_parse_snapshot, path=path, token=token)
    return Query(argv, parse, limit_seconds=LOOK_SECONDS, command=("ls", "-ld", path))


def _parse_snapshot(answer: Answer, *, path: str, token: str) -> SwitchSnapshot:
    pieces = answer.stdout.decode("utf-8", "surrogateescape").split(token)
    if len(pieces) < 2 or pieces[-1]:
        raise UnreadableOutput(
            f"the answer about {path} was cut off",
            "Try again.",
            argv=("ls", "-ld", path),
            status=answer.status,
            output=excerpt(answer.stderr),
        )
    reported = dict(piece.removesuffix("\n").partition(" ")[::2] for piece in pieces[1:-1])
    return parse_snapshot(path, reported)


def drop_command(check: SwitchSnapshot, owner: str, job_ids: Sequence[str]) -> ActionCommand:
    """Build the command that makes the file, if the snapshot still holds."""
    folder, name = _parts(check.path)
    script = shell_text("services/switches/drop.sh").strip()
    argv = ("sh", "-c", script, "sh", folder, check.there, name, owner)
    read = partial(_outcomes, job_ids=tuple(job_ids), done=f"created {check.path}")
    group = f", group {check.folder.group}" if check.folder.group else ""
    shown = f"create the empty file {check.path}{group}; links are not followed"
    return ActionCommand(argv, tuple(job_ids), read, limit_seconds=ACT_SECONDS, shown=(shown,))


def clear_command(check: SwitchSnapshot, job_ids: Sequence[str]) -> ActionCommand:
    """Build the command that removes the file of the snapshot, if it is still that: a small file no
    larger than then, a link itself, a FIFO.
    """
    folder, name = _parts(check.path)
    most = min(check.file.size or 0, MAX_SWITCH_BYTES)
    script = shell_text("services/switches/clear.sh").strip()
    argv = ("sh", "-c", script, "sh", folder, check.there, name, str(check.thing), str(most))
    done = f"removed {check.path}, created by {check.file.owner or 'an unknown user'}"
    read = partial(_outcomes, job_ids=tuple(job_ids), done=done)
    if check.thing is Thing.FILE and most:
        shown = f"remove the file {check.path}, at most {most} bytes"
    elif check.thing is Thing.FILE:
        shown = f"remove the empty file {check.path}"
    elif check.thing is Thing.LINK:
        shown = f"remove the link {check.path}, not its target"
    else:
        shown = f"remove {check.path}, which is not a regular file"
    return ActionCommand(argv, tuple(job_ids), read, limit_seconds=ACT_SECONDS, shown=(shown,))


def dropped_path(argv: Sequence[str]) -> str:
    """Return the path that a command as those above drops or clears, '' for any other."""
    # sh, -c, the script, $0, the folder, where it is, the name.
    return f"{argv[4].rstrip('/')}/{argv[6]}" if len(argv) in (7, 8, 9) and argv[0] == "sh" else ""


def _outcomes(answer: Answer, *, job_ids: tuple[str, ...], done: str) -> tuple[Outcome, ...]:
    text = excerpt(answer.stderr).rpartition("\n")[2]
    if answer.status == 0:
        # Success prints only that the group stays one's own.
        message = f"{done}; the file keeps your group: {text.rpartition(': ')[2]}" if text else done
        return tuple(Outcome(job_id, True, message) for job_id in job_ids)
    message = _REFUSALS.get(answer.status) or text.rpartition(": ")[2] or f"status {answer.status}"
    return tuple(Outcome(job_id, False, message) for job_id in job_ids)


def written_query(read: Mapping[str, int | None]) -> Query[tuple[Chunk, ...]]:
    """Build the query for bytes appended to files since the last read, and their ages.

    `read` are the bytes of each that are known, by path; of what follows at most 64 KiB are read,
    of None nothing.
    """
    ranges = [
        FileRange(path, count or 0, 0 if count is None else _MAX_WRITTEN)
        for path, count in read.items()
    ]
    command = ("tail", *list(read)[:1])
    return files_query(ranges, limit_seconds=LOG_SECONDS, command=command, with_age=True)


def values_query(names: Sequence[str]) -> Query[dict[str, str]]:
    """Build the query for values of variables on the login node; unset ones are left out."""
    script = 'for name do printf "%s\\036" "$(printenv "$name")"; done'
    return Query(
        ("sh", "-c", script, "sh", *names), partial(_read_values, names=tuple(names)), LOOK_SECONDS
    )


def _read_values(answer: Answer, *, names: tuple[str, ...]) -> dict[str, str]:
    values = answer.stdout.decode("utf-8", "surrogateescape").split("\x1e")
    return {name: value for name, value in zip(names, values, strict=False) if value}
