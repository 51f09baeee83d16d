"""Prepares the submission of jobs that ended once more, and finds out what became of one whose answer was lost.

Knows no screen and no scheduler.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.base import MARK_START, ActionRequest, Handover, JobDetail, JobScope, Outcome, Verb
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import array_of, joined_tasks
from hpcdash.errors import AccountingUnavailable, CommandMissing, HpcdashError, NoSuchJob, UsageError
from hpcdash.stores.actions import Plan, Report
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.scripts import READ_FROM, fetch_script, keep_submitted
from hpcdash.stores.triage import tasks_of

Row = Mapping[str, Any]
# Each has its own script and options, which are asked for, and its own command.
MOST_AT_ONCE = 10
# How long after a lost answer the queue is asked a second time.
_LOOK_AGAIN_SECONDS = 5.0
_MAY_HAVE_ENDED = "the queue has no such job; one that ended at once would have left no trace, as no history is kept"
# The history learns of a job a moment after the scheduler does, and of how it was submitted last.
_HISTORY_LAG_SECONDS = 4.0
# How far the clocks of the cluster and of this machine may be apart.
CLOCKS_APART = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job to submit again: a plain one, or an array's number with the rows of the tasks that are meant.

    Without `tasks`, a whole array is meant; `rows` are of domain.schema.JOBS.
    """

    job_id: str
    tasks: ArrayTasks | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Again:
    """What would be submitted: the plan, what a person should know of it, and how each new job is recognised."""

    plan: Plan
    asides: tuple[str, ...]
    searches: Mapping[str, Search]


@dataclass(frozen=True, slots=True)
class Search:
    """What tells a new job from others: a mark of ours in its comment, or (mark '') its name and when it was sent."""

    mark: str
    name: str | None
    not_before: datetime


def wanted_of(rows: Sequence[Row]) -> tuple[Wanted, ...]:
    """What rows stand for, an array's tasks together."""
    arrays: dict[str, list[Row]] = {}
    wanted: list[Wanted] = []
    for row in rows:
        if row["array_id"]:
            arrays.setdefault(str(row["array_id"]), []).append(row)
        else:
            wanted.append(Wanted(str(row["id"]), None, (row,)))
    for array_id, members in arrays.items():
        tasks = joined_tasks(task for row in members for task in (tasks_of(row) or ()))
        wanted.append(Wanted(array_id, tasks, tuple(members)))
    return tuple(wanted)


async def plan_again(store: ClusterStore, wanted: Sequence[Wanted]) -> Again:
    """What submitting these again would run; nothing is submitted.

    Raises UsageError for what cannot be, SchedulerRefused and AccountingUnavailable where a script is not to be had,
    NoSuchJob, and what keeps the cluster from answering.
    """
    if len(wanted) > MOST_AT_ONCE:
        raise UsageError(
            f"{len(wanted)} jobs and arrays are too many to submit again at once", f"Mark at most {MOST_AT_ONCE}."
        )
    asides: list[str] = []
    made: list[tuple[Wanted, Handover]] = []
    searches: dict[str, Search] = {}
    for one in wanted:
        again, told = await _prepare(store, one)
        made.append((one, again))
        name = f"{one.job_id}: " if len(wanted) > 1 else ""
        asides += [note for told_note in told if (note := f"{name}{told_note}") not in asides]
        job_id = again.command.job_ids[0]
        not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
        searches[job_id] = Search(again.mark, again.job_name or None, not_before)
    request = ActionRequest(Verb.SUBMIT, tuple(again.command.job_ids[0] for _, again in made))
    rows = tuple(row for one, _ in made for row in one.rows)
    return Again(Plan(request, rows, tuple(again.command for _, again in made)), tuple(asides), searches)


async def _prepare(store: ClusterStore, wanted: Wanted) -> tuple[Handover, list[str]]:
    asked = wanted.job_id
    detail = await _detail(store, wanted)
    script, past = await asyncio.gather(fetch_script(store, asked, detail=detail), _past(store, wanted))
    mark = f"{MARK_START}{secrets.token_hex(5)}"
    again = store.backend.resubmission(detail, past, script, wanted.tasks, mark)
    lines = script.text.count("\n") or 1
    warning = "; it may have changed since" if script.source.startswith(READ_FROM) else ""
    return again, [f"its script comes on stdin, {lines} lines: {script.source}{warning}", *again.notes]


