"""Changes between two polls: of jobs, of the reasons that they wait for, and of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from hpcdash.domain.array_tasks import ArrayTasks, read_all_tasks
from hpcdash.domain.columns import as_array, digits, has_state, with_columns
from hpcdash.domain.schema import WORD
from hpcdash.domain.states import ACTIVE, ENDED, UNAVAILABLE, WAITING, JobState
from hpcdash.domain.triage import normalised

OLD_STATE = "_old_state"
OLD_REASON = "_old_reason"
MAX_REASON_CHANGES = 200
_ALL_STATES = pa.array([state.value for state in JobState], pa.string())
_REASON_COLUMNS = ("id", "name", "state", "reason")


class JobsDiff(Struct, frozen=True):
    """Rows of domain.schema.JOBS with the column `_old_state` (null: the job was not there); no job
    is in two tables.

    started: waited and is active now, tasks that left the pending record of their array among them.
    ended: in an ended state now, and was not before. changed: any other change of state. appeared:
    not there before. vanished: rows as they were before, neither ended then nor anywhere now.
    """

    started: pa.Table
    ended: pa.Table
    changed: pa.Table
    appeared: pa.Table
    vanished: pa.Table

    @property
    def is_empty(self) -> bool:
        return not any(
            rows.num_rows
            for rows in (self.started, self.ended, self.changed, self.appeared, self.vanished)
        )


def diff_jobs(before: pa.Table, after: pa.Table) -> JobsDiff:
    """Compare two tables of domain.schema.JOBS by id; rows without an id are left out.

    The record of an array's pending tasks is the same record however many tasks it still holds, and
    a task that ran out of it was pending before. An array task has vanished when no row of its
    array holds it any more.
    """
    old_ids = as_array(before["id"])
    new_ids = as_array(after["id"])
    old_states = _states(before)
    new_states = _states(after)
    if old_ids.equals(new_ids) and old_states.equals(new_states):
        none = _with_old_state(after.slice(0, 0), pa.nulls(0, pa.string()))
        return JobsDiff(none, none, none, none, none)

    known_at = pc.index_in(new_ids, value_set=old_ids, skip_nulls=True)
    is_old_absent = pc.and_(pc.invert(pc.is_in(old_ids, value_set=new_ids)), old_ids.is_valid())
    from_state = old_states.take(known_at)
    is_new = known_at.is_null()
    is_new_task = pc.and_(is_new, as_array(after["array_id"]).is_valid())
    if pc.any(is_new_task).as_py():
        origins = _task_states(after.filter(is_new_task), before)
        from_state = pc.replace_with_mask(from_state, is_new_task, origins)

    is_known = from_state.is_valid()
    differs = pc.fill_null(pc.not_equal(from_state, new_states), False)
    started = pc.and_(_is_any(from_state, WAITING), _is_any(new_states, ACTIVE))
    has_ended = pc.and_(_is_any(new_states, ENDED), pc.invert(_is_any(from_state, ENDED)))
    ended = pc.and_(differs, has_ended)
    other = pc.and_(differs, pc.invert(pc.or_(started, ended)))
    appeared = pc.and_(pc.and_(is_new, pc.invert(is_known)), new_ids.is_valid())

    absent = before.filter(pc.and_(is_old_absent, pc.invert(_is_any(old_states, ENDED))))
    absent_now = _task_states(absent, after)
    is_moved = pc.and_(_is_any(_states(absent), ACTIVE), _is_any(absent_now, WAITING))
    moved = absent.filter(is_moved)
    vanished = absent.filter(absent_now.is_null())
    marked = _with_old_state(after, from_state)
    changed = marked.filter(other)
    if moved.num_rows:
        # Back in the pending record of its array, as after a requeue: the row as it was, in the
        # record's state.
        states_now = absent_now.filter(is_moved).dictionary_encode().cast(WORD)
        requeued = _with_old_state(with_columns(moved, {"state": states_now}), _states(moved))
        changed = pa.concat_tables([changed, requeued]).unify_dictionaries()
    return JobsDiff(
        started=marked.filter(started),
        ended=marked.filter(ended),
        changed=changed,
        appeared=marked.filter(appeared),
        vanished=_with_old_state(vanished, _states(vanished)),
    )


def _states(table: pa.Table) -> pa.Array:
    """Return the states as plain text; null and any other state is `unknown`."""
    column = as_array(table["state"])
    codes = pc.index_in(column.dictionary, value_set=_ALL_STATES).take(column.indices)
    return pc.fill_null(_ALL_STATES.take(codes), JobState.UNKNOWN.value)


def _is_any(states: pa.Array, requested: Iterable[str]) -> pa.Array:
    return pc.is_in(states, value_set=pa.array(sorted(requested), pa.string()))


def _with_old_state(table: pa.Table, states: pa.Array) -> pa.Table:
    return table.append_column(OLD_STATE, states.cast(pa.string()).dictionary_encode().cast(WORD))


class _ArrayRows(Struct):
    """Rows of one array: the state of each single task, and records of several tasks."""

    singles: dict[int, str] = field(default_factory=dict)
    records: list[tuple[ArrayTasks | None, str]] = field(default_factory=list)

    def task_state(self, requested: ArrayTasks | None) -> str | None:
        """Return the state of a row with one of the tasks.

        Any row will do if either list of tasks is unknown.
        """
        for tasks, state in self.records:
            if requested is None or tasks is None or tasks.overlaps(requested):
                return state
        if requested is None:
            return next(iter(self.singles.values()), None)
        if requested.count > len(self.singles):
            return next(
                (state for task, state in self.singles.items() if requested.contains(task)), None
            )
        return next((self.singles[task] for task in requested if task in self.singles), None)


def _task_states(rows: pa.Table, table: pa.Table) -> pa.Array:
    """Return, for each of `rows`, the state of the row of `table` that has its tasks; else null."""
    array_ids = pc.unique(as_array(rows["array_id"]).drop_null())
    members = table.filter(pc.is_in(table["array_id"], value_set=array_ids, skip_nulls=True))
    arrays: defaultdict[str, _ArrayRows] = defaultdict(_ArrayRows)
    columns = (members["array_id"], members["array_task"], _states(members))
    for array_id, text, state in zip(*(column.to_pylist() for column in columns), strict=True):
        if (task := digits(text)) is not None:
            arrays[array_id].singles[task] = state
        elif state in WAITING:
            # A row for a whole running array has no information on its tasks.
            arrays[array_id].records.append((read_all_tasks(text), state))
    pairs = zip(rows["array_id"].to_pylist(), rows["array_task"].to_pylist(), strict=True)
    states = [
        arrays[array_id].task_state(read_all_tasks(text)) if array_id in arrays else None
        for array_id, text in pairs
    ]
    return pa.array(states, pa.string())


def reason_changes(before: pa.Table, after: pa.Table) -> list[Mapping[str, Any]]:
    """Return at most MAX_REASON_CHANGES rows of JOBS that waited before and after, now for another
    reason.

    Each has id, name, state, reason, `_old_state` and `_old_reason`. A reason that differs only in
    its figures, as PBS's do from cycle to cycle, is the same; a reason that is no longer reported
    is no change.
    """
    old = before.filter(has_state(before, WAITING))
    new = after.filter(has_state(after, WAITING))
    places = pc.index_in(as_array(new["id"]), value_set=as_array(old["id"]), skip_nulls=True)
    old_reasons = as_array(old["reason"]).cast(pa.string()).take(places)
    reasons = as_array(new["reason"]).cast(pa.string())
    differs = pc.fill_null(pc.not_equal(reasons, pc.fill_null(old_reasons, "")), False)
    rows = (
        new.select(_REASON_COLUMNS)
        .append_column(OLD_REASON, old_reasons)
        .append_column(OLD_STATE, as_array(old["state"]).cast(pa.string()).take(places))
        .filter(pc.and_(places.is_valid(), differs))
        # Rows that differ in their figures alone are dropped below.
        .slice(0, 5 * MAX_REASON_CHANGES)
        .to_pylist()
    )
    changes = [
        row for row in rows if normalised(row["reason"]) != normalised(row[OLD_REASON] or "")
    ]
    return changes[:MAX_REASON_CHANGES]


def lost_nodes(before: pa.Table, after: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of domain.schema.NODES of the nodes that start no job any more, and did
    before.
    """
    available = as_array(before.filter(pc.invert(has_state(before, UNAVAILABLE)))["name"])
    was_available = pc.is_in(as_array(after["name"]), value_set=available)
    rows: list[dict[str, Any]] = after.filter(
        pc.and_(has_state(after, UNAVAILABLE), was_available)
    ).to_pylist()
    return rows
