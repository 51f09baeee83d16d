"""Queues of a cluster as a launch needs them: default queue, GPUs, limits.

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
from hpcdash.domain.room import NODE_COLUMNS, QueueNodes
from hpcdash.domain.states import STARTING, UNLISTED, NodeState, QueueStanding
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore

if TYPE_CHECKING:
    from hpcdash.domain.offers import AccessRules, CpuShare, QueueLimits

# Tables are polled each minute while they are shown.
_FRESH_SECONDS = 90.0
_T = TypeVar("_T")
_Row = Mapping[str, Any]


class KnownQueue(Struct, frozen=True):
    """A queue as reported; `has_gpus` is None if unreported.

    Only an `is_listed` queue is chosen as a default.
    """

    name: str
    is_default: bool
    has_gpus: bool | None
    is_listed: bool


class LaunchQueues:
    """The queues of one cluster, from its store's tables if they are loaded."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._queried: dict[Kind, pa.Table] = {}
        self._limits: Mapping[str, QueueLimits] | None = None
        self._lock = asyncio.Lock()

    async def fetch(self) -> None:
        """Query the queues and their limits once, and the nodes if queues do not report GPUs.

        Without an answer they stay unknown. Raises the errors of opening the connection.
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
        """Return the queues in the cluster's order; [] if unknown."""
        table = self._table(Kind.QUEUES)
        if table is None:
            return []
        found = []
        for row in table.select(["name", "default", "gpus", "_standing"]).to_pylist():
            queue = KnownQueue(
                name=row["name"],
                is_default=bool(row["default"]),
                has_gpus=None if row["gpus"] is None else row["gpus"] > 0,
                is_listed=row["_standing"] not in UNLISTED,
            )
            found.append(queue)
        return found

    def pools(self) -> list[Pool]:
        """Return the listed queues with the facts that the choice of one needs."""
        listed = [queue for queue in self.known() if queue.is_listed]
        return [Pool(one.name, one.is_default, self._has_gpus(one)) for one in listed]

    async def offers(self) -> Offers:
        """Build the offers of the known queues and nodes.

        It runs in a thread: thousands of nodes take some milliseconds.
        """
        queues = self._table(Kind.QUEUES)
        nodes = self._table(Kind.NODES)
        return await asyncio.to_thread(build_offers, queues, nodes, self._store.clock.now())

    def has_gpus(self, name: str) -> tuple[bool, bool]:
        """Return whether a queue has GPUs, and whether that is known; names ignore case.

        PBS reports GPUs of nodes; nodes that are bound to no queue accept jobs of any.
        """
        queue = self._find_queue(name)
        if queue is None:
            return self._has_gpus(None), False
        is_known = queue.has_gpus is not None or bool(self._queue_nodes(queue.name))
        return self._has_gpus(queue), is_known

    def cpu_share(self, name: str, gpus: int) -> CpuShare | None:
        """Return the CPUs for each of a job's `gpus` in a queue; None if unknown.

        That is the queue's default for a chunk, else a node's CPUs per GPU within the queue's
        limit.
        """
        from hpcdash.domain.offers import CpuShare

        queue = self._find_queue(name)
        if queue is None or self._limits is None:
            return None
        limits = self._queue_limits(queue.name)
        chunk_cpus = max((one.chunk_cpus or 0 for one in limits), default=0)
        if chunk_cpus > 1:
            text = f"queue {queue.name} defaults to {chunk_cpus} CPUs per chunk"
            return CpuShare(None, f"{text}; cpus_per_gpu overrides it")
        nodes = self._queue_nodes(queue.name)
        shares = [node["cpus"] // node["gpus"] for node in nodes if node["gpus"] and node["cpus"]]
        share = min(shares, default=0)
        origin = "a node's share"
        most_cpus = min((one.most_cpus for one in limits if one.most_cpus), default=0)
        if most_cpus and share * gpus > most_cpus:
            share = most_cpus // gpus
            origin = f"the maximum that queue {queue.name} allows"
        if not share:
            return None
        text = f"{counted(share, 'CPU')} per GPU, {origin}; cpus_per_gpu overrides it"
        return CpuShare(share, text)

    def _queue_limits(self, name: str) -> list[QueueLimits]:
        """Return the limits of a queue, of the queues that it routes jobs to, and of the server."""
        known = self._limits or {}
        names = [name, ""]
        if name in known:
            names[1:1] = known[name].destinations
        return [known[one] for one in names if one in known]

    def _find_queue(self, name: str) -> KnownQueue | None:
        """Find a queue by its name; '' finds the only one."""
        known = self.known()
        only = known[0] if len(known) == 1 and not name else None
        return next((one for one in known if one.name.casefold() == name.casefold()), only)

    def _queue_nodes(self, name: str) -> list[dict[str, Any]]:
        """Return the nodes that are bound to a queue, else those that are bound to no queue."""
        nodes = self._table(Kind.NODES)
        rows = [] if nodes is None else nodes.select(["queues", "cpus", "gpus"]).to_pylist()
        bound = [row for row in rows if name in (row["queues"] or ())]
        return bound or [row for row in rows if not row["queues"]]

    def _has_gpus(self, queue: KnownQueue | None) -> bool:
        """Return whether a queue has GPUs, or its nodes if it does not report them, as in PBS.

        True if unknown.
        """
        if queue is not None and queue.has_gpus is not None:
            return queue.has_gpus
        nodes = self._table(Kind.NODES)
        if nodes is None or queue is None:
            return nodes is None or any(nodes["gpus"].to_pylist())
        allowed = (one.most_gpus for one in self._queue_limits(queue.name))
        return 0 not in allowed and any(row["gpus"] for row in self._queue_nodes(queue.name))

    def _table(self, kind: Kind) -> pa.Table | None:
        return self._queried.get(kind, self._store.table(kind))

    async def _query(self, kind: Kind) -> None:
        if self._table(kind) is None:
            parsed = await self._store.run_query(self._store.query(kind))
            self._queried[kind] = parsed.table


async def fetch_offers(store: ClusterStore, *, user: str = "") -> Offers:
    """Fetch queues, accounts and QoS, with a note on each failed query.

    At most four commands run at the same time. `user` owns the accounts, '' for the user of the
    connection, which is opened if necessary. Never raises HpcdashError.
    """
    try:
        probe = await store.open()
    except HpcdashError as error:
        known = await _known(store)
        return replace(known, notes=(f"no answer: {error.message}", *known.notes))
    notes: list[str] = []
    backend = store.backend
    account_offers = backend.policy.associations(user or probe.user, probe.cluster)
    qos_offers = backend.policy.qos_offers()
    if account_offers is not None and probe.has_accounting is False:
        notes.append("no accounting on this cluster: no accounts or QoS to choose from")
        account_offers = qos_offers = None
    accounts, qos, access, *_ = await asyncio.gather(
        _fetched(store, account_offers, "accounts", notes),
        _fetched(store, qos_offers, "QoS", notes),
        _fetch_access(store, probe.version, notes),
        _fresh(store, Kind.QUEUES, notes),
        _fresh(store, Kind.NODES, notes),
    )
    known = await _known(store)
    offers = replace(known, accounts=accounts, qos=qos, access=access, notes=(*notes, *known.notes))
    if not user:
        from hpcdash.domain.places import best_places

        store.queue_refusals = {
            name: place.reason
            for name, place in (await asyncio.to_thread(best_places, offers)).items()
            if place.accepts is False
        }
    return offers


async def _fetch_access(store: ClusterStore, version: str, notes: list[str]) -> AccessRules | None:
    query = store.backend.policy.access_rules(version)
    if query is None:
        return None
    try:
        return await store.run_query(query)
    except HpcdashError as error:
        notes.append(f"queue access is unknown: {error.message}")
        return None


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
        known = "unknown"
        if (old := store.snapshots.get(kind)) is not None:
            known = f"{format_age(store.clock.now() - old.taken_at)} old"
        notes.append(f"{kind} are {known}: {error.message}")


async def _known(store: ClusterStore) -> Offers:
    """Build offers from the store's tables, in a thread: thousands of nodes take milliseconds."""
    offers = await asyncio.to_thread(
        build_offers, store.table(Kind.QUEUES), store.table(Kind.NODES), store.clock.now()
    )
    hidden = store.site.hidden_queues
    return replace(
        offers, queues=tuple(queue for queue in offers.queues if queue.name not in hidden)
    )


def build_offers(queue_table: pa.Table | None, node_table: pa.Table | None, now: float) -> Offers:
    """Build the offers of the queues in the tables, and of their nodes, at an epoch second."""
    queues = [] if queue_table is None else queue_table.to_pylist()
    nodes = [] if node_table is None else node_table.select(NODE_COLUMNS).to_pylist()
    # PBS does not bind its nodes to queues.
    by_queue = QueueNodes(nodes)
    offers = []
    for row in queues:
        queue_nodes = by_queue.bound_to(row["name"]) if by_queue.is_bound else nodes
        offers.append(_build_offer(row, queue_nodes, now))
    notes: tuple[str, ...] = ()
    if nodes and not by_queue.is_bound and len(queues) > 1:
        notes = ("the nodes of each queue are unknown: counting all nodes",)
    return Offers(tuple(offers), gpu_types=_gpu_types(nodes), notes=notes)


def _build_offer(row: _Row, nodes: Sequence[_Row], now: float) -> QueueOffer:
    totals = {"nodes": len(nodes), "cpus": _total(nodes, "cpus"), "gpus": _total(nodes, "gpus")}
    # The queue's own counts override those of its nodes.
    totals |= {name: row[name] for name in totals if row[name] is not None}
    free = [node for node in nodes if node["state"] in STARTING]
    nodes_idle = row["nodes_idle"]
    if nodes_idle is None:
        nodes_idle = sum(node["state"] == NodeState.IDLE for node in nodes)
        nodes_idle = min(nodes_idle, totals["nodes"])
    return QueueOffer(
        name=row["name"],
        is_default=bool(row["default"]),
        # None: unknown.
        is_available=row["available"] is not False,
        limit_seconds=row["limit_seconds"],
        nodes=totals["nodes"],
        nodes_idle=nodes_idle,
        cpus=totals["cpus"],
        cpus_idle=_total(free, "cpus") - _total(free, "cpus_used"),
        gpus=totals["gpus"],
        gpus_idle=_total(free, "gpus") - _total(free, "gpus_used"),
        gpu_types=_gpu_types(nodes),
        cpus_per_node=_largest(nodes, "cpus"),
        gpus_per_node=_largest(nodes, "gpus"),
        memory_per_node_bytes=_largest(nodes, "memory_bytes"),
        gpu_nodes=sum(bool(node["gpus"]) for node in nodes),
        note=queue_note({**row, "_server_note": None}, now),
        server_note=row["_server_note"] or "",
        # The server itself applies access lists.
        refuses=row["_standing"] == QueueStanding.DISABLED,
        is_listed=row["_standing"] not in UNLISTED,
    )


def _total(nodes: Iterable[_Row], column: str) -> int:
    return sum(node[column] or 0 for node in nodes)


def _largest(nodes: Iterable[_Row], column: str) -> int | None:
    return max((node[column] for node in nodes if node[column] is not None), default=None)


def _gpu_types(nodes: Iterable[_Row]) -> tuple[str, ...]:
    return tuple(sorted({node["gpu_type"] for node in nodes if node["gpu_type"]}))
