"""What a cluster offers to whoever submits: from tables that are fresh, else asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from hpcdash.backends.queries import ParsedOffers, Query
from hpcdash.domain.offers import AccountOffer, Offers, QosOffer, QueueOffer
from hpcdash.domain.states import NodeState, QueueStanding
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age
from hpcdash.domain.words import queue_note
from hpcdash.errors import HpcdashError
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.snapshots import Kind

__all__ = ["AccountOffer", "Offers", "QosOffer", "QueueOffer", "fetch_offers", "offers_of"]

# Tables are polled each minute while they are shown.
_FRESH_SECONDS = 90.0
_OF_NODES = ["state", "queues", "cpus", "cpus_used", "gpus", "gpus_used", "gpu_type", "memory_bytes"]
_NOW_FREE = frozenset({NodeState.IDLE, NodeState.MIXED})
_T = TypeVar("_T")
_Row = Mapping[str, Any]


async def fetch_offers(store: ClusterStore, *, user: str = "") -> Offers:
    """Queues, accounts and QoS; what cannot be asked is a note. At most four commands, at the same time.

    `user` is whose accounts they are: '' for who one is there. Connects where the line is not open; raises nothing of
    HpcdashError.
    """
    try:
        probe = await store.open()
    except HpcdashError as error:
        known = await _known(store)
        return replace(known, notes=(f"nothing can be asked: {error.message}", *known.notes))
    notes: list[str] = []
    backend, whose = store.backend, user or probe.user
    of_accounts = backend.associations_query(whose, probe.cluster)
    of_qos = backend.qos_offers_query()
    if of_accounts is not None and probe.has_accounting is False:
        notes.append("this cluster has no accounting: there are no accounts and no QoS to choose from")
        of_accounts = of_qos = None
    accounts, qos, *_ = await asyncio.gather(
        _asked(store, of_accounts, "accounts", notes),
        _asked(store, of_qos, "QoS", notes),
        _fresh(store, Kind.QUEUES, notes),
        _fresh(store, Kind.NODES, notes),
    )
    known = await _known(store)
    return replace(known, accounts=accounts, qos=qos, notes=(*notes, *known.notes))


async def _asked(
    store: ClusterStore, query: Query[ParsedOffers[_T]] | None, what: str, notes: list[str]
) -> tuple[_T, ...]:
    if query is None:
        return ()
    try:
        parsed = await store.ask(query)
    except HpcdashError as error:
        notes.append(f"{what} are not known: {error.message}")
        return ()
    if parsed.rejected:
        rows = counted(len(parsed.rejected), "row")
        notes.append(f"{rows} of {what} could not be read: {visible(parsed.rejected[0])}")
    return parsed.offers


async def _fresh(store: ClusterStore, kind: Kind, notes: list[str]) -> None:
    snapshot = store.snapshots.get(kind)
    if snapshot is not None and not snapshot.cached and store.clock.now() - snapshot.taken_at < _FRESH_SECONDS:
        return
    try:
        await store.fetch(kind)
    except HpcdashError as error:
        store.load_cached((kind,))
        old = store.snapshots.get(kind)
        known = f"as known {format_age(store.clock.now() - old.taken_at)} ago" if old else "not known"
        notes.append(f"{kind} are {known}: {error.message}")


async def _known(store: ClusterStore) -> Offers:
    """What the tables tell; thousands of nodes take a thread some milliseconds."""
    return await asyncio.to_thread(offers_of, store.table(Kind.QUEUES), store.table(Kind.NODES), store.clock.now())


def offers_of(queue_table: pa.Table | None, node_table: pa.Table | None, now: float) -> Offers:
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
    told = () if is_bound or not nodes or len(queues) < 2 else ("which nodes a queue has is not told: all are counted",)
    return Offers(tuple(offers), gpu_types=_gpu_types(nodes), notes=told)


def _queue(row: _Row, nodes: Sequence[_Row], now: float) -> QueueOffer:
    free = [node for node in nodes if node["state"] in _NOW_FREE]
    of_queue = _told(row["nodes"], len(nodes))
    idle = sum(node["state"] == NodeState.IDLE for node in nodes)
    return QueueOffer(
        name=row["name"],
        is_default=bool(row["default"]),
        # None: not told.
        is_available=row["available"] is not False,
        limit_seconds=row["limit_seconds"],
        nodes=of_queue,
        nodes_idle=_told(row["nodes_idle"], min(idle, of_queue)),
        cpus=_told(row["cpus"], _total(nodes, "cpus")),
        cpus_idle=_total(free, "cpus") - _total(free, "cpus_used"),
        gpus=_told(row["gpus"], _total(nodes, "gpus")),
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
    )


def _told(value: int | None, counted: int) -> int:
    return counted if value is None else value


def _total(nodes: Iterable[_Row], column: str) -> int:
    return sum(node[column] or 0 for node in nodes)


def _largest(nodes: Iterable[_Row], column: str) -> int | None:
    return max((node[column] for node in nodes if node[column] is not None), default=None)


def _gpu_types(nodes: Iterable[_Row]) -> tuple[str, ...]:
    return tuple(sorted({node["gpu_type"] for node in nodes if node["gpu_type"]}))
