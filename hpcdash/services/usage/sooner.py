"""Start of a job if it were shorter or smaller: queries the scheduler, on request only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits, StartEstimate
from hpcdash.domain.states import WAITING
from hpcdash.domain.units import MINUTE, format_clock, format_memory, format_span
from hpcdash.errors import AccountingUnavailable, NoSuchJob, UsageError, readable_command
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script

# Shorter jobs than this start as soon as they can anyhow.
_MIN_SECONDS = 10 * MINUTE


class StartOption(Struct, frozen=True):
    """A job with a change ('as it is' without), the command that asked about it, and when it would
    start.

    `estimator` is whose estimate that is.
    """

    change: str
    command: str
    estimate: StartEstimate
    estimator: str = "the scheduler"

    def format(self, now_epoch: float) -> str:
        """Format the start and the estimator, or the reason for a refusal."""
        when = self.format_when(now_epoch)
        return (
            when
            if self.estimate.starts_at_epoch is None
            else f"{when} ({self.estimator}'s estimate)"
        )

    def format_when(self, now_epoch: float) -> str:
        estimate = self.estimate
        if estimate.refusal:
            return f"refused: {estimate.hint or estimate.refusal}"
        if estimate.starts_at_epoch is None:
            return estimate.hint or "not told"
        ahead = estimate.starts_at_epoch - now_epoch
        when = f"in {format_span(ahead)}" if ahead >= MINUTE else "now"
        return f"{when} on {estimate.node_list}" if estimate.node_list else when


class EarlierStart(Struct, frozen=True):
    """Estimated starts of a job if submitted now: unchanged, and with enough of each resource."""

    as_it_was: StartOption
    changed: StartOption

    @property
    def earlier_seconds(self) -> int | None:
        """None where the scheduler does not say when either would start."""
        before, after = (one.estimate.starts_at_epoch for one in (self.as_it_was, self.changed))
        return None if before is None or after is None else int(before - after)

    def format(self, now_epoch: float) -> str:
        """In a sentence; '' where there is no estimate."""
        change = self.changed.change
        after = self.changed.format_when(now_epoch)
        whose = f" ({self.changed.estimator}'s estimate)"
        if self.changed.estimate.refusal:
            return f"with {change}: {after}"
        if (earlier := self.earlier_seconds) is None:
            return ""
        if earlier < MINUTE:
            return f"with {change} it would start no earlier now: {after}{whose}"
        before = self.as_it_was.format_when(now_epoch)
        return (
            f"with {change} it would start about {format_span(earlier)} earlier: {after}, not "
            f"{before}{whose}"
        )


async def fetch_start_options(store: ClusterStore, job_id: str) -> list[StartOption]:
    """A waiting job as it is, with a half and a quarter of its time limit, and on half of its
    nodes.

    Each is one command that submits nothing; Slurm counts a job number for it. Raises UsageError
    for a job that does not wait, and where the scheduler tells no start beforehand.
    """
    job = await _fetch_job(store, job_id)
    if job.row["state"] not in WAITING:
        raise UsageError(
            f"job {job.row['id']} is not pending: it is {job.row['state']}", "Give a pending job."
        )
    return [await _query(store, job, *change) for change in _changes(job.row)]


async def fetch_earlier_start(
    store: ClusterStore, job_id: str, *, memory_bytes: int | None, limit_seconds: int | None
) -> EarlierStart:
    """An ended job as it was, and with so much memory (of the whole job) and time: a command each,
    as above.

    Raises what keeps the job's script from being read, and UsageError where the scheduler tells no
    start beforehand.
    """
    job = await _fetch_job(store, job_id)
    parts = []
    a_node = None
    if memory_bytes is not None:
        a_node = -(-memory_bytes // max(1, job.row["nodes"] or 1))
        parts.append(f"{format_memory(memory_bytes)} of memory")
    if limit_seconds is not None:
        parts.append(f"a limit of {format_clock(limit_seconds)}")
    limits = NewLimits(time_seconds=limit_seconds, memory_bytes=a_node)
    as_it_was = await _query(store, job, "as it was", AS_IT_WAS, None)
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
        raise UsageError(f"{store.backend.title} gives no start estimate before a job is submitted")
    text = job.script.text.encode("utf-8", "surrogateescape")
    answer = await store.act(ActionCommand(query.argv, (), lambda _: (), text, query.limit_seconds))
    return StartOption(
        change, readable_command(query.argv), query.parse(answer), store.backend.title
    )


def _changes(row: Mapping[str, Any]) -> Iterator[tuple[str, NewLimits, int | None]]:
    yield "as it is", AS_IT_WAS, None
    limit = row["limit_seconds"]
    nodes = row["nodes"]
    for part in (2, 4):
        if limit and limit // part >= _MIN_SECONDS:
            shorter = limit // part // MINUTE * MINUTE
            yield f"time limit {format_clock(shorter)}", NewLimits(time_seconds=shorter), None
    if nodes and nodes > 1:
        fewer = nodes // 2
        yield f"{fewer} node{'s' * (fewer > 1)} of {nodes}", AS_IT_WAS, fewer
