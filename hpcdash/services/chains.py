"""Job chains: finds the one a job belongs to, appends to it, and edits what its stubs run."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.appending import appended
from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.queries import Answer, JobScope, ParsedTable
from hpcdash.backends.script.stub import stub_target
from hpcdash.backends.submissions import AS_IT_WAS, Submission
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.chains import JobChain, find_chain, given_dependency
from hpcdash.domain.columns import as_array
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.job_ids import parse_array_id, parse_job_number, plain_id
from hpcdash.errors import (
    AccountingUnavailable,
    CommandMissing,
    CommandTimedOut,
    HpcdashError,
    NoSuchJob,
    UnreachableError,
    UnreadableOutput,
    UsageError,
    excerpt,
)
from hpcdash.services.cluster.store import HISTORY_SECONDS, ClusterStore
from hpcdash.services.files import whole_file_query
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.submit.submission import (
    SubmissionPlan,
    build_plan,
    new_mark,
    plan_submission,
)
from hpcdash.shell_files import shell_text

Row = Mapping[str, Any]
# What each of these waited for is a question to the history by itself; others are joined by their
# names.
MAX_ASKED = 12
# Fields with a submission's command line: Slurm's, PBS's, Torque's, the embedded queue's.
_LINES = ("SubmitLine", "Submit_arguments", "submit_args")
_DEPENDENCIES = ("Dependency", "depend")
# How often a history is queried again for a job this new, each time after twice as long.
_MAX_TIMES = 6
_NEW_SECONDS = 120.0
_SOON_SECONDS = 1.0
_MAX_BYTES = 4 << 20
_LIMIT_SECONDS = 30.0
_CHANGED, _CUT, _NO_FILE = 76, 75, 66


class ChainReader:
    """Reads the chain of one job, again and again: what a job was submitted to wait for is asked
    once.

    `notes` say in words what of the past cannot be asked; `changed` is called in the event loop
    when there is more to show.
    """

    def __init__(
        self, store: ClusterStore, job_id: str, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.store = store
        self.job_id = job_id
        self.chain: JobChain | None = None
        self.notes: tuple[str, ...] = ()
        # A job's dependency, by its number: as the queue once reported it, or as submitted.
        self.told: dict[str, str] = {}
        self._changed = changed
        self._queried: set[str] = set()
        # A history learns of a job, and of how it was submitted, some moments after it begins: when
        # and how often those were asked for of which it did not tell.
        self._missed: dict[str, tuple[float, int]] = {}
        # The backend of the job's own cluster of the site.
        self._backend = store.backend

    async def read(self) -> JobChain:
        """The chain as it is now.

        Raises NoSuchJob, UsageError where the scheduler has no chains, and what keeps the cluster
        from answering.
        """
        await self.store.open()
        self._backend = self.store.backend
        self._backend.require(Capability.CHAINS)
        cluster = plain_id(self.job_id)[1]
        own = self.store.probe
        if cluster and self._backend.on_cluster and (own is None or cluster != own.cluster):
            self._backend = self._backend.on_cluster(cluster)
        self._queried -= {number for number in self._missed if self._due_in(number) <= 0}
        tables, notes = await self._tables()
        for attempt in range(MAX_ASKED + 1):
            chain = await asyncio.to_thread(self._find, tables)
            if not chain.units:
                raise NoSuchJob(
                    f"job {self.job_id} was not found in the queue or in the job history",
                    "Check the job ID.",
                )
            # The one that was asked for first: its own past leads to the others.
            requested = sorted(
                (
                    job_id
                    for job_id in chain.unsure
                    if parse_job_number(job_id) not in self._queried
                ),
                key=lambda job_id: parse_job_number(job_id) != parse_job_number(self.job_id),
            )[: MAX_ASKED - len(self._queried)]
            if not requested:
                break
            self.chain = chain
            if attempt == 0:
                self._changed()
            problem = await self._query_history(requested)
            if problem:
                notes = (*notes, problem)
                break
        if len(self._queried) >= MAX_ASKED and any(
            parse_job_number(job_id) not in self._queried for job_id in chain.unsure
        ):
            notes = (
                *notes,
                f"the chain may be longer: dependencies were looked up for at most {MAX_ASKED} "
                "jobs",
            )
        self.chain = chain
        self.notes = notes
        self._changed()
        return chain

    @property
    def again_in_seconds(self) -> float | None:
        """Seconds until a retry of what the history could not answer yet; None if there is none."""
        due = [self._due_in(number) for number in self._missed]
        return max(_SOON_SECONDS, min(due)) if due and min(due) < inf else None

    def _due_in(self, number: str) -> float:
        queried_at, times = self._missed[number]
        return queried_at + 2.0**times - 2.0 - monotonic() if times <= _MAX_TIMES else inf

    async def _tables(self) -> tuple[list[pa.Table], tuple[str, ...]]:
        """The owner's jobs in the queue and in the past, the freshest first, and why some are
        missing.
        """
        store = self.store
        backend = self._backend
        row = known_row(store, self.job_id)
        tables: list[pa.Table] = []
        if row is None:
            tables = await self._fetch_tables(parse_array_id(self.job_id))
        owner = (
            row["user"]
            if row is not None
            else next((table["user"][0].as_py() for table in tables), None)
        )
        queued, past = await asyncio.gather(
            store.run_query(backend.queue.jobs(JobScope(user=owner or store.user, ended=True))),
            self._past(owner or store.user),
            return_exceptions=True,
        )
        if isinstance(queued, BaseException):
            raise queued
        notes: tuple[str, ...] = ()
        found = [queued.table]
        if isinstance(past, HpcdashError):
            notes = (f"finished jobs are missing: {past.message}",)
        elif isinstance(past, BaseException):
            raise past
        else:
            found.append(past.table)
        return [*found, *tables], notes

    async def _past(self, owner: str) -> ParsedTable:
        if self.store.probe is not None and self.store.probe.has_accounting is False:
            raise AccountingUnavailable("this cluster does not keep accounting")
        return await self.store.run_query(self._backend.history.jobs(owner, HISTORY_SECONDS))

    async def _fetch_tables(self, job_id: str) -> list[pa.Table]:
        """The job or array by itself, where no list has it."""
        backend = self._backend
        for query in (
            backend.queue.jobs(JobScope(job_ids=(job_id,))),
            backend.history.jobs(None, 0, (job_id,)),
        ):
            try:
                table = (await self.store.run_query(query)).table
            except (NoSuchJob, AccountingUnavailable, CommandMissing):
                continue
            if table.num_rows:
                return [table]
        raise NoSuchJob(
            f"job {self.job_id} was not found in the queue or in the job history",
            "Check the job ID and the cluster.",
        )

    def _find(self, tables: Sequence[pa.Table]) -> JobChain:
        number = parse_job_number(self.job_id)
        tables = _on_one_cluster(tables, self.job_id)
        for table in tables:
            depend = table.filter(pc.is_valid(table["dependency"]))
            for job_id, text in zip(
                depend["id"].to_pylist(), depend["dependency"].to_pylist(), strict=True
            ):
                self.told[parse_job_number(job_id)] = text
        named = {number, *self.told}
        for text in self.told.values():
            named.update(parse_job_number(job_id) for job_id in parse_dependency(text).job_ids)
        numbers = pa.array([int(one) for one in named if one], pa.int64())
        names = {name for table in tables for name in _find_names(table, number)}
        rows: list[Row] = []
        for table in tables:
            has_name = pc.is_in(as_array(table["name"]), pa.array(sorted(names), pa.string()))
            requested = pc.or_(pc.is_in(as_array(table["_number"]), numbers), has_name)
            rows += table.filter(requested).to_pylist()
        return find_chain(self.job_id, rows, self.told)

    async def _query_history(self, job_ids: Sequence[str]) -> str:
        """Query the history for the submitted dependencies of jobs.

        Returns the reason if the query fails, else ''.
        """
        backend = self._backend
        self._queried.update(map(parse_job_number, job_ids))
        requested = (self.store.run_query(backend.history.native(job_id)) for job_id in job_ids)
        for job_id, answer in zip(
            job_ids, await asyncio.gather(*requested, return_exceptions=True), strict=True
        ):
            number = parse_job_number(job_id)
            if isinstance(answer, NoSuchJob):
                self._miss(number)
                continue
            if isinstance(answer, HpcdashError):
                return f"dependencies of started jobs are unknown: {answer.message}"
            if isinstance(answer, BaseException):
                raise answer
            if (text := _submitted_to_wait_for(answer)) is None:
                self._miss(number)
            else:
                self.told[number] = text
                self._missed.pop(number, None)
        return ""

    def _miss(self, number: str) -> None:
        """Note that the history did not report a job; for an old job only one retry follows."""
        _, times = self._missed.get(number, (0.0, 0))
        rows = self.chain.rows if self.chain is not None else ()
        moments = [
            row[key]
            for row in rows
            if parse_job_number(row["id"]) == number
            for key in ("submitted_at", "started_at")
        ]
        newest = max((moment.timestamp() for moment in moments if moment is not None), default=inf)
        is_new = self.store.clock.now() - newest < _NEW_SECONDS
        self._missed[number] = (monotonic(), times + 1 if is_new or not times else _MAX_TIMES + 1)


def _on_one_cluster(tables: Sequence[pa.Table], job_id: str) -> list[pa.Table]:
    """Return the jobs of a job's cluster; others may have its number and those it waits for."""
    named = [[plain_id(one)[1] for one in table["id"].to_pylist()] for table in tables]
    if not any(any(clusters) for clusters in named):
        return list(tables)
    number = int(parse_job_number(job_id) or -1)
    with_number = {
        cluster
        for table, clusters in zip(tables, named, strict=True)
        for one, cluster in zip(table["_number"].to_pylist(), clusters, strict=True)
        if one == number
    }
    cluster = plain_id(job_id)[1]
    if cluster not in with_number:
        # The session's own, which its rows name, or do not.
        cluster = min(with_number, default="")
    return [
        table.filter(pa.array([one == cluster for one in clusters], pa.bool_()))
        for table, clusters in zip(tables, named, strict=True)
    ]


