"""What a cluster's queues are to a launch: which is the default, which have GPUs. Knows no screen and no scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from hpcdash.errors import HpcdashError
from hpcdash.launch.pools import Pool
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.snapshots import Kind

if TYPE_CHECKING:
    from hpcdash.launch.offers import Offers


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

        return await asyncio.to_thread(offers_of, self._table(Kind.QUEUES), self._table(Kind.NODES))

    def has_gpus(self, name: str) -> tuple[bool, bool]:
        """(whether a queue has GPUs, whether that was told of it): names match in upper and lower case alike."""
        known = self.known()
        only = known[0] if len(known) == 1 and not name else None
        queue = next((one for one in known if one.name.casefold() == name.casefold()), only)
        return self._has_gpus(queue), queue is not None and queue.has_gpus is not None

    def _has_gpus(self, queue: KnownQueue | None) -> bool:
        """What a queue itself does not tell, as PBS's, its cluster's nodes do; where nobody knows, it has some."""
        if queue is not None and queue.has_gpus is not None:
            return queue.has_gpus
        nodes = self._table(Kind.NODES)
        return nodes is None or any(gpus for gpus in nodes["gpus"].to_pylist())

    def _table(self, kind: Kind) -> pa.Table | None:
        return self._asked.get(kind, self._store.table(kind))

    async def _ask(self, kind: Kind) -> None:
        if self._table(kind) is None:
            self._asked[kind] = (await self._store.ask(self._store.query(kind))).table
