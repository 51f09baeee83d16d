"""A request's slots as PBS's select, joined with what a person asks for besides. Knows nothing of what runs on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hpcdash.backends.options import Directives, whole_options
from hpcdash.backends.pbs import options as qsub
from hpcdash.backends.pbs.options import pbs_word
from hpcdash.domain.offers import CpuShare
from hpcdash.domain.request import Launcher, Request, Slots, SlotType, slot_words, slots_of
from hpcdash.errors import UsageError

# Of a host: qsub takes them in a select alone, once there is one.
_OF_A_CHUNK = frozenset({"ncpus", "ngpus", "mem", "vmem", "mpiprocs", "ompthreads", "nodes", "host", "vnode", "arch"})


def pbs_resources(request: Request, slot_type: SlotType, cpu_share: CpuShare | None = None) -> Directives:
    """One select of as many chunks as nodes; of -l in `extra_args` all that is not ours to say stays.

    `cpu_share` is for GPUs beside which no CPUs are asked for; None where nothing is known of the queue.

    Raises UsageError for a select of several kinds of chunks, which one of ours cannot stand for.
    """
    slots = slots_of(request)
    ours = "ncpus" if slot_type is SlotType.CPU else "ngpus"
    has_amount = slot_type is SlotType.CPU or request.site.gres_supported
    # No slot at all is one core.
    amount = ":ncpus=1" if slots.slots == 0 else f":{ours}={slots.per_node}" if has_amount else ""
    theirs = _asked(request.extra_args)
    beside = _beside(theirs, ours)
    for name, value in theirs:
        if name in _OF_A_CHUNK:
            in_its_place = "slots and slots_per_node" if name in (ours, "nodes") else f"-l select=1:{name}={value}"
            raise UsageError(f"-l {name} is not for extra_args: PBS takes it in a select alone", in_its_place)
    cpus, warnings = _cpus_beside_gpus(request, slots, slot_type, beside, cpu_share)
    if request.memory_bytes is not None:
        if any(name == "mem" for name, _ in beside):
            raise UsageError("-l select=…:mem= is not for extra_args beside memory", "Leave one of the two out.")
        beside.append(("mem", _memory(request.memory_bytes)))
    besides = "".join(f":{name}={value}" if value else f":{name}" for name, value in beside)
    words = [f"select={slots.nodes}{amount}{cpus}{besides}"]
    if place := _place(request.place, theirs, slots):
        words.append(f"place={place}")
    words += [f"{name}={value}" if value else name for name, value in theirs if name not in ("select", "place")]
    warnings += _left_out(theirs, ours, slots)
    if not has_amount and slots.slots:
        warnings.append(
            "this PBS does not count GPUs: which ones the job uses is the script's to say (CUDA_VISIBLE_DEVICES)"
        )
    if slots.slots and slots.spare:
        warnings.append(f"{slot_words(slots, slot_type)}: {slots.spare} more than the {slots.slots} asked for")
    if request.gpu_type and slot_type is not SlotType.CPU and request.gpu_type not in besides:
        warnings.append(
            f"the GPU's type ({request.gpu_type}) is not asked for: each site's PBS has its own word for it, "
            "as in extra_args: -l select=1:gpu_model=a100"
        )
    return Directives(tuple(f"-l {pbs_word('extra_args', word)}" for word in words), tuple(warnings))


def _cpus_beside_gpus(
    request: Request,
    slots: Slots,
    slot_type: SlotType,
    beside: Iterable[tuple[str, str]],
    share: CpuShare | None,
) -> tuple[str, list[str]]:
    """What a chunk of GPUs asks for in CPUs, and what is to be said of that: PBS gives it one by default."""
    if slot_type is SlotType.CPU or slots.slots == 0:
        return "", []
    given = {name for name, _ in beside}
    if "ncpus" in given and request.cpus_per_gpu:
        raise UsageError("-l select=…:ncpus= is not for extra_args beside cpus_per_gpu", "Leave one of the two out.")
    if "ncpus" in given or (not request.cpus_per_gpu and not request.site.gres_supported):
        return "", []
    each, said = request.cpus_per_gpu, []
    if each is None:
        each = share.per_gpu if share else None
        unknown = "no CPUs are asked for with the GPUs, and PBS gives each chunk 1; cpus_per_gpu asks for more"
        said = [share.words if share else unknown]
    if each is None:
        return "", said
    # PBS sets OMP_NUM_THREADS to all CPUs of the chunk, which each rank would take for its own.
    has_ranks = request.launcher in (Launcher.TORCHRUN, Launcher.ACCELERATE) and "ompthreads" not in given
    return f":ncpus={each * slots.per_node}" + (f":ompthreads={each}" if has_ranks else ""), said


def _memory(amount_bytes: int) -> str:
    """In the largest unit that is whole; kb, which is 1024 bytes, rounded up."""
    for power, unit in ((30, "gb"), (20, "mb")):
        if amount_bytes % 2**power == 0:
            return f"{amount_bytes >> power}{unit}"
    return f"{-(-amount_bytes // 1024)}kb"


def _asked(extra_args: Iterable[str]) -> list[tuple[str, str]]:
    """(resource, amount) of every -l; the other options are not looked at."""
    found: list[tuple[str, str]] = []
    for text in whole_options(extra_args, qsub.read_directive, pbs_word):
        for option in qsub.read_directive(text).given:
            if option.name == "l":
                found += qsub.resources(option.value or "")
    return found


def _beside(asked: Iterable[tuple[str, str]], ours: str) -> list[tuple[str, str]]:
    """What a person's own select asks for in each chunk, besides what the slots say."""
    kept: dict[str, str] = {}
    for name, value in asked:
        if name != "select":
            continue
        parts = qsub.chunks(value)
        if len(parts) != 1:
            raise UsageError(
                f"-l select={value}: chunks of several kinds cannot be joined with slots",
                "Write a script of your own for them, or one kind of chunk.",
            )
        kept |= {resource: amount for resource, amount in parts[0][1] if resource != ours}
    return list(kept.items())


