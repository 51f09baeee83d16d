"""Rules on nodes: those out of use, too few spares, and those that fail a job repeatedly."""

from __future__ import annotations

import pyarrow as pa

from hpcdash.config.watch_settings import FailuresRule, NodesRule
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.nodelist import compress
from hpcdash.domain.states import JobState, NodeState
from hpcdash.domain.triage import node_names
from hpcdash.domain.units import format_count
from hpcdash.services.watch.rules.rows import Row, rows_where

DRAINED = "drained-nodes"
SPARES = "spare-nodes"
FAILS_ON_NODE = "fails-on-a-node"
# An idle node with one of these takes no job.
_NOT_FOR_JOBS = frozenset({"maint", "reboot", "powered_down", "powering_down", "not_responding"})
_BLAMES_NODE = (JobState.FAILED, JobState.NODE_FAILED)
# A cancelled job does not implicate its node; a job that hit its time limit worked there.
_WORKED = (JobState.COMPLETED, JobState.TIMEOUT, JobState.PREEMPTED, JobState.OUT_OF_MEMORY)


def find_out_of_use(nodes: pa.Table, rule: NodesRule) -> list[Finding]:
    """Return a finding for each node that is drained, draining or down."""
    findings = []
    for row in _rows(nodes, rule, NodeState.DRAINED, NodeState.DRAINING, NodeState.DOWN):
        name = str(row["name"])
        why = f": {shown(row['reason'])}" if row["reason"] else ", no reason given"
        by = f" (by {shown(row['reason_by'])})" if row["reason_by"] else ""
        since = f", since {row['reason_since']:%Y-%m-%d %H:%M} UTC" if row["reason_since"] else ""
        text = f"node {shown(name)} is {row['state']}{since}{why}{by}"
        step = "Only the site can return it to service."
        findings.append(Finding(DRAINED, name, Severity.WARNING, text, step))
    return findings


def spares_subject(rule: NodesRule) -> str:
    """Return the subject of a finding about spares."""
    return ",".join(rule.queues) or "all nodes"


def find_few_spares(nodes: pa.Table, rule: NodesRule) -> list[Finding]:
    """Return a finding if idle nodes are less than a share of those in use."""
    in_use = len(_rows(nodes, rule, NodeState.ALLOCATED, NodeState.MIXED))
    idle = sum(
        _NOT_FOR_JOBS.isdisjoint(flag.lower() for flag in row["flags"] or ())
        for row in _rows(nodes, rule, NodeState.IDLE)
    )
    if not in_use or idle >= rule.least_spare_share * in_use:
        return []
    where = f" in {shown(', '.join(rule.queues))}" if rule.queues else ""
    text = (
        f"{format_count(idle)} idle and {format_count(in_use)} busy nodes{where}: "
        f"{100 * idle / in_use:.1f}% spare, below {100 * rule.least_spare_share:g}%"
    )
    step = (
        "A job that loses a node may wait for a replacement: free some nodes, or ask the site "
        "to return drained nodes."
    )
    return [Finding(SPARES, spares_subject(rule), Severity.WARNING, text, step)]


def _rows(nodes: pa.Table, rule: NodesRule, *states: NodeState) -> list[Row]:
    queues = {"queues": rule.queues} if rule.queues else {}
    return rows_where(nodes, state=states, **queues)


def find_failing_nodes(history: pa.Table, rule: FailuresRule) -> list[Finding]:
    """Return a finding for each job name of a user whose last runs all failed on the same node.

    `history` is of domain.schema.JOBS; rows without nodes or end count for nothing.
    """
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in rows_where(history, state=(*_BLAMES_NODE, *_WORKED)):
        if row["ends_at"] is not None and node_names(row["node_list"]):
            runs.setdefault((row["user"] or "", row["name"] or ""), []).append(row)
    findings = []
    for (user, name), rows in sorted(runs.items()):
        rows.sort(
            key=lambda row: (row["ends_at"], row["_number"] or 0, row["_task"] or 0), reverse=True
        )
        nodes: set[str] = set()
        count = 0
        is_elsewhere = False
        for row in rows:
            if row["state"] not in _BLAMES_NODE:
                break
            shared = set(node_names(row["node_list"]))
            shared = shared & nodes if count else shared
            if not shared:
                is_elsewhere = True
                break
            nodes = shared
            count += 1
        if count < rule.in_a_row or len(nodes) > rule.most_nodes:
            continue
        excluded = compress(sorted(nodes))
        owner = f" of {shown(user)}" if user else ""
        text = f"{shown(name)}{owner} failed {count} times in a row on {shown(excluded)}"
        if is_elsewhere:
            text += "; it also failed on other nodes before, so the job may be at fault"
        step = (
            f"Submit it with --exclude={shown(excluded)} (Slurm) and report the node to the site."
        )
        subject = f"{name} of {user}"
        finding = Finding(FAILS_ON_NODE, subject, Severity.WARNING, text, step, aspect=excluded)
        findings.append(finding)
    return findings
