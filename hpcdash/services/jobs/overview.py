"""All there is to know of one job, gathered part by part: each may fail alone, and then says
why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import PolicyReason
from hpcdash.backends.job_detail import Activity, JobDetail, Usage
from hpcdash.backends.queries import JobScope
from hpcdash.domain.arrays import TaskStates, fold, task_states
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_ids import in_full, parse_array_id, parse_job_number, parse_task_part
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.failures import (
    FAILED,
    JobFailure,
    count_containers,
    fetch_failure,
    fetch_up,
)
from hpcdash.services.jobs.rows import (
    Row,
    are_in,
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
# What is told of other jobs.
_OF_OTHERS = ("id", "array_id", "name", "state", "dependency", "_tasks")
# A list of jobs reports these columns of a job as freshly as its details do.
_OF_DETAIL = ("stdout_path", "stderr_path")
_KEPT_ANSWERS = 3
_KINDS = (Kind.MINE, Kind.EVERYONE, Kind.HISTORY, Kind.HISTORY_EVERYONE)
# sstat queries a daemon on each of a job's nodes.
USAGE_EVERY_SECONDS = 60.0
# How often the head of a launch's log is checked while not all of its containers are up.
CONTAINERS_EVERY_SECONDS = 15.0
ACTIVITY_EVERY_SECONDS = 15.0
_MAX_RELATED = 200


class JobSight(Struct, frozen=True):
    """Known data of a job at one check; `row` None: neither the job nor its dependencies are known.

    `related` are the jobs this one depends on, `dependents` all that wait for some other job, as
    far as they are known. `ended_tasks` are an array's tasks that were seen to have ended, which
    may be in no table any more.
    """

    row: Row | None = None
    is_whole_array: bool = False
    tasks: TaskStates | None = None
    ended_tasks: pa.Table | None = None
    related: tuple[Row, ...] = ()
    dependents: tuple[Row, ...] = ()


def newest_row(job_id: str, tables: Sequence[KnownTable]) -> Row | None:
    """The job's row in the newest table that has it."""
    found = (row_with_id(known.table, job_id) for known in tables)
    return next((row for row in found if row is not None), None)


def find_job(
    job_id: str, tables: Sequence[KnownTable], detail: JobDetail | None, before: JobSight
) -> JobSight:
    """Find a job, or a whole array by its number, in the tables, newest first.

    `before` is the previous result. Takes time in proportion to the tables: not for the event loop.
    """
    row = _whole_array(job_id, tables, before.ended_tasks)
    is_whole_array = row is not None
    if row is None:
        row = newest_row(job_id, tables)
    if row is None and detail is not None:
        row = detail.job.to_pylist()[0]
    tasks = before.tasks
    ended_tasks = before.ended_tasks
    if row is not None and row["array_id"]:
        tasks, ended_tasks = _dependency_tasks(row["array_id"], tables, before.ended_tasks)
    if row is not None and detail is not None and not is_whole_array:
        reported = detail.job.select(_OF_DETAIL).to_pylist()[0]
        row = {**row, **{name: value for name, value in reported.items() if value is not None}}
    related, dependents = _dependencies(row, tables) if row is not None else ((), ())
    return JobSight(row, is_whole_array, tasks, ended_tasks, related, dependents)


