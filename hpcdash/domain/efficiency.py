"""Efficiency of a job: its use as text and fractions of its allocation, and advice."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_duration, format_memory

NOT_ACCOUNTED = "not recorded on this cluster"
# Younger jobs are still reading their input.
_YOUNG_SECONDS = 300
_LITTLE_CPU = 0.5
_LITTLE_MEMORY = 0.5
_WORTH_BYTES = 2 << 30
_LITTLE_GPU_PERCENT = 10
# A suggested size is rounded up to the next GiB.
_GIB = 1 << 30
_HEADROOM = 1.2


class Used(Protocol):
    """Interface of hpcdash.backends.job_detail.Usage; memory is that of a node."""

    @property
    def cpu_seconds(self) -> float | None: ...
    @property
    def cpus(self) -> int | None: ...
    @property
    def elapsed_seconds(self) -> int | None: ...
    @property
    def memory_peak_bytes(self) -> int | None: ...
    @property
    def requested_memory_bytes(self) -> int | None: ...
    @property
    def gpus(self) -> int | None: ...
    @property
    def gpu_percent(self) -> float | None: ...
    @property
    def gpu_memory_peak_bytes(self) -> int | None: ...
    @property
    def disk_read_bytes(self) -> int | None: ...
    @property
    def disk_written_bytes(self) -> int | None: ...


class Meter(Struct, frozen=True):
    """Use of a resource as text, and as a fraction of the requested amount, None if unknown."""

    label: str
    text: str
    fraction: float | None = None


def cpu_fraction(used: Used) -> float | None:
    """Return the CPU seconds as a fraction of the CPUs' time; None if any of it is unknown."""
    if used.cpu_seconds is None or not used.cpus or not used.elapsed_seconds:
        return None
    return used.cpu_seconds / (used.cpus * used.elapsed_seconds)


def memory_fraction(used: Used) -> float | None:
    if used.memory_peak_bytes is None or not used.requested_memory_bytes:
        return None
    return used.memory_peak_bytes / used.requested_memory_bytes


def meters(used: Used, nodes: int | None = 1) -> list[Meter]:
    """Return the meters of CPU and memory, of GPUs if the job has some, and of the disk if
    known.
    """
    shown = [_cpu(used), _memory(used, nodes)]
    if used.gpus:
        shown.append(_gpu(used))
    if used.gpu_memory_peak_bytes:
        shown.append(Meter("GPU memory", f"peak {format_memory(used.gpu_memory_peak_bytes)}"))
    disk = [
        f"{verb} {format_memory(amount)}"
        for verb, amount in (("read", used.disk_read_bytes), ("wrote", used.disk_written_bytes))
        if amount is not None
    ]
    if disk:
        shown.append(Meter("disk", ", ".join(disk)))
    return shown


def _cpu(used: Used) -> Meter:
    fraction = cpu_fraction(used)
    if fraction is None:
        if used.cpu_seconds is None:
            return Meter("CPU", NOT_ACCOUNTED)
        return Meter("CPU", f"{format_duration(used.cpu_seconds)} of CPU time")
    assert used.cpus is not None
    return Meter(
        "CPU",
        f"{_busy(fraction * used.cpus)}/{counted(used.cpus, 'core')} ({_percent(fraction)})",
        fraction,
    )


def _memory(used: Used, nodes: int | None) -> Meter:
    if used.memory_peak_bytes is None:
        return Meter("memory", NOT_ACCOUNTED)
    where = " per node" if (nodes or 1) > 1 else ""
    peak = f"peak {format_memory(used.memory_peak_bytes)}"
    fraction = memory_fraction(used)
    if fraction is None:
        return Meter("memory", f"{peak}{where}")
    assert used.requested_memory_bytes is not None
    requested = format_memory(used.requested_memory_bytes)
    return Meter("memory", f"{peak} of {requested}{where} ({_percent(fraction)})", fraction)


def _gpu(used: Used) -> Meter:
    if used.gpu_percent is None:
        return Meter("GPU", NOT_ACCOUNTED)
    whose = f" ({used.gpus} GPUs)" if used.gpus and used.gpus > 1 else ""
    return Meter("GPU", f"{used.gpu_percent:.0f}% busy{whose}", used.gpu_percent / 100)


def _percent(fraction: float) -> str:
    percent = 100 * fraction
    return f"{percent:.0f}%" if percent >= 1 or not percent else "< 1%"


def advice(used: Used, state: str) -> str:
    """Return a line on what to request next time; '' if nothing is certain, and for jobs of a few
    minutes.

    There is advice on memory for completed jobs only: others may need more, or might have.
    """
    fraction = memory_fraction(used)
    if state == JobState.OUT_OF_MEMORY:
        if not used.requested_memory_bytes:
            return ""
        limit = format_memory(used.requested_memory_bytes)
        return f"the limit of {limit} was not enough: request more memory"
    if (used.elapsed_seconds or 0) < _YOUNG_SECONDS:
        return ""
    if used.gpus and used.gpu_percent is not None and used.gpu_percent < _LITTLE_GPU_PERCENT:
        if used.gpus == 1:
            return "the GPU was nearly idle: does the program detect it?"
        return f"the {used.gpus} GPUs were nearly idle: does the program detect them?"
    if fraction is not None and fraction < _LITTLE_MEMORY and state == JobState.COMPLETED:
        peak = used.memory_peak_bytes or 0
        requested = used.requested_memory_bytes or 0
        enough = enough_memory(peak)
        if requested - enough >= _WORTH_BYTES:
            return (
                f"requested {format_memory(requested)}, used at most {format_memory(peak)}: a "
                f"request of {format_memory(enough)} may start sooner"
            )
    busy = cpu_fraction(used)
    if busy is not None and busy < _LITTLE_CPU and used.cpus and used.cpus > 1:
        verb = "kept" if state in ENDED else "keeps"
        cores = _busy(busy * used.cpus)
        return f"{verb} {cores} of {used.cpus} cores busy: request fewer, or check the thread count"
    return ""


def enough_memory(peak_bytes: int) -> int:
    """Return the bytes to request for a peak.

    They are a fifth more, rounded up to whole GiB of about two digits.
    """
    requested = -(-int(peak_bytes * _HEADROOM) // _GIB)
    step = 1
    while requested > 32 * step:
        step *= 4
    return max(1, -(-requested // step) * step) * _GIB


def _busy(cores: float) -> str:
    if 0 < cores < 0.1:
        return "< 0.1"
    return f"{cores:.1f}".removesuffix(".0")
