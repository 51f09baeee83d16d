"""Summary of a cluster: used GPUs and CPUs by queue, one's own jobs by state, fair share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.columns import STATE_ORDER
from hpcdash.domain.states import ACTIVE, WAITING


class QueueUse(Struct, frozen=True):
    """A queue's slots: `kind` is "GPU" where it has GPUs, else "CPU"; `down` of the `total` are on
    nodes that are down.

    `used` is None where that is not told (PBS, whose queues share nodes). `own` is how many of
    one's own jobs it has.
    """

    name: str
    kind: str
    used: int | None
    total: int
    down: int
    nodes_down: int
    is_open: bool
    own: int

    @property
    def share(self) -> float:
        """Used part of what is not down, 0-1; 0 if it is unreported."""
        return min(1.0, (self.used or 0) / max(1, self.total - self.down))


def queue_uses(queues: pa.Table, mine: pa.Table | None = None) -> tuple[QueueUse, ...]:
    """Return the use of queues from domain.schema.QUEUES and one's own jobs.

    Queues with own jobs come first, then those with GPUs, the largest first.
    """
    own = _job_counts(mine, "queue")
    found = []
    for row in queues.select(_COLUMNS).to_pylist():
        kind, unit = ("GPU", "gpus") if row["gpus"] else ("CPU", "cpus")
        total = row[unit] or 0
        down = row[f"_{unit}_down"] or 0
        if total <= down:
            continue
        is_open = row["available"] is not False and not row["_standing"]
        name = str(row["name"])
        found.append(
            QueueUse(
                name,
                kind,
                row[f"{unit}_used"],
                total,
                down,
                row["nodes_down"] or 0,
                is_open,
                own.get(name, 0),
            )
        )
    return tuple(
        sorted(
            found,
            key=lambda one: (-one.own, one.kind != "GPU", not one.is_open, -one.total, one.name),
        )
    )


def own_jobs(mine: pa.Table) -> tuple[tuple[str, int], ...]:
    """Count one's own jobs that run or wait, by state, the most alive first.

    Tasks of an array count as jobs.
    """
    counts = _job_counts(mine, "state")
    return tuple(
        (state, counts[state])
        for state in STATE_ORDER
        if state in ACTIVE | WAITING and counts.get(state)
    )


def own_fair_shares(shares: pa.Table) -> tuple[tuple[str, float], ...]:
    """Return the accounts of domain.schema.SHARES that one may charge, with one's fair share.

    The highest comes first. Of an account with several partitions the highest counts.
    """
    found: dict[str, float] = {}
    for row in shares.filter(shares["own"]).select(["account", "fair_share"]).to_pylist():
        if row["fair_share"] is not None:
            found[row["account"]] = max(row["fair_share"], found.get(row["account"], 0.0))
    return tuple(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def _job_counts(mine: pa.Table | None, column: str) -> Mapping[str, int]:
    """Return how many jobs run or wait for each value of a column; a record of pending array tasks
    counts each task.
    """
    if mine is None:
        return {}
    tasks = pc.coalesce(mine["_tasks"], pa.scalar(1, mine["_tasks"].type))
    groups = pa.table([mine[column], mine["state"], tasks], names=["value", "state", "tasks"])
    counts: Counter[str] = Counter()
    for row in groups.group_by(["value", "state"]).aggregate([("tasks", "sum")]).to_pylist():
        if row["state"] in ACTIVE | WAITING:
            counts[str(row["value"])] += row["tasks_sum"]
    return counts


_COLUMNS = [
    *("name", "available", "nodes_down", "cpus", "cpus_used", "gpus", "gpus_used"),
    *("_cpus_down", "_gpus_down", "_standing"),
]
