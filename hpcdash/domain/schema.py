"""The Arrow schemas of the tables, and of runs and steps: what parsers fill and services read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from importlib.abc import MetaPathFinder
from types import ModuleType

import pyarrow as pa

from hpcdash.domain import tables

TEXT = pa.string()
# Few distinct values over many rows: states, users, queues.
WORD = pa.dictionary(pa.int32(), pa.string())
COUNT = pa.int64()
TIME = pa.timestamp("s", tz="UTC")


class UsageSource(StrEnum):
    """Origin of a run's usage figures."""

    ACCOUNTING = "accounting"
    JOBSTATS = "jobstats"
    # By hpcdash, over a part of the run: its mean stands for the whole, and its peaks may be too
    # low.
    WATCHED = "watched"
    # The GPUs were watched, the rest was accounted.
    ACCOUNTING_AND_WATCHED = "accounting+watched"


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == "pandas":
            raise ImportError("pandas is for analysis, not for tables")


def without_pandas() -> None:
    """Let pyarrow try, and fail; whoever needs pandas imports it afterwards."""
    if "pandas" in sys.modules:
        return
    refusing = _NoPandas()
    sys.meta_path.insert(0, refusing)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(refusing)


# Every table is made with a schema from here.
without_pandas()
NO_TEXT = pa.scalar(None, pa.string())
NO_NUMBER = pa.scalar(None, pa.int64())


_ARROW_TYPES: dict[tables.FieldType, pa.DataType] = {
    "text": TEXT,
    "word": WORD,
    "count": COUNT,
    "real": pa.float64(),
    "time": TIME,
    "flag": pa.bool_(),
    "names": pa.list_(pa.string()),
}


@cache
def arrow_schema(spec: tables.TableSpec) -> pa.Schema:
    """Return the schema of a table's rows."""
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in spec.fields.items()])


SCHEMAS: dict[tables.Kind, pa.Schema] = {
    kind: arrow_schema(spec) for kind, spec in tables.SNAPSHOT_TABLES.items()
}
JOBS = arrow_schema(tables.JOBS)
ALL_JOBS = arrow_schema(tables.ALL_JOBS)
NODES = arrow_schema(tables.NODES)
QUEUES = arrow_schema(tables.QUEUES)
SHARES = arrow_schema(tables.SHARES)
LIMITS = arrow_schema(tables.LIMITS)
RESERVATIONS = arrow_schema(tables.RESERVATIONS)
PLACES = arrow_schema(tables.PLACES)
STORAGE = arrow_schema(tables.STORAGE)
FILES = arrow_schema(tables.FILES)
TRANSFERS = arrow_schema(tables.TRANSFERS)

# One row per run of a job: a requeued job has several. Names are those of JOBS for the same values.
RUNS = pa.schema(
    [
        *map(
            JOBS.field, ("id", "array_id", "array_task", "name", "user", "account", "queue", "qos")
        ),
        *map(JOBS.field, ("state", "native_state", "nodes", "cpus", "gpus", "memory_bytes")),
        *map(JOBS.field, ("elapsed_seconds", "limit_seconds", "priority")),
        *map(JOBS.field, ("submitted_at", "eligible_at", "started_at", "ends_at")),
        ("suspended_seconds", COUNT),
        *map(JOBS.field, ("node_list", "work_dir", "exit_code", "exit_signal")),
        # Summed over all processes of all steps.
        ("cpu_seconds_used", pa.float64()),
        # The sum of the tasks' peaks in the step with the largest sum.
        ("memory_peak_bytes", COUNT),
        # Mean over the run and its GPUs, 0 to 1.
        ("gpu_use", pa.float64()),
        ("gpu_memory_peak_bytes", COUNT),
        # The source of the four above, a UsageSource; null if all are unknown.
        ("usage_source", WORD),
        # 1 for a job's first run, as far back as the query goes.
        ("run", COUNT),
        *map(JOBS.field, ("_number", "_task", "_tasks")),
        # The largest peak of a task.
        ("_task_memory_peak_bytes", COUNT),
        # The unchanged notes of a site's programs on the run; mostly null.
        ("_admin_comment", TEXT),
        ("_reason", WORD),
        ("_comment", TEXT),
    ]
)

# One row per step of a run: started with the job (the batch script, extern) or in it (a number).
STEPS = pa.schema(
    [
        ("id", TEXT),
        ("name", TEXT),
        *map(JOBS.field, ("state", "native_state", "nodes", "cpus")),
        ("tasks", COUNT),
        *map(JOBS.field, ("elapsed_seconds", "started_at", "ends_at", "node_list")),
        *map(JOBS.field, ("exit_code", "exit_signal")),
        *map(RUNS.field, ("cpu_seconds_used", "memory_peak_bytes")),
    ]
)


def public_names(schema: pa.Schema) -> list[str]:
    """Return the columns of the JSON contract, in its order."""
    return [name for name in schema.names if not name.startswith("_")]


def empty(schema: pa.Schema) -> pa.Table:
    """Return a table without rows."""
    return schema.empty_table()
