"""Fetches a job's batch script: from the scheduler, else its history, else the file it was submitted from.

Knows no screen and no scheduler.
"""

from __future__ import annotations

from functools import partial

from hpcdash.backends.base import Answer, JobDetail, Query, Script
from hpcdash.errors import (
    AccountingUnavailable,
    CommandError,
    HpcdashError,
    NoSuchJob,
    SchedulerRefused,
    UnreadableOutput,
    excerpt,
)
from hpcdash.stores.cluster import ClusterStore

# Slurm takes no larger script by default (max_script_size of slurm.conf).
_MOST_BYTES = 4 << 20
# How `source` begins where the text is a file's, which may have changed since.
READ_FROM = "read from "
_READ_LIMIT_SECONDS = 15.0


async def fetch_script(store: ClusterStore, job_id: str, *, detail: JobDetail | None = None) -> Script:
    """The script of a job, of its array where it is a task; `source` says whose copy it is.

    `detail` is the job's where it is known already. Raises what stands in the way: SchedulerRefused for another's job
    and for one that has no script, NoSuchJob, AccountingUnavailable, or what keeps the cluster from answering.
    """
    obstacle: HpcdashError
    backend = store.backend
    queued, past = backend.script_query(job_id), backend.history_script_query(job_id)
    if queued is None or past is None:
        obstacle = SchedulerRefused(
            f"{backend.title} gives no script back, not even to a job's owner",
            "The scripts of jobs that are submitted from here are kept here.",
        )
        return await _submitted_file(store, job_id, detail, obstacle)
    try:
        return await store.ask(queued)
    except SchedulerRefused as error:
        obstacle = error
    except NoSuchJob:
        try:
            return await store.ask(past)
        except (NoSuchJob, AccountingUnavailable) as error:
            obstacle = error
    return await _submitted_file(store, job_id, detail, obstacle)


async def _submitted_file(store: ClusterStore, job_id: str, detail: JobDetail | None, obstacle: HpcdashError) -> Script:
    """The file that the job names as its script, as it is now; raises `obstacle` where there is none to read."""
    try:
        path = store.backend.submitted_file(detail or await store.fetch_detail(job_id))
    except NoSuchJob:
        raise
    except CommandError:
        raise obstacle from None
    if path is None:
        raise obstacle
    try:
        return await store.ask(_file_query(path))
    except CommandError as error:
        obstacle.next_step = f"It was submitted from {path}, which cannot be read now: {error.message}"
        raise obstacle from error


def _file_query(path: str) -> Query[Script]:
    argv = ("head", "-c", str(_MOST_BYTES + 1), "--", path)
    return Query(argv, partial(_parse_file, path=path), limit_seconds=_READ_LIMIT_SECONDS)


def _parse_file(answer: Answer, *, path: str) -> Script:
    if answer.status != 0:
        words = excerpt(answer.stderr)
        raise UnreadableOutput(
            words.rpartition(": ")[2] or "no reason is told", argv=answer.argv, status=answer.status, words=words
        )
    if len(answer.stdout) > _MOST_BYTES:
        raise UnreadableOutput("it is larger than any batch script", argv=answer.argv, status=answer.status)
    return Script(answer.stdout.decode("utf-8", "surrogateescape"), f"{READ_FROM}{path} as it is now")
