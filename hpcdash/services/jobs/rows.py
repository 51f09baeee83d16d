"""Job lookup in one table; records of many tasks are split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.array_tasks import ArrayTasks, joined_tasks, parse_tasks, shared_tasks
from hpcdash.domain.columns import as_array
from hpcdash.domain.job_ids import (
    JobId,
    covers,
    in_full,
    parse_array_id,
    parse_task_part,
    read_job_id,
    with_tasks,
)
from hpcdash.errors import NoSuchJob

Row = Mapping[str, Any]


def select_rows(table: pa.Table, job_ids: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of domain.schema.JOBS that `job_ids` select, in the order of the IDs.

    The number of an array selects all of its rows, that of a heterogeneous job all components. An
    unreadable ID selects the rows with exactly this ID. A record of many tasks becomes a row of the
    selected tasks.
    """
    index = _TableIndex(table)
    # None: all tasks of the row.
    selected: dict[int, list[ArrayTasks | None]] = {}
    for job_id in job_ids:
        for position, tasks in index.select(job_id):
            selected.setdefault(position, []).append(tasks)
    rows = table.take(pa.array(list(selected), pa.int64())).to_pylist()
    return tuple(map(_restrict, rows, selected.values()))


class _TableIndex:
    """Positions of a table's rows by number and by ID."""

    def __init__(self, table: pa.Table) -> None:
        self._ids: list[str] = table["id"].to_pylist()
        self._by_number: dict[str, list[int]] = {}
        self._by_id: dict[str, list[int]] = {}
        numbers = table["_number"].to_pylist()
        for position, (job_id, number) in enumerate(zip(self._ids, numbers, strict=True)):
            self._by_number.setdefault(str(number), []).append(position)
            self._by_id.setdefault(job_id, []).append(position)
        for position, other_id in enumerate(table["_other_id"].to_pylist()):
            if other_id is not None:
                self._by_id.setdefault(other_id, [position])

    def select(self, job_id: str) -> Iterator[tuple[int, ArrayTasks | None]]:
        """Yield positions, with the selected tasks of a record of many tasks."""
        if job_id in self._by_id:
            for position in self._by_id[job_id]:
                yield position, None
            return
        requested = read_job_id(job_id)
        if requested is None:
            return
        for position in self._by_number.get(str(int(requested.number)), ()):
            held = read_job_id(self._ids[position])
            if held is not None and covers(requested, held):
                has_many = held.tasks is not None and held.tasks.count > 1
                yield position, requested.tasks if has_many else None


def find_row(table: pa.Table, job_id: str) -> pa.Table:
    """Find the row of a job or of the record with its task, else the first row.

    Raises NoSuchJob for an empty table or a task that the array does not have.
    """
    if not table.num_rows:
        raise NoSuchJob(
            f"job {job_id} was not found in the queue or in the job history",
            "Check the job ID and the cluster.",
        )
    position = pc.index(table["id"], pa.scalar(job_id, table["id"].type)).as_py()
    return table.slice(position if position >= 0 else _holding_row(table, job_id), 1)


def _holding_row(table: pa.Table, job_id: str) -> int:
    """Return the index of a task's row, or of the record that contains it; else the first."""
    requested = read_job_id(job_id)
    if requested is None or requested.tasks is None:
        return 0
    for index, known_id in enumerate(table["id"].to_pylist()):
        held = read_job_id(known_id)
        if held is not None and covers(requested, held):
            return index
    raise NoSuchJob(f"array {parse_array_id(job_id)} has no task {parse_task_part(job_id)}")


def _restrict(row: dict[str, Any], requested: Sequence[ArrayTasks | None]) -> Row:
    """Return the row, or a row of some of its tasks if only these are requested."""
    if None in requested:
        return row
    held = parse_tasks(row["array_task"])
    numbers: set[int] = set()
    for tasks in requested:
        if tasks is not None and (shared := shared_tasks(held, tasks)) is not None:
            numbers.update(shared)
    selected = joined_tasks(numbers)
    if selected is None or selected.count == held.count:
        return row
    part = {
        "id": with_tasks(str(row["array_id"]), selected),
        "array_task": str(selected),
        "_task": selected.first,
        "_tasks": selected.count,
    }
    return {**row, **part}


def ids_in_full(job_ids: Sequence[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """Complete IDs as the rows have them, without duplicates: PBS's 12 becomes 12.server, or
    12[].server for an array, and a job's other ID becomes its ID.

    IDs without a row stay as they are.
    """
    own_ids = {row["id"] for row in rows}
    by_number: dict[str, list[tuple[JobId, Row]]] = {}
    others: dict[str, str] = {}
    for row in rows:
        if (held := read_job_id(row["id"])) is not None:
            by_number.setdefault(held.number, []).append((held, row))
        if (other_id := row.get("_other_id")) and other_id not in own_ids:
            others[other_id] = row["id"]

    def complete(job_id: str) -> str:
        requested = read_job_id(job_id)
        if requested is None:
            return job_id
        for held, row in by_number.get(requested.number, ()):
            if (held.server or held.has_brackets) and covers(requested, held):
                return in_full(job_id, row["id"], row["array_id"])
        return job_id

    return tuple(dict.fromkeys(others.get(job_id) or complete(job_id) for job_id in job_ids))


def array_rows(table: pa.Table, array_id: str) -> pa.Table:
    """Filter the rows of an array."""
    return table.filter(pc.fill_null(pc.equal(as_array(table["array_id"]), array_id), False))


def row_with_id(table: pa.Table, job_id: str) -> Row | None:
    """Return the first row with exactly this ID."""
    position = pc.index(table["id"], pa.scalar(job_id, pa.string())).as_py()
    return table.slice(position, 1).to_pylist()[0] if position >= 0 else None


def missing_from(tables: Iterable[pa.Table], job_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the jobs and arrays that are in no table."""
    columns = [table[name] for table in tables for name in ("id", "array_id")]
    missing = []
    for job_id in job_ids:
        text = pa.scalar(job_id, pa.string())
        if all(pc.index(column, text).as_py() < 0 for column in columns):
            missing.append(job_id)
    return tuple(missing)


def drop_repeated_ids(tables: Iterable[pa.Table]) -> pa.Table:
    """Join tables; of the rows with the same ID the first stays."""
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    ids = as_array(rows["id"])
    return rows.take(pc.index_in(pc.unique(ids), value_set=ids))
