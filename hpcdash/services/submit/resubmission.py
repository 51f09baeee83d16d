"""Resubmission of jobs: plans, an array's tasks in parts if the scheduler accepts no list of them,
and proposals for jobs that ended for lack of time or memory.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.backends.appending import appended
from hpcdash.backends.job_detail import Usage
from hpcdash.backends.queries import JobScope
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits, Submission, SubmitCommand
from hpcdash.domain.array_tasks import ArrayTasks, joined_tasks
from hpcdash.domain.job_ids import parse_array_id, parse_job_id
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted
from hpcdash.domain.units import (
    DAY,
    HOUR,
    MINUTE,
    format_memory,
    format_span,
    parse_duration,
    parse_memory,
)
from hpcdash.errors import (
    AccountingUnavailable,
    CommandMissing,
    HpcdashError,
    NoSuchJob,
    UsageError,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.jobs.scripts import READ_FROM, fetch_script
from hpcdash.services.state.journal import Journal, JournalEntry
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.recovery import reconcile_noted
from hpcdash.services.submit.submission import SubmissionPlan, build_plan, new_mark

Row = Mapping[str, Any]
# Each needs queries for its script and options, and a command.
MAX_AT_ONCE = 10
# Commands for one array.
_MAX_PARTS = 100
# The history receives a job's submit line a moment after the scheduler.
_HISTORY_LAG_SECONDS = 4.0
_MIB = 1 << 20
_GIB = 1 << 30
_INCREASE = 1.5
# Factor on the sampled peak; samples miss short peaks.
_PEAK_INCREASE = 1.4
# (limit, step up to it): round numbers as a person would write them.
_TIME_STEPS = ((HOUR, 5 * MINUTE), (6 * HOUR, 15 * MINUTE), (DAY, HOUR), (float("inf"), 6 * HOUR))
_MEMORY_STEPS = (
    (_GIB, 64 * _MIB),
    (8 * _GIB, 512 * _MIB),
    (64 * _GIB, _GIB),
    (float("inf"), 8 * _GIB),
)


class Resubmission(Struct, frozen=True):
    """A job to resubmit: a plain one, or an array's number with its selected tasks and their rows.

    `tasks` is None for a whole array; `rows` are of domain.schema.JOBS.
    """

    job_id: str
    tasks: ArrayTasks | None
    rows: tuple[Row, ...]


def resubmissions(rows: Sequence[Row]) -> tuple[Resubmission, ...]:
    """Group rows into resubmissions, an array's tasks together."""
    from hpcdash.services.jobs.triage import array_tasks

    arrays: dict[str, list[Row]] = {}
    requested: list[Resubmission] = []
    for row in rows:
        if row["array_id"]:
            arrays.setdefault(str(row["array_id"]), []).append(row)
        else:
            requested.append(Resubmission(str(row["id"]), None, (row,)))
    for array_id, members in arrays.items():
        tasks = joined_tasks(task for row in members for task in (array_tasks(row) or ()))
        requested.append(Resubmission(array_id, tasks, tuple(members)))
    return tuple(requested)


class ResubmissionPlan(SubmissionPlan, frozen=True):
    """Planned resubmission of jobs.

    If its plan has `parts`, `submit_parts` runs it: with `is_chained` each part waits for the
    previous one, the first for the job `after`, '' for none.
    """

    is_chained: bool = False
    after: str = ""


