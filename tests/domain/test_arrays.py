from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks
from hpcdash.domain.arrays import (
    FOLD_CHILD,
    FOLD_COLUMNS,
    FOLD_FOLDED,
    FOLD_PLAIN,
    FOLD_UNFOLDED,
    fold,
)
from hpcdash.domain.columns import sort_rows
from hpcdash.domain.schema import JOBS
from tests.support.job_rows import build_table, job_row, task_row
from tests.support.records import for_each


@for_each(
    ("text", "expected"),
    [
        ("3-10%1", ArrayTasks((range(3, 11),), 1)),
        ("[4-10%2]", ArrayTasks((range(4, 11),), 2)),
        ("1,3,5-7", ArrayTasks((range(1, 2), range(3, 4), range(5, 8)))),
        ("1-100:50", ArrayTasks((range(1, 101, 50),))),
        ("0", ArrayTasks((range(1),))),
        ("1-3,...", ArrayTasks((range(1, 4),), None, True)),
        ("1-3,5...", ArrayTasks((range(1, 4),), None, True)),
        ("1-3,…", ArrayTasks((range(1, 4),), None, True)),
        ("[1-3,...", ArrayTasks((range(1, 4),), None, True)),
        ("[4-10%", ArrayTasks((), None, True)),
        (
            "[12,14-16,136,14",
            ArrayTasks((range(12, 13), range(14, 17), range(136, 137)), None, True),
        ),
        ("1-5,3-7", ArrayTasks((range(1, 8),))),
        ("5,1-3", ArrayTasks((range(5, 6), range(1, 4)))),
        ("0-10:5,4-6", ArrayTasks((range(1), range(4, 7), range(10, 11)))),
    ],
)
def test_task_lists_are_read_as_schedulers_print_them(text: str, expected: ArrayTasks) -> None:
    assert parse_tasks(text) == expected


def test_tasks_are_counted_and_found() -> None:
    tasks = parse_tasks("5,10-20:5")
    assert (tasks.count, tasks.first, list(tasks)) == (4, 5, [5, 10, 15, 20])
    assert tasks.contains(15)
    assert not tasks.contains(11)
    assert tasks.overlaps(parse_tasks("14-16"))
    assert not tasks.overlaps(parse_tasks("11-14"))


@for_each(
    "text",
    [
        *(
            "",
            "a",
            "3-1",
            "1-5:0",
            "-1",
            "1,,2",
            "%4",
            "1-99999999",
            "0-3999999,0-3999999",
            "١",
            ".",
            "[In",
            "1-3,x...",
        ),
        *("In the merry month...", "In the merry month…", "0-4000000:2,0"),
    ],
)
def test_what_is_no_task_list_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"task|range") as refused:
        parse_tasks(text)
    assert repr(text) in str(refused.value)


@for_each(
    "text",
    ["1," * 50_000, "1-2," * 50_000 + "x", "0-4000000,0", "9" * 5000],
    ids=["one task over and over", "a bad end", "a large range twice", "digits"],
)
def test_a_long_list_of_tasks_is_read_or_refused_in_no_time(text: str) -> None:
    with suppress(ValueError):
        parse_tasks(text)


@given(st.sets(st.integers(0, 60), min_size=1), st.none() | st.integers(1, 9))
def test_a_printed_task_list_is_read_back(numbers: set[int], throttle: int | None) -> None:
    tasks = ArrayTasks(tuple(range(number, number + 1) for number in sorted(numbers)), throttle)
    read = parse_tasks(str(tasks))
    assert set(read) == numbers
    assert read.count == len(numbers)
    assert read.throttle == throttle


def task(array: str, number: int, state: str = "running", **more: Any) -> dict[str, Any]:
    return task_row(array, str(number), state, **{"user": None, "name": None, **more})


def job(number: int, state: str = "running", **more: Any) -> dict[str, Any]:
    return job_row(str(number), state, **{"user": None, "name": None, **more})


PENDING = {
    "id": "12_[3-10]",
    "array_id": "12",
    "array_task": "3-10",
    "state": "pending",
    "_task": 3,
    "_tasks": 8,
}


def folded(
    table: pa.Table, *names: str, unfolded: frozenset[str] | None = frozenset()
) -> list[tuple[Any, ...]]:
    result = fold(table, unfolded)
    result.validate(full=True)
    assert result.column_names == JOBS.names + [name for name, _ in FOLD_COLUMNS]
    assert result.schema.types[: len(JOBS.names)] == JOBS.types
    return list(zip(*(result[name].to_pylist() for name in names), strict=True))


