"""The train of a job is found over what jobs wait for, both ways; what is not told is not made
up.
"""

from __future__ import annotations

from typing import Any

from hpcdash.domain.chains import (
    JobChain,
    find_chain,
    given_dependency,
    living_targets,
    one_at_a_time,
)
from tests.support.job_rows import job_row, task_row
from tests.support.records import for_each


def order(train: JobChain) -> list[str]:
    return [unit.job_id for unit in train.units]


CHAIN = [
    job_row("10", "running"),
    job_row("11", dependency="afterany:10(unfulfilled)"),
    job_row("12", dependency="afterok:11(unfulfilled)"),
    job_row("9", "running"),
]


@for_each("job_id", ["10", "11", "12"])
def test_a_chain_is_found_from_each_of_its_jobs(job_id: str) -> None:
    assert order(find_chain(job_id, CHAIN)) == ["10", "11", "12"]


def test_a_job_that_waits_for_none_is_a_train_by_itself() -> None:
    train = find_chain("9", CHAIN)
    assert (order(train), train.is_alone) == (["9"], True)


def test_a_job_that_nobody_knows_has_no_train() -> None:
    assert find_chain("77", CHAIN).units == ()


def test_the_tasks_of_an_array_are_one_unit_and_one_appended_to_it_comes_after() -> None:
    rows = [
        task_row("20", "3-10%1"),
        job_row("21", dependency="afterany:20_*(unfulfilled)"),
        task_row("20", "2", "running"),
        task_row("20", "1", "failed"),
    ]
    train = find_chain("20_1", rows)
    assert order(train) == ["20", "21"]
    assert [one["id"] for one in train.units[0].rows] == ["20_1", "20_2", "20_[3-10%1]"]
    assert (train.units[0].throttle, train.units[0].is_array, train.units[1].is_array) == (
        1,
        True,
        False,
    )


def test_an_array_after_an_array_in_pbs_s_ids() -> None:
    rows = [
        job_row(
            "16[].pbs01",
            "held",
            "afterany:15[].pbs01",
            array_id="16[].pbs01",
            reason="waits for a dependency",
        ),
        job_row("15[].pbs01", "running", array_id="15[].pbs01"),
        job_row("17.pbs01", "held", "afterany:16[].pbs01", reason="held by its owner"),
    ]
    train = find_chain("15[2].pbs01", rows)
    assert order(train) == ["15[].pbs01", "16[].pbs01", "17.pbs01"]
    assert [one["state"] for one in train.rows] == ["running", "pending", "held"]


def test_jobs_of_one_name_that_run_one_at_a_time_are_a_train() -> None:
    rows = [job_row(number, dependency="singleton(unfulfilled)") for number in ("31", "32")]
    rows += [
        job_row("30", "running"),
        job_row("33", dependency="singleton(unfulfilled)", name="another"),
    ]
    assert order(find_chain("32", rows)) == ["30", "31", "32"]


def test_a_row_of_the_queue_counts_before_one_of_the_history() -> None:
    rows = [
        job_row("10", "running"),
        task_row("20", "2", "running"),
        job_row("10", "completed"),
        task_row("20", "2", "failed"),
    ]
    assert [one["state"] for one in find_chain("10", rows).rows] == ["running"]
    assert [one["state"] for one in find_chain("20", rows).rows] == ["running"]


def test_two_that_follow_one_are_a_branch() -> None:
    train = find_chain("10", [*CHAIN, job_row("13", dependency="afterany:11(unfulfilled)")])
    assert [(unit.job_id, followers) for unit, followers in train.branches] == [
        ("11", ("12", "13"))
    ]
    assert [unit.job_id for unit in train.ends] == ["12", "13"]
    assert [unit.place for unit in train.units] == [0, 1, 2, 2]


def test_one_that_waits_for_two_comes_after_both() -> None:
    rows = [
        job_row("3", dependency="afterany:1:2"),
        job_row("1", "running"),
        job_row("2", "running"),
    ]
    train = find_chain("1", rows)
    assert order(train) == ["1", "2", "3"]
    assert train.before["3"] == ("1", "2")


