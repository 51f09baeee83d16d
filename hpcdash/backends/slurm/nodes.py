"""Nodes: one sinfo with a row a node and partition, gathered into one row a node of
domain.schema.NODES.
"""

from __future__ import annotations

import re
from functools import partial

import pyarrow as pa

from hpcdash.backends.queries import (
    Answer,
    ParsedTable,
    Query,
    Row,
    unreadable,
)
from hpcdash.backends.slurm.clusters import NO_OTHERS, Clusters, named_on_clusters, query_on
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import require_success
from hpcdash.backends.slurm.rows import Layout, read_rows
from hpcdash.backends.slurm.states import node_state
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain import schema
from hpcdash.domain.columns import digits, epoch_seconds

LAYOUT = Layout(
    plain=(
        "nodelist",
        "partition",
        "statecomplete",
        "cpusstate",
        "gres",
        "gresused",
        "memory",
        "allocmem",
        "cpusload",
        "features",
        "timestamp",
        "user",
    ),
    hostile=("reason",),
)
_MIB = 1 << 20
_MAX_MIB = (1 << 62) // _MIB
# 'gpu:a100:4(S:0-1)', 'gpu:4', 'gpu:a100:2(IDX:0,3)'
_GPU = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:([0-9]{1,9})(?=$|[,(])")
# Parts of GPUs in use: 'shard:a100:2(IDX:0-1)' names GPUs, 'shard:a100:6(3/4,3/4,0/4)' has parts,
# GPU by GPU.
_PARTS = re.compile(r"(?:^|,)(?:shard|mps)(?::[^:,()]+)?:[0-9]{1,9}\(([^()]*)\)")
_PARTS_OF_ONE = re.compile(r"(?:^|,)0*[1-9][0-9]*/")
_INDEX_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def nodes_query(clusters: Clusters = NO_OTHERS) -> Query[ParsedTable]:
    """sinfo -N; costs the controller what a plain sinfo does."""
    token = fresh_token()
    layout = LAYOUT.with_cluster if clusters.several else LAYOUT
    argv = slurm("sinfo", "-a", "-h", "-N", "-O", layout.option(token))
    return query_on(
        Query(argv, partial(parse_nodes, token=token, layout=layout)),
        clusters.several or clusters.default,
    )


def parse_nodes(answer: Answer, *, token: str, layout: Layout = LAYOUT) -> ParsedTable:
    """Rows of domain.schema.NODES; `jobs` is null here, it takes the queue to know."""
    require_success(answer)
    columns = read_rows(answer.stdout, token, layout)
    if columns is None:
        raise unreadable(answer, "nodes")
    if "cluster" in columns.table.column_names:
        columns = named_on_clusters(columns, "nodelist", "partition")
    nodes: dict[str, Row] = {}
    names = columns.table["nodelist"].to_pylist()
    partitions = columns.table["partition"].to_pylist()
    rejected = list(columns.rejected)
    first_rows: list[int] = []
    node_queues: dict[str, list[str]] = {}
    for index, (name, partition) in enumerate(zip(names, partitions, strict=True)):
        if name is None:
            rejected.append(f"a node without a name in {partition}")
            continue
        known = node_queues.get(name)
        if known is None:
            known = node_queues[name] = []
            first_rows.append(index)
        queue = (partition or "").rstrip("*")
        if queue and queue not in known:
            known.append(queue)
    for row in columns.table.take(pa.array(first_rows, pa.int64())).to_pylist():
        nodes[row["nodelist"]] = _node(row, node_queues[row["nodelist"]])
    return ParsedTable(
        pa.Table.from_pylist(list(nodes.values()), schema=schema.NODES), tuple(rejected)
    )


def gpu_gres(text: str | None) -> tuple[int, str | None]:
    """(count, type) of the GPUs in a GRES list; several types are joined with commas, no GPU is (0,
    None).
    """
    found = _GPU.findall(text or "")
    types = dict.fromkeys(kind for kind, _ in found if kind and kind != "(null)")
    return sum(int(count) for _, count in found), ",".join(types) or None


def gpus_in_use(text: str | None) -> int:
    """Return the number of GPUs in a list of GRES in use.

    A GPU shared in parts (shards, MPS) counts.
    """
    whole, _ = gpu_gres(text)
    return whole + sum(map(_gpus_with_parts, _PARTS.findall(text or "")))


def _gpus_with_parts(detail: str) -> int:
    places = detail.removeprefix("IDX:")
    if places == detail:
        return len(_PARTS_OF_ONE.findall(detail))
    return sum(int(high or low) - int(low) + 1 for low, high in _INDEX_RANGE.findall(places))


def cpu_counts(text: str | None) -> tuple[int | None, int | None]:
    """(in use, in all) of 'allocated/idle/other/total'."""
    parts = (text or "").split("/")
    return (digits(parts[0]), digits(parts[3])) if len(parts) == 4 else (None, None)


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None or mebibytes > _MAX_MIB else mebibytes * _MIB


def _node(row: Row, queues: list[str]) -> Row:
    native = row["statecomplete"] or ""
    state, flags = node_state(native)
    cpus_used, cpus = cpu_counts(row["cpusstate"])
    gpus, gpu_type = gpu_gres(row["gres"])
    gpus_used = gpus_in_use(row["gresused"])
    memory = digits(row["memory"])
    memory_used = digits(row["allocmem"])
    # Without a reason sinfo writes 'none' and an unknown user and time.
    has_reason = row["reason"] not in (None, "none", "(null)") or row["user"] is not None
    try:
        load = float(row["cpusload"]) if row["cpusload"] else None
    except ValueError:
        load = None
    return {
        "name": row["nodelist"],
        "state": str(state),
        "native_state": native,
        "flags": flags,
        "reason": row["reason"] if has_reason else None,
        "reason_by": row["user"] if has_reason else None,
        "reason_since": epoch_seconds(row["timestamp"]) if has_reason else None,
        # sinfo gives a node's partitions in another order from call to call.
        "queues": sorted(queues),
        "cpus": cpus,
        "cpus_used": cpus_used,
        "gpus": gpus,
        "gpus_used": gpus_used,
        "gpu_type": gpu_type,
        "memory_bytes": _bytes(memory),
        "memory_used_bytes": _bytes(memory_used),
        "load": load,
        "features": row["features"].split(",") if row["features"] else [],
    }
