"""A request's slots as Slurm's options. Knows nothing of what runs on them."""

from __future__ import annotations

import re

from hpcdash.backends.options import Directives
from hpcdash.domain.request import INTERACTIVE_KINDS, Launcher, Request, Slots, SlotType, slot_words, slots_of
from hpcdash.errors import UsageError

_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_UNCOUNTED = "this Slurm does not count GPUs: which ones the job uses is the script's to say (CUDA_VISIBLE_DEVICES)"


def slurm_resources(request: Request, slot_type: SlotType) -> Directives:
    """Options for the nodes and their slots, by what the site's Slurm counts: GPUs as TRES, as GRES, or not at all."""
    slots = slots_of(request)
    asked = _slots(request, slots, slot_type)
    if slot_type is SlotType.CPU or not slots.slots or not request.cpus_per_gpu:
        return asked
    return asked + Directives((_cpus_beside_gpus(request, slots, asked),))


def _cpus_beside_gpus(request: Request, slots: Slots, asked: Directives) -> str:
    """Of GPUs that Slurm spreads itself for each; else of a task, which is a GPU or all of a node's."""
    if any(option.startswith("--gpus=") for option in asked.options) and request.launcher is not Launcher.SRUN:
        return f"--cpus-per-gpu={request.cpus_per_gpu}"
    gpus = 1 if request.launcher is Launcher.SRUN else slots.per_node
    return f"--cpus-per-task={gpus * (request.cpus_per_gpu or 1)}"


def _slots(request: Request, slots: Slots, slot_type: SlotType) -> Directives:
    if slots.slots == 0:
        return Directives(("--nodes=1", "--ntasks=1"))
    if request.launcher is Launcher.SRUN:
        return _task_a_rank(request, slots, slot_type)
    if slot_type is SlotType.CPU:
        each = (f"--cpus-per-task={slots.per_node}",) if slots.is_per_node_asked else ()
        return Directives((*_tasks(slots), *each), _spare(slots, slot_type))
    site = request.site
    if not site.gres_supported:
        return Directives(_tasks(slots), (_UNCOUNTED,))
    if site.tres_supported and slots.slots % (slots.per_node if slots.is_per_node_asked else 1) == 0:
        return Directives(_by_tres(request, slots))
    warnings = _spare(slots, slot_type)
    if site.tres_supported:
        refused = f"Slurm takes no {slots.slots} GPUs in tasks of {slots.per_node}: whole nodes are asked for"
        warnings = (refused, *warnings)
    return Directives((*_tasks(slots), f"--gres=gpu:{_typed(request)}{slots.per_node}"), warnings)


def _by_tres(request: Request, slots: Slots) -> tuple[str, ...]:
    """Slurm finds the nodes for so many GPUs; with `slots_per_node` each task has that many."""
    kind = _typed(request)
    each = (f"--gpus-per-task={kind}{slots.per_node}",) if slots.is_per_node_asked else ()
    return (f"--gpus={kind}{slots.slots}", f"--nodes={_any_nodes(request)}", "--tasks-per-node=1", *each)


def _task_a_rank(request: Request, slots: Slots, slot_type: SlotType) -> Directives:
    """Where srun starts each rank, a task is a slot; the tasks of a node see all of its GPUs."""
    site, kind = request.site, _typed(request)
    if slot_type is not SlotType.CPU and not slots.is_per_node_asked and site.tres_supported and site.gres_supported:
        # Without --gpus-per-task Slurm spreads the tasks by CPUs: 7 on a node of 4 GPUs, one on the next.
        asked = (f"--gpus={kind}{slots.slots}", f"--nodes={_any_nodes(request)}", f"--ntasks={slots.slots}")
        return Directives((*asked, f"--gpus-per-task={kind}1"))
    nodes, each = slots.nodes, slots.per_node
    tasks = (f"--nodes={nodes}", f"--ntasks={nodes * each}", f"--ntasks-per-node={each}")
    if slot_type is SlotType.CPU:
        return Directives(tasks, _spare(slots, slot_type))
    if not site.gres_supported:
        return Directives(tasks, (_UNCOUNTED,))
    return Directives((*tasks, f"--gres=gpu:{kind}{each}"), _spare(slots, slot_type))


def _any_nodes(request: Request) -> str:
    return "1" if request.kind in INTERACTIVE_KINDS else f"1-{request.slots}"


def _tasks(slots: Slots) -> tuple[str, ...]:
    return (f"--nodes={slots.nodes}", f"--ntasks={slots.nodes}")


def _typed(request: Request) -> str:
    if request.gpu_type and not _GPU_TYPE.fullmatch(request.gpu_type):
        raise UsageError(
            f"gpu_type: {request.gpu_type!r} is no type of Slurm's", "Letters, digits and ._+- alone: a100"
        )
    return f"{request.gpu_type}:" if request.gpu_type else ""


def _spare(slots: Slots, slot_type: SlotType) -> tuple[str, ...]:
    if slots.spare <= 0:
        return ()
    return (f"{slot_words(slots, slot_type)}: {slots.spare} more than the {slots.slots} asked for",)
