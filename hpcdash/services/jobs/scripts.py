"""Fetches a job's batch script: from the scheduler, else its history, else the copy that was kept
here when it was submitted, else the file it was submitted from.
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
from hpcdash.services.state.submitted_scripts import StoredScript

# Slurm takes no larger script by default (max_script_size of slurm.conf).
_MAX_BYTES = 4 << 20
# How `source` begins where the text is a file's, which may have changed since.
READ_FROM = "read from "


async def fetch_script(
    store: ClusterStore, job_id: str, *, detail: JobDetail | None = None
) -> Script:
    """The script of a job, of its array where it is a task; `source` says whose copy it is.

    `detail` is the job's where it is known already. Raises what stands in the way: SchedulerRefused
    for another's job and for one that has no script, NoSuchJob, AccountingUnavailable, or what
    keeps the cluster from answering.
    """
    obstacle: HpcdashError
    backend = store.backend
    queued = backend.scripts.query(job_id)
    past = backend.scripts.history_query(job_id)
    if queued is None or past is None:
        return await _not_given_back(store, job_id, detail)
    try:
        return await store.run_query(queued)
    except SchedulerRefused as error:
        obstacle = error
    except NoSuchJob:
        try:
            return await store.run_query(past)
        except (NoSuchJob, AccountingUnavailable) as error:
            obstacle = error
    return await _submitted_file(store, job_id, detail, obstacle)


async def _not_given_back(store: ClusterStore, job_id: str, detail: JobDetail | None) -> Script:
    """The copy that was kept here, else the submitted file; of the job only when one of them needs
    it.
    """
    newest = None
    if store.scripts is not None:
        newest = await asyncio.to_thread(store.scripts.find, store.name, job_id)
    if store.scripts is not None and newest is not None:
        try:
            detail = detail or await store.fetch_detail(job_id)
        except HpcdashError:
            # The scheduler has forgotten the job, or cannot be queried: nothing shows that the copy
            # is of another job with its number.
            return _from_submitted(newest)
        submitted_at = detail.job["submitted_at"][0].as_py()
        if submitted_at is None:
            return _from_submitted(newest)
        found = await asyncio.to_thread(
            store.scripts.find, store.name, job_id, submitted_at.timestamp()
        )
        if found is not None:
            return _from_submitted(found)
    obstacle = SchedulerRefused(
        f"{store.backend.title} does not return scripts, not even to a job's owner",
        "hpcdash keeps only the scripts of jobs you submit with it.",
    )
    return await _submitted_file(store, job_id, detail, obstacle)


def _from_submitted(found: StoredScript) -> Script:
    return Script(
        found.script.decode("utf-8", "surrogateescape"),
        f"saved by hpcdash at submission, {format_utc(found.kept_at)}",
    )


async def keep_submitted(
    store: ClusterStore, command: ActionCommand, outcomes: Sequence[Outcome]
) -> tuple[Outcome, ...]:
    """The outcomes of a submission, after the script of each new job is kept where its scheduler
    keeps none.

    One that could not be kept is as done as before; its words say so.
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
                text = f"{outcome.text}; its script could not be saved: {error.strerror}"
                outcome = replace(outcome, text=text)
        reported.append(outcome)
    return tuple(reported)


async def _submitted_file(
    store: ClusterStore, job_id: str, detail: JobDetail | None, obstacle: HpcdashError
) -> Script:
    """The file that the job names as its script, as it is now; raises `obstacle` where there is
    none to read.
    """
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
            f"It was submitted from {path}, which cannot be read now: {error.message}"
        )
        raise obstacle from error
    return Script(content.decode("utf-8", "surrogateescape"), f"{READ_FROM}{path}, as it is now")
