"""Plans of submissions, each marked so that its job is found where the answer is lost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import JobScope
from hpcdash.backends.submissions import (
    MARK_START,
    SentFile,
    Submission,
    SubmitCommand,
    SubmittedRequest,
)
from hpcdash.domain.demand import format_finding
from hpcdash.domain.dependencies import split_after
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import Request
from hpcdash.domain.text import counted
from hpcdash.errors import HpcdashError, NoSuchJob, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Plan
from hpcdash.services.jobs.rows import ids_in_full, select_rows
from hpcdash.services.submit.launch_records import LaunchRecord

# How far the clocks of the cluster and of this machine may be apart.
CLOCKS_APART = timedelta(minutes=2)


class Search(Struct, frozen=True):
    """Criteria that recognise a new job.

    These are our mark in its comment or ID, or (mark '') its name and time of submission. `user`
    owns the job, '' for oneself; `others` are known other jobs, arrays by their number.
    """

    mark: str
    name: str | None
    not_before: datetime
    user: str = ""
    others: frozenset[str] = frozenset()


class SubmissionPlan(Struct, frozen=True):
    """Planned submission: commands, notes for a person, and the search for each new job.

    For a request there are also `shown`, the script or other text that will run, the `request` with
    the properties of its queue, and the `record` of the launch, whose job is still ''. `warnings`
    are about the script; `code_state` summarizes the state of the code.
    """

    plan: Plan
    notes: tuple[str, ...]
    searches: Mapping[str, Search]
    shown: str = ""
    request: Request | None = None
    record: LaunchRecord | None = None
    warnings: tuple[str, ...] = ()
    code_state: str = ""

    @property
    def name(self) -> str:
        """Name of the job; '' where only its script has it."""
        return "" if self.record is None else self.record.name

    @property
    def folder(self) -> str:
        """Folder in which the launch is staged; '' for none."""
        return "" if self.record is None else self.record.folder


class SubmissionResult(Struct, frozen=True):
    """Settled outcome of a submission.

    `message` is a note on its launch, `journal_problem` the reason that it is not in the journal;
    '' for none.
    """

    outcome: Outcome
    message: str = ""
    journal_problem: str = ""


def new_mark() -> str:
    return f"{MARK_START}{secrets.token_hex(5)}"


def build_plan(
    store: ClusterStore,
    *submits: SubmitCommand,
    before: Sequence[ActionCommand] = (),
    notes: Sequence[str] = (),
    rows: tuple[Mapping[str, Any], ...] = (),
    user: str = "",
    others: frozenset[str] = frozenset(),
) -> SubmissionPlan:
    """Build the plan of commands that submit one job each, after the commands `before` them.

    `user` and `others` are as in Search; `rows` are the jobs that are submitted again.
    """
    not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
    commands = list(before)
    searches = {}
    for submit in submits:
        [name] = submit.command.job_ids
        searches[name] = Search(
            mark=submit.mark,
            name=submit.job_name or None,
            not_before=not_before,
            user=user,
            others=others,
        )
        commands.append(submit.named_command)
    plan = Plan(ActionRequest(Verb.SUBMIT, tuple(searches)), rows, tuple(commands))
    return SubmissionPlan(plan, tuple(notes), searches)


async def refuse_large_array(store: ClusterStore, submission: Submission) -> None:
    """Raise UsageError for an array that exceeds the cluster's limit, if that limit is known."""
    query = store.backend.submit.array_refusal(submission)
    if query is None:
        return
    try:
        refusal = await store.run_query(query)
    except HpcdashError:
        return
    if refusal:
        raise UsageError(refusal, "Split the submission, or have each task do more work.")


def submitting_program(store: ClusterStore) -> str:
    """Return the submit command's path on the cluster, by which sudo runs it as another account.

    Raises UsageError if there is none.
    """
    program = store.backend.submit.program
    if not program:
        raise UsageError(
            f"run_as: {store.backend.title} runs jobs as the user who submits them",
            "Remove run_as from the request and the configuration.",
        )
    path = store.probe.commands.get(program, "") if store.probe else ""
    if not path.startswith("/"):
        raise UsageError(
            f"run_as: sudo needs the path of {store.backend.title}'s submit command, which was not "
            "found",
            "Remove run_as from the configuration.",
        )
    return path


