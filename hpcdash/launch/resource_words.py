"""What a request comes to, in a line that a person reads before submitting."""

from __future__ import annotations

from hpcdash.domain.offers import Offers, QueueOffer
from hpcdash.domain.request import Request, Slots, SlotType, slots_of
from hpcdash.domain.units import DAY, HOUR, MINUTE
from hpcdash.launch.lint import slot_type_in


def resource_words(request: Request, offers: Offers, *, packs_nodes: bool = False) -> str:
    """`4 nodes × 8 A100 for 20 h = 640 GPU-hours; 12 idle now`; one line, whose names of GPUs and queues are remote.

    An array says what all of its tasks come to; without a time the queue's default holds, of which its
    limit is all that is known. `packs_nodes`: CPUs that are not counted a node may lie together, as with PBS.
    """
    slots, slot_type = slots_of(request), slot_type_in(request, offers)
    queue = offers.queue(request.queue)
    is_cpu = slot_type is SlotType.CPU or slots.slots == 0
    unit = "CPU" if is_cpu else "GPU"
    parts = [_amount(request, slots, unit, packs_nodes=packs_nodes)]
    tasks = request.array.count if request.array is not None else 1
    if request.array is not None:
        throttle = request.array.throttle
        at_once = f", {throttle} at a time" if throttle and throttle < tasks else ""
        parts.append(f"× {_counted(tasks, 'task')}{at_once},")
    total = slots.nodes * slots.per_node * tasks
    if request.limit_seconds is not None:
        parts.append(f"for {_time(request.limit_seconds)} = {_spent(total * request.limit_seconds, unit)}")
    elif queue is not None and queue.limit_seconds is not None:
        most = _spent(total * queue.limit_seconds, unit)
        parts.append(f"for at most the queue's {_time(queue.limit_seconds)} (up to {most})")
    else:
        parts.append("without a time limit" if queue is not None else "for as long as its queue allows")
    notes = [" ".join(parts).replace(",,", ",")]
    if slots.slots and slots.spare:
        notes.append(f"{slots.spare} more than the {slots.slots} asked for")
    if queue is not None and (idle := _idle(queue, is_cpu=is_cpu)):
        notes.append(idle)
    return "; ".join(notes)


def _amount(request: Request, slots: Slots, unit: str, *, packs_nodes: bool) -> str:
    kind = request.gpu_type if unit == "GPU" else ""
    kind = kind.upper() if kind.islower() else kind
    if slots.nodes == 1:
        return f"{slots.per_node} {kind}" if kind else _counted(slots.per_node, unit)
    # GPUs that are not counted a node may lie together.
    if slots.is_packed and (packs_nodes or unit == "GPU"):
        return f"{slots.slots} {kind}" if kind else _counted(slots.slots, unit)
    each = f"{slots.per_node} {kind}" if kind else _counted(slots.per_node, unit)
    return f"{_counted(slots.nodes, 'node')} × {each}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _time(seconds: int) -> str:
    """`20 h`, `1 h 30 min`, `7 d`, `45 s`."""
    words = []
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        # Two days and less are told in hours.
        if unit == "d" and (seconds <= 2 * DAY or seconds % HOUR):
            continue
        count, seconds = divmod(seconds, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"


def _spent(slot_seconds: int, unit: str) -> str:
    """`640 GPU-hours`, `1.5 CPU-hours`; less than one in minutes."""
    if slot_seconds < HOUR:
        return _counted(-(-slot_seconds // MINUTE), f"{unit}-minute")
    hours = slot_seconds / HOUR
    shown = f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}".removesuffix(".0")
    return f"{shown} {unit}-hour" + ("" if shown == "1" else "s")


def _idle(queue: QueueOffer, *, is_cpu: bool) -> str:
    if not queue.is_available:
        return queue.closed_words
    if is_cpu:
        return f"{queue.cpus_idle} CPUs idle now" if queue.cpus else ""
    return f"{queue.gpus_idle} idle now" if queue.gpus else ""
