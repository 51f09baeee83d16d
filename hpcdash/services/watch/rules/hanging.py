"""Is it hanging? A job that runs while its log does not grow."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from msgspec import Struct

from hpcdash.config.watch_settings import HangingWatch
from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.states import JobState
from hpcdash.domain.units import HOUR, format_span
from hpcdash.services.watch.rules.rows import rows_where

RULE = "is-hanging"
UNSEEN = "cannot be seen"
# Servers' clocks go wrong by minutes; beyond this an age is one, unless it contradicts what was
# seen.
MOST_SKEW_SECONDS = 1.0 * HOUR


class LogGrowth(Struct, frozen=True):
    """A job's log: its size in bytes when it was last looked at (None: not there yet), and since
    when it has that.

    `size_bytes` may shrink: a log that is written anew is written. written_at: its time by its
    server's clock, which tells that it was written, not when (None: not known). seen_at: when it
    was last looked at (None: never).
    """

    job_id: str
    path: str
    size_bytes: int | None
    same_since: float
    written_at: float | None = None
    seen_at: float | None = None

    def looked_at(
        self,
        size_bytes: int | None,
        now: float,
        age_seconds: float = 0.0,
        written_at: float | None = None,
    ) -> LogGrowth:
        """The next state; `age_seconds` is what its server's clock says of when it was written."""
        is_touched = (
            self.written_at is not None and written_at is not None and written_at != self.written_at
        )
        is_same = self.seen_at is not None and size_bytes == self.size_bytes and not is_touched
        since = self.same_since if is_same else grown_at(now, age_seconds, self.seen_at)
        return LogGrowth(self.job_id, self.path, size_bytes, since, written_at, now)


def is_hanging(
    jobs: pa.Table, logs: Iterable[LogGrowth], watch: HangingWatch, now: float
) -> list[Finding]:
    """One for each running job whose log has been the same for longer than the limit, its start
    counted in.
    """
    followed = list(logs)
    running = rows_where(jobs, id=[log.job_id for log in followed], state=(JobState.RUNNING,))
    rows = {row["id"]: row for row in running}
    found = []
    for log in followed:
        if log.job_id not in rows:
            continue
        began_at = rows[log.job_id]["started_at"]
        silent = now - max(
            log.same_since, began_at.timestamp() if began_at is not None else log.same_since
        )
        if silent <= watch.limit_seconds:
            continue
        grown = "has been missing" if log.size_bytes is None else "has not grown"
        who = format_job(log.job_id, rows[log.job_id]["name"])
        text = f"{who}: its log {grown} for {format_span(silent)}: {shown(log.path)}"
        step = (
            "A hung job cannot see a kill or save switch: "
            f"hpcdash stacks {shown(log.job_id)} shows where it is stuck; hpcdash cancel "
            f"{shown(log.job_id)}"
        )
        found.append(
            Finding(
                RULE, log.job_id, watch.severity, text, step, name=rows[log.job_id]["name"] or ""
            )
        )
    return found


def cannot_be_seen(job_id: str, why: str, name: str = "") -> Finding:
    """Build the finding that a hang cannot be detected: the job's log cannot be checked."""
    text = f"cannot tell whether {format_job(job_id, name)} hangs: {shown(why)}"
    step = (
        "Write the log to a file that the login node can read, and set log under [[watch.hanging]]"
    )
    return Finding(RULE, job_id, Severity.INFO, text, step, aspect=UNSEEN, name=name)


def grown_at(now: float, age_seconds: float, seen_at: float | None) -> float:
    """The epoch at which a log got what it did not have when it was last seen (None: never): now,
    as far as anyone knows, for its age is by the clock of its server. A look that is long past
    leaves more room than clocks are wrong by: there its age counts, as far as it is not from before
    that look.
    """
    written = now - age_seconds
    if seen_at is None:
        return written
    return now if age_seconds <= MOST_SKEW_SECONDS else max(seen_at, written)
