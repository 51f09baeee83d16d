"""Summary of a cluster: used GPUs and CPUs by queue, one's own jobs by state, fair share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.domain.columns import STATE_ORDER, has_state
from hpcdash.domain.states import ACTIVE, WAITING


class QueueUse(Struct, frozen=True):
    """Slots of a queue: GPUs (`kind` "GPU") or, if it has none, CPUs.

    `down` of the `total` are on nodes that are down. `used` is None if unreported (PBS, whose
    queues share nodes). `closed` is why one's own jobs do not start in it, '' if they may. `own` is
    the number of one's own jobs.
    """

    name: str
    kind: str
    used: int | None
    total: int
    down: int
    nodes_down: int
    closed: str
    own: int

    @property
    def share(self) -> float:
        """Used part of what is not down, 0-1; 0 if it is unreported."""
        return min(1.0, (self.used or 0) / max(1, self.total - self.down))


def queue_uses(
    queues: pa.Table, mine: pa.Table | None = None, refused: Collection[str] = ()
) -> tuple[QueueUse, ...]:
    """Return the use of queues from domain.schema.QUEUES and one's own jobs.

    Queues with own jobs come first, then those that are open, then those with GPUs, the largest
    first. All accounts of the user are `refused` by these queues.
    """
    own = _job_counts(mine, "queue")
    uses = []
    for row in queues.select(_COLUMNS).to_pylist():
        kind, unit = ("GPU", "gpus") if row["gpus"] else ("CPU", "cpus")
        total = row[unit] or 0
        down = row[f"_{unit}_down"] or 0
        if total <= down:
            continue
        name = str(row["name"])
        closed = "no access" if name in refused else ""
        if row["available"] is False or row["_standing"]:
            closed = "closed"
        use = QueueUse(
            name,
            kind,
            used=row[f"{unit}_used"],
            total=total,
            down=down,
            nodes_down=row["nodes_down"] or 0,
            closed=closed,
            own=own[name],
        )
        uses.append(use)
    uses.sort(key=lambda use: (-use.own, use.closed, use.kind != "GPU", -use.total, use.name))
    return tuple(uses)


def own_jobs(mine: pa.Table) -> tuple[tuple[str, int], ...]:
    """Count one's own jobs that run or wait, by state, the most alive first.

    Tasks of an array count as jobs.
    """
    counts = _job_counts(mine, "state")
    return tuple((state, counts[state]) for state in STATE_ORDER if counts[state])


def own_fair_shares(shares: pa.Table) -> tuple[tuple[str, float], ...]:
    """Return the accounts of domain.schema.SHARES that one may charge, with one's fair share.

    The highest comes first. Of an account with several partitions the highest counts.
    """
    highest: dict[str, float] = {}
    for row in shares.filter(shares["own"]).select(["account", "fair_share"]).to_pylist():
        if row["fair_share"] is not None:
            highest[row["account"]] = max(row["fair_share"], highest.get(row["account"], 0.0))
    return tuple(sorted(highest.items(), key=lambda pair: (-pair[1], pair[0])))


def _job_counts(mine: pa.Table | None, column: str) -> Counter[str]:
    """Count the jobs that run or wait for each value of a column.

    A record of pending array tasks counts each task.
    """
    counts: Counter[str] = Counter()
    if mine is None:
        return counts
    living = mine.filter(has_state(mine, ACTIVE | WAITING))
    tasks = pc.coalesce(living["_tasks"], pa.scalar(1, living["_tasks"].type))
    groups = pa.table([living[column], tasks], names=["value", "tasks"]).group_by("value")
    for row in groups.aggregate([("tasks", "sum")]).to_pylist():
        counts[str(row["value"])] = row["tasks_sum"]
    return counts


_COLUMNS = [
    *("name", "available", "nodes_down", "cpus", "cpus_used", "gpus", "gpus_used"),
    *("_cpus_down", "_gpus_down", "_standing"),
]
