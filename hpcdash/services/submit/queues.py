"""Offers of a cluster's queues to a launch: default queue, GPUs, limits.

They come from fresh tables, else from a query.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.queries import ParsedOffers, Query
from hpcdash.config.queue_defaults import Pool
from hpcdash.domain.job_text import queue_note
from hpcdash.domain.offers import Offers, QueueOffer
from hpcdash.domain.states import UNLISTED, NodeState, QueueStanding
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore

if TYPE_CHECKING:
    from hpcdash.domain.offers import CpuShare, QueueLimits

# Tables are polled each minute while they are shown.
_FRESH_SECONDS = 90.0
_OF_NODES = [
    "state",
    "queues",
    "cpus",
    "cpus_used",
    "gpus",
    "gpus_used",
    "gpu_type",
    "memory_bytes",
]
_NOW_FREE = frozenset({NodeState.IDLE, NodeState.MIXED})
_T = TypeVar("_T")
_Row = Mapping[str, Any]


class KnownQueue(Struct, frozen=True):
    """A queue as it was told; `has_gpus` None: not told.

    One that is not `is_listed` is not chosen for anybody.
    """

    name: str
    is_default: bool
    has_gpus: bool | None
    is_listed: bool


class LaunchQueues:
    """The queues of one cluster, from its store's tables where there are some."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._asked: dict[Kind, pa.Table] = {}
        self._limits: Mapping[str, QueueLimits] | None = None
        self._lock = asyncio.Lock()

    async def learn(self) -> None:
        """Ask once for the queues where no table of them is known, and for the nodes where queues
        tell no GPUs.

        Without an answer nothing is known of them. Raises what keeps the line from being opened.
        """
        async with self._lock:
            await self._store.open()
            with contextlib.suppress(HpcdashError):
                await self._query(Kind.QUEUES)
                if any(queue.has_gpus is None for queue in self.known()):
                    await self._query(Kind.NODES)
                query = self._store.backend.policy.queue_limits()
                if query is not None and self._limits is None:
                    self._limits = await self._store.run_query(query)

    def known(self) -> list[KnownQueue]:
        """In the cluster's order; none where nothing is known."""
        table = self._table(Kind.QUEUES)
        if table is None:
            return []
        return [
            KnownQueue(
                row["name"],
                bool(row["default"]),
                None if row["gpus"] is None else row["gpus"] > 0,
                row["_standing"] not in UNLISTED,
            )
            for row in table.select(["name", "default", "gpus", "_standing"]).to_pylist()
        ]

    def pools(self) -> list[Pool]:
        """The queues as far as the choice of one goes."""
        return [
            Pool(one.name, one.is_default, self._has_gpus(one))
            for one in self.known()
            if one.is_listed
        ]

    async def offers(self) -> Offers:
        """Build the offers of the known queues and nodes.

        It runs in a thread: thousands of nodes take some milliseconds.
        """

        queues = self._table(Kind.QUEUES)
        nodes = self._table(Kind.NODES)
        return await asyncio.to_thread(build_offers, queues, nodes, self._store.clock.now())

    def has_gpus(self, name: str) -> tuple[bool, bool]:
        """(whether a queue has GPUs, whether that was told of it): names match in upper and lower
        case alike.

        PBS tells it of the nodes, which take jobs of any queue where they are bound to none.
        """
        queue = self._named(name)
        is_known = queue is not None and (
            queue.has_gpus is not None or bool(self._queue_nodes(queue.name))
        )
        return self._has_gpus(queue), is_known

    def cpu_share(self, name: str, gpus: int) -> CpuShare | None:
        """The CPUs that go with each of a job's `gpus` in a queue: what the queue gives a chunk,
        else as many as the GPU's node has for each of its own, within what the queue allows. None
        where that is not known.
        """
        from hpcdash.domain.offers import CpuShare

        queue = self._named(name)
        if queue is None or self._limits is None:
            return None
        limits = self._queue_limits(queue.name)
        chunk_cpus = max((one.chunk_cpus or 0 for one in limits), default=0)
        if chunk_cpus > 1:
            return CpuShare(
                None,
                f"queue {queue.name} defaults to {chunk_cpus} CPUs per chunk; cpus_per_gpu "
                "overrides it",
            )
        shares = [
            node["cpus"] // node["gpus"]
            for node in self._queue_nodes(queue.name)
            if node["gpus"] and node["cpus"]
        ]
        share = min(shares, default=0)
        whose = "a node's share"
        if (
            most := min((one.most_cpus for one in limits if one.most_cpus), default=0)
        ) and share * gpus > most:
            share = most // gpus
            whose = f"as many as queue {queue.name} allows"
        cpus = "1 CPU" if share == 1 else f"{share} CPUs"
        return (
            CpuShare(share, f"{cpus} per GPU, {whose}; cpus_per_gpu overrides it")
            if share
            else None
        )

    def _queue_limits(self, name: str) -> list[QueueLimits]:
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

    def _queue_nodes(self, name: str) -> list[dict[str, Any]]:
        """The nodes that are bound to a queue; where none is, those that are bound to no other."""
        nodes = self._table(Kind.NODES)
        rows = [] if nodes is None else nodes.select(["queues", "cpus", "gpus"]).to_pylist()
        return [row for row in rows if name in (row["queues"] or ())] or [
            row for row in rows if not row["queues"]
        ]

    def _has_gpus(self, queue: KnownQueue | None) -> bool:
        """Check a queue for GPUs, or its nodes if it does not report them, as PBS's.

        If nothing is known, it has some.
        """
        if queue is not None and queue.has_gpus is not None:
            return queue.has_gpus
        nodes = self._table(Kind.NODES)
        if nodes is None or queue is None:
            return nodes is None or any(nodes["gpus"].to_pylist())
        allowed = (one.most_gpus for one in self._queue_limits(queue.name))
        return 0 not in allowed and any(row["gpus"] for row in self._queue_nodes(queue.name))

    def _table(self, kind: Kind) -> pa.Table | None:
        return self._asked.get(kind, self._store.table(kind))

    async def _query(self, kind: Kind) -> None:
        if self._table(kind) is None:
            self._asked[kind] = (await self._store.run_query(self._store.query(kind))).table


