"""Looks jobs up in the lists that a cluster's store has already. Asks nothing of the cluster."""

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
    """The lists of jobs there are, one's own first, which has the newest rows."""
    own = store.table(Kind.MINE)
    if own is not None:
        yield own
    for kind in _LISTS:
        if kind in store.snapshots:
            yield store.snapshots[kind].table


def known_row(store: ClusterStore, job_id: str) -> dict[str, Any] | None:
    """A job's row of domain.schema.JOBS, None where no list has it."""
    found = known_table(store, job_id)
    return None if found is None else found.to_pylist()[0]


def known_table(store: ClusterStore, job_id: str) -> pa.Table | None:
    """As `known_row`, a table of that row."""
    for table in known_tables(store):
        position = pc.index(table["id"], job_id).as_py()
        if position >= 0:
            return table.slice(position, 1)
    return None


def known_tasks(store: ClusterStore, array_id: str) -> dict[int, str]:
    """The ids of an array's single tasks that any list has, by their numbers."""
    found: dict[int, str] = {}
    for table in known_tables(store):
        rows = (
            table.filter(pc.equal(table["array_id"], array_id))
            .select(["id", "_task", "_tasks"])
            .to_pylist()
        )
        found |= {
            row["_task"]: row["id"]
            for row in rows
            if row["_task"] is not None and row["_tasks"] == 1
        }
    return found


def task_with_log(store: ClusterStore, array_id: str) -> str | None:
    """As `telling_task`, of the lists there are."""
    return telling_task(known_tables(store), array_id)


def telling_task(tables: Iterable[pa.Table], array_id: str) -> str | None:
    """The task of an array whose log tells most of it now: the first that runs, else the last that
    ended.

    None where no table has such a task; of a task that several have the first counts.
    """
    states: dict[str, tuple[int, str]] = {}
    for table in tables:
        rows = (
            table.filter(pc.equal(table["array_id"], array_id))
            .select(["id", "state", "_task", "_tasks"])
            .to_pylist()
        )
        for row in rows:
            if row["_task"] is not None and row["_tasks"] == 1:
                states.setdefault(row["id"], (row["_task"], str(row["state"])))
    running = [(task, job_id) for job_id, (task, state) in states.items() if state in ACTIVE]
    ended = [(task, job_id) for job_id, (task, state) in states.items() if state in ENDED]
    if running:
        return min(running)[1]
    return max(ended)[1] if ended else None
