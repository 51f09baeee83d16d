"""tests.support.records: a test of many records checks each, and its failure names those that
fail.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.records import for_each

PAIRS = [(1, 1), pytest.param(1, 2, id="one-two"), (3, 3), (4, 5)]


def test_every_record_is_checked_and_each_that_fails_is_named() -> None:
    checked: list[int] = []

    @for_each("number, same", PAIRS)
    def check(number: int, same: int) -> None:
        checked.append(number)
        assert number == same

    with pytest.raises(BaseExceptionGroup) as failed:
        check()
    assert checked == [1, 1, 3, 4]
    assert [line.strip() for line in failed.value.message.split("\n")] == [
        "2 of 4 records fail:",
        "one-two: AssertionError: assert 1 == 2",
        "4, 5: AssertionError: assert 4 == 5",
    ]


def test_an_error_that_was_not_raised_fails_its_record_alone() -> None:
    @for_each("text", ["x", "1", "y"])
    def check(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(
        BaseExceptionGroup, match="1 of 3 records fail:\n  '1': Failed: DID NOT RAISE"
    ):
        check()


def test_each_combination_of_two_sets_of_records_is_named() -> None:
    @for_each("first", [1, 2])
    @for_each("second", [1, 2], ids="number {}".format)
    async def check(first: int, second: int) -> None:
        with pytest.raises(ZeroDivisionError):
            print(1 / (first - second))

    with pytest.raises(BaseExceptionGroup) as failed:
        asyncio.run(check())
    assert failed.value.message.split("\n")[1:] == [
        "  1: 1 of 2 records fail:",
        "    number 2: Failed: DID NOT RAISE <class 'ZeroDivisionError'>",
        "  2: 1 of 2 records fail:",
        "    number 1: Failed: DID NOT RAISE <class 'ZeroDivisionError'>",
    ]


def test_the_hang_guard_ends_the_test_and_not_a_record_of_it() -> None:
    @for_each("number", [1, 2])
    def check(number: int) -> None:
        pytest.fail("Timeout (>300.0s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match="from pytest-timeout"):
        check()


@for_each("name", ["a", "b"])
def test_fixtures_are_those_of_the_test(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert (tmp_path / "a").exists()
