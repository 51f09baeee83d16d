from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.diff import OLD_STATE, diff_jobs
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED, JobState
from tests.support.records import for_each

Row = tuple[Any, ...]


def queue(*rows: Row) -> pa.Table:
    """Rows of id and state; of an array: id, state, array and tasks."""
    wide = [(*row, None, None)[:4] for row in rows]
    columns = (
        dict(zip(("id", "state", "array_id", "array_task"), zip(*wide, strict=True), strict=True))
        if wide
        else {}
    )
    return pa.table(
        {
            name: pa.array(columns.get(name, [None] * len(rows)), JOBS.field(name).type)
            for name in JOBS.names
        }
    )


def told(before: pa.Table, after: pa.Table) -> dict[str, list[tuple[str, str | None, str | None]]]:
    found = diff_jobs(before, after)
    kinds = ("started", "ended", "changed", "appeared", "vanished")
    tables = {kind: getattr(found, kind) for kind in kinds}
    assert found.is_empty == (not any(rows.num_rows for rows in tables.values()))
    return {
        kind: list(
            zip(*(rows[name].to_pylist() for name in ("id", OLD_STATE, "state")), strict=True)
        )
        for kind, rows in tables.items()
        if rows.num_rows
    }


@for_each(
    ("old", "new", "kind"),
    [
        ("pending", "running", "started"),
        ("held", "running", "started"),
        ("pending", "completing", "started"),
        ("running", "completed", "ended"),
        ("pending", "cancelled", "ended"),
        ("running", "suspended", "changed"),
        ("suspended", "running", "changed"),
        ("running", "pending", "changed"),
        ("failed", "pending", "changed"),
        ("completed", "failed", "changed"),
        ("pending", "held", "changed"),
    ],
)
def test_a_job_whose_state_changed_is_told_once(old: str, new: str, kind: str) -> None:
    assert told(queue(("1", old), ("2", "running")), queue(("2", "running"), ("1", new))) == {
        kind: [("1", old, new)]
    }


def test_the_same_queue_in_another_order_is_no_news() -> None:
    assert (
        told(queue(("1", "running"), ("2", "pending")), queue(("2", "pending"), ("1", "running")))
        == {}
    )
    assert told(queue(("1", "running")), queue(("1", "running"))) == {}
    assert told(queue(), queue()) == {}


def test_a_job_not_seen_before_appeared_and_has_no_old_state() -> None:
    assert told(queue(("1", "running")), queue(("1", "running"), ("2", "running"))) == {
        "appeared": [("2", None, "running")]
    }


def test_a_job_that_had_not_ended_vanishes_and_one_that_had_does_not() -> None:
    assert told(queue(("1", "running"), ("2", "completed"), ("3", "pending")), queue()) == {
        "vanished": [("1", "running", "running"), ("3", "pending", "pending")]
    }


def test_a_task_that_runs_out_of_a_pending_record_started_and_the_record_stays() -> None:
    before = queue(("88_[3-10]", "pending", "88", "3-10%1"))
    after = queue(("88_[4-10]", "pending", "88", "4-10%1"), ("88_3", "running", "88", "3"))
    assert told(before, after) == {"started": [("88_3", "pending", "running")]}


def test_a_task_that_ran_and_ended_between_two_looks_ended() -> None:
    before = queue(("88_[3-4]", "pending", "88", "3-4"))
    after = queue(("88_4", "pending", "88", "4"), ("88_3", "failed", "88", "3"))
    assert told(before, after) == {"ended": [("88_3", "pending", "failed")]}


def test_a_record_that_is_held_as_it_shrinks_changed() -> None:
    before = queue(("88_[3-10]", "pending", "88", "3-10"))
    assert told(before, queue(("88_[4-10]", "held", "88", "4-10"))) == {
        "changed": [("88_[4-10]", "pending", "held")]
    }


def test_a_record_of_which_no_task_is_left_vanished() -> None:
    before = queue(("88_[9-10]", "pending", "88", "9-10"), ("88_8", "running", "88", "8"))
    assert told(before, queue(("88_8", "running", "88", "8"))) == {
        "vanished": [("88_[9-10]", "pending", "pending")]
    }


def test_a_running_task_vanishes_though_its_array_still_waits() -> None:
    before = queue(("88_3", "running", "88", "3"), ("88_[4-10]", "pending", "88", "4-10"))
    assert told(before, queue(("88_[4-10]", "pending", "88", "4-10"))) == {
        "vanished": [("88_3", "running", "running")]
    }


def test_a_running_task_that_is_back_in_the_record_was_requeued() -> None:
    before = queue(("88_3", "running", "88", "3"), ("88_[4-10]", "pending", "88", "4-10"))
    assert told(before, queue(("88_[3-10]", "pending", "88", "3-10"))) == {
        "changed": [("88_3", "running", "pending")]
    }


def test_a_list_of_tasks_cut_short_may_hold_any_task() -> None:
    before = queue(("88_[1,3,...]", "pending", "88", "1,3,..."))
    assert told(before, queue(("88_77", "running", "88", "77"))) == {
        "started": [("88_77", "pending", "running")]
    }


def test_a_row_for_a_whole_running_array_hides_no_task() -> None:
    whole = ("12[].srv", "running", "12[].srv", None)
    task = ("12[3].srv", "running", "12[].srv", "3")
    assert told(queue(whole, task), queue(whole)) == {
        "vanished": [("12[3].srv", "running", "running")]
    }
    assert told(queue(whole), queue(whole, task)) == {"appeared": [("12[3].srv", None, "running")]}


QUEUES = st.dictionaries(
    st.integers(1, 8).map(str), st.sampled_from([state.value for state in JobState])
)


@given(QUEUES, QUEUES)
def test_every_job_is_told_as_what_happened_to_it(old: dict[str, str], new: dict[str, str]) -> None:
    news = told(queue(*old.items()), queue(*new.items()))
    kinds = {job: kind for kind, rows in news.items() for job, _, _ in rows}
    assert len(kinds) == sum(map(len, news.values()))
    for job in old.keys() | new.keys():
        if job not in new:
            expected = None if old[job] in ENDED else "vanished"
        elif job not in old:
            expected = "appeared"
        else:
            expected = None if old[job] == new[job] else kinds.get(job, "missing")
        assert kinds.get(job) == expected
