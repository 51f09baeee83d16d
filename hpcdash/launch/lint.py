"""What is wrong with a request before it is submitted, by what the cluster offers. Pure: asks nothing."""

from __future__ import annotations

from hpcdash.backends.script.body import BatchScript, is_spread
from hpcdash.domain.demand import Demand, Finding, unmet
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import INTERACTIVE_KINDS, Request, SlotType, slot_type_of, slots_of

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
    request: Request, offers: Offers, script: BatchScript | None = None, *, packs_nodes: bool = False
) -> tuple[Finding, ...]:
    """What does not fit the offers, errors first; each warning of a rendered `script` is one.

    Offers that are not known (no queues, no accounts) find nothing. Raises nothing.
    """
    found = list(unmet(demand_of(request, offers, packs_nodes=packs_nodes), offers))
    if request.gpu_type and slot_type_in(request, offers) is SlotType.CPU:
        found.append(Finding("warning", "gpu_type", f"{request.gpu_type} is not asked for: a slot is a CPU here"))
    if request.cpus_per_gpu and slot_type_in(request, offers) is SlotType.CPU:
        found.append(Finding("warning", "cpus_per_gpu", "it counts for nothing: a slot is a CPU here"))
    found += [Finding("warning", "", warning) for warning in (script.warnings if script else ())]
    return tuple(sorted(found, key=lambda one: one.severity != "error"))


def slot_type_in(request: Request, offers: Offers) -> SlotType:
    """What a slot of a request is: as it says, or the site does; else GPUs where its queue has some."""
    said = request.slot_type or request.site.slot_type
    queue = offers.queue(request.queue)
    if said is None and request.gpu_type:
        return SlotType.CUDA
    return said or slot_type_of(request, queue_has_gpus=queue is None or queue.gpus > 0)


def demand_of(request: Request, offers: Offers, *, packs_nodes: bool = False) -> Demand:
    """What a request asks for in all. The scheduler finds the nodes itself for GPUs that are not counted a node; with
    `packs_nodes` for all slots that are not."""
    slots, slot_type = slots_of(request), slot_type_in(request, offers)
    is_spread_out = request.kind not in INTERACTIVE_KINDS and is_spread(request, slot_type)
    finds_nodes = slots.is_packed if packs_nodes else is_spread_out
    on_node = None if finds_nodes else slots.per_node
    total = slots.slots if finds_nodes else slots.nodes * slots.per_node
    counts_gpus = slot_type is not SlotType.CPU and slots.slots > 0
    of_node = "slots_per_node" if slots.is_per_node_asked else "slots"
    of_cpus = {"cpus_per_node": of_node}
    each = request.cpus_per_gpu if counts_gpus else 1
    if counts_gpus:
        of_cpus = dict.fromkeys(("cpus", "cpus_per_node"), "cpus_per_gpu")
    return Demand(
        queues=(request.queue,) if request.queue else (),
        account=request.account,
        qos=request.qos,
        limit_seconds=request.limit_seconds,
        nodes=None if finds_nodes else slots.nodes,
        cpus=None if each is None else total * each,
        gpus=total if counts_gpus else None,
        cpus_per_node=None if each is None or on_node is None else on_node * each,
        gpus_per_node=on_node if counts_gpus else None,
        gpu_type=request.gpu_type if counts_gpus else "",
        memory_per_node_bytes=request.memory_bytes,
        where={**_WHERE, **of_cpus, "gpus_per_node": of_node},
    )
