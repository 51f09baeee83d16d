"""Queries a login node, in one command, for facts that no scheduler has: the growth and the new
bytes of logs, saves, disks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.queries import Answer, Query
from hpcdash.domain.text import decode
from hpcdash.errors import UnreadableOutput
from hpcdash.services.files import Chunk, FileStat, parse_stat
from hpcdash.services.share.state import Pool
from hpcdash.services.watch.disks import (
    PARSERS,
    DiskUsage,
    find_usage,
    joined,
    parse_df,
    parse_df_inodes,
    parse_du,
)
from hpcdash.shell_files import shell_text

if TYPE_CHECKING:
    from hpcdash.services.watch.state import LogTail

MAX_FILES = 200
# Of a log no more is read at once, of as many logs; of others another time.
MAX_TAIL_BYTES = 256 << 10
MAX_TAILS = 16
_HEAD_BYTES = 4096
_FILE_SECONDS = 10
# So many places that do not answer are waited for in full; of more, each for a second.
_MAX_SILENT = 4
_TOOL_SECONDS = 20
_DU_SECONDS = 110
_ENDING_SECONDS = 10.0
# A checkpoint that is one file.
_ONE_FILE = "guard.ckpt"
# Where the script's entries start, and how many arguments those of files and logs have.
_FIRST_ENTRY = 2
_ENTRY_ARGUMENTS = {"file": 3, "tail": 7}


def facts_script() -> str:
    """Return the script of all facts, with its limits."""
    limits = (
        f"FILE={_FILE_SECONDS} TOOL={_TOOL_SECONDS} DU={_DU_SECONDS} MOST={MAX_TAIL_BYTES} "
        f"HEAD={_HEAD_BYTES} SILENT={_MAX_SILENT}"
    )
    return limits + shell_text("services/watch/facts.sh")


class DiskQuery(Struct, frozen=True):
    """Path whose usage is queried; `tool` and `owner` as StorageRule has them."""

    path: str
    tool: str = "auto"
    owner: str = "user"
    # Whether du counts its bytes, and its inodes.
    by_du: bool = False
    inodes_by_du: bool = False


class FactsRequest(Struct, frozen=True):
    """Facts to query."""

    files: tuple[str, ...] = ()
    # Patterns whose newest file counts.
    newest: tuple[str, ...] = ()
    # Folders of checkpoints.
    checkpoints: tuple[str, ...] = ()
    disks: tuple[DiskQuery, ...] = ()
    # Logs to read on, by path.
    tails: Mapping[str, LogTail] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.paths)

    @property
    def paths(self) -> set[str]:
        disks = (disk.path for disk in self.disks)
        return {*self.files, *self.newest, *self.checkpoints, *self.tails, *disks}

    def parted(self, is_apart: Callable[[str], bool]) -> tuple[FactsRequest, FactsRequest]:
        """Return the files and logs whose paths are apart, and all the rest."""
        apart = {path for path in (*self.files, *self.tails) if is_apart(path)}

        def some(request: FactsRequest, *, are_apart: bool) -> FactsRequest:
            files = tuple(path for path in self.files if (path in apart) is are_apart)
            tails = {
                path: tail for path, tail in self.tails.items() if (path in apart) is are_apart
            }
            return replace(request, files=files, tails=tails)

        return some(FactsRequest(), are_apart=True), some(self, are_apart=False)


class DiskCheck(Struct, frozen=True):
    """Usage of a disk by the quota tool and df, and by du, which is not run each time."""

    usage: DiskUsage | None = None
    counted: DiskUsage | None = None


class Facts(Struct, frozen=True):
    """Facts by path or pattern, of those that an answer holds."""

    files: dict[str, FileStat] = field(default_factory=dict)
    # Seconds ago; None: no such file.
    newest: dict[str, float | None] = field(default_factory=dict)
    disks: dict[str, DiskCheck] = field(default_factory=dict)
    tails: dict[str, Chunk] = field(default_factory=dict)
    # Beginnings of logs whose tail does not begin there and was not read before.
    heads: dict[str, bytes] = field(default_factory=dict)
    # Folders, or files, that did not answer in time; nothing below them was checked.
    silent: list[str] = field(default_factory=list)
    # Names of the newest files, of a whole checkpoint that is a folder the folder's.
    names: dict[str, str] = field(default_factory=dict)
    # Publications of the coordinators of shared pools, by the pools' names.
    pools: dict[str, Pool] = field(default_factory=dict)

    def update(self, others: Facts) -> None:
        """Add the facts of another answer."""
        self.silent.extend(others.silent)
        for name in ("files", "newest", "disks", "tails", "heads", "names", "pools"):
            getattr(self, name).update(getattr(others, name))


def facts_log_positions(arguments: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the script's arguments that are paths of files and logs.

    () if it is to check anything else.
    """
    entry = _FIRST_ENTRY
    positions = []
    while entry < len(arguments):
        if arguments[entry] not in _ENTRY_ARGUMENTS:
            return ()
        positions.append(entry + 2)
        entry += _ENTRY_ARGUMENTS[arguments[entry]]
    return tuple(positions)


