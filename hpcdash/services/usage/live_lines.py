"""Lines on a running job's use: a node's curves, GPUs and busiest processes, and warnings."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdash.backends.node_samples import GpuSample
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_memory
from hpcdash.services.usage.live import LiveUse, bars
from hpcdash.services.usage.sample import NodeUse

# A line and what it is: "title", "warning", "plain" or "dim".
Line = tuple[str, str]
_MAX_PROCESSES = 8
_LABEL = 12
_WORDS = 34
# Each node takes up to this many lines before the nodes are shown by one line each.
_MANY_NODES = 4


def use_lines(live: LiveUse, width: int, *, is_ascii: bool = False) -> list[Line]:
    """Warnings first; of many nodes a line each, of a few all that is known."""
    lines: list[Line] = [
        (clip(f"{'!' if is_ascii else '⚠'} {text}", width), "warning") for text in live.warnings()
    ]
    if live.problem:
        lines.append((clip(live.problem, width), "warning"))
    if lines:
        lines.append(("", "plain"))
    latest = live.latest()
    if len(latest) > _MANY_NODES:
        lines += [_node_line(live, use, width, is_ascii) for use in latest]
        return lines
    for use in latest:
        lines += [*_node_lines(live, use, width, is_ascii), ("", "plain")]
    return lines[:-1]


def _node_line(live: LiveUse, use: NodeUse, width: int, is_ascii: bool) -> Line:
    sample = use.sample
    gpu = "" if use.gpu_percent is None else f"GPU {use.gpu_percent:3.0f}%"
    parts = (
        f"{clip(visible(sample.node), 16):16}",
        f"CPU {_cores(use):12}",
        f"mem {_memory(use):22}",
        f"{gpu:10}",
        f"{_count(len(sample.processes)):12}",
    )
    curve = bars(
        [one.cores for one in live.nodes[sample.node].uses],
        float(sample.cpus or 1),
        20,
        is_ascii=is_ascii,
    )
    return clip(" ".join((*parts, curve)), width), "plain"


def _node_lines(live: LiveUse, use: NodeUse, width: int, is_ascii: bool) -> list[Line]:
    sample = use.sample
    uses = live.nodes[sample.node].uses
    room = max(10, width - _LABEL - _WORDS - 2)
    count = len(sample.processes)
    title = f"{visible(sample.node)}  ({_count(count)})"
    lines: list[Line] = [(clip(title, width), "title")]

    def line(label: str, text: str, values: Sequence[float | None], ceiling: float | None) -> None:
        known = [value for value in values if value is not None]
        top = ceiling or max(known, default=0.0)
        curve = bars(list(values), top, room, is_ascii=is_ascii)
        lines.append(
            (clip(f"  {label:<{_LABEL - 2}}{text:<{_WORDS}}  {curve}".rstrip(), width), "plain")
        )

    line(
        "CPU", _cores(use), [one.cores for one in uses], float(sample.cpus) if sample.cpus else None
    )
    memory = [None if (used := one.sample.memory_bytes) is None else float(used) for one in uses]
    line("memory", _memory(use), memory, float(sample.memory_limit_bytes or 0) or None)
    for gpu in sample.gpus:
        label = clip(f"GPU {visible(gpu.index)}", _LABEL - 3)
        line(label, _gpu(gpu), [_percent_of(one, gpu) for one in uses], 100.0)
    ranked = sorted(sample.processes, key=lambda one: -use.process_cores.get(one.pid, 0.0))
    for one in ranked[:_MAX_PROCESSES]:
        cores = (
            "" if one.pid not in use.process_cores else f"{use.process_cores[one.pid]:.1f} cores"
        )
        rank = f"rank {one.rank}" if one.rank else ""
        text = (
            f"  {one.pid:>8}  {rank:<9}{cores:>11}{format_memory(one.rss_bytes):>10}  "
            f"{visible(one.command)}"
        )
        lines.append((clip(text, width), "dim"))
    if count > _MAX_PROCESSES:
        lines.append((f"  and {count - _MAX_PROCESSES} more", "dim"))
    return lines


def _percent_of(use: NodeUse, gpu: GpuSample) -> float | None:
    return next((one.percent for one in use.sample.gpus if one.index == gpu.index), None)


def _cores(use: NodeUse) -> str:
    if use.cores is None:
        return "…" if use.sample.processes else "no processes of the job"
    return (
        f"{use.cores:.1f} of {use.sample.cpus} cores"
        if use.sample.cpus
        else f"{use.cores:.1f} cores"
    )


def _memory(use: NodeUse) -> str:
    sample = use.sample
    if sample.memory_bytes is None:
        return "not known"
    used = format_memory(sample.memory_bytes)
    if not sample.memory_limit_bytes:
        return f"{used} resident" if sample.is_rss else f"{used}, no limit"
    return f"{used} of {format_memory(sample.memory_limit_bytes)}"


def _gpu(gpu: GpuSample) -> str:
    percent = "?" if gpu.percent is None else f"{gpu.percent:.0f}%"
    memory = ""
    if gpu.memory_bytes is not None:
        memory = format_memory(gpu.memory_bytes)
        if gpu.memory_total_bytes:
            memory += f" of {format_memory(gpu.memory_total_bytes)}"
    watts = "" if gpu.watts is None else f"{gpu.watts:.0f} W"
    return f"{percent:>5}  {memory}  {watts}".rstrip()


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
