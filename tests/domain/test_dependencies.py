"""What a job waits for, who waits for it, and what can never be."""

from __future__ import annotations

import pytest

from hpcdash.config.request import read_request, request_text
from hpcdash.domain.dependencies import (
    Condition,
    format_after,
    format_never,
    parse_dependency,
    waited_for_by,
    waits_for,
)
from hpcdash.errors import ConfigError
from tests.support.job_rows import job_row
from tests.support.records import for_each


@for_each(
    ("text", "conditions"),
    [
        ("afterok:1(unfulfilled)", [Condition("afterok", "1", status="unfulfilled")]),
        ("afterok:6_*(unfulfilled)", [Condition("afterok", "6", True, status="unfulfilled")]),
        (
            "after:1+5(unfulfilled)",
            [Condition("after", "1", delay_minutes=5, status="unfulfilled")],
        ),
        ("afterany:6_3", [Condition("afterany", "6_3")]),
        ("afterok:1:2", [Condition("afterok", "1"), Condition("afterok", "2")]),
        ("singleton(unfulfilled)", [Condition("singleton", status="unfulfilled")]),
        ("afterok:58(failed)", [Condition("afterok", "58", status="failed")]),
        ("afterok:12.server.example", [Condition("afterok", "12.server.example")]),
        (
            "afterany:9.pbs01@pbs01:15[].pbs01,afternotok:12",
            [
                Condition("afterany", "9.pbs01"),
                Condition("afterany", "15[].pbs01", True),
                Condition("afternotok", "12"),
            ],
        ),
        ("on:2", []),
        ("", []),
        (None, []),
        ("what:ever;$(x)", []),
    ],
)
def test_a_dependency_is_read(text: str | None, conditions: list[Condition]) -> None:
    assert list(parse_dependency(text).conditions) == conditions


def test_commas_mean_all_and_question_marks_any() -> None:
    every, some = (
        parse_dependency("afterok:1,afterany:2"),
        parse_dependency("afterok:1?afternotok:3"),
    )
    assert (every.is_any, every.job_ids) == (False, ("1", "2"))
    assert (some.is_any, some.job_ids) == (True, ("1", "3"))


def test_each_condition_is_told_with_the_other_job_s_state() -> None:
    known = [
        job_row("1", "running", name="prep"),
        job_row("6_1", "completed"),
        job_row("6_[2-9]", _tasks=8),
    ]
    first, second, third = waits_for(parse_dependency("afterok:1,afterany:6_*,after:77+5"), known)
    assert (first.name, dict(first.states), first.text) == (
        "prep",
        {"running": 1},
        "after success",
    )
    assert (dict(second.states), second.text) == (
        {"pending": 8, "completed": 1},
        "after all tasks end",
    )
    assert (dict(third.states), third.text) == ({}, "5 min after it starts")


@for_each(
    ("dependency", "state", "hopeless"),
    [
        ("afterok:1", "failed", True),
        ("afterok:1", "timeout", True),
        ("afterok:1", "completed", False),
        ("afterok:1", "gone", False),
        ("afterok:1(failed)", "running", True),
        ("afternotok:1", "completed", True),
        ("afternotok:1", "failed", False),
        ("afterany:1", "failed", False),
    ],
)
def test_a_job_that_ended_the_wrong_way_rules_a_dependency_out(
    dependency: str, state: str, hopeless: bool
) -> None:
    parsed = parse_dependency(dependency)
    said = format_never(waits_for(parsed, [job_row("1", state)]), parsed.is_any)
    assert bool(said) is hopeless
    assert not hopeless or "cancel the job" in said


def test_of_several_ways_one_that_is_left_is_enough() -> None:
    known = [job_row("1", "failed"), job_row("2", "running")]
    some, every = parse_dependency("afterok:1?afterok:2"), parse_dependency("afterok:1,afterok:2")
    assert format_never(waits_for(some, known), some.is_any) == ""
    assert "1 did not end as required" in format_never(waits_for(every, known), every.is_any)


def test_a_singleton_waits_for_its_namesakes() -> None:
    (branch,) = waits_for(parse_dependency("singleton"), [job_row("1")])
    assert (branch.job_id, dict(branch.states)) == ("", {})
    assert "this name" in branch.text


def test_those_that_wait_are_found_with_those_that_wait_for_them() -> None:
    rows = [
        job_row("2", dependency="afterok:1"),
        job_row("3", dependency="afterok:2"),
        job_row("12", dependency="afterok:11"),
    ]
    branches = waited_for_by("1", None, rows)
    assert [(branch.job_id, branch.depth) for branch in branches] == [("2", 0), ("3", 1)]


def test_a_circle_of_dependencies_ends() -> None:
    rows = [job_row("1", dependency="afterok:2"), job_row("2", dependency="afterok:1")]
    assert [branch.job_id for branch in waited_for_by("1", None, rows)] == ["2"]


def test_who_waits_for_an_array_waits_for_its_tasks_too() -> None:
    rows = [
        job_row("9", dependency="afterany:6_*"),
        job_row("10", dependency="afterok:6_3"),
        job_row("11", dependency="afterok:6"),
    ]
    assert [branch.job_id for branch in waited_for_by("6_3", "6", rows)] == ["9", "10", "11"]
    assert [branch.job_id for branch in waited_for_by("6_4", "6", rows)] == ["9", "11"]
    assert [branch.job_id for branch in waited_for_by("6", "6", rows)] == ["9", "11"]


def test_what_a_request_waits_for_is_written_by_kind() -> None:
    after = ("12", "afterok:13", "afterany:14_2", "afterok:15[]")
    assert format_after(after) == "afterany:12:14_2,afterok:13:15[]"
    request = read_request('command = "true"\nafter = ["12", "afterok:13"]')
    assert request.after == ("12", "afterok:13")
    assert read_request(request_text(request)) == request
    with pytest.raises(ConfigError, match="soon:13"):
        read_request('command = "true"\nafter = "soon:13"')
