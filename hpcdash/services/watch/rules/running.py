"""Is it running? A job that neither runs nor waits, and one that waits held."""

from __future__ import annotations

import pyarrow as pa

from hpcdash.config.watch_settings import RunningWatch
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.states import ENDED, JobState
from hpcdash.services.watch.rules.rows import Row, rows_where

RULE = "is-running"
_LIVING = frozenset(JobState) - ENDED


def living_rows(jobs: pa.Table, watch: RunningWatch) -> list[Row]:
    """The watched job's rows that have not ended, of any of its users; a state nobody knows counts
    as alive.
    """
    requested = {"name": (watch.name,), "state": tuple(map(str, _LIVING))}
    if watch.users:
        requested["user"] = watch.users
    return rows_where(jobs, **requested)


def watch_subject(watch: RunningWatch) -> str:
    """Return the subject of its findings."""
    return watch.name + (f" of {','.join(watch.users)}" if watch.users else "")


def is_running(jobs: pa.Table, watch: RunningWatch) -> list[Finding]:
    """`jobs` must hold all jobs of the watched users."""
    rows = living_rows(jobs, watch)
    whose = f" of {shown(', '.join(watch.users))}" if watch.users else ""
    subject = watch_subject(watch)
    if not rows:
        text = f"no job {shown(watch.name)}{whose} is running or pending"
        return [
            Finding(
                RULE,
                subject,
                watch.severity,
                text,
                "hpcdash history shows how it ended; submit it again.",
            )
        ]
    if all(row["state"] == JobState.HELD for row in rows):
        ids = ", ".join(shown(row["id"]) for row in rows[:5])
        text = f"{shown(watch.name)}{whose} is held and will not start until released"
        return [
            Finding(RULE, subject, Severity.WARNING, text, f"hpcdash release {ids}", aspect="held")
        ]
    return []
