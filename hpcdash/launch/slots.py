"""How many nodes a request needs and what each gives. Knows no scheduler's options."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdash.launch.request import INTERACTIVE_KINDS, Request, SlotType


@dataclass(frozen=True, slots=True)
class Slots:
    """`slots` in all, on `nodes` nodes with `per_node` each; `is_per_node_asked`: that number is the person's own.

    The nodes give `nodes` × `per_node`, which may be more than was asked for.
    """

    slots: int
    nodes: int
    per_node: int
    is_per_node_asked: bool

    @property
    def is_packed(self) -> bool:
        """Whether a scheduler that is asked for so many chunks of one slot may put several on a node, as PBS does."""
        return self.nodes > 1 and not self.is_per_node_asked

    @property
    def spare(self) -> int:
        """Slots that are given beyond those asked for."""
        return self.nodes * self.per_node - self.slots


def slots_of(request: Request) -> Slots:
    """No slot at all is one core on one node; what a person sits before has one node, however many slots."""
    if request.slots == 0:
        return Slots(0, 1, 1, is_per_node_asked=False)
    if request.kind in INTERACTIVE_KINDS:
        return Slots(request.slots, 1, request.slots, is_per_node_asked=request.slots_per_node is not None)
    if request.slots_per_node is None:
        return Slots(request.slots, request.slots, 1, is_per_node_asked=False)
    nodes = -(-request.slots // request.slots_per_node)
    return Slots(request.slots, nodes, request.slots_per_node, is_per_node_asked=True)


def slot_type_of(request: Request, *, queue_has_gpus: bool) -> SlotType:
    """What was asked for, else what the site says; GPUs by default where the queue has some, else CPUs."""
    return request.slot_type or request.site.slot_type or (SlotType.CUDA if queue_has_gpus else SlotType.CPU)


def slot_words(slots: Slots, slot_type: SlotType) -> str:
    """`7 nodes × 16 GPUs = 112`."""
    each = "CPU" if slot_type is SlotType.CPU else "GPU"

    def counted(count: int, word: str) -> str:
        return f"{count} {word}" + ("" if count == 1 else "s")

    return f"{counted(slots.nodes, 'node')} × {counted(slots.per_node, each)} = {slots.nodes * slots.per_node}"
