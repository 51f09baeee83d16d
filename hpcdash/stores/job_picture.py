"""All there is to know of one job, gathered part by part: each may fail alone, and then says why. Knows no screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.base import JobDetail, JobScope, Usage
from hpcdash.domain.arrays import fold
from hpcdash.domain.columns import as_array
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_ids import array_of, in_full, number_of, task_of
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.domain.task_states import TaskStates, task_states
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.departures import JobEvent
from hpcdash.stores.failures import FAILED, Failure, containers_of, fetch_failure, fetch_up
from hpcdash.stores.logs import files_of
from hpcdash.stores.snapshots import Kind

T = TypeVar("T")
Row = Mapping[str, Any]
# sstat asks a daemon on each of a job's nodes.
USAGE_EVERY_SECONDS = 60.0
# How often the head of a launch's log is looked at while not all of its containers are up.
CONTAINERS_EVERY_SECONDS = 15.0
_MOST_RELATED = 200
_MOST_DEPENDENTS = 5000
_KEPT_ANSWERS = 3
_KINDS = (Kind.MINE, Kind.EVERYONE, Kind.HISTORY, Kind.HISTORY_EVERYONE)
# What is told of other jobs.
_OF_OTHERS = ("id", "array_id", "name", "state", "dependency", "_tasks")
# A list of jobs tells these columns of a job as freshly as its details do.
_OF_DETAIL = ("stdout_path", "stderr_path")


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
    event loop, whenever there is more to show.
    """

    def __init__(
        self,
        store: ClusterStore,
        job_id: str,
        changed: Callable[[], None] = lambda: None,
        *,
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
        self.errors: dict[Part, HpcdashError] = {}
        self.asking: set[Part] = set()
        self.taken_at: float | None = None
        self._changed = changed
        self._debug = debug
        self._usage_at: float | None = None
        self._up_at: float | None = None
        # The end that `failure` is of: a job that was put back may fail once more.
        self._failure_of: object = None
        # Lists that were asked for here: when, and whether all living tasks of the array are in it.
        self._asked: list[tuple[float, pa.Table, bool]] = []
        self._ended_tasks: pa.Table | None = None
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
        for _, table, _ in self._tables():
            if (row := _row_with_id(table, self.job_id)) is not None:
                self.row = row
                return

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
        self._changed()
        row = self.row
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
        unknown = _missing_from([table for _, table, _ in self._tables_of_the_store()], wanted)
        if not unknown:
            return
        backend = self.store.backend
        try:
            queued = await self.store.ask(backend.jobs_query(JobScope(job_ids=unknown)))
        except NoSuchJob:
            past = unknown
        else:
            await self._keep(queued.table, is_complete=False)
            past = _missing_from([queued.table], unknown)
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
        await self._keep(past.table.filter(_is_any(past.table, "state", ENDED)), is_complete=False)

    async def _keep(self, table: pa.Table, *, is_complete: bool) -> None:
        self._asked = [*self._asked[-_KEPT_ANSWERS:], (self.store.clock.now(), table, is_complete)]
        await self._look_again()

    # -- what the tables know

    def _tables(self) -> list[tuple[float, pa.Table, bool]]:
        """The newest first; with each whether every living job of this job's owner is in it."""
        tables = list(self._asked)
        if self.detail is not None and self.taken_at is not None:
            tables.append((self.taken_at, self.detail.job, False))
        tables += self._tables_of_the_store()
        return sorted(tables, key=lambda known: -known[0])

    def _tables_of_the_store(self) -> list[tuple[float, pa.Table, bool]]:
        tables = []
        owner = self.row["user"] if self.row is not None else None
        for kind in _KINDS:
            snapshot = self.store.snapshots.get(kind)
            if snapshot is None or (table := self.store.table(kind)) is None:
                continue
            is_complete = kind is Kind.EVERYONE or (kind is Kind.MINE and bool(owner) and owner == self.store.user)
            tables.append((snapshot.taken_at, table, is_complete))
        return tables

    async def _look_again(self) -> None:
        async with self._looking:
            tables = self._tables()
            await asyncio.to_thread(self._look, tables)

    def _look(self, tables: list[tuple[float, pa.Table, bool]]) -> None:
        row = self._whole_array(tables)
        self.is_whole_array = row is not None
        if row is None:
            found = (_row_with_id(table, self.job_id) for _, table, _ in tables)
            row = next((one for one in found if one is not None), None)
        if row is None and self.detail is not None:
            row = self.detail.job.to_pylist()[0]
        if row is not None and row["array_id"]:
            self._look_at_array(row["array_id"], tables)
        if row is not None and self.detail is not None and not self.is_whole_array:
            told = self.detail.job.select(_OF_DETAIL).to_pylist()[0]
            row = {**row, **{name: value for name, value in told.items() if value is not None}}
        if row is not None:
            self.row = row
            self._look_at_dependencies(row, tables)

    def _look_at_array(self, array_id: str, tables: list[tuple[float, pa.Table, bool]]) -> None:
        of_it = [(table.filter(_is(table, "array_id", array_id)), is_complete) for _, table, is_complete in tables]
        ended = [rows.filter(_is_any(rows, "state", ENDED)) for rows, _ in of_it]
        if self._ended_tasks is not None:
            ended.append(self._ended_tasks)
        ended = [rows for rows in ended if rows.num_rows]
        living = next((rows for rows, is_complete in of_it if is_complete), None)
        if living is None:
            living = next((rows for rows, _ in of_it if rows.num_rows), None)
        if ended:
            self._ended_tasks = _first_of_each_id(ended)
        shown = [rows for rows in (living, self._ended_tasks) if rows is not None and rows.num_rows]
        self.tasks = task_states(shown) if shown else None

    def _whole_array(self, tables: list[tuple[float, pa.Table, bool]]) -> Row | None:
        """What the rows of an array have in common; None where this is a job or a task."""
        if task_of(self.job_id):
            return None
        of_it = [(table.filter(_is(table, "array_id", self.job_id)), is_complete) for _, table, is_complete in tables]
        if self._ended_tasks is not None:
            of_it.append((self._ended_tasks, False))
        some = [rows for rows, _ in of_it if rows.num_rows]
        if not some:
            return None
        # An answer on the past tells nothing of the tasks that live.
        living = next((rows for rows, is_complete in of_it if is_complete), some[0])
        rows = _first_of_each_id([living, *(rows.filter(_is_any(rows, "state", ENDED)) for rows in some)])
        # One row is no array to fold; it stands for the whole all the same.
        summary: Row = fold(rows).slice(0, 1).to_pylist()[0]
        return {**summary, "id": self.job_id, "array_id": self.job_id, "array_task": None}

    def _look_at_dependencies(self, row: Row, tables: list[tuple[float, pa.Table, bool]]) -> None:
        wanted = parse_dependency(row["dependency"]).job_ids
        related: dict[str, Row] = {}
        dependents: dict[str, Row] = {}
        for _, table, _ in tables:
            if wanted:
                ids = pa.array(wanted, pa.string())
                mask = pc.or_(pc.is_in(table["id"], ids), pc.fill_null(pc.is_in(table["array_id"], ids), False))
                for other in table.filter(mask).select(_OF_OTHERS).to_pylist():
                    related.setdefault(other["id"], other)
            waiting = table.filter(pc.and_(pc.is_valid(table["dependency"]), _is_any(table, "state", WAITING)))
            # Those that name this job come first, should there be more than are looked through.
            number = number_of(str(row["array_id"] or row["id"]))
            names_it = waiting.filter(pc.match_substring(waiting["dependency"], number))
            for some in (names_it, waiting):
                for other in some.slice(0, _MOST_DEPENDENTS).select(_OF_OTHERS).to_pylist():
                    dependents.setdefault(other["id"], other)
        self.related = tuple(related.values())
        self.dependents = tuple(dependents.values())


def _is(table: pa.Table, name: str, value: str) -> pa.Array:
    return pc.fill_null(pc.equal(as_array(table[name]), value), False)


def _is_any(table: pa.Table, name: str, values: frozenset[Any]) -> pa.Array:
    words = pa.array(sorted(str(value) for value in values), pa.string())
    return pc.fill_null(pc.is_in(as_array(table[name]).cast(pa.string()), words), False)


def _row_with_id(table: pa.Table, job_id: str) -> Row | None:
    position = pc.index(table["id"], pa.scalar(job_id, pa.string())).as_py()
    return table.slice(position, 1).to_pylist()[0] if position >= 0 else None


def _missing_from(tables: list[pa.Table], job_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the jobs and arrays that no table has."""
    return tuple(
        job_id
        for job_id in job_ids
        if not any(
            pc.index(table[name], pa.scalar(job_id, pa.string())).as_py() >= 0
            for table in tables
            for name in ("id", "array_id")
        )
    )


def _first_of_each_id(tables: list[pa.Table]) -> pa.Table:
    """Rows of several tables; of those with the same id the first."""
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    ids = as_array(rows["id"])
    return rows.take(pc.index_in(pc.unique(ids), value_set=ids))
