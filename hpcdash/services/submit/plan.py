"""Plans a submission: a batch script, or a job submitted again, marked so that a lost answer can be
looked for.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.job_detail import JobDetail
from hpcdash.backends.queries import JobScope
from hpcdash.backends.submissions import (
    AS_IT_WAS,
    MARK_START,
    NewLimits,
    SentFile,
    Submission,
    SubmitCommand,
    SubmittedRequest,
)
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.demand import LintFinding, format_finding
from hpcdash.domain.dependencies import split_after
from hpcdash.domain.job_ids import joined_tasks, parse_array_id
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import Request
from hpcdash.domain.text import counted
from hpcdash.errors import (
    AccountingUnavailable,
    CommandMissing,
    HpcdashError,
    NoSuchJob,
    UnreadableOutput,
    UsageError,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import whole_file_query
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.jobs.rows import ids_in_full, select_rows
from hpcdash.services.jobs.scripts import READ_FROM, fetch_script
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit.recovery import CLOCKS_APART, Search

Row = Mapping[str, Any]
# Each has its own script and options, which are asked for, and its own command.
MOST_AT_ONCE = 10
# Of one array, each a command.
_MOST_PARTS = 100
# The history learns of a job a moment after the scheduler does, and of how it was submitted last.
_HISTORY_LAG_SECONDS = 4.0
# Slurm's own limit for a batch script (SchedulerParameters=max_script_size).
_MOST_BYTES = 4 << 20


class SubmissionPlan(Struct, frozen=True):
    """What would be submitted: the commands, what a person should know of it, and how each new job
    is recognised.
    """

    plan: Plan
    notes: tuple[str, ...]
    searches: Mapping[str, Search]


async def refuse_large_array(store: ClusterStore, wanted: Submission) -> None:
    """Raises UsageError for an array that is larger than the cluster takes; where that cannot be
    asked it is sent.
    """
    query = store.backend.submit.array_refusal(wanted)
    if query is None:
        return
    try:
        why = await store.ask(query)
    except HpcdashError:
        return
    if why:
        raise UsageError(why, "Submit it in parts, or let each task do more.")


def submitting_program(store: ClusterStore) -> str:
    """The submit command's own path there, by which sudo runs it as another account; raises
    UsageError for none.
    """
    program = store.backend.submit.program
    if not program:
        raise UsageError(
            f"run_as: {store.backend.title} runs jobs as whoever submits them",
            "Leave run_as out, and remove it from the configuration.",
        )
    path = (store.probe.commands if store.probe else {}).get(program, "")
    if not path.startswith("/"):
        raise UsageError(
            f"run_as: sudo needs the path of {store.backend.title}'s submit command, which is "
            f"unknown",
            "Remove run_as from the configuration.",
        )
    return path


async def after_in_full(store: ClusterStore, after: tuple[str, ...]) -> tuple[str, ...]:
    """What a job waits for, with jobs as the scheduler names them: PBS knows no 12 where that is
    the array 12[].
    """
    if not after or store.backend.has_whole_ids:
        return after
    conditions = tuple(map(split_after, after))
    ids = tuple(job_id for _, job_id in conditions)
    try:
        parsed = await store.ask(store.backend.queue.jobs(JobScope(job_ids=ids)))
    except NoSuchJob:
        return after
    rows = await asyncio.to_thread(select_rows, parsed.table, ids)
    return tuple(
        dict.fromkeys(f"{kind}:{ids_in_full((job_id,), rows)[0]}" for kind, job_id in conditions)
    )


def plan_submission(
    store: ClusterStore, wanted: Submission, offers: Offers | None = None
) -> SubmissionPlan:
    """What handing a script in would run; nothing is submitted.

    Raises UsageError for what cannot be.

    Its notes name what is wrong with the script, and what it asks for beyond the `offers`: the
    scheduler decides. `recovery.reconcile` finds out what became of one whose answer was lost.
    """
    findings = store.backend.scripts.reader().lint_script(
        wanted.script, offers or Offers(), wanted.options
    )
    marked = replace(wanted, mark=f"{MARK_START}{secrets.token_hex(5)}")
    submit = store.backend.submit.submission(marked)
    not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
    request = ActionRequest(Verb.SUBMIT, submit.command.job_ids)
    searches = {
        wanted.name: Search(submit.mark, submit.job_name or None, not_before, wanted.run_as)
    }
    notes = (*map(format_finding, findings), *submit.notes)
    return SubmissionPlan(Plan(request, (), (submit.named_command,)), notes, searches)


class RequestPlan(SubmissionPlan, frozen=True):
    """What handing in a request without a batch script would run; `shown` is what a person reads of
    it.
    """

    shown: str


async def plan_request(
    store: ClusterStore,
    request: Request,
    base: Path | None = None,
    *,
    most_bytes: int = 0,
    files: Mapping[str, SentFile] = MappingProxyType({}),
) -> RequestPlan:
    """What handing a request in as it is would run; what was sent before is not sent again.

    `base` is the folder here that its `files`, of `most_bytes` at most, are relative to; None: the
    current one. Of a request that names none `files` are sent. Raises UsageError for what the
    scheduler does not have, and what keeps the cluster from answering.
    """
    if request.site.run_as:
        submitting_program(store)
    notes: tuple[str, ...] = ()
    if request.files:
        from hpcdash.services.submit.code_files import find_code_files, read_code_files

        code = await asyncio.to_thread(
            find_code_files, request.files, base or Path.cwd(), most_bytes
        )
        files = await asyncio.to_thread(read_code_files, code)
        left_out = len(code.files) - len(files)
        notes = (f"files: {code.words}",)
        if left_out:
            notes += (f"files: {counted(left_out, 'link')} left out, as no target is sent",)
    submitted = await asyncio.to_thread(build_request, store, request, files)
    before = submitted.before
    if submitted.is_sent is not None and await store.ask(submitted.is_sent):
        before, notes = (), (*notes, "its package is already there: not sent again")
    notes = (*notes, *map(format_finding, await _findings(store, request)))
    name = submitted.submission.command.job_ids[0]
    not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
    search = Search(submitted.submission.mark, submitted.submission.job_name or None, not_before)
    plan = Plan(
        ActionRequest(Verb.SUBMIT, (name,)), (), (*before, submitted.submission.named_command)
    )
    return RequestPlan(plan, (*notes, *submitted.submission.notes), {name: search}, submitted.shown)


async def _findings(store: ClusterStore, request: Request) -> tuple[LintFinding, ...]:
    from hpcdash.services.submit.queues import fetch_offers

    return store.backend.submit.request_findings(request, await fetch_offers(store))


def build_request(
    store: ClusterStore, request: Request, files: Mapping[str, SentFile] = MappingProxyType({})
) -> SubmittedRequest:
    """A request as it would be handed in with these files; asks nothing. Raises UsageError."""
    from hpcdash.job.zip import job_zip

    return store.backend.submit.request(
        request, job_zip(), f"{MARK_START}{secrets.token_hex(5)}", files
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
    """What rows stand for, an array's tasks together."""
    from hpcdash.services.jobs.triage import array_tasks

    arrays: dict[str, list[Row]] = {}
    wanted: list[Resubmission] = []
    for row in rows:
        if row["array_id"]:
            arrays.setdefault(str(row["array_id"]), []).append(row)
        else:
            wanted.append(Resubmission(str(row["id"]), None, (row,)))
    for array_id, members in arrays.items():
        tasks = joined_tasks(task for row in members for task in (array_tasks(row) or ()))
        wanted.append(Resubmission(array_id, tasks, tuple(members)))
    return tuple(wanted)


