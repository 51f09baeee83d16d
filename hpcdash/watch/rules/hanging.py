"""Is it hanging? A job that runs while its log does not grow. Knows no file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from hpcdash.domain.states import JobState
from hpcdash.domain.units import format_duration
from hpcdash.watch.findings import Finding, shown
from hpcdash.watch.rules.rows import rows_where
from hpcdash.watch.settings import HangingWatch

RULE = "is-hanging"


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """A job's log: its size in bytes when it was last looked at (None: not there yet), and since when it has that.

    `size_bytes` may shrink: a log that is written anew is written.
    """

    job_id: str
    path: str
    size_bytes: int | None
    same_since: float

    def looked_at(self, size_bytes: int | None, now: float) -> LogGrowth:
        """The next state."""
        since = self.same_since if size_bytes == self.size_bytes else now
        return LogGrowth(self.job_id, self.path, size_bytes, since)


def is_hanging(jobs: pa.Table, logs: Iterable[LogGrowth], watch: HangingWatch, now: float) -> list[Finding]:
    """One for each running job whose log has been the same for longer than the limit, its start counted in."""
    followed = list(logs)
    running = rows_where(jobs, id=[log.job_id for log in followed], state=(JobState.RUNNING,))
    started = {row["id"]: row["started_at"] for row in running}
    found = []
    for log in followed:
        if log.job_id not in started:
            continue
        began_at = started[log.job_id]
        silent = now - max(log.same_since, began_at.timestamp() if began_at is not None else log.same_since)
        if silent <= watch.limit_seconds:
            continue
        grown = "is not there" if log.size_bytes is None else "has not grown"
        words = f"job {shown(log.job_id)}: its log {shown(log.path)} {grown} for {format_duration(silent)}"
        step = (
            "A job that hangs does not see a kill switch or a save switch: "
            f"look at its stacks, or hpcdash cancel {shown(log.job_id)}"
        )
        found.append(Finding(RULE, log.job_id, watch.severity, words, step))
    return found
