"""Reads a file on the cluster by byte offset, in constant memory, over the cluster's own
transport.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError
from hpcdash.services.files import (
    Chunk,
    FileRange,
    FileStat,
    Obstacle,
    cut_blocks,
    files_query,
    is_encodable,
    parse_stat,
    path_problem,
    read_script,
    reader_problem,
    safe_path,
)
from hpcdash.services.logs.pieces import BLOCK, LONGEST_PIECE, pieces, read_from
from hpcdash.services.submit.sudoers import NOTHING_THERE
from hpcdash.shell_files import shell_text
from hpcdash.transport.base import CommandResult, Transport
from hpcdash.transport.node import NodeUnreached, ThroughNode

FIND_LIMIT_SECONDS = 120.0
# How often a followed file is checked: while it grows, and at the slowest.
SHORTEST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 3.0
# Each check of a node's own file is a login there; a failed one is retried seldom.
NODE_PAUSE_SECONDS = 2.0
UNREACHED_PAUSE_SECONDS = 30.0
# A file that was quiet for this long is checked the least.
_QUIET_SECONDS = 60.0
# grep holds a line whole, so it gets no more than this at once.
_FIND_WINDOW_BYTES = 16 << 20
_SCAN_BYTES = 4 << 20


class FileChange(StrEnum):
    """Change of a file from one check to the next."""

    UNCHANGED = "unchanged"
    GREW = "grew"
    # Seen for the first time, or readable again.
    APPEARED = "appeared"
    # The same file, shorter: what was read of it is no more.
    TRUNCATED = "truncated"
    # Another file under the same name: rotated, or deleted and written again.
    REPLACED = "replaced"
    DELETED = "deleted"
    # It exists, or may, and can no longer be read.
    CLOSED = "closed"


class LogFile:
    """One file.

    Every method raises UnreachableError or CommandTimedOut when the line fails, and nothing else.

    A relative path is one from the home folder of the person there; `path` may carry bytes that are
    no UTF-8 as os.fsdecode does. `host` is the node whose own disk it is on, '' where the login
    node has it. `reader` is a command that reads it as another account, and takes where to begin
    (or `end`) and how many bytes; () where we read it.
    """

    def __init__(
        self, transport: Transport, path: str, host: str = "", reader: tuple[str, ...] = ()
    ) -> None:
        self.transport: Transport = ThroughNode(transport, host) if host else transport
        self.path = path
        self.host = host
        # Least wait before the next check.
        self.pause_seconds = NODE_PAUSE_SECONDS if host or reader else 0.0
        self._reader = reader
        # Why the node was not reached the last time, '' where it was.
        self._unreached = ""

    @property
    def place(self) -> str:
        """The path for a person to read: node:/path where it is on a node's own disk."""
        return f"{self.host}:{self.path}" if self.host else self.path

    async def stat(self) -> FileStat:
        """Return the present state of the file."""
        return (await self.read(0, 0)).stat

    async def read(self, offset: int, length: int) -> Chunk:
        """At most `length` bytes from `offset` on (fewer at the end), with a look, in one
        command.
        """
        return await self._read(max(offset, 0), max(length, 0))

    async def read_end(self, length: int) -> Chunk:
        """The last `length` bytes, with a look, in one command."""
        return await self._read(None, max(length, 0))

    async def find(
        self, requested: str, offset: int, *, backwards: bool = False, span_bytes: int = 1 << 28
    ) -> int | None:
        """Find the start of the piece with the next match at or after `offset`.

        Backwards, it is the last match that ends before it. Searches at most `span_bytes`; None if
        there is no match in them. Upper and lower case (of ASCII letters) differ only if
        `requested` has an upper-case letter. A match does not span lines.
        """
        needle = requested.encode(
            "utf-8", "surrogateescape" if is_encodable(requested) else "replace"
        )
        if (
            not needle
            or b"\n" in needle
            or b"\0" in needle
            or len(needle) > BLOCK
            or path_problem(self.path)
        ):
            return None
        low, high = (
            (max(0, offset - span_bytes), offset)
            if backwards
            else (max(0, offset), offset + span_bytes)
        )
        match = await self._grep(
            requested, low, high, backwards=backwards, folds_case=requested == requested.lower()
        )
        if match is None:
            return None
        begin = read_from(match)
        chunk = await self.read(begin, match - begin + 1 + LONGEST_PIECE + BLOCK)
        cut = pieces(chunk.content, begin, at_end=chunk.ends_the_file)
        return cut[cut.index_at(match)].start if len(cut) else match

    async def count_lines(self, offset: int, *, limit_seconds: float = 20.0) -> int:
        """Count the newlines before `offset`; raises CommandTimedOut if that takes longer.

        0 for a file that cannot be read.
        """
        if offset <= 0 or path_problem(self.path):
            return 0
        if self._reader:
            return await self._count_read(offset)
        answer = await self._run(
            (
                "sh",
                "-c",
                shell_text("services/logs/count_lines.sh"),
                "sh",
                safe_path(self.path),
                str(offset),
            ),
            limit_seconds,
        )
        parts = answer.stdout.split() if answer is not None else ()
        return int(parts[-1]) if parts and parts[-1].isdigit() else 0

    async def _count_read(self, offset: int) -> int:
        """The newlines before `offset`, where they can only be read."""
        if offset > _SCAN_BYTES:
            raise CommandTimedOut("There are too many lines to count.")
        return (await self.read(0, offset)).content.count(b"\n")

    async def _run(self, argv: tuple[str, ...], limit_seconds: float) -> CommandResult | None:
        """Run a command; None where the transport cannot carry it (a path of more than 100 000
        letters), or where the node is not reached.
        """
        self._unreached = ""
        try:
            answer = await self.transport.run(argv, limit_seconds=limit_seconds)
        except (UnreachableError, CommandTimedOut):
            raise
        except NodeUnreached as error:
            self.pause_seconds = UNREACHED_PAUSE_SECONDS
            self._unreached = (
                f"it is on {self.host} ({self.path}) until the job ends, and {error.message}"
            )
            return None
        except HpcdashError:
            return None
        self.pause_seconds = NODE_PAUSE_SECONDS if self.host or self._reader else 0.0
        return answer

    async def _read(self, begin: int | None, length: int) -> Chunk:
        if problem := path_problem(self.path):
            return Chunk(FileStat(problem=problem), begin or 0, b"")
        query = files_query([FileRange(self.path, begin, length)])
        begin_word = "end" if begin is None else str(begin)
        argv = (*self._reader, begin_word, str(length)) if self._reader else query.argv
        answer = await self._run(argv, query.limit_seconds)
        if answer is None:
            unread = FileStat(problem="not available here")
            if self._unreached:
                unread = FileStat(problem=self._unreached, obstacle=Obstacle.UNREACHED)
            return Chunk(unread, begin or 0, b"")
        return _chunk_read(answer, begin, length) if self._reader else query.parse(answer)[0]

    async def _grep(
        self, requested: str, low: int, high: int, *, backwards: bool, folds_case: bool
    ) -> int | None:
        """The offset of the first match in these bytes (the last one, backwards)."""
        if self._reader:
            return await self._scan(
                requested.encode("utf-8", "surrogateescape"), low, high, backwards, folds_case
            )
        argv = (
            "sh",
            "-c",
            shell_text("services/logs/find.sh"),
            "sh",
            safe_path(self.path),
            requested,
            str(low),
            str(high),
            str(_FIND_WINDOW_BYTES),
            "backwards" if backwards else "forwards",
            "-i" if folds_case else "",
        )
        answer = await self._run(argv, FIND_LIMIT_SECONDS)
        parts = answer.stdout.split() if answer is not None else []
        if parts and parts[-1].isdigit():
            return int(parts[-1])
        if parts[-1:] == [b"cannot"]:
            return await self._scan(
                requested.encode("utf-8", "surrogateescape"), low, high, backwards, folds_case
            )
        return None

    async def _scan(
        self, needle: bytes, low: int, high: int, backwards: bool, folds_case: bool
    ) -> int | None:
        """The same where grep there tells no offsets, or may not read the file: the bytes are
        looked through here.
        """
        if folds_case:
            needle = needle.lower()
        shared = len(needle) - 1
        begins: Iterable[int] = range(low, high, _SCAN_BYTES)
        if backwards:
            size = (await self.stat()).size
            begins = reversed(range(low, min(high, size), _SCAN_BYTES))
        for begin in begins:
            chunk = await self.read(begin, min(_SCAN_BYTES + shared, high - begin))
            content = chunk.content.lower() if folds_case else chunk.content
            found = content.rfind(needle) if backwards else content.find(needle)
            if found >= 0:
                return begin + found
            if not backwards and chunk.ends_the_file:
                return None
        return None


