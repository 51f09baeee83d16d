"""Follows one's own jobs from poll to poll: what started, what ended, and how, before anything is
said of an end.

A job that is in the list no more is looked for among those that ended a short while ago, then in
the accounting database; one that is in neither is `gone`, its exit unknown. While the looking up
fails, nothing is said of the job. A job that began and ended between two polls is followed too,
where the scheduler lists what ended.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import Backend, Probe
from hpcdash.backends.queries import JobScope, Query
from hpcdash.domain import schema
from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks
from hpcdash.domain.diff import OLD_STATE, diff_jobs, reason_changes
from hpcdash.domain.job_ids import holds_many, joined_tasks, parse_array_id, with_tasks
from hpcdash.domain.states import ACTIVE, ENDED, WAITING, JobState
from hpcdash.errors import (
    AccountingUnavailable,
    CommandMissing,
    HpcdashError,
    NoSuchJob,
    RateLimited,
)
from hpcdash.services.cluster.clock import Clock

KEEP_SECONDS = 15 * 60
_KEPT_EVENTS = 500
_IDS_A_COMMAND = 100
# A thousand jobs may leave at once: the rest are queried with the next polls.
_HISTORY_COMMANDS_A_POLL = 5
# Of larger arrays tasks that left their record unseen are not searched.
_MAX_TASKS_COMPARED = 100_000
# The accounting database may lag behind: this many polls are given to it before a job is called
# gone.
_TRIES = 3
# While the lookup fails, polls are skipped: none, 1, 3, 7, … and at most this many.
_MAX_POLLS_LEFT_OUT = 20
# If the list of ended jobs is a command of its own, it is queried at most this often, and this much
# further back.
_NEWLY_ENDED_EVERY_SECONDS = 60.0
_NEWLY_ENDED_OVERLAP_SECONDS = 10
LOOKING_UP = "left the queue; fetching its exit status"
EXIT_UNKNOWN = "exit unknown: not found in the queue or in accounting"
NO_HISTORY = "exit unknown: it left the queue, and this cluster keeps no job history"
T = TypeVar("T")
Row = dict[str, Any]
_ARRAY_COLUMNS = ("id", "array_id", "array_task", "_task", "_tasks")


class JobEvent(Struct, frozen=True):
    """Something that happened to a job, seen at an epoch second; `before` and `after` are our
    states, '' unknown.

    `reason` is why it waits now, where that is what changed.
    """

    at: float
    job_id: str
    name: str
    before: str
    after: str
    reason: str = ""


class _Missing(Struct):
    """A job that left the list and whose end is not known yet; `is_queued` when the controller
    knows it as alive.
    """

    row: Row
    tries: int = 0
    is_queued: bool = False

    @property
    def state(self) -> str:
        return self.row["state"] or ""


class TrackedCluster(Protocol):
    """Interface of a store for the tracker: backend, queries, account and clock."""

    @property
    def backend(self) -> Backend: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def probe(self) -> Probe | None: ...
    @property
    def user(self) -> str: ...
    async def poll(self, query: Query[T]) -> T: ...


class JobTracker:
    """The jobs of one store that left the queue, and the events of one's own jobs."""

    def __init__(self, store: TrackedCluster) -> None:
        self.events: deque[JobEvent] = deque(maxlen=_KEPT_EVENTS)
        # Stored separately: they are many, and less important.
        self.reasons: deque[JobEvent] = deque(maxlen=_KEPT_EVENTS)
        self._store = store
        self._ended: dict[str, tuple[float, Row]] = {}
        self._missing: dict[str, _Missing] = {}
        self._failures = 0
        self._polls_to_leave_out = 0
        # How long before the newest list the previous one was queried; 0 at first.
        self.poll_seconds = 0.0
        self._followed_at: float | None = None
        # Ids of jobs that had ended in the last list; None before the first.
        self._recent_ids: pa.Array | None = None
        # Jobs that ended unseen, of which nothing but the id is known yet.
        self._unseen: dict[str, int] = {}
        self._newly_ended_at: float | None = None
        self._newly_ended_ids: frozenset[str] = frozenset()
        self._live: pa.Table = schema.empty(schema.JOBS)
        self._shown: pa.Table = schema.empty(schema.JOBS)
        # The newest list, and the same with what left it behind.
        self._joined: tuple[pa.Table, pa.Table] | None = None

    def with_departed(self, table: pa.Table) -> pa.Table:
        """A table of one's own jobs, and after them those that left it."""
        if self._joined is None or self._joined[0] is not table:
            self._joined = table, _with_departed(table, self._shown)
        return self._joined[1]

    async def forget(self, job_ids: Iterable[str]) -> None:
        """Show these no more: they were deleted."""
        for job_id in job_ids:
            self._ended.pop(job_id, None)
        await self._show()

    async def follow(
        self, before: pa.Table | None, after: pa.Table, recent: pa.Table | None = None
    ) -> tuple[JobEvent, ...]:
        """Compare two lists of one's own jobs: what started, ended or waits again.

        Asks nothing; see look_up.

        `recent` are those that ended a short while ago, where the same answer had them.
        """
        now = self._store.clock.now()
        self.poll_seconds = 0.0 if self._followed_at is None else now - self._followed_at
        self._followed_at = now
        happened: list[JobEvent] = []
        if before is not None:
            diff = await asyncio.to_thread(diff_jobs, before, after)
            for rows in (diff.started, diff.ended, _requeued(diff.changed)):
                for row in rows.select(["id", "name", "state", OLD_STATE]).to_pylist():
                    happened.append(
                        JobEvent(
                            now, row["id"], row["name"] or "", row[OLD_STATE] or "", row["state"]
                        )
                    )
            for row in await asyncio.to_thread(reason_changes, before, after):
                event = JobEvent(
                    now,
                    row["id"],
                    row["name"] or "",
                    row[OLD_STATE] or "",
                    row["state"],
                    row["reason"],
                )
                self.reasons.append(event)
            for row in diff.vanished.select(schema.JOBS.names).to_pylist():
                self._missing.setdefault(row["id"], _Missing(row))
            for row in await asyncio.to_thread(
                _departed_tasks, before, after, self._missing.keys()
            ):
                self._missing.setdefault(row["id"], _Missing(row))
        reported = {event.job_id for event in happened}
        for row in _present(after, [*self._missing, *self._ended]):
            self._missing.pop(row["id"], None)
            _, ended = self._ended.pop(row["id"], (now, None))
            if ended is not None and row["id"] not in reported:
                happened.append(
                    JobEvent(now, row["id"], row["name"] or "", ended["state"], row["state"] or "")
                )
        if recent is not None:
            happened += await self._settle_recent(before, after, recent, now)
        self._live = after
        for job_id, (noted_at, _) in list(self._ended.items()):
            if now - noted_at > KEEP_SECONDS:
                del self._ended[job_id]
        await self._show(after)
        self.events.extend(happened)
        return tuple(happened)

    async def _settle_recent(
        self, earlier: pa.Table | None, after: pa.Table, recent: pa.Table, now: float
    ) -> list[JobEvent]:
        """Take from a list with what ended how the missing jobs did, and those that began and ended
        unseen.
        """
        happened = []
        if self._missing:
            for missing in self._missing.values():
                missing.is_queued = False
            known = pa.concat_tables([after, recent]).unify_dictionaries()
            happened += self._settle(
                await asyncio.to_thread(_index, known, list(self._missing)), now, is_queue=True
            )
        before = self._recent_ids
        self._recent_ids = recent["id"].combine_chunks()

        def unseen() -> list[Row]:
            rows = (
                recent
                if before is None
                else recent.filter(pc.invert(pc.is_in(recent["id"], value_set=before)))
            )
            if before is None or earlier is None:
                # What ended before anybody looked is not shown, but for tasks of an array that goes
                # on, which counts them; what ended meanwhile is no news.
                arrays = pc.unique(pc.drop_null(after["array_id"].combine_chunks()))
                ends = rows["ends_at"].cast(pa.int64())
                is_new = pc.fill_null(pc.greater_equal(ends, pa.scalar(int(now), pa.int64())), True)
                rows = rows.filter(pc.or_(is_new, pc.is_in(rows["array_id"], value_set=arrays)))
            found: list[Row] = rows.to_pylist()
            return found

        # What is left of an array that was cancelled goes by the array's own number.
        arrays = {parse_array_id(job_id) for job_id in self._ended if holds_many(job_id)}
        listed = await asyncio.to_thread(unseen)
        rows = [row for row in listed if row["id"] not in self._ended and row["id"] not in arrays]
        if before is None or earlier is None:
            self._ended.update((row["id"], (now, row)) for row in rows)
            return happened
        waited = _tasks_by_array(earlier, [row["array_id"] for row in rows])
        for row in rows:
            was_waiting = any(
                tasks.contains(row["_task"]) for tasks in waited.get(row["array_id"], ())
            )
            happened.append(self._end(row["id"], row, JobState.PENDING if was_waiting else "", now))
        return happened

    async def look_up(self) -> tuple[JobEvent, ...]:
        """Ask how the jobs that left the list ended, and which ended unseen; returns what is known
        of it now.
        """
        now = self._store.clock.now()
        if self._newly_ended_at is None:
            self._newly_ended_at = now
        is_due = now - self._newly_ended_at >= _NEWLY_ENDED_EVERY_SECONDS
        if not (self._missing or self._unseen or is_due):
            return ()
        if self._polls_to_leave_out > 0:
            self._polls_to_leave_out -= 1
            return ()
        happened: list[JobEvent] = []
        try:
            if self._missing and not self._store.backend.queue.lists_ended:
                await self._query_queue(happened, now)
            if self._missing:
                await self._query_history(happened, now)
            if is_due:
                await self._query_newly_ended(now)
            if self._unseen:
                await self._query_unseen(happened, now)
        except RateLimited:
            pass
        except HpcdashError:
            self._polls_to_leave_out = min(2**self._failures - 1, _MAX_POLLS_LEFT_OUT)
            self._failures = min(self._failures + 1, _MAX_POLLS_LEFT_OUT)
        else:
            self._failures = 0
        await self._show()
        self.events.extend(happened)
        return tuple(happened)

    async def _show(self, table: pa.Table | None = None) -> None:
        """Join what left the list with `table`, or with the newest list, in a thread: lists may be
        long.
        """
        rows = [row for _, row in self._ended.values()]
        rows += [
            {**missing.row, "state": str(JobState.UNKNOWN), "reason": LOOKING_UP}
            for missing in self._missing.values()
        ]
        if table is None and self._joined is not None:
            table = self._joined[0]

        def join() -> tuple[pa.Table, tuple[pa.Table, pa.Table] | None]:
            departed = pa.Table.from_pylist(rows, schema=schema.JOBS)
            return departed, None if table is None else (table, _with_departed(table, departed))

        self._shown, self._joined = await asyncio.to_thread(join)

    async def _query_queue(self, happened: list[JobEvent], now: float) -> None:
        """Settle what the controller still knows: jobs that ended minutes ago, and those that are
        in the queue.
        """
        store = self._store
        ids = tuple(self._missing)
        scope = JobScope(store.user, ended=True, job_ids=ids if len(ids) <= _IDS_A_COMMAND else ())
        try:
            recent = (await store.poll(store.backend.queue.jobs(scope))).table
        except NoSuchJob:
            recent = schema.empty(schema.JOBS)
        for missing in self._missing.values():
            missing.is_queued = False
        happened += self._settle(
            await asyncio.to_thread(_index, recent, list(self._missing)), now, is_queue=True
        )

    async def _query_history(self, happened: list[JobEvent], now: float) -> None:
        """Settle what the accounting database knows; what it does not know after some polls is
        gone.
        """
        store = self._store
        ids = [job_id for job_id, missing in self._missing.items() if not missing.is_queued]
        if store.probe is not None and store.probe.has_accounting is False:
            happened += [self._gone(job_id, now) for job_id in ids]
            return
        for start in range(0, len(ids), _IDS_A_COMMAND)[:_HISTORY_COMMANDS_A_POLL]:
            some = ids[start : start + _IDS_A_COMMAND]
            try:
                past = await store.poll(store.backend.history.jobs(None, 0, some))
            except (CommandMissing, NoSuchJob):
                pass
            except AccountingUnavailable:
                if store.probe is not None and store.probe.has_accounting:
                    raise
            else:
                happened += self._settle(
                    await asyncio.to_thread(_index, past.table, some), now, is_queue=False
                )
            for job_id in some:
                missing = self._missing.get(job_id)
                if missing is not None:
                    missing.tries += 1
                    if missing.tries >= self._most_tries:
                        happened.append(self._gone(job_id, now))

    @property
    def _most_tries(self) -> int:
        """Number of polls without a job after which it is gone.

        A scheduler that stores ended jobs has no lag.
        """
        return 1 if self._store.backend.history.keeps_ended else _TRIES

    async def _query_newly_ended(self, now: float) -> None:
        """Note the ids of jobs that ended since the last such list and were in none of ours."""
        store = self._store
        assert self._newly_ended_at is not None
        seconds = math.ceil(now - self._newly_ended_at) + _NEWLY_ENDED_OVERLAP_SECONDS
        query = store.backend.history.newly_ended(store.user, seconds)
        if query is None or store.probe is None or not store.probe.has_accounting:
            self._newly_ended_at = now
            return
        ids = await store.poll(query)
        self._newly_ended_at = now
        listed = frozenset(
            self._live.filter(pc.is_in(self._live["id"], pa.array(ids, pa.string())))[
                "id"
            ].to_pylist()
        )
        known = {*self._newly_ended_ids, *self._ended, *self._missing, *listed}
        self._newly_ended_ids = frozenset(ids)
        self._unseen.update((job_id, 0) for job_id in ids if job_id not in known)

    async def _query_unseen(self, happened: list[JobEvent], now: float) -> None:
        """Settle some of the jobs that ended unseen; the rest are asked for with the next polls."""
        store = self._store
        some = list(self._unseen)[:_IDS_A_COMMAND]
        try:
            past = (await store.poll(store.backend.history.jobs(None, 0, some))).table
        except NoSuchJob:
            past = schema.empty(schema.JOBS)
        rows = (await asyncio.to_thread(_index, past, some)).by_id
        for job_id in some:
            row = rows.get(job_id)
            self._unseen[job_id] += 1
            if row is None and self._unseen[job_id] < self._most_tries:
                continue
            del self._unseen[job_id]
            if row is not None and row["state"] in ENDED and job_id not in self._ended:
                happened.append(self._end(job_id, row, "", now))

    def _settle(self, known: _Index, now: float, *, is_queue: bool) -> list[JobEvent]:
        """Take from a list what it says of the missing jobs."""
        happened = []
        for job_id, missing in list(self._missing.items()):
            row = known.by_id.get(job_id)
            if row is not None:
                if row["state"] in ENDED:
                    happened.append(self._end(job_id, row, missing.state, now))
                elif is_queue:
                    missing.is_queued = row["state"] in ACTIVE or row["state"] in WAITING
                continue
            if holds_many(job_id):
                rows = known.by_array.get(parse_array_id(job_id), [])
                happened += self._settle_record(missing, rows, now, is_queue=is_queue)
        return happened

    def _settle_record(
        self, missing: _Missing, rows: list[Row], now: float, *, is_queue: bool
    ) -> list[JobEvent]:
        """The record of an array's pending tasks is settled when all its tasks are known, each by a
        row of its own.

        In the queue they may be alive: the list of one's own jobs shows them. Alive in history may
        be a moment ago.
        """
        job_id = missing.row["id"]
        requested = _tasks(missing.row["array_task"])
        held = [row for row in rows if _holds(row, requested)]
        # What is left of an array that was cancelled goes by the array's own number.
        remainder = next((row for row in held if row["array_task"] is None), None)
        known_tasks = sum(row["_tasks"] or 1 for row in held)
        is_whole = remainder is not None or requested is None or known_tasks >= requested.count
        if (
            not held
            or not is_whole
            or (not is_queue and any(row["state"] not in ENDED for row in held))
        ):
            return []
        happened = []
        del self._missing[job_id]
        for row in held:
            if row["state"] in ENDED and row["id"] not in self._ended:
                if row is remainder:
                    row = {**row, **{name: missing.row[name] for name in _ARRAY_COLUMNS}}
                happened.append(self._end(row["id"], row, missing.state, now))
        return happened

    def _gone(self, job_id: str, now: float) -> JobEvent:
        missing = self._missing[job_id]
        probe = self._store.probe
        forgotten = self._store.backend.history.forgotten
        why = f"exit unknown: {forgotten}" if forgotten else EXIT_UNKNOWN
        if probe is not None and probe.has_accounting is False:
            why = NO_HISTORY
        row = {**missing.row, "state": str(JobState.GONE), "reason": why}
        return self._end(job_id, row, missing.state, now)

    def _end(self, job_id: str, row: Row, before: str, now: float) -> JobEvent:
        self._missing.pop(job_id, None)
        self._ended[job_id] = (now, row)
        return JobEvent(now, job_id, row["name"] or "", before, str(row["state"]))


