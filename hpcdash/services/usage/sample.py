"""One look at what a job uses on a node: the script that takes it there, and how it is read."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from hpcdash.backends.inside import InsideCommand, NodeOutput, node_start
from hpcdash.backends.node_samples import GpuSample, NodeSample, ProcessSample
from hpcdash.shell_files import shell_text

EVERY_SECONDS = 10
FIRST_GAP_SECONDS = 2
# A loop ends on its own after this, in case nothing can end it; a person who still watches starts
# another.
LEASE_SECONDS = 600
# Of a limit beyond this the kernel means none.
_NO_LIMIT_BYTES = 1 << 60
_MIB = 1 << 20
_MAX_PROCESSES = 4096
_ARGUMENTS = """
token=$1 every=$2 most=$3
LC_ALL=C
export LC_ALL
"""


def sampler(checks: int = 1 + LEASE_SECONDS // EVERY_SECONDS) -> InsideCommand:
    """Build the command for a number of samples of each node.

    The second follows after two seconds, then one each EVERY_SECONDS.
    """
    script = f"{_ARGUMENTS}{node_start()}{shell_text('services/usage/sample.sh')}"
    return InsideCommand(
        (script, str(EVERY_SECONDS), str(checks)),
        FIRST_GAP_SECONDS + EVERY_SECONDS * max(0, checks - 1) + 30,
        is_sampler=True,
    )


def parse_sample(output: NodeOutput, requested_gpus: int | None = None) -> NodeSample | None:
    """A look at a node; None for what is none.

    Of a job that asked for no GPUs, none are its own.
    """
    text = output.output.decode("utf-8", "replace")
    fields: dict[str, str] = {}
    processes: list[list[str]] = []
    tables: dict[str, list[str]] = {}
    table: list[str] | None = None
    for line in text.split("\n"):
        word, _, rest = line.partition(" ")
        if line in ("nvidia", "rocm"):
            table = tables.setdefault(line, [])
        elif table is not None:
            table.append(line)
        elif word == "process":
            if len(processes) < _MAX_PROCESSES:
                processes.append(rest.split(" ", 5))
        else:
            fields.setdefault(word, rest)
    up = _number(fields.get("up"))
    if up is None:
        return None
    ticks = _number(fields.get("ticks")) or 100.0
    page = _number(fields.get("page")) or 4096.0
    found = tuple(one for parts in processes if (one := _process(parts, ticks, page)) is not None)
    memory = _memory(fields.get("memory", ""))
    gpus = _nvidia(tables["nvidia"]) if "nvidia" in tables else _rocm(tables.get("rocm", []))
    cpu = _number(fields.get("cpu_usec")), _number(fields.get("cpu_nsec"))
    cpus = _number(fields.get("cpus"))
    return NodeSample(
        node=output.node,
        up_seconds=up,
        cpus=None if cpus is None else int(cpus),
        cpu_seconds=cpu[0] / 1e6
        if cpu[0] is not None
        else cpu[1] / 1e9
        if cpu[1] is not None
        else None,
        memory_bytes=memory[0]
        if memory
        else sum(one.rss_bytes for one in found)
        if found
        else None,
        memory_limit_bytes=memory[1] if memory else None,
        is_rss=not memory,
        gpus=_own_gpus(gpus, fields.get("visible", ""), requested_gpus),
        processes=found,
    )


def _number(text: str | None) -> float | None:
    """A number that is none of nan and inf, not negative and not beyond all reason; None for any
    other text.
    """
    try:
        value = float(text.strip()) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0 <= value < 1e18 else None


def _process(parts: Sequence[str], ticks: float, page: float) -> ProcessSample | None:
    if len(parts) < 5:
        return None
    pid, user, system, pages = (_number(word) for word in parts[:4])
    if pid is None or user is None or system is None or pages is None:
        return None
    rank = parts[4] if parts[4].isascii() and parts[4].isdigit() and len(parts[4]) < 10 else ""
    command = parts[5].strip() if len(parts) > 5 else ""
    return ProcessSample(int(pid), (user + system) / ticks, int(pages * page), rank, command)


def _memory(text: str) -> tuple[int, int | None] | None:
    parts = text.split(" ")
    used = _number(parts[0])
    if used is None:
        return None
    limit = _number(parts[1]) if len(parts) > 1 else None
    cache = _number(parts[2]) if len(parts) > 2 else None
    own = max(0, int(used) - int(cache or 0))
    return own, int(limit) if limit is not None and 0 < limit < _NO_LIMIT_BYTES else None


def _bytes(text: str | None, unit: int) -> int | None:
    amount = _number(text)
    return None if amount is None else int(amount * unit)


def _nvidia(lines: Iterable[str]) -> tuple[GpuSample, ...]:
    found = []
    for line in lines:
        parts = [word.strip() for word in line.split(",", 6)]
        if len(parts) != 7 or not parts[0].isdecimal():
            continue
        index, uuid, percent, used, total, watts, name = parts
        found.append(
            GpuSample(
                index,
                uuid,
                _percent(percent),
                _bytes(used, _MIB),
                _bytes(total, _MIB),
                _number(watts),
                name,
            )
        )
    return tuple(found)


def _rocm(lines: Iterable[str]) -> tuple[GpuSample, ...]:
    rows = [line for line in lines if "," in line]
    start = next((at for at, line in enumerate(rows) if line.startswith("device,")), None)
    if start is None:
        return ()
    found = []
    for row in csv.DictReader(rows[start:]):
        index = str(row.get("device") or "").removeprefix("card")
        if not index.isdecimal():
            continue
        watts = next((text for name, text in row.items() if name and "Power (W)" in name), None)
        found.append(
            GpuSample(
                index,
                percent=_percent(row.get("GPU use (%)")),
                memory_bytes=_bytes(row.get("VRAM Total Used Memory (B)"), 1),
                memory_total_bytes=_bytes(row.get("VRAM Total Memory (B)"), 1),
                watts=_number(watts),
            )
        )
    return tuple(found)


def _percent(text: str | None) -> float | None:
    value = _number(text)
    return None if value is None else min(100.0, value)


def _own_gpus(
    gpus: tuple[GpuSample, ...], visible: str, requested: int | None
) -> tuple[GpuSample, ...]:
    """Return the GPUs that the job may see, by their numbers or their UUIDs; all if unreported."""
    named = [word.strip() for word in visible.split(",") if word.strip()]
    if not named:
        return () if requested == 0 else gpus
    own = tuple(
        gpu
        for gpu in gpus
        if any(gpu.index == name or (gpu.uuid and gpu.uuid.startswith(name)) for name in named)
    )
    # Of parts of GPUs (MIG) and of numbers that are not this list's nothing is known.
    return own or gpus


class NodeUse(Struct, frozen=True):
    """Use of a node by a job between two samples; `cores` are CPUs kept busy, None if unknown.

    `rank_cores` has the cores of each rank's own process.
    """

    sample: NodeSample
    cores: float | None = None
    process_cores: Mapping[int, float] = field(default_factory=dict)

    @property
    def rank_cores(self) -> dict[str, float]:
        cores: dict[str, float] = {}
        for one in self.sample.processes:
            if one.rank and one.pid in self.process_cores:
                cores[one.rank] = cores.get(one.rank, 0.0) + self.process_cores[one.pid]
        return cores

    @property
    def gpu_percent(self) -> float | None:
        """The mean of its GPUs."""
        known = [gpu.percent for gpu in self.sample.gpus if gpu.percent is not None]
        return sum(known) / len(known) if known else None

    @property
    def watts(self) -> float | None:
        known = [gpu.watts for gpu in self.sample.gpus if gpu.watts is not None]
        return sum(known) if known else None


def node_use(sample: NodeSample, before: NodeSample | None) -> NodeUse:
    """The use from one look to the next; without one before only what a single look tells."""
    if before is None or (seconds := sample.up_seconds - before.up_seconds) <= 0:
        return NodeUse(sample)
    earlier = {one.pid: one.cpu_seconds for one in before.processes}
    by_process = {
        one.pid: max(0.0, one.cpu_seconds - earlier[one.pid]) / seconds
        for one in sample.processes
        if one.pid in earlier
    }
    if sample.cpu_seconds is not None and before.cpu_seconds is not None:
        cores: float | None = max(0.0, sample.cpu_seconds - before.cpu_seconds) / seconds
    else:
        cores = sum(by_process.values()) if sample.processes else None
    return NodeUse(sample, cores, by_process)
