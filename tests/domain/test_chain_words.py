"""A train in one line however long it is, what its elements wait for, and when it would end at the
latest.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hpcdash.domain.chains import (
    AppendWish,
    chain_notes,
    find_chain,
    format_hold,
    format_wait,
    latest_end,
    picture,
    read_append,
)
from hpcdash.domain.states import JobState
from tests.support.job_rows import at, job_row, task_row
from tests.support.records import for_each

CHAIN = [
    job_row("10", "running"),
    job_row("11", dependency="afterany:10(unfulfilled)"),
    job_row("12", dependency="afterok:11(unfulfilled)"),
]
SIGNS = {
    JobState.COMPLETED: "+",
    JobState.FAILED: "x",
    JobState.CANCELLED: "-",
    JobState.RUNNING: ">",
    JobState.PENDING: ".",
    JobState.HELD: "|",
    JobState.UNKNOWN: "?",
}


def states(*names: str) -> list[dict[str, Any]]:
    return [job_row(str(number), name) for number, name in enumerate(names, 1)]


def test_a_short_train_has_a_sign_an_element() -> None:
    rows = [
        *states("completed", "completed", "timeout", "cancelled", "running"),
        task_row("20", "3-10%1"),
        *states("held"),
    ]
    line = picture(rows, SIGNS)
    assert line == "++x->........|  2 done, 1 failed, 1 cancelled, 1 running, 8 waiting, 1 held"


def test_a_long_one_has_its_runs_counted() -> None:
    waiting = {**task_row("20", "3-10%1"), "_tasks": 584}
    rows = [*states(*["completed"] * 412, "failed", "running"), waiting]
    assert picture(rows, SIGNS) == "+412 x1 >1 .584  412 done, 1 failed, 1 running, 584 waiting"


@for_each("count", [1, 7, 40, 41, 333, 1000])
@for_each("width", [44, 76])
def test_no_picture_is_wider_than_asked(count: int, width: int) -> None:
    names = ["completed", "failed", "cancelled", "running", "pending", "held", "unknown"]
    mixed = states(*(names[number * 5 % 7] for number in range(count)))
    assert 0 < len(picture(mixed, SIGNS, width)) <= width


def test_a_very_mixed_long_train_is_counts_alone() -> None:
    mixed = states(*["completed", "failed"] * 100)
    assert picture(mixed, SIGNS) == "100 done, 100 failed"


def test_what_each_waits_for_is_said_in_words() -> None:
    rows = [
        *CHAIN,
        job_row("13", dependency="after:12+5"),
        job_row("14", dependency="afternotok:13?afterok:12"),
    ]
    train = find_chain("10", rows)
    assert [format_wait(unit, train) for unit in train.units] == [
        "",
        "after 10",
        "after 11 succeeds",
        "after 12 starts + 5 min",
        "after 13 fails or after 12 succeeds",
    ]


def test_one_that_can_never_start_is_a_note() -> None:
    train = find_chain("2", [job_row("2", dependency="afterok:1(failed)"), job_row("1", "failed")])
    [note] = chain_notes(train)
    assert note.startswith("2 can never start: 1 did not end as required")


def test_branches_and_jobs_joined_by_name_are_notes() -> None:
    branch = find_chain("10", [*CHAIN, job_row("13", dependency="afterany:11")])
    assert chain_notes(branch) == ("a branch: 12, 13 follow 11",)
    earlier = job_row("1", "failed", submitted=0, started=1, ended=60)
    named = find_chain("2", [job_row("2", "running", submitted=0, started=61), earlier])
    assert chain_notes(named) == ("linked by name (dependencies unknown): 2",)


def test_it_ends_when_each_took_its_limit_after_the_one_before() -> None:
    rows = [
        job_row("10", "running", ended=30),
        job_row("11", dependency="afterany:10", limit_seconds=3600),
        task_row("20", "3-10%1", dependency="afterany:11_*", limit_seconds=600),
    ]
    assert latest_end(find_chain("10", rows), at(0)) == at(30 + 60 + 80)


def test_so_many_tasks_at_once_end_sooner() -> None:
    assert latest_end(find_chain("20", [task_row("20", "3-10%4", limit_seconds=600)]), at(0)) == at(
        20
    )


def test_branches_end_with_the_longest() -> None:
    rows = [
        job_row("1", "running", ended=10),
        job_row("2", dependency="afterany:1", limit_seconds=60),
        job_row("3", dependency="afterany:1", limit_seconds=1200),
        job_row("12", dependency="after:1", limit_seconds=6000),
    ]
    assert latest_end(find_chain("1", rows), at(0)) == at(100)


def test_without_a_limit_its_end_is_open() -> None:
    assert latest_end(find_chain("10", CHAIN), at(0)) is None


def test_a_train_that_ended_has_no_end_ahead() -> None:
    assert latest_end(find_chain("1", [job_row("1", "completed", ended=3)]), at(9)) is None


def test_a_hold_costs_those_their_age_whose_turn_began_to_come() -> None:
    rows = [
        job_row("1", eligible_at=at(0)),
        job_row("2"),
        job_row("3", "running", eligible_at=at(0)),
    ]
    assert (
        format_hold(rows, at(135))
        == "a hold may reset the queue age of 1 eligible jobs (up to 2 h 15 min)"
    )
    assert format_hold(rows[1:], at(135)) == ""
    assert format_hold(rows, at(0) + timedelta(seconds=20)) == ""


@for_each(
    ("typed", "is_array", "wish"),
    [
        ("3", False, AppendWish(3)),
        ("3", True, AppendWish(array="1-3%1")),
        ("1-10%1", False, AppendWish(array="1-10%1")),
        ("", False, AppendWish()),
        ("2 ~/my next.sh", False, AppendWish(2, path="~/my next.sh")),
        ("next.sh", True, AppendWish(path="next.sh")),
        (" 0-4:2%1  x.sh ", False, AppendWish(array="0-4:2%1", path="x.sh")),
    ],
)
def test_how_many_or_which_tasks_and_a_script_are_typed(
    typed: str, is_array: bool, wish: AppendWish
) -> None:
    assert read_append(typed, is_array=is_array) == wish


@for_each("typed", ["0", "5-1", "1-3%%"])
def test_what_is_no_number_of_jobs_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"none to append|array|empty range"):
        read_append(typed, is_array=False)
