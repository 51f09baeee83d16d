"""Locates a job's output: from its details and, if needed, its script."""

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

    The row of a pending task is that of its array, with the task's ID and number.
    """

    job_id: str
    detail: JobDetail
    row: Mapping[str, Any]
    files: LogFiles


async def locate_logs(store: ClusterStore, job_id: str, known: pa.Table | None = None) -> LogPlace:
    """Locate a job's stdout and stderr; raises NoSuchJob and the errors of an unreachable cluster.

    `known` is that of ClusterStore.fetch_detail.
    """
    detail = _task_detail(await store.fetch_detail(job_id, known), job_id)
    [row] = detail.job.to_pylist()
    return LogPlace(job_id, detail, row, await fetch_log_files(store, job_id, detail))


async def fetch_other_logs(store: ClusterStore, place: LogPlace) -> tuple[OtherLog, ...]:
    """Fetch the logs of a job besides its stdout and stderr.

    Raises UsageError if the scheduler has no such logs.
    """
    if Capability.OTHER_LOGS not in store.backend.capabilities:
        raise UsageError(
            f"a job of {store.backend.title} has no logs besides its stdout and stderr"
        )
    query = store.backend.logs.others(place.detail, place.files)
    return () if query is None else await store.run_query(query)


def find_other_log(logs: Sequence[OtherLog], requested: str) -> OtherLog:
    """Find the log with this name or unique alias; raises UsageError with some names."""
    named = [log for log in logs if log.name == requested]
    if not named:
        named = [log for log in logs if requested in log.aliases]
    if len(named) == 1:
        return named[0]
    if not logs:
        raise UsageError("this job has no logs besides its stdout and stderr")
    listed = named or logs
    names = ", ".join(visible(log.name) for log in listed[:_MAX_NAMED])
    if len(listed) > _MAX_NAMED:
        names += " …"
    problem = f"{len(named)} logs match" if named else "this job has no other log named"
    raise UsageError(f"{problem} {visible(requested)}: {names}", _HOW_LISTED)


async def fetch_log_files(store: ClusterStore, job_id: str, detail: JobDetail) -> LogFiles:
    """Fetch the log files of a job with known details; raises UnreachableError."""
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
    """Replace the row of an array's pending tasks by that of the requested task."""
    row = detail.job
    array_id = row["array_id"][0].as_py()
    held = row["array_task"][0].as_py()
    job_id = in_full(job_id, row["id"][0].as_py(), array_id)
    task = parse_task_part(job_id)
    if not task.isdigit() or held == task or parse_array_id(job_id) != array_id:
        return detail
    values = {"id": job_id, "array_task": task, "_task": int(task), "_tasks": 1}
    for name, value in values.items():
        field = row.schema.field(name)
        column = pa.array([value], field.type)
        row = row.set_column(row.schema.get_field_index(name), field, column)
    return replace(detail, job=row)