async def fetch_offers(store: ClusterStore, *, user: str = "") -> Offers:
    """Queues, accounts and QoS; what cannot be asked is a note.

    At most four commands, at the same time.

    `user` is whose accounts they are: '' for who one is there. Connects where the line is not open;
    raises nothing of HpcdashError.
    """
    try:
        probe = await store.open()
    except HpcdashError as error:
        known = await _known(store)
        return replace(known, notes=(f"no answer: {error.message}", *known.notes))
    notes: list[str] = []
    backend = store.backend
    whose = user or probe.user
    account_offers = backend.policy.associations(whose, probe.cluster)
    qos_offers = backend.policy.qos_offers()
    if account_offers is not None and probe.has_accounting is False:
        notes.append("no accounting on this cluster: no accounts or QoS to choose from")
        account_offers = qos_offers = None
    accounts, qos, *_ = await asyncio.gather(
        _fetched(store, account_offers, "accounts", notes),
        _fetched(store, qos_offers, "QoS", notes),
        _fresh(store, Kind.QUEUES, notes),
        _fresh(store, Kind.NODES, notes),
    )
    known = await _known(store)
    return replace(known, accounts=accounts, qos=qos, notes=(*notes, *known.notes))


async def _fetched(
    store: ClusterStore, query: Query[ParsedOffers[_T]] | None, what: str, notes: list[str]
) -> tuple[_T, ...]:
    if query is None:
        return ()
    try:
        parsed = await store.run_query(query)
    except HpcdashError as error:
        notes.append(f"{what} are unknown: {error.message}")
        return ()
    if parsed.rejected:
        rows = counted(len(parsed.rejected), "row")
        notes.append(f"{rows} of {what} could not be read: {visible(parsed.rejected[0])}")
    return parsed.offers


