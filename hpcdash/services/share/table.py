"""The tasks of a shared pool as a table, in the order in which they have nodes, or get them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from hpcdash.domain.schema import COUNT, TEXT, TIME, WORD
from hpcdash.services.share.state import Task, in_order
from hpcdash.services.share.text import format_level, format_turn

POOL_TASKS = pa.schema(
    [
        ("id", TEXT),
        ("name", TEXT),
        ("user", WORD),
        ("nodes", COUNT),
        ("priority", WORD),
        ("state", WORD),
        ("turn", TEXT),
        ("demotion_at", TIME),
        ("suspended", COUNT),
        ("labels", pa.list_(TEXT)),
        ("since", TIME),
        ("submitted_at", TIME),
        ("why", TEXT),
    ]
)


def task_table(tasks: Sequence[Task]) -> pa.Table:
    """A row for each, in POOL_TASKS."""
    rows = [
        {
            "id": task.id,
            "name": task.name,
            "user": task.user,
            "nodes": task.nodes,
            "priority": format_level(task),
            "state": task.state,
            "turn": format_turn(task),
            "demotion_at": task.demotion_at,
            "suspended": task.suspended,
            "labels": task.labels,
            "since": task.since,
            "submitted_at": task.submitted_at,
            "why": task.why,
        }
        for task in in_order(tasks)
    ]
    return pa.Table.from_pylist(rows, POOL_TASKS)
