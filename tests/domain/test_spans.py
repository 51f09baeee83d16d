"""Spans as people write them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest

from hpcdash.domain.spans import LOCAL_ZONE, Span, parse_span
from hpcdash.errors import UsageError
from tests.support.records import for_each

BERLIN = ZoneInfo("Europe/Berlin")
# Sunday; that night the clocks went back by an hour.
NOW = int(datetime(2026, 10, 25, 12, tzinfo=UTC).timestamp())
HOUR, DAY = 3600, 86_400


def at(*when: int, zone: tzinfo = UTC) -> int:
    year, month, day, hour, minute = (*when, 0, 0)[:5]
    return int(datetime(year, month, day, hour, minute, tzinfo=zone).timestamp())


@for_each(
    ("since", "until", "expected"),
    [
        ("90d", "", (NOW - 90 * DAY, NOW)),
        ("12h", "2h", (NOW - 12 * HOUR, NOW - 2 * HOUR)),
        ("2h ago", "now", (NOW - 2 * HOUR, NOW)),
        ("2026-10-01", "2026-10-02", (at(2026, 10, 1), at(2026, 10, 3))),
        ("2026-10-01 08:30", "2026-10-01 09:00", (at(2026, 10, 1, 8, 30), at(2026, 10, 1, 9))),
        ("yesterday", "", (at(2026, 10, 24), NOW)),
        ("2026-10-01", "2027-01-01", (at(2026, 10, 1), NOW)),
    ],
)
def test_a_span_is_from_a_time_to_before_another(
    since: str, until: str, expected: tuple[int, int]
) -> None:
    span = parse_span(since, until, now_epoch=NOW)
    assert (span.since, span.until) == expected
    assert span == Span(*expected)


def test_a_span_until_now_holds_the_second_that_has_begun() -> None:
    for until in ("", "now", "2027-01-01"):
        span = parse_span("1h", until, now_epoch=NOW + 0.25)
        assert (span.since, span.until) == (NOW - HOUR, NOW + 1)


def test_days_begin_at_midnight_where_one_is_and_may_have_25_hours() -> None:
    span = parse_span("2026-10-25", "2026-10-25", now_epoch=NOW + DAY, zone=BERLIN)
    assert span.since == at(2026, 10, 25, zone=BERLIN) == at(2026, 10, 24, 22)
    assert span.until == at(2026, 10, 26, zone=BERLIN)
    assert span.seconds == 25 * HOUR


def test_this_machine_s_zone_has_the_offset_of_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        span = parse_span("2026-07-01", "2026-10-25", now_epoch=NOW + 90 * DAY, zone=LOCAL_ZONE)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (span.since, span.until) == (at(2026, 7, 1, zone=BERLIN), at(2026, 10, 26, zone=BERLIN))


@for_each(
    ("since", "until", "says"),
    [
        ("soon", "", "not a time"),
        ("2d", "3d", "is not after"),
        ("2026-10-01", "2026-09-01", "is not after"),
        ("now", "", "not in the past"),
        ("tomorrow", "", "not in the past"),
        ("infinite", "", "too long ago"),
        ("99999999d", "", "too long ago"),
        ("2026-13-01", "", "not a time"),
        ("2026-10-25 29:00", "", "not a time"),
        ("7d", "soon", "not a time"),
        ("1000-01-01", "", "too long ago"),
    ],
)
def test_a_bad_span_says_what_is_wrong_and_what_to_write(since: str, until: str, says: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_span(since, until, now_epoch=NOW)
    assert says in told.value.message
    assert told.value.next_step
