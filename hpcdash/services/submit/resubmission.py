"""Submits jobs again: plans them, an array's tasks in parts where the scheduler takes no list of
them, and proposes more time or memory for a job that was ended for want of it.
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
from hpcdash.backends.job_detail import JobDetail, Usage
from hpcdash.backends.queries import JobScope
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits, Submission, SubmitCommand
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import joined_tasks, parse_array_id, parse_job_id
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
# Each has its own script and options, which are fetched, and its own command.
MAX_AT_ONCE = 10
# Of one array, each a command.
_MAX_PARTS = 100
# The history learns of a job a moment after the scheduler does, and of how it was submitted last.
_HISTORY_LAG_SECONDS = 4.0
_MIB = 1 << 20
_GIB = 1 << 30
_MORE = 1.5
# Above the most that was sampled; samples miss short peaks.
_ABOVE_PEAK = 1.4
# (up to, in steps of): what a person would write.
_TIME_STEPS = ((HOUR, 5 * MINUTE), (6 * HOUR, 15 * MINUTE), (DAY, HOUR), (float("inf"), 6 * HOUR))
_MEMORY_STEPS = (
    (_GIB, 64 * _MIB),
    (8 * _GIB, 512 * _MIB),
    (64 * _GIB, _GIB),
    (float("inf"), 8 * _GIB),
)


class Resubmission(Struct, frozen=True):
    """A job to submit again: a plain one, or an array's number with the rows of the tasks that are
    meant.

    Without `tasks`, a whole array is meant; `rows` are of domain.schema.JOBS.
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

    If its plan has `parts`, `submit_parts` runs it: with `is_chained` each part waits for the one
    before it, the first one for the job `after`, '' for none.
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
    that the `journal` has of an earlier interrupted submission are left out. Raises UsageError if
    it is impossible, SchedulerRefused and AccountingUnavailable if a script is unavailable,
    NoSuchJob, and the errors of an unreachable cluster.
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
                f"{store.backend.title} takes the tasks {one.tasks} of {one.job_id} in "
                f"{len(parts)} submissions",
                "Resubmit this array alone.",
            )
        if len(parts) > 1:
            return await _plan_parts(store, one, limits, journal)
    notes: list[str] = []
    submits: list[SubmitCommand] = []
    for one in requested:
        [submit], own_notes = await _prepare(store, one, limits, (one.tasks,))
        submits.append(submit)
        name = f"{one.job_id}: " if len(requested) > 1 else ""
        notes += [note for own_note in own_notes if (note := f"{name}{own_note}") not in notes]
    return _build_plan(store, requested, submits, notes)


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
            f"{store.backend.title} takes these tasks in {len(parts)} submissions, and "
            f"{_MAX_PARTS} are the most",
            "Mark fewer of them.",
        )
    submits, own_notes = await _prepare(store, requested, limits, parts)
    throttle = submits[0].throttle
    is_chained = throttle is not None and tasks.count > throttle
    notes = [
        f"{store.backend.title} takes one task range at a time: {counted(len(parts), 'submission')}"
    ]
    if is_chained:
        notes.append(
            f"each waits for the previous one to end (afterany), so at most {throttle} run"
        )
    if sent:
        notes.insert(
            0,
            f"tasks {sent_tasks} are left out: they were sent before the last submission broke off",
        )
    planned = _build_plan(store, (requested,), submits, [*notes, *own_notes])
    plan = replace(planned.plan, parts=(*sent, *planned.plan.request.job_ids))
    after = await _unfinished_job(store, sent) if is_chained else ""
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
    """A command for each part, with a mark of its own, and what a person should know of them."""
    query = requested.job_id
    detail = await _detail(store, requested)
    script, past = await asyncio.gather(
        fetch_script(store, query, detail=detail), _past(store, requested)
    )
    submits = [
        store.backend.submit.resubmission(detail, past, script, part, new_mark(), limits)
        for part in parts
    ]
    submit = submits[0]
    if submit.check is not None:
        await store.run_query(submit.check)
    lines = counted(script.text.count("\n") or 1, "line")
    warning = "; it may have changed since" if script.source.startswith(READ_FROM) else ""
    return submits, [f"script: {lines}, {script.source}{warning}", *submit.notes]


