"""Changes between two polls: of jobs, of the reasons that they wait for, and of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks
from hpcdash.domain.columns import as_array, digits
from hpcdash.domain.schema import WORD
from hpcdash.domain.states import ACTIVE, ENDED, UNAVAILABLE, WAITING, JobState
from hpcdash.domain.triage import normalised

OLD_STATE = "_old_state"
_ALL_STATES = pa.array([state.value for state in JobState], pa.string())
OLD_REASON = "_old_reason"
_OF_EACH = ("id", "name", "state", "reason")
MAX_TOLD = 200


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
    """Compares two tables of domain.schema.JOBS by id; rows without an id are left out.

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
    is_array_row = as_array(after["array_id"]).is_valid()
    if pc.any(pc.and_(is_new, is_array_row)).as_py():
        from_state = _origin_states(before, after, pc.and_(is_new, is_array_row), from_state)

    is_known = from_state.is_valid()
    differs = pc.fill_null(pc.not_equal(from_state, new_states), False)
    was_waiting = pc.is_in(from_state, value_set=_state_set(WAITING))
    is_ended = pc.is_in(new_states, value_set=_state_set(ENDED))
    was_ended = pc.is_in(from_state, value_set=_state_set(ENDED))
    started = pc.and_(was_waiting, pc.is_in(new_states, value_set=_state_set(ACTIVE)))
    ended = pc.and_(pc.and_(differs, is_ended), pc.invert(was_ended))
    other = pc.and_(differs, pc.invert(pc.or_(started, ended)))
    appeared = pc.and_(pc.and_(is_new, pc.invert(is_known)), new_ids.is_valid())

    was_unfinished = pc.invert(pc.is_in(old_states, value_set=_state_set(ENDED)))
    absent = before.filter(pc.and_(is_old_absent, was_unfinished))
    absent_now = _states_in_records(absent, after)
    was_active = pc.is_in(_states(absent), value_set=_state_set(ACTIVE))
    is_moved = pc.and_(was_active, pc.is_in(absent_now, value_set=_state_set(WAITING)))
    moved = absent.filter(is_moved)
    vanished = absent.filter(absent_now.is_null())
    marked = _with_old_state(after, from_state)
    changed = marked.filter(other)
    if moved.num_rows:
        # Back in the pending record of its array, as after a requeue: the row as it was, in the
        # record's state.
        place = moved.schema.get_field_index("state")
        states_now = absent_now.filter(is_moved).dictionary_encode().cast(WORD)
        now = moved.set_column(place, moved.schema.field(place), states_now)
        changed = pa.concat_tables(
            [changed, _with_old_state(now, _states(moved))]
        ).unify_dictionaries()
    return JobsDiff(
        started=marked.filter(started),
        ended=marked.filter(ended),
        changed=changed,
        appeared=marked.filter(appeared),
        vanished=_with_old_state(vanished, _states(vanished)),
    )


def _states(table: pa.Table) -> pa.Array:
    """The states as plain text; what is null or none of ours is `unknown`."""
    column = as_array(table["state"])
    codes = pc.index_in(column.dictionary, value_set=_ALL_STATES).take(column.indices)
    return pc.fill_null(_ALL_STATES.take(codes), JobState.UNKNOWN.value)


def _state_set(states: Iterable[str]) -> pa.Array:
    return pa.array(sorted(states), pa.string())


def _with_old_state(table: pa.Table, states: pa.Array) -> pa.Table:
    return table.append_column(OLD_STATE, states.cast(pa.string()).dictionary_encode().cast(WORD))