async def plan_again(
    store: ClusterStore,
    requested: Sequence[Resubmission],
    limits: NewLimits = AS_IT_WAS,
    journal: Journal | None = None,
) -> SubmissionPlan:
    """Plan the resubmission of jobs with these limits in place of theirs; nothing is submitted.

    Array tasks that do not fit in one submission are planned in parts, as a ResubmissionPlan; parts
    that the `journal` has of an earlier interrupted submission are skipped. Raises UsageError if it
    is impossible, SchedulerRefused and AccountingUnavailable if a script is unavailable, NoSuchJob,
    and the errors of an unreachable cluster.
    """
    if len(requested) > MAX_AT_ONCE:
        raise UsageError(
            f"{len(requested)} jobs and arrays are too many to resubmit at once",
            f"Mark at most {MAX_AT_ONCE}.",
        )
    for one in requested:
        parts = () if one.tasks is None else store.backend.submit.array_parts(one.tasks)
        if len(parts) > 1 and len(requested) > 1:
            raise UsageError(
                f"{store.backend.title} accepts the tasks {one.tasks} of {one.job_id} only in "
                f"{len(parts)} submissions",
                "Resubmit this array separately.",
            )
        if len(parts) > 1:
            return await _plan_parts(store, one, limits, journal)
    notes: dict[str, None] = {}
    submits: list[SubmitCommand] = []
    for one in requested:
        [submit], own_notes = await _prepare(store, one, limits, (one.tasks,))
        submits.append(submit)
        prefix = f"{one.job_id}: " if len(requested) > 1 else ""
        notes |= dict.fromkeys(f"{prefix}{note}" for note in own_notes)
    return _build_plan(store, requested, submits, list(notes))


async def _plan_parts(
    store: ClusterStore, requested: Resubmission, limits: NewLimits, journal: Journal | None
) -> ResubmissionPlan:
    tasks = requested.tasks
    assert tasks is not None
    sent: Mapping[str, str] = {}
    if journal is not None:
        sent = await find_sent_parts(store, journal, requested.job_id, tasks)
    sent_tasks = joined_tasks(task for name in sent for task in _part_tasks(name)) or ArrayTasks(())
    left = joined_tasks(task for task in tasks if not sent_tasks.contains(task))
    parts = store.backend.submit.array_parts(left or tasks)
    if len(parts) > _MAX_PARTS:
        raise UsageError(
            f"{store.backend.title} accepts these tasks only in {len(parts)} submissions, which "
            f"exceeds the limit of {_MAX_PARTS}",
            "Mark fewer tasks.",
        )
    submits, own_notes = await _prepare(store, requested, limits, parts)
    throttle = submits[0].throttle
    is_chained = throttle is not None and tasks.count > throttle
    notes = []
    if sent:
        notes.append(f"tasks {sent_tasks} skipped: already sent by an interrupted submission")
    submissions = counted(len(parts), "submission")
    notes.append(f"{store.backend.title} accepts one task range at a time: {submissions}")
    if is_chained:
        notes.append(
            f"each waits for the previous one to end (afterany), so at most {throttle} run"
        )
    planned = _build_plan(store, (requested,), submits, [*notes, *own_notes])
    plan = replace(planned.plan, parts=(*sent, *planned.plan.request.job_ids))
    after = list(sent.values())[-1] if is_chained and sent else ""
    if after:
        scope = JobScope(job_ids=(after,))
        try:
            last_part = (await store.run_query(store.backend.queue.jobs(scope))).table
        except NoSuchJob:
            last_part = JOBS.empty_table()
        if ENDED.issuperset(last_part["state"].to_pylist()):
            after = ""
    return ResubmissionPlan(
        plan, planned.notes, planned.searches, is_chained=is_chained, after=after
    )


def _build_plan(
    store: ClusterStore,
    requested: Sequence[Resubmission],
    submits: Sequence[SubmitCommand],
    notes: Sequence[str],
) -> SubmissionPlan:
    rows = tuple({id(row): row for one in requested for row in one.rows}.values())
    others = frozenset(parse_array_id(one.job_id) for one in requested)
    return build_plan(store, *submits, notes=notes, rows=rows, others=others)


