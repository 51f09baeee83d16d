"""Is there time left? Allocations that wait for runs, and are soon over."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from hpcdash.domain.alerts import Finding, Severity, format_job, shown
from hpcdash.domain.states import JobState
from hpcdash.domain.units import MINUTE, format_span
from hpcdash.services.watch.rules.rows import rows_where

RULE = "allocation-ends"
# It is warned of so long before the time limit.
SOON_SECONDS = 15 * MINUTE


def ends_soon(jobs: pa.Table, allocations: Collection[str], now: float) -> list[Finding]:
    """One for each running job of `allocations`, by their ids, whose time limit is near at
    `now`.
    """
    found = []
    for row in rows_where(jobs, id=allocations, state=(JobState.RUNNING,)) if allocations else ():
        left = None if row["ends_at"] is None else row["ends_at"].timestamp() - now
        if left is None or left > SOON_SECONDS:
            continue
        who = format_job(row["id"], row["name"])
        text = f"the allocation {who} ends in {format_span(max(0.0, left))}"
        step = (
            f"hpcdash alter {shown(row['id'])} --time +1h, where the site allows it; hpcdash "
            "alloc makes another"
        )
        found.append(Finding(RULE, row["id"], Severity.WARNING, text, step, name=row["name"] or ""))
    return found