class _Index(Struct, frozen=True):
    """Rows by id, and rows by array; a job that is no array task goes by its id in both."""

    by_id: dict[str, Row]
    by_array: dict[str, list[Row]]


def _index(known: pa.Table, requested: Iterable[str]) -> _Index:
    """The rows of the wanted jobs, and those of wanted records' arrays."""
    ids = list(requested)
    arrays = sorted({parse_array_id(job_id) for job_id in ids if holds_many(job_id)})
    mask = pc.is_in(known["id"], pa.array([*ids, *arrays], pa.string()))
    if arrays:
        mask = pc.or_(mask, pc.is_in(known["array_id"], pa.array(arrays, pa.string())))
    by_id: dict[str, Row] = {}
    by_array: dict[str, list[Row]] = {}
    for row in known.filter(mask).to_pylist():
        by_id.setdefault(row["id"], row)
        by_array.setdefault(row["array_id"] or row["id"], []).append(row)
    return _Index(by_id, by_array)


def _with_departed(table: pa.Table, departed: pa.Table) -> pa.Table:
    if not departed.num_rows:
        return table
    left = departed.filter(pc.invert(pc.is_in(departed["id"], table["id"].combine_chunks())))
    return pa.concat_tables([table, left]).unify_dictionaries().combine_chunks()