async def _fresh(store: ClusterStore, kind: Kind, notes: list[str]) -> None:
    snapshot = store.snapshots.get(kind)
    if (
        snapshot is not None
        and not snapshot.cached
        and store.clock.now() - snapshot.taken_at < _FRESH_SECONDS
    ):
        return
    try:
        await store.fetch(kind)
    except HpcdashError as error:
        store.load_cached((kind,))
        old = store.snapshots.get(kind)
        known = (
            f"as known {format_age(store.clock.now() - old.taken_at)} ago" if old else "not known"
        )
        notes.append(f"{kind} are {known}: {error.message}")


async def _known(store: ClusterStore) -> Offers:
    """Build offers from the store's tables, in a thread: thousands of nodes take milliseconds."""
    return await asyncio.to_thread(
        build_offers, store.table(Kind.QUEUES), store.table(Kind.NODES), store.clock.now()
    )


def build_offers(queue_table: pa.Table | None, node_table: pa.Table | None, now: float) -> Offers:
    """The queues as the tables have them at an epoch second, with what each one's nodes have."""
    queues = [] if queue_table is None else queue_table.to_pylist()
    nodes = [] if node_table is None else node_table.select(_OF_NODES).to_pylist()
    # PBS does not bind its nodes to queues.
    is_bound = any(node["queues"] for node in nodes)
    own: dict[str, list[_Row]] = {}
    for node in nodes:
        for name in node["queues"] or ():
            own.setdefault(name, []).append(node)
    offers = [_queue(row, own.get(row["name"], []) if is_bound else nodes, now) for row in queues]
    reported = (
        ()
        if is_bound or not nodes or len(queues) < 2
        else ("a queue's own nodes are unknown: counting all",)
    )
    return Offers(tuple(offers), gpu_types=_gpu_types(nodes), notes=reported)


def _queue(row: _Row, nodes: Sequence[_Row], now: float) -> QueueOffer:
    free = [node for node in nodes if node["state"] in _NOW_FREE]
    queue_nodes = _or_counted(row["nodes"], len(nodes))
    idle = sum(node["state"] == NodeState.IDLE for node in nodes)
    return QueueOffer(
        name=row["name"],
        is_default=bool(row["default"]),
        # None: unknown.
        is_available=row["available"] is not False,
        limit_seconds=row["limit_seconds"],
        nodes=queue_nodes,
        nodes_idle=_or_counted(row["nodes_idle"], min(idle, queue_nodes)),
        cpus=_or_counted(row["cpus"], _total(nodes, "cpus")),
        cpus_idle=_total(free, "cpus") - _total(free, "cpus_used"),
        gpus=_or_counted(row["gpus"], _total(nodes, "gpus")),
        gpus_idle=_total(free, "gpus") - _total(free, "gpus_used"),
        gpu_types=_gpu_types(nodes),
        cpus_per_node=_largest(nodes, "cpus"),
        gpus_per_node=_largest(nodes, "gpus"),
        memory_per_node_bytes=_largest(nodes, "memory_bytes"),
        gpu_nodes=sum(bool(node["gpus"]) for node in nodes),
        note=queue_note({**row, "_server_note": None}, now),
        server_note=row["_server_note"] or "",
        # Whether an access list keeps somebody out the server knows better.
        refuses=row["_standing"] == QueueStanding.DISABLED,
        is_listed=row["_standing"] not in UNLISTED,
    )


def _or_counted(value: int | None, counted: int) -> int:
    return counted if value is None else value


def _total(nodes: Iterable[_Row], column: str) -> int:
    return sum(node[column] or 0 for node in nodes)


def _largest(nodes: Iterable[_Row], column: str) -> int | None:
    return max((node[column] for node in nodes if node[column] is not None), default=None)


def _gpu_types(nodes: Iterable[_Row]) -> tuple[str, ...]:
    return tuple(sorted({node["gpu_type"] for node in nodes if node["gpu_type"]}))
