"""Plans of moving a waiting job to another queue or cluster: in place where the scheduler can, else
by a held copy there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.queries import Answer, Query, refused
from hpcdash.backends.submissions import MARK_START, Copy
from hpcdash.domain.array_tasks import ArrayTasks, joined_tasks
from hpcdash.domain.dependencies import waited_for_by
from hpcdash.domain.job_ids import read_job_id
from hpcdash.domain.job_text import state_word
from hpcdash.domain.share import parse_mark
from hpcdash.domain.states import WAITING, JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted
from hpcdash.errors import (
    AccountingUnavailable,
    CommandMissing,
    HpcdashError,
    NoSuchJob,
    UsageError,
)
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.jobs.rows import ids_in_full
from hpcdash.services.jobs.scripts import READ_FROM, fetch_script
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.state.journal import Journal, JournalUnreadable
from hpcdash.services.submit.launch_records import LaunchRecord
from hpcdash.services.submit.resubmission import Resubmission, fetch_past
from hpcdash.services.submit.submission import SubmissionPlan, build_plan, new_mark

Row = Mapping[str, Any]
_BY_HAND = "Cancel it and submit its script there yourself."
# The jobs of older moves are forgotten.
RECENT_SECONDS = 7 * 86_400.0
# Where a command needs the ID that the copy will have.
_COPY = "COPY"
_MAX_LISTED = 5
_PATHS_LIMIT_SECONDS = 30.0
_MAX_PATHS = 400
_MAX_PATH_BYTES = 60_000
_EXISTING = 'for path; do if [ -e "$path" ]; then echo 1; else echo 0; fi; done'
_WHOLE_PATH = re.compile(r"(?<![\w$}.~/-])/[\w.+@%-]+(?:/[\w.+@%-]+)*")
_RELATIVE_PATH = re.compile(r"(?<![\w$}~/.-])[\w.+-]+(?:/[\w.+-]+)*")
# These are a node's own, whatever the login node has.
_OF_A_NODE = ("/dev", "/proc", "/sys")


class CannotMove(HpcdashError):
    """A job cannot be moved, for a reason of its own or of a scheduler."""


class Destination(Struct, frozen=True):
    """Place on a cluster that a job is moved to; '' where its own is kept."""

    queue: str = ""
    account: str = ""
    qos: str = ""

    @property
    def changes(self) -> dict[str, str]:
        """The given names."""
        return {name: value for name, value in asdict(self).items() if value}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.changes.items())


class MovePlan(Struct, frozen=True):
    """Planned move of a job or an array to a place on the cluster of `target`.

    `plan` has all commands for a person, `notes` are facts on the move. Either `change` is the plan
    of a move in place, or `copy` that of the submission of a held copy. `is_held`: the job was held
    before, and so will be its copy. `record` is its launch, if hpcdash recorded it.
    """

    source: ClusterSession
    target: ClusterSession
    destination: Destination
    plan: Plan
    notes: tuple[str, ...] = ()
    change: Plan | None = None
    copy: SubmissionPlan | None = None
    is_held: bool = False
    record: LaunchRecord | None = None

    @property
    def job_id(self) -> str:
        [job_id] = self.plan.request.job_ids
        return job_id

    @property
    def mark(self) -> str:
        """Mark of the copy."""
        assert self.copy is not None
        return self.copy.searches[self.job_id].mark


async def plan_move(
    source: ClusterSession,
    target: ClusterSession,
    job_id: str,
    destination: Destination,
    *,
    in_place: bool = True,
) -> MovePlan:
    """Plan the move of a waiting job; nothing is changed. Without `in_place`, always by a copy.

    Raises CannotMove with the reason, UsageError for no place or one that the job has already,
    NoSuchJob, SchedulerRefused and AccountingUnavailable if its script is unavailable, and the
    errors of an unreachable cluster.
    """
    await source.store.open(force=True)
    rows = await source.actions.fetch_rows((job_id,))
    if not rows:
        raise NoSuchJob(f"job {job_id} is not in the queue of {source.name}", "")
    [full_id] = ids_in_full((job_id,), rows)
    _require_own_waiting(source, full_id, rows)
    _refuse_unsettled(source.actions.journal, source.name, full_id)
    there = target.store.backend
    if destination.qos and "qos" not in there.actions.alterable:
        raise CannotMove(f"{there.title} jobs have no QoS", "Use --queue or --account.")
    if source.name == target.name:
        present = rows[0]
        changes = {
            name: value
            for name, value in destination.changes.items()
            if any(row[name] != value for row in rows)
        }
        if not destination.changes:
            raise UsageError(
                "no place specified", "Name a queue, an account, a QoS or another cluster."
            )
        if not changes:
            where = Destination(**{name: present[name] for name in destination.changes})
            raise UsageError(f"job {full_id} has this place already: {where}")
        backend = source.store.backend
        if in_place and changes.keys() <= backend.actions.movable:
            return _plan_in_place(source, full_id, rows, Destination(**changes))
        if not backend.submit.copies:
            names = " and ".join(sorted(changes))
            raise CannotMove(
                f"{backend.title} cannot move a job to another {names}",
                "`hpcdash where --like JOB` lists the places on all clusters.",
            )
    else:
        await target.store.open(force=True)
    return await _plan_copy(source, target, full_id, rows, destination)


def _require_own_waiting(source: ClusterSession, job_id: str, rows: Sequence[Row]) -> None:
    store = source.store
    others = {row["user"] for row in rows} - {None, store.user}
    if store.user and others:
        raise CannotMove(f"job {job_id} is {others.pop()}'s", "Only its owner can move it.")
    states = {row["state"] for row in rows}
    if not states & WAITING:
        state = state_word(str(rows[0]["state"]))
        raise CannotMove(f"job {job_id} is not waiting: it is {state}")
    if JobState.REQUEUED in states:
        raise CannotMove(f"job {job_id} is being requeued", "Move it once it is pending.")


def _refuse_unsettled(journal: Journal, cluster: str, job_id: str) -> None:
    """Raise CannotMove for a job whose earlier move was interrupted, or is running."""
    try:
        entries, _ = journal.read()
    except JournalUnreadable:
        return
    for entry in entries:
        is_same = entry.verb == Verb.MOVE and entry.cluster == cluster and job_id in entry.job_ids
        is_same &= journal.age_seconds(entry) <= RECENT_SECONDS
        if is_same and entry.state == "running":
            raise CannotMove(f"job {job_id} is being moved already", "Wait for it.")
        if is_same and entry.state == "unknown":
            raise CannotMove(
                f"an earlier move of job {job_id} has no known outcome",
                "hpcdash journal --settle finishes or undoes it.",
            )


def _plan_in_place(
    source: ClusterSession, job_id: str, rows: Sequence[Row], destination: Destination
) -> MovePlan:
    changes = destination.changes
    change = source.actions.plan(ActionRequest(Verb.ALTER, (job_id,), changes=changes), rows)
    request = ActionRequest(Verb.MOVE, (job_id,), changes=changes)
    plan = Plan(request, tuple(rows), change.commands)
    notes = ("in place: it keeps its ID",)
    return MovePlan(source, source, destination, plan, notes=notes, change=change)


# -- by a copy


async def _plan_copy(
    source: ClusterSession,
    target: ClusterSession,
    job_id: str,
    rows: Sequence[Row],
    destination: Destination,
) -> MovePlan:
    _require_copies(source, target)
    row = rows[0]
    _require_whole(job_id, row)
    _refuse_ties(source, job_id, rows)
    tasks = await _require_unstarted(source, job_id, rows)
    await _refuse_dependents(source, job_id, row)
    detail = await source.store.fetch_detail(job_id)
    script, past = await asyncio.gather(
        _fetch_stored_script(source, job_id, detail),
        fetch_past(source.store, Resubmission(job_id, tasks, tuple(rows))),
    )
    record = await asyncio.to_thread(_find_record, source, job_id, row)
    copy = Copy(
        job_id=job_id,
        replaces=re.sub(r"[^\w.@:\[\]-]", "_", f"{job_id}@{source.name}"),
        **destination.changes,
        is_elsewhere=source.name != target.name,
        is_ours=await asyncio.to_thread(_is_ours, source, job_id, row, record),
    )
    try:
        submit = target.store.backend.submit.resubmission(
            detail, past, script, tasks=tasks, mark=new_mark(), copy=copy
        )
    except UsageError as error:
        raise CannotMove(error.message, error.next_step) from error
    notes = list(submit.notes)
    if copy.is_elsewhere:
        compared = await _require_paths(source, target, detail, script, submit.command)
        if compared:
            exist = "exists" if compared == 1 else "exist"
            paths = counted(compared, "path")
            notes.append(f"{paths} of the job {exist} on both clusters; contents may differ")
    notes.append("the copy has a new ID and starts waiting anew")
    is_held = all(one["state"] == JobState.HELD for one in rows)
    if is_held:
        notes.append("it is held, and so will be the copy")
    planned = build_plan(target.store, submit, rows=tuple(rows))
    commands = _all_commands(source, target, job_id, planned, is_held=is_held)
    request = ActionRequest(Verb.MOVE, (job_id,), changes=destination.changes)
    return MovePlan(
        source,
        target,
        destination,
        Plan(request, tuple(rows), tuple(commands)),
        tuple(dict.fromkeys(notes)),
        copy=planned,
        is_held=is_held,
        record=record,
    )


async def _fetch_stored_script(source: ClusterSession, job_id: str, detail: JobDetail) -> Script:
    """Fetch a job's script as it was submitted; raise CannotMove if the scheduler has none."""
    script = await fetch_script(source.store, job_id, detail=detail)
    if script.source.startswith(READ_FROM):
        raise CannotMove(
            f"the script of job {job_id} is unknown: {source.store.backend.title} does not return "
            "it, and its file may have changed since",
            _BY_HAND,
        )
    return script


