"""A forecast from kept readings, a site's own quota command, and what checkpoints write a day."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcdash.domain.units import DAY, HOUR
from hpcdash.errors import CommandError, UnreadableOutput
from hpcdash.services.usage.saves import save_rate
from hpcdash.services.usage.site_quota import SiteQuota, parse_quotas, quota_query
from hpcdash.services.usage.storage_growth import (
    Growth,
    find_growth,
    keep_readings,
    read_readings,
)
from hpcdash.transport.base import CommandResult
from tests.support.records import for_each

GIB = 1 << 30
NOW = 1_795_000_000.0
COMMAND = ("/opt/site/bin/quota", "--me")


def growing(hours: float, *used_gib: float) -> list[tuple[float, int]]:
    """Readings at even intervals over so many hours, the last one now."""
    step = hours * HOUR / (len(used_gib) - 1)
    first = NOW - hours * HOUR
    return [(first + at * step, round(used * GIB)) for at, used in enumerate(used_gib)]


def test_a_place_is_full_when_its_growth_reaches_the_limit() -> None:
    growth = find_growth(growing(12, 10, 15, 20), 80 * GIB, NOW)
    assert growth == Growth(20 * GIB, NOW + 3 * DAY)


@for_each(
    ("readings", "limit_gib"),
    [
        # Two readings, and three over less than six hours.
        (growing(24, 10, 20), 100),
        (growing(5.9, 10, 15, 20), 100),
        # Nothing grows.
        (growing(24, 10, 10, 10), 100),
        (growing(24, 20, 19.9, 19.8), 100),
        # After a clean-up only its own readings count.
        (growing(24, 50, 90, 20, 25), 100),
        ([], 100),
    ],
)
def test_nothing_is_claimed_without_enough_readings_that_grow(
    readings: list[tuple[float, int]], limit_gib: int
) -> None:
    assert find_growth(readings, limit_gib * GIB, NOW) is None


def test_without_a_limit_or_far_from_it_only_the_growth_is_known() -> None:
    readings = growing(12, 10, 10.5, 11)
    assert find_growth(readings, None, NOW) == Growth(2 * GIB)
    assert find_growth(readings, 2000 * GIB, NOW) == Growth(2 * GIB)
    full = find_growth(growing(12, 10, 15, 20), 15 * GIB, NOW)
    assert full is not None
    assert full.full_at == NOW


def test_readings_are_kept_ten_minutes_apart_for_two_weeks(tmp_path: Path) -> None:
    file = tmp_path / "cluster" / "storage.json"
    for seconds, used in ((0, 1), (60, 2), (700, 3), (10 * DAY, 4)):
        keep_readings(file, {"/work": used}, NOW + seconds)
    assert [used for _, used in read_readings(file)["/work"]] == [1, 3, 4]
    keep_readings(file, {"/work": 5, "/home": 6}, NOW + 15 * DAY)
    assert {place: len(kept) for place, kept in read_readings(file).items()} == {
        "/work": 2,
        "/home": 1,
    }
    file.write_text("[")
    assert read_readings(file) == {}
    assert keep_readings(None, {"/home": 5}, NOW) == {"/home": [(NOW, 5)]}


def test_a_table_is_read_by_its_heading() -> None:
    text = "# Quotas\n\nPATH  used limit files max_files owner\n/h/a  1.5T 2T 12 100 alice\n/w 512 - - - -\n"
    assert parse_quotas(text, COMMAND) == (
        SiteQuota("/h/a", 3 << 39, 2 << 40, 12, 100, "alice"),
        SiteQuota("/w", 512),
    )


@for_each(
    "text",
    [
        '[{"path": "/w", "used_bytes": 5, "x": 1}]',
        '{"storage": [{"path": "/w", "used_bytes": "5"}]}',
    ],
)
def test_json_has_the_keys_of_the_command(text: str) -> None:
    assert parse_quotas(text, COMMAND) == (SiteQuota("/w", 5),)


@for_each(
    ("text", "problem"),
    [
        ("", "line 1: no output"),
        ("/home/alice 5G 10G\n", "line 1: no column '/home/alice'"),
        ("path limit\n/w 5\n", "line 1: no column path or used"),
        ("path used\n\n/w 5 6\n", "line 3: 3 columns, the heading has 2"),
        ("path used\n/w 5Q\n", "line 2: '5Q' is not an amount"),
        ("path used\nw 5\n", "line 2: path 'w' is not absolute"),
        ("path used files\n/w 5 -7\n", "line 2: used_inodes '-7' is not a whole number"),
        ('[{"path": "/w",\n]', "line 2: not JSON"),
        ('{"quotas": []}', "no list of quotas"),
        ('[{"path": "/w", "used_bytes": true}]', "entry 1: used_bytes True is not a whole number"),
        ('[{"path": "/w", "owner": 5}]', "entry 1: owner 5 is not a text"),
        ("[5]", "entry 1: not an object"),
    ],
)
def test_other_output_is_refused_with_the_command_and_the_line(text: str, problem: str) -> None:
    with pytest.raises(UnreadableOutput) as refused:
        parse_quotas(text, COMMAND)
    assert problem in refused.value.message
    assert refused.value.argv == COMMAND
    assert refused.value.output in text or not text


def test_a_command_that_fails_has_its_own_message() -> None:
    with pytest.raises(CommandError) as failed:
        quota_query(COMMAND).parse(CommandResult(COMMAND, 3, b"", b"no such user\n", 0.1))
    assert (failed.value.status, failed.value.output) == (3, "no such user")


def marker(saved_at: float, *sizes: int) -> str:
    files = {f"shard-{number}": {"bytes": size} for number, size in enumerate(sizes)}
    return json.dumps({"saved_at": saved_at, "files": files})


def test_checkpoints_write_what_the_newest_has_in_the_time_since_the_one_before() -> None:
    saves = [marker(NOW, 2 * GIB, 2 * GIB), marker(NOW - 3 * HOUR, GIB), marker(NOW - HOUR, GIB)]
    assert save_rate(saves) == 24 * 4 * GIB
    assert save_rate(saves[:1]) is None
    assert save_rate([saves[0], saves[0]]) is None
    assert save_rate([saves[0], "{", '{"files": 5, "saved_at": 1}']) is None
