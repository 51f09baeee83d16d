"""Searches a whole log for a text or a time, part by part, and reads the times of its lines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from msgspec import Struct

from hpcdash.domain.spans import LOCAL_ZONE
from hpcdash.domain.units import DAY, HOUR, MINUTE, parse_instant
from hpcdash.services.files import Chunk
from hpcdash.services.logs.file import LogFile

# A login node searches this much in well under a second. Between two parts a search can stop, and
# reports its progress.
SPAN_BYTES = 1 << 28
# Overlap of two parts, for a match across their border.
_SHARED_BYTES = 1 << 16
_PROBE_BYTES = 1 << 16
# Maximum length of a trace or a table without times.
_MAX_UNTIMED_BYTES = 1 << 20

OnProgress = Callable[[float], None]
# A time is at the beginning of a line, perhaps after a level, a host or a rank.
_CHECKED_LETTERS = 120
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?"
# 2026-11-21T10:22:33.5+01:00, 2026-11-21 10:22:33,500, 2026/11/21 10:22
_ISO = re.compile(
    r"(?<![0-9])([0-9]{4})[-/]([0-9]{2})[-/]([0-9]{2})[T "
    r"]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r"(?: ?(Z|UTC|[+-][0-9]{2}:?[0-9]{2})(?![0-9]))?"
)
# Nov 21 10:22:33 of syslog; Sat Nov 21 10:22:33 CET 2026 of date.
_SYSLOG = re.compile(
    rf"(?<![A-Za-z])({'|'.join(_MONTHS)}) {{1,2}}([0-9]{{1,2}}) {_CLOCK}(?: (?:[A-Z]{{2,5}} "
    rf")?([0-9]{{4}})(?![0-9]))?",
    re.IGNORECASE,
)
# I1121 10:22:33.123456 of glog and absl.
_GLOG = re.compile(rf"^[IWEF]([0-9]{{2}})([0-9]{{2}}) {_CLOCK}")
# A time of day without a date, at the beginning or in brackets; [00:12<00:33] is a progress bar.
_TIME_OF_DAY = re.compile(rf"(?:^\W?|\[|\(){_CLOCK}(?![0-9:<])")
_EPOCH = re.compile(r"^\W?(1[0-9]{9})(?:\.([0-9]{1,9})|([0-9]{3}))?(?![0-9])")
_TYPED_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


class SearchHit(Struct, frozen=True):
    """Offset of a line; `has_wrapped`: the search continued at the other end of the file."""

    offset: int
    has_wrapped: bool = False


class TimeFound(Struct, frozen=True):
    """Offset of the first line at or after a time; None if all lines are before it.

    `seconds` are those of Stamp.
    """

    offset: int | None
    seconds: float


class NoTimes(Exception):
    """Raised if the log's lines have no readable times."""


async def find_text(
    file: LogFile,
    text: str,
    start: int,
    size: int,
    *,
    backwards: bool = False,
    on_output: OnProgress = lambda share: None,
) -> SearchHit | None:
    """Find the next line with a text at or after `start` (backwards: before it).

    The search continues at the other end of `size` bytes. `on_output` receives the share of the
    file that was searched, after each part.
    """
    halves = [(start, 0), (size, start)] if backwards else [(start, size), (0, start)]
    searched_bytes = 0
    for has_wrapped, (here, end) in enumerate(halves):
        left = max(0, here - end if backwards else end - here)
        while left > 0:
            span = min(SPAN_BYTES, left + _SHARED_BYTES)
            offset = await file.find(text, here, backwards=backwards, span_bytes=span)
            if offset is not None:
                return SearchHit(offset, bool(has_wrapped))
            step = min(SPAN_BYTES - _SHARED_BYTES, left)
            here += -step if backwards else step
            left -= step
            searched_bytes += step
            on_output(searched_bytes / max(size, 1))
    return None


