"""Parsers and formats of durations, memory, counts and instants as people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from math import isfinite

MINUTE = 60
HOUR = 3600
DAY = 86_400
WEEK = 7 * DAY
KIB = 1024

_MAX_INT64 = 2**63 - 1
_UNLIMITED = frozenset({"infinite", "infinity", "unlimited", "inf"})
_UNIT_SECONDS = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
_UNIT_NAMES = (
    ("s", ("s", "sec", "secs", "second", "seconds")),
    ("m", ("m", "min", "mins", "minute", "minutes")),
    ("h", ("h", "hr", "hrs", "hour", "hours")),
    ("d", ("d", "day", "days")),
    ("w", ("w", "week", "weeks")),
)
_NAMED_UNITS = {name: unit for unit, names in _UNIT_NAMES for name in names}
_DURATION_PARTS = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]+)\s*")
_CLOCK = re.compile(
    r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?(?:\.[0-9]{1,9})?"
)
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?")
_MEMORY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?:([kmgtpe])i?)?(b)?", re.IGNORECASE)
_COUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmg])?", re.IGNORECASE)
_MEMORY_POWERS = {letter: power for power, letter in enumerate("KMGTPE", start=1)}
_EPOCH = re.compile(r"@?([0-9]{9,11})")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ t](.+))?")
_TIME_OF_DAY = re.compile(
    r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]+)?)?\s*(z|[+-][0-9]{2}:?[0-9]{2})?",
    re.IGNORECASE,
)
_DAY_WORDS = {"yesterday": -1, "today": 0, "tomorrow": 1}


def parse_duration(text: str, *, bare_unit_seconds: int = 1) -> int | None:
    """Parse `1-02:03:04`, `2:00:00`, `30:00` (mm:ss), `90m`, `2h`, `1d12h` to seconds.

    None for `infinite` and `unlimited`. A bare number counts in `bare_unit_seconds`. Days with one
    or two fields are Slurm's: `1-02` is a day and two hours. Raises ValueError with the text.
    """
    requested = text.strip().lower()
    if requested in _UNLIMITED:
        return None
    if _NUMBER.fullmatch(requested):
        number = float(requested) if "." in requested else int(requested)
        return _whole(number * bare_unit_seconds, text)
    if clock := _CLOCK.fullmatch(requested):
        return _whole(_clock_seconds(*clock.groups()), text)
    seconds = 0.0
    position = 0
    while position < len(requested):
        part = _DURATION_PARTS.match(requested, position)
        unit = _NAMED_UNITS.get(part[2]) if part else None
        if part is None or unit is None:
            break
        amount = float(part[1]) if "." in part[1] else int(part[1])
        seconds += amount * _UNIT_SECONDS[unit]
        position = part.end()
    if not requested or position < len(requested):
        raise ValueError(f"{text!r} is not a duration: use 90m, 2h, 1d12h, 2:00:00 or 1-02:03:04")
    return _whole(seconds, text)


def format_duration(seconds: float) -> str:
    """Format a duration for a narrow column: `0:42`, `12:34`, `3:04:05`, `2d04h`, `123d`."""
    whole = int(seconds)
    if whole < 0:
        return "-" + format_duration(-whole)
    if whole < HOUR:
        return f"{whole // MINUTE}:{whole % MINUTE:02}"
    if whole < DAY:
        return f"{whole // HOUR}:{whole % HOUR // MINUTE:02}:{whole % MINUTE:02}"
    if whole < 100 * DAY:
        return f"{whole // DAY}d{whole % DAY // HOUR:02}h"
    return f"{whole // DAY}d"


def format_clock(seconds: int) -> str:
    """Format a duration to the second, as schedulers read it: `02:00:00`, `1-02:03:04`.

    `parse_duration` parses it.
    """
    days, rest = divmod(seconds, DAY)
    clock = f"{rest // HOUR:02}:{rest % HOUR // MINUTE:02}:{rest % MINUTE:02}"
    return f"{days}-{clock}" if days else clock


def format_span(seconds: float, *, exact: bool = False) -> str:
    """Format a duration for a sentence: `42 s`, `12 min`, `14 h 20 min`, `3 d 4 h`; `exact`: `3 d
    4 h 2 min 1 s`.
    """
    whole = int(seconds)
    if not exact and whole >= MINUTE:
        whole -= whole % (HOUR if whole >= DAY else MINUTE)
    parts = []
    rest = whole
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        amount, rest = divmod(rest, size) if rest >= size else (0, rest)
        if amount:
            parts.append(f"{amount} {unit}")
    if rest or not parts:
        parts.append(f"{rest} s")
    return " ".join(parts)


def format_age(seconds: float) -> str:
    """Format an age in one unit: `12 s`, `4 min`, `3 h`, `2 d`; a future time counts as `0 s`."""
    return " ".join(format_span(max(seconds, 0)).split(" ")[:2])


def parse_memory(text: str, *, bare_unit_bytes: int = 1) -> int:
    """Parse `16G`, `1.5T`, `4000M`, `16GiB`, `100kb`, `0` to bytes; units are binary, as Slurm's
    and PBS's.

    A bare number counts in `bare_unit_bytes`. Raises ValueError with the text.
    """
    parts = _MEMORY.fullmatch(text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is not an amount of memory: use 16G, 1.5T or 4000M")
    number, letter, byte = parts.groups()
    scale = 1 if byte else bare_unit_bytes
    if letter:
        scale = KIB ** _MEMORY_POWERS[letter.upper()]
    return _whole(float(number) * scale if "." in number else int(number) * scale, text)


def format_memory(amount_bytes: float) -> str:
    """Format memory for a narrow column, in binary units: `0`, `512B`, `1.5G`, `16G`, `2T`."""
    if amount_bytes < 0:
        return "-" + format_memory(-amount_bytes)
    value = float(amount_bytes)
    if value < 1:
        return "0"
    for unit in "BKMGTPE":
        shown = f"{value:.1f}" if value < 99.95 and unit != "B" else f"{value:.0f}"
        if float(shown) < KIB or unit == "E":
            return (shown[:-2] if shown.endswith(".0") else shown) + unit
        value /= KIB
    raise AssertionError("the last unit always fits")


def parse_count(text: str, *, thousand: int = 1000) -> int:
    """Parse a whole number such as `12`, `1.5K`, `2M`; `thousand` is 1024 for Slurm's output.

    Raises ValueError with the text.
    """
    parts = _COUNT.fullmatch(text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is not a count: use 12, 1.5K or 2M")
    number, letter = parts.groups()
    scale = thousand ** ("kmg".index(letter.lower()) + 1) if letter else 1
    value = float(number) * scale if "." in number else int(number) * scale
    if value != int(value):
        raise ValueError(f"{text!r} is not a count: it is not a whole number")
    return _whole(value, text)


def format_count(count: int) -> str:
    """Format a count for a narrow column: exact below 10 000, then `83.4K`, `1.2M`."""
    if count < 0:
        return "-" + format_count(-count)
    if count < 10_000:
        return str(count)
    value = float(count)
    for unit in "KMG":
        value /= 1000
        shown = f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
        if float(shown) < 1000 or unit == "G":
            break
    return (shown[:-2] if shown.endswith(".0") else shown) + unit


def format_amount(value: float, digits: int = 3) -> str:
    """Format a measured amount with `digits` digits: `0.0083`, `2.5`, `155`, whole below 10 000,
    then `51.4k`, `1.2M`, `3G`.

    Larger and tiny amounts have an exponent; `nan` and `inf` stay as they are.
    """
    shown = f"{value:.{digits}g}"
    if not isfinite(value) or abs(float(shown)) < 1000:
        return shown
    if abs(value) < 9999.5:
        return f"{value:.0f}"
    for thousands, unit in enumerate("kMGT", start=1):
        shown = f"{value / 1000.0**thousands:.{digits}g}"
        if abs(float(shown)) < 1000:
            return shown + unit
    return f"{value:.{digits}g}"


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time at `epoch`, as precise as it was written: a day, a minute or a second."""

    epoch: int
    span_seconds: int = 1


