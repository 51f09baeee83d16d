"""The tasks of a shared pool as a table, in the order in which they have or get nodes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from hpcdash.domain.schema import arrow_schema
from hpcdash.domain.tables import STATE_WIDTH, ColumnSpec, TableSpec
from hpcdash.services.share.state import Task, sort_tasks
from hpcdash.services.share.text import format_level, format_turn

POOL_TASKS = TableSpec(
    "share",
    fields={
        "id": "text",
        "name": "text",
        "user": "word",
        "nodes": "count",
        "priority": "word",
        "state": "word",
        "turn": "text",
        "demotion_at": "time",
        "suspended": "count",
        "labels": "names",
        "since": "time",
        "submitted_at": "time",
        "why": "text",
    },
    columns=(
        ColumnSpec("id", 6, 0, title="JOB", flexible=True, longest=16),
        ColumnSpec("user", 6, 2, longest=12),
        ColumnSpec("name", 8, 1, flexible=True, longest=28),
        ColumnSpec("nodes", 5, 2),
        ColumnSpec("priority", 8, 1, longest=19),
        ColumnSpec("state", STATE_WIDTH, 0),
        ColumnSpec("turn", 5, 3),
        ColumnSpec("demotion", 9, 4, "demotion_at", "NORMAL IN"),
        ColumnSpec("labels", 6, 5, longest=20),
        ColumnSpec("suspended", 9, 6),
        ColumnSpec("since", 10, 7),
        ColumnSpec("submitted", 10, 8, "submitted_at"),
        ColumnSpec("why", 16, 1, flexible=True),
    ),
    shown=(
        "id",
        "user",
        "name",
        "nodes",
        "priority",
        "state",
        "turn",
        "demotion",
        "suspended",
        "labels",
        "why",
    ),
)


def task_table(tasks: Sequence[Task]) -> pa.Table:
    """Return a table of tasks with the fields of POOL_TASKS."""
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
        for task in sort_tasks(tasks)
    ]
    return pa.Table.from_pylist(rows, arrow_schema(POOL_TASKS))
