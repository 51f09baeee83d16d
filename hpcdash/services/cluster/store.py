"""Store of one cluster: its tables with their age, their changes, and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.base import Backend, Probe
from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.queries import Answer, JobScope, ParsedTable, Query
from hpcdash.config.site_rules import SiteRules
from hpcdash.domain.columns import column_text, has_state
from hpcdash.domain.diff import lost_nodes
from hpcdash.domain.job_ids import holds_many, parse_array_id, parse_job_number
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.errors import CommandError, CommandTimedOut, HpcdashError, NoSuchJob, UnreachableError
from hpcdash.services.cluster.clock import CLOCK_QUERY, Clock, ClusterClock, latest_time
from hpcdash.services.cluster.job_counts import (
    has_pending,
    running_hosts,
    with_down_hosts,
    with_job_counts,
    with_pause,
)
from hpcdash.services.cluster.queries import CommandBudget, QueryRunner, find_scheduler
from hpcdash.services.cluster.snapshots import Snapshot, SnapshotCache
from hpcdash.services.jobs.rows import find_row
from hpcdash.services.jobs.tracker import JobEvent, JobTracker
from hpcdash.services.state.submitted_scripts import ScriptStore
from hpcdash.transport.base import OnOutput, Transport

if TYPE_CHECKING:
    from pathlib import Path

    from hpcdash.services.logs.file import LogFile
    from hpcdash.services.usage.archive import RunArchive


# Arrow's own allocators keep what a large answer took; the system's gives it back (release_unused).
pa.set_memory_pool(pa.system_memory_pool())

T = TypeVar("T")
HISTORY_SECONDS = 7 * 86400
# Tables that another program of the same person has had so recently are not queried again.
RECENT_SECONDS = 2.0
# Hosts of one's own jobs, and whether jobs start at all, are checked at most this often, and at
# most this many hosts.
_HOSTS_EVERY_SECONDS = 60.0
MAX_HOSTS = 20
# Jobs that ended during the last history query, or between two clocks, are queried again.
_HISTORY_OVERLAP_SECONDS = 600
PERSONS_TIMES = 2
# A large table is written to the cache no more often than this.
_CACHE_EVERY_SECONDS = 60.0
_SMALL_ROWS = 2000
_JOINED = (Kind.NODES, Kind.QUEUES)
_HISTORIES = (Kind.HISTORY, Kind.HISTORY_EVERYONE)
_JOB_LISTS = (Kind.MINE, Kind.EVERYONE)
_MAX_PATIENCE = 2
_MAX_NODE_EVENTS = 500
# A clock that was set by less is not noticed before the next connection.
_CLOCK_STEP_SECONDS = 30.0
_RULES_RETRY_SECONDS = 600.0


class Changed(Struct, frozen=True):
    """Notification to a store's listeners: a new table, or changed health or errors (kind None)."""

    kind: Kind | None
    events: tuple[JobEvent, ...] = ()


class NodeEvent(Struct, frozen=True):
    """A node that starts no job any more, seen at an epoch second; `reason` as reported, or ''."""

    at: float
    name: str
    state: str
    reason: str


Listener = Callable[[Changed], None]


def with_known_history(new: pa.Table, known: pa.Table, now: float) -> pa.Table:
    """Return new rows of domain.schema.JOBS and the known rows that ended within HISTORY_SECONDS.

    Pure. Newest end first.
    """
    ends = known["ends_at"].cast(pa.int64())
    is_stored = pc.and_(
        pc.invert(pc.is_in(known["id"], new["id"].combine_chunks())),
        pc.fill_null(pc.greater_equal(ends, int(now) - HISTORY_SECONDS), True),
    )
    table = pa.concat_tables([new, known.filter(is_stored)]).unify_dictionaries()
    order = pc.sort_indices(table, sort_keys=[("ends_at", "descending"), ("_number", "descending")])
    return table.take(order).combine_chunks()