async def _prepare(
    store: ClusterStore,
    requested: Resubmission,
    limits: NewLimits,
    parts: Sequence[ArrayTasks | None],
) -> tuple[list[SubmitCommand], list[str]]:
    """Build a command with its own mark for each part, and the notes on them."""
    try:
        detail = await store.fetch_detail(requested.job_id)
    except NoSuchJob:
        # The row of a partly ended array may be gone: a task has the same detail.
        row_id = str(requested.rows[0]["id"]) if requested.rows else requested.job_id
        if row_id == requested.job_id:
            raise
        detail = await store.fetch_detail(row_id)
    script, past = await asyncio.gather(
        fetch_script(store, requested.job_id, detail=detail), fetch_past(store, requested)
    )
    submits = [
        store.backend.submit.resubmission(
            detail, past, script, tasks=part, mark=new_mark(), limits=limits
        )
        for part in parts
    ]
    submit = submits[0]
    if submit.check is not None:
        await store.run_query(submit.check)
    lines = counted(script.text.count("\n") or 1, "line")
    warning = "; it may have changed since" if script.source.startswith(READ_FROM) else ""
    return submits, [f"script: {lines}, {script.source}{warning}", *submit.notes]


async def fetch_past(store: ClusterStore, requested: Resubmission) -> Mapping[str, str]:
    """Fetch a job's fields from the history; {} if there are none."""
    if store.probe is not None and store.probe.has_accounting is False:
        return {}
    times = [row["submitted_at"] for row in requested.rows if row["submitted_at"] is not None]
    age = store.clock.now() - (max(times).timestamp() if times else 0.0)
    if 0 <= age < _HISTORY_LAG_SECONDS:
        await asyncio.sleep(_HISTORY_LAG_SECONDS - age)
    try:
        return await store.run_query(store.backend.history.native(requested.job_id))
    except (NoSuchJob, AccountingUnavailable, CommandMissing):
        return {}


# -- an array's tasks in parts


async def find_sent_parts(
    store: ClusterStore, journal: Journal, array_id: str, requested: ArrayTasks
) -> Mapping[str, str]:
    """Find the sent parts of the newest, incomplete submission of some of the `requested` tasks.

    Returns the job of each by its id in the journal, in order; {} for none. A part without a known
    outcome is searched by its mark. Raises UsageError if it is unknown whether it was sent,
    JournalUnreadable, and the errors of an unreachable cluster.
    """
    entries = []
    for entry in (await asyncio.to_thread(journal.read))[0]:
        is_submission = entry.cluster == store.name and entry.verb == Verb.SUBMIT
        if is_submission and entry.parts and parse_array_id(entry.parts[0]) == array_id:
            entries.append(entry)
    if not entries:
        return {}
    parts = entries[0].parts
    if not all(requested.contains(task) for name in parts for task in _part_tasks(name)):
        return {}
    places = {name: place for place, name in enumerate(parts)}
    newest: dict[str, JournalEntry] = {}
    before = len(parts)
    for entry in entries:
        name = entry.job_ids[0]
        # Parts are sent in order: a later part belongs to an earlier submission.
        if places.get(name, len(parts)) > before:
            break
        before = places[name]
        newest.setdefault(name, entry)
    sent: dict[str, str] = {}
    for name in sorted(newest, key=places.__getitem__):
        if job := await _submitted_job(store, journal, newest[name]):
            sent[name] = job
    return {} if len(sent) == len(parts) else sent


async def _submitted_job(store: ClusterStore, journal: Journal, entry: JournalEntry) -> str:
    """Return the new job of a part; '' if it was certainly not submitted."""
    [name] = entry.job_ids
    if entry.state == "running":
        raise UsageError(f"{name} is already being resubmitted", "Wait for it: J shows the result.")
    [outcome] = entry.outcomes or (Outcome(name, None),)
    if outcome.done is None:
        [outcome] = await reconcile_noted(store, journal, entry)
    if outcome.done is None:
        raise UsageError(
            f"{name} may have been resubmitted: {outcome.text}",
            "hpcdash journal --settle searches for it.",
        )
    return outcome.new_job if outcome.done else ""


