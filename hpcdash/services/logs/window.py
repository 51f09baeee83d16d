"""A part of a log held in memory: rows around where one reads, at its end while it grows, and what
became of the file.

Whatever the size of the file, no more than a few MiB are held, and read ahead.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from hpcdash.services.files import Chunk, FileStat
from hpcdash.services.logs.file import FileChange, FollowedFile, LogFile
from hpcdash.services.logs.pieces import BLOCK, pieces, read_from

# What is read at once; a screen of 60 lines of 200 letters is 12 KiB.
END_BYTES = 1 << 18
PAGE_BYTES = 1 << 17
# If it grows by more than this between two checks, only its end is read.
FOLLOWED_BYTES = 1 << 16
# Held at most, in bytes and rows (a row costs some 150 bytes beside its own).
HELD_BYTES = 1 << 21
HELD_ROWS = 20_000
_RATE_SECONDS = 10.0


class Happened(Struct, frozen=True):
    """A change of the file, when it was noticed (epoch seconds), and the size of the file then."""

    change: FileChange
    at: float
    size: int


class LogRow(NamedTuple):
    """A piece of the file that takes a row: where it begins, and its bytes, a newline at the end
    included.
    """

    offset: int
    content: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.content)

    @property
    def ends_a_line(self) -> bool:
        return self.content.endswith(b"\n")


class _Cut(Struct, frozen=True):
    """Rows of the bytes from `start` to `end`; `tail` are those of them that belong together with
    what comes next.
    """

    rows: list[LogRow]
    start: int
    end: int
    tail: bytes = b""


class FileGrowth:
    """Growth rate of a file, by the checks of the last ten seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()
        # When bytes last came, in epoch seconds; None: not known.
        self.last_at: float | None = None

    def saw(self, now: float, check: FileStat) -> None:
        if not self._readings:
            self.last_at = check.modified_at or None
        elif check.size > self._readings[-1][1]:
            self.last_at = now
        self._readings.append((now, check.size))
        while len(self._readings) > 2 and now - self._readings[1][0] >= _RATE_SECONDS:
            self._readings.popleft()

    @property
    def bytes_per_second(self) -> float:
        if len(self._readings) < 2:
            return 0.0
        (began, before), (ended, after) = self._readings[0], self._readings[-1]
        return max(0.0, (after - before) / (ended - began)) if ended > began else 0.0


