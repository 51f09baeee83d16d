"""Job counts of nodes and queues from everyone's queue, and the jobs on nodes that are down.

Pure.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array, dictionary_text, has_state, with_columns
from hpcdash.domain.nodelist import contains, expand
from hpcdash.domain.states import ACTIVE, WAITING, JobState
from hpcdash.domain.tables import Kind

# A job over more nodes than this is counted on none; the largest machine has 160 000.
_MAX_JOB_NODES = 200_000


def with_job_counts(kind: Kind, table: pa.Table, jobs: pa.Table) -> pa.Table:
    """Return a nodes table with `jobs`, or a queues table with `jobs_running` and `jobs_pending`.

    A count that a node reports stays. Of a queue's own count and that of its rows the larger
    counts: a server may hide the jobs of others, and count a pending array as one job.
    """
    names = table["name"].to_pylist()
    active = jobs.filter(has_state(jobs, ACTIVE))
    if kind is Kind.NODES:
        node_counts: Counter[str] = Counter()
        for entry in pc.value_counts(active["node_list"]).to_pylist():
            with contextlib.suppress(ValueError):
                for name in expand(entry["values"] or "", limit=_MAX_JOB_NODES):
                    node_counts[name] += entry["counts"]
        counted = _named_counts(node_counts, names)
        return with_columns(table, {"jobs": pc.coalesce(as_array(table["jobs"]), counted)})
    counts = {
        "jobs_running": _queue_counts(active),
        "jobs_pending": _queue_counts(jobs.filter(has_state(jobs, WAITING))),
    }
    columns = {
        column: pc.max_element_wise(as_array(table[column]), _named_counts(queue_counts, names))
        for column, queue_counts in counts.items()
    }
    return with_columns(table, columns)


def running_hosts(jobs: pa.Table, most: int) -> tuple[str, ...]:
    """Return the hosts of the running jobs, each once and no more than `most`."""
    running = jobs.filter(has_state(jobs, {JobState.RUNNING}))
    hosts: dict[str, None] = {}
    for node_list in filter(None, pc.unique(running["node_list"]).to_pylist()):
        with contextlib.suppress(ValueError):
            hosts.update(dict.fromkeys(expand(node_list, limit=_MAX_JOB_NODES)))
        if len(hosts) >= most:
            break
    return tuple(hosts)[:most]


def with_down_hosts(jobs: pa.Table, down: Collection[str]) -> pa.Table:
    """Return the jobs, with `n2 is down` as the reason of those that are reported to run there."""
    is_running = has_state(jobs, {JobState.RUNNING})
    if not down or not pc.any(is_running, min_count=0).as_py():
        return jobs
    reasons = as_array(jobs["reason"]).cast(pa.string()).to_pylist()
    node_lists = jobs["node_list"].to_pylist()
    for row, (node_list, runs) in enumerate(zip(node_lists, is_running.to_pylist(), strict=True)):
        if not node_list or not runs:
            continue
        if lost := [host for host in sorted(down) if contains(node_list, host)]:
            reasons[row] = f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} down"
    return _with_reasons(jobs, pa.array(reasons, pa.string()))


def with_pause(jobs: pa.Table, why: str) -> pa.Table:
    """Return the jobs, with `why` as the reason of those that are pending and not held."""
    reasons = as_array(jobs["reason"]).cast(pa.string())
    is_pending = has_state(jobs, {JobState.PENDING})
    return _with_reasons(jobs, pc.if_else(is_pending, pa.scalar(why), reasons))


def has_pending(jobs: pa.Table) -> bool:
    return bool(pc.any(has_state(jobs, {JobState.PENDING}), min_count=0).as_py())


def _with_reasons(jobs: pa.Table, reasons: pa.Array) -> pa.Table:
    kind = jobs.schema.field("reason").type
    return with_columns(jobs, {"reason": dictionary_text(reasons).cast(kind)})


def _named_counts(counts: Counter[str], names: list[str]) -> pa.Array:
    return pa.array([counts[name] for name in names], pa.int64())


def _queue_counts(jobs: pa.Table) -> Counter[str]:
    """Count the jobs in each queue.

    Each task of a pending record counts, and a job that requested several queues counts in each.
    """
    counts: Counter[str] = Counter()
    tasks = jobs.select(["queue", "_tasks"]).group_by("queue").aggregate([("_tasks", "sum")])
    for entry in tasks.to_pylist():
        for name in (entry["queue"] or "").split(","):
            counts[name] += entry["_tasks_sum"]
    return counts
