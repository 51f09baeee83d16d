"""Reads files of a cluster with its own sh: whole, a range or the end, one or many in one
command.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial

from msgspec import Struct
from msgspec.structs import astuple, replace

from hpcdash.backends.queries import Answer, Query
from hpcdash.errors import UnreadableOutput, excerpt
from hpcdash.shell_files import shell_text

READ_LIMIT_SECONDS = 60.0
_WHOLE_LIMIT_SECONDS = 15.0
_SMALLEST_BLOCK, _LARGEST_BLOCK = 512, 64 * 1024
_CUT_SHORT = "the answer was cut short"
_STAT = re.compile(rb"([0-9]{1,20}:[0-9]{1,20}) ([0-9]{1,20}) (-?[0-9]{1,20})")
_READ = re.compile(rb"(?:there|same) (" + _STAT.pattern + rb") ([0-9]{1,20})(?: ([^\n]{0,256}))?")


class Obstacle(Enum):
    """Obstacle to reading a file."""

    MISSING = "missing"
    CLOSED = "closed"
    # A folder, a FIFO, a device.
    SPECIAL = "special"
    # The node that has it.
    UNREACHED = "unreached"


# By the keywords of read_files.sh.
_OBSTACLES = {
    "missing": Obstacle.MISSING,
    "no-folder": Obstacle.MISSING,
    "not-a-folder": Obstacle.MISSING,
    "dangling": Obstacle.MISSING,
    "broken": Obstacle.MISSING,
    "closed": Obstacle.CLOSED,
    "closed-folder": Obstacle.CLOSED,
    "folder": Obstacle.SPECIAL,
    "special": Obstacle.SPECIAL,
}


class FileStat(Struct, frozen=True, eq=False):
    """State of a file at one moment.

    `identity` (device and inode) identifies it, '' if it has none. `problem` is the reason that it
    cannot be read, or '', and `obstacle` is its kind; `is_missing` is true only if there certainly
    is nothing under its name. `modified_at` is 0 if unknown, for example for a log that was just
    copied. `age_seconds` is the time since it was written, by the clock there; None if it was not
    requested or is unknown. Without an identity and a problem, it was not checked. `owner` is an
    account's name there.
    """

    identity: str = ""
    size: int = 0
    modified_at: float = 0.0
    problem: str = ""
    obstacle: Obstacle | None = None
    age_seconds: float | None = None
    owner: str = ""

    def __eq__(self, other: object) -> bool:
        """Whether it was the same then; its age and its owner are left out."""
        return isinstance(other, FileStat) and astuple(self)[:-2] == astuple(other)[:-2]

    def __ne__(self, other: object) -> bool:
        # Struct's own does not call __eq__.
        return not self == other

    @property
    def is_there(self) -> bool:
        return bool(self.identity)

    @property
    def is_missing(self) -> bool:
        return self.obstacle is Obstacle.MISSING

    @property
    def is_unreached(self) -> bool:
        return self.obstacle is Obstacle.UNREACHED


class Chunk(Struct, frozen=True):
    """Bytes of a file from `offset` on, and what the file was when they were read: `end` is never
    past its size.
    """

    stat: FileStat
    offset: int
    content: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.content)

    @property
    def ends_the_file(self) -> bool:
        return self.end >= self.stat.size


class FileRange(Struct, frozen=True):
    """At most `length` bytes from `begin` on; None: the last.

    Of a length of 0 only what the file is is told.

    Nothing is read of a file that is still as `known`, nor with `if_blank` where the range before
    this one holds more than blanks. A relative path is one from the home there; `path` may carry
    bytes that are no UTF-8 as os.fsdecode.
    """

    path: str
    begin: int | None
    length: int
    known: FileStat | None = None
    if_blank: bool = False


def path_problem(path: str) -> str:
    """Return the reason that no command can receive this path, or ''."""
    if not path:
        return "the path of the file is unknown"
    if "\0" in path or not is_encodable(path):
        return "not a valid file path"
    return ""


def is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def safe_path(path: str) -> str:
    """The path as no command takes it for an option."""
    return f"./{path}" if path.startswith("-") else path


def files_query(
    ranges: Sequence[FileRange],
    *,
    limit_seconds: float = READ_LIMIT_SECONDS,
    command: tuple[str, ...] = (),
    with_age: bool = False,
) -> Query[tuple[Chunk, ...]]:
    """One chunk a range, in order, in one command; what cannot be read, or is not in the answer,
    has a problem.
    """
    token = secrets.token_hex(8)
    block = _block_size(max((one.length for one in ranges), default=0))
    parts: list[str] = []
    for one in ranges:
        known = one.known
        when = "" if known is None else f"{known.identity} {known.size} {known.modified_at:.0f}"
        path = "" if path_problem(one.path) else safe_path(one.path)
        begin = "end" if one.begin is None else str(max(one.begin, 0))
        parts += (path, begin, str(max(one.length, 0)), "if-blank" if one.if_blank else when)
    argv = ("sh", "-c", read_script(with_age=with_age), "sh", token, str(block), *parts)
    parse = partial(_parse, token=token.encode(), block=block, ranges=tuple(ranges))
    return Query(argv, parse, limit_seconds, command)


def read_script(*, with_age: bool = False) -> str:
    """Return the script of `files_query`; with the clock of the machine it runs on for ages."""
    return shell_text("services/read_files.sh") + ("date +%s\n" if with_age else "")


def whole_file_query(
    path: str, most_bytes: int, *, limit_seconds: float = _WHOLE_LIMIT_SECONDS
) -> Query[bytes]:
    """All of a regular file; parse raises UnreadableOutput, whose message says why it cannot be
    read.
    """
    command = ("cat", "--", path)
    query = files_query(
        [FileRange(path, 0, most_bytes + 1)], limit_seconds=limit_seconds, command=command
    )

    def parse(answer: Answer) -> bytes:
        [chunk] = query.parse(answer)
        problem = chunk.stat.problem or ("" if chunk.ends_the_file else _CUT_SHORT)
        if len(chunk.content) > most_bytes:
            problem = f"larger than {most_bytes >> 20} MiB"
        if problem:
            raise UnreadableOutput(problem, argv=command)
        return chunk.content

    return Query(query.argv, parse, limit_seconds, command)


def cut_blocks(
    check: FileStat, start: int, length: int, block: int, content: bytes, complaint: str = ""
) -> Chunk:
    """Cut the requested range from whole blocks.

    A file grows between stat and dd, and /proc has no sizes.
    """
    first = start % block
    requested = content[first : first + length]
    if complaint and not requested and length and start < check.size:
        check = replace(check, problem=complaint)
    return Chunk(
        replace(check, size=max(check.size, start + len(requested) if requested else 0)),
        start,
        requested,
    )


def reader_problem(answer: Answer) -> str:
    """Return the error of the program that read; '' for none."""
    if answer.status == 0 and answer.stdout:
        return ""
    # dd counts what it has read.
    lines = [
        line for line in excerpt(answer.stderr, 400).splitlines() if line and not line[0].isdigit()
    ]
    ended = f"reading failed with status {answer.status}" if answer.status else _CUT_SHORT
    return lines[-1] if lines else ended


def parse_stat(text: bytes, now: float | None = None) -> FileStat:
    """Parse the output `IDENTITY SIZE MODIFIED` of stat; any other gives an empty FileStat.

    The age is set if `now` is given, the time there.
    """
    reported = _STAT.fullmatch(text)
    if reported is None:
        return FileStat()
    modified_at = float(reported[3])
    age = None if now is None or not modified_at else max(0.0, now - modified_at)
    return FileStat(reported[1].decode(), int(reported[2]), modified_at, age_seconds=age)


def _parse(
    answer: Answer, *, token: bytes, block: int, ranges: tuple[FileRange, ...]
) -> tuple[Chunk, ...]:
    complaint = reader_problem(answer)
    clock = answer.stdout.rpartition(token)[2].strip()
    now = float(clock) if clock.isdigit() else None
    parts = _parts(answer.stdout, token, block, ranges)
    return tuple(_chunk(one, next(parts, None), block, complaint, now) for one in ranges)


def _parts(
    stdout: bytes, token: bytes, block: int, ranges: tuple[FileRange, ...]
) -> Iterator[tuple[bytes, bytes, bool]]:
    """Header, body, and whether it is whole, of each part.

    A file that holds the token as well forges none.
    """
    at = stdout.find(token + b" ")
    for one in ranges:
        if not stdout.startswith(token + b" ", at) or at < 0:
            return
        end = stdout.find(b"\n", at)
        if end < 0:
            return
        header = stdout[at + len(token) + 1 : end]
        begin = end + 1
        reported = _READ.fullmatch(header)
        at = begin
        if reported and header.startswith(b"there"):
            at += _expected(int(reported[3]), int(reported[5]), one.length, block)
        if not stdout.startswith(token, at):
            at = stdout.find(token, begin)
        is_whole = at >= 0
        yield header, stdout[begin : at if is_whole else None], is_whole


def _expected(size: int, start: int, length: int, block: int) -> int:
    """Return the size of the whole blocks that contain `length` bytes from `start` on."""
    if not length or start >= size:
        return 0
    skipped = start - start % block
    return min(size - skipped, -(-(start - skipped + length) // block) * block)


def _chunk(
    requested: FileRange,
    part: tuple[bytes, bytes, bool] | None,
    block: int,
    complaint: str,
    now: float | None,
) -> Chunk:
    begin = requested.begin or 0
    if problem := path_problem(requested.path):
        return Chunk(FileStat(problem=problem, obstacle=Obstacle.MISSING), begin, b"")
    if part is None:
        return Chunk(FileStat(problem=complaint or _CUT_SHORT), begin, b"")
    header, body, is_whole = part
    reported = _READ.fullmatch(header)
    if reported is None:
        kind = header.decode("ascii", "replace")
        problem = _problem(kind, body, requested.path) if is_whole else _CUT_SHORT
        return Chunk(FileStat(problem=problem, obstacle=_OBSTACLES.get(kind)), begin, b"")
    check = replace(
        parse_stat(reported[1], now), owner=(reported[6] or b"").decode("utf-8", "replace")
    )
    chunk = cut_blocks(check, int(reported[5]), requested.length, block, body, complaint)
    return chunk if is_whole else replace(chunk, stat=replace(chunk.stat, problem=_CUT_SHORT))


def _block_size(length: int) -> int:
    """A power of two for dd: few calls for many bytes, few bytes too many for a few."""
    blocks = max(length // 64, 1)
    return min(max(1 << math.ceil(math.log2(blocks)), _SMALLEST_BLOCK), _LARGEST_BLOCK)


def _problem(kind: str, where: bytes, path: str) -> str:
    """Words for what the script found in place of a file; `where` is the folder that is why, or
    b''.
    """
    folder = where.decode("utf-8", "surrogateescape")
    texts = {
        "folder": "this is a folder",
        "missing": "no such file",
        "no-folder": f"no such folder: {folder}",
        "not-a-folder": f"{folder} is not a folder",
        "closed-folder": f"no permission to enter {folder}",
        "closed": "no permission to read this file",
        "dangling": f"a link to {folder}, which does not exist",
        "broken": f"a link to {folder}, itself a dangling link",
        "special": "not a regular file",
        "no-stat": "this machine has no stat command",
        "skipped": "",
    }
    if kind == "special" and path == "/dev/null":
        return "output goes to /dev/null"
    return texts.get(kind, kind)