class ResubmissionPlan(SubmissionPlan, frozen=True):
    """What submitting jobs again would run.

    Where its plan has `parts`, array_parts.submit_parts runs it: with `is_chained` each part waits
    for the one before it, the first one for the job `after`, '' for none.
    """

    is_chained: bool = False
    after: str = ""


async def plan_again(
    store: ClusterStore,
    wanted: Sequence[Resubmission],
    limits: NewLimits = AS_IT_WAS,
    journal: Journal | None = None,
) -> ResubmissionPlan:
    """What submitting these again, with these limits in place of theirs, would run; nothing is
    submitted.

    The tasks of an array that are no one submission are planned in parts; those that the `journal`
    has of an earlier submission that broke off are left out. Raises UsageError for what cannot be,
    SchedulerRefused and AccountingUnavailable where a script is not to be had, NoSuchJob, and what
    keeps the cluster from answering.
    """
    if len(wanted) > MOST_AT_ONCE:
        raise UsageError(
            f"{len(wanted)} jobs and arrays are too many to resubmit at once",
            f"Mark at most {MOST_AT_ONCE}.",
        )
    notes: list[str] = []
    made: list[tuple[Resubmission, SubmitCommand]] = []
    for one in wanted:
        parts = () if one.tasks is None else store.backend.submit.array_parts(one.tasks)
        if len(parts) > 1 and len(wanted) > 1:
            raise UsageError(
                f"{store.backend.title} takes the tasks {one.tasks} of {one.job_id} in "
                f"{len(parts)} submissions",
                "Resubmit this array alone.",
            )
        if len(parts) > 1:
            return await _plan_parts(store, one, limits, journal)
    for one in wanted:
        (submit,), own_notes = await _prepare(store, one, limits, (one.tasks,))
        made.append((one, submit))
        name = f"{one.job_id}: " if len(wanted) > 1 else ""
        notes += [note for own_note in own_notes if (note := f"{name}{own_note}") not in notes]
    return _build_plan(store, made, notes)