class FollowedFile:
    """A file that is read on from `offset` as it grows.

    `stat` is the file as it was last seen, `seen_bytes` its size when it was last there.
    """

    def __init__(self, file: LogFile, offset: int = 0) -> None:
        self.file = file
        self.offset = offset
        self.stat = FileStat()
        self.seen_bytes = 0
        # The file that was last there.
        self._identity = ""
        self._grew_at = time.monotonic()

    def move_to(self, file: LogFile) -> None:
        """Continue in another file, of which nothing was seen yet."""
        self.file, self.stat, self.seen_bytes, self._identity = file, FileStat(), 0, ""

    def note(self, check: FileStat) -> FileChange:
        """Return what changed since the last check.

        A file that was deleted and recreated may get its old inode.
        """
        before = self.stat
        self.stat = check
        if not check.is_there:
            if not before.is_there:
                return FileChange.UNCHANGED
            return FileChange.DELETED if check.is_missing else FileChange.CLOSED
        seen_bytes = self.seen_bytes
        self.seen_bytes = check.size
        identity = self._identity
        self._identity = check.identity
        if identity and (before.is_missing or identity != check.identity):
            return FileChange.REPLACED
        if check.size < seen_bytes:
            return FileChange.TRUNCATED
        if not before.is_there:
            return FileChange.APPEARED
        return FileChange.GREW if check.size > seen_bytes else FileChange.UNCHANGED

    def read_to(self, offset: int) -> None:
        """Record that the file was read up to an offset, or is to be read from there."""
        self.offset, self._grew_at = offset, time.monotonic()

    @property
    def quiet_seconds(self) -> float:
        """Time since something new was read."""
        return time.monotonic() - self._grew_at

    @property
    def pause_seconds(self) -> float:
        """Time to wait before the next check."""
        return max(self.file.pause_seconds, next_check_seconds(self.quiet_seconds))


