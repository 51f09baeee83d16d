"""Job lookup in one table: which rows some ids mean; records that hold many tasks are split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks
from hpcdash.domain.columns import as_array
from hpcdash.domain.job_ids import (
    BadJobId,
    JobId,
    covers,
    in_full,
    joined_tasks,
    parse_array_id,
    parse_job_id,
    parse_task_part,
    shared_tasks,
    with_tasks,
)
from hpcdash.domain.states import JobState
from hpcdash.errors import NoSuchJob

Row = Mapping[str, Any]


def select_rows(table: pa.Table, job_ids: Sequence[str]) -> tuple[Row, ...]:
    """The rows of domain.schema.JOBS that `job_ids` mean, each once, in the order of the ids; pure.

    An array's number means all of its rows, a heterogeneous job's all of its components. What
    cannot be read as an id means the row that has it. Of a record that holds many tasks, a row with
    those that are meant stands for it.
    """
    known_ids: list[str] = table["id"].to_pylist()
    numbers = table["_number"].to_pylist()
    by_number: dict[str, list[int]] = {}
    by_id: dict[str, list[int]] = {}
    for position, (known_id, number) in enumerate(zip(known_ids, numbers, strict=True)):
        by_number.setdefault(str(number), []).append(position)
        by_id.setdefault(known_id, []).append(position)
    for position, other_id in enumerate(table["_other_id"].to_pylist()):
        if other_id is not None:
            by_id.setdefault(other_id, [position])
    tasks_by_array: dict[int, list[ArrayTasks | None]] = {}
    for job_id in job_ids:
        for position, tasks in _select(job_id, known_ids, by_number, by_id):
            tasks_by_array.setdefault(position, []).append(tasks)
    rows = table.take(pa.array(list(tasks_by_array), pa.int64())).to_pylist()
    return tuple(
        _restricted(row, tasks) for row, tasks in zip(rows, tasks_by_array.values(), strict=True)
    )


def find_row(table: pa.Table, job_id: str) -> pa.Table:
    """The row of a job, of the array's row that holds its tasks, or the first; raises NoSuchJob
    where there is none.
    """
    if not table.num_rows:
        raise NoSuchJob(
            f"job {job_id} was not found in the queue or in its history",
            "Check the job ID and the cluster.",
        )
    position = pc.index(table["id"], pa.scalar(job_id, table["id"].type)).as_py()
    return table.slice(position if position >= 0 else _holding_row(table, job_id), 1)


def _holding_row(table: pa.Table, job_id: str) -> int:
    """Return the index of a task's row, or of the record that contains it; else the first."""
    requested = _read(job_id)
    if requested is None or requested.tasks is None:
        return 0
    for index, known_id in enumerate(table["id"].to_pylist()):
        held = _read(known_id)
        if held is not None and covers(requested, held):
            return index
    raise NoSuchJob(f"array {parse_array_id(job_id)} has no task {parse_task_part(job_id)}")


def _select(
    job_id: str,
    known_ids: list[str],
    by_number: Mapping[str, list[int]],
    by_id: Mapping[str, list[int]],
) -> list[tuple[int, ArrayTasks | None]]:
    """(row's position, the tasks of it that are meant or None for all of it)."""
    if job_id in by_id:
        return [(position, None) for position in by_id[job_id]]
    requested = _read(job_id)
    if requested is None:
        return []
    found: list[tuple[int, ArrayTasks | None]] = []
    for position in by_number.get(str(int(requested.number)), ()):
        held = _read(known_ids[position])
        if held is not None and covers(requested, held):
            found.append(
                (
                    position,
                    requested.tasks if held.tasks is not None and held.tasks.count > 1 else None,
                )
            )
    return found


def _read(job_id: str) -> JobId | None:
    try:
        return parse_job_id(job_id)
    except BadJobId:
        return None


def _restricted(row: dict[str, Any], requested: Sequence[ArrayTasks | None]) -> Row:
    """The row, or where only some of its tasks are meant, one that stands for these."""
    if None in requested:
        return row
    held = parse_tasks(row["array_task"])
    shared = [tasks for tasks in requested if tasks is not None]
    selected = joined_tasks(task for tasks in shared for task in (shared_tasks(held, tasks) or ()))
    if selected is None or selected.count == held.count:
        return row
    job_id = with_tasks(str(row["array_id"]), selected)
    part = {
        "id": job_id,
        "array_task": str(selected),
        "_task": selected.first,
        "_tasks": selected.count,
    }
    return {**row, **part}


def ids_in_full(job_ids: Sequence[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Ids as rows write them, each once: PBS's 12 is 12.server, or 12[].server where that is an
    array, and a job's other id is its id.

    All others stay as they are: they are whole as people write them.
    """
    known = _by_number(rows)
    own_ids = {row["id"] for row in rows}
    pairs = ((row.get("_other_id"), row["id"]) for row in rows)
    others = {other_id: job_id for other_id, job_id in pairs if other_id not in own_ids}
    return tuple(dict.fromkeys(others.get(job_id) or _in_full(job_id, known) for job_id in job_ids))


def _in_full(job_id: str, known: Mapping[str, Sequence[tuple[JobId, Row]]]) -> str:
    requested = _read(job_id)
    if requested is None:
        return job_id
    for held, row in known.get(requested.number, ()):
        if (held.server or held.has_brackets) and covers(requested, held):
            return in_full(job_id, row["id"], row["array_id"])
    return job_id


def _by_number(rows: Iterable[Row]) -> dict[str, list[tuple[JobId, Row]]]:
    known: dict[str, list[tuple[JobId, Row]]] = {}
    for row in rows:
        if (held := _read(row["id"])) is not None:
            known.setdefault(held.number, []).append((held, row))
    return known


def array_rows(table: pa.Table, array_id: str) -> pa.Table:
    """The rows of an array."""
    return table.filter(pc.fill_null(pc.equal(as_array(table["array_id"]), array_id), False))


def are_in(table: pa.Table, states: Iterable[JobState]) -> pa.Array:
    """Return a mask, a boolean per row without nulls, of the jobs in one of the states."""
    text = pa.array(sorted(str(state) for state in states), pa.string())
    return pc.fill_null(pc.is_in(as_array(table["state"]).cast(pa.string()), text), False)


def row_with_id(table: pa.Table, job_id: str) -> Row | None:
    """The first row with exactly this id."""
    position = pc.index(table["id"], pa.scalar(job_id, pa.string())).as_py()
    return table.slice(position, 1).to_pylist()[0] if position >= 0 else None


def missing_from(tables: Iterable[pa.Table], job_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the jobs and arrays that are in no table."""
    known = tuple(tables)
    return tuple(
        job_id
        for job_id in job_ids
        if not any(
            pc.index(table[name], pa.scalar(job_id, pa.string())).as_py() >= 0
            for table in known
            for name in ("id", "array_id")
        )
    )


def drop_repeated_ids(tables: Iterable[pa.Table]) -> pa.Table:
    """Rows of several tables; of those with the same id the first."""
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    ids = as_array(rows["id"])
    return rows.take(pc.index_in(pc.unique(ids), value_set=ids))
