"""Facts of one job, fetched in parts: each part may fail without the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import PolicyReason
from hpcdash.backends.job_detail import Activity, JobDetail, Usage
from hpcdash.backends.queries import JobScope
from hpcdash.domain.arrays import TaskStates, fold, task_states
from hpcdash.domain.columns import has_state
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_ids import (
    in_full,
    parse_array_id,
    parse_job_number,
    parse_task_part,
    plain_id,
    with_cluster,
)
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.failures import (
    FAILED,
    Excerpt,
    JobFailure,
    count_containers,
    fetch_failure,
    fetch_up,
)
from hpcdash.services.jobs.rows import (
    Row,
    array_rows,
    drop_repeated_ids,
    missing_from,
    row_with_id,
)
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.services.logs.locate import fetch_log_files
from hpcdash.services.usage.limits import find_policy_reason, policy_lines, with_counted_use

if TYPE_CHECKING:
    from hpcdash.services.submit.allocations import Run
    from hpcdash.services.submit.launched_job import LaunchedJob
    from hpcdash.services.usage.waits import WaitTimes


_MAX_DEPENDENTS = 5000
_RELATED_COLUMNS = ("id", "array_id", "name", "state", "dependency", "_tasks")
# A list of jobs reports these columns of a job as freshly as its details do.
_DETAIL_COLUMNS = ("stdout_path", "stderr_path")
_MAX_ANSWERS = 4
_KINDS = (Kind.MINE, Kind.EVERYONE, Kind.HISTORY, Kind.HISTORY_EVERYONE)
# sstat queries a daemon on each of a job's nodes.
USAGE_EVERY_SECONDS = 60.0
# Interval of the checks of a launch's log while some of its containers are not up.
CONTAINERS_EVERY_SECONDS = 15.0
ACTIVITY_EVERY_SECONDS = 15.0
_MAX_RELATED = 200
Fetch = Callable[[], Awaitable[None]]


class KnownTable(Struct, frozen=True):
    """Table of domain.schema.JOBS, taken at an epoch second.

    `is_complete`: it has every unfinished job of the job's owner.
    """

    taken_at: float
    table: pa.Table
    is_complete: bool = False


class FoundJob(Struct, frozen=True):
    """A job as the known tables have it; `row` is None if it is in none of them.

    `related` are the jobs that it depends on, `dependents` all known jobs that wait for another
    job. `ended_tasks` are finished tasks of an array, which may have left every table.
    """

    row: Row | None = None
    is_whole_array: bool = False
    tasks: TaskStates | None = None
    ended_tasks: pa.Table | None = None
    related: tuple[Row, ...] = ()
    dependents: tuple[Row, ...] = ()


def newest_row(job_id: str, tables: Sequence[KnownTable]) -> Row | None:
    """Return the job's row in the newest table that has it."""
    for known in tables:
        if (row := row_with_id(known.table, job_id)) is not None:
            return row
    return None


def find_job(
    job_id: str, tables: Sequence[KnownTable], detail: JobDetail | None, before: FoundJob
) -> FoundJob:
    """Find a job, or a whole array by its number, in the tables, newest first.

    `before` is the previous result. Takes time in proportion to the tables: not for the event loop.
    """
    # Arrow takes no surrogates: bytes of a terminal whose encoding is not that of the locale.
    if not job_id.isprintable():
        return before
    row = _array_summary(job_id, tables, before.ended_tasks)
    is_whole_array = row is not None
    if row is None:
        row = newest_row(job_id, tables)
    if row is None and detail is not None:
        row = detail.job.to_pylist()[0]
    tasks = before.tasks
    ended_tasks = before.ended_tasks
    if row is None:
        return FoundJob(tasks=tasks, ended_tasks=ended_tasks)
    if row["array_id"]:
        tasks, ended_tasks = _task_states(row["array_id"], tables, ended_tasks)
    if detail is not None and not is_whole_array:
        reported = detail.job.select(_DETAIL_COLUMNS).to_pylist()[0]
        row = {**row, **{name: value for name, value in reported.items() if value is not None}}
    return FoundJob(
        row,
        is_whole_array,
        tasks,
        ended_tasks,
        related=_find_dependencies(row, tables),
        dependents=_find_dependents(row, tables),
    )


