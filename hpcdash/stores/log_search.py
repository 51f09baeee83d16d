"""Looks through a whole log, span by span, for a text or a time, and reads bounded pieces of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from hpcdash.logs.times import Stamp, comparable, read_stamp, read_wanted
from hpcdash.stores.log_file import Chunk, LogFile

# A login node looks through so much in well under a second; between two spans one can stop, and hears how far it is.
SPAN_BYTES = 1 << 28
# Spans share so much: a match may lie across their border.
_SHARED_BYTES = 1 << 16
_PROBE_BYTES = 1 << 16
# Where no time is found within so much, there is none: a trace or a table stands between lines with times.
_LONGEST_WITHOUT_TIMES_BYTES = 1 << 20

Said = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Found:
    """The offset of a line; `from_the_other_end`: the search had to start again there."""

    offset: int
    from_the_other_end: bool = False


@dataclass(frozen=True, slots=True)
class TimeFound:
    """The offset of the first line at or after a time; None: all lines are before it. `seconds` as in logs.times."""

    offset: int | None
    seconds: float


class NoTimes(Exception):
    """The log's lines have no times that can be read."""


async def find_text(
    file: LogFile, wanted: str, start: int, size: int, *, backwards: bool = False, said: Said = lambda share: None
) -> Found | None:
    """The next line with a text at or after `start` (backwards: before it), else from the other end of `size` bytes.

    `said` hears, span by span, which share of the file was looked through.
    """
    if backwards:
        halves = ((start, 0), (size, start))
    else:
        halves = ((start, size), (0, start))
    looked_bytes = 0
    for from_the_other_end, (here, end) in enumerate(halves):
        while here > end if backwards else here < end:
            span = min(SPAN_BYTES, abs(end - here) + _SHARED_BYTES)
            offset = await file.find(wanted, here, backwards=backwards, span_bytes=span)
            if offset is not None:
                return Found(offset, bool(from_the_other_end))
            step = min(SPAN_BYTES - _SHARED_BYTES, abs(end - here))
            here += -step if backwards else step
            looked_bytes += step
            said(looked_bytes / max(size, 1))
    return None


async def find_time(file: LogFile, typed: str, size: int, now_epoch: float, zone: tzinfo | None = None) -> TimeFound:
    """Where a time that a person typed is in a log, by halving.

    Reads some dozens of times at most: 64 KiB or, where these hold no time, 1 MiB. Raises ValueError for what is no
    time, NoTimes where lines have none.
    """
    return await _TimeSearch(file, size, now_epoch, zone).find(typed)


class _TimeSearch:
    def __init__(self, file: LogFile, size: int, now_epoch: float, zone: tzinfo | None) -> None:
        self._file = file
        self._size = size
        self._now_epoch = now_epoch
        self._zone = zone
        self._about = datetime.fromtimestamp(now_epoch, zone).replace(tzinfo=None)

    async def find(self, typed: str) -> TimeFound:
        last = await self._last()
        wanted = read_wanted(typed, last, self._now_epoch, self._zone)
        before, after = 0, self._size
        while after - before > _PROBE_BYTES:
            middle = (before + after) // 2
            found = await self._first_from(middle, after, last)
            if found is None or found[1] >= wanted:
                after = middle
            else:
                before = found[0]
        # The line may begin before the last half and end in it.
        offset = await self._first_at(wanted, before, last)
        return TimeFound(offset, wanted)

    async def _last(self) -> Stamp:
        """The last time in the file."""
        chunk = await self._file.read_end(_PROBE_BYTES)
        if chunk.look.is_there:
            self._size = chunk.end
            if chunk.look.modified_at:
                self._about = datetime.fromtimestamp(chunk.look.modified_at, self._zone).replace(tzinfo=None)
        stamps = await asyncio.to_thread(self._stamps, chunk)
        if not stamps and chunk.offset > 0:
            stamps = await asyncio.to_thread(self._stamps, await self._file.read_end(_LONGEST_WITHOUT_TIMES_BYTES))
        if not stamps:
            raise NoTimes
        return stamps[-1][1]

    async def _first_from(self, offset: int, end: int, last: Stamp) -> tuple[int, float] | None:
        """The first line with a time that begins after `offset`: where, and when; None: there is none near by."""
        for length in (_PROBE_BYTES, _LONGEST_WITHOUT_TIMES_BYTES):
            chunk = await self._file.read(offset, min(length, end - offset))
            for position, stamp in await asyncio.to_thread(self._stamps, chunk):
                return position, comparable(stamp, last)
        return None

    async def _first_at(self, wanted: float, offset: int, last: Stamp) -> int | None:
        """The first line from `offset` on that is not before `wanted`."""
        here = offset
        limit = offset + 2 * _LONGEST_WITHOUT_TIMES_BYTES
        while here < min(self._size, limit):
            chunk = await self._file.read(here, _PROBE_BYTES)
            for position, stamp in await asyncio.to_thread(self._stamps, chunk, here == 0 or here == offset):
                if comparable(stamp, last) >= wanted:
                    return position
            # The next begins with the line that this one's end cut.
            cut = chunk.content.rfind(b"\n") + 1
            if not chunk.content or chunk.end >= self._size:
                return None
            here = chunk.offset + (cut or len(chunk.content))
            offset = here
        return None

    def _stamps(self, chunk: Chunk, begins_a_line: bool | None = None) -> list[tuple[int, Stamp]]:
        """Offsets and times of the lines that begin in a chunk."""
        found = []
        begins = chunk.offset == 0 if begins_a_line is None else begins_a_line
        position = chunk.offset
        for number, line in enumerate(chunk.content.split(b"\n")):
            if line and (number or begins):
                stamp = read_stamp(line[:512].decode("utf-8", "replace"), self._about)
                if stamp is not None:
                    found.append((position, stamp))
            position += len(line) + 1
        return found


def local_wall_time(seconds: float) -> str:
    """A time as the log's lines write it: `2026-11-21 10:22:33`, without a date `10:22:33`."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%H:%M:%S}" if abs(seconds) < 2 * 86_400 else f"{moment:%Y-%m-%d %H:%M:%S}"
