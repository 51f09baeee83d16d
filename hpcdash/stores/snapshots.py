"""A table and when it was true: what stores keep and views show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from hpcdash.domain import schema


class Kind(StrEnum):
    """The tables a cluster has. Mine and everyone's jobs are two: they are asked at different paces."""

    MINE = "mine"
    EVERYONE = "everyone"
    NODES = "nodes"
    QUEUES = "queues"
    HISTORY = "history"
    HISTORY_EVERYONE = "history-everyone"


SCHEMAS: dict[Kind, pa.Schema] = {
    Kind.MINE: schema.JOBS,
    Kind.EVERYONE: schema.JOBS,
    Kind.NODES: schema.NODES,
    Kind.QUEUES: schema.QUEUES,
    Kind.HISTORY: schema.JOBS,
    Kind.HISTORY_EVERYONE: schema.JOBS,
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table in its kind's schema, taken at an epoch second; `cached` when it is from an earlier run.

    `scheduler` is who an earlier run asked: the backend's name and, where that was told, the server's (`pbs pbs01`).
    """

    kind: Kind
    table: pa.Table
    taken_at: float
    rejected: tuple[str, ...] = ()
    cached: bool = False
    scheduler: str = ""

    def may_be_of(self, scheduler: str) -> bool:
        """Whether it may be of this scheduler: of the same backend, and where both name a server, of the same one."""
        mine, other = self.scheduler.split(), scheduler.split()
        return all(one == two for one, two in zip(mine, other, strict=False))