async def after_in_full(store: ClusterStore, after: tuple[str, ...]) -> tuple[str, ...]:
    """Complete the job IDs of dependencies: PBS does not know the array 12[] as 12."""
    if not after or store.backend.has_whole_ids:
        return after
    conditions = tuple(map(split_after, after))
    ids = tuple(job_id for _, job_id in conditions)
    try:
        parsed = await store.run_query(store.backend.queue.jobs(JobScope(job_ids=ids)))
    except NoSuchJob:
        return after
    rows = await asyncio.to_thread(select_rows, parsed.table, ids)
    completed = []
    for kind, job_id in conditions:
        [full_id] = ids_in_full((job_id,), rows)
        completed.append(f"{kind}:{full_id}")
    return tuple(dict.fromkeys(completed))


def plan_submission(
    store: ClusterStore, submission: Submission, offers: Offers | None = None
) -> SubmissionPlan:
    """Plan the submission of a script; nothing is submitted.

    Its notes report problems of the script, and demands beyond the `offers`: the scheduler decides.
    `recovery.reconcile` finds the outcome of a submission whose answer was lost. Raises UsageError
    if it is impossible.
    """
    findings = store.backend.scripts.reader().lint_script(
        submission.script, offers or Offers(), submission.options
    )
    submit = store.backend.submit.submission(replace(submission, mark=new_mark()))
    notes = (*map(format_finding, findings), *submit.notes)
    return build_plan(store, submit, notes=notes, user=submission.run_as)


async def plan_script(
    store: ClusterStore, submission: Submission, offers: Offers | None = None
) -> SubmissionPlan:
    """Plan a script like `plan_submission`, after checks that query the cluster.

    These are the size of its array, the IDs in its dependencies, and its log folders. Raises
    UsageError if it is impossible, and the errors of an unreachable cluster.
    """
    from hpcdash.services.submit.checks import missing_log_folders

    await refuse_large_array(store, submission)
    submission = replace(submission, after=await after_in_full(store, submission.after))
    planned = plan_submission(store, submission, offers)
    missing = await missing_log_folders(store, submission)
    return replace(planned, notes=(*map(format_finding, missing), *planned.notes))


async def plan_request(
    store: ClusterStore,
    request: Request,
    text: str = "",
    base: Path | None = None,
    *,
    most_bytes: int = 0,
    files: Mapping[str, SentFile] = MappingProxyType({}),
) -> SubmissionPlan:
    """Plan the submission of a request to a scheduler that takes requests.

    The request's `files`, of at most `most_bytes`, are relative to the local folder `base`, None
    for the current one; if it names none, the `files` given here are sent. Files that the cluster
    has already are not sent again. Raises UsageError for features that the scheduler lacks, and the
    errors of an unreachable cluster.
    """
    from hpcdash.config.toml_text import without_secrets
    from hpcdash.services.submit.queues import fetch_offers

    if request.site.run_as:
        submitting_program(store)
    notes: tuple[str, ...] = ()
    if request.files:
        from hpcdash.services.submit.code_files import find_code_files, read_code_files

        code = await asyncio.to_thread(
            find_code_files, request.files, base or Path.cwd(), most_bytes
        )
        files = await asyncio.to_thread(read_code_files, code)
        unsent_links = len(code.files) - len(files)
        notes = (f"files: {code.text}",)
        if unsent_links:
            links = counted(unsent_links, "link")
            notes += (f"files: {links} omitted: the target is not among the files",)
    submitted = await asyncio.to_thread(build_request, store, request, files)
    before = submitted.before
    if submitted.is_sent is not None and await store.run_query(submitted.is_sent):
        before = ()
        notes = (*notes, "the package is already on the cluster and is not sent again")
    findings = store.backend.submit.request_findings(request, await fetch_offers(store))
    notes = (*notes, *map(format_finding, findings), *submitted.submission.notes)
    planned = build_plan(store, submitted.submission, before=before, notes=notes)
    [name] = planned.searches
    record = LaunchRecord(name=name, at=store.clock.now(), request=without_secrets(text))
    return replace(planned, shown=submitted.shown, request=request, record=record)


def build_request(
    store: ClusterStore, request: Request, files: Mapping[str, SentFile] = MappingProxyType({})
) -> SubmittedRequest:
    """Build what is submitted for a request with these files, without a query.

    Raises UsageError.
    """
    from hpcdash.job.zip import job_zip

    return store.backend.submit.request(request, job_zip(), new_mark(), files)
