"""Finds where a job's output is: asks for its details, and for its script where these alone do not
tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail, LogFiles, OtherLog, Script
from hpcdash.domain.job_ids import in_full, parse_array_id, parse_task_part
from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError, UnreachableError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script

_MAX_NAMED = 8
_HOW_LISTED = "hpcdash log JOB --logs lists them."


class LogPlace(Struct, frozen=True):
    """Log files of a job, with its details and its row of domain.schema.JOBS.

    A single task that waits in its array's record has a row of its own: the array's, with the
    task's id and number.
    """

    job_id: str
    detail: JobDetail
    row: Mapping[str, Any]
    files: LogFiles


async def locate_logs(store: ClusterStore, job_id: str, known: pa.Table | None = None) -> LogPlace:
    """The files of a job's stdout and stderr; raises NoSuchJob and what keeps the cluster from
    answering.

    `known` as of ClusterStore.fetch_detail.
    """
    detail = _task_detail(await store.fetch_detail(job_id, known), job_id)
    return LogPlace(
        job_id, detail, detail.job.to_pylist()[0], await fetch_log_files(store, job_id, detail)
    )


async def fetch_other_logs(store: ClusterStore, place: LogPlace) -> tuple[OtherLog, ...]:
    """The logs of a job besides its own output; raises UsageError where its scheduler has none of
    the kind.
    """
    if Capability.OTHER_LOGS not in store.backend.capabilities:
        raise UsageError(
            f"a job of {store.backend.title} has no logs besides its stdout and stderr"
        )
    query = store.backend.logs.others(place.detail, place.files)
    return () if query is None else await store.run_query(query)


def find_other_log(logs: Sequence[OtherLog], requested: str) -> OtherLog:
    """The log with this name, else the only one that has it among its aliases; raises UsageError,
    naming some.
    """
    named = [log for log in logs if log.name == requested] or [
        log for log in logs if requested in log.aliases
    ]
    if len(named) == 1:
        return named[0]
    if not logs:
        raise UsageError("this job has no logs besides its stdout and stderr")
    some = ", ".join(visible(log.name) for log in (named or logs)[:_MAX_NAMED])
    why = f"{len(named)} logs match" if named else "this job has no other log named"
    raise UsageError(
        f"{why} {visible(requested)}: {some}{' …' if len(named or logs) > _MAX_NAMED else ''}",
        _HOW_LISTED,
    )


async def fetch_log_files(store: ClusterStore, job_id: str, detail: JobDetail) -> LogFiles:
    """The files of a job whose details are known; raises what keeps the cluster from answering."""
    script: Script | None = None
    if store.backend.logs.needs_script(detail):
        try:
            script = await fetch_script(store, job_id, detail=detail)
        except UnreachableError:
            raise
        except HpcdashError:
            # The note beside the files reports that its directives are unknown.
            script = None
    return store.backend.logs.files(detail, script)


def _task_detail(detail: JobDetail, job_id: str) -> JobDetail:
    """The details with the row of the one task that was asked for, where the row holds others
    too.
    """
    row = detail.job
    array_id = row["array_id"][0].as_py()
    held = row["array_task"][0].as_py()
    job_id = in_full(job_id, row["id"][0].as_py(), array_id)
    task = parse_task_part(job_id)
    if not task.isdigit() or held == task or parse_array_id(job_id) != array_id:
        return detail
    for name, value in (("id", job_id), ("array_task", task), ("_task", int(task)), ("_tasks", 1)):
        position = row.schema.get_field_index(name)
        row = row.set_column(
            position, row.schema.field(position), pa.array([value], row.schema.field(position).type)
        )
    return replace(detail, job=row)