def _left_out(asked: Iterable[tuple[str, str]], ours: str, slots: Slots) -> list[str]:
    """What the slots say otherwise than a person's own select; one chunk stands for any number."""
    said = []
    for name, value in asked:
        if name != "select":
            continue
        (count, parts), each = qsub.chunks(value)[0], str(slots.per_node)
        if count not in ("", "1", str(slots.nodes)) or dict(parts).get(ours, each) != each:
            said.append(f"-l select={value} in extra_args: slots and slots_per_node decide its count and {ours}")
    return said


def _place(field: str, theirs: Iterable[tuple[str, str]], slots: Slots) -> str:
    """Where the chunks lie: each on a host of its own where so many are asked for on each node, else as it is given.

    Without scatter PBS puts several chunks on a host that has room for them.
    """
    given = [value for name, value in theirs if name == "place"]
    if len(given) > 1 or (given and field):
        other = "place says it" if field else "it is there twice"
        raise UsageError(f"-l place={given[0]} is not for extra_args: {other}", "Leave one of the two out.")
    if not slots.is_per_node_asked or slots.nodes == 1:
        return field or "".join(given)
    written = f"place: {field}" if field else "".join(f"-l place={value} in extra_args" for value in given)
    try:
        asked = qsub.read_placement(field or given[0]) if written else qsub.Placement()
    except ValueError as error:
        raise UsageError(f"{written}: {error}") from error
    if asked.arrangement not in ("", "scatter"):
        raise UsageError(
            f"{written}: slots_per_node asks for {slots.nodes} nodes, which {asked.arrangement} may not give",
            f"Leave {asked.arrangement} out, or slots_per_node.",
        )
    return str(replace(asked, arrangement="scatter"))