async def _plan_parts(
    store: ClusterStore, wanted: Resubmission, limits: NewLimits, journal: Journal | None
) -> ResubmissionPlan:
    from hpcdash.services.submit.sent_parts import SentParts, find_sent_parts, job_to_wait_for

    assert wanted.tasks is not None
    sent = (
        SentParts()
        if journal is None
        else await find_sent_parts(store, journal, wanted.job_id, wanted.tasks)
    )
    left = joined_tasks(
        task for task in wanted.tasks if sent.tasks is None or not sent.tasks.contains(task)
    )
    parts = store.backend.submit.array_parts(left or wanted.tasks)
    if len(parts) > _MOST_PARTS:
        raise UsageError(
            f"{store.backend.title} takes these tasks in {len(parts)} submissions, and "
            f"{_MOST_PARTS} are the most",
            "Mark fewer of them.",
        )
    submits, notes = await _prepare(store, wanted, limits, parts)
    planned = _build_plan(store, [(wanted, submit) for submit in submits], notes)
    throttle = submits[0].throttle
    is_chained = throttle is not None and wanted.tasks.count > throttle
    notes = [
        f"{store.backend.title} takes a range of tasks at a time: "
        f"{counted(len(parts), 'submission')}",
        *notes,
    ]
    if is_chained:
        notes.insert(
            1,
            f"each waits for the end of the one before it (afterany), so that no more than "
            f"{throttle} run",
        )
    if sent.tasks is not None:
        notes.insert(
            0,
            f"tasks {sent.tasks} are left out: they were sent before the last submission broke off",
        )
    names = tuple(name for submit in submits for name in submit.command.job_ids)
    return replace(
        planned,
        plan=replace(planned.plan, parts=(*sent.names, *names)),
        notes=tuple(notes),
        is_chained=is_chained,
        after=await job_to_wait_for(store, sent) if is_chained else "",
    )


