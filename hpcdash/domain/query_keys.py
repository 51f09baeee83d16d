"""What a filter may call the columns of a table: their own names, and what people call them. Reads no filter."""

from __future__ import annotations

import pyarrow as pa

from hpcdash.domain.schema import public_names

# What people call a column; the first that the table has is meant.
ALIASES: dict[str, tuple[str, ...]] = {
    "limit": ("limit_seconds",),
    "elapsed": ("elapsed_seconds",),
    "time": ("elapsed_seconds",),
    "memory": ("memory_bytes",),
    "mem": ("memory_bytes",),
    "memory_used": ("memory_used_bytes",),
    "partition": ("queue", "queues"),
    "queue": ("queues", "name"),
    "status": ("state",),
    "native": ("native_state",),
    "submitted": ("submitted_at",),
    "eligible": ("eligible_at",),
    "started": ("started_at",),
    "ends": ("ends_at",),
    "since": ("reason_since",),
    "node": ("node_list", "name"),
    "nodelist": ("node_list",),
    "job": ("id",),
    "jobid": ("id",),
    "array": ("array_id",),
    "task": ("array_task",),
    "cpu": ("cpus",),
    "gpu": ("gpus",),
    "exit": ("exit_code",),
    "signal": ("exit_signal",),
    "flag": ("flags",),
    "feature": ("features",),
    "dir": ("work_dir",),
    "stdout": ("stdout_path",),
    "stderr": ("stderr_path",),
}


def keys_of(schema: pa.Schema) -> dict[str, str]:
    """Every key that a filter on this schema may use, and the column it means."""
    columns = public_names(schema)
    keys = {name: name for name in columns}
    for alias, targets in ALIASES.items():
        target = next((name for name in targets if name in columns), None)
        if target is not None:
            keys.setdefault(alias, target)
    return keys