def _part_tasks(job_id: str) -> ArrayTasks:
    """Parse the tasks in an ID such as 12[3-12:3].server."""
    return parse_job_id(job_id).tasks or ArrayTasks(())


async def submit_parts(
    planned: ResubmissionPlan, launches: Launches, actions: Actions
) -> tuple[Outcome, ...]:
    """Submit a plan's commands one by one, each as its own action in the journal.

    `planned.plan.parts` are all of them. The first that was not submitted, or may not have been, is
    the last.
    """
    commands = iter(planned.plan.commands)

    async def plan_part(before: tuple[str, ...]) -> SubmissionPlan:
        command = next(commands)
        [name] = command.job_ids
        waits_for = before or ((planned.after,) if planned.after else ())
        if planned.is_chained and waits_for:
            submit = launches.store.backend.submit
            template = submit.submission(Submission(b"#!/bin/sh\n", "x", after=waits_for))
            waiting = appended(SubmitCommand(command), template)
            command = command if waiting is None else waiting.command
        request = replace(planned.plan.request, job_ids=(name,))
        plan = replace(planned.plan, request=request, commands=(command,))
        return SubmissionPlan(plan, (), {name: planned.searches[name]})

    return await launches.submit_chain(plan_part, actions, len(planned.plan.commands))


def format_parts(outcomes: tuple[Outcome, ...], count: int) -> str:
    """`resubmitted in 2 parts: 93[] 94[]`; if incomplete, the jobs and how to send the rest."""
    submitted = [outcome.new_job for outcome in outcomes if outcome.new_job]
    if len(submitted) == count:
        return f"resubmitted in {counted(count, 'part')}: {' '.join(submitted)}"
    last = outcomes[-1]
    stay = f" (these stay queued: {' '.join(submitted)})" if submitted else ""
    return (
        f"{len(submitted)} of {count} parts submitted{stay}; {last.job_id}: {last.text}; R "
        "sends the rest"
    )


# -- more time or memory


class Proposal(Struct, frozen=True):
    """Former and proposed limits, None if unknown or unchanged; `notes` give the reasons."""

    before: NewLimits
    proposed: NewLimits
    notes: tuple[str, ...]


async def propose(store: ClusterStore, rows: Sequence[Row]) -> Proposal | None:
    """Propose new limits if all rows of a job or an array ended for lack of time or memory.

    None for other rows. Queries usage, queues and nodes; missing answers only make the proposal
    poorer.
    """
    row = rows[0]
    states = {one["state"] for one in rows}
    offered = store.backend.submit.new_limits
    needs_time = JobState.TIMEOUT in states and "time_seconds" in offered
    needs_memory = JobState.OUT_OF_MEMORY in states and "memory_bytes" in offered
    is_killed = states == {JobState.FAILED} and all(
        one["exit_signal"] == signal.SIGKILL for one in rows
    )
    if is_killed:
        # Slurm without cgroups reports only a signal for a job that exceeded its memory.
        needs_memory = "memory_bytes" in offered
    elif not states <= {JobState.TIMEOUT, JobState.OUT_OF_MEMORY}:
        # Higher limits do not help a job that failed on its own.
        return None
    if not needs_time and not needs_memory:
        return None
    usage = await _usage(store, row) if needs_memory else Usage()
    peak = usage.memory_peak_bytes
    memory = _requested_memory(row, usage) if needs_memory else None
    if is_killed and (peak is None or peak <= (memory or math.inf)):
        return None
    new_time: int | None = None
    new_memory: int | None = None
    notes: list[str] = []
    if needs_time:
        new_time, notes = _propose_time(row, await _table(store, Kind.QUEUES))
    if needs_memory:
        nodes = await _table(store, Kind.NODES)
        new_memory, memory_notes = _propose_memory(row, memory, peak, nodes)
        notes += memory_notes
    return Proposal(
        before=NewLimits(row["limit_seconds"] or None, memory),
        proposed=NewLimits(new_time, new_memory),
        notes=tuple(notes),
    )


