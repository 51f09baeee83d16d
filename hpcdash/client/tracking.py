"""States of the jobs that a program waits for: one poll of the cluster serves all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.job_ids import parse_array_id, parse_job_key, parse_job_number
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.tables import Kind
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession

Row = Mapping[str, Any]
_COLUMNS = ("id", "array_id", "array_task", "name", "state", "native_state", "reason", "exit_code")
# Lookups before a job counts as gone: a history reports ends late.
_MAX_LOOKUPS = 4
# Pauses between polls after a submission or a cancellation, as jobs may end before the next one.
_HURRIED_PAUSES = (1.0, 2.0, 4.0)
_HURRY_INTERVAL_SECONDS = 30.0


class TrackedJob:
    """A job, or an array with the tasks `indices`; `rows` are the latest by index (None: a job).

    `written` are the tasks whose result was seen, `ended` those that the scheduler reports ended.
    """

    def __init__(self, job_id: str, indices: Sequence[int] | None) -> None:
        self.job_id = job_id
        self.indices: tuple[int | None, ...] = (None,) if indices is None else tuple(indices)
        self.rows: dict[int | None, Row] = {}
        self.ended: set[int | None] = set()
        self.written: set[int | None] = set()
        self.lookups = 0
        self._selected = frozenset(self.indices)

    @property
    def key(self) -> str:
        return _key(self.job_id)

    @property
    def is_over(self) -> bool:
        return len(self.ended) == len(self._selected)

    def state(self, index: int | None) -> str:
        row = self.rows.get(index)
        return str(row["state"]) if row is not None else str(JobState.UNKNOWN)

    def update(self, rows: Iterable[Row]) -> set[int | None]:
        """Update the states from rows; return the tasks that these have. An end is final."""
        seen: set[int | None] = set()
        for row in rows:
            for index in self._row_indices(row):
                seen.add(index)
                if index not in self.ended:
                    self.rows[index] = row
                    if row["state"] in ENDED:
                        self.ended.add(index)
        return seen

    def _row_indices(self, row: Row) -> Iterable[int | None]:
        if self._selected == {None}:
            return (None,) if row["array_task"] is None else ()
        if row["array_task"] is None:
            # The remaining tasks of a cancelled array have the array's own row.
            return self._selected - self.ended - self.rows.keys() if row["state"] in ENDED else ()
        try:
            tasks = parse_tasks(str(row["array_task"]))
        except ValueError:
            return ()
        return {index for index in self._selected if index is not None and tasks.contains(index)}

    def forget(self, indices: Iterable[int | None]) -> None:
        """Drop the rows of unfinished tasks, as they are older than an action."""
        for index in set(indices) - self.ended:
            self.rows.pop(index, None)

    def lose(self, indices: Iterable[int | None]) -> None:
        """Record that the ends of some tasks are unknown."""
        for index in indices:
            row = dict(self.rows.get(index) or dict.fromkeys(_COLUMNS))
            row |= {"state": str(JobState.GONE), "reason": "no longer listed"}
            self.rows[index] = row
            self.ended.add(index)


class JobStates:
    """States of jobs, from the cluster's poll of your own jobs, which runs while a caller waits."""

    def __init__(self, session: ClusterSession) -> None:
        self._session = session
        self._store = session.store
        self._jobs: dict[str, TrackedJob] = {}
        self.news = asyncio.Event()
        self._waiting = 0
        self._reading: asyncio.Task[None] | None = None
        self._is_stale = False
        self._hurried_at = float("-inf")
        self._hurrying: asyncio.Task[None] | None = None
        self._stop_listening = self._store.listen(self._notify)

    def stop(self) -> None:
        """Stop following jobs."""
        self._stop_listening()
        if self._hurrying is not None:
            self._hurrying.cancel()

    def track(self, job: TrackedJob) -> None:
        self._jobs[f"{job.job_id} {id(job)}"] = job

    def submitted(self) -> None:
        """Poll soon after a submission, unless it is one of many."""
        now = asyncio.get_running_loop().time()
        if now - self._hurried_at >= _HURRY_INTERVAL_SECONDS:
            self._hurried_at = now
            self.hurry()

    def hurry(self) -> None:
        """Poll soon, and a few times more."""

        async def poll() -> None:
            for pause in _HURRIED_PAUSES:
                await asyncio.sleep(pause)
                if self._waiting:
                    self._session.poller.poll_now()

        if self._hurrying is not None:
            self._hurrying.cancel()
        self._hurrying = asyncio.create_task(poll(), name=f"next polls of {self._store.name}")

    @contextlib.asynccontextmanager
    async def polling(self) -> AsyncIterator[None]:
        """Poll jobs in this context, at the interval of the configuration."""
        poller = self._session.poller
        if self._waiting == 0:
            poller.start()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                await poller.stop()

    async def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until `is_done`, which is called after each poll.

        Raises errors that a person must resolve.
        """
        async with self.polling():
            while not is_done():
                news = self.news
                if (error := self._session.poller.waiting_for_person) is not None:
                    raise error
                await news.wait()

    async def poll_now(self) -> None:
        """Poll once, for a caller that does not wait."""
        await self._store.open()
        await self._store.fetch(Kind.MINE)
        await self.read()

    def _notify(self, changed: Changed) -> None:
        if changed.kind is None:
            self.notify_waiters()
        elif changed.kind is Kind.MINE and Kind.MINE not in self._store.errors:
            self._is_stale = True
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(
                    self._read_on(), name=f"states of {self._store.name}"
                )

    def notify_waiters(self) -> None:
        """Wake all waiters for a check."""
        news = self.news
        self.news = asyncio.Event()
        news.set()

    async def _read_on(self) -> None:
        while self._is_stale:
            self._is_stale = False
            # The next poll retries.
            with contextlib.suppress(HpcdashError):
                await self.read()

    async def read(self) -> None:
        """Update unfinished jobs from the list of jobs, and look up those that it does not have."""
        unfinished = [job for job in self._jobs.values() if not job.is_over]
        table = self._store.table(Kind.MINE)
        if not unfinished or table is None:
            self.notify_waiters()
            return
        try:
            missing = await asyncio.to_thread(_update_jobs, table, unfinished)
            if missing:
                await self._look_up(missing)
        finally:
            self._jobs = {key: job for key, job in self._jobs.items() if not job.is_over}
            self.notify_waiters()

    async def _look_up(self, missing: dict[TrackedJob, set[int | None]]) -> None:
        """Look up jobs that finished before the list was fetched, or are another user's."""
        ids = tuple(dict.fromkeys(job.job_id for job in missing))
        rows = _by_key(await self._session.actions.fetch_rows(ids))
        for job in missing:
            missing[job] -= job.update(rows.get(job.key, ()))
        missing = {job: indices for job, indices in missing.items() if indices}
        if not missing:
            return
        if self._store.probe is None or self._store.probe.has_accounting is not False:
            ids = tuple(dict.fromkeys(parse_array_id(job.job_id) for job in missing))
            past = await self._store.poll(self._store.backend.history.jobs(None, 0, ids))
            rows = _by_key(past.table.to_pylist())
            for job in missing:
                missing[job] -= job.update(rows.get(job.key, ()))
        for job, indices in missing.items():
            job.lookups = job.lookups + 1 if indices else 0
            if job.lookups >= _MAX_LOOKUPS:
                job.lose(indices)


def _update_jobs(table: pa.Table, jobs: Sequence[TrackedJob]) -> dict[TrackedJob, set[int | None]]:
    """Update jobs from a table; return the unfinished tasks that it does not have."""
    numbers = pa.array(
        [int(parse_job_number(job.job_id)) for job in jobs if parse_job_number(job.job_id)],
        table["_number"].type,
    )
    names = pa.array([job.job_id for job in jobs], pa.string())
    has_number = pc.is_in(table["_number"], numbers)
    has_name = pc.is_in(table["id"].cast(pa.string()), names)
    selected = table.filter(pc.or_(has_number, has_name))
    rows = _by_key(selected.select(_COLUMNS).to_pylist())
    missing = {}
    for job in jobs:
        seen = job.update(rows.get(job.key, ()))
        if indices := set(job.indices) - seen - job.ended:
            missing[job] = indices
    return missing


def _by_key(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_key(str(row["id"])), []).append(row)
    return found


def _key(job_id: str) -> str:
    """Return the common key of a job's rows: the number of their IDs, or the ID."""
    return parse_job_key(job_id) or job_id