def test_one_that_waits_for_two_of_which_one_waits_for_the_other_is_no_branch() -> None:
    rows = [
        job_row("3", dependency="afterany:1:2"),
        job_row("2", dependency="afterok:1"),
        job_row("1", "running"),
    ]
    train = find_chain("1", rows)
    assert (order(train), train.branches) == (["1", "2", "3"], ())


def test_what_it_followed_once_is_named_where_nothing_knows_it_any_more() -> None:
    train = find_chain("2", [job_row("2", dependency="afterok:1(unfulfilled)")])
    assert (order(train), train.lost, train.is_alone) == (["2"], ("1",), False)


def test_what_jobs_were_submitted_to_wait_for_joins_those_that_started() -> None:
    rows = [job_row("3", "running"), job_row("2", "failed"), job_row("1", "completed")]
    assert order(find_chain("3", rows, {"3": "afterany:2", "2": "afterany:1", "1": ""})) == [
        "1",
        "2",
        "3",
    ]


EARLIER = job_row("1", "failed", submitted=0, started=1, ended=60)


def test_one_that_waited_while_another_of_its_name_ran_is_joined_to_it_and_marked() -> None:
    train = find_chain("2", [job_row("2", "running", submitted=0, started=61), EARLIER])
    assert [(unit.job_id, unit.by_name) for unit in train.units] == [("1", False), ("2", True)]


@for_each(
    ("later", "told"),
    [
        (job_row("2", "running", submitted=61, started=62), {}),
        (job_row("2", "running", submitted=0, started=30), {}),
        (job_row("2", "running", submitted=0, started=61, name="another"), {}),
        (job_row("2", "running", submitted=0, started=61, user="bob"), {}),
        (job_row("2", "pending", submitted=0), {}),
        (job_row("2", "running", submitted=0, started=61), {"2": ""}),
    ],
    ids=[
        "submitted after it ended",
        "ran beside it",
        "another name",
        "another owner",
        "waits",
        "known for none",
    ],
)
def test_a_name_alone_joins_nothing(later: dict[str, Any], told: dict[str, str]) -> None:
    assert order(find_chain("2", [later, EARLIER], told)) == ["2"]


def test_the_last_are_acted_on_first_and_what_ended_is_left_out() -> None:
    rows = [
        *CHAIN[1:],
        job_row("10", "completed"),
        task_row("20", "3-10%1", dependency="afterany:12"),
        job_row("21"),
    ]
    train = find_chain("10", rows)
    assert living_targets(train)[0] == ("20_[3-10%1]", "12", "11")
    assert living_targets(train, {"11"})[0] == ("11",)


def test_tasks_of_an_array_run_one_at_a_time_unless_something_says_otherwise() -> None:
    assert one_at_a_time(find_chain("20", [task_row("20", "3-10%1")]).units[0])
    assert not one_at_a_time(find_chain("20", [task_row("20", "3-10%4")]).units[0])
    beside = [task_row("20", "1", "running"), task_row("20", "2", "running")]
    assert not one_at_a_time(find_chain("20", beside).units[0])


@for_each(
    ("line", "dependency"),
    [
        ("sbatch --dependency=afterany:12 train.sh", "afterany:12"),
        ("sbatch -t 5 --dependency afterok:12_3:13 train.sh", "afterok:12_3:13"),
        ("sbatch -d afterok:1?afternotok:2 train.sh", "afterok:1?afternotok:2"),
        ("sbatch --array=1-3%1 -dsingleton train.sh", "singleton"),
        ("sbatch --dependency=87 train.sh", "afterany:87"),
        ("-N job -W depend=afterany:9.pbs01 run.sh", "afterany:9.pbs01"),
        ("-W umask=0022,depend=afterany:9.pbs01", "afterany:9.pbs01"),
        ("sbatch --mem=4G train.sh", ""),
        ("sbatch --deadline=now+1hour train.sh", ""),
    ],
)
def test_a_command_line_tells_what_a_job_was_submitted_to_wait_for(
    line: str, dependency: str
) -> None:
    assert given_dependency(line) == dependency