def _propose_time(row: Row, queues: pa.Table | None) -> tuple[int | None, list[str]]:
    """Propose a time limit in seconds, None if unknown, with notes on it."""
    limit = row["limit_seconds"]
    if not limit:
        return None, ["hit the time limit, which is unknown"]
    notes = [f"hit the time limit of {format_span(limit, exact=True)}"]
    proposed = _round_up(int(limit * _INCREASE), _TIME_STEPS)
    most = _most(queues, "limit_seconds", "name", row["queue"])
    if most is not None and proposed > most:
        proposed = max(most, limit)
        notes.append(f"queue {row['queue']} allows at most {format_span(most, exact=True)}")
    return proposed, notes


def _propose_memory(
    row: Row, limit: int | None, peak: int | None, nodes: pa.Table | None
) -> tuple[int | None, list[str]]:
    """Propose a memory limit in bytes per node, None if unknown, with notes on it."""
    if limit is None and peak is None:
        return None, ["ran out of memory; limit and usage are unknown"]
    limit_text = "unknown" if limit is None else f"{format_memory(limit)} per node"
    usage_text = "unknown" if peak is None else f"{format_memory(peak)} measured"
    notes = [f"ran out of memory (limit {limit_text}, usage {usage_text})"]
    needed = max((limit or 0) * _INCREASE, (peak or 0) * _PEAK_INCREASE)
    proposed = _round_up(int(needed), _MEMORY_STEPS)
    most = _most(nodes, "memory_bytes", "queues", row["queue"])
    if most is not None and proposed > most:
        proposed = max(most // _MIB * _MIB, limit or 0)
        notes.append(f"no node of {row['queue']} has more than {format_memory(most)}")
    return proposed, notes


def _requested_memory(row: Row, usage: Usage) -> int | None:
    """Return the requested bytes per node; None if unknown."""
    if usage.requested_memory_bytes is not None or row["memory_bytes"] is None:
        return usage.requested_memory_bytes
    return int(row["memory_bytes"]) // max(1, row["nodes"] or 1)


def _round_up(amount: int, steps: Sequence[tuple[float, int]]) -> int:
    step = next(step for most, step in steps if amount <= most)
    return -(-amount // step) * step


def _most(table: pa.Table | None, column: str, key: str, queue: str | None) -> int | None:
    """Return the largest value in a queue's rows; None without rows, or if one has no limit."""
    if table is None or queue is None:
        return None
    if pa.types.is_list(table.schema.field(key).type):
        lists = table[key].to_pylist()
        table = table.filter(pa.array([queue in (names or ()) for names in lists], pa.bool_()))
    else:
        table = table.filter(pc.fill_null(pc.equal(table[key], queue), False))
    if not table.num_rows or table[column].null_count:
        return None
    return int(pc.max(table[column]).as_py())


async def _table(store: ClusterStore, kind: Kind) -> pa.Table | None:
    """Return the store's table, else fetch it; None if that fails."""
    if (known := store.table(kind)) is not None:
        return known
    try:
        return (await store.fetch(kind)).table
    except HpcdashError:
        return None


async def _usage(store: ClusterStore, row: Row) -> Usage:
    query = store.backend.detail.usage(row)
    try:
        return Usage() if query is None else await store.run_query(query)
    except HpcdashError:
        return Usage()


def read_limits(typed: Mapping[str, str]) -> NewLimits:
    """Parse the typed limits `time` and `memory`. Raises UsageError."""
    try:
        time = parse_duration(typed["time"], bare_unit_seconds=MINUTE) if "time" in typed else None
        memory = parse_memory(typed["memory"], bare_unit_bytes=_MIB) if "memory" in typed else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if "time" in typed and not time:
        raise UsageError("a time limit must be finite and above zero, such as 2h or 1-12:00:00")
    if memory == 0:
        raise UsageError("memory must be above zero, such as 16G")
    return NewLimits(time, memory)