def _require_whole(job_id: str, row: Row) -> None:
    """Raise CannotMove for a part of an array or of a heterogeneous job."""
    number = read_job_id(str(row["id"]))
    if number is not None and number.component is not None:
        raise CannotMove(f"job {job_id} is heterogeneous", _BY_HAND)
    if job_id != (row["array_id"] or row["id"]):
        raise CannotMove(
            f"{job_id} is a part of {row['array_id'] or row['id']}",
            "A move to another cluster takes a whole job or array.",
        )


def _require_copies(source: ClusterSession, target: ClusterSession) -> None:
    """Raise CannotMove where one of the schedulers cannot take its part in a move by a copy."""
    for session in (source, target):
        backend = session.store.backend
        if not backend.submit.copies or Capability.HOLD not in backend.capabilities:
            raise CannotMove(
                f"{session.name}: {backend.title} takes no held copy of a job", _BY_HAND
            )
    here = source.store.backend
    there = target.store.backend
    if here.name != there.name:
        raise CannotMove(
            f"{target.name} has {there.title}, and the job's script and options are for "
            f"{here.title}",
            _BY_HAND,
        )
    probe = source.store.probe
    if probe is not None and probe.has_accounting is False and not here.queue.finds_ended:
        raise CannotMove(
            f"{here.title} keeps no ended jobs on {source.name}: whether the job had started when "
            "it was cancelled would be unknown",
            _BY_HAND,
        )


