"""When a waiting job would start were it shorter or smaller: the scheduler is asked, on request only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits, StartEstimate
from hpcdash.domain.states import WAITING
from hpcdash.domain.units import MINUTE, format_clock, format_span
from hpcdash.errors import AccountingUnavailable, NoSuchJob, UsageError, readable_command
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script

# Shorter jobs than this start as soon as they can anyhow.
_LEAST_SECONDS = 10 * MINUTE


@dataclass(frozen=True, slots=True)
class StartOption:
    """A job with a change ('as it is' without), the command that asked about it, and when it would start."""

    change: str
    command: str
    estimate: StartEstimate

    def format(self, now_epoch: float) -> str:
        """When, in words; or why it would not be taken."""
        estimate = self.estimate
        if estimate.refusal:
            return f"refused: {estimate.hint or estimate.refusal}"
        if estimate.starts_at_epoch is None:
            return estimate.hint or "not told"
        ahead = estimate.starts_at_epoch - now_epoch
        when = f"in {format_span(ahead)}" if ahead >= MINUTE else "now"
        return f"{when} on {estimate.node_list}" if estimate.node_list else when


async def fetch_start_options(store: ClusterStore, job_id: str) -> list[StartOption]:
    """A waiting job as it is, with a half and a quarter of its time limit, and on half of its nodes.

    Each is one command that submits nothing; Slurm counts a job number for it. Raises UsageError for a job that does
    not wait, and where the scheduler tells no start beforehand.
    """
    detail = await store.fetch_detail(job_id)
    row = detail.job.to_pylist()[0]
    if row["state"] not in WAITING:
        raise UsageError(f"job {row['id']} does not wait: it is {row['state']}", "Ask for a job that is pending.")
    script = await fetch_script(store, job_id, detail=detail)
    try:
        past = await store.ask(store.backend.history.native(job_id))
    except (NoSuchJob, AccountingUnavailable):
        past = {}
    options = []
    for change, limits, nodes in _changes(row):
        query = store.backend.submit.start_again_estimate(detail, past, script, limits, nodes)
        if query is None:
            raise UsageError(f"{store.backend.title} tells no start before a job is submitted")
        text = script.text.encode("utf-8", "surrogateescape")
        answer = await store.act(ActionCommand(query.argv, (), lambda _: (), text, query.limit_seconds))
        options.append(StartOption(change, readable_command(query.argv), query.parse(answer)))
    return options


def _changes(row: Mapping[str, Any]) -> Iterator[tuple[str, NewLimits, int | None]]:
    yield "as it is", AS_IT_WAS, None
    limit, nodes = row["limit_seconds"], row["nodes"]
    for part in (2, 4):
        if limit and limit // part >= _LEAST_SECONDS:
            shorter = limit // part // MINUTE * MINUTE
            yield f"time limit {format_clock(shorter)}", NewLimits(time_seconds=shorter), None
    if nodes and nodes > 1:
        fewer = nodes // 2
        yield f"{fewer} node{'s' * (fewer > 1)} of {nodes}", AS_IT_WAS, fewer