async def _detail(store: ClusterStore, requested: Resubmission) -> JobDetail:
    """Fetch the detail of a job, or of a task if the row of its partly ended array is gone."""
    try:
        return await store.fetch_detail(requested.job_id)
    except NoSuchJob:
        if not requested.rows or requested.rows[0]["id"] == requested.job_id:
            raise
        return await store.fetch_detail(str(requested.rows[0]["id"]))


async def _past(store: ClusterStore, requested: Resubmission) -> Mapping[str, str]:
    """Fetch a job's fields from the history; {} if there are none."""
    if store.probe is not None and store.probe.has_accounting is False:
        return {}
    submitted_at = [
        row["submitted_at"].timestamp() for row in requested.rows if row["submitted_at"] is not None
    ]
    age = store.clock.now() - max(submitted_at, default=0.0)
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
    entries = [
        one
        for one in (await asyncio.to_thread(journal.read))[0]
        if one.cluster == store.name
        and one.verb == Verb.SUBMIT
        and one.parts
        and parse_array_id(one.parts[0]) == array_id
    ]
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
        # They are sent in order: a later one belongs to an earlier submission.
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
    """The new job of a part; '' where it was surely not submitted."""
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
    """The tasks in an id such as 12[3-12:3].server."""
    return parse_job_id(job_id).tasks or ArrayTasks(())


async def _unfinished_job(store: ClusterStore, sent: Mapping[str, str]) -> str:
    """The job of the last part that was sent; '' where it has ended."""
    if not sent:
        return ""
    job_id = [*sent.values()][-1]
    try:
        table = (await store.run_query(store.backend.queue.jobs(JobScope(job_ids=(job_id,))))).table
    except NoSuchJob:
        return ""
    return job_id if any(state not in ENDED for state in table["state"].to_pylist()) else ""


async def submit_parts(
    planned: ResubmissionPlan, launches: Launches, actions: Actions
) -> tuple[Outcome, ...]:
    """Submit a plan's commands one by one, each an action of its own in the journal;
    `planned.plan.parts` are all.

    The first that was not submitted, or of which that is not known, is the last.
    """
    commands = iter(planned.plan.commands)

    async def plan_part(before: tuple[str, ...]) -> SubmissionPlan:
        command = next(commands)
        [name] = command.job_ids
        waits_for = before or ((planned.after,) if planned.after else ())
        if planned.is_chained and waits_for:
            submit = launches.store.backend.submit
            phrased = submit.submission(Submission(b"#!/bin/sh\n", "x", after=waits_for))
            waiting = appended(SubmitCommand(command), phrased)
            command = command if waiting is None else waiting.command
        request = replace(planned.plan.request, job_ids=(name,))
        plan = replace(planned.plan, request=request, commands=(command,))
        return SubmissionPlan(plan, (), {name: planned.searches[name]})

    return await launches.submit_chain(plan_part, actions, len(planned.plan.commands))


def format_parts(outcomes: tuple[Outcome, ...], count: int) -> str:
    """`submitted again in 2 parts: 93[] 94[]`; of parts that broke off, what stands and how to send
    the rest.
    """
    standing = [outcome.new_job for outcome in outcomes if outcome.new_job]
    if len(standing) == count:
        return f"resubmitted in {counted(count, 'part')}: {' '.join(standing)}"
    last = outcomes[-1]
    stand = f", which stay: {' '.join(standing)}" if standing else ""
    return (
        f"{len(standing)} of {count} parts submitted{stand}; {last.job_id}: {last.text}; R "
        "sends the rest"
    )


# -- more time or memory


class Proposal(Struct, frozen=True):
    """Limits as they were and as they are proposed, None for what is not known or stays; `notes`
    say why.
    """

    before: NewLimits
    proposed: NewLimits
    notes: tuple[str, ...]


