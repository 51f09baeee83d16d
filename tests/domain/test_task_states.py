"""The tasks of an array by their states."""

from __future__ import annotations

import pyarrow as pa

from hpcdash.domain.arrays import TaskStates, task_states

SIGNS = {"completed": "+", "failed": "x", "running": ">", "pending": "."}


def rows(*tasks: tuple[str, str]) -> pa.Table:
    return pa.table(
        {"array_task": [task for task, _ in tasks], "state": [state for _, state in tasks]}
    )


def test_a_record_of_pending_tasks_stands_for_each_of_them() -> None:
    states = task_states([rows(("1", "completed"), ("2", "running"), ("3-5%2", "pending"))])
    assert states.throttle == 2
    assert "".join(words for words, _ in states.as_signs(SIGNS)) == "+>..."
    assert states.counts() == {"running": 1, "pending": 3, "completed": 1}


def test_the_newer_of_two_tables_has_the_say() -> None:
    states = task_states([rows(("1", "failed")), rows(("1", "running"), ("2", "completed"))])
    assert dict(states.by_task) == {1: "failed", 2: "completed"}


def test_runs_are_named_by_their_ends_and_too_many_are_none() -> None:
    states = TaskStates({1: "completed", 2: "completed", 3: "running", 7: "pending", 8: "pending"})
    assert states.as_runs(3) == [("1-2", "completed"), ("3", "running"), ("7-8", "pending")]
    assert states.as_runs(2) is None


def test_the_tasks_of_a_state_are_a_list_that_is_cut() -> None:
    states = TaskStates({task: "failed" if task % 2 else "completed" for task in range(1, 200)})
    assert (
        TaskStates({1: "failed", 2: "failed", 5: "failed", 6: "running"}).state_tasks("failed")
        == "1-2,5"
    )
    assert states.state_tasks("failed", room=10).endswith(",…")
    assert len(states.state_tasks("failed", room=10)) < 15
    assert states.state_tasks("running") == ""


def test_a_record_that_cannot_be_read_is_left_out() -> None:
    table = pa.table({"array_task": [None, "x", "4"], "state": ["running", "running", "failed"]})
    assert dict(task_states([table]).by_task) == {4: "failed"}
