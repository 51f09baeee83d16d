"""Partitions: one short sinfo, summed over its node groups, as rows of domain.schema.QUEUES.

Without -a sinfo leaves out partitions that are hidden or not open to one's groups: both lists are
requested.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pyarrow as pa

from hpcdash.backends.queries import (
    Answer,
    ParsedTable,
    Query,
    Row,
    decoded,
    unreadable,
)
from hpcdash.backends.slurm.clusters import NO_OTHERS, Clusters, query_on
from hpcdash.backends.slurm.commands import slurm_script
from hpcdash.backends.slurm.errors import require_success
from hpcdash.backends.slurm.nodes import gpu_gres, gpus_in_use
from hpcdash.backends.slurm.rows import SEPARATOR, Layout, read_rows
from hpcdash.backends.slurm.values import duration_seconds
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import MOST
from hpcdash.domain.job_ids import with_cluster
from hpcdash.domain.states import QueueStanding

LAYOUT = Layout(
    plain=(
        "partition",
        "available",
        "time",
        "nodeaiot",
        "cpusstate",
        "nodes",
        "gres",
        "gresused",
        "groups",
    ),
    hostile=(),
)
# Digits of an int64; MOST rejects what is beyond it.
_COUNT = re.compile(r"[0-9]{1,19}")
# Name of a rejected row.
_SHOWN_LETTERS = 200


def queues_query(clusters: Clusters = NO_OTHERS) -> Query[ParsedTable]:
    """sinfo, aggregated by Slurm into groups of like nodes."""
    token = fresh_token()
    layout = LAYOUT.with_cluster if clusters.several else LAYOUT
    argv = slurm_script("backends/slurm/queues.sh", token, layout.option(token))
    query = Query(argv, partial(parse_queues, token=token, layout=layout), command=("sinfo",))
    return query_on(query, clusters.several or clusters.default)


def parse_queues(answer: Answer, *, token: str, layout: Layout = LAYOUT) -> ParsedTable:
    """Rows of domain.schema.QUEUES; the counts of jobs are null here, they take the queue to
    know.
    """
    require_success(answer)
    head, marker, printed = answer.stdout.partition(f"{token}\n".encode())
    has_head = bool(marker) and SEPARATOR.encode() not in head
    listed = set(decoded(head).split("\n")) if has_head else set()
    columns = read_rows(printed if has_head else answer.stdout, token, layout)
    if columns is None:
        raise unreadable(answer, "partitions")
    queues: dict[str, dict[str, Any]] = {}
    rejected = list(columns.rejected)
    for row in columns.table.to_pylist():
        marked = row["partition"]
        if marked is None:
            rejected.append("a partition without a name")
            continue
        own_name = marked.rstrip("*")
        name = with_cluster(own_name, row.get("cluster") or "")
        known = queues.get(name)
        counts = _counts(row)
        if known:
            counts = {key: count + known[key] for key, count in counts.items()}
        if max(counts.values()) > MOST:
            message = " ".join(text for text in row.values() if text)
            rejected.append(f"a partition with a count out of range: {message[:_SHOWN_LETTERS]}")
            continue
        if known:
            known.update(counts)
            continue
        is_listed = not has_head or own_name in listed
        standing, note = (None, None) if is_listed else _unlisted(row["groups"] or "all")
        queues[name] = {
            "name": name,
            "available": row["available"] == "up" and standing is not QueueStanding.CLOSED,
            "default": marked.endswith("*"),
            "limit_seconds": duration_seconds(row["time"] or ""),
            **counts,
            "_standing": standing,
            "_note": note,
        }
    return ParsedTable(
        pa.Table.from_pylist(list(queues.values()), schema=schema.QUEUES), tuple(rejected)
    )


def _counts(row: Row) -> dict[str, int]:
    """Return the counts of a group of like nodes."""
    _, idle, other, nodes = _four(row["nodeaiot"])
    cpus_used, _, cpus_down, cpus = _four(row["cpusstate"])
    # sinfo gives the GRES of one node of the group, and groups nodes of one GRES and one GRES in
    # use.
    gpus, _ = gpu_gres(row["gres"])
    gpus_used = gpus_in_use(row["gresused"])
    return {
        "nodes": nodes,
        "nodes_idle": idle,
        "nodes_down": other,
        "cpus": cpus,
        "cpus_used": cpus_used,
        "gpus": gpus * nodes,
        "gpus_used": gpus_used * nodes,
        "_cpus_down": cpus_down,
        "_gpus_down": (gpus - gpus_used) * other,
    }


def _unlisted(groups: str) -> tuple[QueueStanding, str]:
    """Standing of a partition that sinfo does not show of itself, by the groups that may use it,
    and a note.
    """
    if groups.lower() == "all":
        return QueueStanding.HIDDEN, "hidden: accepts jobs submitted to it by name"
    return QueueStanding.CLOSED, f"closed to you, or hidden: for group {groups}"


def _four(text: str | None) -> tuple[int, int, int, int]:
    parts = (text or "").split("/")
    if len(parts) != 4 or not all(_COUNT.fullmatch(part) for part in parts):
        return 0, 0, 0, 0
    return int(parts[0]), int(parts[1]), int(parts[2]), int(parts[3])