def _split_ended(jobs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Split rows of domain.schema.JOBS into those that have not ended and those that have."""
    is_ended = has_state(jobs, ENDED)
    if not pc.any(is_ended, min_count=0).as_py():
        return jobs, jobs.slice(0, 0)
    return jobs.filter(pc.invert(is_ended)).combine_chunks(), jobs.filter(is_ended).combine_chunks()


class ClusterStore:
    """One cluster behind one transport.

    `backends` are tried in order until one finds its scheduler there.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        backends: Sequence[Backend],
        *,
        clock: Clock,
        budget: CommandBudget,
        cache: SnapshotCache | None = None,
        scripts: ScriptStore | None = None,
        state_folder: Path | None = None,
        user: str = "",
        title: str = "",
        site: SiteRules | None = None,
    ) -> None:
        """`site` are the rules of its site, as far as they are known; None where it has no login
        node.
        """
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
        # Folder of the scripts that the scheduler would not return; None: they are not stored.
        self.scripts = scripts
        # Folder of the watched use of its jobs; None: it is not stored.
        self._state_folder = state_folder
        self._cache = cache
        self._cache_read: set[Kind] = set()
        self._user = user
        self._listeners: list[Listener] = []
        # Notifications for the first listener: a poll may be answered before the screen exists.
        self._pending: dict[Kind | None, Changed] = {}
        self._cache_written: dict[Kind, float] = {}
        # As the scheduler reported them, without the job counts that everyone's queue adds.
        self._unjoined: dict[Kind, pa.Table] = {}
        self._opening: asyncio.Lock = asyncio.Lock()
        self._fetching: dict[Kind, asyncio.Task[Snapshot]] = {}
        # Seconds that the scheduler took to answer for each kind, without the line's.
        self.answer_seconds: dict[Kind, float] = {}
        self.answer_bytes: dict[Kind, int] = {}
        # Seconds since other programs of the same person had the answers.
        self.answer_ages: dict[Kind, float] = {}
        # Factors of the time limits of kinds that timed out.
        self._patience: dict[Kind, int] = {}
        # Seconds by which the latest time that running jobs show is behind the clock.
        self._jobs_behind_seconds: dict[Kind, float] = {}
        # The command that reads a file as the account that it was launched for; () for none.
        self.reader_command: Callable[[str], tuple[str, ...]] = lambda path: ()
        self._down_hosts: frozenset[str] = frozenset()
        self._hosts_queried_at = float("-inf")
        self._pause = ""
        self._pause_requested_at = float("-inf")
        self.node_events: deque[NodeEvent] = deque(maxlen=_MAX_NODE_EVENTS)
        """Nodes lost since this run began, newest last."""
        self.queue_refusals: Mapping[str, str] = {}
        """Reason of each queue that refuses all jobs of the user, as far as that was queried."""
        self._departures = JobTracker(self)
        self._queries = QueryRunner(self)
        # Time of the next read of the site's rules (monotonic).
        self._rules_due_at = float("inf") if site is None else float("-inf")
        self.site = site or SiteRules()
        self.site_problem = ""
        """Why the site's rules are ignored; '' if they are not."""
        self.on_site_rules: Callable[[], None] = lambda: None
        """Called when the site's rules were read."""

    def cache_file(self, name: str) -> Path | None:
        """Return the path of a file in the cluster's folder of cached facts; None if there is none."""
        return None if self._cache is None else self._cache.folder / name

    # -- user and backend

    @property
    def user(self) -> str:
        """Owner of the jobs that are 'mine'.

        It is the configured user, else the account that the cluster reports, else '' (the account
        that queries).
        """
        return self._user or (self.probe.user if self.probe else "")

    @property
    def misses_short_jobs(self) -> bool:
        """Whether a job may start and end unseen, as ended jobs are forgotten between polls."""
        stored = self.probe.ended_kept_seconds if self.probe else None
        return stored is not None and self._departures.poll_seconds > stored

    @property
    def events(self) -> Sequence[JobEvent]:
        """Events of one's own jobs since this run began, newest last."""
        return self._departures.events

    @property
    def reason_events(self) -> Sequence[JobEvent]:
        """Changes of the reasons that one's own jobs wait, since this run began, newest last."""
        return self._departures.reasons

    @cached_property
    def archive(self) -> RunArchive:
        """The runs of ended jobs over any span of time."""
        from hpcdash.services.usage.archive import RunArchive

        return RunArchive(
            self, None if self._cache is None else self._cache.folder, self._state_folder
        )

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` in the event loop's next turn after each change; return how to stop that.

        The first listener is also notified of earlier changes.
        """
        self._listeners.append(listener)
        for changed in self._pending.values():
            asyncio.get_running_loop().call_soon(self._call, listener, changed)
        self._pending.clear()
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _notify(self, changed: Changed) -> None:
        if not self._listeners:
            earlier = self._pending.get(changed.kind, changed)
            events = changed.events if earlier is changed else earlier.events + changed.events
            self._pending[changed.kind] = replace(changed, events=events)
        # Each in its own turn: the loop reports a listener that raises, and calls the others.
        for listener in self._listeners:
            asyncio.get_running_loop().call_soon(self._call, listener, changed)

    def _call(self, listener: Listener, changed: Changed) -> None:
        if listener in self._listeners:
            listener(changed)

    def notify_health(self) -> None:
        """Notify listeners that the connection or an error changed."""
        self._notify(Changed(None))

    # -- tables of the last run

    def load_cached(self, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        """Load the last run's snapshots where there are no newer ones; read each file once."""
        if self._cache is None:
            return
        for kind in kinds:
            if kind in self._cache_read or kind in self.snapshots:
                continue
            self._cache_read.add(kind)
            if (snapshot := self._cache.load(kind)) is not None:
                self.snapshots[kind] = snapshot

    def _forget_other_schedulers(self) -> None:
        """Drop the last run's snapshots of another scheduler or server that had this name."""
        if self._cache is None or self.probe is None:
            return
        # A server may have any name: it is one word.
        self._cache.scheduler = f"{self.backend.name} {''.join(self.probe.cluster.split())}".strip()
        for kind, snapshot in list(self.snapshots.items()):
            if snapshot.cached and not snapshot.may_belong_to(self._cache.scheduler):
                del self.snapshots[kind]
                self._notify(Changed(kind))

    def table(self, kind: Kind) -> pa.Table | None:
        """Return the table to show of a kind; one's own jobs include recently departed ones.

        If there is no data yet, it is that of the last run: a file is read when its table is first
        requested.
        """
        self.load_cached((kind,))
        snapshot = self.snapshots.get(kind)
        if snapshot is None:
            return None
        return (
            self._departures.with_departed(snapshot.table) if kind is Kind.MINE else snapshot.table
        )

    # -- queries

    async def open(self, *, force: bool = False) -> Probe:
        """Connect if the line is not open, and probe the scheduler once.

        Raises the error, with its next step, and stores it as `connection_error`. With `force`, as
        a person requested it, the transport tries even while it backs off.
        """
        async with self._opening:
            try:
                if force:
                    self._queries.forget_login_environment()
                await self.transport.connect(force=force)
                if self.probe is None:
                    queried_at = self.clock.now()
                    self.probe = await self._queries.with_login_environment(self._find_scheduler)
                    self._forget_other_schedulers()
                    self._adjust_clock(self.probe.clock_epoch_seconds, queried_at)
                await self._read_site_rules()
            except HpcdashError as error:
                self.connection_error = error
                self.notify_health()
                raise
            if self.connection_error is not None:
                self.connection_error = None
                self.notify_health()
            return self.probe

    async def _read_site_rules(self) -> None:
        """Read the rules if they are a day old; where they cannot be read, the known ones hold."""
        if time.monotonic() < self._rules_due_at:
            return
        from hpcdash.services.cluster.site_rules import EVERY_SECONDS, FILE, fetch_site_rules

        self._rules_due_at = time.monotonic() + _RULES_RETRY_SECONDS
        try:
            known = await fetch_site_rules(self.run_query, self.cache_file(FILE))
        except HpcdashError:
            return
        age_seconds = time.time() - known.at if known is not None else 0.0
        self._rules_due_at = time.monotonic() + max(0.0, EVERY_SECONDS - age_seconds)
        if known is not None:
            self.site = known.rules
            self.site_problem = known.problem
            self.on_site_rules()

    def _adjust_clock(self, reported: float | None, queried_at: float) -> None:
        """Adjust the clock to the cluster's; a recording has the cluster's own."""
        if reported is not None and isinstance(self.clock, ClusterClock):
            self.clock.adjust(reported, queried_at, self.clock.now())

    async def _watch_clock(self, kind: Kind, jobs: pa.Table) -> None:
        """Measure the cluster's clock again where running jobs show that it was set."""
        if not isinstance(self.clock, ClusterClock) or (reported := latest_time(jobs)) is None:
            return
        if (
            abs(reported - self.clock.now() - self._jobs_behind_seconds.get(kind, 0.0))
            <= _CLOCK_STEP_SECONDS
        ):
            return
        queried_at = self.clock.now()
        try:
            self._adjust_clock(await self.poll(CLOCK_QUERY), queried_at)
        except HpcdashError:
            return
        # Jobs that were suspended for a while have run for less.
        self._jobs_behind_seconds[kind] = reported - self.clock.now()

    async def resolve_backend(self) -> None:
        """Probe the scheduler if there may be several, or if its kind or version must be known.

        Raises like `open`, except for a named scheduler that works without its probe: its commands
        report what is wrong.
        """
        if self.probe is not None or (
            len(self._backends) == 1 and not self.backend.probe.needs_answer
        ):
            return
        try:
            await self.open()
        except CommandError:
            if len(self._backends) > 1 or not self.backend.probe.is_optional:
                raise
            self.connection_error = None

    async def _find_scheduler(self) -> Probe:
        fetch = self._queries.run_unchanged
        prepend_path = self.transport.prepend_path
        self.backend, probe = await find_scheduler(self._backends, fetch, prepend_path)
        return probe

    async def run_query(self, query: Query[T]) -> T:
        """Run a query that a person waits for; its answer is read in a thread.

        Raises RateLimited at twice the ceiling on commands a minute: polls leave that much room.
        """
        return await self._queries.run_query(query, times=PERSONS_TIMES)

    async def poll(self, query: Query[T]) -> T:
        """Run a query like `run_query`, but in the background: under the ceiling itself."""
        return await self._queries.run_query(query)

    async def act(self, command: ActionCommand, on_output: OnOutput | None = None) -> Answer:
        """Run a command that acts on jobs, once and regardless of our own ceiling.

        A person requested it. `on_output` is called with each piece of its stderr as it arrives.
        Raises the errors of the transport; the line has to be open (`open`).
        """
        return await self._queries.act(command, on_output)

    async def forget(self, job_ids: Iterable[str]) -> None:
        """Remove ended jobs that were deleted; the next answer does not have them either."""
        await self._departures.forget(job_ids)
        self._notify(Changed(Kind.MINE))

    def log_file(self, path: str, host: str = "") -> LogFile:
        """Return a job's file, on the login node or on the disk of the node `host`."""
        from hpcdash.services.logs.file import LogFile

        return LogFile(self.transport, path, host, () if host else self.reader_command(path))

    def query(self, kind: Kind) -> Query[ParsedTable]:
        """Return the query for the table of a kind."""
        cluster = self.probe.cluster if self.probe else ""
        return self.backend.table(kind, self.user, cluster, self._unknown_history_seconds(kind))

    def _unknown_history_seconds(self, kind: Kind) -> int:
        """Return the seconds of history to query."""
        known = self.snapshots.get(kind)
        if known is None or not self.backend.history.keeps_ended:
            return HISTORY_SECONDS
        return min(
            HISTORY_SECONDS,
            max(0, round(self.clock.now() - known.taken_at)) + _HISTORY_OVERLAP_SECONDS,
        )

    async def fetch(
        self, kind: Kind, max_age_seconds: float = RECENT_SECONDS, *, times: int = 1
    ) -> Snapshot:
        """Fetch a kind now; store and raise the error. Concurrent callers share one query.

        Another program of the same person may have had it answered `max_age_seconds` ago. Raises
        RateLimited at `times` the ceiling on commands a minute.
        """
        running = self._fetching.get(kind)
        if running is None or running.done():
            running = asyncio.create_task(
                self._fetch(kind, max_age_seconds, times), name=f"fetch {kind} of {self.name}"
            )
            self._fetching[kind] = running
            running.add_done_callback(lambda ended: self._fetched(kind, ended))
        return await asyncio.shield(running)

    def _fetched(self, kind: Kind, ended: asyncio.Task[Snapshot]) -> None:
        # A task holds its table, or its error.
        if self._fetching.get(kind) is ended:
            del self._fetching[kind]

    async def _fetch(self, kind: Kind, max_age_seconds: float, times: int) -> Snapshot:
        parsed = await self._fetch_table(kind, max_age_seconds, times)
        table = parsed.table
        if kind in _JOB_LISTS:
            await self._watch_clock(kind, table)
        ended = None
        if kind is Kind.MINE and self.backend.queue.lists_ended:
            table, ended = await asyncio.to_thread(_split_ended, table)
        taken_at = self.clock.now() - self.answer_ages.get(kind, 0.0)
        known = self.snapshots.get(kind)
        if kind in _HISTORIES and self.backend.history.keeps_ended and known is not None:
            table = await asyncio.to_thread(with_known_history, table, known.table, taken_at)
        if kind in _JOB_LISTS:
            table = await self._with_down_hosts(table, is_own=kind is Kind.MINE)
            table = await self.with_pause(table)
        if kind in _JOINED:
            self._unjoined[kind] = table
        events: tuple[JobEvent, ...] = ()
        if kind is Kind.MINE:
            events = await self._departures.follow(self._mine_before(), table, ended)
        snapshot = await self._join(Snapshot(kind, table, taken_at, parsed.rejected))
        if kind is Kind.NODES and (earlier := self.snapshots.get(kind)) is not None:
            lost = await asyncio.to_thread(lost_nodes, earlier.table, snapshot.table)
            self.node_events.extend(
                NodeEvent(taken_at, row["name"], row["state"], row["reason"] or "") for row in lost
            )
        # The answer also shows that the line is good.
        self.connection_error = None
        for other, error in list(self.errors.items()):
            if other is kind or isinstance(error, UnreachableError):
                del self.errors[other]
        self.snapshots[kind] = snapshot
        self._notify(Changed(kind, events))
        if kind is Kind.EVERYONE:
            await self._join_again()
        elif kind is Kind.MINE and (events := await self._departures.look_up()):
            self._notify(Changed(kind, events))
        if table.num_rows > _SMALL_ROWS:
            await asyncio.to_thread(pa.default_memory_pool().release_unused)
        await self._cache_snapshot(snapshot)
        return snapshot

    async def _fetch_table(self, kind: Kind, max_age_seconds: float, times: int) -> ParsedTable:
        """Fetch the table of a kind; store and raise the error."""
        query = self.query(kind)
        limit_seconds = query.limit_seconds * self._patience.get(kind, 1)
        started = time.monotonic()
        self.answer_seconds.pop(kind, None)

        def parse(answer: Answer) -> ParsedTable:
            self.answer_bytes[kind] = len(answer.stdout)
            self.answer_ages[kind] = answer.age_seconds
            if answer.answer_seconds is not None:
                self.answer_seconds[kind] = answer.answer_seconds
            return query.parse(answer)

        try:
            parsed = await self._queries.run_query(
                replace(
                    query,
                    parse=parse,
                    limit_seconds=limit_seconds,
                    max_age_seconds=max_age_seconds,
                ),
                times=times,
            )
        except HpcdashError as error:
            if isinstance(error, CommandTimedOut):
                self._patience[kind] = min(2 * self._patience.get(kind, 1), _MAX_PATIENCE)
                longer = query.limit_seconds * self._patience[kind]
                error.next_step = (
                    f"{error.next_step} It may just be slow: the next attempt waits up to "
                    f"{longer:g} s."
                ).strip()
            self.errors[kind] = error
            self._notify(Changed(kind))
            # The frames below hold the command's whole output, and the error may be stored for
            # long.
            raise error.with_traceback(None) from error.__cause__
        if time.monotonic() - started < query.limit_seconds / 4:
            self._patience.pop(kind, None)
        return parsed

    def _mine_before(self) -> pa.Table | None:
        """Return the last list of one's own jobs; of a cached list, those of the present user."""
        before = self.snapshots.get(Kind.MINE)
        if before is None:
            return None
        if not before.cached or not self.user:
            return before.table
        return before.table.filter(pc.equal(before.table["user"].cast(pa.string()), self.user))

    async def _join(self, snapshot: Snapshot) -> Snapshot:
        """Add the job counts of everyone's queue, unless it is cached, to nodes and queues."""
        everyone = self.snapshots.get(Kind.EVERYONE)
        own = self._unjoined.get(snapshot.kind)
        if own is None or everyone is None or everyone.cached:
            return snapshot
        table = await asyncio.to_thread(with_job_counts, snapshot.kind, own, everyone.table)
        return replace(snapshot, table=table)

    async def _join_again(self) -> None:
        for kind in _JOINED:
            if (snapshot := self.snapshots.get(kind)) is None:
                continue
            joined = await self._join(snapshot)
            # There may be a newer snapshot meanwhile.
            if self.snapshots.get(kind) is snapshot:
                self.snapshots[kind] = joined
                self._notify(Changed(kind))

    async def _with_down_hosts(self, jobs: pa.Table, *, is_own: bool) -> pa.Table:
        """Add the reason to jobs whose host is down; the hosts of one's own are queried once a
        minute.
        """
        now = self.clock.now()
        if is_own and now - self._hosts_queried_at >= _HOSTS_EVERY_SECONDS:
            self._hosts_queried_at = now
            # A list that cannot be queried is no error of the list of jobs.
            with contextlib.suppress(HpcdashError):
                self._down_hosts = await self._down_among(jobs)
        return (
            await asyncio.to_thread(with_down_hosts, jobs, self._down_hosts)
            if self._down_hosts
            else jobs
        )

    async def with_pause(self, jobs: pa.Table) -> pa.Table:
        """Add the reason that no job starts at present, queried once a minute while any waits."""
        now = self.clock.now()
        query = self.backend.queue.pause_reason()
        if query is None or not await asyncio.to_thread(has_pending, jobs):
            return jobs
        is_due = now - self._pause_requested_at >= _HOSTS_EVERY_SECONDS
        if is_due and (request := self._fetching.get(Kind.QUEUES)) is not None:
            with contextlib.suppress(HpcdashError):
                await asyncio.shield(request)
        queues = self.snapshots.get(Kind.QUEUES)
        if queues is not None and now - queues.taken_at < 2 * _HOSTS_EVERY_SECONDS:
            # The list of queues has it.
            notes = pc.unique(pc.drop_null(column_text(queues.table["_server_note"]))).to_pylist()
            self._pause = notes[0] if notes else ""
        elif is_due:
            self._pause_requested_at = now
            with contextlib.suppress(HpcdashError):
                self._pause = await self.poll(
                    replace(query, max_age_seconds=_HOSTS_EVERY_SECONDS / 2)
                )
        return await asyncio.to_thread(with_pause, jobs, self._pause) if self._pause else jobs

    async def _down_among(self, jobs: pa.Table) -> frozenset[str]:
        """Fetch the hosts of running jobs that are down."""
        query = self.backend.queue.down_hosts(running_hosts(jobs, MAX_HOSTS))
        if query is None:
            return frozenset()
        return await self.poll(replace(query, max_age_seconds=_HOSTS_EVERY_SECONDS / 2))

    async def _cache_snapshot(self, snapshot: Snapshot) -> None:
        if self._cache is None:
            return
        now = self.clock.now()
        small = snapshot.table.num_rows <= _SMALL_ROWS
        if not small and now - self._cache_written.get(snapshot.kind, 0.0) < _CACHE_EVERY_SECONDS:
            return
        self._cache_written[snapshot.kind] = now
        if isinstance(self.clock, ClusterClock):
            # The next run reads it by this machine's clock.
            snapshot = replace(snapshot, taken_at=snapshot.taken_at - self.clock.ahead_seconds)
        await asyncio.to_thread(self._cache.save, snapshot)

    async def fetch_detail(self, job_id: str, known: pa.Table | None = None) -> JobDetail:
        """Fetch all details of a job from the queue or else from its history; raises NoSuchJob.

        `known` is its row of domain.schema.JOBS if a list has it: the row is not queried again.
        """
        if known is not None:
            query = self.backend.detail.native(job_id)
            try:
                native = await self.run_query(replace(query, max_age_seconds=RECENT_SECONDS))
            except NoSuchJob:
                native = await self.run_query(self.backend.history.native(job_id))
            return self.backend.detail.join(known, native)
        row_query = self.backend.queue.jobs(
            JobScope(job_ids=(parse_array_id(job_id) if holds_many(job_id) else job_id,))
        )
        try:
            parsed, native = await asyncio.gather(
                self.run_query(row_query), self.run_query(self.backend.detail.native(job_id))
            )
            row = find_row(parsed.table, job_id)
            own_id: str = row["id"][0].as_py()
            if parse_job_number(own_id) != parse_job_number(job_id):
                # Slurm's number of a component or a task, whose own ID has more information.
                native = await self.run_query(self.backend.detail.native(own_id))
        except NoSuchJob as error:
            return await self._fetch_past_detail(job_id, error)
        with contextlib.suppress(HpcdashError):
            row = with_down_hosts(row, await self._down_among(row))
        row = await self.with_pause(row)
        return self.backend.detail.join(row, native)

    async def _fetch_past_detail(self, job_id: str, not_in_queue: NoSuchJob) -> JobDetail:
        try:
            parsed, native = await asyncio.gather(
                self.run_query(self.backend.history.jobs(None, 0, (job_id,))),
                self.run_query(self.backend.history.native(job_id)),
            )
        except NoSuchJob as error:
            # Without the command: its status explains nothing.
            raise NoSuchJob(
                f"job {job_id} was not found in the queue or in the job history",
                "Check the job ID and the cluster.",
            ) from error
        except HpcdashError as error:
            not_in_queue.next_step = (
                f"It may have ended, but the job history cannot be queried: {error.message}."
            )
            raise not_in_queue from error
        return self.backend.detail.join(find_row(parsed.table, job_id), native)

    async def close(self) -> None:
        """Cancel the queries, and close the connection, which other clusters may have closed."""
        fetching = tuple(self._fetching.values())
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
        await self.transport.close()
