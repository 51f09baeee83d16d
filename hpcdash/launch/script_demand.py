"""What a script's own directives ask for, as far as they can be counted before anything runs. Knows no cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hpcdash.backends.options import Option
from hpcdash.backends.pbs import options as qsub
from hpcdash.domain.demand import Demand
from hpcdash.domain.units import KIB, MINUTE, parse_duration, parse_memory

# sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, and days-hours with minutes and seconds or without.
_SLURM_TIME = re.compile(r"[0-9]{1,9}(?:-[0-9]{1,9})?(?::[0-9]{1,9}){0,2}")
_SLURM_UNLIMITED = frozenset({"infinite", "unlimited", "-1", "0"})
_PBS_TIME = re.compile(r"[0-9]{1,9}(?::[0-9]{1,9}){0,2}(?:\.[0-9]{1,3})?")


def is_slurm_time(text: str) -> bool:
    """Whether sbatch takes it for a time."""
    return text.lower() in _SLURM_UNLIMITED or _SLURM_TIME.fullmatch(text) is not None


def is_pbs_time(text: str) -> bool:
    """Whether qsub takes it for a walltime: seconds, or hours:minutes:seconds."""
    return _PBS_TIME.fullmatch(text) is not None


def slurm_demand(options: Sequence[Option]) -> Demand:
    """Of options as sbatch reads them; what cannot be read asks for nothing."""
    last = {option.name: option for option in options}

    def value(name: str) -> str:
        return (last[name].value or "") if name in last else ""

    nodes, tasks = _number(value("nodes").partition("-")[0]), _number(value("ntasks"))
    per_node = _number(value("ntasks-per-node"))
    if tasks is None and nodes is not None and per_node is not None:
        tasks = nodes * per_node
    each = _number(value("cpus-per-task"))
    at_once = tasks or nodes
    gpus, of_job = _gpus(value("gpus"))
    on_node, of_node = _gpus(value("gpus-per-node"), *_gpu_gres(value("gres")))
    if gpus is None and on_node is not None and nodes is not None:
        gpus = nodes * on_node
    sources = {
        "queues": ("partition",),
        "account": ("account",),
        "qos": ("qos",),
        "limit_seconds": ("time",),
        "nodes": ("nodes",),
        "cpus": ("ntasks", "cpus-per-task", "ntasks-per-node"),
        "cpus_per_node": ("cpus-per-task", "ntasks-per-node"),
        "gpus": ("gpus", "gres", "gpus-per-node"),
        "gpus_per_node": ("gpus-per-node", "gres"),
        "gpu_type": ("gpus", "gpus-per-node", "gres"),
        "memory_per_node_bytes": ("mem",),
    }
    return Demand(
        queues=tuple(name for name in value("partition").split(",") if name),
        account=value("account"),
        qos=value("qos"),
        limit_seconds=_slurm_seconds(value("time")),
        nodes=nodes,
        cpus=at_once * (each or 1) if at_once is not None else each,
        cpus_per_node=(per_node or 1) * each if each is not None else per_node,
        gpus=gpus,
        gpus_per_node=on_node,
        gpu_type=of_job or of_node,
        memory_per_node_bytes=_memory(value("mem"), KIB**2),
        where=_where(sources, last),
    )


def pbs_demand(options: Sequence[Option]) -> Demand:
    """Of a script's options as qsub reads them: -q, -A, and of -l select (or nodes), walltime, ncpus, mem."""
    last = {option.name: option for option in options}
    said = qsub.settings(options, in_script=True)
    lines = {f"l.{name}": one for one in options if one.name == "l" for name, _ in qsub.resources(one.value or "")}
    chunks = (
        qsub.chunks(said.get("l.select") or said.get("l.nodes") or "") if {"l.select", "l.nodes"} & said.keys() else []
    )
    counted = [(_number(count or "1") or 1, dict(parts)) for count, parts in chunks]

    def most(*names: str) -> int | None:
        found = [
            amount for _, parts in counted for name in names if (amount := _number(parts.get(name, ""))) is not None
        ]
        return max(found, default=None)

    def in_all(*names: str) -> int | None:
        found = [
            count * amount
            for count, parts in counted
            for name in names
            if (amount := _number(parts.get(name, ""))) is not None
        ]
        return sum(found) if found else None

    walltime = said.get("l.walltime", "")
    memories = [_memory(parts.get("mem", ""), 1) for _, parts in counted]
    chunk_place = ("l.select", "l.nodes")
    sources = {
        "queues": ("q",),
        "account": ("A",),
        "limit_seconds": ("l.walltime",),
        "nodes": chunk_place,
        "cpus": (*chunk_place, "l.ncpus"),
        "cpus_per_node": (*chunk_place, "l.ncpus"),
        "gpus": (*chunk_place, "l.ngpus"),
        "gpus_per_node": (*chunk_place, "l.ngpus"),
        "memory_per_node_bytes": (*chunk_place, "l.mem"),
    }
    # A select's chunks may share a node; nodes= are so many.
    nodes = sum(count for count, _ in counted) if "l.nodes" in said else None
    queue = said.get("q", "").partition("@")[0]
    return Demand(
        queues=(queue,) if queue else (),
        account=said.get("A", ""),
        limit_seconds=parse_duration(walltime) if is_pbs_time(walltime) else None,
        nodes=nodes,
        cpus=in_all("ncpus", "ppn") or _number(said.get("l.ncpus", "")),
        cpus_per_node=most("ncpus", "ppn") or _number(said.get("l.ncpus", "")),
        gpus=in_all("ngpus", "gpus") or _number(said.get("l.ngpus", "")),
        gpus_per_node=most("ngpus", "gpus") or _number(said.get("l.ngpus", "")),
        memory_per_node_bytes=max((amount for amount in memories if amount), default=None),
        where=_where(sources, {**last, **lines}),
    )


def _where(sources: Mapping[str, Iterable[str]], given: Mapping[str, Option]) -> dict[str, str]:
    found = {}
    for part, names in sources.items():
        line = next((given[name].line for name in names if name in given), 0)
        if line:
            found[part] = f"line {line}"
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def _slurm_seconds(text: str) -> int | None:
    if not _SLURM_TIME.fullmatch(text):
        return None
    return parse_duration(text, bare_unit_seconds=MINUTE) or None


def _memory(text: str, bare_unit_bytes: int) -> int | None:
    try:
        return parse_memory(text, bare_unit_bytes=bare_unit_bytes) or None
    except ValueError:
        return None


def _gpu_gres(text: str) -> list[str]:
    """`a100:2` of `gpu:a100:2,license:1`; a bare `gpu` is one."""
    words = [word.partition("(")[0] for word in text.split(",")]
    return [word[4:] or "1" for word in words if word == "gpu" or word.startswith("gpu:")]


def _gpus(*texts: str) -> tuple[int | None, str]:
    """(how many, of which type) of `4`, `a100:4`, `a100:2,v100:2`; '' for no type, or several."""
    total: int | None = None
    types = set()
    for item in (item for text in texts for item in text.split(",") if item):
        kind, _, count = item.rpartition(":")
        amount = _number(count)
        if amount is None:
            # A type alone is one of it.
            kind, amount = item, 1
        total = (total or 0) + amount
        types.add(kind)
    return total, types.pop() if len(types) == 1 else ""
