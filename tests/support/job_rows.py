"""Rows and tables of domain.schema, with what a test is about. Asserts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from hpcdash.domain.schema import JOBS, RUNS

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
_MINUTES = {"started": "started_at", "ended": "ends_at", "submitted": "submitted_at"}


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


def job_row(
    job_id: str, state: str = "pending", dependency: str | None = None, **more: Any
) -> dict[str, Any]:
    """A job named train of alice's; `started`, `ended` and `submitted` are minutes."""
    times = {column: at(more.pop(name)) for name, column in _MINUTES.items() if name in more}
    array_id = job_id.partition("_")[0] if "_" in job_id else None
    known = {
        "id": job_id,
        "array_id": array_id,
        "state": state,
        "dependency": dependency,
        "_tasks": 1,
    }
    return {**dict.fromkeys(JOBS.names), "user": "alice", "name": "train", **known, **times, **more}


def task_row(
    array: str, tasks: str, state: str = "pending", dependency: str | None = None, **more: Any
) -> Any:
    """A task of an array, or those that wait of it: the tasks 3 to 10 where `tasks` is no
    number.
    """
    first, count = (int(tasks), 1) if tasks.isdecimal() else (3, 8)
    shown = tasks if tasks.isdecimal() else f"[{tasks}]"
    return job_row(
        f"{array}_{shown}", state, dependency, array_task=tasks, _task=first, _tasks=count, **more
    )


def run_row(job_id: str, state: str = "completed", **more: Any) -> dict[str, Any]:
    """An ended run of a job as job_row has it: its first one."""
    row = job_row(job_id, state, **more)
    return {
        **dict.fromkeys(RUNS.names),
        "run": 1,
        **{name: row[name] for name in RUNS.names if name in row},
    }


def build_table(*rows: Mapping[str, Any], schema: pa.Schema = JOBS) -> pa.Table:
    """The table of these rows; what they do not hold is not known."""
    return pa.Table.from_pylist(list(rows), schema)
