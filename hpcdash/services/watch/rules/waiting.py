"""Will it ever start? Jobs that wait for what never comes."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.base import ReasonsPart
from hpcdash.domain.alerts import Finding, shown
from hpcdash.domain.columns import column_text
from hpcdash.domain.states import JobState
from hpcdash.domain.text import clip
from hpcdash.services.watch.rules.rows import job_finding, rows_where

RULE = "never-starts"
_REASON_CELLS = 80
_SAID_ALREADY = re.compile(r"^(?:it )?will (?:never|not) start: ")


def format_never(state: str, reason: str, reasons: ReasonsPart) -> str:
    """`will never start: the partition does not allow what it asks for (PartitionConfig)`."""
    hint = (
        _SAID_ALREADY.sub("", reasons.hint(state, reason))
        .partition(";")[0]
        .partition(": change ")[0]
    )
    message = clip(shown(reason), _REASON_CELLS)
    return f"will never start: {f'{shown(hint)} ({message})' if hint else shown(reason)}"


def waits_for_ever(jobs: pa.Table, reasons: ReasonsPart) -> list[Finding]:
    """One for each waiting job, or rest of an array, that will never start by itself."""
    # Queues are long and their reasons few.
    reported = pc.unique(column_text(jobs["reason"])).to_pylist()
    never = [reason for reason in reported if reasons.never_starts(JobState.PENDING, reason)]
    found = []
    for row in rows_where(
        jobs, reason=never, state=(JobState.PENDING, JobState.HELD, JobState.REQUEUED)
    ):
        step = reasons.never_starts(row["state"], row["reason"])
        if step:
            text = f" {format_never(row['state'], row['reason'], reasons)}"
            found.append(job_finding(RULE, row, text, step.replace("{id}", shown(row["id"]))))
    return found
