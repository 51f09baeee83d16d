"""Tracks the user's jobs from poll to poll, and looks up how jobs that left the queue ended.

A job that left the list is searched among the recently finished jobs, then in the accounting
database. If it is in neither, it is `gone`, with an unknown exit. Nothing is reported while the
lookup fails. Jobs that began and ended between two polls are found if the scheduler lists finished
jobs.
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
from hpcdash.domain.array_tasks import ArrayTasks, joined_tasks, read_all_tasks
from hpcdash.domain.columns import has_state
from hpcdash.domain.diff import OLD_STATE, diff_jobs, reason_changes
from hpcdash.domain.job_ids import holds_many, parse_array_id, with_tasks
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
_MAX_EVENTS = 500
_IDS_A_COMMAND = 100
# A thousand jobs may leave at once: the rest are queried with the next polls.
_HISTORY_COMMANDS_A_POLL = 5
# Larger arrays are not searched for tasks that left their record.
_MAX_TASKS_COMPARED = 100_000
# The accounting database may lag: a job is gone after this many polls without it.
_MAX_TRIES = 3
# While the lookup fails, polls are skipped: none, 1, 3, 7, … and at most this many.
_MAX_SKIPPED_POLLS = 20
# Interval of a separate command that lists finished jobs, and the time before it that it covers as
# well.
_NEWLY_ENDED_EVERY_SECONDS = 60.0
_NEWLY_ENDED_OVERLAP_SECONDS = 10
LOOKING_UP = "left the queue; fetching the exit status"
EXIT_UNKNOWN = "exit unknown: not found in the queue or in accounting"
NO_HISTORY = "exit unknown: the job left the queue, and this cluster keeps no job history"
T = TypeVar("T")
Row = dict[str, Any]
_ARRAY_COLUMNS = ("id", "array_id", "array_task", "_task", "_tasks")


class JobEvent(Struct, frozen=True):
    """Change of a job's state at an epoch second; '' is an unknown state.

    `reason` is the new reason to wait, if that changed.
    """

    at: float
    job_id: str
    name: str
    before: str
    after: str
    reason: str = ""


class _Missing(Struct):
    """Job that left the list; its end is unknown. `is_queued`: the controller still has it."""

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
    """The user's jobs that left the queue of one store, and the events of the user's jobs."""

    def __init__(self, store: TrackedCluster) -> None:
        self.events: deque[JobEvent] = deque(maxlen=_MAX_EVENTS)
        # Stored separately: they are many, and less important.
        self.reasons: deque[JobEvent] = deque(maxlen=_MAX_EVENTS)
        self._store = store
        self._ended: dict[str, tuple[float, Row]] = {}
        self._missing: dict[str, _Missing] = {}
        self._failures = 0
        self._polls_to_skip = 0
        # Time between the last two lists; 0 at first.
        self.poll_seconds = 0.0
        self._followed_at: float | None = None
        # IDs of the recently finished jobs in the last list; None before the first.
        self._recent_ids: pa.Array | None = None
        # IDs of jobs that began and ended between two polls, with the tries to look them up.
        self._unseen: dict[str, int] = {}
        self._newly_ended_at: float | None = None
        self._newly_ended_ids: frozenset[str] = frozenset()
        self._live: pa.Table = schema.empty(schema.JOBS)
        self._shown: pa.Table = schema.empty(schema.JOBS)
        # The newest list, and the same list with the jobs that left it.
        self._joined: tuple[pa.Table, pa.Table] | None = None

    def with_departed(self, table: pa.Table) -> pa.Table:
        """Add the jobs that left a table of the user's jobs at its end."""
        if self._joined is None or self._joined[0] is not table:
            joined = _with_departed(table, self._shown)
            self._joined = (table, joined)
        return self._joined[1]

    async def forget(self, job_ids: Iterable[str]) -> None:
        """Remove deleted jobs from the list."""
        for job_id in job_ids:
            self._ended.pop(job_id, None)
        await self._show()

    async def follow(
        self, before: pa.Table | None, after: pa.Table, recent: pa.Table | None = None
    ) -> tuple[JobEvent, ...]:
        """Compare two lists of the user's jobs: which started, ended or were requeued.

        Queries nothing; see look_up. `recent` are recently finished jobs in the same answer.
        """
        now = self._store.clock.now()
        self.poll_seconds = 0.0 if self._followed_at is None else now - self._followed_at
        self._followed_at = now
        events: list[JobEvent] = []
        if before is not None:
            events += await self._compare(before, after, now)
        reported = {event.job_id for event in events}
        for row in _present(after, [*self._missing, *self._ended]):
            job_id = row["id"]
            self._missing.pop(job_id, None)
            _, ended = self._ended.pop(job_id, (now, None))
            if ended is not None and job_id not in reported:
                name = row["name"] or ""
                events.append(JobEvent(now, job_id, name, ended["state"], row["state"] or ""))
        if recent is not None:
            events += await self._settle_recent(before, after, recent, now)
        self._live = after
        for job_id, (ended_at, _) in list(self._ended.items()):
            if now - ended_at > KEEP_SECONDS:
                del self._ended[job_id]
        await self._show(after)
        self.events.extend(events)
        return tuple(events)

    async def _compare(self, before: pa.Table, after: pa.Table, now: float) -> list[JobEvent]:
        """Note the jobs that left the list and new reasons; return the other events."""
        diff = await asyncio.to_thread(diff_jobs, before, after)
        events = []
        for rows in (diff.started, diff.ended, _requeued(diff.changed)):
            for row in rows.select(["id", "name", "state", OLD_STATE]).to_pylist():
                name = row["name"] or ""
                events.append(JobEvent(now, row["id"], name, row[OLD_STATE] or "", row["state"]))
        for row in await asyncio.to_thread(reason_changes, before, after):
            event = JobEvent(
                at=now,
                job_id=row["id"],
                name=row["name"] or "",
                before=row[OLD_STATE] or "",
                after=row["state"],
                reason=row["reason"],
            )
            self.reasons.append(event)
        for row in diff.vanished.select(schema.JOBS.names).to_pylist():
            self._missing.setdefault(row["id"], _Missing(row))
        departed = await asyncio.to_thread(_departed_tasks, before, after, self._missing.keys())
        for row in departed:
            self._missing.setdefault(row["id"], _Missing(row))
        return events

    async def _settle_recent(
        self, before: pa.Table | None, after: pa.Table, recent: pa.Table, now: float
    ) -> list[JobEvent]:
        """Settle missing jobs, and jobs that began and ended between polls, with `recent` jobs."""
        events = []
        if self._missing:
            for missing in self._missing.values():
                missing.is_queued = False
            known = pa.concat_tables([after, recent]).unify_dictionaries()
            index = await asyncio.to_thread(_index, known, list(self._missing))
            events += self._settle(index, now, is_queue=True)
        known_ids = self._recent_ids
        self._recent_ids = recent["id"].combine_chunks()
        # The rest of a cancelled array has the array's own number.
        arrays = {parse_array_id(job_id) for job_id in self._ended if holds_many(job_id)}
        if known_ids is None or before is None:
            # Jobs that had ended before are not shown, except the tasks of unfinished arrays.
            listed = await asyncio.to_thread(_ended_now, recent, known_ids, after, now)
        else:
            listed = await asyncio.to_thread(_new_rows, recent, known_ids)
        rows = [row for row in listed if row["id"] not in self._ended and row["id"] not in arrays]
        if known_ids is None or before is None:
            self._ended.update((row["id"], (now, row)) for row in rows)
            return events
        waited = _tasks_by_array(before, [row["array_id"] for row in rows])
        for row in rows:
            records = waited.get(row["array_id"], ())
            was_waiting = any(tasks.contains(row["_task"]) for tasks in records)
            state = JobState.PENDING if was_waiting else ""
            events.append(self._end(row["id"], row, state, now))
        return events

    async def look_up(self) -> tuple[JobEvent, ...]:
        """Query how the jobs that left the list ended, and which jobs ended between two polls."""
        now = self._store.clock.now()
        if self._newly_ended_at is None:
            self._newly_ended_at = now
        is_due = now - self._newly_ended_at >= _NEWLY_ENDED_EVERY_SECONDS
        if not (self._missing or self._unseen or is_due):
            return ()
        if self._polls_to_skip > 0:
            self._polls_to_skip -= 1
            return ()
        events: list[JobEvent] = []
        try:
            if self._missing and not self._store.backend.queue.lists_ended:
                await self._query_queue(events, now)
            if self._missing:
                await self._query_history(events, now)
            if is_due:
                await self._query_newly_ended(now)
            if self._unseen:
                await self._query_unseen(events, now)
        except RateLimited:
            pass
        except HpcdashError:
            self._polls_to_skip = min(2**self._failures - 1, _MAX_SKIPPED_POLLS)
            self._failures = min(self._failures + 1, _MAX_SKIPPED_POLLS)
        else:
            self._failures = 0
        await self._show()
        self.events.extend(events)
        return tuple(events)

    async def _show(self, table: pa.Table | None = None) -> None:
        """Join the jobs that left the list with `table`, or with the newest list, in a thread."""
        rows = [row for _, row in self._ended.values()]
        for missing in self._missing.values():
            rows.append({**missing.row, "state": str(JobState.UNKNOWN), "reason": LOOKING_UP})
        if table is None and self._joined is not None:
            table = self._joined[0]

        def join() -> tuple[pa.Table, tuple[pa.Table, pa.Table] | None]:
            departed = pa.Table.from_pylist(rows, schema=schema.JOBS)
            if table is None:
                return departed, None
            return departed, (table, _with_departed(table, departed))

        self._shown, self._joined = await asyncio.to_thread(join)

    async def _query_queue(self, events: list[JobEvent], now: float) -> None:
        """Settle jobs that the controller still has: in the queue, or ended minutes ago."""
        store = self._store
        ids = tuple(self._missing)
        scope = JobScope(store.user, ended=True, job_ids=ids if len(ids) <= _IDS_A_COMMAND else ())
        try:
            recent = (await store.poll(store.backend.queue.jobs(scope))).table
        except NoSuchJob:
            recent = schema.empty(schema.JOBS)
        for missing in self._missing.values():
            missing.is_queued = False
        index = await asyncio.to_thread(_index, recent, list(self._missing))
        events += self._settle(index, now, is_queue=True)

    async def _query_history(self, events: list[JobEvent], now: float) -> None:
        """Settle jobs in the accounting database; after some polls without a job it is gone."""
        store = self._store
        ids = [job_id for job_id, missing in self._missing.items() if not missing.is_queued]
        if store.probe is not None and store.probe.has_accounting is False:
            events += [self._gone(job_id, now) for job_id in ids]
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
                index = await asyncio.to_thread(_index, past.table, some)
                events += self._settle(index, now, is_queue=False)
            for job_id in some:
                missing = self._missing.get(job_id)
                if missing is not None:
                    missing.tries += 1
                    if missing.tries >= self._max_tries:
                        events.append(self._gone(job_id, now))

    @property
    def _max_tries(self) -> int:
        """Number of polls without a job after which it is gone.

        A scheduler that stores ended jobs has no lag.
        """
        return 1 if self._store.backend.history.keeps_ended else _MAX_TRIES

    async def _query_newly_ended(self, now: float) -> None:
        """Note the IDs of jobs that ended since the last query and were never listed."""
        store = self._store
        assert self._newly_ended_at is not None
        seconds = math.ceil(now - self._newly_ended_at) + _NEWLY_ENDED_OVERLAP_SECONDS
        query = store.backend.history.newly_ended(store.user, seconds)
        if query is None or store.probe is None or not store.probe.has_accounting:
            self._newly_ended_at = now
            return
        ids = await store.poll(query)
        self._newly_ended_at = now
        listed = [row["id"] for row in _present(self._live, ids)]
        known = {*self._newly_ended_ids, *self._ended, *self._missing, *listed}
        self._newly_ended_ids = frozenset(ids)
        self._unseen.update((job_id, 0) for job_id in ids if job_id not in known)

    async def _query_unseen(self, events: list[JobEvent], now: float) -> None:
        """Settle some jobs that were never listed; the rest are queried with the next polls."""
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
            if row is None and self._unseen[job_id] < self._max_tries:
                continue
            del self._unseen[job_id]
            if row is not None and row["state"] in ENDED and job_id not in self._ended:
                events.append(self._end(job_id, row, "", now))

    def _settle(self, known: _Index, now: float, *, is_queue: bool) -> list[JobEvent]:
        """Settle the missing jobs that a list has."""
        events = []
        for job_id, missing in list(self._missing.items()):
            row = known.by_id.get(job_id)
            if row is not None:
                if row["state"] in ENDED:
                    events.append(self._end(job_id, row, missing.state, now))
                elif is_queue:
                    missing.is_queued = row["state"] in ACTIVE or row["state"] in WAITING
            elif holds_many(job_id):
                rows = known.by_array.get(parse_array_id(job_id), [])
                events += self._settle_record(missing, rows, now, is_queue=is_queue)
        return events

    def _settle_record(
        self, missing: _Missing, rows: list[Row], now: float, *, is_queue: bool
    ) -> list[JobEvent]:
        """Settle a record of pending array tasks once all of its tasks have a row of their own.

        Unfinished tasks must be in the queue: the history may be late.
        """
        requested = read_all_tasks(missing.row["array_task"])
        held = [row for row in rows if _holds(row, requested)]
        # The rest of a cancelled array has the array's own number.
        remainder = next((row for row in held if row["array_task"] is None), None)
        known_tasks = sum(row["_tasks"] or 1 for row in held)
        is_whole = remainder is not None or requested is None or known_tasks >= requested.count
        has_ended = all(row["state"] in ENDED for row in held)
        if not held or not is_whole or not (is_queue or has_ended):
            return []
        events = []
        del self._missing[missing.row["id"]]
        for row in held:
            if row["state"] in ENDED and row["id"] not in self._ended:
                if row is remainder:
                    row = {**row, **{name: missing.row[name] for name in _ARRAY_COLUMNS}}
                events.append(self._end(row["id"], row, missing.state, now))
        return events

    def _gone(self, job_id: str, now: float) -> JobEvent:
        missing = self._missing[job_id]
        probe = self._store.probe
        if probe is not None and probe.has_accounting is False:
            why = NO_HISTORY
        elif forgotten := self._store.backend.history.forgotten:
            why = f"exit unknown: {forgotten}"
        else:
            why = EXIT_UNKNOWN
        row = {**missing.row, "state": str(JobState.GONE), "reason": why}
        return self._end(job_id, row, missing.state, now)

    def _end(self, job_id: str, row: Row, before: str, now: float) -> JobEvent:
        self._missing.pop(job_id, None)
        self._ended[job_id] = (now, row)
        return JobEvent(now, job_id, row["name"] or "", before, str(row["state"]))