class LogWindow:
    """Rows of a file from `start` to `end`, in bytes, without a gap; `look` is what the file was
    last.

    Its methods raise what LogFile raises, and take turns: what is held changes only once an answer
    is there.
    """

    def __init__(self, file: LogFile, now: Callable[[], float]) -> None:
        self.file = file
        self.followed = FollowedFile(file)
        self.rows: Sequence[LogRow] = ()
        self.start = 0
        self.end = 0
        self.looked_at: float | None = None
        self.happened: Happened | None = None
        self.growth = FileGrowth()
        self._now = now
        # Whether anything was read, be it the nothing of an empty file; and whether it is gone.
        self.is_open = False
        self._is_gone = False
        # Grows with each other file that is held.
        self._generation = 0
        # What comes after the last place where rows were cut for good.
        self._tail = b""
        # A check that was requested earlier and arrived later would make a file that grew seem
        # truncated.
        self._turn = asyncio.Lock()

    # -- held rows

    @property
    def stat(self) -> FileStat:
        """The file as it was last seen."""
        return self.followed.stat

    @property
    def begins_the_file(self) -> bool:
        return self.start == 0

    @property
    def ends_the_file(self) -> bool:
        return self._is_gone or self.end >= self.stat.size

    def index_of(self, offset: int) -> int:
        """The row that a byte of the file is in, the next where it was overwritten, or the nearest
        that is held.
        """
        index = max(0, bisect_right(self.rows, offset, key=attrgetter("offset")) - 1)
        if index + 1 < len(self.rows) and offset >= self.rows[index].end:
            return index + 1
        return index

    def find(self, requested: str, offset: int, *, backwards: bool = False) -> int | None:
        """The next row that is held with a text, from `offset` on (backwards: the last before it),
        as LogFile.find.
        """
        folds_case = requested == requested.lower()
        needle = requested.encode("utf-8", "replace")
        first = bisect_left(self.rows, offset, key=attrgetter("offset"))
        for row in reversed(self.rows[:first]) if backwards else self.rows[first:]:
            if needle in (row.content.lower() if folds_case else row.content):
                return row.offset
        return None

    def lines_between(self, first: int, second: int) -> int:
        """Count the lines that end from one row to before another, by their places in `rows`."""
        return sum(row.ends_a_line for row in self.rows[first:second])

    # -- reading

    async def open_at(self, offset: int) -> None:
        """Hold what is around an offset."""
        async with self._turn:
            if self._is_gone:
                return
            begin = read_from(max(0, offset - PAGE_BYTES // 2))
            chunk = await self.file.read(begin, offset - begin + PAGE_BYTES)
            if self._saw(chunk) or not chunk.content:
                await self._open_end()
            else:
                await self._hold(chunk, offset)

    async def read_before(self) -> None:
        """Hold some more before the first row."""
        async with self._turn:
            if self.begins_the_file or self._is_gone:
                return
            start = self.start
            begin = read_from(max(0, start - PAGE_BYTES))
            # The whole block that the first row begins in: only that tells whether it overwrites
            # what is before it.
            chunk = await self.file.read(begin, start - start % BLOCK + BLOCK - begin)
            if self._saw(chunk):
                await self._open_end()
            elif chunk.end >= start:
                is_end = chunk.end >= self.stat.size
                cut = await asyncio.to_thread(
                    _cut, chunk.content, begin, start, at_end=is_end, until=start
                )
                self.rows = [*cut.rows, *self.rows]
                self.start = cut.start
                self._trim(start)

    async def read_after(self) -> None:
        """Hold some more after the last row."""
        async with self._turn:
            if self._is_gone:
                return
            end = self.end
            chunk = await self.file.read(end, PAGE_BYTES)
            if self._saw(chunk):
                await self._open_end()
            elif chunk.content:
                await self._append(chunk, end)

    async def follow(self, seconds: float) -> bool:
        """Hold the end of the file as it is now, the last look being `seconds` ago; whether
        anything is new.

        What came meanwhile is added where it is little; else it is skipped.
        """
        async with self._turn:
            before = (self.is_open, self._generation, self._is_gone, self.end)
            expected = self.growth.bytes_per_second * seconds
            is_little = max(expected, self.stat.size - self.end) <= FOLLOWED_BYTES
            adds = self.is_open and not self._is_gone and is_little
            if adds:
                chunk = await self.file.read(self.end, FOLLOWED_BYTES)
            else:
                chunk = await self.file.read_end(FOLLOWED_BYTES if self.is_open else END_BYTES)
            if self._saw(chunk) or (adds and self.stat.size > chunk.end):
                await self._open_end()
            elif self.is_open and chunk.offset <= self.end:
                if chunk.end > self.end:
                    await self._append(chunk, chunk.end)
            else:
                await self._hold(chunk, chunk.end)
            return before != (self.is_open, self._generation, self._is_gone, self.end)

    async def glance(self) -> bool:
        """See what became of the file without reading it; whether what is held is of another file
        now.
        """
        async with self._turn:
            if not self._saw(Chunk(await self.file.stat(), 0, b"")):
                return False
            await self._open_end()
            return True

    async def _open_end(self) -> None:
        chunk = await self.file.read_end(END_BYTES)
        if self._saw(chunk):
            # It changed again since the previous check.
            chunk = await self.file.read_end(END_BYTES)
        await self._hold(chunk, chunk.end)

    # -- holding

    async def _hold(self, chunk: Chunk, around: int) -> None:
        """Hold this chunk in place of all that was held."""
        if not chunk.stat.is_there or chunk.stat.problem:
            return
        is_end = chunk.end >= self.stat.size
        cut = await asyncio.to_thread(_cut, chunk.content, chunk.offset, around, at_end=is_end)
        self.is_open = True
        self.rows, self._tail = cut.rows, cut.tail
        self.start, self.end = cut.start, cut.end
        self._trim(around)

    async def _append(self, chunk: Chunk, around: int) -> None:
        """Add what comes after `end`, which may continue with the last row."""
        fresh = chunk.content[self.end - chunk.offset :]
        begin = self.end - len(self._tail)
        content = self._tail + fresh
        is_end = chunk.end >= self.stat.size
        cut = await asyncio.to_thread(_cut, content, begin, around, at_start=True, at_end=is_end)
        self.rows = [
            *self.rows[: bisect_right(self.rows, begin - 1, key=attrgetter("offset"))],
            *cut.rows,
        ]
        self.end, self._tail = cut.end, cut.tail
        self._trim(around)

    def _trim(self, around: int) -> None:
        """Let go of what is far from an offset, where too much is held."""
        rows = self.rows
        here = self.index_of(around)
        first = max(0, here - HELD_ROWS // 2)
        last = min(len(rows), here + HELD_ROWS // 2)
        low = around - HELD_BYTES // 2
        high = around + HELD_BYTES // 2
        if self.start < low:
            first = max(first, self.index_of(low))
        if self.end > high:
            last = min(last, self.index_of(high) + 1)
        if last < len(rows):
            self.end = rows[last].offset
            self._tail = b""
        if first > 0:
            self.start = rows[first].offset
        if first > 0 or last < len(rows):
            self.rows = rows[first:last]

    # -- changes of the file

    def _saw(self, chunk: Chunk) -> bool:
        """Note what a file is now; whether what is held is of another file, or of what it was."""
        before_bytes = self.stat.size
        change = self.followed.note(chunk.stat)
        self.looked_at = now = self._now()
        if change is FileChange.DELETED or change is FileChange.CLOSED:
            self.happened = Happened(change, now, before_bytes)
            self._is_gone = self.is_open
        if not chunk.stat.is_there:
            return False
        is_other = change is FileChange.REPLACED or change is FileChange.TRUNCATED
        if self.is_open and is_other:
            self.happened = Happened(change, now, chunk.stat.size)
            self.is_open = self._is_gone = False
            self._generation += 1
            self.growth = FileGrowth()
            return True
        if change is FileChange.APPEARED or is_other:
            self._is_gone = False
            self.happened = None
        self.growth.saw(now, chunk.stat)
        return False


def _cut(
    content: bytes,
    offset: int,
    around: int,
    *,
    at_start: bool = False,
    at_end: bool = False,
    until: int | None = None,
) -> _Cut:
    """The rows in some bytes of the file that begin before `until`; of very many, those around an
    offset.
    """
    found = pieces(content, offset, at_start=at_start, at_end=at_end)
    pairs = found.rows()
    end = found.end
    tail_bytes = 0
    if until is not None:
        del pairs[bisect_left(pairs, (until,)) :]
        end = until
    elif found.is_open:
        tail_bytes = found.end - found[-1].start
    here = bisect_right(pairs, (around,))
    first = max(0, here - HELD_ROWS)
    last = here + HELD_ROWS
    start = pairs[first][0] if first else found.start
    if last < len(pairs):
        end = pairs[last][0]
        tail_bytes = 0
    rows = [
        LogRow(begin, content[begin - offset : stop - offset]) for begin, stop in pairs[first:last]
    ]
    return _Cut(rows, start, end, content[len(content) - tail_bytes :] if tail_bytes else b"")
