"""Does one node fail a job again and again?"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from hpcdash.config.watch_settings import FailuresWatch
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.nodelist import compress
from hpcdash.domain.states import JobState
from hpcdash.domain.triage import node_names
from hpcdash.services.watch.rules.rows import Row, rows_where

RULE = "fails-on-a-node"
_BLAMES_A_NODE = (JobState.FAILED, JobState.NODE_FAILED)
# A cancelled job does not implicate its node; a job that hit its time limit worked there.
_WORKED = (JobState.COMPLETED, JobState.TIMEOUT, JobState.PREEMPTED, JobState.OUT_OF_MEMORY)


def fails_on_a_node(history: pa.Table, watch: FailuresWatch) -> list[Finding]:
    """One for each job name of a user whose last runs all failed on the same node.

    `history` is of domain.schema.JOBS; rows without nodes or end count for nothing.
    """
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in rows_where(history, state=tuple(map(str, (*_BLAMES_A_NODE, *_WORKED)))):
        if row["ends_at"] is not None and node_names(row["node_list"]):
            runs.setdefault((row["user"] or "", row["name"] or ""), []).append(row)
    found = []
    for (user, name), rows in sorted(runs.items()):
        rows.sort(
            key=lambda row: (row["ends_at"], row["_number"] or 0, row["_task"] or 0), reverse=True
        )
        nodes, count, is_elsewhere = _common(rows, watch)
        if not nodes:
            continue
        excluded = compress(nodes)
        whose = f" of {shown(user)}" if user else ""
        text = f"{shown(name)}{whose} failed {count} times in a row on {shown(excluded)}"
        if is_elsewhere:
            text += "; it also failed on other nodes before, so the job may be at fault"
        step = (
            f"Submit it with --exclude={shown(excluded)} (Slurm) and report the node to the site."
        )
        found.append(
            Finding(RULE, f"{name} of {user}", Severity.WARNING, text, step, aspect=excluded)
        )
    return found


def _common(rows: Iterable[Row], watch: FailuresWatch) -> tuple[tuple[str, ...], int, bool]:
    """(the nodes that all of the last failures share, how many these are, whether those before were
    elsewhere).

    `rows` are the newest first; no nodes where none is to blame.
    """
    common: set[str] | None = None
    count = 0
    is_elsewhere = False
    for row in rows:
        nodes = set(node_names(row["node_list"]))
        if row["state"] not in _BLAMES_A_NODE:
            break
        shared = nodes if common is None else common & nodes
        if not shared:
            is_elsewhere = True
            break
        common = shared
        count = count + 1
    if common is None or count < watch.in_a_row or len(common) > watch.most_nodes:
        return (), 0, False
    return tuple(sorted(common)), count, is_elsewhere
