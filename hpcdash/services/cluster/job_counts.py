"""Job counts of nodes and queues from everyone's queue, and the jobs on nodes that are down.

Pure.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array, dictionary_text
from hpcdash.domain.nodelist import contains, expand
from hpcdash.domain.states import ACTIVE, WAITING, JobState
from hpcdash.domain.tables import Kind

# A job over more nodes than this is counted on none; the largest machine has 160 000.
_NODES_A_JOB = 200_000


def with_job_counts(kind: Kind, table: pa.Table, jobs: pa.Table) -> pa.Table:
    """A nodes table with `jobs`, or a queues table with `jobs_running` and `jobs_pending`.

    What a node says of itself stays. Of a queue's own counts and those of its rows the larger ones:
    a server may hide the jobs of others, and count an array that waits as one.
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


def running_hosts(jobs: pa.Table, most: int) -> tuple[str, ...]:
    """The hosts of the jobs that run, each once; no more than `most`."""
    lists = pc.unique(jobs.filter(_runs(jobs))["node_list"]).to_pylist()
    hosts: dict[str, None] = {}
    for names in filter(None, lists):
        with contextlib.suppress(ValueError):
            hosts.update(dict.fromkeys(expand(names, limit=_NODES_A_JOB)))
        if len(hosts) >= most:
            break
    return tuple(hosts)[:most]


def with_down_hosts(jobs: pa.Table, down: Collection[str]) -> pa.Table:
    """The jobs with `n2 is down` as the reason of those that are said to run there."""
    runs = _runs(jobs)
    if not down or not pc.any(runs, min_count=0).as_py():
        return jobs
    reasons = as_array(jobs["reason"]).cast(pa.string()).to_pylist()
    for at, names in enumerate(jobs["node_list"].to_pylist()):
        if (
            names
            and runs[at].as_py()
            and (lost := [host for host in sorted(down) if contains(names, host)])
        ):
            reasons[at] = f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} down"
    field = jobs.schema.field("reason")
    column = pa.array(reasons, pa.string())
    column = (
        column.dictionary_encode().cast(field.type)
        if pa.types.is_dictionary(field.type)
        else column
    )
    return jobs.set_column(jobs.schema.get_field_index("reason"), field, column)


def with_pause(jobs: pa.Table, why: str) -> pa.Table:
    """The jobs with `why` as the reason of those that wait for their start alone."""
    field = jobs.schema.field("reason")
    reasons = as_array(jobs["reason"]).cast(pa.string())
    column = dictionary_text(pc.if_else(_is_pending(jobs), pa.scalar(why), reasons)).cast(
        field.type
    )
    return jobs.set_column(jobs.schema.get_field_index("reason"), field, column)


def has_pending(jobs: pa.Table) -> bool:
    return bool(pc.any(_is_pending(jobs), min_count=0).as_py())


def _is_pending(jobs: pa.Table) -> pa.Array:
    return pc.fill_null(
        pc.equal(as_array(jobs["state"]).cast(pa.string()), str(JobState.PENDING)), False
    )


def _runs(jobs: pa.Table) -> pa.Array:
    return pc.fill_null(
        pc.equal(as_array(jobs["state"]).cast(pa.string()), str(JobState.RUNNING)), False
    )


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
    """Jobs by queue: each task of a pending record counts, and a job that asked for several queues
    counts in each.
    """
    counts: Counter[str] = Counter()
    summed = jobs.select(["queue", "_tasks"]).group_by("queue").aggregate([("_tasks", "sum")])
    for entry in summed.to_pylist():
        for name in (entry["queue"] or "").split(","):
            counts[name] += entry["_tasks_sum"]
    return counts