MIXED = build_table(job(5), task("12", 1), job(6), PENDING, task("12", 2), task("7", 1))


def test_an_array_stands_as_one_row_where_its_first_row_stood() -> None:
    assert folded(MIXED, "id", "_row_id", "_fold", "_states") == [
        ("5", "5", FOLD_PLAIN, None),
        ("12_[]", "12[]", FOLD_FOLDED, "2 running · 8 pending"),
        ("6", "6", FOLD_PLAIN, None),
        ("7_1", "7_1", FOLD_PLAIN, None),
    ]


@pytest.mark.parametrize("unfolded", [frozenset({"12"}), None])
def test_an_unfolded_array_is_followed_by_its_rows(unfolded: frozenset[str] | None) -> None:
    assert folded(MIXED, "_row_id", "_fold", unfolded=unfolded) == [
        ("5", FOLD_PLAIN),
        ("12[]", FOLD_UNFOLDED),
        ("12_1", FOLD_CHILD),
        ("12_[3-10]", FOLD_CHILD),
        ("12_2", FOLD_CHILD),
        ("6", FOLD_PLAIN),
        ("7_1", FOLD_PLAIN),
    ]


def test_a_summary_adds_up_what_runs_and_keeps_what_all_rows_share() -> None:
    rows = build_table(
        PENDING
        | {
            "cpus": 4,
            "memory_bytes": 9,
            "user": "ada",
            "name": "a",
            "queue": "gpu,cpu",
            "reason": "Resources",
        },
        task(
            "12",
            1,
            cpus=4,
            gpus=1,
            user="ada",
            name="a",
            queue="gpu",
            submitted_at=100,
            started_at=300,
            qos="high",
        ),
        task(
            "12",
            2,
            cpus=8,
            user="ada",
            name="b",
            queue="gpu",
            submitted_at=90,
            started_at=200,
            qos="high",
        ),
    )
    names = (
        "state",
        "_tasks",
        "cpus",
        "gpus",
        "memory_bytes",
        "user",
        "name",
        "queue",
        "reason",
        "qos",
        "_task",
    )
    assert folded(rows, *names) == [
        ("running", 10, 12, 1, None, "ada", "a", None, "Resources", "high", 1)
    ]
    summary = fold(rows)
    assert [
        summary[name].to_pylist()[0].timestamp() for name in ("submitted_at", "started_at")
    ] == [90, 200]


def test_a_summary_has_run_as_long_as_the_active_task_that_ends_last() -> None:
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def times(elapsed_seconds: int | None, ends_in_hours: int | None) -> dict[str, Any]:
        ends_at = None if ends_in_hours is None else noon + timedelta(hours=ends_in_hours)
        return {"elapsed_seconds": elapsed_seconds, "ends_at": ends_at}

    table = build_table(
        task("12", 1, "completed", **times(276, -1)),
        task("12", 2, "running", **times(40, 19)),
        task("12", 3, "running", **times(120, 7)),
        task("12", 4, "pending", **times(0, None)),
        task("13", 1, "failed", **times(500, -3)),
        task("13", 2, "running", **times(70, None)),
        task("13", 3, "running", **times(90, None)),
        task("14", 1, "completed", **times(10, -2)),
        task("14", 2, "completed", **times(30, -4)),
    )
    assert folded(table, "_row_id", "elapsed_seconds", "ends_at") == [
        ("12[]", 40, noon + timedelta(hours=19)),
        ("13[]", 90, None),
        ("14[]", 30, noon - timedelta(hours=2)),
    ]


def test_a_summary_of_an_array_that_only_waits_asks_for_what_its_first_row_asks() -> None:
    rows = build_table(PENDING | {"cpus": 4}, task("12", 11, "held", cpus=5))
    assert folded(rows, "state", "cpus", "_states") == [("pending", 4, "8 pending · 1 held")]


@for_each(
    ("states", "summary"),
    [
        (("failed", "running"), "running"),
        (("suspended", "completing"), "completing"),
        (("completed", "pending"), "pending"),
        (("completed", "out_of_memory"), "out_of_memory"),
    ],
)
def test_a_summary_has_the_most_alive_state(states: tuple[str, str], summary: str) -> None:
    rows = build_table(*(task("12", number, state) for number, state in enumerate(states)))
    assert folded(rows, "state") == [(summary,)]


