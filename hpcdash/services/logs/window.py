"""Part of a log in memory, around the reading position or at the growing end.

No more than a few MiB are held and read ahead, whatever the size of the file.
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

# Bytes that are read at once; a screen of 60 lines of 200 letters is 12 KiB.
END_BYTES = 1 << 18
PAGE_BYTES = 1 << 17
# If the file grows by more than this between two checks, only its end is read.
FOLLOWED_BYTES = 1 << 16
# Maximum size of the window (a row takes 150 bytes in addition to its own).
HELD_BYTES = 1 << 21
HELD_ROWS = 20_000
_RATE_SECONDS = 10.0


class Happened(Struct, frozen=True):
    """Change of the file that was noticed at an epoch second, and the file's size."""

    change: FileChange
    at: float
    size: int


class LogRow(NamedTuple):
    """Piece of the file that takes a row: its offset, and its bytes with a newline at the end."""

    offset: int
    content: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.content)

    @property
    def ends_a_line(self) -> bool:
        return self.content.endswith(b"\n")


class _Cut(Struct, frozen=True):
    """Rows of the bytes from `start` to `end`; the next bytes may continue the row of `tail`."""

    rows: list[LogRow]
    start: int
    end: int
    tail: bytes = b""


class FileGrowth:
    """Growth rate of a file, by the checks of the last ten seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()
        # Epoch second of the last growth; None: unknown.
        self.last_at: float | None = None

    def note(self, now: float, check: FileStat) -> None:
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
        first_at, first_size = self._readings[0]
        last_at, last_size = self._readings[-1]
        if last_at <= first_at:
            return 0.0
        return max(0.0, (last_size - first_size) / (last_at - first_at))


class LogWindow:
    """Contiguous rows of a file, from byte `start` to `end`.

    The methods raise the errors of LogFile, and take turns: the rows change only with an answer.
    """

    def __init__(self, file: LogFile, now: Callable[[], float]) -> None:
        self.file = file
        self.followed = FollowedFile(file)
        self.rows: Sequence[LogRow] = ()
        self.start = 0
        self.end = 0
        self.checked_at: float | None = None
        self.happened: Happened | None = None
        self.growth = FileGrowth()
        self._now = now
        # Whether the file was read, even if it is empty.
        self.is_open = False
        self._is_gone = False
        # Number of times that another file replaced the rows.
        self._generation = 0
        # Bytes of the last row, which may grow.
        self._tail = b""
        # Answers must arrive in order: a grown file would seem truncated.
        self._turn = asyncio.Lock()

    # -- held rows

    @property
    def stat(self) -> FileStat:
        """Last known state of the file."""
        return self.followed.stat

    @property
    def begins_the_file(self) -> bool:
        return self.start == 0

    @property
    def ends_the_file(self) -> bool:
        return self._is_gone or self.end >= self.stat.size

    def index_of(self, offset: int) -> int:
        """Return the index of the row with a byte of the file, else of the next or nearest row."""
        index = max(0, bisect_right(self.rows, offset, key=attrgetter("offset")) - 1)
        if index + 1 < len(self.rows) and offset >= self.rows[index].end:
            return index + 1
        return index

    def find(self, text: str, offset: int, *, backwards: bool = False) -> int | None:
        """Find the next held row with a text, or the last before `offset`, as LogFile.find."""
        folds_case = text == text.lower()
        needle = text.encode("utf-8", "replace")
        first = bisect_left(self.rows, offset, key=attrgetter("offset"))
        for row in reversed(self.rows[:first]) if backwards else self.rows[first:]:
            if needle in (row.content.lower() if folds_case else row.content):
                return row.offset
        return None

    def lines_between(self, first: int, second: int) -> int:
        """Count the lines that end in the rows from index `first` to before `second`."""
        return sum(row.ends_a_line for row in self.rows[first:second])

    # -- reading

    async def open_at(self, offset: int) -> None:
        """Read the rows around an offset."""
        async with self._turn:
            if self._is_gone:
                return
            begin = read_from(max(0, offset - PAGE_BYTES // 2))
            chunk = await self.file.read(begin, offset - begin + PAGE_BYTES)
            if self._note(chunk.stat) or not chunk.content:
                await self._open_end()
            else:
                await self._hold(chunk, offset)

    async def read_before(self) -> None:
        """Read more before the first row."""
        async with self._turn:
            if self.begins_the_file or self._is_gone:
                return
            start = self.start
            begin = read_from(max(0, start - PAGE_BYTES))
            # The whole block in which the first row begins shows whether that row overwrites the
            # previous one.
            chunk = await self.file.read(begin, start - start % BLOCK + BLOCK - begin)
            if self._note(chunk.stat):
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
        """Read more after the last row."""
        async with self._turn:
            if self._is_gone:
                return
            end = self.end
            chunk = await self.file.read(end, PAGE_BYTES)
            if self._note(chunk.stat):
                await self._open_end()
            elif chunk.content:
                await self._append(chunk, end)

    async def follow(self, seconds: float) -> bool:
        """Read the end of the file, last checked `seconds` ago; return whether anything is new.

        A small growth is appended; a large one replaces the rows.
        """
        async with self._turn:
            before = (self.is_open, self._generation, self._is_gone, self.end)
            expected = self.growth.bytes_per_second * seconds
            is_small = max(expected, self.stat.size - self.end) <= FOLLOWED_BYTES
            appends = self.is_open and not self._is_gone and is_small
            if appends:
                chunk = await self.file.read(self.end, FOLLOWED_BYTES)
            else:
                chunk = await self.file.read_end(FOLLOWED_BYTES if self.is_open else END_BYTES)
            if self._note(chunk.stat) or (appends and self.stat.size > chunk.end):
                await self._open_end()
            elif self.is_open and chunk.offset <= self.end:
                if chunk.end > self.end:
                    await self._append(chunk, chunk.end)
            else:
                await self._hold(chunk, chunk.end)
            return before != (self.is_open, self._generation, self._is_gone, self.end)

    async def check(self) -> bool:
        """Check the file without reading it; return whether other rows had to be read."""
        async with self._turn:
            if not self._note(await self.file.stat()):
                return False
            await self._open_end()
            return True

    async def _open_end(self) -> None:
        chunk = await self.file.read_end(END_BYTES)
        if self._note(chunk.stat):
            # It changed again since the previous check.
            chunk = await self.file.read_end(END_BYTES)
        await self._hold(chunk, chunk.end)

    # -- holding

    async def _hold(self, chunk: Chunk, around: int) -> None:
        """Replace the rows by those of a chunk."""
        if not chunk.stat.is_there or chunk.stat.problem:
            return
        is_end = chunk.end >= self.stat.size
        cut = await asyncio.to_thread(_cut, chunk.content, chunk.offset, around, at_end=is_end)
        self.is_open = True
        self.rows = cut.rows
        self.start = cut.start
        self._end_at(cut.end, cut.tail)
        self._trim(around)

    async def _append(self, chunk: Chunk, around: int) -> None:
        """Append the bytes after `end`, which may continue the last row."""
        fresh = chunk.content[self.end - chunk.offset :]
        begin = self.end - len(self._tail)
        content = self._tail + fresh
        is_end = chunk.end >= self.stat.size
        cut = await asyncio.to_thread(_cut, content, begin, around, at_start=True, at_end=is_end)
        unchanged = bisect_right(self.rows, begin - 1, key=attrgetter("offset"))
        self.rows = [*self.rows[:unchanged], *cut.rows]
        self._end_at(cut.end, cut.tail)
        self._trim(around)

    def _end_at(self, end: int, tail: bytes) -> None:
        self.end = end
        self._tail = tail

    def _trim(self, around: int) -> None:
        """Remove rows far from an offset if there are too many."""
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
            self._end_at(rows[last].offset, b"")
        if first > 0:
            self.start = rows[first].offset
        if first > 0 or last < len(rows):
            self.rows = rows[first:last]

    # -- changes of the file

    def _note(self, check: FileStat) -> bool:
        """Note the state of the file; return whether the rows are no longer in it."""
        size_before = self.stat.size
        change = self.followed.note(check)
        now = self._now()
        self.checked_at = now
        if change is FileChange.DELETED or change is FileChange.CLOSED:
            self.happened = Happened(change, now, size_before)
            self._is_gone = self.is_open
        if not check.is_there:
            return False
        is_other = change is FileChange.REPLACED or change is FileChange.TRUNCATED
        if self.is_open and is_other:
            self.happened = Happened(change, now, check.size)
            self.is_open = False
            self._is_gone = False
            self._generation += 1
            self.growth = FileGrowth()
            return True
        if change is FileChange.APPEARED or is_other:
            self._is_gone = False
            self.happened = None
        self.growth.note(now, check)
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
    """Return the rows that begin before `until`; of very many, those around an offset."""
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
    return _Cut(rows, start, end, tail=content[len(content) - tail_bytes :])
