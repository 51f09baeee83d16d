"""Puts a launch's commands together: its folder is made and filled, then its script is submitted from it."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from functools import cache

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.script.body import LIBRARY_NAME, REQUEST_NAME, SCRIPT_NAME, BatchScript, Place, has_library
from hpcdash.backends.script.call import call_files
from hpcdash.backends.submissions import MARK_START, Submission
from hpcdash.domain.request import Request
from hpcdash.errors import UsageError
from hpcdash.job.zip import job_zip
from hpcdash.stores.actions import Plan
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.launch_records import LaunchRecord
from hpcdash.stores.launches import PlannedLaunch, WantedLaunch
from hpcdash.stores.resubmission import CLOCKS_APART, Again, Search
from hpcdash.stores.staging import staged_files, staging_command

_SUBMITTING = ("sbatch", "qsub")


def planned_launch(
    store: ClusterStore,
    wanted: WantedLaunch,
    request: Request,
    place: Place,
    script: BatchScript,
    launch_program: str,
) -> PlannedLaunch:
    """The plan of a request whose script is made. With run_as, root's `launch_program` there writes the files.

    Raises UsageError for what cannot be staged or submitted.
    """
    run_as = request.site.run_as
    content, text = (part.encode("utf-8", "surrogateescape") for part in (script.text, wanted.text))
    own = {SCRIPT_NAME: content, **({REQUEST_NAME: text} if text else {})}
    if has_library(request, place):
        own[LIBRARY_NAME] = _library()
    if request.call is not None:
        own |= call_files(request.call)
    staged = staged_files(
        place.folder, own, wanted.files, run_as=run_as, launch_program=launch_program, at=store.clock.now()
    )
    submission = Submission(
        script=content,
        name=script.job_name,
        # In the script too, but only the command line is told of a job that has begun.
        after=request.after,
        mark=f"{MARK_START}{secrets.token_hex(5)}",
        file=f"{place.folder}/{SCRIPT_NAME}",
        run_as=run_as,
        program=_submitting_program(store) if run_as else "",
    )
    handover = store.backend.submission(submission)
    not_before = datetime.fromtimestamp(store.clock.now(), UTC) - CLOCKS_APART
    search = Search(handover.mark, handover.job_name or None, not_before, run_as)
    name = handover.command.job_ids[0]
    plan = Plan(ActionRequest(Verb.SUBMIT, (name,)), (), (staging_command(staged, name), handover.named_command))
    return PlannedLaunch(Again(plan, handover.notes, {name: search}), script, place, request, staged, wanted.text)


def record_of(planned: PlannedLaunch, outcome: Outcome, now: float) -> LaunchRecord:
    """What is to be remembered of a launch that was submitted, or may have been."""
    request = planned.request
    return LaunchRecord(
        folder=planned.staged.folder,
        sums=planned.staged.sums_digest,
        job_id=outcome.new_job,
        name=planned.script.job_name,
        keep=request.site.keep,
        run_as=request.site.run_as,
        tasks=request.array.count if request.array else 1,
        at=now,
        request=planned.text,
    )


@cache
def _library() -> bytes:
    try:
        return job_zip()
    except OSError as error:
        raise UsageError(
            f"hpcdash.job cannot be staged: {error}", "Write job_library = false, and have the job find it elsewhere."
        ) from None


def _submitting_program(store: ClusterStore) -> str:
    """The submit command's own path there: sudo looks for commands in places of its own."""
    found = store.probe.commands if store.probe else {}
    path = next((path for name in _SUBMITTING if (path := found.get(name, "")).startswith("/")), "")
    if not path:
        raise UsageError(
            f"run_as: the path of {store.backend.title}'s submit command is not known, which sudo needs",
            "Leave run_as out of the configuration.",
        )
    return path
