"""Sizes of jobs to find a place for: of options, a request, a batch script or another job."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.config.request import build_request
from hpcdash.domain.accelerators import FORMATS
from hpcdash.domain.demand import Demand
from hpcdash.domain.offers import Offers, QueueOffer
from hpcdash.domain.places import Place
from hpcdash.domain.request import Request, SlotType
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_memory, format_span, parse_memory
from hpcdash.errors import UsageError
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.request_lint import build_demand

# Options that describe a job, and the keys of REQUEST.toml that they set.
_KEYS = {
    "gpu_type": "gpu_type",
    "cpus_per_gpu": "cpus_per_gpu",
    "mem": "memory",
    "time": "time",
}
_COUNTS = ("gpus", "cpus", "nodes")
SIZE_OPTIONS = (*_COUNTS, *_KEYS)
SHAPE_OPTIONS = (*SIZE_OPTIONS, "gpu_mem", "needs", "queue", "account", "qos")


class JobShape(Struct, frozen=True):
    """Job to find a place for: a request, or a batch script with options over its own.

    `gpu_memory_bytes` is that of each GPU, `gpu_formats` its number formats (bf16, fp8): no
    scheduler knows them. `queue`, `account` and `qos` are the only ones searched; '' for all.
    """

    request: Request | None = None
    script: bytes = b""
    name: str = "hpcdash"
    options: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    gpu_formats: tuple[str, ...] = ()
    queue: str = ""
    account: str = ""
    qos: str = ""
    # Slots without a number per node fill as few nodes as the queue's largest allows.
    fills_nodes: bool = False

    def request_at(self, place: Place, queue: QueueOffer | None) -> Request:
        """Return the request with a place's queue, account and QoS."""
        assert self.request is not None
        request = replace(
            self.request,
            queue=place.queue,
            account=place.account or self.request.account,
            qos=place.qos or self.request.qos,
        )
        most: int | None = 0
        if queue is not None:
            is_cpu = request.slot_type is SlotType.CPU
            most = queue.cpus_per_node if is_cpu else queue.gpus_per_node
        is_given = request.slots_per_node is not None or not self.fills_nodes
        if is_given or not most or not request.slots:
            return request
        nodes = -(-request.slots // most)
        return replace(request, slots_per_node=-(-request.slots // nodes))

    def demand_at(self, queue: QueueOffer, offers: Offers, launches: Launches) -> Demand | None:
        """Return the job's resources in a queue; None if it names another queue."""
        if self.request is not None:
            if self.request.queue not in ("", queue.name):
                return None
            request = self.request_at(Place("", queue.name, self.account, self.qos), queue)
            demand = build_demand(request, offers, packs_nodes=launches.packs_nodes)
        else:
            reader = launches.store.backend.scripts.reader()
            demand = reader.script_demand(self.script, self.options)
            demand = replace(
                demand, account=self.account or demand.account, qos=self.qos or demand.qos
            )
        if self.queue not in ("", queue.name):
            return None
        return replace(
            demand,
            queues=(queue.name,),
            gpu_memory_bytes=self.gpu_memory_bytes,
            gpu_formats=self.gpu_formats,
            where={},
        )


def parse_shape(text: str) -> JobShape:
    """Parse options as on the command line: `--gpus 4 --time 2d`; the dashes may be left out.

    Raises UsageError, and RequestProblems for a value.
    """
    try:
        parts = shlex.split(text.replace("=", " "))
    except ValueError:
        raise UsageError("unclosed quote") from None
    options: dict[str, Any] = {}
    for name, value in zip_longest(parts[::2], parts[1::2], fillvalue=""):
        key = name.lstrip("-").replace("-", "_")
        if key not in SHAPE_OPTIONS:
            known = ", ".join(one.replace("_", "-") for one in SHAPE_OPTIONS)
            raise UsageError(f"no option {name}", f"Known: {known}.")
        if not value:
            raise UsageError(f"{name}: no value")
        options[key] = value
    return build_shape(options)


def build_shape(options: Mapping[str, Any], shape: JobShape | None = None) -> JobShape:
    """Build a job from SHAPE_OPTIONS; of a given one, only what no request has is set.

    Raises UsageError, and RequestProblems for a value.
    """
    given = {name: value for name, value in options.items() if value}
    formats = tuple(str(given.get("needs", "")).casefold().replace(",", " ").split())
    if unknown := [name for name in formats if name not in FORMATS]:
        raise UsageError(
            f"needs: {unknown[0]} is not a GPU number format", f"Known: {', '.join(FORMATS)}."
        )
    gpu_memory = None
    if "gpu_mem" in given:
        try:
            gpu_memory = parse_memory(str(given["gpu_mem"]))
        except ValueError as error:
            raise UsageError(f"gpu-mem: {error}", "For example: 40G.") from None
    if shape is None:
        shape = JobShape(build_request(_request_keys(given), "the options"), fills_nodes=True)
    return replace(
        shape,
        gpu_memory_bytes=gpu_memory,
        gpu_formats=formats,
        queue=given.get("queue", ""),
        account=given.get("account", ""),
        qos=given.get("qos", ""),
    )


def _request_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    counts = {}
    for name in _COUNTS:
        if name in given:
            if not str(given[name]).isdecimal() or not int(given[name]):
                raise UsageError(f"{name}: expected a number of at least 1, not {given[name]}")
            counts[name] = int(given[name])
    if "gpus" in counts and "cpus" in counts:
        raise UsageError("cpus is for jobs without GPUs", "Use cpus-per-gpu.")
    nodes = counts.get("nodes", 0)
    slots = counts.get("gpus") or counts.get("cpus") or nodes or 1
    unit = "GPU" if "gpus" in counts else "CPU"
    if nodes > slots:
        raise UsageError(f"nodes: {nodes} are more than the {unit}s, {slots}")
    share = -(-slots // nodes) if nodes else 0
    if nodes and -(-slots // share) != nodes:
        raise UsageError(
            f"{counted(slots, unit)} cannot be spread over {counted(nodes, 'node')}",
            f"{share} on each are {share * nodes}, {share - 1} on each {(share - 1) * nodes}.",
        )
    needs_gpu = "gpus" in counts or bool({"gpu_type", "gpu_mem", "needs"} & given.keys())
    keys: dict[str, Any] = {
        "command": "true",
        "plain": True,
        "slots": slots,
        "slot_type": "cuda" if needs_gpu else "cpu",
    }
    if nodes:
        keys["slots_per_node"] = share
    for name, key in _KEYS.items():
        if name in given:
            keys[key] = int(given[name]) if str(given[name]).isdecimal() else given[name]
    return keys


def job_request(row: Mapping[str, Any]) -> Request:
    """Return a request with the size, account and limit of a row of domain.schema.JOBS.

    Raises UsageError if its size is unknown.
    """
    nodes = row["nodes"] or 1
    gpus = row["gpus"]
    slots = gpus or row["cpus"]
    if not slots:
        raise UsageError(f"the size of job {row['id']} is unknown", "Specify it: --gpus, --cpus.")
    share = -(-slots // nodes)
    return Request(
        command="true",
        plain=True,
        # Of an uneven job the largest share on each node.
        slots=slots if -(-slots // share) == nodes else share * nodes,
        slots_per_node=share,
        slot_type=SlotType.CUDA if gpus else SlotType.CPU,
        limit_seconds=row["limit_seconds"],
        memory_bytes=None if row["memory_bytes"] is None else row["memory_bytes"] // nodes,
    )


def format_shape(shape: JobShape) -> str:
    """Format a job's size: `4 a100 GPUs with 40G each for 2 d`."""
    request = shape.request
    if request is None:
        return shape.name
    is_cpu = request.slot_type is SlotType.CPU
    unit = "CPU" if is_cpu else f"{request.gpu_type} GPU".strip()
    parts = [counted(request.slots, unit)]
    if shape.gpu_memory_bytes:
        parts.append(f"with {format_memory(shape.gpu_memory_bytes)} each")
    if shape.gpu_formats:
        parts.append(f"for {', '.join(shape.gpu_formats)}")
    if request.slots_per_node:
        parts.append(f"on {counted(-(-request.slots // request.slots_per_node), 'node')}")
    if request.memory_bytes:
        parts.append(f"with {format_memory(request.memory_bytes)} of memory per node")
    if request.limit_seconds:
        parts.append(f"for {format_span(request.limit_seconds)}")
    return " ".join(parts)