def next_check_seconds(quiet_seconds: float) -> float:
    """Return the seconds until the next check of a file, by the time since its last change."""
    share = min(max(quiet_seconds, 0.0) / _QUIET_SECONDS, 1.0)
    return SHORTEST_PAUSE_SECONDS + share * (LONGEST_PAUSE_SECONDS - SHORTEST_PAUSE_SECONDS)


def _chunk_read(answer: CommandResult, begin: int | None, length: int) -> Chunk:
    """Parse the output of a launch's reader: `IDENTITY SIZE MODIFIED BEGIN`, then the bytes.

    Its content is controlled by the account.
    """
    header, _, content = answer.stdout.partition(b"\n")
    check = parse_stat(header.rpartition(b" ")[0])
    if not check.is_there:
        problem = reader_problem(answer) if answer.status else "unexpected answer from its account"
        obstacle = Obstacle.MISSING if answer.status == NOTHING_THERE else None
        return Chunk(FileStat(problem=problem, obstacle=obstacle), begin or 0, b"")
    start = max(0, check.size - length) if begin is None else begin
    return cut_blocks(check, start, length, 1, content, reader_problem(answer))


def file_readers() -> Mapping[str, Callable[[Sequence[str]], Sequence[int]]]:
    """Return the scripts that only read files, and which of their arguments are paths."""

    def every_fourth(arguments: Sequence[str]) -> Sequence[int]:
        return range(2, len(arguments), 4)

    def first(arguments: Sequence[str]) -> Sequence[int]:
        return range(1)

    return {
        read_script(): every_fourth,
        read_script(with_age=True): every_fourth,
        shell_text("services/logs/count_lines.sh"): first,
        shell_text("services/logs/find.sh"): first,
    }
