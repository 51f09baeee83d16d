"""Which task of an array stands for its log."""

from __future__ import annotations

import pyarrow as pa

from hpcdash.services.jobs.lookup import representative_task


def tasks(*rows: tuple[int, str, int]) -> pa.Table:
    """Records of array 7: the first task's number, the state, and how many tasks they are."""
    return pa.Table.from_pylist(
        [
            {"id": f"7_{task}", "array_id": "7", "state": state, "_task": task, "_tasks": count}
            for task, state, count in rows
        ]
    )


def test_the_first_task_that_runs_tells_most() -> None:
    table = tasks((1, "failed", 1), (12, "running", 1), (3, "running", 1), (20, "pending", 30))
    assert representative_task([table], "7") == "7_3"


def test_where_none_runs_it_is_the_last_that_ended() -> None:
    assert (
        representative_task([tasks((2, "failed", 1), (10, "completed", 1), (20, "held", 30))], "7")
        == "7_10"
    )


def test_tasks_that_wait_have_no_log_and_the_newest_list_counts() -> None:
    assert representative_task([tasks((20, "pending", 1))], "7") is None
    assert (
        representative_task(
            [tasks((1, "completed", 1)), tasks((1, "running", 1), (0, "completed", 1))], "7"
        )
        == "7_1"
    )
    assert representative_task([tasks((1, "running", 1))], "8") is None
