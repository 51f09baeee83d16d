"""Reads the metrics of one file: its newest part at once, what is added, and stretches backwards to
its start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.files import Chunk, FileStat
from hpcdash.services.logs.file import LogFile
from hpcdash.services.metrics.batch import MetricBatch
from hpcdash.services.metrics.lines import LOOK_BACK_BYTES
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import CELLS, EXACT_POINTS, MetricLog
from hpcdash.services.metrics.vocabulary import newest_stamp, zone_behind_seconds

# What is read of the end at first, of the beginning (a CSV's header stands there), and of what is
# new at once.
FIRST_BYTES = 1 << 20
HEAD_BYTES = 1 << 14
NEW_BYTES = 4 << 20
# Stretches backwards: the smallest and the largest, and how long one should take on the line.
SMALLEST_STRETCH = 1 << 18
LARGEST_STRETCH = 16 << 20
STRETCH_SECONDS = 0.5
# No stretch needs to be longer than this to be placed.
LONGEST_STRETCH = LOOK_BACK_BYTES + (1 << 20)
# The last bytes that were read show whether a file is unchanged.
MARK_BYTES = 64
# Further from the end of a stretch than this, a header without a row behind it is of no table.
_LONGEST_HEADER_BYTES = 1 << 14
# Of a file that was cut or replaced the last few are kept.
MAX_OLDER = 3
# A time stands in one of the last lines.
_TAIL_BYTES = 1 << 14


class _Read(Struct, frozen=True):
    """Part of the file that was read."""

    # From where on its samples are whole, up to about `end`; None: unknown yet.
    begin: int | None = None
    end: int = 0
    mark: bytes = b""
    identity: str = ""


class MetricSource:
    """One file. Its methods raise what LogFile raises, UnreachableError and CommandTimedOut.

    `turns` bounds how many reads go on at once, over all sources that share it.
    """

    def __init__(
        self,
        file: LogFile,
        turns: asyncio.Semaphore,
        patterns: Sequence[str] = (),
        *,
        exact_points: int = EXACT_POINTS,
        cells: int = CELLS,
    ) -> None:
        self.file = file
        self.stat = FileStat()
        self._turns = turns
        self._patterns = tuple(patterns)
        self._capacity = (exact_points, cells)
        self._lock = Lock()
        self._log = self._new_log()
        self._older: list[MetricLog] = []
        self._reader = MetricReader(self._patterns)
        self._read = _Read()
        # Under which header the rows at the beginning of what was read were read.
        self._csv_header: tuple[str, ...] | None = None
        # From where all is to be read again, forwards, because its rows are under another header;
        # None: nowhere.
        self._again_from: int | None = None
        self._was_again = False
        # Grows whenever what was read is of another file than what comes.
        self._generation = 0
        self._stretch_bytes = FIRST_BYTES
        self._forwards = asyncio.Lock()
        # Seconds to add to stamps without a zone; 0 if unknown.
        self.behind_seconds = 0.0
        self._stamp: tuple[float, bool] | None = None
        # Times of the last news, of the last check, and of the last attempt to read it.
        self.moved_at = time.monotonic()
        self.checked_at = self.tried_at = 0.0
        # How often it could not be read.
        self.missed = 0
        # Whether nothing more is expected.
        self.is_finished = False

    # -- state

    @property
    def is_open(self) -> bool:
        """Whether anything was read, be it the nothing of an empty file."""
        return bool(self._read.identity)

    @property
    def is_whole(self) -> bool:
        return self.is_open and self._read.begin == 0

    @property
    def total_bytes(self) -> int:
        return max(self.stat.size, self._read.end)

    @property
    def bytes_read(self) -> int:
        begin = self._read.begin
        return self._read.end - begin if begin is not None else 0

    @property
    def problem(self) -> str:
        """Reason that it cannot be read now; '' if it can."""
        return self.stat.problem

    @property
    def names(self) -> frozenset[str]:
        """The metrics it has."""
        with self._lock:
            return frozenset(name for log in (*self._older, self._log) for name in log.names)

    def snapshot(self) -> list[MetricLog]:
        """The logs, the oldest first, as they are now; what was cut or replaced comes before what
        is there.
        """
        with self._lock:
            return [log.snapshot() for log in (*self._older, self._log) if log.names]

    # -- reading

    async def open(self) -> None:
        """Read the newest part, where nothing was read yet; of a file that is not there, its
        `stat`.
        """
        async with self._forwards:
            if not self.is_open:
                await self._open()

    async def _open(self) -> None:
        length = FIRST_BYTES
        end, head = await asyncio.gather(self._chunk(None, length), self._chunk(0, HEAD_BYTES))
        while True:
            self.stat = end.stat
            if not end.stat.is_there or end.stat.problem:
                return
            await asyncio.to_thread(self._begin_with, end, head, length >= LONGEST_STRETCH)
            if self._read.begin is not None or end.offset == 0 or length >= LONGEST_STRETCH:
                return
            length = min(4 * length, LONGEST_STRETCH)
            end = await self._chunk(None, length)

    async def read_new(self) -> bool:
        """Read what was appended, at most NEW_BYTES, or a file that replaced it; returns whether
        there was anything.
        """
        async with self._forwards:
            if not self.is_open:
                await self._open()
                return self.is_open
            read = self._read
            generation = self._generation
            chunk = await self._chunk(read.end - len(read.mark), NEW_BYTES + len(read.mark))
            self.stat = chunk.stat
            if not chunk.stat.is_there or (chunk.stat.problem and not chunk.content):
                return False
            # What was read is still there, in this file or in a copy of it that took its name.
            if not chunk.content.startswith(read.mark):
                self._start_new_file(generation)
                await self._open()
                return True
            if chunk.end <= read.end:
                return False
            await asyncio.to_thread(self._take_new, chunk, generation)
            return True

    @property
    def has_more(self) -> bool:
        """Whether the file had more at the last check than was read."""
        return self.stat.size > self._read.end

    async def read_before(self) -> bool:
        """Read a stretch that stands before what was read; False where there is none, or it is not
        to be had now.
        """
        read = self._read
        generation = self._generation
        if not read.begin or self.stat.problem:
            return False
        if self._again_from is not None:
            async with self._forwards:
                # Meanwhile it may have been done.
                again_from = self._again_from
                return again_from is None or await self._read_again(again_from)
        begin = max(0, read.begin - self._stretch_bytes)
        began = time.monotonic()
        chunk = await self._chunk(begin, read.begin - begin)
        is_same = chunk.stat.is_there and chunk.stat.identity == read.identity
        if not is_same or chunk.end < read.begin:
            # read_new finds the reason.
            return False
        # Longer stretches where the line is quick, shorter ones where it is slow.
        seconds = time.monotonic() - began
        length = len(chunk.content)
        if seconds > 2 * STRETCH_SECONDS:
            self._stretch_bytes = max(SMALLEST_STRETCH, length // 2)
        elif seconds < STRETCH_SECONDS / 2 and length >= self._stretch_bytes:
            self._stretch_bytes = max(length, min(4 * length, LARGEST_STRETCH))
        await asyncio.to_thread(self._take_before, chunk, read.begin, generation)
        return True

    async def _read_again(self, begin: int) -> bool:
        """Read again, forwards, what was read under a wrong header; the old points stay until that
        is done.
        """
        generation = self._generation
        # Another header still: no third time.
        begin = 0 if self._was_again else begin
        reader = MetricReader(self._patterns, at=begin, is_cut=False)
        log = self._new_log()
        end = begin
        until = self._read.end
        mark = b""
        identity = self._read.identity
        while end < until:
            chunk = await self._chunk(end, min(NEW_BYTES, until - end))
            is_same = chunk.stat.identity == identity and generation == self._generation
            if not chunk.content or not is_same:
                return False
            await asyncio.to_thread(lambda content: log.append(reader.feed(content)), chunk.content)
            end = chunk.end
            mark = (mark + chunk.content)[-MARK_BYTES:]
        with self._lock:
            if generation != self._generation:
                return False
            self._generation += 1
            self._was_again = True
            self._again_from = None
            self._log = log
            self._reader = reader
            self._read = _Read(begin, end, mark, identity)
        return True

    async def finish(self, *, is_over: bool) -> bool:
        """Take in what was left open because more might have followed, a block or a painted bar; a
        line that has no end yet only where the job is over. Whether that was anything.
        """
        return await asyncio.to_thread(self._finish, is_over)

    async def _chunk(self, offset: int | None, length: int) -> Chunk:
        """Read from an offset on, or the end (None)."""
        async with self._turns:
            if offset is None:
                chunk = await self.file.read_end(length)
            else:
                chunk = await self.file.read(offset, length)
        if chunk.content and chunk.ends_the_file:
            whole = chunk.content[: chunk.content.rfind(b"\n") + 1]
            stamp = newest_stamp(whole[-_TAIL_BYTES:].decode("utf-8", "replace"))
            # Lines without a time that were written since do not show the zone.
            if stamp is not None and stamp != self._stamp:
                self._stamp = stamp
                seconds, has_zone = stamp
                behind_seconds = zone_behind_seconds(seconds, chunk.stat.modified_at)
                self.behind_seconds = 0.0 if has_zone else behind_seconds
        return chunk

    # -- reading, in threads

    def _new_log(self) -> MetricLog:
        return MetricLog(*self._capacity)

    def _begin_with(self, chunk: Chunk, head: Chunk, is_longest: bool) -> None:
        header = None
        if chunk.offset > 0:
            beginning = MetricReader(self._patterns)
            beginning.feed(head.content[: head.content.rfind(b"\n") + 1])
            header = beginning.csv_header
        reader = MetricReader(self._patterns, at=chunk.offset, csv_header=header)
        batch = reader.feed(chunk.content)
        log = self._new_log()
        log.append(batch)
        with self._lock:
            self._generation += 1
            self._log = log
            self._reader = reader
            self._csv_header = header
            self._again_from = None
            self._was_again = False
            begin = chunk.offset if is_longest and reader.whole_from is None else reader.whole_from
            self._read = _Read(begin, chunk.end, chunk.content[-MARK_BYTES:], chunk.stat.identity)
            self._stretch_bytes = FIRST_BYTES

    def _take_new(self, chunk: Chunk, generation: int) -> None:
        with self._lock:
            read = self._read
            if generation != self._generation or chunk.end <= read.end:
                return
            content = chunk.content[read.end - chunk.offset :]
            self._log.append(self._reader.feed(content))
            begin = read.begin if read.begin is not None else self._reader.whole_from
            mark = (read.mark + content)[-MARK_BYTES:]
            self._read = _Read(begin, chunk.end, mark, chunk.stat.identity)

    def _take_before(self, chunk: Chunk, end: int, generation: int) -> None:
        content = chunk.content[: end - chunk.offset]
        with self._lock:
            names = self._log.names
            header = self._csv_header
        stretch_header = header if chunk.offset else None
        reader = MetricReader(
            self._patterns, at=chunk.offset, csv_header=stretch_header, names=names
        )
        batch = reader.feed(content, is_end=True)
        whole_from = end if reader.whole_from is None else reader.whole_from
        with self._lock:
            if generation != self._generation or self._read.begin != end:
                return
            if reader.csv_header != header and _is_table(reader, batch, end):
                self._again_from = reader.header_at
                return
            if whole_from >= end:
                # Nothing in it could be placed: a longer stretch can.
                if len(content) < LONGEST_STRETCH:
                    self._stretch_bytes = min(4 * len(content), LONGEST_STRETCH)
                    return
                whole_from = chunk.offset
            self._log.prepend(batch)
            self._read = replace(self._read, begin=whole_from)

    def _finish(self, is_over: bool) -> bool:
        with self._lock:
            version = self._log.version
            if is_over or self._read.mark.endswith(b"\n"):
                self._log.append(self._reader.feed(b"", is_end=True))
            return self._log.version != version

    def _start_new_file(self, generation: int) -> None:
        """Keep the lines read as those of an older file: the next ones are of a new file."""
        with self._lock:
            if generation != self._generation:
                return
            self._generation += 1
            if self._log.names:
                self._older = [*self._older, self._log][-MAX_OLDER:]
            self._log = self._new_log()
            self._read = _Read()
            self._again_from = None
            self._was_again = False


def _is_table(reader: MetricReader, batch: MetricBatch, end: int) -> bool:
    """Whether rows follow the last header that a stretch up to `end` has: in it, or right behind
    it.
    """
    header_at = reader.header_at
    if header_at is None:
        return False
    if batch.offsets.size and batch.offsets[-1] > header_at:
        return batch.format == "csv"
    return end - header_at <= _LONGEST_HEADER_BYTES