def _array_summary(
    job_id: str, tables: Sequence[KnownTable], ended_tasks: pa.Table | None
) -> Row | None:
    """Summarise the rows of an array; None if the id is that of a job or a task."""
    if parse_task_part(job_id):
        return None
    job_tables = [(array_rows(known.table, job_id), known.is_complete) for known in tables]
    if ended_tasks is not None:
        job_tables.append((ended_tasks, False))
    some = [rows for rows, _ in job_tables if rows.num_rows]
    if not some:
        return None
    # A history has no information on unfinished tasks.
    living = next((rows for rows, is_complete in job_tables if is_complete), some[0])
    rows = drop_repeated_ids([living, *(rows.filter(has_state(rows, ENDED)) for rows in some)])
    # A single row is not folded as an array, but here it stands for the whole array.
    summary: Row = fold(rows).slice(0, 1).to_pylist()[0]
    return {**summary, "id": job_id, "array_id": job_id, "array_task": None}


def _task_states(
    array_id: str, tables: Sequence[KnownTable], ended_tasks: pa.Table | None
) -> tuple[TaskStates | None, pa.Table | None]:
    """Return the states of an array's tasks, and the rows of its finished tasks."""
    job_tables = [(array_rows(known.table, array_id), known.is_complete) for known in tables]
    ended = [rows.filter(has_state(rows, ENDED)) for rows, _ in job_tables]
    if ended_tasks is not None:
        ended.append(ended_tasks)
    ended = [rows for rows in ended if rows.num_rows]
    if ended:
        ended_tasks = drop_repeated_ids(ended)
    living = next((rows for rows, is_complete in job_tables if is_complete), None)
    if living is None:
        living = next((rows for rows, _ in job_tables if rows.num_rows), None)
    shown = [rows for rows in (living, ended_tasks) if rows is not None and rows.num_rows]
    states = task_states(shown) if shown else None
    return states, ended_tasks


def _find_dependencies(row: Row, tables: Sequence[KnownTable]) -> tuple[Row, ...]:
    """Find the jobs that a job depends on."""
    requested = parse_dependency(row["dependency"]).job_ids
    if not requested:
        return ()
    cluster = plain_id(str(row["id"]))[1]
    ids = pa.array([with_cluster(job_id, cluster) for job_id in requested], pa.string())
    found: dict[str, Row] = {}
    for known in tables:
        table = known.table
        is_in_array = pc.fill_null(pc.is_in(table["array_id"], ids), False)
        others = table.filter(pc.or_(pc.is_in(table["id"], ids), is_in_array))
        for other in others.select(_RELATED_COLUMNS).to_pylist():
            found.setdefault(other["id"], other)
    return tuple(found.values())


def _find_dependents(row: Row, tables: Sequence[KnownTable]) -> tuple[Row, ...]:
    """Find the jobs that wait for another job, those that name this one first."""
    number = parse_job_number(str(row["id"]))
    cluster = plain_id(str(row["id"]))[1]
    found: dict[str, Row] = {}
    for known in tables:
        table = known.table
        waiting = table.filter(pc.and_(pc.is_valid(table["dependency"]), has_state(table, WAITING)))
        names_it = waiting.filter(pc.match_substring(waiting["dependency"], number))
        for some in (names_it, waiting):
            for other in some.slice(0, _MAX_DEPENDENTS).select(_RELATED_COLUMNS).to_pylist():
                if plain_id(other["id"])[1] == cluster:
                    found.setdefault(other["id"], other)
    return tuple(found.values())


class Part(StrEnum):
    """Part of a job's facts that is fetched separately."""

    DETAIL = "details"
    USAGE = "usage"
    PRIORITY = "priority"
    QOS = "QoS"
    QUEUE = "queue rules"
    RELATED = "dependencies"
    TASKS = "tasks"
    LOG = "end of log"
    CONTAINERS = "containers"
    LIMITS = "limits"
    STEPS = "steps"
    ACTIVITY = "tasks and actors"
    RUNS = "runs"