def test_an_array_of_pbs_keeps_its_own_id() -> None:
    rows = build_table(task("12[].srv", 1, id="12[1].srv"), task("12[].srv", 2, id="12[2].srv"))
    assert folded(rows, "id") == [("12[].srv",)]


def test_nothing_is_folded_where_there_is_nothing_to_fold() -> None:
    assert folded(build_table(job(5), PENDING), "_row_id", "_fold") == [
        ("5", FOLD_PLAIN),
        ("12_[3-10]", FOLD_PLAIN),
    ]
    assert folded(build_table(), "_row_id") == []
    assert folded(JOBS.empty_table(), "_row_id", unfolded=None) == []


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "1", "2", "3"]),
        st.sampled_from(["running", "pending", "failed", None]),
    ),
    max_size=12,
)


@given(ROWS, st.sets(st.sampled_from(["1", "2", "3", "9"])), st.integers(0, 12))
def test_every_row_is_in_one_place_and_the_rest_keeps_its_order(
    shapes: list[tuple[str | None, str | None]], unfolded: set[str], cut: int
) -> None:
    rows = [
        job(number, state=state, array_id=array) for number, (array, state) in enumerate(shapes)
    ]
    whole = build_table(*rows)
    table = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    arrays = [array for array, _ in shapes]
    expected: list[str] = []
    for number, array in enumerate(arrays):
        if array is None or arrays.count(array) == 1:
            expected.append(str(number))
        elif arrays.index(array) == number:
            expected.append(f"{array}[]")
            if array in unfolded:
                expected += [str(place) for place, other in enumerate(arrays) if other == array]
    assert [
        row_id for (row_id,) in folded(table, "_row_id", unfolded=frozenset(unfolded))
    ] == expected
    assert sum(
        tasks for tasks, kind in folded(table, "_tasks", "_fold") if kind != FOLD_CHILD
    ) == len(rows)


@given(ROWS, st.sets(st.sampled_from(["1", "2", "3", "9"])), st.booleans())
def test_arrays_are_sorted_by_what_their_rows_show_and_their_tasks_among_themselves(
    shapes: list[tuple[str | None, str | None]], unfolded: set[str], descending: bool
) -> None:
    table = build_table(
        *(job(number, state=state, array_id=array) for number, (array, state) in enumerate(shapes))
    )
    for opened in (frozenset(unfolded), None):
        result = fold(table, opened, ("state", descending))
        tops = result.filter(pc.not_equal(result["_fold"], FOLD_CHILD))
        unsorted = fold(table)
        assert sorted(tops["_row_id"].to_pylist()) == sorted(unsorted["_row_id"].to_pylist())
        assert (
            tops["state"].to_pylist()
            == sort_rows(unsorted, "state", descending)["state"].to_pylist()
        )
        for array in unfolded:
            children = result.filter(pc.equal(result["_fold"], FOLD_CHILD))
            own = children.filter(pc.equal(children["array_id"], array))
            assert own["id"].to_pylist() == sort_rows(own, "state", descending)["id"].to_pylist()


def test_an_array_stands_by_the_elapsed_time_that_its_row_shows() -> None:
    rows = build_table(
        task("12", 1, elapsed_seconds=10, cpus=2),
        task("12", 2, elapsed_seconds=500, cpus=2),
        job(13, elapsed_seconds=300, cpus=3),
        job(14, elapsed_seconds=600, cpus=8),
    )
    assert fold(rows, frozenset(), ("elapsed_seconds", True))["_row_id"].to_pylist() == [
        "14",
        "12[]",
        "13",
    ]
    assert fold(rows, frozenset(), ("cpus", False))["_row_id"].to_pylist() == ["13", "12[]", "14"]
    opened = fold(rows, None, ("elapsed_seconds", True))["_row_id"].to_pylist()
    assert opened == ["14", "12[]", "12_2", "12_1", "13"]


def test_a_summary_has_no_reason_of_a_task_that_ended_in_another_way() -> None:
    ended = task("12", 2, "cancelled", reason="terminated by ada")
    assert folded(build_table(task("12", 1), ended), "state", "reason") == [("running", None)]
    assert folded(build_table(task("12", 1, "failed"), ended), "state", "reason") == [
        ("failed", None)
    ]
    assert folded(build_table(ended, task("12", 3, "cancelled")), "state", "reason") == [
        ("cancelled", "terminated by ada")
    ]