def _requeued(changed: pa.Table) -> pa.Table:
    """Filter the rows that were active and wait now."""
    was_active = pc.is_in(
        changed[OLD_STATE].cast(pa.string()), pa.array(sorted(ACTIVE), pa.string())
    )
    waits = pc.is_in(changed["state"].cast(pa.string()), pa.array(sorted(WAITING), pa.string()))
    return changed.filter(pc.and_(was_active, waits))


def _tasks_by_array(
    table: pa.Table, array_ids: Collection[str | None]
) -> dict[str, list[ArrayTasks]]:
    """Return the tasks in the pending records of some arrays."""
    found: dict[str, list[ArrayTasks]] = {}
    requested = pa.array({array_id for array_id in array_ids if array_id is not None}, pa.string())
    if len(requested):
        is_requested = pc.fill_null(pc.is_in(table["array_id"], value_set=requested), False)
        is_record = pc.is_in(
            table["state"].cast(pa.string()), value_set=pa.array(sorted(WAITING), pa.string())
        )
        for row in (
            table.filter(pc.and_(is_requested, is_record))
            .select(["array_id", "array_task"])
            .to_pylist()
        ):
            if (tasks := _tasks(row["array_task"])) is not None:
                found.setdefault(row["array_id"], []).append(tasks)
    return found


