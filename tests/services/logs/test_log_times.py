"""Times as programs write them at the beginning of a line, and as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hpcdash.services.logs.search import Stamp, comparable, parse_target_time, read_stamp
from tests.support.records import for_each

ABOUT = datetime(2026, 11, 21, 12, 0)
MOMENT = datetime(2026, 11, 21, 10, 22, 33, tzinfo=UTC).timestamp()
DAY = 86_400


@for_each(
    ("line", "seconds", "offset"),
    [
        ("2026-11-21T10:22:33Z start", MOMENT, 0),
        ("2026-11-21 10:22:33,250 - INFO - start", MOMENT + 0.25, None),
        ("[2026-11-21 10:22:33] INFO start", MOMENT, None),
        ("INFO:root:2026/11/21 10:22:33 start", MOMENT, None),
        ("2026-11-21T10:22:33.5+01:00 start", MOMENT + 0.5, 3600),
        ("2026-11-21T10:22:33-0530 start", MOMENT, -19_800),
        ("\x1b[32m2026-11-21 10:22:33\x1b[0m start", MOMENT, None),
        ("Nov 21 10:22:33 node17 kernel: oom", MOMENT, None),
        ("Nov  1 10:22:33 node17 kernel: oom", MOMENT - 20 * DAY, None),
        ("Sat Nov 21 10:22:33 CET 2026", MOMENT, None),
        ("Fri Nov 21 10:22:33 2025", MOMENT - 365 * DAY, None),
        ("I1121 10:22:33.000000 139 file.cc:12] start", MOMENT, None),
        ("1795256553 start", 1_795_256_553, 0),
        ("[1795256553.5] start", 1_795_256_553.5, 0),
        ("1795256553500 start", 1_795_256_553.5, 0),
    ],
)
def test_a_time_with_a_date_is_read(line: str, seconds: float, offset: int | None) -> None:
    stamp = read_stamp(line, ABOUT)
    assert stamp is not None
    assert stamp.seconds == pytest.approx(seconds)
    assert (stamp.has_date, stamp.offset_seconds) == (True, offset)


@for_each("line", ["[10:22:33] step 4", "10:22:33 step 4", "10:22:33.5 | INFO", "(10:22:33) step"])
def test_a_time_of_day_is_read_where_it_cannot_be_a_duration(line: str) -> None:
    stamp = read_stamp(line, ABOUT)
    assert stamp is not None
    assert not stamp.has_date
    assert int(stamp.seconds) == 10 * 3600 + 22 * 60 + 33


@for_each(
    "line",
    [
        "",
        "loss 0.25",
        " 45%|████      | 9/20 [00:00:12<00:33:10, 1.2it/s]",
        "ran 10:22:33 in all",
        "2026-13-45 10:22:33 no such day",
        "Feb 30 10:22:33 no such day",
        "[25:00:00] no such hour",
        "12345678901234567 a number",
        "x" * 300 + " 2026-11-21 10:22:33",
    ],
)
def test_what_is_no_time_is_none(line: str) -> None:
    assert read_stamp(line, ABOUT) is None


def test_a_line_without_a_year_is_of_the_year_before_the_log_was_last_written() -> None:
    stamp = read_stamp("Dec 31 23:59:59 node17 end of the year", datetime(2027, 1, 1, 0, 10))
    assert stamp is not None
    assert datetime.fromtimestamp(stamp.seconds, UTC).year == 2026


def test_a_time_of_day_later_than_the_last_was_the_day_before() -> None:
    last = Stamp(600.0, has_date=False)
    assert comparable(Stamp(86_000.0, has_date=False), last) < comparable(
        Stamp(300.0, has_date=False), last
    )


def test_a_typed_time_of_day_is_the_last_one_in_the_log() -> None:
    assert parse_target_time("10:00", Stamp(MOMENT), 0.0, UTC) == MOMENT - 22 * 60 - 33
    assert parse_target_time("11:00", Stamp(MOMENT), 0.0, UTC) == MOMENT + 37 * 60 + 27 - DAY


def test_a_typed_date_and_time_is_as_the_log_writes_it() -> None:
    berlin = Stamp(MOMENT, offset_seconds=3600)
    assert parse_target_time("2026-11-21 10:22:33", berlin, 0.0, UTC) == MOMENT


def test_a_time_ago_counts_from_now_on_the_clock_of_the_log() -> None:
    assert parse_target_time("2h ago", Stamp(MOMENT), MOMENT, UTC) == MOMENT - 7200
    assert (
        parse_target_time("2h ago", Stamp(MOMENT + 3600, offset_seconds=3600), MOMENT, UTC)
        == MOMENT - 7200 + 3600
    )


def test_what_is_no_time_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'soon'"):
        parse_target_time("soon", Stamp(MOMENT), MOMENT, UTC)
