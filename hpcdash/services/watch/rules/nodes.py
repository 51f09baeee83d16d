"""Nodes that are out of use with their reasons, and whether enough idle ones stand by."""

from __future__ import annotations

import pyarrow as pa

from hpcdash.config.watch_settings import NodesWatch
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.states import NodeState
from hpcdash.domain.units import format_count
from hpcdash.services.watch.rules.rows import Row, rows_where

DRAINED = "drained-nodes"
SPARES = "spare-nodes"
_OUT = (NodeState.DRAINED, NodeState.DRAINING, NodeState.DOWN)
_IN_USE = (NodeState.ALLOCATED, NodeState.MIXED)
# An idle node with one of these takes no job.
_NOT_FOR_JOBS = frozenset({"maint", "reboot", "powered_down", "powering_down", "not_responding"})


def drained_nodes(nodes: pa.Table, watch: NodesWatch) -> list[Finding]:
    """One for each node that is drained, draining or down."""
    found = []
    for row in _rows(nodes, watch, _OUT):
        why = f": {shown(row['reason'])}" if row["reason"] else ", no reason given"
        by = f" (by {shown(row['reason_by'])})" if row["reason_by"] else ""
        since = f", since {row['reason_since']:%Y-%m-%d %H:%M} UTC" if row["reason_since"] else ""
        text = f"node {shown(row['name'])} is {row['state']}{since}{why}{by}"
        found.append(
            Finding(
                DRAINED,
                str(row["name"]),
                Severity.WARNING,
                text,
                "Only the site can return it to service.",
            )
        )
    return found


def spares_subject(watch: NodesWatch) -> str:
    """Return the subject of a finding about spares."""
    return ",".join(watch.queues) or "all nodes"


def spare_nodes(nodes: pa.Table, watch: NodesWatch) -> list[Finding]:
    """At most one: idle nodes are less than a share of those in use."""
    in_use = len(_rows(nodes, watch, _IN_USE))
    idle = sum(
        not _NOT_FOR_JOBS & {flag.lower() for flag in row["flags"] or ()}
        for row in _rows(nodes, watch, (NodeState.IDLE,))
    )
    if not in_use or idle >= watch.least_spare_share * in_use:
        return []
    where = f" in {shown(', '.join(watch.queues))}" if watch.queues else ""
    text = (
        f"{format_count(idle)} idle and {format_count(in_use)} busy nodes{where}: "
        f"{100 * idle / in_use:.1f}% spare, below {100 * watch.least_spare_share:g}%"
    )
    step = (
        "A job that loses a node may wait for a replacement: free some, or ask the site to "
        "return drained ones."
    )
    return [Finding(SPARES, spares_subject(watch), Severity.WARNING, text, step)]


def _rows(nodes: pa.Table, watch: NodesWatch, states: tuple[NodeState, ...]) -> list[Row]:
    queues = {"queues": watch.queues} if watch.queues else {}
    return rows_where(nodes, state=tuple(map(str, states)), **queues)
