"""Resource use of a running Ray job on each node, measured by the dashboard's agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from hpcdash.backends.base import InsidePart
from hpcdash.backends.node_samples import GpuSample, NodeSample, ProcessSample
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.nodes import SUMMARY_PATH, summaries
from hpcdash.backends.ray.responses import (
    amount,
    decode,
    list_items,
    nested_table,
    number,
    read_responses,
    require_success,
    table,
    text,
)
from hpcdash.errors import UsageError

_DEAD = "DEAD"
_MIB = 1 << 20


def _parse_nodes(answer: Answer, *, ray_job: str) -> tuple[str, ...]:
    [response] = require_success(answer)
    node_ids = []
    for node in summaries(answer, response):
        raylet = table(node.get("raylet"))
        node_id = text(raylet.get("nodeId"))
        workers = _job_workers(raylet.get("coreWorkersStats"), ray_job)
        # The last values of a dead node stay reported.
        if node_id is not None and workers and raylet.get("state") != _DEAD:
            node_ids.append(node_id)
    if not node_ids:
        raise UsageError(
            "Ray does not measure any process of this job",
            "It may not have started, or has just ended.",
        )
    return tuple(node_ids)


def _job_workers(workers: object, ray_job: str) -> list[Mapping[str, Any]]:
    return [worker for worker in map(table, list_items(workers)) if worker.get("jobId") == ray_job]


def _parse_use(answer: Answer, *, ray_job: str) -> tuple[NodeSample, ...]:
    samples = [
        _sample(nested_table(decode(answer, response), "data", "detail"), ray_job)
        for response in read_responses(answer)
        if response.is_success
    ]
    return tuple(filter(None, samples))


def _sample(detail: Mapping[str, Any], ray_job: str) -> NodeSample | None:
    name = text(detail.get("ip")) or text(detail.get("hostname"))
    now = amount(detail.get("now"))
    workers = detail.get("workers")
    is_dead = table(detail.get("raylet")).get("state") == _DEAD
    if name is None or now is None or not isinstance(workers, list) or is_dead:
        return None
    processes = tuple(filter(None, map(_process, _job_workers(workers, ray_job))))
    cpus = list_items(detail.get("cpus"))
    return NodeSample(
        node=name,
        up_seconds=now,
        cpus=number(cpus[0]) if cpus else None,
        memory_bytes=sum(process.rss_bytes for process in processes) if processes else None,
        is_rss=True,
        gpus=tuple(_gpus(detail.get("gpus"), {process.pid for process in processes})),
        processes=processes,
    )


def _process(worker: Mapping[str, Any]) -> ProcessSample | None:
    pid = number(worker.get("pid"))
    rss = number(table(worker.get("memoryInfo")).get("rss"))
    times = table(worker.get("cpuTimes"))
    names = ("user", "system", "childrenUser", "childrenSystem")
    cpu_seconds = [amount(times.get(name)) for name in names]
    if pid is None or rss is None or cpu_seconds[0] is None:
        return None
    # Ray writes its title over the arguments of a command: the rest of them are empty.
    command = " ".join(filter(None, map(text, list_items(worker.get("cmdline")))))
    return ProcessSample(pid, sum(part or 0.0 for part in cpu_seconds), rss, "", command)


def _gpus(gpus: object, pids: set[int]) -> Iterator[GpuSample]:
    """Yield the GPUs that a process of the job uses."""
    for gpu in map(table, list_items(gpus)):
        processes = list_items(gpu.get("processesPids") or gpu.get("processes"))
        gpu_pids = {number(process.get("pid")) for process in map(table, processes)}
        index = number(gpu.get("index"))
        if index is None or not gpu_pids & pids:
            continue
        used = number(gpu.get("memoryUsed"))
        total = number(gpu.get("memoryTotal"))
        yield GpuSample(
            index=str(index),
            uuid=text(gpu.get("uuid")) or "",
            percent=amount(gpu.get("utilizationGpu")),
            memory_bytes=None if used is None else used * _MIB,
            memory_total_bytes=None if total is None else total * _MIB,
            name=text(gpu.get("name")) or "",
        )


class RayInside(InsidePart):
    """Use of a running job, which Ray's agents report."""

    measures_use = True

    def use_nodes(self, native: Mapping[str, str]) -> Query[tuple[str, ...]]:
        """Return the query for the IDs of the nodes where a job has processes connected to Ray.

        Raises UsageError if it has none.
        """
        ray_job = native.get("job_id")
        if not ray_job:
            raise UsageError(
                "Ray measures only processes that have connected to it",
                "This job's program has not: no ray.init() yet.",
            )
        return Query(("GET", SUMMARY_PATH), partial(_parse_nodes, ray_job=ray_job))

    def use(
        self, native: Mapping[str, str], nodes: tuple[str, ...]
    ) -> Query[tuple[NodeSample, ...]]:
        """Return the query for the job's use on these nodes.

        Nodes that do not respond are left out.
        """
        argv = ("GET", *(f"/nodes/{quote(node, safe='')}" for node in nodes))
        return Query(
            argv, partial(_parse_use, ray_job=native.get("job_id", "")), cap_bytes=TEXT_BYTES
        )
