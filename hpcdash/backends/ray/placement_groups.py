"""Placement groups as reservations: which resources they hold or wait for, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from hpcdash.backends.base import PolicyPart
from hpcdash.backends.queries import Answer, ParsedTable, Query
from hpcdash.backends.ray.responses import (
    MAX_ROWS,
    number,
    read_responses,
    require_success,
    resources,
    seconds,
    state_rows,
    table,
    text,
    truncation_note,
)
from hpcdash.domain import schema

# Removed groups stay in Ray's list.
_PATH = (
    f"/api/v0/placement_groups?detail=1&limit={MAX_ROWS}"
    "&filter_keys=state&filter_predicates=%21%3D&filter_values=REMOVED"
)
_NODES_PATH = f"/api/v0/nodes?limit={MAX_ROWS}"
_SHORT_ID = 8
_CREATED, _INFEASIBLE = "CREATED", "INFEASIBLE"
_NANOSECOND_DIGITS = 9


def _parse(answer: Answer) -> ParsedTable:
    """Rows of domain.schema.RESERVATIONS: those that wait first."""
    responses = read_responses(answer)
    if not responses[0].is_success:
        require_success(answer)
    listed = state_rows(answer, responses[0])
    addresses = {
        node_id: address
        for response in responses[1:]
        for node in state_rows(answer, response)
        if (node_id := text(node.get("node_id"))) and (address := text(node.get("node_ip")))
    }
    names = Counter(text(group.get("name")) for group in listed)
    rows = []
    rejected = []
    for group in listed:
        row = _row(group, addresses, is_unique=names[text(group.get("name"))] == 1)
        if row is None:
            rejected.append(str(group)[:400])
        else:
            rows.append(row)
    rows.sort(key=lambda row: (row["state"] == "active", row["name"]))
    if note := truncation_note(answer, responses[0], "placement groups"):
        rejected.append(note)
    plain = pa.schema(
        [
            (field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type)
            for field in schema.RESERVATIONS
        ]
    )
    return ParsedTable(
        pa.Table.from_pylist(rows, schema=plain).cast(schema.RESERVATIONS), tuple(rejected)
    )


def _row(
    group: Mapping[str, Any], addresses: Mapping[str, str], *, is_unique: bool
) -> dict[str, Any] | None:
    group_id, name, state = (
        text(group.get(key)) for key in ("placement_group_id", "name", "state")
    )
    if group_id is None or state is None:
        return None
    found = group.get("bundles")
    bundles = [table(bundle) for bundle in found] if isinstance(found, list) else []
    held = [resources(bundle.get("unit_resources")) for bundle in bundles]
    node_ids = filter(None, (text(bundle.get("node_id")) for bundle in bundles))
    nodes = sorted({addresses.get(node_id, node_id) for node_id in node_ids})
    stats = table(group.get("stats"))
    nanoseconds = text(stats.get("creation_request_received_ns")) or ""
    requested = number(nanoseconds[:-_NANOSECOND_DIGITS])
    shapes = Counter(map(_format_resources, held))
    flags = [f"{shape} ×{count}" if count > 1 else shape for shape, count in shapes.items()]
    if stats.get("scheduling_state") == _INFEASIBLE and state != _CREATED:
        flags.append("no nodes have these resources")
    if group.get("is_detached") is True:
        flags.append("detached")
    if job := text(group.get("creator_job_id")):
        flags.append(f"of job {job}")
    return dict.fromkeys(schema.RESERVATIONS.names) | {
        "name": name if name and is_unique else f"{name or ''} {group_id[:_SHORT_ID]}".lstrip(),
        "state": "active" if state == _CREATED else state.lower(),
        "starts_at": seconds(1000 * (requested or 0)) if state == _CREATED else None,
        "nodes": len(nodes) or None,
        "node_list": ",".join(nodes) or None,
        "queue": ",".join(sorted({kind for one in held for kind in one})) or None,
        "flags": flags,
        "_note": "; ".join(flags),
    }


def _format_resources(held: Mapping[str, float]) -> str:
    return " ".join(f"{kind}={amount:g}" for kind, amount in sorted(held.items()))


class RayPolicy(PolicyPart):
    """Ray's placement groups, which reserve resources."""

    def reservations(self, user: str) -> Query[ParsedTable]:
        """All placement groups of the cluster: Ray knows no users."""
        return Query(("GET", _PATH, _NODES_PATH), _parse)
