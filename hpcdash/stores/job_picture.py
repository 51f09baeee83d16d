"""All there is to know of one job, gathered part by part: each may fail alone, and then says why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.backends.job_detail import JobDetail, Usage
from hpcdash.backends.queries import JobScope
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_ids import array_of, in_full
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.task_states import TaskStates
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.departures import JobEvent
from hpcdash.stores.failures import FAILED, Failure, containers_of, fetch_failure, fetch_up
from hpcdash.stores.job_sight import JobSight, look_at, newest_row
from hpcdash.stores.job_tables import JobTables, KnownTable
from hpcdash.stores.logs import files_of
from hpcdash.stores.picked_rows import Row, are_in, missing_from

if TYPE_CHECKING:
    from hpcdash.stores.launched_jobs import LaunchedJob

# sstat asks a daemon on each of a job's nodes.
USAGE_EVERY_SECONDS = 60.0
# How often the head of a launch's log is looked at while not all of its containers are up.
CONTAINERS_EVERY_SECONDS = 15.0
_MOST_RELATED = 200


class Part(StrEnum):
    """What is asked for by itself."""

    DETAIL = "details"
    USAGE = "usage"
    PRIORITY = "priority"
    QOS = "QoS"
    QUEUE = "queue's rules"
    RELATED = "jobs it depends on"
    TASKS = "tasks"
    LOG = "the end of its log"
    CONTAINERS = "its containers"


class JobPicture:
    """One job, or a whole array by its number. `look` takes what the store's tables know; `fetch` asks.

    `errors` says of a part why it is not known, `asking` which parts are on their way; `changed` is called, in the
    event loop, whenever there is more to show. Launches are remembered in `state_folder`, None: nowhere.
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
        # None: not known.
        self.qos: Mapping[str, str] | None = None
        self.queue_rules: Mapping[str, str] = {}
        # The jobs this one depends on, and all that wait for some other job, as far as they are known.
        self.related: tuple[Row, ...] = ()
        self.dependents: tuple[Row, ...] = ()
        self.tasks: TaskStates | None = None
        # What the log of a failed job tells; `debug`: more of it.
        self.failure: Failure | None = None
        # Of a launch that runs: how many nodes' containers it starts (None: not known yet), and how many are up.
        self.containers: int | None = None
        self.up: int | None = None
        # What is remembered here of the launch it is; None: nothing.
        self.launched: LaunchedJob | None = None
        self.errors: dict[Part, HpcdashError] = {}
        self.asking: set[Part] = set()
        self.taken_at: float | None = None
        self._changed = changed
        self._debug = debug
        self._state_folder = state_folder
        self._usage_at: float | None = None
        self._up_at: float | None = None
        # The end that `failure` is of: a job that was put back may fail once more.
        self._failure_of: object = None
        self._known = JobTables(store)
        self._sight = JobSight()
        self._looking = asyncio.Lock()

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """What was seen to happen to this job (of an array: to its tasks) since this run began."""
        is_of_it = (lambda job_id: array_of(job_id) == self.job_id) if self.is_whole_array else self.job_id.__eq__
        told = (event for event in (*self.store.events, *self.store.reason_events) if is_of_it(event.job_id))
        return tuple(sorted(told, key=lambda event: event.at))

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

    async def look(self) -> bool:
        """Take what the tables know now; whether the job is in another state than its details say."""
        before = self.detail.job["state"][0].as_py() if self.detail is not None else None
        await self._look_again()
        self._changed()
        if self.is_whole_array or self.row is None or before is None:
            return False
        return bool(self.row["state"] != before)

    async def fetch(self) -> None:
        """Ask for everything that there is of a job in its state; nothing is raised."""
        await self._take(Part.DETAIL, self._fetch_detail)
        await self._look_again()
        row = self.row
        if row is not None:
            await self._recall_launch(row)
        self._changed()
        if row is None:
            return
        parts = [self._take(Part.TASKS, self._fetch_tasks)] if self.array_id else []
        if not self.is_whole_array:
            parts.append(self._take(Part.USAGE, self._fetch_usage))
            parts += self._log_parts(row)
        if row["state"] in WAITING:
            parts.append(self._take(Part.PRIORITY, self._fetch_priority))
        else:
            self.priority = {}
        if row["state"] not in ENDED:
            parts += [self._take(Part.QOS, self._fetch_qos), self._take(Part.QUEUE, self._fetch_queue_rules)]
        if row["dependency"] and row["state"] in WAITING:
            parts.append(self._take(Part.RELATED, self._fetch_related))
        await asyncio.gather(*parts)

    async def keep_usage_fresh(self) -> None:
        """Ask again what a running job uses, where that is a while ago."""
        now = self.store.clock.now()
        if self.row is None or self.row["state"] not in ACTIVE or self.is_whole_array or Part.USAGE in self.asking:
            return
        if self._usage_at is not None and now - self._usage_at >= USAGE_EVERY_SECONDS:
            await self._take(Part.USAGE, self._fetch_usage)

    async def keep_containers_fresh(self) -> None:
        """Look again how many containers of a launch are up, where not all are and the last look is a while ago."""
        row, now = self.row, self.store.clock.now()
        if row is None or row["state"] != JobState.RUNNING or Part.CONTAINERS in self.asking or not self.containers:
            return
        # Where it is not known after a look that went well, the file is none that is looked into.
        is_worth_it = self.up < self.containers if self.up is not None else Part.CONTAINERS in self.errors
        if is_worth_it and now - (self._up_at or 0.0) >= CONTAINERS_EVERY_SECONDS:
            await self._take(Part.CONTAINERS, self._fetch_up)

    def _log_parts(self, row: Row) -> list[Coroutine[Any, Any, None]]:
        """What a job's log is asked for: once why it failed, or which of its containers are up."""
        if self.detail is None:
            return []
        if row["state"] in FAILED:
            self.up = None
            is_known = self.failure is not None and not self.failure.problem and self._failure_of == row["ends_at"]
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

    # -- the parts

    async def _fetch_detail(self) -> None:
        self.detail = await self.store.fetch_detail(self.job_id)
        row = self.detail.job
        self.job_id = in_full(self.job_id, row["id"][0].as_py(), row["array_id"][0].as_py())
        self.taken_at = self.store.clock.now()

    async def _recall_launch(self, row: Row) -> None:
        from hpcdash.stores.launched_jobs import launched_job

        folder, is_whole = self._state_folder, self.is_whole_array
        self.launched = await launched_job(folder, self.store.name, row, is_whole_array=is_whole)

    async def _fetch_usage(self) -> None:
        assert self.row is not None
        self._usage_at = self.store.clock.now()
        query = self.store.backend.usage_query(self.row)
        self.usage = None if query is None else await self.store.ask(query)

    async def _fetch_priority(self) -> None:
        query = self.store.backend.priority_query(self.job_id)
        self.priority = {} if query is None else await self.store.ask(query)

    async def _fetch_failure(self) -> None:
        assert self.row is not None
        assert self.detail is not None
        ended_at = self.row["ends_at"]
        self.failure = await fetch_failure(self.store, self.detail, self.row, debug=self._debug)
        self._failure_of = ended_at

    async def _fetch_up(self) -> None:
        assert self.row is not None
        assert self.detail is not None
        self._up_at = self.store.clock.now()
        if self.containers is None:
            self.containers = await containers_of(self.store, self.detail, self.row)
        if self.containers:
            self.up = await fetch_up(self.store, await files_of(self.store, self.job_id, self.detail))

    async def _fetch_qos(self) -> None:
        assert self.row is not None
        if self.row["qos"] and (query := self.store.backend.qos_query(str(self.row["qos"]))) is not None:
            self._need_accounting()
            self.qos = await self.store.ask(query)

    async def _fetch_queue_rules(self) -> None:
        assert self.row is not None
        if self.row["queue"]:
            first_queue = str(self.row["queue"]).partition(",")[0]
            query = self.store.backend.queue_rules_query(first_queue)
            self.queue_rules = {} if query is None else await self.store.ask(query)

    async def _fetch_related(self) -> None:
        """The jobs it depends on that no table knows: those of the queue, then those of the past."""
        assert self.row is not None
        wanted = parse_dependency(self.row["dependency"]).job_ids[:_MOST_RELATED]
        unknown = missing_from([known.table for known in self._known.of_the_store(self._owner)], wanted)
        if not unknown:
            return
        backend = self.store.backend
        try:
            queued = await self.store.ask(backend.jobs_query(JobScope(job_ids=unknown)))
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
        backend, ids = self.store.backend, (self.array_id,)
        try:
            queued = await self.store.ask(backend.jobs_query(JobScope(job_ids=ids)))
        except NoSuchJob:
            pass
        else:
            await self._keep(queued.table, is_complete=True)
        self._need_accounting()
        await self._remember_ended(ids)

    def _need_accounting(self) -> None:
        probe = self.store.probe
        if probe is not None and probe.has_accounting is False:
            raise AccountingUnavailable("this cluster keeps no accounting")

    async def _remember_ended(self, job_ids: tuple[str, ...]) -> None:
        """Of jobs that have not ended the queue says more than the past does."""
        past = await self.store.ask(self.store.backend.history_query(None, 0, job_ids))
        await self._keep(past.table.filter(are_in(past.table, ENDED)), is_complete=False)

    async def _keep(self, table: pa.Table, *, is_complete: bool) -> None:
        self._known.keep(table, is_complete=is_complete)
        await self._look_again()

    # -- what the tables know

    def _tables(self) -> list[KnownTable]:
        details = None
        if self.detail is not None and self.taken_at is not None:
            details = KnownTable(self.taken_at, self.detail.job)
        return self._known.newest_first(self._owner, details)

    @property
    def _owner(self) -> str | None:
        return self.row["user"] if self.row is not None else None

    async def _look_again(self) -> None:
        async with self._looking:
            tables = self._tables()
            sight = await asyncio.to_thread(look_at, self.job_id, tables, self.detail, self._sight)
            self._sight = sight
            self.is_whole_array, self.tasks = sight.is_whole_array, sight.tasks
            if sight.row is not None:
                self.row, self.related, self.dependents = sight.row, sight.related, sight.dependents
