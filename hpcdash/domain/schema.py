"""The Arrow columns of jobs, nodes and queues: a contract of parsers, services, views and JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import NoReturn

import pyarrow as pa

TEXT = pa.string()
# Few distinct values over many rows: states, users, queues.
WORD = pa.dictionary(pa.int32(), pa.string())
COUNT = pa.int64()
TIME = pa.timestamp("s", tz="UTC")


class UsageSource(StrEnum):
    """Who measured what a run used."""

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
            self._refuse()

    def _refuse(self) -> NoReturn:
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


JOBS = pa.schema(
    [
        ("id", TEXT),
        ("array_id", TEXT),
        ("array_task", TEXT),
        ("name", TEXT),
        ("user", WORD),
        ("account", WORD),
        ("queue", WORD),
        ("qos", WORD),
        ("state", WORD),
        ("native_state", WORD),
        ("reason", WORD),
        ("priority", COUNT),
        ("nodes", COUNT),
        ("cpus", COUNT),
        ("gpus", COUNT),
        ("memory_bytes", COUNT),
        ("elapsed_seconds", COUNT),
        ("limit_seconds", COUNT),
        ("submitted_at", TIME),
        ("eligible_at", TIME),
        ("started_at", TIME),
        ("ends_at", TIME),
        ("node_list", TEXT),
        ("work_dir", TEXT),
        ("stdout_path", TEXT),
        ("stderr_path", TEXT),
        ("dependency", TEXT),
        ("comment", TEXT),
        ("exit_code", COUNT),
        ("exit_signal", COUNT),
        # The job's number without task or component, for natural order and folding.
        ("_number", COUNT),
        # The first task this row holds; null for a job that is no array task.
        ("_task", COUNT),
        # How many jobs this row stands for: 1, or the pending tasks of an array.
        ("_tasks", COUNT),
        # The scheduler's own estimate for a job that has not started.
        ("_expected_start_at", TIME),
        # Another ID that the scheduler has for the job; null mostly.
        ("_other_id", TEXT),
    ]
)

# One row a run of a job: a requeued job has one for each time it ran. Names as in JOBS where they
# mean the same.
RUNS = pa.schema(
    [
        *(
            JOBS.field(name)
            for name in ("id", "array_id", "array_task", "name", "user", "account", "queue", "qos")
        ),
        *(
            JOBS.field(name)
            for name in ("state", "native_state", "nodes", "cpus", "gpus", "memory_bytes")
        ),
        *(JOBS.field(name) for name in ("elapsed_seconds", "limit_seconds", "priority")),
        *(JOBS.field(name) for name in ("submitted_at", "eligible_at", "started_at", "ends_at")),
        ("suspended_seconds", COUNT),
        *(JOBS.field(name) for name in ("node_list", "work_dir", "exit_code", "exit_signal")),
        # Summed over all processes of all steps.
        ("cpu_seconds_used", pa.float64()),
        # Of the step that used most, the sum of its tasks' peaks.
        ("memory_peak_bytes", COUNT),
        # Mean over the run and its GPUs, 0 to 1.
        ("gpu_use", pa.float64()),
        ("gpu_memory_peak_bytes", COUNT),
        # Where the four above come from: a UsageSource; null where none of them is known.
        ("usage_source", WORD),
        # 1 for a job's first run, as far back as was asked.
        ("run", COUNT),
        *(JOBS.field(name) for name in ("_number", "_task", "_tasks")),
        # The peak of the one task that used most.
        ("_task_memory_peak_bytes", COUNT),
        # What a site's programs wrote about the run for others to read, as it is; null mostly.
        ("_admin_comment", TEXT),
        ("_reason", WORD),
        ("_comment", TEXT),
    ]
)

# One row a step of one run: what was started with the job (the batch script, extern) or in it (a
# number).
STEPS = pa.schema(
    [
        ("id", TEXT),
        ("name", TEXT),
        *(JOBS.field(name) for name in ("state", "native_state", "nodes", "cpus")),
        ("tasks", COUNT),
        *(JOBS.field(name) for name in ("elapsed_seconds", "started_at", "ends_at", "node_list")),
        *(JOBS.field(name) for name in ("exit_code", "exit_signal")),
        *(RUNS.field(name) for name in ("cpu_seconds_used", "memory_peak_bytes")),
    ]
)

NODES = pa.schema(
    [
        ("name", TEXT),
        ("state", WORD),
        ("native_state", WORD),
        ("flags", pa.list_(pa.string())),
        ("reason", TEXT),
        ("reason_by", WORD),
        ("reason_since", TIME),
        ("queues", pa.list_(pa.string())),
        ("cpus", COUNT),
        ("cpus_used", COUNT),
        ("gpus", COUNT),
        ("gpus_used", COUNT),
        ("gpu_type", WORD),
        ("memory_bytes", COUNT),
        ("memory_used_bytes", COUNT),
        ("load", pa.float64()),
        ("features", pa.list_(pa.string())),
        # Jobs running on the node; null where only one's own jobs are known.
        ("jobs", COUNT),
    ]
)

QUEUES = pa.schema(
    [
        ("name", TEXT),
        ("available", pa.bool_()),
        ("default", pa.bool_()),
        # Longest time a job may ask for; null: no limit.
        ("limit_seconds", COUNT),
        ("nodes", COUNT),
        ("nodes_idle", COUNT),
        # Down, drained or otherwise not to be had.
        ("nodes_down", COUNT),
        ("cpus", COUNT),
        ("cpus_used", COUNT),
        ("gpus", COUNT),
        ("gpus_used", COUNT),
        ("jobs_running", COUNT),
        ("jobs_pending", COUNT),
        # Unused ones on unavailable nodes; null if the scheduler does not report that.
        ("_cpus_down", COUNT),
        ("_gpus_down", COUNT),
        # What becomes of a job there, where it is more than `available` tells: a word of
        # QueueStanding; the same in words; when a reservation's queue begins to start jobs; and
        # what keeps all of the server's jobs from starting.
        ("_standing", TEXT),
        ("_note", TEXT),
        ("_opens_at", TIME),
        ("_server_note", TEXT),
    ]
)


SHARES = pa.schema(
    [
        ("account", TEXT),
        # Null: the row is the account as a whole.
        ("user", TEXT),
        ("partition", TEXT),
        # Null: it shares as its parent does, or that is not told.
        ("raw_shares", COUNT),
        ("normalized_shares", pa.float64()),
        # In the scheduler's units, decayed as the site has it.
        ("raw_usage", COUNT),
        ("normalized_usage", pa.float64()),
        ("effective_usage", pa.float64()),
        # 0-1, the more the sooner a job starts.
        ("fair_share", pa.float64()),
        # Of its siblings' whose is higher goes first; infinite where nothing was used.
        ("level_fair_share", pa.float64()),
        # Whether it is one of one's own associations.
        ("own", pa.bool_()),
        ("_id", TEXT),
        # How far below the root, and whether it is one of one's own or above one.
        ("_depth", COUNT),
        ("_on_own_path", pa.bool_()),
    ]
)

LIMITS = pa.schema(
    [
        # association, account, qos, queue or server, and which.
        ("scope", WORD),
        ("name", TEXT),
        # For whom together: job, user, account, group, project or all.
        ("per", WORD),
        # That user, account, group or project; null for a job's and for all.
        ("subject", TEXT),
        # A word of domain.limits.RESOURCES, or the scheduler's own; its unit is in its name.
        ("resource", WORD),
        ("maximum", COUNT),
        # Null: not known, or nothing that is used up (a job's).
        ("used", COUNT),
        ("free", COUNT),
        # Queues that apply it to all of their jobs; null where a job has to choose it.
        ("queues", pa.list_(pa.string())),
        # The scheduler's own name for it.
        ("native", TEXT),
        ("_id", TEXT),
        # Which jobs use it up where the scheduler does not say how much is used; all null: they
        # cannot be told.
        ("_of_user", TEXT),
        ("_of_queue", TEXT),
        ("_of_qos", TEXT),
        ("_of_account", TEXT),
    ]
)

RESERVATIONS = pa.schema(
    [
        ("name", TEXT),
        # active, upcoming, ended, or the scheduler's own word.
        ("state", WORD),
        # Whether one may use it; null: not known.
        ("allowed", pa.bool_()),
        ("starts_at", TIME),
        # Null: it does not end.
        ("ends_at", TIME),
        ("duration_seconds", COUNT),
        ("nodes", COUNT),
        ("node_list", TEXT),
        ("queue", TEXT),
        # A name with a leading "-" is kept out.
        ("users", pa.list_(pa.string())),
        ("groups", pa.list_(pa.string())),
        ("accounts", pa.list_(pa.string())),
        ("flags", pa.list_(pa.string())),
        # How a job asks for it, and what its flags mean, in words.
        ("_option", TEXT),
        ("_note", TEXT),
    ]
)


def public_names(schema: pa.Schema) -> list[str]:
    """The columns of the JSON contract, in its order."""
    return [name for name in schema.names if not name.startswith("_")]


def empty(schema: pa.Schema) -> pa.Table:
    """A table of no rows."""
    return schema.empty_table()
