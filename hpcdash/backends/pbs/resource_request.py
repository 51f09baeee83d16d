"""What a job asked for, from the text of its select (PBS) or nodes (Torque)."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdash.backends.pbs.values import size_bytes
from hpcdash.domain.columns import MOST

_CPUS = frozenset({"ncpus", "ppn"})
# naccelerators: of Crays.
_GPUS = frozenset({"ngpus", "gpus", "ngpu", "gpu", "naccelerators"})
# More digits than any count of nodes or processors has.
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Sums over all chunks. No memory named: None; a chunk that names no CPUs has one."""

    nodes: int
    cpus: int
    gpus: int
    memory_bytes: int | None


def read_resource_request(text: str) -> ResourceRequest | None:
    """Reads `2:ncpus=4:mem=1gb+1:ncpus=1`, `2:ppn=4:gpus=1`, `g01:ppn=4+g02`; None for what is no request."""
    nodes = cpus = gpus = 0
    memory: int | None = None
    for chunk in text.split("+"):
        words = chunk.strip().split(":")
        chunks = _count(words[0])
        of_each = [word.partition("=") for word in words]
        if not words[0]:
            return None
        chunks = 1 if chunks is None else chunks
        chunk_cpus = next((_count(value) for name, _, value in of_each if name in _CPUS), 1)
        chunk_gpus = next((_count(value) for name, _, value in of_each if name in _GPUS), 0)
        chunk_memory = next((size_bytes(value) for name, _, value in of_each if name == "mem"), None)
        nodes += chunks
        cpus += chunks * (1 if chunk_cpus is None else chunk_cpus)
        gpus += chunks * (chunk_gpus or 0)
        if chunk_memory is not None:
            memory = (memory or 0) + chunks * chunk_memory
    if max(nodes, cpus, gpus, memory or 0) > MOST:
        return None
    return ResourceRequest(nodes, cpus, gpus, memory)


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
