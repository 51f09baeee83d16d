"""What a cluster's queues are to a launch: which is the default, which have GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.errors import HpcdashError
from hpcdash.launch.pools import Pool
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.snapshots import Kind

if TYPE_CHECKING:
    from hpcdash.domain.offers import CpuShare, Offers, QueueLimits


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue as it was told; `has_gpus` None: not told."""

    name: str
    is_default: bool
    has_gpus: bool | None


class LaunchQueues:
    """The queues of one cluster, from its store's tables where there are some."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._asked: dict[Kind, pa.Table] = {}
        self._limits: Mapping[str, QueueLimits] | None = None
        self._asking = asyncio.Lock()

    async def learn(self) -> None:
        """Ask once for the queues where no table of them is known, and for the nodes where queues tell no GPUs.

        Without an answer nothing is known of them. Raises what keeps the line from being opened.
        """
        async with self._asking:
            await self._store.open()
            with contextlib.suppress(HpcdashError):
                await self._ask(Kind.QUEUES)
                if any(queue.has_gpus is None for queue in self.known()):
                    await self._ask(Kind.NODES)
                query = self._store.backend.queue_limits_query()
                if query is not None and self._limits is None:
                    self._limits = await self._store.ask(query)

    def known(self) -> list[KnownQueue]:
        """In the cluster's order; none where nothing is known."""
        table = self._table(Kind.QUEUES)
        if table is None:
            return []
        return [
            KnownQueue(row["name"], bool(row["default"]), None if row["gpus"] is None else row["gpus"] > 0)
            for row in table.select(["name", "default", "gpus"]).to_pylist()
        ]

    def pools(self) -> list[Pool]:
        """The queues as far as the choice of one goes."""
        return [Pool(one.name, one.is_default, self._has_gpus(one)) for one in self.known()]

    async def offers(self) -> Offers:
        """What the queues and nodes that are known offer; thousands of nodes take a thread some milliseconds."""
        from hpcdash.stores.offers import offers_of

        queues, nodes = self._table(Kind.QUEUES), self._table(Kind.NODES)
        return await asyncio.to_thread(offers_of, queues, nodes, self._store.clock.now())

    def has_gpus(self, name: str) -> tuple[bool, bool]:
        """(whether a queue has GPUs, whether that was told of it): names match in upper and lower case alike.

        PBS tells it of the nodes, which take jobs of any queue where they are bound to none.
        """
        queue = self._named(name)
        is_told = queue is not None and (queue.has_gpus is not None or bool(self._nodes_of(queue.name)))
        return self._has_gpus(queue), is_told

    def cpu_share(self, name: str, gpus: int) -> CpuShare | None:
        """The CPUs that go with each of a job's `gpus` in a queue: what the queue gives a chunk, else as many as the
        GPU's node has for each of its own, within what the queue allows. None where that is not known."""
        from hpcdash.domain.offers import CpuShare

        queue = self._named(name)
        if queue is None or self._limits is None:
            return None
        limits = self._limits_of(queue.name)
        chunk_cpus = max((one.chunk_cpus or 0 for one in limits), default=0)
        if chunk_cpus > 1:
            return CpuShare(
                None, f"queue {queue.name} gives each chunk {chunk_cpus} CPUs; cpus_per_gpu sets another number"
            )
        shares = [node["cpus"] // node["gpus"] for node in self._nodes_of(queue.name) if node["gpus"] and node["cpus"]]
        share, whose = min(shares, default=0), "a node's share"
        if (most := min((one.most_cpus for one in limits if one.most_cpus), default=0)) and share * gpus > most:
            share, whose = most // gpus, f"as many as queue {queue.name} allows"
        cpus = "1 CPU" if share == 1 else f"{share} CPUs"
        return CpuShare(share, f"{cpus} with each GPU, {whose}; cpus_per_gpu sets another number") if share else None

    def _limits_of(self, name: str) -> list[QueueLimits]:
        """A queue's own, those of where it passes jobs on to, and the server's."""
        known = self._limits or {}
        own = known.get(name)
        names = (name, *(own.destinations if own else ()), "")
        return [known[one] for one in names if one in known]

    def _named(self, name: str) -> KnownQueue | None:
        """The queue of that name; for '' the only one."""
        known = self.known()
        only = known[0] if len(known) == 1 and not name else None
        return next((one for one in known if one.name.casefold() == name.casefold()), only)

    def _nodes_of(self, name: str) -> list[dict[str, Any]]:
        """The nodes that are bound to a queue; where none is, those that are bound to no other."""
        nodes = self._table(Kind.NODES)
        rows = [] if nodes is None else nodes.select(["queues", "cpus", "gpus"]).to_pylist()
        return [row for row in rows if name in (row["queues"] or ())] or [row for row in rows if not row["queues"]]

    def _has_gpus(self, queue: KnownQueue | None) -> bool:
        """What a queue itself does not tell, as PBS's, its nodes do; where nobody knows, it has some."""
        if queue is not None and queue.has_gpus is not None:
            return queue.has_gpus
        nodes = self._table(Kind.NODES)
        if nodes is None or queue is None:
            return nodes is None or any(nodes["gpus"].to_pylist())
        allowed = (one.most_gpus for one in self._limits_of(queue.name))
        return 0 not in allowed and any(row["gpus"] for row in self._nodes_of(queue.name))

    def _table(self, kind: Kind) -> pa.Table | None:
        return self._asked.get(kind, self._store.table(kind))

    async def _ask(self, kind: Kind) -> None:
        if self._table(kind) is None:
            self._asked[kind] = (await self._store.ask(self._store.query(kind))).table