def _find_names(table: pa.Table, number: str) -> set[str]:
    own = table.filter(pc.equal(as_array(table["_number"]), int(number or -1)))
    return {name for name in own["name"].to_pylist() if name}


def _submitted_to_wait_for(native: Mapping[str, str]) -> str | None:
    """A dependency as schedulers show it, '' for none; None where it is not told."""
    for key in _DEPENDENCIES:
        if parse_dependency(native.get(key)).conditions:
            return native[key]
    lines = [native[key] for key in _LINES if native.get(key)]
    return given_dependency(lines[0]) if lines else None


# -- appending


class Appendix(Struct, frozen=True):
    """Job or script that is appended to a chain: a known job, or a script of one's own.

    `detail` and `past` are the scheduler's data of the job; None for a script of one's own.
    """

    job_id: str
    script: Script
    name: str
    detail: JobDetail | None = None
    past: Mapping[str, str] | None = None


async def same_again(store: ClusterStore, job_id: str) -> Appendix:
    """The script and options of a job or array of the chain; raises what keeps them from being
    read.
    """
    detail = await store.fetch_detail(job_id)
    script = await fetch_script(store, job_id, detail=detail)
    try:
        past = await store.run_query(store.backend.history.native(job_id))
    except (NoSuchJob, AccountingUnavailable, CommandMissing):
        past = {}
    return Appendix(job_id, script, str(detail.job["name"][0].as_py() or "job"), detail, past)


