"""A store and a poller over a scripted transport, with a clock that a test moves. Asserts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.services.cluster.poller import Pace, Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.snapshots import Kind, SnapshotCache
from hpcdash.services.cluster.store import Changed, ClusterStore
from hpcdash.services.jobs.tracker import JobEvent
from tests.support.scripted_transport import HISTORY, PROBED, ScriptedTransport

PACE = Pace(
    {
        Kind.MINE: 15.0,
        Kind.EVERYONE: 60.0,
        Kind.NODES: 60.0,
        Kind.QUEUES: 60.0,
        Kind.HISTORY: 300.0,
        Kind.HISTORY_EVERYONE: 300.0,
    }
)


class HandClock:
    """Epoch and monotonic seconds at once; moves when a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1_795_242_200.0

    def now(self) -> float:
        return self.seconds

    def __call__(self) -> float:
        return self.seconds


async def until(holds: Callable[[], object]) -> None:
    """Lets the loop turn until `holds`; fails after two seconds."""
    async with asyncio.timeout(2):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def settled(cluster: Cluster) -> None:
    """Lets all run to its end but what hangs on the other side."""
    hanging = cluster.transport.hangs.keys()

    def rests() -> bool:
        if PROBED in hanging:
            return True
        waiting = {*cluster.poller._in_flight, *cluster.store._fetching}
        return all((HISTORY if kind is Kind.HISTORY else kind) in hanging for kind in waiting)

    for _ in range(3):
        for _ in range(5):
            await asyncio.sleep(0)
        await until(rests)


@dataclass
class Cluster:
    """A store over a scripted transport, its poller, and all that its listeners were told."""

    root: Path
    clock: HandClock = field(default_factory=HandClock)
    transport: ScriptedTransport = field(default_factory=ScriptedTransport)
    user: str = ""
    ceiling: int = 600
    told: list[Changed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = CommandBudget(self.ceiling, self.clock)
        self.cache = SnapshotCache(self.root, "lab")
        self.store = ClusterStore(
            "lab",
            self.transport,
            (BACKEND,),
            clock=self.clock,
            budget=self.budget,
            cache=self.cache,
            user=self.user,
        )
        self.store.listen(self.told.append)
        self.poller = Poller(self.store, PACE, monotonic=self.clock)

    async def mine(self) -> list[JobEvent]:
        """A look at one's own jobs; what happened to them by it."""
        self.told.clear()
        await self.store.fetch(Kind.MINE)
        return [event for changed in self.told for event in changed.events]

    def states(self) -> dict[str, str]:
        """The jobs as they are shown, by id, in their order."""
        table = self.store.table(Kind.MINE)
        assert table is not None
        return dict(zip(table["id"].to_pylist(), table["state"].to_pylist(), strict=True))

    async def close(self) -> None:
        await self.poller.stop()
        await self.store.close()