def _build_plan(
    store: ClusterStore, made: Sequence[tuple[Resubmission, SubmitCommand]], notes: Sequence[str]
) -> ResubmissionPlan:
    searches: dict[str, Search] = {}
    for one, submit in made:
        job_id = submit.command.job_ids[0]
        not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
        others = frozenset({parse_array_id(one.job_id)})
        searches[job_id] = Search(submit.mark, submit.job_name or None, not_before, others=others)
    request = ActionRequest(Verb.SUBMIT, tuple(submit.command.job_ids[0] for _, submit in made))
    rows = tuple({id(row): row for one, _ in made for row in one.rows}.values())
    return ResubmissionPlan(
        Plan(request, rows, tuple(submit.named_command for _, submit in made)),
        tuple(notes),
        searches,
    )


async def _prepare(
    store: ClusterStore, wanted: Resubmission, limits: NewLimits, parts: Sequence[ArrayTasks | None]
) -> tuple[list[SubmitCommand], list[str]]:
    """A command for each part, with a mark of its own, and what a person should know of them."""
    asked = wanted.job_id
    detail = await _detail(store, wanted)
    script, past = await asyncio.gather(
        fetch_script(store, asked, detail=detail), _past(store, wanted)
    )
    submits = [
        store.backend.submit.resubmission(
            detail, past, script, part, f"{MARK_START}{secrets.token_hex(5)}", limits
        )
        for part in parts
    ]
    submit = submits[0]
    if submit.check is not None:
        await store.ask(submit.check)
    lines = script.text.count("\n") or 1
    warning = "; it may have changed since" if script.source.startswith(READ_FROM) else ""
    return submits, [
        f"script: {lines} line{'s' * (lines != 1)}, {script.source}{warning}",
        *submit.notes,
    ]


async def _detail(store: ClusterStore, wanted: Resubmission) -> JobDetail:
    """Of an array that has ended in part, a task's: its own row may be gone."""
    try:
        return await store.fetch_detail(wanted.job_id)
    except NoSuchJob:
        if not wanted.rows or wanted.rows[0]["id"] == wanted.job_id:
            raise
        return await store.fetch_detail(str(wanted.rows[0]["id"]))


async def _past(store: ClusterStore, wanted: Resubmission) -> Mapping[str, str]:
    """What the history says of a job; {} where there is none."""
    if store.probe is not None and store.probe.has_accounting is False:
        return {}
    submitted_at = [
        row["submitted_at"].timestamp() for row in wanted.rows if row["submitted_at"] is not None
    ]
    age = store.clock.now() - max(submitted_at, default=0.0)
    if 0 <= age < _HISTORY_LAG_SECONDS:
        await asyncio.sleep(_HISTORY_LAG_SECONDS - age)
    try:
        return await store.ask(store.backend.history.native(wanted.job_id))
    except (NoSuchJob, AccountingUnavailable, CommandMissing):
        return {}


async def read_here(path: str) -> bytes:
    """A file of this machine, `~` for the home. Raises UsageError."""
    return await asyncio.to_thread(_read, path)


async def read_there(store: ClusterStore, path: str) -> bytes:
    """A file of the cluster.

    Raises UsageError where it cannot be read, and what keeps the cluster from answering.
    """
    await store.open()
    try:
        return await store.ask(whole_file_query(path_there(path), _MOST_BYTES))
    except UnreadableOutput as error:
        raise UsageError(f"{path}: {error.message} (on the cluster)") from error


def path_there(path: str) -> str:
    """A path as commands on the cluster take it, which run in the home."""
    return "." if path == "~" else path.removeprefix("~/")


def _read(path: str) -> bytes:
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            raise UsageError(
                f"{path}: {'a folder' if file.is_dir() else 'no such file on this machine'}"
            )
        with file.open("rb") as stream:
            return _fitting(stream.read(_MOST_BYTES + 1), path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:
        # The home of nobody, or a NUL.
        raise UsageError(f"{path}: no path") from error


def _fitting(content: bytes, path: str) -> bytes:
    if len(content) > _MOST_BYTES:
        raise UsageError(
            f"{path}: more than {_MOST_BYTES >> 20} MiB: check that it is a batch script"
        )
    return content