def _departed_tasks(before: pa.Table, after: pa.Table, missing: Collection[str]) -> list[Row]:
    """Rows for the tasks of arrays' pending records that are in no row now; not of records that are
    missing whole.
    """
    is_record = pc.fill_null(pc.greater(before["_tasks"], 1), False)
    gone = pc.invert(pc.is_in(before["id"], value_set=after["id"].combine_chunks()))
    records = before.filter(pc.and_(is_record, gone))
    if not records.num_rows:
        return []
    arrays = pc.unique(records["array_id"].combine_chunks())
    held: dict[str, list[ArrayTasks | None]] = {}
    listed = after.filter(pc.fill_null(pc.is_in(after["array_id"], value_set=arrays), False))
    for row in listed.select(["array_id", "array_task"]).to_pylist():
        held.setdefault(row["array_id"], []).append(_tasks(row["array_task"]))
    departed = []
    for row in records.to_pylist():
        requested = _tasks(row["array_task"])
        others = held.get(row["array_id"], [])
        if (
            row["id"] in missing
            or requested is None
            or None in others
            or requested.count > _MAX_TASKS_COMPARED
        ):
            continue
        left = set(requested).difference(*(tasks for tasks in others if tasks is not None))
        if (tasks := joined_tasks(left)) is not None:
            ids = {"id": with_tasks(row["array_id"], tasks), "array_task": str(tasks)}
            departed.append({**row, **ids, "_task": tasks.first, "_tasks": tasks.count})
    return departed


def _present(table: pa.Table, ids: Sequence[str]) -> list[Row]:
    if not ids:
        return []
    found = table.filter(pc.is_in(table["id"], pa.array(ids, pa.string())))
    rows: list[Row] = found.select(["id", "name", "state"]).to_pylist()
    return rows


def _tasks(text: str | None) -> ArrayTasks | None:
    """The tasks of a row; None when they are not known in full."""
    try:
        tasks = parse_tasks(text or "")
    except ValueError:
        return None
    return None if tasks.is_incomplete else tasks


def _holds(row: Row, requested: ArrayTasks | None) -> bool:
    held = _tasks(row["array_task"])
    return held is None or requested is None or held.overlaps(requested)
