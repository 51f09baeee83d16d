"""Usage of a job on a node at one time: processes, memory and GPUs."""

from __future__ import annotations

from msgspec import Struct


class GpuSample(Struct, frozen=True):
    """A GPU at one time: `percent` of the time it was busy, memory in bytes, power in watts; None
    where not told.
    """

    index: str
    uuid: str = ""
    percent: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    watts: float | None = None
    name: str = ""


class ProcessSample(Struct, frozen=True):
    """A process of the job: CPU seconds since it began, resident bytes, its rank ('' for none)."""

    pid: int
    cpu_seconds: float
    rss_bytes: int
    rank: str
    command: str


class NodeSample(Struct, frozen=True):
    """Usage of a job on a node, at `up_seconds` of that machine.

    `cpu_seconds` is of its cgroup since that began, None where only its processes are known;
    `memory_bytes` is without the file cache that can be dropped, and of the processes' resident
    memory where there is no cgroup (`is_rss`).
    """

    node: str
    up_seconds: float
    cpus: int | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    is_rss: bool = False
    gpus: tuple[GpuSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
