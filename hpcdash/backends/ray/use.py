"""Use of the processes of a running Ray job on each node, as the dashboard's agents measure it."""

from __future__ import annotations

from collections.abc import Mapping
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
    found = []
    for node in summaries(answer, response):
        raylet = table(node.get("raylet"))
        workers = raylet.get("coreWorkersStats")
        node_id = text(raylet.get("nodeId"))
        has_job = isinstance(workers, list) and any(
            table(one).get("jobId") == ray_job for one in workers
        )
        # For a dead node it still reports the last values.
        if node_id is not None and has_job and raylet.get("state") != _DEAD:
            found.append(node_id)
    if not found:
        raise UsageError(
            "Ray does not measure any process of this job",
            "It may not have started, or has just ended.",
        )
    return tuple(found)


def _parse_use(answer: Answer, *, ray_job: str) -> tuple[NodeSample, ...]:
    found = []
    for response in read_responses(answer):
        if response.is_success:
            detail = table(table(table(decode(answer, response)).get("data")).get("detail"))
            if (sample := _sample(detail, ray_job)) is not None:
                found.append(sample)
    return tuple(found)


def _sample(detail: Mapping[str, Any], ray_job: str) -> NodeSample | None:
    name = text(detail.get("ip")) or text(detail.get("hostname"))
    now = amount(detail.get("now"))
    workers = detail.get("workers")
    is_dead = table(detail.get("raylet")).get("state") == _DEAD
    if name is None or now is None or not isinstance(workers, list) or is_dead:
        return None
    processes = tuple(
        one
        for worker in workers
        if table(worker).get("jobId") == ray_job and (one := _process(table(worker))) is not None
    )
    cpus = detail.get("cpus")
    pids = {one.pid for one in processes}
    return NodeSample(
        node=name,
        up_seconds=now,
        cpus=number(cpus[0]) if isinstance(cpus, list) and cpus else None,
        memory_bytes=sum(one.rss_bytes for one in processes) if processes else None,
        is_rss=True,
        gpus=tuple(_gpus(detail.get("gpus"), pids)),
        processes=processes,
    )


def _process(worker: Mapping[str, Any]) -> ProcessSample | None:
    pid = number(worker.get("pid"))
    rss = number(table(worker.get("memoryInfo")).get("rss"))
    times = table(worker.get("cpuTimes"))
    spent = [
        amount(times.get(name)) for name in ("user", "system", "childrenUser", "childrenSystem")
    ]
    if pid is None or rss is None or spent[0] is None:
        return None
    # Ray writes its title over the arguments of a command: the rest of them are empty.
    text = worker.get("cmdline")
    command = (
        " ".join(word for word in text if isinstance(word, str) and word)
        if isinstance(text, list)
        else ""
    )
    return ProcessSample(pid, sum(part or 0.0 for part in spent), rss, "", command)


def _gpus(listed: object, pids: set[int]) -> list[GpuSample]:
    """Return the GPUs that a process of the job uses."""
    found = []
    for gpu in map(table, listed if isinstance(listed, list) else ()):
        on_it = gpu.get("processesPids") or gpu.get("processes")
        own = {number(table(one).get("pid")) for one in on_it} if isinstance(on_it, list) else set()
        index = number(gpu.get("index"))
        if index is None or not own & pids:
            continue
        used = number(gpu.get("memoryUsed"))
        total = number(gpu.get("memoryTotal"))
        found.append(
            GpuSample(
                str(index),
                text(gpu.get("uuid")) or "",
                amount(gpu.get("utilizationGpu")),
                None if used is None else used * _MIB,
                None if total is None else total * _MIB,
                None,
                text(gpu.get("name")) or "",
            )
        )
    return found


class RayInside(InsidePart):
    """A running job's use, which Ray's agents report."""

    measures_use = True

    def use_nodes(self, native: Mapping[str, str]) -> Query[tuple[str, ...]]:
        """The IDs of the nodes where a job has processes that are connected to Ray.

        Raises UsageError where it has none.
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
