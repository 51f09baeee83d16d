"""One way to drive an embedded queue and a real Slurm: through the stores, as the screens do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.base import Backend
from hpcdash.backends.queries import JobScope
from hpcdash.backends.submissions import Submission
from hpcdash.errors import NoSuchJob
from hpcdash.services.cluster.clock import SystemClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.jobs.triage import array_tasks
from hpcdash.services.logs.file import LogFile
from hpcdash.services.logs.locate import LogPlace, locate_logs
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.submission import plan_submission
from hpcdash.transport.local import LocalTransport
from tests.support.waiting import deadline

Row = Mapping[str, Any]
Fate = dict[str, tuple[bool | None, str]]
ENDED = frozenset(
    {"completed", "failed", "timeout", "cancelled", "gone", "out_of_memory", "node_failed"}
)
_LOG_BYTES = 1 << 16


class Cluster:
    """A scheduler on this machine with a store on it.

    Commands run in `work`, where its jobs' output goes.

    `look_seconds` is how long to wait before the next look, so that looking takes no more of the
    machine than jobs do.
    """

    # What of a job's history tells how it was submitted.
    submission_field = "Command"

    def __init__(
        self, name: str, backend: Backend, work: Path, journal: Path, *, look_seconds: float
    ) -> None:
        self.name = name
        self.work = work
        self.store = ClusterStore(
            name, LocalTransport(), (backend,), clock=SystemClock(), budget=CommandBudget(1_000_000)
        )
        self.actions = Actions(self.store, Journal(journal))
        self._look_seconds = look_seconds
        # A job that runs out of its time while the others are looked at.
        self.first_job = ""

    # -- doing

    async def submit(self, body: str, *options: str, name: str = "job.sh", **asked: Any) -> str:
        """The id of a bash script that is handed in; `asked` are other fields of Submission."""
        wanted = Submission(bash(body), name, options, **asked)
        report = await self.actions.run(plan_submission(self.store, wanted).plan)
        (outcome,) = report.outcomes
        assert outcome.done, outcome
        return outcome.text.removeprefix("job ").partition(";")[0]

    async def does(
        self, verb: str, *job_ids: str, signal: str = "", to: str = "", **changes: str
    ) -> Fate:
        """How each job fared: (done, the scheduler's words)."""
        plan = self.actions.plan(ActionRequest(Verb(verb), job_ids, signal, to, changes))
        report = await self.actions.run(plan)
        assert report.journal_problem == ""
        return {outcome.job_id: (outcome.done, outcome.text) for outcome in report.outcomes}

    async def do(
        self, verb: str, *job_ids: str, signal: str = "", to: str = "", **changes: str
    ) -> None:
        """The same, where nothing is to be refused."""
        assert await self.does(verb, *job_ids, signal=signal, to=to, **changes) == dict.fromkeys(
            job_ids, (True, "")
        )

    async def may_start_again(self, job_id: str) -> None:
        """Let a requeued job start now."""

    async def out_of_time(self, body: str) -> str:
        """The id of a job that soon comes to its time limit, with USR1 to its batch shell before
        that.
        """
        return await self.submit(body, "-t", "0:02", "--signal=B:USR1@1")

    # -- looking

    async def rows(self, *job_ids: str) -> list[Row]:
        """The rows of the queue, of ended jobs too; raises NoSuchJob."""
        parsed = await self.store.run_query(
            self.store.backend.queue.jobs(JobScope(job_ids=job_ids))
        )
        assert parsed.rejected == ()
        found: list[Row] = parsed.table.to_pylist()
        return found

    async def row(self, job_id: str) -> Row:
        """The row of one job or task."""
        (row,) = (one for one in await self.rows(job_id) if one["id"] == job_id)
        return row

    async def tasks(self, array: str) -> dict[int, Row]:
        """The row of each task of an array; those that wait may share one."""
        return {task: row for row in await self.rows(array) for task in array_tasks(row) or ()}

    async def task_states(self, array: str) -> dict[int, str]:
        return {task: row["state"] for task, row in sorted((await self.tasks(array)).items())}

    async def past(self, *job_ids: str) -> list[Row]:
        """The rows of the history."""
        parsed = await self.store.run_query(self.store.backend.history.jobs(None, 0, job_ids))
        found: list[Row] = parsed.table.to_pylist()
        return found

    async def wait(
        self,
        job_id: str,
        holds: str | Iterable[str] | Callable[[Row], object],
    ) -> Row:
        """The row of a job or task once it is in a state (or one of some), or once something holds
        of it.
        """
        wanted = frozenset({holds} if isinstance(holds, str) else () if callable(holds) else holds)

        async def look() -> Row | None:
            rows = [one for one in await self.rows(job_id) if one["id"] == job_id]
            if not rows:
                return None
            told[:] = rows
            return (
                rows[0]
                if (holds(rows[0]) if callable(holds) else rows[0]["state"] in wanted)
                else None
            )

        told: list[Row] = []
        return await self.until(
            look, lambda: f"{job_id} to be {wanted or 'as it should'}; it is {told}"
        )

    async def wait_for_history(self, job_id: str) -> None:
        """Once the history knows how a job was submitted."""

        async def look() -> str | None:
            known = await self.store.run_query(self.store.backend.history.native(job_id))
            return known.get(self.submission_field)

        await self.until(look, lambda: f"the history to have {job_id}")

    async def ended(self, job_id: str) -> Row:
        return await self.wait(job_id, ENDED)

    async def all_ended(self, *job_ids: str) -> list[Row]:
        """The rows of some jobs, in this order, once all have ended."""
        told: dict[str, Row] = {}

        async def look() -> list[Row] | None:
            told.update((row["id"], row) for row in await self.rows(*job_ids))
            rows = [told.get(job_id) for job_id in job_ids]
            return (
                [row for row in rows if row]
                if all(row and row["state"] in ENDED for row in rows)
                else None
            )

        found: list[Row] = await self.until(
            look,
            lambda: f"{job_ids} to have ended; they are {[told.get(job_id) for job_id in job_ids]}",
        )
        return found

    async def place(self, job_id: str) -> LogPlace:
        return await locate_logs(self.store, job_id)

    async def log(self, job_id: str, *, stderr: bool = False) -> str:
        """What a job wrote so far, at the place that is told for it; '' where there is no file
        yet.
        """
        files = (await self.place(job_id)).files
        path = files.stderr if stderr else files.stdout
        assert path is not None, files
        return await self.content(path)

    async def content(self, path: str) -> str:
        chunk = await LogFile(self.store.transport, path).read(0, _LOG_BYTES)
        assert not chunk.stat.problem or chunk.stat.is_missing, chunk.stat
        return chunk.content.decode()

    async def wait_for_words(self, job_id: str, words: str) -> str:
        """A job's log once some words are in it."""
        path = (await self.place(job_id)).files.stdout
        assert path is not None
        told = [""]

        async def look() -> str | None:
            told[0] = await self.content(path)
            return told[0] if words in told[0] else None

        return await self.until(look, lambda: f"{words!r} in {path}: {told[0]!r}")

    async def up(self, body: str, *options: str, **asked: Any) -> str:
        """The id of a job that has come to print 'up'; `body` is to do so."""
        job_id = await self.submit(body, *options, **asked)
        await self.wait(job_id, "running")
        await self.wait_for_words(job_id, "up")
        return job_id

    async def until(self, look: Callable[[], Any], what: Callable[[], str]) -> Any:
        """The first answer that is something; fails naming `what` where none comes."""
        over = deadline()
        while True:
            try:
                found = await look()
            except NoSuchJob:
                found = None
            if found is not None:
                return found
            assert time.monotonic() < over, f"waited in vain on {self.name} for {what()}"
            await asyncio.sleep(self._look_seconds)


class Slurm(Cluster):
    """A requeued job waits there for two minutes, until the credential of its first run is no
    longer good.

    A time limit is a minute or more, and twice a minute is looked who is over it.
    """

    submission_field = "SubmitLine"

    async def may_start_again(self, job_id: str) -> None:
        # A credential of the second in which the first run was ended is refused.
        await self.wait(
            job_id, lambda row: (row["state"], row["reason"]) == ("pending", "BeginTime")
        )
        await self._update(job_id, "starttime=now+1")

    async def out_of_time(self, body: str) -> str:
        job = await self.submit(body, "-t", "10", "--signal=B:USR1@1")
        await self.wait(job, "running")
        await self._update(job, "endtime=now+1")
        return job

    async def _update(self, job_id: str, change: str) -> None:
        ended = await self.store.transport.run(("scontrol", "update", f"jobid={job_id}", change))
        assert ended.status == 0, ended


def bash(body: str) -> bytes:
    """A batch script; bytes that are no UTF-8 are lone surrogates in `body`."""
    return f"#!/bin/bash\n{body}\n".encode("utf-8", "surrogateescape")


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[Cluster]:
    """With its scheduler found."""
    await cluster.store.open()
    try:
        yield cluster
    finally:
        await cluster.store.close()