def _whole_array(
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
    # An answer on the past has no information on the living tasks.
    living = next((rows for rows, is_complete in job_tables if is_complete), some[0])
    rows = drop_repeated_ids([living, *(rows.filter(are_in(rows, ENDED)) for rows in some)])
    # A single row is not folded as an array, but here it stands for the whole array.
    summary: Row = fold(rows).slice(0, 1).to_pylist()[0]
    return {**summary, "id": job_id, "array_id": job_id, "array_task": None}


def _dependency_tasks(
    array_id: str, tables: Sequence[KnownTable], ended_tasks: pa.Table | None
) -> tuple[TaskStates | None, pa.Table | None]:
    """The states of an array's tasks, and those that have ended."""
    job_tables = [(array_rows(known.table, array_id), known.is_complete) for known in tables]
    ended = [rows.filter(are_in(rows, ENDED)) for rows, _ in job_tables]
    if ended_tasks is not None:
        ended.append(ended_tasks)
    ended = [rows for rows in ended if rows.num_rows]
    living = next((rows for rows, is_complete in job_tables if is_complete), None)
    if living is None:
        living = next((rows for rows, _ in job_tables if rows.num_rows), None)
    if ended:
        ended_tasks = drop_repeated_ids(ended)
    shown = [rows for rows in (living, ended_tasks) if rows is not None and rows.num_rows]
    return (task_states(shown) if shown else None), ended_tasks


def _dependencies(
    row: Row, tables: Sequence[KnownTable]
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """The jobs that a job depends on, and those that wait for some job."""
    requested = parse_dependency(row["dependency"]).job_ids
    related: dict[str, Row] = {}
    dependents: dict[str, Row] = {}
    for table in (known.table for known in tables):
        if requested:
            ids = pa.array(requested, pa.string())
            mask = pc.or_(
                pc.is_in(table["id"], ids), pc.fill_null(pc.is_in(table["array_id"], ids), False)
            )
            for other in table.filter(mask).select(_OF_OTHERS).to_pylist():
                related.setdefault(other["id"], other)
        waiting = table.filter(pc.and_(pc.is_valid(table["dependency"]), are_in(table, WAITING)))
        # Rows that name this job come first, in case there are more than are searched.
        number = parse_job_number(str(row["array_id"] or row["id"]))
        names_it = waiting.filter(pc.match_substring(waiting["dependency"], number))
        for some in (names_it, waiting):
            for other in some.slice(0, _MAX_DEPENDENTS).select(_OF_OTHERS).to_pylist():
                dependents.setdefault(other["id"], other)
    return tuple(related.values()), tuple(dependents.values())


class KnownTable(Struct, frozen=True):
    """A table of domain.schema.JOBS, when it was taken, and whether every living job of the job's
    owner is in it.
    """

    taken_at: float
    table: pa.Table
    is_complete: bool = False


class JobTables:
    """Tables of a store, and the few stored answers to queries of single jobs."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._fetched: list[KnownTable] = []

    def keep(self, table: pa.Table, *, is_complete: bool) -> None:
        """An answer of now; the oldest of those kept is forgotten."""
        self._fetched = [
            *self._fetched[-_KEPT_ANSWERS:],
            KnownTable(self._store.clock.now(), table, is_complete),
        ]

    def newest_first(self, owner: str | None, details: KnownTable | None) -> list[KnownTable]:
        """All of them, and the job's details, where they are known; `owner` is the job's, None: not
        known.
        """
        tables = [
            *self._fetched,
            *([details] if details is not None else ()),
            *self.stored_tables(owner),
        ]
        return sorted(tables, key=lambda known: -known.taken_at)

    def stored_tables(self, owner: str | None) -> list[KnownTable]:
        """The lists of jobs that the store has, living and ended."""
        tables = []
        for kind in _KINDS:
            snapshot = self._store.snapshots.get(kind)
            if snapshot is None or (table := self._store.table(kind)) is None:
                continue
            is_complete = kind is Kind.EVERYONE or (
                kind is Kind.MINE and bool(owner) and owner == self._store.user
            )
            tables.append(KnownTable(snapshot.taken_at, table, is_complete))
        return tables


class Part(StrEnum):
    """Part of a job's page that is queried separately."""

    DETAIL = "details"
    USAGE = "usage"
    PRIORITY = "priority"
    QOS = "QoS"
    QUEUE = "queue's rules"
    RELATED = "jobs it depends on"
    TASKS = "tasks"
    LOG = "the end of its log"
    CONTAINERS = "its containers"
    LIMITS = "limits"
    STEPS = "steps"
    ACTIVITY = "tasks and actors"
    RUNS = "its runs"


async def recall_waits(store: ClusterStore, row: Row) -> WaitTimes | None:
    """Compute the waits of jobs like a waiting one, from this machine's data; None if unknown."""
    from hpcdash.services.usage.waits import compute_waits, wait_times

    known = await asyncio.to_thread(store.archive.known_waits)
    for kind in (Kind.HISTORY_EVERYONE, Kind.HISTORY):
        if not known.num_rows and (table := store.table(kind)) is not None:
            known = compute_waits(table)
    return await asyncio.to_thread(wait_times, known, row)


class JobPicture:
    """One job, or a whole array by its number.

    `look` takes what the store's tables know; `fetch` asks.

    `errors` says of a part why it is not known, `asking` which parts are on their way; `changed` is
    called, in the event loop, whenever there is more to show. Launches are remembered in
    `state_folder`, None: nowhere.
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
        # How long jobs like it waited, as far as is known here.
        self.waits: WaitTimes | None = None
        # The steps of its last run, rows of domain.schema.STEPS; None: not known, or the scheduler
        # knows none.
        self.steps: pa.Table | None = None
        # What its program has the scheduler run; None: not known, or the scheduler has nothing of
        # the kind.
        self.activity: Activity | None = None
        # None: not known.
        self.qos: Mapping[str, str] | None = None
        self.queue_rules: Mapping[str, str] = {}
        # domain.schema.LIMITS, where it waits for one.
        self.limits: pa.Table | None = None
        # The jobs this one depends on, and all that wait for some other job, as far as they are
        # known.
        self.related: tuple[Row, ...] = ()
        self.dependents: tuple[Row, ...] = ()
        self.tasks: TaskStates | None = None
        # The failure in the log of a failed job; `debug`: more of it.
        self.failure: JobFailure | None = None
        # Of a launch that runs: how many nodes' containers it starts (None: not known yet), and how
        # many are up.
        self.containers: int | None = None
        self.up: int | None = None
        # What is remembered here of the launch it is; None: nothing.
        self.launched: LaunchedJob | None = None
        # What was run in it, where it is an allocation.
        self.runs: tuple[Run, ...] = ()
        self.errors: dict[Part, HpcdashError] = {}
        self.asking: set[Part] = set()
        self.taken_at: float | None = None
        self._changed = changed
        self._debug = debug
        self._state_folder = state_folder
        self._usage_at: float | None = None
        self._up_at: float | None = None
        self._activity_at = 0.0
        # The end that `failure` is of: a job that was put back may fail once more.
        self._failure_key: object = None
        self._known = JobTables(store)
        self._sight = JobSight()
        self._refreshing = asyncio.Lock()

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """Events of this job (of an array: of its tasks) since this run began."""
        is_same_job = (
            (lambda job_id: parse_array_id(job_id) == self.job_id)
            if self.is_whole_array
            else self.job_id.__eq__
        )
        reported = (
            event
            for event in (*self.store.events, *self.store.reason_events)
            if is_same_job(event.job_id)
        )
        return tuple(sorted(reported, key=lambda event: event.at))

    @property
    def policy_reason(self) -> PolicyReason | None:
        """The site's rule that it waits for, where it waits for one."""
        return None if self.row is None else find_policy_reason(self.store, self.row)

    def policy_lines(self) -> list[str]:
        """Format the site's rules that it waits for, and where more is shown; [] for none."""
        reason = self.policy_reason
        row = self.row
        store = self.store
        if reason is None or row is None:
            return []
        limits = self.limits
        if limits is not None:
            limits = with_counted_use(limits, store.table(Kind.MINE), None, store.user)
        return policy_lines(reason, row, limits)

    @property
    def array_id(self) -> str | None:
        """The array this is, or is a task of."""
        if self.is_whole_array:
            return self.job_id
        return self.row["array_id"] if self.row is not None else None

    def glance(self) -> None:
        """The job's row in the newest table that has it: cheap, for a first sight of it."""
        if (row := newest_row(self.job_id, self._tables())) is not None:
            self.row = row

    async def refresh(self) -> bool:
        """Take what the tables know now; whether the job is in another state than its details
        say.
        """
        before = self.detail.job["state"][0].as_py() if self.detail is not None else None
        await self._refresh()
        self._changed()
        if self.is_whole_array or self.row is None or before is None:
            return False
        return bool(self.row["state"] != before)

    async def fetch(self) -> None:
        """Ask for everything that there is of a job in its state; nothing is raised."""
        await self._take(Part.DETAIL, self._fetch_detail)
        await self._refresh()
        row = self.row
        if row is not None:
            await self._recall_launch(row)
        self._changed()
        if row is None:
            return
        parts = [self._take(Part.TASKS, self._fetch_tasks)] if self.array_id else []
        if not self.is_whole_array:
            parts += [
                self._take(Part.USAGE, self._fetch_usage),
                self._take(Part.STEPS, self._fetch_steps),
            ]
            parts.append(self._take(Part.ACTIVITY, self._fetch_activity))
            parts += self._log_parts(row)
        if (
            self.launched is not None
            and self.launched.is_allocation
            and row["started_at"] is not None
        ):
            parts.append(self._take(Part.RUNS, self._fetch_runs))
        if row["state"] in WAITING:
            parts += [self._take(Part.PRIORITY, self._fetch_priority), self._recall_waits(row)]
        else:
            self.priority = {}
            self.waits = None
        if (policy := self.policy_reason) is not None and policy.view == "limits":
            parts.append(self._take(Part.LIMITS, self._fetch_limits))
        if row["state"] not in ENDED:
            parts += [
                self._take(Part.QOS, self._fetch_qos),
                self._take(Part.QUEUE, self._fetch_queue_rules),
            ]
        if row["dependency"] and row["state"] in WAITING:
            parts.append(self._take(Part.RELATED, self._fetch_related))
        await asyncio.gather(*parts)

    async def keep_usage_fresh(self) -> None:
        """Ask again what a running job uses, where that is a while ago."""
        now = self.store.clock.now()
        if (
            self.row is None
            or self.row["state"] not in ACTIVE
            or self.is_whole_array
            or Part.USAGE in self.asking
        ):
            return
        if self._usage_at is not None and now - self._usage_at >= USAGE_EVERY_SECONDS:
            await self._take(Part.USAGE, self._fetch_usage)

    async def keep_activity_fresh(self) -> None:
        """Ask again what a running job's program runs, where that is a while ago."""
        if (
            self.activity is None
            or self.row is None
            or self.row["state"] not in ACTIVE
            or Part.ACTIVITY in self.asking
        ):
            return
        if self.store.clock.now() - self._activity_at >= ACTIVITY_EVERY_SECONDS:
            await self._take(Part.ACTIVITY, self._fetch_activity)

    async def keep_containers_fresh(self) -> None:
        """Look again how many containers of a launch are up, where not all are and the last look is
        a while ago.
        """
        row = self.row
        now = self.store.clock.now()
        if (
            row is None
            or row["state"] != JobState.RUNNING
            or Part.CONTAINERS in self.asking
            or not self.containers
        ):
            return
        # Where it is not known after a look that went well, the file is none that is looked into.
        is_worth_it = (
            self.up < self.containers if self.up is not None else Part.CONTAINERS in self.errors
        )
        if is_worth_it and now - (self._up_at or 0.0) >= CONTAINERS_EVERY_SECONDS:
            await self._take(Part.CONTAINERS, self._fetch_up)

    def _log_parts(self, row: Row) -> list[Coroutine[Any, Any, None]]:
        """Return the queries of a job's log: once the cause of its failure, or its containers."""
        if self.detail is None:
            return []
        if row["state"] in FAILED:
            self.up = None
            is_known = (
                self.failure is not None
                and not self.failure.problem
                and self._failure_key == row["ends_at"]
            )
            return [] if is_known else [self._take(Part.LOG, self._fetch_failure)]
        self.failure = None
        if row["state"] == JobState.RUNNING and self.containers != 0:
            return [self._take(Part.CONTAINERS, self._fetch_up)]
        self.up = None
        return []

    async def _take(self, part: Part, fetch: Callable[[], Awaitable[None]]) -> None:
        self.asking.add(part)
        try:
            await fetch()
        except HpcdashError as error:
            self.errors[part] = error.with_traceback(None)
        else:
            self.errors.pop(part, None)
        finally:
            self.asking.discard(part)
        self._changed()

    # -- parts

    async def _fetch_detail(self) -> None:
        self.detail = await self.store.fetch_detail(self.job_id)
        row = self.detail.job
        self.job_id = in_full(self.job_id, row["id"][0].as_py(), row["array_id"][0].as_py())
        self.taken_at = self.store.clock.now()

    async def _recall_launch(self, row: Row) -> None:
        from hpcdash.services.submit.launched_job import launched_job

        folder = self._state_folder
        is_whole = self.is_whole_array
        self.launched = await launched_job(folder, self.store.name, row, is_whole_array=is_whole)

    async def _recall_waits(self, row: Row) -> None:
        self.waits = await recall_waits(self.store, row)
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
            self._need_accounting()
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
        await self._note_node_check()

    async def _note_node_check(self) -> None:
        """Store the result of a node's ready check that failed before the job began."""
        from hpcdash.services.submit.node_findings import NodeCheckRecords

        excerpt = None if self.failure is None else self.failure.excerpt
        lines = (
            () if excerpt is None else (*excerpt.lines, *([excerpt.above] if excerpt.above else []))
        )
        if any(" check failed: " in line for line in lines):
            records = NodeCheckRecords(self._state_folder, self.store.name)
            ended_at = self.row["ends_at"] if self.row is not None else None
            at = self.store.clock.now() if ended_at is None else ended_at.timestamp()
            await asyncio.to_thread(records.note_lines, lines, at)

    async def _fetch_up(self) -> None:
        assert self.row is not None
        assert self.detail is not None
        self._up_at = self.store.clock.now()
        if self.containers is None:
            self.containers = await count_containers(self.store, self.detail, self.row)
        if self.containers:
            self.up = await fetch_up(
                self.store, await fetch_log_files(self.store, self.job_id, self.detail)
            )

    async def _fetch_qos(self) -> None:
        assert self.row is not None
        if (
            self.row["qos"]
            and (query := self.store.backend.policy.qos(str(self.row["qos"]))) is not None
        ):
            self._need_accounting()
            self.qos = await self.store.run_query(query)

    async def _fetch_limits(self) -> None:
        """The limits, which the view of them shares."""
        self.limits = (await self.store.fetch(Kind.LIMITS)).table

    async def _fetch_queue_rules(self) -> None:
        assert self.row is not None
        if self.row["queue"]:
            first_queue = str(self.row["queue"]).partition(",")[0]
            query = self.store.backend.policy.queue_rules(first_queue)
            self.queue_rules = {} if query is None else await self.store.run_query(query)

    async def _fetch_related(self) -> None:
        """The jobs it depends on that no table knows: those of the queue, then those of the
        past.
        """
        assert self.row is not None
        requested = parse_dependency(self.row["dependency"]).job_ids[:_MAX_RELATED]
        unknown = missing_from(
            [known.table for known in self._known.stored_tables(self._owner)], requested
        )
        if not unknown:
            return
        backend = self.store.backend
        try:
            queued = await self.store.run_query(backend.queue.jobs(JobScope(job_ids=unknown)))
        except NoSuchJob:
            past = unknown
        else:
            await self._keep(queued.table, is_complete=False)
            past = missing_from([queued.table], unknown)
        if past:
            self._need_accounting()
            await self._remember_ended(past)

    async def _fetch_tasks(self) -> None:
        assert self.array_id is not None
        backend = self.store.backend
        ids = (self.array_id,)
        try:
            queued = await self.store.run_query(backend.queue.jobs(JobScope(job_ids=ids)))
        except NoSuchJob:
            pass
        else:
            await self._keep(await self.store.with_pause(queued.table), is_complete=True)
        self._need_accounting()
        await self._remember_ended(ids)

    def _need_accounting(self) -> None:
        probe = self.store.probe
        if probe is not None and probe.has_accounting is False:
            raise AccountingUnavailable("this cluster does not keep accounting")

    async def _remember_ended(self, job_ids: tuple[str, ...]) -> None:
        """Add ended jobs from the history; of unfinished jobs the queue reports more."""
        past = await self.store.run_query(self.store.backend.history.jobs(None, 0, job_ids))
        await self._keep(past.table.filter(are_in(past.table, ENDED)), is_complete=False)

    async def _keep(self, table: pa.Table, *, is_complete: bool) -> None:
        self._known.keep(table, is_complete=is_complete)
        await self._refresh()

    # -- known tables

    def _tables(self) -> list[KnownTable]:
        details = None
        if self.detail is not None and self.taken_at is not None:
            details = KnownTable(self.taken_at, self.detail.job)
        return self._known.newest_first(self._owner, details)

    @property
    def _owner(self) -> str | None:
        return self.row["user"] if self.row is not None else None

    async def _refresh(self) -> None:
        async with self._refreshing:
            tables = self._tables()
            sight = await asyncio.to_thread(find_job, self.job_id, tables, self.detail, self._sight)
            self._sight = sight
            self.is_whole_array, self.tasks = sight.is_whole_array, sight.tasks
            if sight.row is not None:
                self.row, self.related, self.dependents = sight.row, sight.related, sight.dependents
