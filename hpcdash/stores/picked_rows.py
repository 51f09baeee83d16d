"""Picks rows of domain.schema.JOBS from tables: by id, by array, by state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array
from hpcdash.domain.states import JobState

Row = Mapping[str, Any]


def of_array(table: pa.Table, array_id: str) -> pa.Table:
    """The rows of an array."""
    return table.filter(pc.fill_null(pc.equal(as_array(table["array_id"]), array_id), False))


def are_in(table: pa.Table, states: Iterable[JobState]) -> pa.Array:
    """As many booleans as rows, without nulls: whether a job is in one of the states."""
    words = pa.array(sorted(str(state) for state in states), pa.string())
    return pc.fill_null(pc.is_in(as_array(table["state"]).cast(pa.string()), words), False)


def row_with_id(table: pa.Table, job_id: str) -> Row | None:
    """The first row with exactly this id."""
    position = pc.index(table["id"], pa.scalar(job_id, pa.string())).as_py()
    return table.slice(position, 1).to_pylist()[0] if position >= 0 else None


def missing_from(tables: Iterable[pa.Table], job_ids: Iterable[str]) -> tuple[str, ...]:
    """Those of the jobs and arrays that no table has."""
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


def first_of_each_id(tables: Iterable[pa.Table]) -> pa.Table:
    """Rows of several tables; of those with the same id the first."""
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    ids = as_array(rows["id"])
    return rows.take(pc.index_in(pc.unique(ids), value_set=ids))