class _Index(Struct, frozen=True):
    """Rows by job ID, and by array ID; a job without an array has its own ID in both."""

    by_id: dict[str, Row]
    by_array: dict[str, list[Row]]


def _index(known: pa.Table, requested: Iterable[str]) -> _Index:
    """Index the rows of the requested jobs, and of the arrays that requested records belong to."""
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


def _new_rows(recent: pa.Table, known_ids: pa.Array | None) -> list[Row]:
    """Return the rows with IDs that are not known."""
    if known_ids is not None:
        recent = recent.filter(pc.invert(pc.is_in(recent["id"], value_set=known_ids)))
    rows: list[Row] = recent.to_pylist()
    return rows


def _ended_now(
    recent: pa.Table, known_ids: pa.Array | None, after: pa.Table, now: float
) -> list[Row]:
    """Return new rows of jobs that end from now on, or whose array is in the list."""
    arrays = pc.unique(pc.drop_null(after["array_id"].combine_chunks()))
    ends = recent["ends_at"].cast(pa.int64())
    is_new = pc.fill_null(pc.greater_equal(ends, pa.scalar(int(now), pa.int64())), True)
    is_task = pc.is_in(recent["array_id"], value_set=arrays)
    return _new_rows(recent.filter(pc.or_(is_new, is_task)), known_ids)


