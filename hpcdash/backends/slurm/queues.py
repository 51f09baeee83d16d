"""Partitions: one short sinfo, summed over the node groups it prints, as rows of domain.schema.QUEUES."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pyarrow as pa

from hpcdash.backends.queries import Answer, ParsedTable, Query
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.failures import require_success, unreadable
from hpcdash.backends.slurm.nodes import cpu_counts, gpu_gres
from hpcdash.backends.slurm.rows import Layout, read_rows
from hpcdash.backends.slurm.values import duration_seconds
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema

LAYOUT = Layout(
    plain=("partition", "available", "time", "nodeaiot", "cpusstate", "nodes", "gres", "gresused"),
    hostile=(),
)
# A cluster has no more nodes than this.
_COUNT = re.compile(r"[0-9]{1,9}")


def queues_query() -> Query[ParsedTable]:
    """sinfo, aggregated by Slurm into groups of like nodes."""
    token = fresh_token()
    argv = slurm("sinfo", "-h", "-O", LAYOUT.option(token))
    return Query(argv, partial(parse_queues, token=token))


def parse_queues(answer: Answer, *, token: str) -> ParsedTable:
    """Rows of domain.schema.QUEUES; the counts of jobs are null here, they take the queue to know."""
    require_success(answer)
    columns = read_rows(answer.stdout, token, LAYOUT)
    if columns is None:
        raise unreadable(answer, "partitions")
    queues: dict[str, dict[str, Any]] = {}
    rejected = list(columns.rejected)
    for row in columns.table.to_pylist():
        marked = row["partition"]
        if marked is None:
            rejected.append("a partition without a name")
            continue
        queue = queues.setdefault(
            marked.rstrip("*"),
            {
                "name": marked.rstrip("*"),
                "available": row["available"] == "up",
                "default": marked.endswith("*"),
                "limit_seconds": duration_seconds(row["time"] or ""),
                **dict.fromkeys(("nodes", "nodes_idle", "nodes_down", "cpus", "cpus_used", "gpus", "gpus_used"), 0),
                "jobs_running": None,
                "jobs_pending": None,
            },
        )
        _, idle, other, nodes = _four(row["nodeaiot"])
        cpus_used, cpus = cpu_counts(row["cpusstate"])
        # sinfo gives the GRES of one node of the group, and groups nodes of one GRES and one GRES in use.
        gpus, _ = gpu_gres(row["gres"])
        gpus_used, _ = gpu_gres(row["gresused"])
        for key, count in (
            ("nodes", nodes),
            ("nodes_idle", idle),
            ("nodes_down", other),
            ("cpus", cpus or 0),
            ("cpus_used", cpus_used or 0),
            ("gpus", gpus * nodes),
            ("gpus_used", gpus_used * nodes),
        ):
            queue[key] += count
    return ParsedTable(pa.Table.from_pylist(list(queues.values()), schema=schema.QUEUES), tuple(rejected))


def _four(text: str | None) -> tuple[int, int, int, int]:
    parts = (text or "").split("/")
    if len(parts) != 4 or not all(_COUNT.fullmatch(part) for part in parts):
        return 0, 0, 0, 0
    return int(parts[0]), int(parts[1]), int(parts[2]), int(parts[3])