def plan_append(
    store: ClusterStore, appendix: Appendix, after: Sequence[str], array: str = ""
) -> SubmissionPlan:
    """Plan a submission that waits for the end of `after`, well or badly; nothing is submitted.

    `array` are its tasks (1-10%1), '' for a plain job, or for an array's own tasks again. Raises
    UsageError.
    """
    requested = Submission(
        script=appendix.script.text.encode("utf-8", "surrogateescape"),
        name=appendix.name,
        array=array,
        after=tuple(after),
    )
    if appendix.detail is None:
        return plan_submission(store, requested)
    row = appendix.detail.job.to_pylist()[0]
    # Which tasks an array had need not be known where others are named.
    tasks = parse_tasks(array) if array and row["array_id"] else None
    again = store.backend.submit.resubmission(
        appendix.detail, appendix.past or {}, appendix.script, tasks, new_mark(), AS_IT_WAS
    )
    phrased = store.backend.submit.submission(
        Submission(b"#!/bin/sh\n", "x", array=array, after=tuple(after))
    )
    waiting = appended(again, phrased)
    if waiting is None:
        return _from_row(store, requested, row)
    notes = [
        note for note in waiting.notes if not note.startswith("omitted (no longer applicable)")
    ]
    return build_plan(store, waiting, notes=notes)