async def find_time(
    file: LogFile, typed: str, size: int, now_epoch: float, zone: tzinfo | None = None
) -> TimeFound:
    """Find a typed time in a log by bisection, with a few dozen reads of 64 KiB to 1 MiB.

    Raises ValueError for an invalid time, NoTimes if the lines have none.
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
        requested = parse_target_time(typed, last, self._now_epoch, self._zone)
        before = 0
        after = self._size
        while after - before > _PROBE_BYTES:
            middle = (before + after) // 2
            found = await self._first_from(middle, after, last)
            if found is None or found[1] >= requested:
                after = middle
            else:
                before = found[0]
        # The line may begin before the last half and end in it.
        offset = await self._first_at(requested, before, last)
        return TimeFound(offset, requested)

    async def _last(self) -> Stamp:
        """Read the last time in the file."""
        chunk = await self._file.read_end(_PROBE_BYTES)
        if chunk.stat.is_there:
            self._size = chunk.end
            if chunk.stat.modified_at:
                modified = datetime.fromtimestamp(chunk.stat.modified_at, self._zone)
                self._about = modified.replace(tzinfo=None)
        stamps = await asyncio.to_thread(self._stamps, chunk)
        if not stamps and chunk.offset > 0:
            chunk = await self._file.read_end(_MAX_UNTIMED_BYTES)
            stamps = await asyncio.to_thread(self._stamps, chunk)
        if not stamps:
            raise NoTimes
        return stamps[-1][1]

    async def _first_from(self, offset: int, end: int, last: Stamp) -> tuple[int, float] | None:
        """Return the offset and time of the first timed line after `offset`; None without one."""
        for length in (_PROBE_BYTES, _MAX_UNTIMED_BYTES):
            chunk = await self._file.read(offset, min(length, end - offset))
            for position, stamp in await asyncio.to_thread(self._stamps, chunk):
                return position, comparable(stamp, last)
        return None

    async def _first_at(self, requested: float, offset: int, last: Stamp) -> int | None:
        """Find the first line from `offset` on that is not before `requested`."""
        limit = min(self._size, offset + 2 * _MAX_UNTIMED_BYTES)
        while offset < limit:
            chunk = await self._file.read(offset, _PROBE_BYTES)
            for position, stamp in await asyncio.to_thread(self._stamps, chunk, True):
                if comparable(stamp, last) >= requested:
                    return position
            if not chunk.content or chunk.end >= self._size:
                return None
            # The next chunk begins with the line that the end of this one cut.
            cut = chunk.content.rfind(b"\n") + 1
            offset = chunk.offset + (cut or len(chunk.content))
        return None

    def _stamps(self, chunk: Chunk, begins_a_line: bool | None = None) -> list[tuple[int, Stamp]]:
        """Return the offsets and times of the lines that begin in a chunk."""
        found = []
        is_whole = chunk.offset == 0 if begins_a_line is None else begins_a_line
        position = chunk.offset
        for number, line in enumerate(chunk.content.split(b"\n")):
            if line and (number or is_whole):
                stamp = read_stamp(line[:512].decode("utf-8", "replace"), self._about)
                if stamp is not None:
                    found.append((position, stamp))
            position += len(line) + 1
        return found


def local_wall_time(seconds: float) -> str:
    """Format a time of Stamp: `2026-11-21 10:22:33`, without a date `10:22:33`."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%H:%M:%S}" if abs(seconds) < 2 * 86_400 else f"{moment:%Y-%m-%d %H:%M:%S}"


class Stamp(Struct, frozen=True):
    """Time in a line.

    `seconds` are local: since 1970-01-01 00:00 there, or since midnight without a date.
    `offset_seconds` is the UTC offset; None if the line has none.
    """

    seconds: float
    has_date: bool = True
    offset_seconds: int | None = None


