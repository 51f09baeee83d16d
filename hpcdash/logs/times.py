"""Reads the time a log's line was written at, and the time a person types to go there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from hpcdash.domain.units import DAY, HOUR, MINUTE, parse_instant

# A time stands at the beginning of a line, perhaps after a level, a host or a rank.
_LOOKED_AT_LETTERS = 120
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?"
# 2026-11-21T10:22:33.5+01:00, 2026-11-21 10:22:33,500, 2026/11/21 10:22
_ISO = re.compile(
    r"(?<![0-9])([0-9]{4})[-/]([0-9]{2})[-/]([0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r"(?: ?(Z|UTC|[+-][0-9]{2}:?[0-9]{2})(?![0-9]))?"
)
# Nov 21 10:22:33 of syslog; Sat Nov 21 10:22:33 CET 2026 of date.
_SYSLOG = re.compile(
    rf"(?<![A-Za-z])({'|'.join(_MONTHS)}) {{1,2}}([0-9]{{1,2}}) {_CLOCK}(?: (?:[A-Z]{{2,5}} )?([0-9]{{4}})(?![0-9]))?",
    re.IGNORECASE,
)
# I1121 10:22:33.123456 of glog and absl.
_GLOG = re.compile(rf"^[IWEF]([0-9]{{2}})([0-9]{{2}}) {_CLOCK}")
# A bare time of day counts at the beginning or in brackets; [00:12<00:33] is a progress bar's.
_TIME_OF_DAY = re.compile(rf"(?:^\W?|\[|\(){_CLOCK}(?![0-9:<])")
_EPOCH = re.compile(r"^\W?(1[0-9]{9})(?:\.([0-9]{1,9})|([0-9]{3}))?(?![0-9])")
_TYPED_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time as it is written in a line.

    `seconds` are those of the clock on the wall: since 1970-01-01 00:00 there, or since midnight where no date is
    written. `offset_seconds` is how far that clock is ahead of UTC, None where the line does not say it.
    """

    seconds: float
    has_date: bool = True
    offset_seconds: int | None = None


def read_stamp(line: str, about: datetime) -> Stamp | None:
    """The time at the beginning of a line, None where there is none.

    Times without a year are those of the year before `about` (naive: when the log was last written).
    """
    start = _COLOR.sub("", line[: 2 * _LOOKED_AT_LETTERS])[:_LOOKED_AT_LETTERS]
    try:
        if found := _ISO.search(start):
            year, month, day, hour, minute, second, fraction, zone = found.groups()
            moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=UTC)
            return Stamp(moment.timestamp() + _fraction(fraction), offset_seconds=_offset_seconds(zone))
        if found := _SYSLOG.search(start):
            name, day, hour, minute, second, fraction, year = found.groups()
            month_number = _MONTHS.index(name.lower()) + 1
            return _of_some_year(about, month_number, day, (hour, minute, second, fraction), year)
        if found := _GLOG.search(start):
            month, day, *clock = found.groups()
            return _of_some_year(about, int(month), day, clock)
    except ValueError:
        # 2026-13-45 and the like: no time.
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
    """Seconds to compare lines of one log by: times without a date that are later than the last were the day before."""
    if not stamp.has_date and not last.has_date and stamp.seconds > last.seconds:
        return stamp.seconds - DAY
    return stamp.seconds


def read_wanted(text: str, last: Stamp, now_epoch: float, zone: tzinfo | None = None) -> float:
    """What a person typed, comparable with the lines of a log whose last time is `last`.

    A time of day is the last one in the log; days and times are those the log writes; `2h ago` and the like count from
    now, with the log's clock in `zone` (None: this machine's) where it says none. Raises ValueError naming the text.
    """
    wanted = text.strip().lower()
    if (clock := _TYPED_TIME_OF_DAY.fullmatch(wanted)) and int(clock[1]) < 24 and int(clock[2]) < 60:
        midnight = last.seconds - last.seconds % DAY
        seconds = midnight + _since_midnight(clock[1], clock[2], clock[3] or "0", None)
        return seconds if seconds <= last.seconds else seconds - DAY
    local = zone or datetime.now().astimezone().tzinfo or UTC
    epoch = parse_instant(text, now_epoch, local).epoch
    elsewhere = timezone(timedelta(hours=1) + (local.utcoffset(datetime.fromtimestamp(epoch, UTC)) or timedelta()))
    is_absolute = parse_instant(text, now_epoch, elsewhere).epoch == epoch
    if is_absolute and last.offset_seconds is not None:
        seconds = float(epoch + last.offset_seconds)
    else:
        seconds = datetime.fromtimestamp(epoch, zone).astimezone(zone).replace(tzinfo=UTC).timestamp()
    if last.has_date:
        return seconds
    since_midnight = seconds % DAY
    return since_midnight if since_midnight <= last.seconds else since_midnight - DAY


def _of_some_year(
    about: datetime, month: int, day: str, clock: tuple[str, ...] | list[str], year: str | None = None
) -> Stamp:
    hour, minute, second, fraction = clock
    # 29 February is a day of some years only.
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
