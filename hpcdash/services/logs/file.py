"""Reads a file on the cluster by byte offset, in constant memory, over the cluster's transport."""

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
# Pause between two checks of a followed file: while it grows, and at most.
SHORTEST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 3.0
# Each check of a file on a node's own disk is a login there.
NODE_PAUSE_SECONDS = 2.0
UNREACHED_PAUSE_SECONDS = 30.0
# The longest pause applies to a file that was quiet for this long.
_QUIET_SECONDS = 60.0
# grep holds a whole line in memory, so it gets no more than this at once.
_FIND_WINDOW_BYTES = 16 << 20
_SCAN_BYTES = 4 << 20


class FileChange(StrEnum):
    """Change of a file from one check to the next."""

    UNCHANGED = "unchanged"
    GREW = "grew"
    # Seen for the first time, or readable again.
    APPEARED = "appeared"
    # The same file, shorter.
    TRUNCATED = "truncated"
    # Another file of the same name: rotated, or deleted and written again.
    REPLACED = "replaced"
    DELETED = "deleted"
    # It may exist, but is no longer readable.
    CLOSED = "closed"


class LogFile:
    """File on the cluster.

    Every method raises UnreachableError or CommandTimedOut if the connection fails, and nothing
    else. A relative path starts in the user's home folder; bytes that are not UTF-8 are as in
    os.fsdecode. `host` is the node whose own disk has the file, '' for the login node. `reader` is
    a command that reads it as another account, with the arguments start (or `end`) and length.
    """

    def __init__(
        self, transport: Transport, path: str, host: str = "", reader: tuple[str, ...] = ()
    ) -> None:
        self.transport: Transport = ThroughNode(transport, host) if host else transport
        self.path = path
        self.host = host
        # Minimum pause before the next check.
        self.pause_seconds = NODE_PAUSE_SECONDS if host or reader else 0.0
        self._reader = reader
        # Reason that the node was not reached the last time; '' if it was.
        self._unreached = ""

    @property
    def place(self) -> str:
        """The path to show; node:/path for a file on a node's own disk."""
        return f"{self.host}:{self.path}" if self.host else self.path

    async def stat(self) -> FileStat:
        """Return the present state of the file."""
        return (await self.read(0, 0)).stat

    async def read(self, offset: int, length: int) -> Chunk:
        """Read at most `length` bytes from `offset`, and the state of the file, in one command."""
        return await self._read(max(offset, 0), max(length, 0))

    async def read_end(self, length: int) -> Chunk:
        """Read the last `length` bytes, and the state of the file, in one command."""
        return await self._read(None, max(length, 0))

    async def find(
        self, text: str, offset: int, *, backwards: bool = False, span_bytes: int = 1 << 28
    ) -> int | None:
        """Find the start of the piece with the next match at or after `offset`.

        Backwards, the last match that ends before it. Searches at most `span_bytes`. The case of
        ASCII letters matters only if `text` has an upper-case letter. A match is within a
        line.
        """
        errors = "surrogateescape" if is_encodable(text) else "replace"
        needle = text.encode("utf-8", errors)
        is_searchable = needle and b"\n" not in needle and b"\0" not in needle
        if not is_searchable or len(needle) > BLOCK or path_problem(self.path):
            return None
        low = max(0, offset - span_bytes if backwards else offset)
        high = offset if backwards else offset + span_bytes
        match = await self._grep(
            text, low, high, backwards=backwards, folds_case=text == text.lower()
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
            # The account's command only reads.
            if offset > _SCAN_BYTES:
                raise CommandTimedOut("There are too many lines to count.")
            return (await self.read(0, offset)).content.count(b"\n")
        script = shell_text("services/logs/count_lines.sh")
        argv = ("sh", "-c", script, "sh", safe_path(self.path), str(offset))
        answer = await self._run(argv, limit_seconds)
        parts = answer.stdout.split() if answer is not None else ()
        return int(parts[-1]) if parts and parts[-1].isdigit() else 0

    async def _run(self, argv: tuple[str, ...], limit_seconds: float) -> CommandResult | None:
        """Run a command; None if the node is unreached, or the path longer than 100 000 letters."""
        self._unreached = ""
        try:
            answer = await self.transport.run(argv, limit_seconds=limit_seconds)
        except (UnreachableError, CommandTimedOut):
            raise
        except NodeUnreached as error:
            self.pause_seconds = UNREACHED_PAUSE_SECONDS
            self._unreached = (
                f"the log is on {self.host} ({self.path}) until the job ends, and {error.message}"
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
        self, text: str, low: int, high: int, *, backwards: bool, folds_case: bool
    ) -> int | None:
        """Return the offset of the first match from `low` to `high`; backwards, of the last."""
        if not self._reader:
            options = ("backwards" if backwards else "forwards", "-i" if folds_case else "")
            window = (str(low), str(high), str(_FIND_WINDOW_BYTES))
            script = shell_text("services/logs/find.sh")
            argv = ("sh", "-c", script, "sh", safe_path(self.path), text, *window, *options)
            answer = await self._run(argv, FIND_LIMIT_SECONDS)
            parts = answer.stdout.split() if answer is not None else []
            if parts and parts[-1].isdigit():
                return int(parts[-1])
            if parts[-1:] != [b"cannot"]:
                return None
        # The grep there cannot report offsets, or must not read the file: search here.
        return await self._scan(text, low, high, backwards=backwards, folds_case=folds_case)

    async def _scan(
        self, text: str, low: int, high: int, *, backwards: bool, folds_case: bool
    ) -> int | None:
        needle = text.encode("utf-8", "surrogateescape")
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
    """A file that is read from `offset` as it grows.

    `stat` is its last known state, `seen_bytes` its size when it last existed.
    """

    def __init__(self, file: LogFile, offset: int = 0) -> None:
        self.file = file
        self.offset = offset
        self.stat = FileStat()
        self.seen_bytes = 0
        # Identity of the file that last existed.
        self._identity = ""
        self._grew_at = time.monotonic()

    def move_to(self, file: LogFile) -> None:
        """Continue in another file, which was not checked yet."""
        self.file = file
        self.stat = FileStat()
        self.seen_bytes = 0
        self._identity = ""

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
        """Record that the file was read up to an offset, or must be read from there."""
        self.offset = offset
        self._grew_at = time.monotonic()

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

    The account controls the content.
    """
    header, _, content = answer.stdout.partition(b"\n")
    check = parse_stat(header.rpartition(b" ")[0])
    if not check.is_there:
        problem = (
            reader_problem(answer) if answer.status else "unexpected answer from the job's account"
        )
        obstacle = Obstacle.MISSING if answer.status == NOTHING_THERE else None
        return Chunk(FileStat(problem=problem, obstacle=obstacle), begin or 0, b"")
    start = max(0, check.size - length) if begin is None else begin
    return cut_blocks(
        check, start, length, block=1, content=content, complaint=reader_problem(answer)
    )


def file_readers() -> Mapping[str, Callable[[Sequence[str]], Sequence[int]]]:
    """Return the scripts that only read files, with the positions of paths in their arguments."""

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
