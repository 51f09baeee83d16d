"""Conflicts of a request with a cluster's offers, and its total resources in a line."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdash.backends.script.body import is_spread
from hpcdash.domain.demand import Demand, LintFinding, unmet
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import (
    INTERACTIVE_KINDS,
    Request,
    Slots,
    SlotType,
    request_slot_type,
    request_slots,
)
from hpcdash.domain.text import counted
from hpcdash.domain.units import DAY, HOUR, MINUTE

_WHERE = {
    "queues": "queue",
    "account": "account",
    "qos": "qos",
    "limit_seconds": "time",
    "nodes": "slots",
    "cpus": "slots",
    "gpus": "slots",
    "gpu_type": "gpu_type",
    "memory_per_node_bytes": "memory",
}


def lint_request(
    request: Request,
    offers: Offers,
    warnings: Sequence[str] = (),
    *,
    packs_nodes: bool = False,
) -> tuple[LintFinding, ...]:
    """Return conflicts with the offers, errors first, and the `warnings` of its script.

    Unknown offers (no queues, no accounts) cause no findings. Raises nothing.
    """
    found = list(unmet(build_demand(request, offers, packs_nodes=packs_nodes), offers))
    if slot_type_in(request, offers) is SlotType.CPU:
        if request.gpu_type:
            text = f"{request.gpu_type} is ignored: a slot is a CPU here"
            found.append(LintFinding("warning", "gpu_type", text))
        if request.cpus_per_gpu:
            found.append(LintFinding("warning", "cpus_per_gpu", "ignored: a slot is a CPU here"))
    found += [LintFinding("warning", "", warning) for warning in warnings]
    return tuple(sorted(found, key=lambda finding: finding.severity != "error"))


def slot_type_in(request: Request, offers: Offers) -> SlotType:
    """Return the type of a request's slots: the request's or the site's.

    The default is GPUs if its queue has some.
    """
    if configured := request.slot_type or request.site.slot_type:
        return configured
    if request.gpu_type:
        return SlotType.CUDA
    queue = offers.queue(request.queue)
    return request_slot_type(request, queue_has_gpus=queue is None or queue.gpus > 0)


def build_demand(request: Request, offers: Offers, *, packs_nodes: bool = False) -> Demand:
    """Compute the total demand of a request.

    The scheduler finds the nodes itself for GPUs without a count per node; with `packs_nodes` for
    all slots without one.
    """
    slots = request_slots(request)
    slot_type = slot_type_in(request, offers)
    is_spread_out = request.kind not in INTERACTIVE_KINDS and is_spread(request, slot_type)
    finds_nodes = slots.is_packed if packs_nodes else is_spread_out
    on_node = None if finds_nodes else slots.per_node
    total = slots.slots if finds_nodes else slots.nodes * slots.per_node
    counts_gpus = slot_type is not SlotType.CPU and slots.slots > 0
    node_key = "slots_per_node" if slots.is_per_node else "slots"
    where = {**_WHERE, "cpus_per_node": node_key, "gpus_per_node": node_key}
    cpus_per_slot: int | None = 1
    if counts_gpus:
        cpus_per_slot = request.cpus_per_gpu
        where |= {"cpus": "cpus_per_gpu", "cpus_per_node": "cpus_per_gpu"}
    cpus = None
    cpus_per_node = None
    if cpus_per_slot is not None:
        cpus = total * cpus_per_slot
        cpus_per_node = None if on_node is None else on_node * cpus_per_slot
    return Demand(
        queues=(request.queue,) if request.queue else (),
        account=request.account,
        qos=request.qos,
        limit_seconds=request.limit_seconds,
        nodes=None if finds_nodes else slots.nodes,
        cpus=cpus,
        gpus=total if counts_gpus else None,
        cpus_per_node=cpus_per_node,
        gpus_per_node=on_node if counts_gpus else None,
        gpu_type=request.gpu_type if counts_gpus else "",
        memory_per_node_bytes=request.memory_bytes,
        where=where,
    )


def format_resources(request: Request, offers: Offers, *, packs_nodes: bool = False) -> str:
    """`4 nodes × 8 A100 for 20 h = 640 GPU-hours; 12 idle now`; GPU and queue names are remote.

    The hours of an array are those of all its tasks; without a time the queue's limit is the upper
    bound. `packs_nodes`: CPUs without a count per node may share nodes, as in PBS.
    """
    slots = request_slots(request)
    slot_type = slot_type_in(request, offers)
    queue = offers.queue(request.queue)
    is_cpu = slot_type is SlotType.CPU or slots.slots == 0
    unit = "CPU" if is_cpu else "GPU"
    parts = [_amount(request, slots, unit, packs_nodes=packs_nodes)]
    tasks = request.array.count if request.array is not None else 1
    if request.array is not None:
        throttle = request.array.throttle
        at_once = f", {throttle} at a time" if throttle and throttle < tasks else ""
        parts.append(f"× {counted(tasks, 'task')}{at_once},")
    total = slots.nodes * slots.per_node * tasks
    if request.limit_seconds is not None:
        spent = _spent(total * request.limit_seconds, unit)
        parts.append(f"for {_time(request.limit_seconds)} = {spent}")
    elif queue is None:
        parts.append("for the queue's maximum time")
    elif queue.limit_seconds is None:
        parts.append("without a time limit")
    else:
        most = _spent(total * queue.limit_seconds, unit)
        parts.append(f"for at most the queue's {_time(queue.limit_seconds)} (up to {most})")
    notes = [" ".join(parts).replace(",,", ",")]
    if slots.slots and slots.spare:
        notes.append(f"{slots.spare} more than the {slots.slots} requested")
    if queue is not None:
        if not queue.is_available:
            notes.append(queue.closed_reason)
        elif is_cpu and queue.cpus:
            notes.append(f"{queue.cpus_idle} CPUs idle now")
        elif not is_cpu and queue.gpus:
            notes.append(f"{queue.gpus_idle} idle now")
    return "; ".join(filter(None, notes))


def _amount(request: Request, slots: Slots, unit: str, *, packs_nodes: bool) -> str:
    gpu_type = request.gpu_type if unit == "GPU" else ""
    if gpu_type.islower():
        gpu_type = gpu_type.upper()
    # GPUs without a count per node may share nodes.
    is_packed = slots.is_packed and (packs_nodes or unit == "GPU") and slots.nodes > 1
    count = slots.slots if is_packed else slots.per_node
    amount = f"{count} {gpu_type}" if gpu_type else counted(count, unit)
    if is_packed or slots.nodes == 1:
        return amount
    return f"{counted(slots.nodes, 'node')} × {amount}"


def _time(seconds: int) -> str:
    """`20 h`, `1 h 30 min`, `7 d`, `45 s`."""
    parts = []
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        # Two days and less are shown in hours.
        if unit == "d" and (seconds <= 2 * DAY or seconds % HOUR):
            continue
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def _spent(slot_seconds: int, unit: str) -> str:
    """`640 GPU-hours`, `1.5 CPU-hours`; less than one in minutes."""
    if slot_seconds < HOUR:
        return counted(-(-slot_seconds // MINUTE), f"{unit}-minute")
    hours = slot_seconds / HOUR
    shown = f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}".removesuffix(".0")
    return f"{shown} {unit}-hour" + ("" if shown == "1" else "s")
