"""Follows one's own jobs from poll to poll: what started, what ended, and how, before anything is said of an end.

A job that is in the list no more is looked for among those that ended a short while ago, then in the accounting
database; one that is in neither is `gone`, its exit unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.base import JobScope
from hpcdash.domain import schema
from hpcdash.domain.diff import OLD_STATE, diff_jobs
from hpcdash.domain.states import ENDED, JobState
from hpcdash.errors import AccountingUnavailable, HpcdashError

if TYPE_CHECKING:
    from hpcdash.stores.cluster import ClusterStore

KEEP_SECONDS = 15 * 60
_KEPT_EVENTS = 500
_IDS_A_COMMAND = 100
# The accounting database may lag behind: this many polls are given to it before a job is called gone.
_TRIES = 3
LOOKING_UP = "left the queue; how it ended is being looked up"
EXIT_UNKNOWN = "left the queue; no list and no history knows how it ended"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job, seen at an epoch second; `before` and `after` are our states, '' unknown."""

    at: float
    job_id: str
    name: str
    before: str
    after: str


@dataclass(slots=True)
class _Missing:
    """A job that left the list and whose end is not known yet."""

    row: dict[str, Any]
    tries: int = 0


class Departures:
    """The jobs of one store that left the queue, and the events of one's own jobs."""

    def __init__(self, store: ClusterStore) -> None:
        self.events: deque[JobEvent] = deque(maxlen=_KEPT_EVENTS)
        self._store = store
        self._ended: dict[str, tuple[float, dict[str, Any]]] = {}
        self._missing: dict[str, _Missing] = {}
        self._shown: pa.Table = schema.empty(schema.JOBS)

    def with_departed(self, table: pa.Table) -> pa.Table:
        """A table of one's own jobs, and after them those that left it."""
        if not self._shown.num_rows:
            return table
        departed = self._shown.filter(pc.invert(pc.is_in(self._shown["id"], table["id"].combine_chunks())))
        return pa.concat_tables([table, departed]).unify_dictionaries().combine_chunks()

    async def follow(self, before: pa.Table | None, after: pa.Table) -> tuple[JobEvent, ...]:
        """Compare two lists of one's own jobs; looks up what left, and returns what happened."""
        now = self._store.clock.now()
        happened: list[JobEvent] = []
        if before is not None:
            diff = await asyncio.to_thread(diff_jobs, before, after)
            for rows in (diff.started, diff.ended):
                for row in rows.select(["id", "name", "state", OLD_STATE]).to_pylist():
                    happened.append(JobEvent(now, row["id"], row["name"] or "", row[OLD_STATE] or "", row["state"]))
            for row in diff.vanished.select(schema.JOBS.names).to_pylist():
                self._missing.setdefault(row["id"], _Missing(row))
        present = set(_present(after, [*self._missing, *self._ended]))
        for job_id in present:
            self._missing.pop(job_id, None)
            self._ended.pop(job_id, None)
        if self._missing:
            happened.extend(await self._look_up(now))
        for job_id, (noted_at, _) in list(self._ended.items()):
            if now - noted_at > KEEP_SECONDS:
                del self._ended[job_id]
        self._show()
        self.events.extend(happened)
        return tuple(happened)

    def _show(self) -> None:
        rows = [row for _, row in self._ended.values()]
        rows += [
            {**missing.row, "state": str(JobState.UNKNOWN), "reason": LOOKING_UP} for missing in self._missing.values()
        ]
        self._shown = pa.Table.from_pylist(rows, schema=schema.JOBS)

    async def _look_up(self, now: float) -> list[JobEvent]:
        store = self._store
        happened: list[JobEvent] = []
        try:
            recent = await store.ask(store.backend.jobs_query(JobScope(user=store.user, ended=True)))
            happened += self._settle(recent.table, now)
            no_history = False
            ids = list(self._missing)
            for start in range(0, len(ids), _IDS_A_COMMAND):
                some = ids[start : start + _IDS_A_COMMAND]
                try:
                    past = await store.ask(store.backend.history_query(None, 0, some))
                except AccountingUnavailable:
                    no_history = store.probe is not None and store.probe.has_accounting is False
                    break
                happened += self._settle(past.table, now)
        except HpcdashError:
            # Asked again with the next poll; the rows stay, marked as being looked up.
            return happened
        for job_id, missing in list(self._missing.items()):
            missing.tries += 1
            if no_history or missing.tries >= _TRIES:
                happened.append(self._end(job_id, {**missing.row, "state": "gone", "reason": EXIT_UNKNOWN}, now))
        return happened

    def _settle(self, known: pa.Table, now: float) -> list[JobEvent]:
        """Take from a list what it says of the missing jobs; one that it calls alive is not missing."""
        happened = []
        by_id, by_array = _index(known, self._missing)
        for job_id in list(self._missing):
            row = by_id.get(job_id)
            if row is not None:
                if row["state"] in ENDED:
                    happened.append(self._end(job_id, row, now))
                continue
            array_id, bracket, _ = job_id.partition("_[")
            tasks = by_array.get(array_id, []) if bracket else []
            ended = [task for task in tasks if task["state"] in ENDED and task["id"] not in self._ended]
            if ended and len(ended) == len(tasks):
                del self._missing[job_id]
                for task in ended:
                    happened.append(self._end(task["id"], task, now))
        return happened

    def _end(self, job_id: str, row: dict[str, Any], now: float) -> JobEvent:
        missing = self._missing.pop(job_id, None)
        before = str(missing.row["state"]) if missing else ""
        self._ended[job_id] = (now, row)
        return JobEvent(now, job_id, row["name"] or "", before, str(row["state"]))


def _present(table: pa.Table, ids: Sequence[str]) -> list[str]:
    if not ids:
        return []
    found = table.filter(pc.is_in(table["id"], pa.array(ids, pa.string())))
    return [str(job_id) for job_id in found["id"].to_pylist()]


def _index(known: pa.Table, wanted: Iterable[str]) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """The rows of the wanted jobs by id, and those of wanted arrays' tasks by array."""
    ids = list(wanted)
    arrays = sorted({job_id.partition("_[")[0] for job_id in ids if "_[" in job_id})
    mask = pc.is_in(known["id"], pa.array(ids, pa.string()))
    if arrays:
        mask = pc.or_(mask, pc.is_in(known["array_id"], pa.array(arrays, pa.string())))
    by_id: dict[str, dict[str, Any]] = {}
    by_array: dict[str, list[dict[str, Any]]] = {}
    for row in known.filter(mask).to_pylist():
        by_id[row["id"]] = row
        if row["array_id"] in arrays:
            by_array.setdefault(row["array_id"], []).append(row)
    return by_id, by_array
