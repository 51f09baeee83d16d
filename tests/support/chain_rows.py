"""Rows of jobs and tasks that trains are made of. Asserts nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hpcdash.domain.schema import JOBS

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


def row(job_id: str, state: str = "pending", dependency: str | None = None, **more: Any) -> dict[str, Any]:
    """A row of domain.schema.JOBS; `started`, `ended` and `submitted` are minutes."""
    minutes = {"started": "started_at", "ended": "ends_at", "submitted": "submitted_at"}
    times = {column: at(more.pop(name)) for name, column in minutes.items() if name in more}
    known = {"id": job_id, "state": state, "dependency": dependency, "user": "alice", "name": "train", "_tasks": 1}
    return {**dict.fromkeys(JOBS.names), **known, **times, **more}


def task(array: str, tasks: str, state: str = "pending", dependency: str | None = None, **more: Any) -> dict[str, Any]:
    first, count = (int(tasks), 1) if tasks.isdecimal() else (3, 8)
    shown = tasks if tasks.isdecimal() else f"[{tasks}]"
    of_array = {"array_id": array, "array_task": tasks, "_task": first, "_tasks": count}
    return row(f"{array}_{shown}", state, dependency, **of_array, **more)
