from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.units import (
    DAY,
    Instant,
    format_age,
    format_amount,
    format_clock,
    format_count,
    format_duration,
    format_memory,
    format_span,
    parse_count,
    parse_duration,
    parse_instant,
    parse_memory,
)
from tests.support.records import for_each

NOW = int(datetime(2026, 11, 21, 5, 34, 15, tzinfo=UTC).timestamp())


@for_each(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93_784),
        ("1-02", 93_600),
        ("1-02:03", 93_780),
        ("2:00:00", 7200),
        ("30:00", 1800),
        ("0:05", 5),
        ("90m", 5400),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1d12h", 129_600),
        ("1d 12h 5 min", 129_900),
        ("2 weeks", 14 * DAY),
        ("45s", 45),
        ("90", 90),
        ("0", 0),
        ("infinite", None),
        ("UNLIMITED", None),
    ],
)
def test_a_duration_is_read_as_people_and_schedulers_write_it(
    text: str, seconds: int | None
) -> None:
    assert parse_duration(text) == seconds


def test_a_bare_number_counts_in_the_unit_asked_for() -> None:
    assert parse_duration("90", bare_unit_seconds=60) == 5400
    assert parse_memory("4000", bare_unit_bytes=1024**2) == 4000 * 1024**2


@for_each(
    "text",
    [
        "",
        " ",
        "2x",
        "h",
        "1:2:3:4",
        "-5",
        "1d12",
        "2h-",
        "٣h",
        "9" * 30,
        "999999999999999w",
        "1-",
        "NaN",
    ],
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|too large") as refused:
        parse_duration(text)
    assert repr(text) in str(refused.value)


@for_each(
    ("seconds", "shown"),
    [
        (0, "0:00"),
        (5, "0:05"),
        (754, "12:34"),
        (3599, "59:59"),
        (11_045, "3:04:05"),
        (187_200, "2d04h"),
        (123 * DAY, "123d"),
        (-5, "-0:05"),
    ],
)
def test_a_duration_is_shown_short(seconds: int, shown: str) -> None:
    assert format_duration(seconds) == shown


@given(st.integers(min_value=0, max_value=10**9))
def test_a_duration_to_the_second_is_read_back(seconds: int) -> None:
    assert parse_duration(format_clock(seconds)) == seconds


@given(st.integers(min_value=0, max_value=10**9))
def test_a_short_duration_is_read_back_but_for_what_it_leaves_out(seconds: int) -> None:
    read = parse_duration(format_duration(seconds))
    assert read is not None
    assert 0 <= seconds - read < (1 if seconds < DAY else DAY)


@for_each(
    ("text", "amount"),
    [
        ("16G", 16 * 1024**3),
        ("1.5T", 3 * 1024**4 // 2),
        ("4000M", 4000 * 1024**2),
        ("16GiB", 16 * 1024**3),
        ("100kb", 102_400),
        ("512b", 512),
        ("0", 0),
        (" 2 g ", 2 * 1024**3),
    ],
)
def test_memory_is_read_in_binary_units(text: str, amount: int) -> None:
    assert parse_memory(text) == amount


@for_each("text", ["", "G", "16X", "-1G", "1e3", "1.5.2G", "16 G B", "999999999E"])
def test_what_is_no_memory_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory|too large") as refused:
        parse_memory(text)
    assert repr(text) in str(refused.value)


@for_each(
    ("amount", "shown"),
    [
        (0, "0"),
        (512, "512B"),
        (1023, "1023B"),
        (1024, "1K"),
        (3 * 1024**3 // 2, "1.5G"),
        (16 * 1024**3, "16G"),
        (4000 * 1024**2, "3.9G"),
        (1024**3 - 1, "1G"),
        (500 * 1024**3, "500G"),
        (2 * 1024**4, "2T"),
    ],
)
def test_memory_is_shown_in_the_largest_unit_that_fits(amount: int, shown: str) -> None:
    assert format_memory(amount) == shown


@given(st.integers(min_value=0, max_value=2**62))
def test_shown_memory_is_read_back_within_a_twentieth(amount: int) -> None:
    assert abs(parse_memory(format_memory(amount)) - amount) <= amount / 19


@for_each(
    ("text", "count"), [("12", 12), ("1.5K", 1500), ("2M", 2_000_000), ("0", 0), ("3k", 3000)]
)
def test_a_count_is_read(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_a_count_printed_by_slurm_has_1024_in_a_k() -> None:
    assert parse_count("1.5K", thousand=1024) == 1536


@for_each("text", ["", "1.5", "-1", "k", "1_000", "12T"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a count"):
        parse_count(text)


@for_each(
    ("count", "shown"),
    [
        (0, "0"),
        (9999, "9999"),
        (10_000, "10K"),
        (83_412, "83.4K"),
        (999_999, "1M"),
        (1_230_000, "1.2M"),
        (2 * 10**12, "2000G"),
    ],
)
def test_a_count_is_shown_short(count: int, shown: str) -> None:
    assert format_count(count) == shown


@for_each(
    ("amount", "shown"),
    [
        (0.0, "0"),
        (0.0083333, "0.00833"),
        (2.5, "2.5"),
        (155.27, "155"),
        (999.7, "1000"),
        (9820.4, "9820"),
        (9999.9, "10k"),
        (51_432.0, "51.4k"),
        (999_960.0, "1M"),
        (-1_234_567.0, "-1.23M"),
        (3e12, "3T"),
        (1e30, "1e+30"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_an_amount_is_shown_by_three_digits(amount: float, shown: str) -> None:
    assert format_amount(amount) == shown


@for_each(
    ("seconds", "shown"),
    [
        (-3, "0 s"),
        (12.9, "12 s"),
        (60, "1 min"),
        (299, "4 min"),
        (3 * 3600, "3 h"),
        (2.5 * DAY, "2 d"),
    ],
)
def test_an_age_is_one_number_and_its_unit(seconds: float, shown: str) -> None:
    assert format_age(seconds) == shown


@for_each(
    ("text", "expected"),
    [
        ("now", Instant(NOW)),
        ("2h ago", Instant(NOW - 7200)),
        ("2 hours ago", Instant(NOW - 7200)),
        ("-2h", Instant(NOW - 7200)),
        ("+30m", Instant(NOW + 1800)),
        ("in 30 min", Instant(NOW + 1800)),
        ("10:30", Instant(NOW - 20_055 + 37_800, 60)),
        ("2026-11-20", Instant(NOW - 20_055 - DAY, DAY)),
        ("today", Instant(NOW - 20_055, DAY)),
        ("yesterday", Instant(NOW - 20_055 - DAY, DAY)),
        ("2026-11-21T05:34:15Z", Instant(NOW)),
        ("2026-11-21 05:34", Instant(NOW - 15, 60)),
        ("2026-11-21T07:34:15+02:00", Instant(NOW)),
        (str(NOW), Instant(NOW)),
        (f"@{NOW}", Instant(NOW)),
    ],
)
def test_an_instant_is_read_with_the_precision_of_its_words(text: str, expected: Instant) -> None:
    assert parse_instant(text, NOW) == expected


def test_days_and_times_of_day_are_those_of_the_zone() -> None:
    berlin_in_winter = timezone(timedelta(hours=1))
    assert parse_instant("2026-11-21", NOW, berlin_in_winter).epoch == NOW - 20_055 - 3600
    assert parse_instant("06:34:15", NOW, berlin_in_winter).epoch == NOW


@for_each(
    "text",
    [
        "",
        "2h",
        "2026-13-01",
        "2026-02-30",
        "25:00",
        "2026-11-20 foo",
        "ago",
        "infinite ago",
        "-",
        "9999999w ago",
    ],
)
def test_what_is_no_instant_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time") as refused:
        parse_instant(text, NOW)
    assert repr(text) in str(refused.value)


@given(st.text() | st.text("0123456789-:+. agodhmswinTZ@"))
@pytest.mark.parametrize(
    "parse", [parse_duration, parse_memory, parse_count, lambda text: parse_instant(text, NOW)]
)
def test_every_text_is_read_or_refused_with_a_value_error(
    parse: Callable[[str], object], text: str
) -> None:
    refusal = ""
    try:
        parse(text)
    except ValueError as error:
        refusal = str(error)
    assert refusal == "" or repr(text) in refusal


@for_each(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (51_600, "14 h 20 min"),
        (86_400, "1 d"),
        (9e4, "1 d 1 h"),
    ],
)
def test_a_span_is_told_in_two_units_at_most(seconds: float, words: str) -> None:
    assert format_span(seconds) == words


def test_a_span_is_told_to_the_second_where_that_matters() -> None:
    assert [format_span(seconds, exact=True) for seconds in (0, 90, 7200, 273_721)] == [
        "0 s",
        "1 min 30 s",
        "2 h",
        "3 d 4 h 2 min 1 s",
    ]
