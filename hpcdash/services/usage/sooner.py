"""Start of a job if it were shorter or smaller: queries the scheduler, on request only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits, StartEstimate
from hpcdash.domain.states import WAITING
from hpcdash.domain.units import MINUTE, format_clock, format_memory, format_span
from hpcdash.errors import AccountingUnavailable, NoSuchJob, UsageError, readable_command
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.submit.checks import run_estimate

# A shorter limit hardly changes the start.
_MIN_SECONDS = 10 * MINUTE


class StartOption(Struct, frozen=True):
    """Estimated start of a job with a change ('unchanged' without one), and the command for it."""

    change: str
    command: str
    estimate: StartEstimate
    estimator: str = "the scheduler"

    def format(self, now_epoch: float) -> str:
        """Format the start and the estimator, or the reason for a refusal."""
        when = self.format_when(now_epoch)
        if self.estimate.starts_at_epoch is None:
            return when
        return f"{when} ({self.estimator}'s estimate)"

    def format_when(self, now_epoch: float) -> str:
        estimate = self.estimate
        if estimate.refusal:
            return f"refused: {estimate.hint or estimate.refusal}"
        if estimate.starts_at_epoch is None:
            return estimate.hint or "unknown"
        ahead = estimate.starts_at_epoch - now_epoch
        when = f"in {format_span(ahead)}" if ahead >= MINUTE else "now"
        return f"{when} on {estimate.node_list}" if estimate.node_list else when


class EarlierStart(Struct, frozen=True):
    """Estimated starts of a job if submitted now: unchanged, and with enough of each resource."""

    as_it_was: StartOption
    changed: StartOption

    @property
    def earlier_seconds(self) -> int | None:
        """Difference of the starts; None if either is unknown."""
        before = self.as_it_was.estimate.starts_at_epoch
        after = self.changed.estimate.starts_at_epoch
        return None if before is None or after is None else int(before - after)

    def format(self, now_epoch: float) -> str:
        """Format the estimates as a sentence; '' for none."""
        change = self.changed.change
        after = self.changed.format_when(now_epoch)
        estimator = f"({self.changed.estimator}'s estimate)"
        if self.changed.estimate.refusal:
            return f"with {change}: {after}"
        if (earlier := self.earlier_seconds) is None:
            return ""
        if earlier < MINUTE:
            return f"with {change}, the job would not start earlier now: {after} {estimator}"
        before = self.as_it_was.format_when(now_epoch)
        return (
            f"with {change}, the job would start about {format_span(earlier)} earlier: {after}, "
            f"not {before} {estimator}"
        )


async def fetch_start_options(store: ClusterStore, job_id: str) -> list[StartOption]:
    """Estimate a pending job's start unchanged, with shorter time limits, and on half its nodes.

    Each takes one command that does not submit a job; Slurm uses up a job number. Raises UsageError
    for a job that is not pending, and if the scheduler offers no estimates.
    """
    job = await _fetch_job(store, job_id)
    if job.row["state"] not in WAITING:
        raise UsageError(
            f"job {job.row['id']} is not pending: {job.row['state']}",
            "Specify a pending job.",
        )
    return [await _query(store, job, *change) for change in _changes(job.row)]


async def fetch_earlier_start(
    store: ClusterStore, job_id: str, *, memory_bytes: int | None, limit_seconds: int | None
) -> EarlierStart:
    """Estimate the start of a finished job unchanged, and with this memory (of the whole job) and
    time limit, with one command each.

    Raises UsageError if the scheduler offers no estimates, and the errors of reading its script.
    """
    job = await _fetch_job(store, job_id)
    parts = []
    node_bytes = None
    if memory_bytes is not None:
        node_bytes = -(-memory_bytes // max(1, job.row["nodes"] or 1))
        parts.append(f"{format_memory(memory_bytes)} of memory")
    if limit_seconds is not None:
        parts.append(f"a limit of {format_clock(limit_seconds)}")
    limits = NewLimits(time_seconds=limit_seconds, memory_bytes=node_bytes)
    as_it_was = await _query(store, job, "unchanged", AS_IT_WAS, None)
    return EarlierStart(as_it_was, await _query(store, job, " and ".join(parts), limits, None))


class _Job(Struct, frozen=True):
    detail: JobDetail
    past: Mapping[str, str]
    script: Script

    @property
    def row(self) -> Mapping[str, Any]:
        row: Mapping[str, Any] = self.detail.job.to_pylist()[0]
        return row


async def _fetch_job(store: ClusterStore, job_id: str) -> _Job:
    detail = await store.fetch_detail(job_id)
    script = await fetch_script(store, job_id, detail=detail)
    try:
        past = await store.run_query(store.backend.history.native(job_id))
    except (NoSuchJob, AccountingUnavailable):
        past = {}
    return _Job(detail, past, script)


async def _query(
    store: ClusterStore, job: _Job, change: str, limits: NewLimits, nodes: int | None
) -> StartOption:
    query = store.backend.submit.start_again_estimate(
        job.detail, job.past, job.script, limits, nodes
    )
    if query is None:
        raise UsageError(f"{store.backend.title} does not estimate starts before submission")
    script = job.script.text.encode("utf-8", "surrogateescape")
    estimate = await run_estimate(store, query, script)
    return StartOption(change, readable_command(query.argv), estimate, store.backend.title)


def _changes(row: Mapping[str, Any]) -> Iterator[tuple[str, NewLimits, int | None]]:
    yield "unchanged", AS_IT_WAS, None
    limit = row["limit_seconds"]
    nodes = row["nodes"]
    for part in (2, 4):
        if limit and limit // part >= _MIN_SECONDS:
            shorter = limit // part // MINUTE * MINUTE
            yield f"time limit {format_clock(shorter)}", NewLimits(time_seconds=shorter), None
    if nodes and nodes > 1:
        fewer = nodes // 2
        yield f"{fewer} node{'s' * (fewer > 1)} of {nodes}", AS_IT_WAS, fewer