def facts_query(requested: FactsRequest, user: str = "") -> Query[Facts]:
    """Build one command for all of it, with a time limit for each of its programs; `user` has the
    quota that 'user' means.
    """
    token = f"\x1e{secrets.token_hex(8)}"
    entries: list[tuple[object, ...]] = [
        *(("file", number, path) for number, path in enumerate(requested.files)),
        *(("newest", number, pattern) for number, pattern in enumerate(requested.newest)),
    ]
    for number, folder in enumerate(requested.checkpoints, len(requested.newest)):
        entries.append(("whole", number, folder.rstrip("/") or "/"))
    for number, (path, tail) in enumerate(requested.tails.items()):
        known = (tail.identity, tail.read_to, tail.read_from, int(tail.is_done))
        entries.append(("tail", number, path, *known))
    # A place that does not answer costs its time, that of its end, and a second or three to find
    # where it begins.
    seconds = _MAX_SILENT * (_FILE_SECONDS + 5.0) + len(requested.tails)
    for disk in requested.disks:
        kind, _, owner = disk.owner.partition(":")
        counts = (int(disk.by_du), int(disk.inodes_by_du))
        entries.append(("disk", disk.path, disk.tool, kind, owner, *counts))
        seconds += _FILE_SECONDS + 3 * _TOOL_SECONDS + _DU_SECONDS * sum(counts)
    arguments = map(str, chain.from_iterable(entries))
    argv = ("sh", "-c", facts_script(), "sh", token, user, *arguments)
    parse = partial(parse_facts, token=token.encode(), requested=requested)
    return Query(argv, parse, limit_seconds=seconds + _ENDING_SECONDS, command=("sh",))


def parse_facts(answer: Answer, *, token: bytes, requested: FactsRequest) -> Facts:
    """Parse the answer; raises UnreadableOutput without the time there."""
    # What stands before the first token is noise.
    parts = [piece.partition(b"\n") for piece in answer.stdout.split(token)[1:]]
    clock = parts[0][2].strip() if parts and parts[0][0] == b"clock" else b""
    if not clock.isdigit():
        raise UnreadableOutput(
            "the login node did not report its clock", argv=answer.argv, status=answer.status
        )
    now = int(clock)
    facts = Facts()
    disks: list[list[tuple[str, bytes]]] = []
    patterns = (*requested.newest, *requested.checkpoints)
    logs = [*requested.tails]
    # The last may have been cut short.
    for head, _, body in parts[1 : -1 if parts[-1][0] != b"end" else None]:
        kind, _, key = decode(head).partition(" ")
        if kind == "file":
            facts.files[requested.files[int(key)]] = parse_stat(body.strip(), now)
        elif kind == "newest":
            pattern = patterns[int(key)]
            is_checkpoint = int(key) >= len(requested.newest)
            written, _, name = body.strip().partition(b" ")
            facts.newest[pattern] = None
            if written.isdigit():
                facts.newest[pattern] = max(0.0, float(now - int(written)))
                # Older programs quote it.
                file = PurePosixPath(decode(name).strip("'").replace("\\ ", " "))
                is_folder = is_checkpoint and file.name != _ONE_FILE
                facts.names[pattern] = file.parent.name if is_folder else file.name
        elif kind == "tail":
            stat, _, begin = body.strip().rpartition(b" ")
            log = parse_stat(stat, now)
            if log.is_there:
                facts.tails[logs[int(key)]] = Chunk(log, int(begin), b"")
        elif kind == "head":
            facts.heads[logs[int(key)]] = body
        elif kind == "bytes":
            path = logs[int(key)]
            if path in facts.tails:
                facts.tails[path] = replace(facts.tails[path], content=body)
        elif kind == "silent":
            facts.silent.append(decode(body.removesuffix(b"\n")))
        elif kind == "disk":
            disks.append([])
        elif kind != "end" and disks:
            disks[-1].append((kind, body))
    for disk, printed in zip(requested.disks, disks, strict=False):
        facts.disks[disk.path] = _disk(disk.path, printed)
    return facts


def _disk(path: str, printed: Sequence[tuple[str, bytes]]) -> DiskCheck:
    df_line = (decode(dict(printed).get("df", b"")).splitlines() or [""])[-1]
    checks: list[DiskUsage | None] = []
    counts: list[DiskUsage | None] = []
    for tool, body in printed:
        try:
            if tool == "df":
                checks.append(find_usage(parse_df(body, path), path))
            elif tool == "df-i":
                checks.append(find_usage(parse_df_inodes(body, path), path))
            elif tool in ("du", "du-i"):
                counts.append(parse_du(body, path, inodes=tool == "du-i"))
            else:
                usages = PARSERS[tool](body)
                # quota(1) names devices, as df does at the beginning of its line.
                named = [usage for usage in usages if df_line.startswith(f"{usage.name} ")]
                checks.append(named[0] if len(named) == 1 else find_usage(usages, path))
        except UnreadableOutput:
            # Not installed, not allowed, no quota there: the next tool is tried.
            continue
    return DiskCheck(joined(checks), joined(counts))