def _requeued(changed: pa.Table) -> pa.Table:
    """Filter the jobs that were active and wait now."""
    was_active = pc.is_in(
        changed[OLD_STATE].cast(pa.string()), pa.array(sorted(ACTIVE), pa.string())
    )
    return changed.filter(pc.and_(was_active, has_state(changed, WAITING)))


def _tasks_by_array(
    table: pa.Table, array_ids: Collection[str | None]
) -> dict[str, list[ArrayTasks]]:
    """Return the tasks in the pending records of some arrays."""
    found: dict[str, list[ArrayTasks]] = {}
    requested = pa.array({array_id for array_id in array_ids if array_id is not None}, pa.string())
    if not len(requested):
        return found
    is_requested = pc.fill_null(pc.is_in(table["array_id"], value_set=requested), False)
    records = table.filter(pc.and_(is_requested, has_state(table, WAITING)))
    for row in records.select(["array_id", "array_task"]).to_pylist():
        if (tasks := read_all_tasks(row["array_task"])) is not None:
            found.setdefault(row["array_id"], []).append(tasks)
    return found


def _departed_tasks(before: pa.Table, after: pa.Table, missing: Collection[str]) -> list[Row]:
    """Return rows for the tasks that left pending records of arrays and have no row.

    Records that are `missing` as a whole are skipped.
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
        held.setdefault(row["array_id"], []).append(read_all_tasks(row["array_task"]))
    departed = []
    for row in records.to_pylist():
        requested = read_all_tasks(row["array_task"])
        others = held.get(row["array_id"], [])
        if row["id"] in missing or requested is None or requested.count > _MAX_TASKS_COMPARED:
            continue
        known = [tasks for tasks in others if tasks is not None]
        if len(known) < len(others):
            continue
        left = set(requested).difference(*known)
        if (tasks := joined_tasks(left)) is not None:
            ids = {"id": with_tasks(row["array_id"], tasks), "array_task": str(tasks)}
            departed.append({**row, **ids, "_task": tasks.first, "_tasks": tasks.count})
    return departed


def _present(table: pa.Table, ids: Sequence[str]) -> list[Row]:
    found = table.filter(pc.is_in(table["id"], pa.array(ids, pa.string())))
    rows: list[Row] = found.select(["id", "name", "state"]).to_pylist()
    return rows


def _holds(row: Row, requested: ArrayTasks | None) -> bool:
    held = read_all_tasks(row["array_task"])
    return held is None or requested is None or held.overlaps(requested)
