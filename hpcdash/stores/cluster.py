"""All that is known of one cluster: its tables with their age, what changed, and what went wrong. Knows no screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from hpcdash.backends.base import Backend, JobDetail, JobScope, ParsedTable, Probe, Query
from hpcdash.errors import CommandMissing, HpcdashError, NoSuchJob, RateLimited
from hpcdash.stores.budget import CommandBudget
from hpcdash.stores.cache import SnapshotCache
from hpcdash.stores.clock import Clock
from hpcdash.stores.departures import Departures, JobEvent
from hpcdash.stores.joins import with_job_counts
from hpcdash.stores.snapshots import Kind, Snapshot
from hpcdash.transport.base import Transport

T = TypeVar("T")
HISTORY_SECONDS = 7 * 86400
# A large table is written to the cache no more often than this.
_CACHE_EVERY_SECONDS = 60.0
_SMALL_ROWS = 2000


@dataclass(frozen=True, slots=True)
class Changed:
    """What a store tells its listeners: which table is new, or that its health or errors changed (kind None)."""

    kind: Kind | None
    events: tuple[JobEvent, ...] = ()


Listener = Callable[[Changed], None]


class ClusterStore:
    """One cluster behind one transport. `backends` are tried in order until one finds its scheduler there."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        backends: Sequence[Backend],
        *,
        clock: Clock,
        budget: CommandBudget,
        cache: SnapshotCache | None = None,
        user: str = "",
        title: str = "",
    ) -> None:
        self.name = name
        self.title = title or name
        self.transport = transport
        self.clock = clock
        self.budget = budget
        self.backend = backends[0]
        self.probe: Probe | None = None
        self.snapshots: dict[Kind, Snapshot] = {}
        self.errors: dict[Kind, HpcdashError] = {}
        self.connection_error: HpcdashError | None = None
        self._backends = tuple(backends)
        self._cache = cache
        self._user = user
        self._listeners: list[Listener] = []
        self._cache_written: dict[Kind, float] = {}
        self._cached_tables: dict[Kind, pa.Table] = {}
        self._opening: asyncio.Lock = asyncio.Lock()
        self._fetching: dict[Kind, asyncio.Task[Snapshot]] = {}
        self._departures = Departures(self)

    # -- who and what

    @property
    def user(self) -> str:
        """Whose jobs are 'mine': configured, else who the other side says we are, else '' (whoever asks)."""
        return self._user or (self.probe.user if self.probe else "")

    @property
    def events(self) -> Sequence[JobEvent]:
        """What happened to one's own jobs since this run began, newest last."""
        return self._departures.events

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on each change; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _tell(self, changed: Changed) -> None:
        for listener in tuple(self._listeners):
            listener(changed)

    def tell_health(self) -> None:
        """Tell listeners that the connection or an error changed."""
        self._tell(Changed(None))

    # -- the last run's tables

    def load_cached(self, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        """Show what the last run knew, until something newer is there."""
        if self._cache is None:
            return
        for kind in kinds:
            if kind not in self.snapshots and (snapshot := self._cache.load(kind)) is not None:
                self.snapshots[kind] = snapshot

    def table(self, kind: Kind) -> pa.Table | None:
        """What to show of a kind; one's own jobs include those that left the queue a short while ago."""
        snapshot = self.snapshots.get(kind)
        if snapshot is None:
            return None
        return self._departures.with_departed(snapshot.table) if kind is Kind.MINE else snapshot.table

    # -- asking

    async def open(self, *, force: bool = False) -> Probe:
        """Connect, and find out once which scheduler is there; raises what stands in the way, with its next step.

        `force` tries even while the transport backs off: a person asked.
        """
        async with self._opening:
            if self.probe is not None and not force:
                return self.probe
            await self.transport.connect(force=force)
            if self.probe is not None:
                return self.probe
            for attempt in ("as it is", "as a login shell has it"):
                missing: HpcdashError | None = None
                for backend in self._backends:
                    try:
                        self.probe = await self._ask_once(backend.probe_query())
                    except CommandMissing as error:
                        missing = missing or error
                        continue
                    self.backend = backend
                    self.tell_health()
                    return self.probe
                if attempt == "as it is" and await self.transport.adopt_login_environment():
                    continue
                assert missing is not None
                raise missing
            raise AssertionError("unreachable")

    async def ask(self, query: Query[T]) -> T:
        """Run a query under the ceiling on commands; its answer is read in a thread."""
        try:
            return await self._ask_once(query)
        except CommandMissing:
            if await self.transport.adopt_login_environment():
                return await self._ask_once(query)
            raise

    async def _ask_once(self, query: Query[T]) -> T:
        wait = self.budget.wait_seconds()
        if wait > 0:
            raise RateLimited(
                f"our own ceiling of {self.budget.ceiling} commands a minute is reached",
                f"asked again in {wait:.0f} s; poll.commands_per_minute in the configuration sets the ceiling",
            )
        self.budget.spend()
        completed = await self.transport.run(query.argv, limit_seconds=query.limit_seconds)
        self.budget.answered(completed.seconds)
        return await asyncio.to_thread(query.parse, completed)

    def query(self, kind: Kind) -> Query[ParsedTable]:
        """The question that fills a kind."""
        match kind:
            case Kind.MINE:
                return self.backend.jobs_query(JobScope(user=self.user))
            case Kind.EVERYONE:
                return self.backend.jobs_query(JobScope())
            case Kind.NODES:
                return self.backend.nodes_query()
            case Kind.QUEUES:
                return self.backend.queues_query()
            case Kind.HISTORY:
                return self.backend.history_query(self.user, HISTORY_SECONDS)
            case Kind.HISTORY_EVERYONE:
                return self.backend.history_query(None, HISTORY_SECONDS)

    async def fetch(self, kind: Kind) -> Snapshot:
        """Ask for a kind now (callers at the same time share one question); raises what went wrong, and keeps it."""
        running = self._fetching.get(kind)
        if running is None or running.done():
            running = asyncio.create_task(self._fetch(kind), name=f"fetch {kind} of {self.name}")
            self._fetching[kind] = running
        return await asyncio.shield(running)

    async def _fetch(self, kind: Kind) -> Snapshot:
        try:
            parsed = await self.ask(self.query(kind))
        except HpcdashError as error:
            self.errors[kind] = error
            self._tell(Changed(kind))
            raise
        snapshot = Snapshot(kind, parsed.table, self.clock.now(), parsed.rejected)
        events: tuple[JobEvent, ...] = ()
        before = self.snapshots.get(kind)
        if kind is Kind.MINE:
            events = await self._departures.follow(before.table if before else None, snapshot.table)
        else:
            snapshot = await self._join(snapshot)
        self.errors.pop(kind, None)
        self.connection_error = None
        self.snapshots[kind] = snapshot
        self._tell(Changed(kind, events))
        if kind is Kind.EVERYONE:
            await self._join_again()
        await self._remember(snapshot)
        return snapshot

    async def _join(self, snapshot: Snapshot) -> Snapshot:
        """Nodes and queues with the counts of jobs that only everyone's queue tells."""
        everyone = self.snapshots.get(Kind.EVERYONE)
        if snapshot.kind not in (Kind.NODES, Kind.QUEUES) or everyone is None:
            return snapshot
        table = await asyncio.to_thread(with_job_counts, snapshot.kind, snapshot.table, everyone.table)
        return replace(snapshot, table=table)

    async def _join_again(self) -> None:
        for kind in (Kind.NODES, Kind.QUEUES):
            if kind in self.snapshots:
                self.snapshots[kind] = await self._join(self.snapshots[kind])
                self._tell(Changed(kind))

    async def _remember(self, snapshot: Snapshot) -> None:
        if self._cache is None:
            return
        now = self.clock.now()
        small = snapshot.table.num_rows <= _SMALL_ROWS
        if not small and now - self._cache_written.get(snapshot.kind, 0.0) < _CACHE_EVERY_SECONDS:
            return
        self._cache_written[snapshot.kind] = now
        await asyncio.to_thread(self._cache.save, snapshot)

    async def fetch_detail(self, job_id: str) -> JobDetail:
        """Everything of one job: from the queue while it is there, else from history; raises NoSuchJob."""
        row_query = self.backend.jobs_query(JobScope(job_ids=(job_id.partition("_[")[0],)))
        try:
            parsed, native = await asyncio.gather(self.ask(row_query), self.ask(self.backend.native_query(job_id)))
            row = _row_of(parsed.table, job_id)
        except NoSuchJob as error:
            return await self._fetch_past_detail(job_id, error)
        return self.backend.job_detail(row, native)

    async def _fetch_past_detail(self, job_id: str, not_in_queue: NoSuchJob) -> JobDetail:
        try:
            parsed, native = await asyncio.gather(
                self.ask(self.backend.history_query(None, 0, (job_id,))),
                self.ask(self.backend.history_native_query(job_id)),
            )
        except NoSuchJob:
            raise
        except HpcdashError as error:
            not_in_queue.next_step = f"It may have ended; its history cannot be asked: {error.message}."
            raise not_in_queue from error
        return self.backend.job_detail(_row_of(parsed.table, job_id), native)

    async def close(self) -> None:
        """Stop what is being asked, and end the connection (which other clusters on it may have ended already)."""
        for task in self._fetching.values():
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)
        await self.transport.close()


def _row_of(table: pa.Table, job_id: str) -> pa.Table:
    """The row of a job, of the array's row that holds the task, or the first; raises NoSuchJob on an empty table."""
    if not table.num_rows:
        raise NoSuchJob(f"no list and no history knows job {job_id}", "Is the number right, and the cluster?")
    ids: Mapping[str, int] = {text: index for index, text in reversed(list(enumerate(table["id"].to_pylist())))}
    position = ids.get(job_id)
    if position is None:
        position = _holding_task(table, job_id)
    return table.slice(position, 1)


def _holding_task(table: pa.Table, job_id: str) -> int:
    from hpcdash.domain.arrays import parse_tasks

    array_id, _, task = job_id.partition("_")
    if task.isdigit():
        for index, (known, tasks) in enumerate(
            zip(table["array_id"].to_pylist(), table["array_task"].to_pylist(), strict=True)
        ):
            if known == array_id and tasks and parse_tasks(tasks).contains(int(task)):
                return index
        raise NoSuchJob(f"array {array_id} has no task {task}")
    return 0
