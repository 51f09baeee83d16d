"""Queries a login node, in one command, for facts that no scheduler has: the growth and the new
bytes of logs, saves, disks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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


# Where its entries start, and how many arguments those of files and logs have.
_ENTRIES_AT = 2
_ENTRY_WORDS = {"file": 3, "tail": 7}


def facts_script() -> str:
    """Return the script of all facts, with its limits."""
    limits = (
        f"FILE={_FILE_SECONDS} TOOL={_TOOL_SECONDS} DU={_DU_SECONDS} MOST={MAX_TAIL_BYTES} "
        f"HEAD={_HEAD_BYTES} SILENT={_MAX_SILENT}"
    )
    return limits + shell_text("services/watch/facts.sh")


class DiskQuery(Struct, frozen=True):
    """A path; `tool` and `owner` as StorageRule has them; whether du counts its bytes, and its
    inodes.
    """

    path: str
    tool: str = "auto"
    owner: str = "user"
    by_du: bool = False
    inodes_by_du: bool = False


class FactsRequest(Struct, frozen=True):
    """Facts to query: files, patterns whose newest file counts, checkpoint folders, disks, and logs
    to read on, by path.
    """

    files: tuple[str, ...] = ()
    newest: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    disks: tuple[DiskQuery, ...] = ()
    tails: Mapping[str, LogTail] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.files or self.newest or self.checkpoints or self.disks or self.tails)

    def parted(self, is_apart: Callable[[str], bool]) -> tuple[FactsRequest, FactsRequest]:
        """Return the files and logs whose paths are apart, and all the rest."""
        apart = FactsRequest(
            files=tuple(filter(is_apart, self.files)),
            tails={path: tail for path, tail in self.tails.items() if is_apart(path)},
        )
        rest = replace(
            self,
            files=tuple(path for path in self.files if not is_apart(path)),
            tails={path: tail for path, tail in self.tails.items() if not is_apart(path)},
        )
        return apart, rest


class DiskCheck(Struct, frozen=True):
    """Usage of a disk by the quota tool and df.

    The count of du is separate, as it is not run each time.
    """

    usage: DiskUsage | None = None
    counted: DiskUsage | None = None


class Facts(Struct, frozen=True):
    """By path or pattern; what the answer does not hold is not in there.

    `newest`: seconds ago, None: no such file.

    heads: how logs begin whose tail does not begin there and was not read before. silent: folders,
    or files, that did not answer in time; nothing below them was checked. names: those of the
    newest, of a whole checkpoint that is a folder the folder's. pools: what the coordinators of
    shared pools have published, by the pools' names.
    """

    files: dict[str, FileStat] = field(default_factory=dict)
    newest: dict[str, float | None] = field(default_factory=dict)
    disks: dict[str, DiskCheck] = field(default_factory=dict)
    tails: dict[str, Chunk] = field(default_factory=dict)
    heads: dict[str, bytes] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)

    def with_others(self, others: Facts) -> Facts:
        """These, and those of another answer."""
        return Facts(
            {**self.files, **others.files},
            {**self.newest, **others.newest},
            {**self.disks, **others.disks},
            {**self.tails, **others.tails},
            {**self.heads, **others.heads},
            (*self.silent, *others.silent),
            {**self.names, **others.names},
            {**self.pools, **others.pools},
        )


def facts_log_positions(arguments: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the script's arguments that are paths of files and logs.

    () if it is to check anything else.
    """
    at = _ENTRIES_AT
    found = []
    while at < len(arguments):
        if arguments[at] not in _ENTRY_WORDS:
            return ()
        found.append(at + 2)
        at += _ENTRY_WORDS[arguments[at]]
    return tuple(found)


def facts_query(requested: FactsRequest, user: str = "") -> Query[Facts]:
    """Build one command for all of it, with a time limit for each of its programs; `user` has the
    quota that 'user' means.
    """
    token = f"\x1e{secrets.token_hex(8)}"
    parts: list[str] = []
    for at, path in enumerate(requested.files):
        parts += ("file", str(at), path)
    for at, pattern in enumerate(requested.newest):
        parts += ("newest", str(at), pattern)
    for at, folder in enumerate(requested.checkpoints, len(requested.newest)):
        parts += ("whole", str(at), folder.rstrip("/") or "/")
    for at, (path, tail) in enumerate(requested.tails.items()):
        begin = (tail.identity, str(tail.read_to), str(tail.read_from), str(int(tail.is_done)))
        parts += ("tail", str(at), path, *begin)
    # A place that does not answer costs its time, that of its end, and a second or three to find
    # where it begins.
    seconds = _MAX_SILENT * (_FILE_SECONDS + 5.0) + len(requested.tails)
    for disk in requested.disks:
        kind, _, owner = disk.owner.partition(":")
        parts += (
            "disk",
            disk.path,
            disk.tool,
            kind,
            owner,
            str(int(disk.by_du)),
            str(int(disk.inodes_by_du)),
        )
        seconds += (
            _FILE_SECONDS + 3 * _TOOL_SECONDS + _DU_SECONDS * (disk.by_du + disk.inodes_by_du)
        )
    argv = ("sh", "-c", facts_script(), "sh", token, user, *parts)
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
    silent: list[str] = []
    patterns = (*requested.newest, *requested.checkpoints)
    logs = [*requested.tails]
    # The last may have been cut short.
    for head, _, body in parts[1 : -1 if parts[-1][0] != b"end" else None]:
        kind, _, key = decode(head).partition(" ")
        if kind == "file":
            facts.files[requested.files[int(key)]] = parse_stat(body.strip(), now)
        elif kind == "newest":
            written, _, name = body.strip().partition(b" ")
            pattern = patterns[int(key)]
            facts.newest[pattern] = None
            if written.isdigit():
                facts.newest[pattern] = max(0.0, float(now - int(written)))
                # Older programs quote it.
                path = decode(name).strip("'").replace("\\ ", " ")
                folders, _, file_name = path.rpartition("/")
                is_folder = int(key) >= len(requested.newest) and file_name != _ONE_FILE
                facts.names[pattern] = folders.rpartition("/")[2] if is_folder else file_name
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
            silent.append(decode(body.removesuffix(b"\n")))
        elif kind == "disk":
            disks.append([])
        elif kind != "end" and disks:
            disks[-1].append((kind, body))
    for disk, printed in zip(requested.disks, disks, strict=False):
        facts.disks[disk.path] = _disk(disk.path, printed)
    return replace(facts, silent=tuple(silent))


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
