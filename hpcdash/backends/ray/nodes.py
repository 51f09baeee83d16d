"""Nodes of a Ray cluster with measured memory and load, and its resources as queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from hpcdash.backends.queries import Answer, ParsedTable, Query
from hpcdash.backends.ray.responses import (
    ACCELERATORS,
    Response,
    amount,
    decode,
    number,
    pairs,
    read_responses,
    require_success,
    resources,
    state_rows,
    table,
    text,
)
from hpcdash.domain import schema
from hpcdash.domain.states import NodeState

# detail=1 gives when a node began; the list is cut to 100 rows without a limit.
_NODES_PATH = "/api/v0/nodes?detail=1&limit=10000"
_STATUS_PATH = "/api/cluster_status"
SUMMARY_PATH = "/nodes?view=summary"
_TYPE_START = "accelerator_type:"
_PLAIN_KINDS = ("CPU", *ACCELERATORS)
_MEMORY = ("memory", "object_store_memory", "objectStoreMemory")


def nodes_query() -> Query[ParsedTable]:
    return Query(("GET", _NODES_PATH, _STATUS_PATH, SUMMARY_PATH), _parse_nodes)


def queues_query() -> Query[ParsedTable]:
    return Query(("GET", _NODES_PATH, _STATUS_PATH), _parse_queues)


def _read(
    answer: Answer,
) -> tuple[list[dict[str, Any]], Mapping[str, Mapping[str, Sequence[float]]]]:
    """Read the nodes, and the use of their resources by ID; {} where the dashboard has none."""
    responses = read_responses(answer)
    if not responses[0].is_success:
        require_success(answer)
    nodes = state_rows(answer, responses[0])
    found: Any = (
        decode(answer, responses[1]) if len(responses) > 1 and responses[1].is_success else {}
    )
    for key in ("data", "clusterStatus", "loadMetricsReport", "usageByNode"):
        found = found.get(key) if isinstance(found, dict) else None
    return nodes, {str(node): pairs(used) for node, used in found.items()} if isinstance(
        found, dict
    ) else {}


def summaries(answer: Answer, response: Response) -> list[Mapping[str, Any]]:
    """Return the measurements of the nodes' agents, one per node.

    [] where the dashboard has none.
    """
    if not response.is_success:
        return []
    listed = table(table(decode(answer, response)).get("data")).get("summary")
    return [table(node) for node in listed] if isinstance(listed, list) else []


def _measured(answer: Answer) -> Mapping[str, dict[str, int | float]]:
    """Return memory and load by the node's ID.

    Values that an agent does not report are left out.
    """
    found: dict[str, dict[str, int | float]] = {}
    responses = read_responses(answer)[2:]
    for summary in (one for response in responses for one in summaries(answer, response)):
        node_id = text(table(summary.get("raylet")).get("nodeId"))
        memory = summary.get("mem")
        loads = summary.get("loadAvg")
        if node_id is None:
            continue
        columns: dict[str, int | float] = {}
        # [total, available, percent, used]: `used` counts caches, which are available.
        if isinstance(memory, list) and len(memory) > 1:
            total = number(memory[0])
            available = number(memory[1])
            if total and available is not None and available <= total:
                columns |= {"memory_bytes": total, "memory_used_bytes": total - available}
        # ([over 1, 5, 15 minutes], the same for each CPU)
        if isinstance(loads, list) and loads and isinstance(loads[0], list) and loads[0]:
            load = amount(loads[0][0])
            columns |= {"load": load} if load is not None and load >= 0 else {}
        found[node_id] = columns
    return found


def _parse_nodes(answer: Answer) -> ParsedTable:
    """Rows of domain.schema.NODES; a node that died stays listed, as down.

    The memory of a node that its agent does not measure is Ray's resource of that name.
    """
    nodes, used_by_node = _read(answer)
    measured = _measured(answer)
    rows = []
    rejected = []
    for node in nodes:
        name = text(node.get("node_ip")) or text(node.get("node_name"))
        if name is None:
            rejected.append(str(node)[:400])
            continue
        held = resources(node.get("resources_total"))
        used = used_by_node.get(str(node.get("node_id")), {})
        is_alive = node.get("state") == "ALIVE"
        gpu = next((kind for kind in ACCELERATORS if kind in held), None)
        gpu_type = next(
            (kind.removeprefix(_TYPE_START) for kind in held if kind.startswith(_TYPE_START)), gpu
        )
        rows.append(
            dict.fromkeys(schema.NODES.names)
            | {
                "name": name,
                "state": _state(held, used).value if is_alive else NodeState.DOWN.value,
                "native_state": text(node.get("state")) or "",
                "flags": ["head"] if node.get("is_head_node") else [],
                "reason": text(node.get("state_message")),
                "queues": sorted(held),
                "cpus": _count(held.get("CPU", 0)),
                "cpus_used": _used(used, "CPU") if is_alive else None,
                "gpus": _count(held.get(gpu, 0)) if gpu else 0,
                "gpus_used": _used(used, gpu) if gpu and is_alive else None,
                "gpu_type": gpu_type if gpu else None,
                "memory_bytes": _count(held["memory"]) if "memory" in held else None,
                "memory_used_bytes": _used(used, "memory") if is_alive else None,
                "features": sorted(
                    f"{kind}={total:g}" for kind, total in held.items() if _is_custom(kind)
                ),
            }
            | (measured.get(str(node.get("node_id")), {}) if is_alive else {})
        )
    rows.sort(key=lambda row: (row["state"] == NodeState.DOWN, row["name"]))
    return ParsedTable(_table(rows, schema.NODES), tuple(rejected))


def _parse_queues(answer: Answer) -> ParsedTable:
    """Rows of domain.schema.QUEUES: a kind of resource each, of the nodes that are alive."""
    nodes, used_by_node = _read(answer)
    kinds: dict[str, list[tuple[float, float | None]]] = {}
    for node in nodes:
        if node.get("state") != "ALIVE":
            continue
        used = used_by_node.get(str(node.get("node_id")), {})
        for kind, total in resources(node.get("resources_total")).items():
            if kind not in _MEMORY and not kind.startswith(_TYPE_START):
                kinds.setdefault(kind, []).append((total, used[kind][0] if kind in used else None))
    rows = []
    for kind, held in sorted(kinds.items(), key=lambda one: (_is_custom(one[0]), one[0])):
        total = sum(one for one, _ in held)
        parts = [used for _, used in held]
        in_use = None if None in parts else sum(part for part in parts if part is not None)
        column = "cpus" if kind == "CPU" else "gpus" if kind in ACCELERATORS else ""
        rows.append(
            dict.fromkeys(schema.QUEUES.names)
            | {"name": kind, "available": True, "nodes": len(held), "_note": _note(in_use, total)}
            | (
                {
                    column: _count(total),
                    f"{column}_used": None if in_use is None else _count(in_use),
                }
                if column
                else {}
            )
        )
    return ParsedTable(_table(rows, schema.QUEUES))


def _note(used: float | None, total: float) -> str:
    return f"{total:g} in all" if used is None else f"{used:g} of {total:g} in use"


def _table(rows: list[dict[str, Any]], requested: pa.Schema) -> pa.Table:
    plain = pa.schema(
        [
            (field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type)
            for field in requested
        ]
    )
    return pa.Table.from_pylist(rows, schema=plain).cast(requested)


def _is_custom(kind: str) -> bool:
    return kind not in _PLAIN_KINDS and kind not in _MEMORY and not kind.startswith(_TYPE_START)


def _state(held: Mapping[str, float], used: Mapping[str, Sequence[float]]) -> NodeState:
    """By its CPUs and accelerators: what of them is in use."""
    parts = [
        (used[kind][0], held[kind]) for kind in _PLAIN_KINDS if kind in used and held.get(kind)
    ]
    if not any(part for part, _ in parts):
        return NodeState.IDLE
    return NodeState.ALLOCATED if all(part >= total for part, total in parts) else NodeState.MIXED


def _count(amount: float) -> int:
    return min(int(amount), (1 << 63) - 1)


def _used(used: Mapping[str, Sequence[float]], kind: str) -> int | None:
    return _count(used[kind][0]) if kind in used else None