def _refuse_ties(source: ClusterSession, job_id: str, rows: Sequence[Row]) -> None:
    """Raise CannotMove for a job that waits for something that a copy would not wait for."""
    now = source.store.clock.now()
    for row in rows:
        if row["dependency"]:
            raise CannotMove(
                f"job {job_id} waits for other jobs ({row['dependency']})",
                "Move it once they have ended.",
            )
        if row["eligible_at"] is not None and row["eligible_at"].timestamp() > now:
            raise CannotMove(
                f"job {job_id} has a begin time, which a copy would not keep", _BY_HAND
            )
        if parse_mark(row["comment"]) is not None:
            raise CannotMove(f"job {job_id} is a task of a shared pool", "Its pool decides on it.")


async def _require_unstarted(
    source: ClusterSession, job_id: str, rows: Sequence[Row]
) -> ArrayTasks | None:
    """Return the tasks of an array, None for a plain job. Raises UsageError for an array of which
    some tasks have started.
    """
    if rows[0]["array_id"] is None:
        return None
    from hpcdash.services.jobs.triage import array_tasks

    known = list(rows)
    try:
        query = source.store.backend.history.jobs(None, 0, (job_id,))
        known += (await source.store.run_query(query)).table.to_pylist()
    except (AccountingUnavailable, CommandMissing, NoSuchJob):
        # The queue alone decides.
        pass
    if any(row["state"] not in WAITING for row in known):
        raise CannotMove(
            f"some tasks of array {job_id} have started", "Only a whole waiting array is moved."
        )
    tasks = joined_tasks(task for row in rows for task in (array_tasks(row) or ()))
    if tasks is None:
        raise CannotMove(f"the tasks of array {job_id} are unknown", _BY_HAND)
    return tasks


async def _refuse_dependents(source: ClusterSession, job_id: str, row: Row) -> None:
    everyone = (await source.store.fetch(Kind.EVERYONE)).table.to_pylist()
    waiting = [one for one in everyone if one["state"] in WAITING]
    branches = waited_for_by(job_id, row["array_id"], waiting)
    if branches:
        ids = _listed(branch.job_id for branch in branches)
        raise CannotMove(
            f"other jobs wait for job {job_id}: {ids}",
            "They would wait for the cancelled one: move it once they are gone.",
        )


def _find_record(source: ClusterSession, job_id: str, row: Row) -> LaunchRecord | None:
    try:
        return source.launches.records.find_by_job(job_id, str(row["name"] or ""))
    except StateUnusable:
        return None


