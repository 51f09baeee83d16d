"""A span of time as people write it: the last 90 days, since a date, between two dates."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo

from msgspec import Struct

from hpcdash.domain.units import DAY, parse_duration, parse_instant
from hpcdash.errors import UsageError

# No scheduler's history goes further back, and no clock of Arrow's days is far from it.
_MAX_SECONDS = 100 * 366 * 86_400


class Span(Struct, frozen=True):
    """Span from `since` to before `until`, in epoch seconds."""

    since: int
    until: int

    @property
    def seconds(self) -> int:
        return self.until - self.since


class _LocalZone(tzinfo):
    """This machine's zone, with its offset at each time: that of now is another one in half of the
    year.
    """

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=self)


LOCAL_ZONE = _LocalZone()


def parse_span(since: str, until: str = "", *, now_epoch: float, zone: tzinfo = UTC) -> Span:
    """The span from `since` to `until` ('': now), each `90d` (ago), a date, a time or what
    parse_instant reads.

    A day that `until` names is in the span; a time is its end. Days begin at midnight in `zone`.
    A span until now holds the second that has begun.
    Raises UsageError.
    """
    now = int(now_epoch)
    latest = math.ceil(now_epoch)
    begin = _instant(since, "--since", now, zone)
    end = _instant(until or "now", "--until", latest, zone, is_end=True)
    if begin >= now:
        raise UsageError(
            f"--since {since!r} is not in the past",
            "Use a time before now: 7d, yesterday or a date.",
        )
    if begin >= end:
        raise UsageError(
            f"--until {until!r} is not after --since {since!r}",
            "Swap them, or omit --until.",
        )
    return Span(begin, min(end, latest))


def _instant(text: str, option: str, now: int, zone: tzinfo, *, is_end: bool = False) -> int:
    try:
        seconds = parse_duration(text, bare_unit_seconds=-1)
    except ValueError:
        seconds = -1
    if seconds is None or seconds > _MAX_SECONDS:
        raise UsageError(
            f"{option} {text!r} is too long ago", "Use a time such as 90d or 2026-01-01."
        )
    if seconds >= 0 and ":" not in text:
        return now - seconds
    try:
        instant = parse_instant(text, now, zone)
    except ValueError as error:
        raise UsageError(
            f"{option} {error}", "Use 90d, 12h, yesterday, 2026-01-01 or '2026-01-01 08:00'."
        ) from None
    epoch = instant.epoch
    if is_end and instant.span_seconds == DAY:
        # The next midnight: a day may have 23 or 25 hours.
        epoch = int(
            (
                datetime.fromtimestamp(epoch, zone).replace(tzinfo=zone) + timedelta(days=1)
            ).timestamp()
        )
    if not now - _MAX_SECONDS <= epoch:
        raise UsageError(
            f"{option} {text!r} is too long ago", "Use a time such as 90d or 2026-01-01."
        )
    return epoch
