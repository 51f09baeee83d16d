"""Job lookup in the lists of a cluster's store, without queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.states import ACTIVE, ENDED
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import ClusterStore

_LISTS = (Kind.EVERYONE, Kind.HISTORY, Kind.HISTORY_EVERYONE)


def known_tables(store: ClusterStore) -> Iterator[pa.Table]:
    """Yield the store's lists of jobs, the user's own first, as it has the newest rows."""
    own = store.table(Kind.MINE)
    if own is not None:
        yield own
    for kind in _LISTS:
        if kind in store.snapshots:
            yield store.snapshots[kind].table


def known_row(store: ClusterStore, job_id: str) -> dict[str, Any] | None:
    """Return a job's row of domain.schema.JOBS; None if it is in no list."""
    found = known_table(store, job_id)
    return None if found is None else found.to_pylist()[0]


def known_table(store: ClusterStore, job_id: str) -> pa.Table | None:
    """Return a table of the one row of `known_row`."""
    for table in known_tables(store):
        position = pc.index(table["id"], job_id).as_py()
        if position >= 0:
            return table.slice(position, 1)
    return None


def known_tasks(store: ClusterStore, array_id: str) -> dict[int, str]:
    """Return the IDs of an array's tasks that have a row of their own, by task number."""
    rows = _task_rows(known_tables(store), array_id)
    return {row["_task"]: job_id for job_id, row in rows.items()}


def task_with_log(store: ClusterStore, array_id: str) -> str | None:
    """Return the task of `representative_task` in the store's lists."""
    return representative_task(known_tables(store), array_id)


def representative_task(tables: Iterable[pa.Table], array_id: str) -> str | None:
    """Return the task whose log represents an array: the first that runs, else the last that ended.

    None if no table has such a task; the first table with a task counts.
    """
    rows = _task_rows(tables, array_id).values()
    running = [(row["_task"], row["id"]) for row in rows if row["state"] in ACTIVE]
    ended = [(row["_task"], row["id"]) for row in rows if row["state"] in ENDED]
    if running:
        return str(min(running)[1])
    return str(max(ended)[1]) if ended else None


def _task_rows(tables: Iterable[pa.Table], array_id: str) -> dict[str, dict[str, Any]]:
    """Return the rows of single tasks of an array by ID, each from the first table that has it."""
    found: dict[str, dict[str, Any]] = {}
    for table in tables:
        columns = table.select(["id", "state", "array_id", "_task", "_tasks"])
        for row in columns.filter(pc.equal(table["array_id"], array_id)).to_pylist():
            if row["_task"] is not None and row["_tasks"] == 1:
                found.setdefault(row["id"], row)
    return found