async def propose(store: ClusterStore, rows: Sequence[Row]) -> Proposal | None:
    """Propose new limits if all rows of a job or an array ended for lack of time or memory.

    None for other rows. Queries usage, queues and nodes; missing answers only make the proposal
    poorer.
    """
    starved = rows[0]
    states = {row["state"] for row in rows}
    offered = store.backend.submit.new_limits
    usage = Usage()
    if all(
        row["state"] == JobState.FAILED and row["exit_signal"] == signal.SIGKILL for row in rows
    ):
        # Slurm without cgroups ends a job by a signal alone where it used more than it had.
        wants_time = False
        wants_memory = "memory_bytes" in offered
        if not wants_memory:
            return None
        usage = await _usage(store, starved)
        had = _requested_memory(starved, usage) or math.inf
        if usage.memory_peak_bytes is None or usage.memory_peak_bytes <= had:
            return None
    elif states <= {JobState.TIMEOUT, JobState.OUT_OF_MEMORY}:
        wants_time = JobState.TIMEOUT in states and "time_seconds" in offered
        wants_memory = JobState.OUT_OF_MEMORY in states and "memory_bytes" in offered
        if wants_memory:
            usage = await _usage(store, starved)
    else:
        # A job that failed on its own would not do better with more.
        return None
    if not wants_time and not wants_memory:
        return None
    time: int | None = None
    memory: int | None = None
    had_memory: int | None = None
    notes: list[str] = []
    if wants_time:
        time, notes = _more_time(starved, await _table(store, Kind.QUEUES))
    if wants_memory:
        had_memory = _requested_memory(starved, usage)
        nodes = await _table(store, Kind.NODES)
        memory, memory_notes = _more_memory(starved, had_memory, usage.memory_peak_bytes, nodes)
        notes += memory_notes
    had_time = starved["limit_seconds"] or None
    return Proposal(NewLimits(had_time, had_memory), NewLimits(time, memory), tuple(notes))


def _more_time(row: Row, queues: pa.Table | None) -> tuple[int | None, list[str]]:
    had = row["limit_seconds"]
    if not had:
        return None, ["it ran out of time; its time limit is unknown"]
    notes = [f"it hit its time limit of {format_span(had, exact=True)}"]
    requested = _rounded_up(int(had * _MORE), _TIME_STEPS)
    most = _most(queues, "limit_seconds", "name", row["queue"])
    if most is not None and requested > most:
        requested = max(most, had)
        notes.append(f"queue {row['queue']} allows at most {format_span(most, exact=True)}")
    return requested, notes


def _more_memory(
    row: Row, had: int | None, peak: int | None, nodes: pa.Table | None
) -> tuple[int | None, list[str]]:
    if had is None and peak is None:
        return None, ["it ran out of memory; its limit and usage are unknown"]
    limit = "it had" if had is None else f"of the {format_memory(had)} it had on a node"
    usage = "its usage is unknown" if peak is None else f"measured usage {format_memory(peak)}"
    notes = [f"it ran out of memory: {limit}, {usage}"]
    requested = _rounded_up(int(max((had or 0) * _MORE, (peak or 0) * _ABOVE_PEAK)), _MEMORY_STEPS)
    most = _most(nodes, "memory_bytes", "queues", row["queue"])
    if most is not None and requested > most:
        requested = max(most // _MIB * _MIB, had or 0)
        notes.append(f"no node of {row['queue']} has more than {format_memory(most)}")
    return requested, notes


def _requested_memory(row: Row, usage: Usage) -> int | None:
    """Bytes on a node."""
    if usage.requested_memory_bytes is not None or row["memory_bytes"] is None:
        return usage.requested_memory_bytes
    return int(row["memory_bytes"]) // max(1, row["nodes"] or 1)


def _rounded_up(amount: int, steps: Sequence[tuple[float, int]]) -> int:
    step = next(step for most, step in steps if amount <= most)
    return -(-amount // step) * step


def _most(table: pa.Table | None, column: str, key: str, queue: str | None) -> int | None:
    """The largest value of what belongs to a queue; None where there is no such row, or one has no
    limit.
    """
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
    """Limits as a person writes them, by `time` and `memory`; raises UsageError for what is
    none.
    """
    try:
        time = parse_duration(typed["time"], bare_unit_seconds=MINUTE) if "time" in typed else None
        memory = parse_memory(typed["memory"], bare_unit_bytes=_MIB) if "memory" in typed else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if "time" in typed and not time:
        raise UsageError("a time limit must be finite and above zero: write 2h or 1-12:00:00")
    if memory == 0:
        raise UsageError("memory must be above zero: write 16G")
    return NewLimits(time, memory)