def parse_instant(text: str, now_epoch: float, zone: tzinfo = UTC) -> Instant:
    """Parse `2026-11-20`, `2026-11-20 10:30`, `10:30` (today), `2h ago`, `-2h`, `+30m`, `now`,
    `today`, RFC 3339, an epoch.

    `zone` is the time zone of days and times without an offset. Raises ValueError with the text.
    """
    requested = text.strip().lower()
    if requested == "now":
        return Instant(int(now_epoch))
    if epoch := _EPOCH.fullmatch(requested):
        return Instant(int(epoch[1]))
    try:
        if requested in _DAY_WORDS:
            day = datetime.fromtimestamp(now_epoch, zone).replace(
                hour=0, minute=0, second=0, microsecond=0
            )
            return Instant(int((day + timedelta(days=_DAY_WORDS[requested])).timestamp()), DAY)
        if date := _DATE.fullmatch(requested):
            day = datetime(int(date[1]), int(date[2]), int(date[3]), tzinfo=zone)
            return _time_on(day, date[4]) if date[4] else Instant(int(day.timestamp()), DAY)
        if _TIME_OF_DAY.fullmatch(requested):
            return _time_on(datetime.fromtimestamp(now_epoch, zone), requested)
        shift = _shift_seconds(requested)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{text!r} is not a time: {error}") from None
    if shift is None:
        raise ValueError(f"{text!r} is not a time: use 2026-11-20, 10:30, 2h ago or +30m")
    return Instant(int(now_epoch) + shift)


