"""Jobs on several clusters as one table; a cluster that does not answer delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.schema import ALL_JOBS, JOBS
from hpcdash.domain.tables import Kind
from hpcdash.errors import CommandTimedOut, HpcdashError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.cluster.store import PERSONS_TIMES, RECENT_SECONDS, ClusterStore
from hpcdash.services.session import ClusterSession

T = TypeVar("T")
# Whoever has not answered by then is shown as it was last.
_LIMIT_SECONDS = 15.0


class ClusterJobs(Struct, frozen=True):
    """A cluster's jobs: the last snapshot, None if there is none, and why it is not newer."""

    session: ClusterSession
    snapshot: Snapshot | None
    error: HpcdashError | None = None


class ClusterAnswer(Struct, Generic[T], frozen=True):
    """A cluster's answer, or why there is none."""

    session: ClusterSession
    value: T | None
    error: HpcdashError | None = None


async def query_clusters(
    sessions: Sequence[ClusterSession],
    fetch: Callable[[ClusterSession], Awaitable[T]],
    *,
    limit_seconds: float,
) -> list[ClusterAnswer[T]]:
    """Query clusters at the same time, each for at most so long; an error is in its answer."""

    async def answer(session: ClusterSession) -> ClusterAnswer[T]:
        try:
            await within(session, session.store.resolve_backend(), limit_seconds)
            return ClusterAnswer(session, await within(session, fetch(session), limit_seconds))
        except HpcdashError as error:
            return ClusterAnswer(session, None, error)

    return await asyncio.gather(*map(answer, sessions))


async def fetch_everywhere(
    sessions: Sequence[ClusterSession],
    kind: Kind,
    max_age_seconds: float = RECENT_SECONDS,
    *,
    limit_seconds: float = _LIMIT_SECONDS,
) -> list[ClusterJobs]:
    """Fetch each cluster's table of jobs at the same time; an error is in its result."""
    answers = (_fetch(one, kind, max_age_seconds, limit_seconds) for one in sessions)
    return await asyncio.gather(*answers)


async def within(session: ClusterSession, awaitable: Awaitable[T], limit_seconds: float) -> T:
    """Await a cluster's answer for so long; the time that a login waits for a person is free.

    Raises CommandTimedOut.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        while not (await asyncio.wait({task}, timeout=limit_seconds))[0]:
            if session.store.transport.health.state != "asking":
                raise CommandTimedOut(f"no answer within {limit_seconds:g} s")
    finally:
        task.cancel()
    return task.result()


async def _fetch(
    session: ClusterSession, kind: Kind, max_age_seconds: float, limit_seconds: float
) -> ClusterJobs:
    store = session.store
    try:
        fetching = _fetch_table(store, kind, max_age_seconds)
        return ClusterJobs(session, await within(session, fetching, limit_seconds))
    except HpcdashError as failed:
        error = failed
    store.load_cached((kind,))
    return ClusterJobs(session, store.snapshots.get(kind), error)


async def _fetch_table(store: ClusterStore, kind: Kind, max_age_seconds: float) -> Snapshot:
    await store.resolve_backend()
    return await store.fetch(kind, max_age_seconds, times=PERSONS_TIMES)


def join_runs(tables: Iterable[tuple[str, pa.Table]]) -> pa.Table:
    """Join runs of clusters, by their names, with a column `cluster`.

    IDs are `15@NAME`, which no two clusters share, and so are queues.
    """
    joined = []
    for name, table in tables:
        names = pa.repeat(pa.scalar(name, pa.string()), table.num_rows)
        for column in ("id", "queue"):
            field = table.schema.field(column)
            texts = pc.binary_join_element_wise(table[column].cast(pa.string()), names, "@")
            table = table.set_column(
                table.column_names.index(column), field, texts.cast(field.type)
            )
        joined.append(table.append_column("cluster", names))
    return pa.concat_tables(joined).unify_dictionaries()


def join_jobs(tables: Iterable[tuple[str, pa.Table]]) -> pa.Table:
    """Join the jobs of clusters, by their names, to rows of domain.schema.ALL_JOBS."""
    joined = [_with_cluster(name, table) for name, table in tables]
    return pa.concat_tables(joined).unify_dictionaries() if joined else ALL_JOBS.empty_table()


def _with_cluster(name: str, table: pa.Table) -> pa.Table:
    columns = {field: table[field] for field in JOBS.names}
    # A view's own.
    added = [field for field in table.schema if field.name not in JOBS.names]
    names = pa.repeat(pa.scalar(name, pa.string()), table.num_rows)
    columns["cluster"] = names.cast(ALL_JOBS.field("cluster").type)
    # `15@lab2`.
    columns["_row_id"] = pc.binary_join_element_wise(
        table["id"].cast(pa.string()), names, "@", null_handling="replace"
    ).cast(ALL_JOBS.field("_row_id").type)
    joined = pa.table({field: columns[field] for field in ALL_JOBS.names}, schema=ALL_JOBS)
    for field in added:
        joined = joined.append_column(field, table[field.name])
    return joined