async def _detail(store: ClusterStore, wanted: Wanted) -> JobDetail:
    """Of an array that has ended in part, a task's: its own row may be gone."""
    try:
        return await store.fetch_detail(wanted.job_id)
    except NoSuchJob:
        if not wanted.rows or wanted.rows[0]["id"] == wanted.job_id:
            raise
        return await store.fetch_detail(str(wanted.rows[0]["id"]))


async def _past(store: ClusterStore, wanted: Wanted) -> Mapping[str, str]:
    """What the history says of a job; {} where there is none."""
    if store.probe is not None and store.probe.has_accounting is False:
        return {}
    submitted_at = [row["submitted_at"].timestamp() for row in wanted.rows if row["submitted_at"] is not None]
    age = store.clock.now() - max(submitted_at, default=0.0)
    if 0 <= age < _HISTORY_LAG_SECONDS:
        await asyncio.sleep(_HISTORY_LAG_SECONDS - age)
    try:
        return await store.ask(store.backend.history_native_query(wanted.job_id))
    except (NoSuchJob, AccountingUnavailable, CommandMissing):
        return {}


async def settle(store: ClusterStore, again: Again, report: Report) -> tuple[Outcome, ...]:
    """The outcomes with what was unknown looked for in the queue and in the history, twice.

    Found: done, `job 93`. Surely not there: not done. Where neither can be asked it stays unknown, and where no history
    would have a job that ended at once. Raises nothing.
    """
    outcomes = {outcome.job_id: outcome for outcome in report.outcomes}
    for attempt in range(2):
        unknown = [job_id for job_id, outcome in outcomes.items() if outcome.done is None and job_id in again.searches]
        if not unknown:
            break
        if attempt:
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        table, problem = await _recent_jobs(store)
        for job_id in unknown:
            found = _looked_for(job_id, again.searches[job_id], table, problem, is_last=attempt == 1)
            if found.done is False and store.probe is not None and store.probe.has_accounting is False:
                found = Outcome(job_id, None, _MAY_HAVE_ENDED)
            outcomes[job_id] = found
            command = next((one for one in again.plan.commands if job_id in one.job_ids), None)
            if found.done and command is not None:
                (outcomes[job_id],) = await keep_submitted(store, command, (found,))
    return tuple(outcomes[job_id] for job_id in outcomes)


async def _recent_jobs(store: ClusterStore) -> tuple[pa.Table | None, str]:
    """One's jobs as the scheduler has them now, those that ended a moment ago too; or why it cannot be asked."""
    try:
        await store.open(force=True)
        return (await store.ask(store.backend.jobs_query(JobScope(user=store.user, ended=True)))).table, ""
    except HpcdashError as error:
        return None, error.message


def _looked_for(job_id: str, search: Search, table: pa.Table | None, problem: str, *, is_last: bool) -> Outcome:
    if table is None:
        return Outcome(job_id, None, f"whether it was submitted is not known, as the queue cannot be asked: {problem}")
    numbers = _numbers_of(table, search)
    if len(numbers) == 1:
        how = "" if search.mark else " (the only one of its name submitted since)"
        return Outcome(job_id, True, f"job {numbers[0]}{how}")
    if numbers:
        return Outcome(job_id, None, f"one of {', '.join(numbers)} may be it: they have its name")
    return Outcome(job_id, False if is_last else None, "it was not submitted: the queue has no such job")


def _numbers_of(table: pa.Table, search: Search) -> list[str]:
    if search.mark:
        found = table.filter(pc.fill_null(pc.equal(table["comment"], search.mark), False))
    else:
        since = pc.greater_equal(table["submitted_at"], pa.scalar(search.not_before, table["submitted_at"].type))
        found = table.filter(pc.fill_null(pc.and_(since, pc.equal(table["name"], search.name)), False))
    return list(dict.fromkeys(map(array_of, found["id"].to_pylist())))