def _clock_seconds(days: str | None, first: str, second: str | None, third: str | None) -> int:
    if days is not None:
        return int(days) * DAY + int(first) * HOUR + int(second or 0) * MINUTE + int(third or 0)
    if third is not None:
        return int(first) * HOUR + int(second or 0) * MINUTE + int(third)
    return int(first) * MINUTE + int(second or 0)


def _whole(value: float, text: str) -> int:
    # 2**63 is the first float above int64.
    if value > _MAX_INT64 or value >= 2.0**63:
        raise ValueError(f"{text!r} is too large")
    return round(value)


def _time_on(day: datetime, text: str) -> Instant:
    parts = _TIME_OF_DAY.fullmatch(text)
    if parts is None:
        raise ValueError("use a time of day such as 10:30 or 10:30:15")
    hour, minute, second, offset = parts.groups()
    moment = day.replace(hour=int(hour), minute=int(minute), second=int(second or 0), microsecond=0)
    if offset:
        sign = -1 if offset[0] == "-" else 1
        hours, minutes = (0, 0) if offset == "z" else (int(offset[1:3]), int(offset[-2:]))
        moment = moment.replace(tzinfo=UTC) - sign * timedelta(hours=hours, minutes=minutes)
    return Instant(int(moment.timestamp()), 1 if second else MINUTE)


def _shift_seconds(requested: str) -> int | None:
    """Parse `2h ago`, `-2h`, `+2h`, `in 2h` to seconds from now; None for any other text."""
    if requested.endswith("ago"):
        sign = -1
        amount = requested[:-3]
    elif requested[:1] in {"-", "+"}:
        sign = -1 if requested[0] == "-" else 1
        amount = requested[1:]
    elif requested.startswith("in "):
        sign = 1
        amount = requested[3:]
    else:
        return None
    seconds = parse_duration(amount)
    if seconds is None:
        raise ValueError("a time cannot be infinite")
    if seconds > 1000 * 366 * DAY:
        raise ValueError("too far in the future")
    return sign * seconds
