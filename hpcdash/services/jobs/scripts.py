"""Fetches a job's batch script: from the scheduler, its history, the copy that hpcdash saved at
submission, or the submitted file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.errors import (
    AccountingUnavailable,
    CommandError,
    HpcdashError,
    NoSuchJob,
    SchedulerRefused,
)
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import whole_file_query

# Slurm takes no larger script by default (max_script_size of slurm.conf).
_MAX_BYTES = 4 << 20
# Prefix of the source of a script file, which may have changed since the submission.
READ_FROM = "read from "


async def fetch_script(
    store: ClusterStore, job_id: str, *, detail: JobDetail | None = None
) -> Script:
    """Fetch the script of a job, or of a task's array.

    `detail` is the job's, if it is known. Raises SchedulerRefused for another user's job and a job
    without a script, NoSuchJob, AccountingUnavailable, or the errors of an unreachable cluster.
    """
    obstacle: HpcdashError
    backend = store.backend
    queued = backend.scripts.query(job_id)
    past = backend.scripts.history_query(job_id)
    if queued is None or past is None:
        return await _fetch_copy(store, job_id, detail)
    try:
        return await store.run_query(queued)
    except SchedulerRefused as error:
        obstacle = error
    except NoSuchJob:
        try:
            return await store.run_query(past)
        except (NoSuchJob, AccountingUnavailable) as error:
            obstacle = error
    return await _fetch_file(store, job_id, detail, obstacle)


async def _fetch_copy(store: ClusterStore, job_id: str, detail: JobDetail | None) -> Script:
    """Read the copy saved at submission, else fetch the submitted file."""
    copies = store.scripts
    saved = None
    if copies is not None:
        saved = await asyncio.to_thread(copies.find, store.name, job_id)
    if copies is not None and saved is not None:
        submitted_at = None
        try:
            detail = detail or await store.fetch_detail(job_id)
            submitted_at = detail.job["submitted_at"][0].as_py()
        except HpcdashError:
            # The job is forgotten or cannot be queried: it cannot be told from an earlier job of
            # the same number.
            pass
        if submitted_at is not None:
            saved = await asyncio.to_thread(
                copies.find, store.name, job_id, submitted_at.timestamp()
            )
    if saved is not None:
        return Script(
            saved.script.decode("utf-8", "surrogateescape"),
            f"saved by hpcdash at submission, {format_utc(saved.stored_at)}",
        )
    obstacle = SchedulerRefused(
        f"{store.backend.title} does not return scripts, not even to a job's owner",
        "hpcdash keeps only the scripts of jobs you submit with it.",
    )
    return await _fetch_file(store, job_id, detail, obstacle)


async def save_scripts(
    store: ClusterStore, command: ActionCommand, outcomes: Sequence[Outcome]
) -> tuple[Outcome, ...]:
    """Save the script of each submitted job, unless its scheduler does.

    Returns the outcomes; a script that could not be saved is reported in the job's text.
    """
    if (
        store.scripts is None
        or command.stdin is None
        or Capability.KEEPS_SCRIPTS in store.backend.capabilities
    ):
        return tuple(outcomes)
    reported = []
    for outcome in outcomes:
        if outcome.new_job:
            try:
                now = store.clock.now()
                await asyncio.to_thread(
                    store.scripts.keep, store.name, outcome.new_job, command.stdin, now
                )
            except OSError as error:
                text = f"{outcome.text}; the script could not be saved: {error.strerror}"
                outcome = replace(outcome, text=text)
        reported.append(outcome)
    return tuple(reported)


async def _fetch_file(
    store: ClusterStore, job_id: str, detail: JobDetail | None, obstacle: HpcdashError
) -> Script:
    """Fetch the submitted file, as it is now; raises `obstacle` if there is none."""
    try:
        path = store.backend.scripts.submitted_file(detail or await store.fetch_detail(job_id))
    except NoSuchJob:
        raise
    except CommandError:
        raise obstacle from None
    if path is None:
        raise obstacle
    try:
        content = await store.run_query(whole_file_query(path, _MAX_BYTES))
    except CommandError as error:
        obstacle.next_step = (
            f"The script was submitted from {path}, which cannot be read now: {error.message}"
        )
        raise obstacle from error
    return Script(content.decode("utf-8", "surrogateescape"), f"{READ_FROM}{path}, current version")
