"""Nodes of a Ray cluster with measured memory and load, and its resources as queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.queries import Answer, ParsedTable, Query
from hpcdash.backends.ray.responses import (
    ACCELERATORS,
    Response,
    amount,
    decode,
    list_items,
    nested_table,
    number,
    require_first,
    resources,
    state_rows,
    table,
    text,
)
from hpcdash.domain import schema
from hpcdash.domain.states import NodeState

# Without a limit, the list is cut to 100 rows.
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


class _Node(Struct, frozen=True):
    """A node of the State API's list, its resources, and their use, {} if it is unknown."""

    row: Mapping[str, Any]
    total: Mapping[str, float]
    used: Mapping[str, float]

    @property
    def id(self) -> str:
        return str(self.row.get("node_id"))

    @property
    def is_alive(self) -> bool:
        return self.row.get("state") == "ALIVE"

    @property
    def state(self) -> NodeState:
        """State by the use of its CPUs and accelerators."""
        if not self.is_alive:
            return NodeState.DOWN
        kinds = [kind for kind in _PLAIN_KINDS if kind in self.used and self.total.get(kind)]
        if not any(self.used[kind] for kind in kinds):
            return NodeState.IDLE
        is_full = all(self.used[kind] >= self.total[kind] for kind in kinds)
        return NodeState.ALLOCATED if is_full else NodeState.MIXED


def _read_nodes(answer: Answer, responses: Sequence[Response]) -> list[_Node]:
    used: Mapping[str, Any] = {}
    if len(responses) > 1 and responses[1].is_success:
        status = decode(answer, responses[1])
        keys = ("data", "clusterStatus", "loadMetricsReport", "usageByNode")
        used = nested_table(status, *keys)
    return [
        _Node(
            row,
            resources(row.get("resources_total")),
            _used_amounts(used.get(str(row.get("node_id")))),
        )
        for row in state_rows(answer, responses[0])
    ]


def _used_amounts(value: object) -> dict[str, float]:
    """Return used amounts by resource from the cluster status, which has [used, total] of each."""
    amounts = {}
    for kind, pair in table(value).items():
        used, total = (
            map(amount, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
        )
        if used is not None and total is not None:
            amounts[str(kind)] = used
    return amounts


def summaries(answer: Answer, response: Response) -> list[Mapping[str, Any]]:
    """Return the measurements of the nodes' agents, one per node; [] if the dashboard has none."""
    if not response.is_success:
        return []
    nodes = nested_table(decode(answer, response), "data").get("summary")
    return [table(node) for node in list_items(nodes)]


def _measured_columns(summary: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the memory and the load of a node, without values that its agent does not report."""
    columns: dict[str, int | float] = {}
    # [total, available, percent, used]: `used` counts caches, which are available.
    memory = list_items(summary.get("mem"))
    if len(memory) > 1:
        total = number(memory[0])
        available = number(memory[1])
        if total and available is not None and available <= total:
            columns |= {"memory_bytes": total, "memory_used_bytes": total - available}
    # ([over 1, 5, 15 minutes], the same for each CPU)
    for loads in list_items(summary.get("loadAvg"))[:1]:
        load = amount(loads[0]) if isinstance(loads, list) and loads else None
        if load is not None and load >= 0:
            columns["load"] = load
    return columns


def _parse_nodes(answer: Answer) -> ParsedTable:
    """Parse rows of domain.schema.NODES; a dead node stays listed, as down.

    The memory of a node that its agent does not measure is Ray's resource of that name.
    """
    responses = require_first(answer)
    measured = {}
    for response in responses[2:]:
        for summary in summaries(answer, response):
            node_id = text(table(summary.get("raylet")).get("nodeId"))
            measured[node_id] = _measured_columns(summary)
    rows = []
    rejected = []
    for node in _read_nodes(answer, responses):
        name = text(node.row.get("node_ip")) or text(node.row.get("node_name"))
        if name is None:
            rejected.append(str(node.row)[:400])
            continue
        total = node.total
        used = node.used if node.is_alive else {}
        gpu = next((kind for kind in ACCELERATORS if kind in total), "")
        types = [kind.removeprefix(_TYPE_START) for kind in total if kind.startswith(_TYPE_START)]
        row: dict[str, Any] = dict.fromkeys(schema.NODES.names)
        row |= {
            "name": name,
            "state": node.state.value,
            "native_state": text(node.row.get("state")) or "",
            "flags": ["head"] if node.row.get("is_head_node") else [],
            "reason": text(node.row.get("state_message")),
            "queues": sorted(total),
            "cpus": _count(total.get("CPU", 0)),
            "cpus_used": _count(used.get("CPU")),
            "gpus": _count(total[gpu]) if gpu else 0,
            "gpus_used": _count(used.get(gpu)) if gpu else None,
            "gpu_type": (*types, gpu)[0] if gpu else None,
            "memory_bytes": _count(total.get("memory")),
            "memory_used_bytes": _count(used.get("memory")),
            "features": sorted(
                f"{kind}={amount:g}" for kind, amount in total.items() if _is_custom(kind)
            ),
        }
        if node.is_alive:
            row |= measured.get(node.id, {})
        rows.append(row)
    rows.sort(key=lambda row: (row["state"] == NodeState.DOWN, row["name"]))
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.NODES), tuple(rejected))


def _parse_queues(answer: Answer) -> ParsedTable:
    """Parse rows of domain.schema.QUEUES, one per kind of resource that living nodes have."""
    kinds: defaultdict[str, list[_Node]] = defaultdict(list)
    for node in _read_nodes(answer, require_first(answer)):
        if node.is_alive:
            for kind in node.total:
                if kind not in _MEMORY and not kind.startswith(_TYPE_START):
                    kinds[kind].append(node)
    rows = []
    for kind, nodes in sorted(kinds.items(), key=lambda item: (_is_custom(item[0]), item[0])):
        total = sum(node.total[kind] for node in nodes)
        is_known = all(kind in node.used for node in nodes)
        used = sum(node.used[kind] for node in nodes) if is_known else None
        row: dict[str, Any] = dict.fromkeys(schema.QUEUES.names)
        row |= {
            "name": kind,
            "available": True,
            "nodes": len(nodes),
            "_note": f"{total:g} in total" if used is None else f"{used:g} of {total:g} in use",
        }
        if kind in _PLAIN_KINDS:
            column = "cpus" if kind == "CPU" else "gpus"
            row |= {column: _count(total), f"{column}_used": _count(used)}
        rows.append(row)
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.QUEUES))


def _is_custom(kind: str) -> bool:
    return kind not in _PLAIN_KINDS and kind not in _MEMORY and not kind.startswith(_TYPE_START)


def _count(amount: float | None) -> int | None:
    return None if amount is None else min(int(amount), (1 << 63) - 1)