async def compute_similar_waits(store: ClusterStore, row: Row) -> WaitTimes | None:
    """Compute the waits of jobs similar to a pending one from stored runs; None if unknown."""
    from hpcdash.services.usage.waits import compute_waits, wait_times

    known = await asyncio.to_thread(store.archive.known_waits)
    for kind in (Kind.HISTORY_EVERYONE, Kind.HISTORY):
        if not known.num_rows and (table := store.table(kind)) is not None:
            known = compute_waits(table)
    return await asyncio.to_thread(wait_times, known, row)


class JobFacts:
    """Facts of one job, or of a whole array by its number.

    `refresh` reads them from the store's tables; `fetch` queries the cluster. `errors` has the
    reason that a part is missing, `fetching` the parts that are being fetched. `changed` is called
    in the event loop when there is more to show. `state_folder` has the records of launches; None:
    there are none.
    """

    def __init__(
        self,
        store: ClusterStore,
        job_id: str,
        changed: Callable[[], None] = lambda: None,
        *,
        state_folder: Path | None = None,
        debug: bool = False,
    ) -> None:
        self.store = store
        self.job_id = job_id
        self.row: Row | None = None
        self.is_whole_array = False
        self.detail: JobDetail | None = None
        self.usage: Usage | None = None
        self.priority: Mapping[str, str] = {}
        # How long similar jobs waited, according to the runs stored on this machine.
        self.waits: WaitTimes | None = None
        # Steps of the last run, rows of domain.schema.STEPS.
        self.steps: pa.Table | None = None
        # Tasks and actors of the job's program, if the scheduler runs them.
        self.activity: Activity | None = None
        self.qos: Mapping[str, str] | None = None
        self.queue_rules: Mapping[str, str] = {}
        # Rows of domain.schema.LIMITS, if the job waits for a limit.
        self.limits: pa.Table | None = None
        self.related: tuple[Row, ...] = ()
        # All known jobs that wait for another job.
        self.dependents: tuple[Row, ...] = ()
        self.tasks: TaskStates | None = None
        self.failure: JobFailure | None = None
        # Number of containers that a running launch starts, and how many are up; None: unknown.
        self.containers: int | None = None
        self.up: int | None = None
        self.launched: LaunchedJob | None = None
        # Runs in an allocation.
        self.runs: tuple[Run, ...] = ()
        self.errors: dict[Part, HpcdashError] = {}
        self.fetching: set[Part] = set()
        self.taken_at: float | None = None
        self._changed = changed
        self._debug = debug
        self._state_folder = state_folder
        self._usage_at: float | None = None
        self._up_at: float | None = None
        self._activity_at = 0.0
        # When the run that `failure` is of ended: a requeued job may fail again.
        self._failure_key: object = None
        # The last answers to queries of single jobs.
        self._answers: list[KnownTable] = []
        self._found = FoundJob()
        self._refreshing = asyncio.Lock()

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """Events of the job, or of the array's tasks, since hpcdash started."""
        own = []
        for event in (*self.store.events, *self.store.reason_events):
            job_id = parse_array_id(event.job_id) if self.is_whole_array else event.job_id
            if job_id == self.job_id:
                own.append(event)
        return tuple(sorted(own, key=lambda event: event.at))

    @property
    def policy_reason(self) -> PolicyReason | None:
        """Site policy that a pending job waits for."""
        return None if self.row is None else find_policy_reason(self.store, self.row)

    def policy_lines(self) -> list[str]:
        """Format the policy that the job waits for, and the view that has more; [] for none."""
        reason = self.policy_reason
        if reason is None or self.row is None:
            return []
        limits = self.limits
        if limits is not None:
            mine = self.store.table(Kind.MINE)
            limits = with_counted_use(limits, mine, None, self.store.user)
        return policy_lines(reason, self.row, limits)

    @property
    def array_id(self) -> str | None:
        """Number of the array that this is, or is a task of."""
        if self.is_whole_array:
            return self.job_id
        return self.row["array_id"] if self.row is not None else None

    def read_row(self) -> None:
        """Read the job's row from the newest table that has it: a quick first view of the job."""
        if (row := newest_row(self.job_id, self._tables())) is not None:
            self.row = row

    async def refresh(self) -> bool:
        """Read the store's tables; return whether the job's state differs from its details."""
        before = self.detail.job["state"][0].as_py() if self.detail is not None else None
        await self._read_tables()
        self._changed()
        if self.is_whole_array or self.row is None or before is None:
            return False
        return bool(self.row["state"] != before)

    async def fetch(self) -> None:
        """Fetch all parts that a job in its state has. Raises nothing; see `errors`."""
        from hpcdash.services.submit.launched_job import launched_job

        await self._fetch_part(Part.DETAIL, self._fetch_detail)
        await self._read_tables()
        if (row := self.row) is not None:
            self.launched = await launched_job(
                self._state_folder, self.store.name, row, is_whole_array=self.is_whole_array
            )
        self._changed()
        if row is not None:
            parts = self._missing_parts(row)
            queries = [self._fetch_part(part, fetch) for part, fetch in parts.items()]
            if row["state"] in WAITING:
                queries.append(self._compute_waits(row))
            await asyncio.gather(*queries)

    def _missing_parts(self, row: Row) -> dict[Part, Fetch]:
        """Return the functions that fetch the parts of a job in its state."""
        parts: dict[Part, Fetch] = {}
        state = row["state"]
        if self.array_id:
            parts[Part.TASKS] = self._fetch_tasks
        if not self.is_whole_array:
            parts[Part.USAGE] = self._fetch_usage
            parts[Part.STEPS] = self._fetch_steps
            parts[Part.ACTIVITY] = self._fetch_activity
            if self.detail is not None:
                parts |= self._log_parts(row)
        is_allocation = self.launched is not None and self.launched.is_allocation
        if is_allocation and row["started_at"] is not None:
            parts[Part.RUNS] = self._fetch_runs
        if state in WAITING:
            parts[Part.PRIORITY] = self._fetch_priority
        else:
            self.priority = {}
            self.waits = None
        policy = self.policy_reason
        if policy is not None and policy.view == "limits":
            parts[Part.LIMITS] = self._fetch_limits
        if state not in ENDED:
            parts[Part.QOS] = self._fetch_qos
            parts[Part.QUEUE] = self._fetch_queue_rules
        if row["dependency"] and state in WAITING:
            parts[Part.RELATED] = self._fetch_related
        return parts

    def _log_parts(self, row: Row) -> dict[Part, Fetch]:
        """Return the parts in a job's log: the cause of its failure, or its containers."""
        if row["state"] in FAILED:
            self.up = None
            is_read = self.failure is not None and not self.failure.problem
            if is_read and self._failure_key == row["ends_at"]:
                return {}
            return {Part.LOG: self._fetch_failure}
        self.failure = None
        if row["state"] == JobState.RUNNING and self.containers != 0:
            return {Part.CONTAINERS: self._fetch_up}
        self.up = None
        return {}

    async def keep_usage_fresh(self) -> None:
        """Fetch a running job's usage again if it is old."""
        if self.row is None or self.is_whole_array or self._usage_at is None:
            return
        is_old = self.store.clock.now() - self._usage_at >= USAGE_EVERY_SECONDS
        if is_old and self.row["state"] in ACTIVE and Part.USAGE not in self.fetching:
            await self._fetch_part(Part.USAGE, self._fetch_usage)

    async def keep_activity_fresh(self) -> None:
        """Fetch the activity of a running job's program again if it is old."""
        if self.row is None or self.activity is None:
            return
        is_old = self.store.clock.now() - self._activity_at >= ACTIVITY_EVERY_SECONDS
        if is_old and self.row["state"] in ACTIVE and Part.ACTIVITY not in self.fetching:
            await self._fetch_part(Part.ACTIVITY, self._fetch_activity)

    async def keep_containers_fresh(self) -> None:
        """Count the containers of a running launch again if some were not up a while ago."""
        if self.row is None or self.row["state"] != JobState.RUNNING or not self.containers:
            return
        if self.up is not None:
            is_due = self.up < self.containers
        else:
            # Unknown without an error: the log cannot be read from the login node.
            is_due = Part.CONTAINERS in self.errors
        is_old = self.store.clock.now() - (self._up_at or 0.0) >= CONTAINERS_EVERY_SECONDS
        if is_due and is_old and Part.CONTAINERS not in self.fetching:
            await self._fetch_part(Part.CONTAINERS, self._fetch_up)

    async def _fetch_part(self, part: Part, fetch: Fetch) -> None:
        self.fetching.add(part)
        try:
            await fetch()
        except HpcdashError as error:
            self.errors[part] = error.with_traceback(None)
        else:
            self.errors.pop(part, None)
        finally:
            self.fetching.discard(part)
        self._changed()

    # -- parts

    async def _fetch_detail(self) -> None:
        self.detail = await self.store.fetch_detail(self.job_id)
        row = self.detail.job
        self.job_id = in_full(self.job_id, row["id"][0].as_py(), row["array_id"][0].as_py())
        self.taken_at = self.store.clock.now()

    async def _compute_waits(self, row: Row) -> None:
        self.waits = await compute_similar_waits(self.store, row)
        self._changed()

    async def _fetch_runs(self) -> None:
        from hpcdash.services.submit.allocations import Allocation, fetch_runs

        assert self.row is not None
        assert self.launched is not None
        allocation = Allocation(self.job_id, self.row, self.launched.folder)
        self.runs = await fetch_runs(self.store, allocation)

    async def _fetch_usage(self) -> None:
        assert self.row is not None
        self._usage_at = self.store.clock.now()
        query = self.store.backend.detail.usage(self.row)
        self.usage = None if query is None else await self.store.run_query(query)

    async def _fetch_steps(self) -> None:
        assert self.row is not None
        if (query := self.store.backend.detail.steps(self.row)) is not None:
            self._require_accounting()
            self.steps = (await self.store.run_query(query)).table

    async def _fetch_activity(self) -> None:
        assert self.row is not None
        native = self.detail.native if self.detail is not None else {}
        self._activity_at = self.store.clock.now()
        query = self.store.backend.detail.activity(self.row, native)
        self.activity = None if query is None else await self.store.run_query(query)

    async def _fetch_priority(self) -> None:
        query = self.store.backend.detail.priority(self.job_id)
        self.priority = {} if query is None else await self.store.run_query(query)

    async def _fetch_failure(self) -> None:
        assert self.row is not None
        assert self.detail is not None
        ended_at = self.row["ends_at"]
        self.failure = await fetch_failure(self.store, self.detail, self.row, debug=self._debug)
        self._failure_key = ended_at
        if self.failure.excerpt is not None:
            await self._store_node_check(self.failure.excerpt, ended_at)

    async def _store_node_check(self, excerpt: Excerpt, ended_at: datetime | None) -> None:
        """Store the result of a node's ready check that failed before the job began."""
        from hpcdash.services.submit.node_findings import NodeCheckRecords

        lines = (*excerpt.lines, excerpt.above)
        if any(" check failed: " in line for line in lines):
            records = NodeCheckRecords(self._state_folder, self.store.name)
            at = self.store.clock.now() if ended_at is None else ended_at.timestamp()
            await asyncio.to_thread(records.note_lines, lines, at)

    async def _fetch_up(self) -> None:
        assert self.row is not None
        assert self.detail is not None
        self._up_at = self.store.clock.now()
        if self.containers is None:
            self.containers = await count_containers(self.store, self.detail, self.row)
        if self.containers:
            files = await fetch_log_files(self.store, self.job_id, self.detail)
            self.up = await fetch_up(self.store, files)

    async def _fetch_qos(self) -> None:
        assert self.row is not None
        if not self.row["qos"]:
            return
        query = self.store.backend.policy.qos(str(self.row["qos"]))
        if query is not None:
            self._require_accounting()
            self.qos = await self.store.run_query(query)

    async def _fetch_limits(self) -> None:
        self.limits = (await self.store.fetch(Kind.LIMITS)).table

    async def _fetch_queue_rules(self) -> None:
        assert self.row is not None
        if self.row["queue"]:
            first_queue = str(self.row["queue"]).partition(",")[0]
            query = self.store.backend.policy.queue_rules(first_queue)
            self.queue_rules = {} if query is None else await self.store.run_query(query)

    async def _fetch_related(self) -> None:
        """Fetch the dependencies that no table of this run has, from the queue or the history."""
        assert self.row is not None
        requested = parse_dependency(self.row["dependency"]).job_ids[:_MAX_RELATED]
        snapshots = [self.store.snapshots.get(kind) for kind in _KINDS]
        fresh = [one.table for one in snapshots if one is not None and not one.cached]
        unknown = missing_from(fresh, requested)
        if not unknown:
            return
        backend = self.store.backend
        try:
            queued = await self.store.run_query(backend.queue.jobs(JobScope(job_ids=unknown)))
        except NoSuchJob:
            past = unknown
        else:
            await self._store_answer(queued.table, is_complete=False)
            past = missing_from([queued.table], unknown)
        if past:
            self._require_accounting()
            await self._fetch_ended(past)

    async def _fetch_tasks(self) -> None:
        assert self.array_id is not None
        backend = self.store.backend
        ids = (self.array_id,)
        try:
            queued = await self.store.run_query(backend.queue.jobs(JobScope(job_ids=ids)))
        except NoSuchJob:
            pass
        else:
            await self._store_answer(await self.store.with_pause(queued.table), is_complete=True)
        self._require_accounting()
        await self._fetch_ended(ids)

    def _require_accounting(self) -> None:
        probe = self.store.probe
        if probe is not None and probe.has_accounting is False:
            raise AccountingUnavailable("this cluster has no accounting database")

    async def _fetch_ended(self, job_ids: tuple[str, ...]) -> None:
        """Fetch finished jobs from the history, which reports less on unfinished ones."""
        past = await self.store.run_query(self.store.backend.history.jobs(None, 0, job_ids))
        ended = past.table.filter(has_state(past.table, ENDED))
        await self._store_answer(ended, is_complete=False)

    async def _store_answer(self, table: pa.Table, *, is_complete: bool) -> None:
        answer = KnownTable(self.store.clock.now(), table, is_complete)
        self._answers = [*self._answers, answer][-_MAX_ANSWERS:]
        await self._read_tables()

    # -- known tables

    def _tables(self) -> list[KnownTable]:
        """Return the answers, the job's details and the store's lists, newest first."""
        tables = [*self._answers]
        if self.detail is not None and self.taken_at is not None:
            tables.append(KnownTable(self.taken_at, self.detail.job))
        tables += self._stored_tables()
        return sorted(tables, key=lambda known: -known.taken_at)

    def _stored_tables(self) -> list[KnownTable]:
        """Return the store's lists of jobs, unfinished and finished."""
        owner = self.row["user"] if self.row is not None else None
        is_own = bool(owner) and owner == self.store.user
        tables = []
        for kind in _KINDS:
            # It may load the snapshot.
            table = self.store.table(kind)
            snapshot = self.store.snapshots.get(kind)
            if snapshot is not None and table is not None:
                is_complete = kind is Kind.EVERYONE or (kind is Kind.MINE and is_own)
                tables.append(KnownTable(snapshot.taken_at, table, is_complete))
        return tables

    async def _read_tables(self) -> None:
        async with self._refreshing:
            found = await asyncio.to_thread(
                find_job, self.job_id, self._tables(), self.detail, self._found
            )
            self._found = found
            self.is_whole_array = found.is_whole_array
            self.tasks = found.tasks
            if found.row is not None:
                self.row = found.row
                self.related = found.related
                self.dependents = found.dependents
