"""Is it hanging? A job that runs while its log does not grow."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from hpcdash.config.watch_settings import HangingWatch
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.states import JobState
from hpcdash.domain.units import format_span
from hpcdash.services.watch.rules.rows import job_finding, rows_where
from hpcdash.services.watch.state import LogState

RULE = "is-hanging"
UNSEEN = "cannot be seen"


def is_hanging(
    jobs: pa.Table, logs: Mapping[str, tuple[str, LogState]], watch: HangingWatch, now: float
) -> list[Finding]:
    """One for each running job whose log has been the same for longer than the limit, its start
    included.

    `logs` are the path and the state of a log by a job's id; `now` is an epoch.
    """
    found = []
    for row in rows_where(jobs, id=logs, state=(JobState.RUNNING,)):
        path, log = logs[row["id"]]
        began_at = log.same_since if row["started_at"] is None else row["started_at"].timestamp()
        silent = now - max(log.same_since, began_at)
        if silent <= watch.limit_seconds:
            continue
        grown = "has been missing" if log.size_bytes is None else "has not grown"
        text = f": its log {grown} for {format_span(silent)}: {shown(path)}"
        who = shown(row["id"])
        step = (
            f"A hung job cannot see a kill or save switch: hpcdash stacks {who} shows where it is "
            f"stuck; hpcdash cancel {who}"
        )
        found.append(job_finding(RULE, row, text, step, watch.severity))
    return found


def cannot_be_seen(job_id: str, why: str, name: str = "") -> Finding:
    """Build the finding that a hang cannot be detected: the job's log cannot be checked."""
    text = f"cannot tell whether {format_job(job_id, name)} hangs: {shown(why)}"
    step = (
        "Write the log to a file that the login node can read, and set log under [[watch.hanging]]"
    )
    return Finding(RULE, job_id, Severity.INFO, text, step, aspect=UNSEEN, name=name)
