"""Jobs, nodes, history and metrics as pandas DataFrames, for notebooks and scripts.

    from hpcdash import frames

    runs = frames.history(since="90d")
    runs.groupby("queue")["elapsed_seconds"].sum()

Each function asks the cluster named in the configuration (by default the first one, else this
machine's scheduler) as `hpcdash` itself does, and closes the connection. Columns are those of
`hpcdash ... --format json`: times have a zone (UTC), durations (`*_seconds`) are timedeltas, whole
numbers may be `<NA>`, and words that repeat are categories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from hpcdash.assembly import broker_use, build_session, chosen_clusters, connection_pool
from hpcdash.config.destination import ClusterChoice
from hpcdash.config.read import load_settings
from hpcdash.domain import query
from hpcdash.domain.schema import RUNS, SCHEMAS, public_names
from hpcdash.domain.spans import LOCAL_ZONE, parse_span
from hpcdash.domain.tables import Kind
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.archive import RunSelection
from hpcdash.transport.prompter import TerminalPrompter

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
__all__ = ["history", "jobs", "metrics", "nodes", "to_frame"]


def history(
    cluster: str = "",
    *,
    since: str = "7d",
    until: str = "",
    everyone: bool = False,
    users: Sequence[str] = (),
    accounts: Sequence[str] = (),
    queues: Sequence[str] = (),
    states: Sequence[str] = (),
    names: Sequence[str] = (),
    filter: str = "",
) -> pd.DataFrame:
    """One row per run of a job that existed between `since` and `until` and has ended, newest end
    first.

    Times are written as for `hpcdash history`: `90d`, `2026-01-01`. The runs are your own,
    `everyone`'s, or those of `users`. Earlier results are read from this machine. Raises
    HpcdashError if part of the span is not known.
    """
    selection: dict[str, Any] = {
        "everyone": everyone,
        "users": users,
        "accounts": accounts,
        "queues": queues,
    }
    selection |= {"states": states, "names": names, "filter": filter}
    return history_frame(
        _on(cluster, lambda session: fetch_history(session, since, until, **selection))
    )


async def fetch_history(
    session: ClusterSession,
    since: str,
    until: str,
    *,
    everyone: bool = False,
    users: Sequence[str] = (),
    accounts: Sequence[str] = (),
    queues: Sequence[str] = (),
    states: Sequence[str] = (),
    names: Sequence[str] = (),
    filter: str = "",
) -> pa.Table:
    """The runs that `history` shows, with the columns of domain.schema.RUNS."""
    requested = query.parse(filter, RUNS, LOCAL_ZONE)
    selection = RunSelection(
        everyone,
        tuple(users),
        tuple(accounts),
        tuple(queues),
        tuple(states),
        tuple(names),
        requested,
    )
    await session.store.open()
    span = parse_span(since, until, now_epoch=session.store.clock.now(), zone=LOCAL_ZONE)
    fetched = await session.store.archive.fetch_runs(span, selection)
    if fetched.problem is not None:
        raise fetched.problem
    return fetched.table


def history_frame(runs: pa.Table) -> pd.DataFrame:
    return to_frame(runs.select(public_names(RUNS)))


def jobs(cluster: str = "", *, everyone: bool = False, filter: str = "") -> pd.DataFrame:
    """The jobs in the queue, as `hpcdash jobs` lists them: your own, or everyone's."""
    return _listed(cluster, Kind.EVERYONE if everyone else Kind.MINE, filter)


def nodes(cluster: str = "", *, filter: str = "") -> pd.DataFrame:
    """The nodes, as `hpcdash nodes` lists them."""
    return _listed(cluster, Kind.NODES, filter)


def metrics(job: str, cluster: str = "", *, names: Sequence[str] = ()) -> pd.DataFrame:
    """The metrics in a job's log: one row per step, one column per metric, NaN where a step has no
    value.

    The index is the step, or whatever else the log counts by. `names` selects metrics.
    """

    return metrics_frame(_on(cluster, lambda session: fetch_metrics(session, job, names)))


async def fetch_metrics(session: ClusterSession, job: str, names: Sequence[str]) -> pa.Table:
    """The metrics that `metrics` shows; the first column is what the log counts by."""
    from hpcdash.services.metrics.run import WatchedRun
    from hpcdash.services.metrics.series import EXPORTED_POINTS

    patterns = load_settings(None).metrics.patterns
    run = WatchedRun(session.store, job, patterns=patterns, exact_points=EXPORTED_POINTS)
    await run.open()
    await run.read_whole(lambda: None, None)
    known = run.run.names
    return run.run.table([name for name in known if not names or name in names])


def metrics_frame(table: pa.Table) -> pd.DataFrame:
    return to_frame(table).set_index(table.column_names[0])


def to_frame(table: pa.Table) -> pd.DataFrame:
    """A table with the columns of domain.schema as a DataFrame, with the dtypes that this module
    promises.
    """
    import pandas as pd

    columns = []
    for field in table.schema:
        column = table[field.name]
        if field.name.endswith("_seconds") and pa.types.is_integer(field.type):
            column = column.cast(pa.duration("s"))
        columns.append(column)
    dtypes: dict[pa.DataType, Any] = {
        pa.int64(): pd.Int64Dtype(),
        pa.string(): pd.StringDtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    frame: pd.DataFrame = pa.table(columns, names=table.column_names).to_pandas(
        types_mapper=dtypes.get
    )
    return frame


def _listed(cluster: str, kind: Kind, expression: str) -> pd.DataFrame:
    return listed_frame(kind, _on(cluster, lambda session: fetch_listed(session, kind, expression)))


async def fetch_listed(session: ClusterSession, kind: Kind, expression: str) -> pa.Table:
    """The rows of a kind that a filter leaves."""
    requested = query.parse(expression, SCHEMAS[kind], LOCAL_ZONE)
    await session.store.resolve_backend()
    snapshot = await session.store.fetch(kind)
    return query.apply(snapshot.table, requested, snapshot.taken_at)


def listed_frame(kind: Kind, rows: pa.Table) -> pd.DataFrame:
    return to_frame(rows.select(public_names(SCHEMAS[kind])))


def _on(cluster: str, work: Callable[[ClusterSession], Awaitable[T]]) -> T:
    """Return the result of work on a cluster, and close the connection."""
    settings = load_settings(None)
    choice = ClusterChoice(cluster=cluster or None)
    chosen = chosen_clusters(choice, settings)[0]

    async def run() -> T:
        pool = connection_pool(TerminalPrompter(), broker_use(choice, settings))
        session = build_session(chosen, pool)
        try:
            return await work(session)
        finally:
            await session.store.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    # In a notebook a loop runs already.
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(asyncio.run, run()).result()
