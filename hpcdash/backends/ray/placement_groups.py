"""Placement groups as reservations: the resources that they hold or wait for, and their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from hpcdash.backends.base import PolicyPart
from hpcdash.backends.queries import Answer, ParsedTable, Query
from hpcdash.backends.ray.responses import (
    IS_NOT,
    MAX_ROWS,
    list_items,
    number,
    require_first,
    resources,
    seconds,
    state_filter,
    state_rows,
    table,
    text,
    truncation_note,
)
from hpcdash.domain import schema

# Removed groups stay in Ray's list.
_REMAINING = state_filter("state", "REMOVED", IS_NOT)
_PATH = f"/api/v0/placement_groups?detail=1&limit={MAX_ROWS}&{_REMAINING}"
_NODES_PATH = f"/api/v0/nodes?limit={MAX_ROWS}"
_SHORT_ID = 8
_NANOSECOND_DIGITS = 9


def _parse(answer: Answer) -> ParsedTable:
    """Parse rows of domain.schema.RESERVATIONS, those that wait first."""
    first, *others = require_first(answer)
    groups = state_rows(answer, first)
    addresses = {}
    for response in others:
        for node in state_rows(answer, response):
            node_id = text(node.get("node_id"))
            address = text(node.get("node_ip"))
            if node_id and address:
                addresses[node_id] = address
    names = Counter(text(group.get("name")) for group in groups)
    rows = []
    rejected = []
    for group in groups:
        row = _row(group, addresses, is_unique=names[text(group.get("name"))] == 1)
        if row is None:
            rejected.append(str(group)[:400])
        else:
            rows.append(row)
    rows.sort(key=lambda row: (row["state"] == "active", row["name"]))
    if note := truncation_note(answer, first, "placement groups"):
        rejected.append(note)
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.RESERVATIONS), tuple(rejected))


def _row(
    group: Mapping[str, Any], addresses: Mapping[str, str], *, is_unique: bool
) -> dict[str, Any] | None:
    group_id = text(group.get("placement_group_id"))
    state = text(group.get("state"))
    if group_id is None or state is None:
        return None
    is_created = state == "CREATED"
    name = text(group.get("name")) or ""
    bundles = [table(bundle) for bundle in list_items(group.get("bundles"))]
    held = [resources(bundle.get("unit_resources")) for bundle in bundles]
    kinds: set[str] = set().union(*held)
    node_ids = filter(None, (text(bundle.get("node_id")) for bundle in bundles))
    nodes = sorted({addresses.get(node_id, node_id) for node_id in node_ids})
    stats = table(group.get("stats"))
    nanoseconds = text(stats.get("creation_request_received_ns")) or ""
    requested_at = number(nanoseconds[:-_NANOSECOND_DIGITS]) or 0
    shapes = Counter(
        " ".join(f"{kind}={amount:g}" for kind, amount in sorted(bundle.items())) for bundle in held
    )
    flags = [f"{shape} ×{count}" if count > 1 else shape for shape, count in shapes.items()]
    if stats.get("scheduling_state") == "INFEASIBLE" and not is_created:
        flags.append("no nodes have these resources")
    if group.get("is_detached") is True:
        flags.append("detached")
    if job := text(group.get("creator_job_id")):
        flags.append(f"of job {job}")
    return dict.fromkeys(schema.RESERVATIONS.names) | {
        "name": name if name and is_unique else f"{name} {group_id[:_SHORT_ID]}".lstrip(),
        "state": "active" if is_created else state.lower(),
        "starts_at": seconds(1000 * requested_at) if is_created else None,
        "nodes": len(nodes) or None,
        "node_list": ",".join(nodes) or None,
        "queue": ",".join(sorted(kinds)) or None,
        "flags": flags,
        "_note": "; ".join(flags),
    }


class RayPolicy(PolicyPart):
    """Ray's placement groups, which reserve resources."""

    def reservations(self, user: str) -> Query[ParsedTable]:
        """Return the query for all placement groups of the cluster: Ray knows no users."""
        return Query(("GET", _PATH, _NODES_PATH), _parse)