def _from_row(store: ClusterStore, requested: Submission, row: Row) -> SubmissionPlan:
    """Plan a submission by a job's row, if no command has its options.

    The row's options precede the script's own directives.
    """
    parts = [
        f"--{name}={value}"
        for name, value in (("job-name", row["name"]), ("chdir", row["work_dir"]))
        if value
    ]
    if row["limit_seconds"]:
        parts.append(f"--time={max(1, -(-row['limit_seconds'] // 60))}")
    again = plan_submission(store, replace(requested, options=tuple(parts)))
    note = (
        "the job keeps its name, folder and time limit; everything else comes from the script's "
        "directives"
    )
    return replace(again, notes=(*again.notes, note))


class StubbedScript(Struct, frozen=True):
    """The file that a job's stub will read, as it was when it was fetched."""

    job_id: str
    path: str
    content: bytes


async def fetch_stubbed(store: ClusterStore, job_id: str) -> StubbedScript:
    """Raises UsageError where the job's script is no stub, and what keeps either file from being
    read.
    """
    script = await fetch_script(store, job_id)
    path = stub_target(script.text)
    if path is None:
        raise UsageError(
            f"the script of {job_id} is the scheduler's copy and can no longer be changed",
            "Jobs submitted with a stub read their script when they start: hpcdash stub SCRIPT | "
            "hpcdash submit -",
        )
    try:
        content = await store.run_query(
            whole_file_query(path, _MAX_BYTES, limit_seconds=_LIMIT_SECONDS)
        )
    except UnreadableOutput as error:
        error.message = f"{path}: {error.message}"
        error.next_step = (
            "The next job of the chain will fail when it starts, unless you restore the file."
        )
        raise
    return StubbedScript(job_id, path, content)


async def replace_stubbed(store: ClusterStore, before: StubbedScript, content: bytes) -> Outcome:
    """Put `content` in its place, if the file is still as it was fetched; raises nothing.

    Done None: the answer was lost, look at the file; a second try changes nothing that is there
    already.
    """
    if not content.startswith(b"#!"):
        # Sourced or given to an interpreter it would run, but it is no script any more by itself.
        return Outcome(before.path, False, "the first line does not start with #!")
    sums = (hashlib.sha256(text).hexdigest() for text in (before.content, content))
    argv = ("sh", "-c", shell_text("services/replace_file.sh"), "sh", before.path, *sums)
    command = ActionCommand(
        argv, (before.path,), partial(_read, path=before.path), content, _LIMIT_SECONDS
    )
    try:
        await store.open(force=True)
        answer = await store.act(command)
    except (UnreachableError, CommandTimedOut) as error:
        return Outcome(before.path, None, f"may or may not have been written: {error.message}")
    except HpcdashError as error:
        return Outcome(before.path, False, f"not written: {error.message}")
    return _read(answer, path=before.path)[0]


def _read(answer: Answer, *, path: str) -> tuple[Outcome, ...]:
    reported = {
        _CHANGED: "the file was changed meanwhile: nothing was written",
        _CUT: "the file arrived incomplete: nothing was written",
        _NO_FILE: "the file no longer exists: nothing was written",
    }
    if answer.status == 0:
        return (Outcome(path, True, "written; jobs that start from now on use it"),)
    text = excerpt(answer.stderr) or f"status {answer.status}"
    return (Outcome(path, False, reported.get(answer.status, f"not written: {text}")),)