class _HeldTasks(Struct):
    """Tasks in the rows of one array: single tasks and records of several, each with its state."""

    singles: dict[int, str] = field(default_factory=dict)
    records: list[tuple[ArrayTasks | None, str]] = field(default_factory=list)

    def task_state(self, requested: ArrayTasks | None) -> str | None:
        """The state of a row that holds one of the tasks; any row when either list cannot be
        read.
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


def _parse_tasks(text: str | None) -> ArrayTasks | None:
    """The tasks of a row; None when they are not known in full."""
    try:
        tasks = parse_tasks(text or "")
    except ValueError:
        return None
    return None if tasks.is_incomplete else tasks


def _rows(table: pa.Table) -> Iterable[tuple[str, str | None, str]]:
    states: list[str] = _states(table).to_pylist()
    return zip(table["array_id"].to_pylist(), table["array_task"].to_pylist(), states, strict=True)


def _held_tasks(table: pa.Table, array_ids: pa.Array) -> dict[str, _HeldTasks]:
    held: defaultdict[str, _HeldTasks] = defaultdict(_HeldTasks)
    for array_id, task, state in _rows(
        table.filter(pc.is_in(table["array_id"], value_set=array_ids, skip_nulls=True))
    ):
        if (number := digits(task)) is not None:
            held[array_id].singles[number] = state
        elif state in WAITING:
            # A row for the whole running array has no information on its tasks.
            held[array_id].records.append((_parse_tasks(task), state))
    return held


def _origin_states(
    before: pa.Table, after: pa.Table, is_requested: pa.Array, known: pa.Array
) -> pa.Array:
    """`known` with, for the wanted rows, the state of the row that held their tasks before."""
    rows = after.filter(is_requested)
    held = _held_tasks(before, pc.unique(as_array(rows["array_id"])))
    origins = [
        held[array_id].task_state(_parse_tasks(task)) if array_id in held else None
        for array_id, task, _ in _rows(rows)
    ]
    return pc.replace_with_mask(known, is_requested, pa.array(origins, pa.string()))


def _states_in_records(absent: pa.Table, after: pa.Table) -> pa.Array:
    """For each row whose id is gone, the state of the row of its array that holds its tasks now;
    else null.
    """
    array_ids = as_array(absent["array_id"])
    if array_ids.null_count == len(array_ids):
        return pa.nulls(len(array_ids), pa.string())
    held = _held_tasks(after, pc.unique(array_ids.drop_null()))
    if not held:
        return pa.nulls(len(array_ids), pa.string())
    states = [
        held[array_id].task_state(_parse_tasks(task)) if array_id in held else None
        for array_id, task, _ in _rows(absent)
    ]
    return pa.array(states, pa.string())


def reason_changes(before: pa.Table, after: pa.Table) -> list[Mapping[str, Any]]:
    """Return at most MAX_TOLD rows of JOBS that waited before and after, now for another reason.

    Each has id, name, state, reason, `_old_state` and `_old_reason`. A reason that differs only in
    its figures, as PBS's do from cycle to cycle, is the same; a reason that is no longer reported
    is no change.
    """
    old = _waiting(before)
    new = _waiting(after)
    at = pc.index_in(as_array(new["id"]), value_set=as_array(old["id"]), skip_nulls=True)
    old_reasons = as_array(old["reason"]).cast(pa.string()).take(at)
    reasons = as_array(new["reason"]).cast(pa.string())
    differs = pc.and_(
        at.is_valid(), pc.fill_null(pc.not_equal(reasons, pc.fill_null(old_reasons, "")), False)
    )
    if not pc.any(differs).as_py():
        return []
    reported = new.select(_OF_EACH).append_column(OLD_REASON, old_reasons)
    reported = reported.append_column(
        OLD_STATE, as_array(old["state"]).cast(pa.string()).take(at)
    ).filter(differs)
    rows = reported.slice(0, 5 * MAX_TOLD).to_pylist()
    return [row for row in rows if normalised(row["reason"]) != normalised(row[OLD_REASON] or "")][
        :MAX_TOLD
    ]


def _waiting(table: pa.Table) -> pa.Table:
    states = as_array(table["state"]).cast(pa.string())
    return table.filter(pc.is_in(states, value_set=pa.array(sorted(WAITING), pa.string())))


def lost_nodes(before: pa.Table, after: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of domain.schema.NODES of the nodes that start no job any more, and did
    before.
    """
    unavailable = pa.array(sorted(UNAVAILABLE), pa.string())

    def is_unavailable(nodes: pa.Table) -> pa.ChunkedArray:
        return pc.is_in(nodes["state"].cast(pa.string()), value_set=unavailable)

    available = before.filter(pc.invert(is_unavailable(before)))["name"].combine_chunks()
    is_lost = pc.and_(is_unavailable(after), pc.is_in(after["name"], value_set=available))
    rows: list[dict[str, Any]] = after.filter(is_lost).to_pylist()
    return rows