def _is_ours(source: ClusterSession, job_id: str, row: Row, record: LaunchRecord | None) -> bool:
    """Whether hpcdash submitted a job, whose environment is that of a new session."""
    if record is not None or str(row["comment"] or "").startswith(MARK_START):
        return True
    try:
        entries, _ = source.actions.journal.read()
    except JournalUnreadable:
        return False
    return any(
        outcome.new_job == job_id
        for entry in entries
        if entry.cluster == source.name and entry.verb == Verb.SUBMIT
        for outcome in entry.outcomes
    )


# -- paths


async def _require_paths(
    source: ClusterSession,
    target: ClusterSession,
    detail: JobDetail,
    script: Script,
    command: ActionCommand,
) -> int:
    """Raise CannotMove for paths of a job that exist on its own cluster and not on the other.

    Returns how many exist on both.
    """
    row = detail.row
    folder = str(row["work_dir"] or "")
    required = [folder] if folder else []
    required += [
        str(path).rpartition("/")[0] or "/"
        for path in (row["stdout_path"], row["stderr_path"])
        if path and str(path).startswith("/")
    ]
    named = dict.fromkeys((*required, *_named_paths(script.text, command.argv, folder)))
    paths = _within_limits(named)
    present = await source.store.run_query(_existing_query(paths))
    # A login node may lack the folder that the job's nodes have.
    needed = list(dict.fromkeys((*filter(None, (folder,)), *present)))
    there = await target.store.run_query(_existing_query(needed))
    missing = [path for path in needed if path not in there]
    if missing:
        raise CannotMove(
            f"not on {target.name}: {_listed(missing)}", "Copy them there to the same paths."
        )
    return len(present)


def _named_paths(script: str, argv: Sequence[str], folder: str) -> Iterator[str]:
    """Yield the paths that a script and its options may name, of which many may not exist."""
    lines = [line for line in script.splitlines() if not line.startswith(("# ", "##", "#!"))]
    text = "\n".join((*lines, *argv))
    for path in _WHOLE_PATH.findall(text):
        if not any(f"{path}/".startswith(f"{top}/") for top in _OF_A_NODE):
            yield path
    if folder.startswith("/"):
        for path in _RELATIVE_PATH.findall("\n".join(lines)):
            yield f"{folder}/{path}"


def _within_limits(paths: Iterable[str]) -> list[str]:
    """Return as many paths as a command takes."""
    taken: list[str] = []
    size = 0
    for path in paths:
        size += len(path.encode("utf-8", "surrogateescape")) + 8
        if len(taken) >= _MAX_PATHS or size > _MAX_PATH_BYTES:
            break
        taken.append(path)
    return taken


def _existing_query(paths: Sequence[str]) -> Query[list[str]]:
    """Query which of some paths exist on a cluster's login node."""

    def read(answer: Answer) -> list[str]:
        found = answer.stdout.split()[-len(paths) :] if paths else []
        if answer.status != 0 or len(found) != len(paths) or set(found) - {b"0", b"1"}:
            raise refused(answer, "the job's paths could not be checked")
        return [path for path, is_there in zip(paths, found, strict=True) if is_there == b"1"]

    argv = ("sh", "-c", _EXISTING, "sh", *paths)
    return Query(argv, read, _PATHS_LIMIT_SECONDS, ("sh", "-c", "test -e …"))


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"{', '.join(known[:_MAX_LISTED])}{more}"


# -- commands for a person


def _all_commands(
    source: ClusterSession,
    target: ClusterSession,
    job_id: str,
    planned: SubmissionPlan,
    *,
    is_held: bool,
) -> Iterator[ActionCommand]:
    """Yield the commands of a move by a copy, in order; the last has the word COPY for its ID."""
    is_elsewhere = source.name != target.name

    def shown(session: ClusterSession, commands: Sequence[ActionCommand]) -> list[ActionCommand]:
        if not is_elsewhere:
            return list(commands)
        return [replace(one, shown=(f"{session.name}:", one.text)) for one in commands]

    def build(session: ClusterSession, verb: Verb, named: str) -> Sequence[ActionCommand]:
        return session.actions.plan(ActionRequest(verb, (named,))).commands

    if not is_held:
        yield from shown(source, build(source, Verb.HOLD, job_id))
    yield from shown(target, planned.plan.commands)
    yield from shown(source, build(source, Verb.CANCEL, job_id))
    if not is_held:
        release = [
            replace(one, argv=(*one.argv[:-1], _COPY), job_ids=(job_id,))
            for one in build(target, Verb.RELEASE, "1")
        ]
        yield from shown(target, release)
