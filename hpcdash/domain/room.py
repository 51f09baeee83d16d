"""Room for a job on the nodes of a queue: how many nodes could run its share, and how many now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpcdash.domain.accelerators import gpu_facts
from hpcdash.domain.demand import Demand, is_gpu_type
from hpcdash.domain.states import ACTIVE, STARTING, UNAVAILABLE, JobState, NodeState
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_memory

Row = Mapping[str, Any]
NODE_COLUMNS = (
    "name",
    "state",
    "queues",
    "cpus",
    "cpus_used",
    "gpus",
    "gpus_used",
    "gpu_type",
    "memory_bytes",
    "memory_used_bytes",
    "features",
)


class Room(Struct, frozen=True):
    """Nodes of a queue that can run a job's share: `able` in all, `in_service`, `free` now.

    `is_possible` is whether these suffice for the whole job, `is_free_now` whether the free ones
    do; None: unknown. `shortage` is what the free nodes lack, '' for nothing; `doubt` what is
    unknown of the nodes.
    """

    able: int = 0
    in_service: int = 0
    free: int = 0
    is_possible: bool | None = None
    is_free_now: bool | None = None
    shortage: str = ""
    doubt: str = ""


class QueueNodes:
    """Nodes by the queues that they are bound to."""

    def __init__(self, nodes: Iterable[Row] = ()) -> None:
        """`nodes` are rows of NODE_COLUMNS."""
        self._bound: dict[str, list[Row]] = {}
        self._unbound: list[Row] = []
        for node in nodes:
            for queue in node["queues"] or ():
                self._bound.setdefault(queue, []).append(node)
            if not node["queues"]:
                self._unbound.append(node)

    @property
    def is_bound(self) -> bool:
        """Whether any node is bound to a queue; PBS binds few or none."""
        return bool(self._bound)

    def bound_to(self, queue: str) -> Sequence[Row]:
        """Return the nodes that are bound to a queue."""
        return self._bound.get(queue, ())

    def in_queue(self, queue: str) -> Sequence[Row]:
        """Return the nodes that are bound to a queue, or those that are bound to none."""
        return self._bound.get(queue, self._unbound)


class _Share(Struct, frozen=True):
    """The least that a job takes on each of its nodes; 0: nothing."""

    cpus: int
    gpus: int
    memory_bytes: int


def find_room(nodes: Sequence[Row], demand: Demand) -> Room:
    """Find the room on rows of domain.schema.NODES; `doubt` without any."""
    if not nodes:
        return Room(doubt="node data unknown")
    share = _node_share(demand)
    able: list[Row] = []
    doubts: dict[str, None] = {}
    for node in nodes:
        is_able, doubt = _is_able(node, share, demand)
        if is_able:
            able.append(node)
        if doubt:
            doubts[doubt] = None
    in_service = [node for node in able if node["state"] not in UNAVAILABLE]
    starting = [node for node in in_service if node["state"] in STARTING]
    free = [node for node in starting if _has_free(node, share, demand)]
    is_free_now = _suffices(free, demand, is_free=True)
    return Room(
        able=len(able),
        in_service=len(in_service),
        free=len(free),
        is_possible=_suffices(able, demand, is_free=False),
        is_free_now=is_free_now,
        shortage="" if is_free_now else _shortage(starting, free, share, demand),
        doubt="; ".join(doubts),
    )


def _node_share(demand: Demand) -> _Share:
    nodes = demand.nodes or 0
    cpus = demand.cpus_per_node or 0
    gpus = demand.gpus_per_node or 0
    if nodes and demand.cpus:
        cpus = max(cpus, -(-demand.cpus // nodes))
    if nodes and demand.gpus:
        gpus = max(gpus, -(-demand.gpus // nodes))
    if not nodes and demand.gpus and not gpus:
        gpus = 1
    return _Share(max(1, cpus), gpus, demand.memory_per_node_bytes or 0)


def _is_able(node: Row, share: _Share, demand: Demand) -> tuple[bool, str]:
    """Return whether an empty node could run the share, and what is unknown of it."""
    if (node["cpus"] or 0) < share.cpus and node["cpus"] is not None:
        return False, ""
    if node["memory_bytes"] is not None and node["memory_bytes"] < share.memory_bytes:
        return False, ""
    if not set(demand.features).issubset(node["features"] or ()):
        return False, ""
    if not share.gpus:
        return True, ""
    if (node["gpus"] or 0) < share.gpus:
        return False, ""
    return _has_gpu(node, demand)


def _has_gpu(node: Row, demand: Demand) -> tuple[bool, str]:
    types = [name for name in (node["gpu_type"] or "").split(",") if name]
    requested = demand.gpu_type.casefold()
    if requested and types:
        types = [name for name in types if is_gpu_type(requested, name)]
        if not types:
            return False, ""
    doubt = ""
    is_able = False
    if demand.gpu_memory_bytes is None and not demand.gpu_formats:
        return True, ""
    for name in types or [""]:
        facts = gpu_facts(name, tuple(node["features"] or ()))
        has_memory: bool | None = True
        if demand.gpu_memory_bytes is not None:
            has_memory = facts.has_memory(demand.gpu_memory_bytes)
        has_formats = facts.has_formats(demand.gpu_formats) if demand.gpu_formats else True
        if has_memory is False or has_formats is False:
            continue
        is_able = True
        shown = name or "its GPUs"
        if has_memory is None:
            doubt = f"GPU memory of {shown} is unknown"
            if facts.max_memory_bytes is not None:
                least = format_memory(facts.min_memory_bytes or 0)
                doubt = f"{shown} has {least} or {format_memory(facts.max_memory_bytes)}"
        elif has_formats is None:
            doubt = f"number formats of {shown} are unknown"
    return is_able, doubt


def free_amount(node: Row, resource: str) -> int | None:
    """Return how much of `cpus`, `gpus` or `memory` a node has free; None: unknown."""
    unit = "_bytes" if resource == "memory" else ""
    total = node[f"{resource}{unit}"]
    return None if total is None else max(0, total - (node[f"{resource}_used{unit}"] or 0))


def _has_free(node: Row, share: _Share, demand: Demand) -> bool:
    if demand.is_exclusive and node["state"] != NodeState.IDLE:
        return False
    requested = (("cpus", share.cpus), ("gpus", share.gpus), ("memory", share.memory_bytes))
    for resource, amount in requested:
        free = free_amount(node, resource)
        if amount and free is not None and free < amount:
            return False
    return True


def _suffices(nodes: Sequence[Row], demand: Demand, *, is_free: bool) -> bool | None:
    """Return whether nodes that can each run a share can run the whole job."""
    if demand.nodes:
        return len(nodes) >= demand.nodes
    for resource, amount in (("cpus", demand.cpus), ("gpus", demand.gpus)):
        if not amount:
            continue
        have = [free_amount(node, resource) if is_free else node[resource] for node in nodes]
        if None in have:
            return None
        if sum(filter(None, have)) < amount:
            return False
    return bool(nodes)


def _shortage(starting: Sequence[Row], free: Sequence[Row], share: _Share, demand: Demand) -> str:
    """Name the scarcest resource: `9 GPUs are free, 4 on no node`."""
    if not starting:
        return "no node is free"
    if free and demand.nodes:
        return f"free on {len(free)} of {counted(demand.nodes, 'node')}"
    if demand.is_exclusive:
        return "no node is idle"
    scarce = []
    for resource, amount, unit in (
        ("gpus", share.gpus, "GPU"),
        ("cpus", share.cpus, "CPU"),
        ("memory", share.memory_bytes, ""),
    ):
        amounts = [free_amount(node, resource) for node in starting]
        if amount and None not in amounts and max(filter(None, amounts), default=0) < amount:
            total = sum(filter(None, amounts))
            if unit:
                free_text = f"{counted(total, unit)} {'is' if total == 1 else 'are'} free"
                scarce.append(f"{free_text}, but no node has {amount}")
            else:
                most = max(filter(None, amounts), default=0)
                scarce.append(f"at most {format_memory(most)} of memory is free on a node")
    return scarce[0] if scarce else "no node has all resources free at once"


def count_usable(nodes: Iterable[Row], resource: str) -> int:
    """Return the free `cpus` or `gpus` that jobs could have: each with a core and a GiB of memory
    on its node.
    """
    total = 0
    for node in nodes:
        if node["state"] not in STARTING:
            continue
        memory = free_amount(node, "memory")
        amounts = [free_amount(node, resource), free_amount(node, "cpus")]
        amounts.append(None if memory is None else memory >> 30)
        total += min((amount for amount in amounts if amount is not None), default=0)
    return total


def count_gpu_types(nodes: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """Return (free, all) GPUs by type, on nodes that start jobs and on all."""
    counts: dict[str, tuple[int, int]] = {}
    for node in nodes:
        if node["gpus"]:
            name = node["gpu_type"] or "GPU"
            free, total = counts.get(name, (0, 0))
            is_starting = node["state"] in STARTING
            own = free_amount(node, "gpus") or 0
            counts[name] = (free + own * is_starting, total + node["gpus"])
    return counts


def simulate_start(
    demand: Demand, jobs: Sequence[Row], nodes: Sequence[Row], now_epoch: float
) -> float | None:
    """Return the epoch second at which a job would start behind all others on one machine.

    `jobs` are rows of domain.schema.JOBS. Jobs start in their order, as soon as their CPUs and GPUs
    are free; one that is not over by its limit makes the start unknown: None.
    """
    totals = {name: sum(node[name] or 0 for node in nodes) for name in ("cpus", "gpus")}
    free = dict(totals)
    running: list[tuple[float, Row]] = []
    waiting: list[Row] = []
    for job in jobs:
        if job["state"] in ACTIVE:
            if job["ends_at"] is None:
                return None
            running.append((max(now_epoch, job["ends_at"].timestamp()), job))
            for name in free:
                free[name] -= job[name] or 0
        elif job["state"] == JobState.PENDING:
            waiting.append(job)
    waiting.sort(key=lambda job: (job["_number"] or 0, job["_task"] or 0))
    own = {"cpus": max(1, demand.cpus or 0), "gpus": demand.gpus or 0, "limit_seconds": 0}
    if any(own[name] > totals[name] for name in free):
        return None
    clock = now_epoch
    for job in (*waiting, own):
        while any((job[name] or 0) > free[name] for name in free):
            if not running:
                return None
            running.sort(key=lambda pair: pair[0])
            ends_at, ended = running.pop(0)
            clock = max(clock, ends_at)
            for name in free:
                free[name] += ended[name] or 0
        if job is own:
            return clock
        if job["limit_seconds"] is None:
            return None
        running.append((clock + job["limit_seconds"], job))
        for name in free:
            free[name] -= job[name] or 0
    return clock
