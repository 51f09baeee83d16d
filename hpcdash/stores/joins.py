"""Counts of jobs for nodes and queues, from everyone's queue. Pure, vectorised but for the node lists."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array
from hpcdash.domain.nodelist import expand
from hpcdash.domain.states import ACTIVE, WAITING
from hpcdash.stores.snapshots import Kind

# A job over more nodes than this is counted on none; the largest machine has 160 000.
_NODES_A_JOB = 200_000


def with_job_counts(kind: Kind, table: pa.Table, jobs: pa.Table) -> pa.Table:
    """A nodes table with `jobs`, or a queues table with `jobs_running` and `jobs_pending`.

    What a node says of itself stays. Of a queue's own counts and those of its rows the larger ones: a server may hide
    the jobs of others, and count an array that waits as one.
    """
    states = pc.cast(jobs["state"], pa.string())
    active = pc.is_in(states, pa.array([str(state) for state in ACTIVE]))
    if kind is Kind.NODES:
        counts = _by_node(jobs.filter(active))
        counted = pa.array([counts.get(name, 0) for name in table["name"].to_pylist()], pa.int64())
        return _set(table, "jobs", pc.coalesce(as_array(table["jobs"]), counted))
    waiting = pc.is_in(states, pa.array([str(state) for state in WAITING]))
    running = _by_queue(jobs.filter(active))
    pending = _by_queue(jobs.filter(waiting))
    names = table["name"].to_pylist()
    for column, counts in (("jobs_running", running), ("jobs_pending", pending)):
        counted = pa.array([counts.get(name, 0) for name in names], pa.int64())
        table = _set(table, column, pc.max_element_wise(as_array(table[column]), counted))
    return table


def _set(table: pa.Table, column: str, counts: pa.Array) -> pa.Table:
    position = table.schema.get_field_index(column)
    return table.set_column(position, table.schema.field(position), counts)


def _by_node(jobs: pa.Table) -> Counter[str]:
    counts: Counter[str] = Counter()
    lists = pc.value_counts(jobs["node_list"])
    for entry in lists.to_pylist():
        if entry["values"]:
            try:
                names = expand(entry["values"], limit=_NODES_A_JOB)
            except ValueError:
                continue
            for name in names:
                counts[name] += entry["counts"]
    return counts


def _by_queue(jobs: pa.Table) -> Counter[str]:
    """Jobs by queue: each task of a pending record counts, and a job that asked for several queues counts in each."""
    counts: Counter[str] = Counter()
    summed = jobs.select(["queue", "_tasks"]).group_by("queue").aggregate([("_tasks", "sum")])
    for entry in summed.to_pylist():
        for name in (entry["queue"] or "").split(","):
            counts[name] += entry["_tasks_sum"]
    return counts