def read_stamp(line: str, about: datetime) -> Stamp | None:
    """Read the time at the beginning of a line; None without one.

    Times without a year are in the year before `about`, a naive time: when the log was last
    written.
    """
    start = _COLOR.sub("", line[: 2 * _CHECKED_LETTERS])[:_CHECKED_LETTERS]
    try:
        if found := _ISO.search(start):
            year, month, day, hour, minute, second, fraction, zone = found.groups()
            time_of_day = f"{hour}:{minute}:{second or '00'}"
            moment = datetime.fromisoformat(f"{year}-{month}-{day}T{time_of_day}+00:00")
            seconds = moment.timestamp() + _fraction(fraction)
            return Stamp(seconds, offset_seconds=_offset_seconds(zone))
        if found := _SYSLOG.search(start):
            name, day, hour, minute, second, fraction, year = found.groups()
            month_number = _MONTHS.index(name.lower()) + 1
            return _guess_year(about, month_number, day, (hour, minute, second, fraction), year)
        if found := _GLOG.search(start):
            month, day, *clock = found.groups()
            return _guess_year(about, int(month), day, clock)
    except ValueError:
        # An invalid time such as 2026-13-45.
        return None
    if found := _EPOCH.search(start):
        whole, fraction, milliseconds = found.groups()
        return Stamp(int(whole) + _fraction(fraction or milliseconds), offset_seconds=0)
    if found := _TIME_OF_DAY.search(start):
        hour, minute, second, fraction = found.groups()
        if int(hour) < 24 and int(minute) < 60 and int(second) < 60:
            return Stamp(_since_midnight(hour, minute, second, fraction), has_date=False)
    return None


def comparable(stamp: Stamp, last: Stamp) -> float:
    """Return comparable seconds; a time of day that is later than `last` is on the day before."""
    if not stamp.has_date and not last.has_date and stamp.seconds > last.seconds:
        return stamp.seconds - DAY
    return stamp.seconds


def parse_target_time(
    text: str, last: Stamp, now_epoch: float, zone: tzinfo | None = None
) -> float:
    """Parse a typed time, comparable with the lines of a log whose last time is `last`.

    A time of day is the last one in the log, a date is in the log's zone. Relative times such as
    `2h ago` count from now; a log without a zone is in `zone` (None: this machine's). Raises
    ValueError with the text.
    """
    requested = text.strip().lower()
    clock = _TYPED_TIME_OF_DAY.fullmatch(requested)
    if clock is not None and int(clock[1]) < 24 and int(clock[2]) < 60:
        midnight = last.seconds - last.seconds % DAY
        seconds = midnight + _since_midnight(clock[1], clock[2], clock[3] or "0", None)
        return seconds if seconds <= last.seconds else seconds - DAY
    local = zone or LOCAL_ZONE
    epoch = parse_instant(text, now_epoch, local).epoch
    # A time that is the same in another zone does not depend on the zone.
    offset = local.utcoffset(datetime.fromtimestamp(epoch, UTC)) or timedelta()
    other_zone = timezone(offset + timedelta(hours=1))
    is_absolute = parse_instant(text, now_epoch, other_zone).epoch == epoch
    if is_absolute and last.offset_seconds is not None:
        seconds = float(epoch + last.offset_seconds)
    else:
        moment = datetime.fromtimestamp(epoch, zone).astimezone(zone)
        seconds = moment.replace(tzinfo=UTC).timestamp()
    if last.has_date:
        return seconds
    since_midnight = seconds % DAY
    return since_midnight if since_midnight <= last.seconds else since_midnight - DAY


def _guess_year(
    about: datetime,
    month: int,
    day: str,
    clock: tuple[str, ...] | list[str],
    year: str | None = None,
) -> Stamp:
    hour, minute, second, fraction = clock
    # 2000 is a leap year.
    moment = datetime(int(year or 2000), month, int(day), int(hour), int(minute), int(second))
    if year is None:
        moment = _at_or_before(moment, about + timedelta(days=1))
    return Stamp(moment.replace(tzinfo=UTC).timestamp() + _fraction(fraction))


def _at_or_before(moment: datetime, latest: datetime) -> datetime:
    for year in range(latest.year, latest.year - 8, -1):
        try:
            moved = moment.replace(year=year)
        except ValueError:
            continue
        if moved <= latest:
            return moved
    return moment


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


def _since_midnight(hour: str, minute: str, second: str, fraction: str | None) -> float:
    return int(hour) * HOUR + int(minute) * MINUTE + int(second) + _fraction(fraction)


def _offset_seconds(zone: str | None) -> int | None:
    if zone is None:
        return None
    if zone in ("Z", "UTC"):
        return 0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * HOUR + int(zone[-2:]) * MINUTE)
