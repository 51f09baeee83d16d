"""Tables of a cluster, each declared once for the dashboard, the command line, filters, the
configuration and the API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from hpcdash.domain.job_text import format_exit_status, format_where
from hpcdash.domain.limits import (
    format_limited,
    format_per,
    format_resource,
    format_share_tree,
    format_who,
    format_whose,
)

# A word has few distinct values over many rows: states, users, queues.
FieldType: TypeAlias = Literal["text", "word", "count", "real", "time", "flag", "names"]
# A sign, a space and the longest word.
STATE_WIDTH = 12


class Kind(StrEnum):
    """Snapshots of a cluster. The user's own jobs and all users' jobs are polled at different
    paces.
    """

    MINE = "mine"
    EVERYONE = "everyone"
    NODES = "nodes"
    QUEUES = "queues"
    HISTORY = "history"
    HISTORY_EVERYONE = "history-everyone"
    SHARES = "shares"
    LIMITS = "limits"
    RESERVATIONS = "reservations"


class ColumnSpec(Struct, frozen=True):
    """A displayed column.

    `field` is the field that it shows and sorts by, if that is not its name. In the dashboard it is
    `width` cells wide, or at least that if it is `flexible`, and grows with its values up to
    `longest`. If space is short, columns with the highest `priority` are dropped first; 0 is never
    dropped. `title` is its heading there, `heading` on the command line. `total` is the field that
    it is a part of: `12/64`. `text` formats the cell from the row's fields, or only from `inputs`.
    A view may draw the cells differently.
    """

    name: str
    width: int
    priority: int
    field: str = ""
    title: str = ""
    heading: str = ""
    align: Literal["left", "right", ""] = ""
    flexible: bool = False
    longest: int = 0
    muted: bool = False
    total: str = ""
    text: Callable[[Mapping[str, Any]], str] | None = None
    inputs: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Field that it shows."""
        return self.field or self.name


class TableSpec(Struct, frozen=True, eq=False):
    """A table: its fields in JSON order, and its columns in the order of the column chooser.

    `name` is also the name of its command, view and capability. Fields that begin with `_` are not
    part of the JSON contract; `identity` is the one that identifies a row. `paces` has a key of
    [poll], or seconds, for each snapshot: the user's own first. `shown` are the dashboard's default
    columns; those in `optional` are hidden while they have no values. `printed` are the columns of
    the command line, if they differ; of these, the ones in `whole` are never truncated and the ones
    in `dropped` are dropped first. Raises ValueError if `identity` or `whole` is not a field.
    """

    name: str
    fields: Mapping[str, FieldType]
    columns: tuple[ColumnSpec, ...]
    shown: tuple[str, ...]
    identity: str = "name"
    summary: str = ""
    paces: Mapping[Kind, str | float] = {}
    optional: frozenset[str] = frozenset()
    printed: tuple[str, ...] = ()
    whole: tuple[str, ...] = ("name",)
    dropped: tuple[str, ...] = ()
    json_key: str = ""
    empty: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in (self.identity, *self.whole) if name not in self.fields]
        if unknown:
            raise ValueError(f"table {self.name}: identity or whole: no field {unknown[0]}")

    def kind(self, *, everyone: bool = False) -> Kind:
        """Return the snapshot kind: the user's own rows, or all users'."""
        kinds = tuple(self.paces)
        return kinds[-1] if everyone else kinds[0]

    @property
    def public_names(self) -> list[str]:
        """Return the fields of the JSON contract, in order."""
        return [name for name in self.fields if not name.startswith("_")]

    @property
    def names(self) -> list[str]:
        """Return all names that select a column."""
        return [*dict.fromkeys((*self.public_names, *(column.name for column in self.columns)))]

    def column(self, name: str) -> ColumnSpec | None:
        """Return the column with this name, or the first that shows this field."""
        return next(
            (column for column in self.columns if column.name == name),
            next((column for column in self.columns if column.key == name), None),
        )

    def sort_field(self, name: str) -> str:
        """Return the sort field for a column or field name."""
        column = None if name in self.fields else self.column(name)
        return name if column is None else column.key

    def select(self, *names: str) -> tuple[ColumnSpec, ...]:
        """Return columns by name."""
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in names)


def _limited(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: format_limited(str(row["resource"]), row[key])


_STATE = ColumnSpec("state", STATE_WIDTH, 0)
JOBS = TableSpec(
    "jobs",
    summary="List jobs in the queue.",
    paces={Kind.MINE: "mine_seconds", Kind.EVERYONE: "everyone_seconds"},
    fields={
        "id": "text",
        "array_id": "text",
        "array_task": "text",
        "name": "text",
        "user": "word",
        "account": "word",
        "queue": "word",
        "qos": "word",
        "state": "word",
        "native_state": "word",
        "reason": "word",
        "priority": "count",
        "nodes": "count",
        "cpus": "count",
        "gpus": "count",
        "memory_bytes": "count",
        "elapsed_seconds": "count",
        "limit_seconds": "count",
        "submitted_at": "time",
        "eligible_at": "time",
        "started_at": "time",
        "ends_at": "time",
        "node_list": "text",
        "work_dir": "text",
        "stdout_path": "text",
        "stderr_path": "text",
        "dependency": "text",
        "comment": "text",
        "exit_code": "count",
        "exit_signal": "count",
        # The job's number without task or component, for natural order and folding.
        "_number": "count",
        # First task in this row; null if the job is not an array task.
        "_task": "count",
        # Number of jobs in this row: 1, or the pending tasks of an array.
        "_tasks": "count",
        # The scheduler's own estimate for a job that has not started.
        "_expected_start_at": "time",
        # Alternative ID of the job; usually null.
        "_other_id": "text",
    },
    columns=(
        ColumnSpec("id", 6, 0, flexible=True, longest=18),
        ColumnSpec("letter", 1, 3, "_letter", " "),
        ColumnSpec("pinned", 3, 3, title="PIN"),
        ColumnSpec("name", 14, 1, flexible=True, longest=60),
        ColumnSpec("note", 8, 4, longest=24),
        ColumnSpec("user", 5, 2, longest=12),
        ColumnSpec("account", 9, 9, muted=True),
        ColumnSpec("queue", 5, 5, longest=14),
        ColumnSpec("qos", 8, 9, muted=True),
        _STATE,
        ColumnSpec("elapsed", 8, 2, "elapsed_seconds"),
        ColumnSpec("limit", 8, 6, "limit_seconds"),
        ColumnSpec("left", 8, 3, "ends_at"),
        ColumnSpec("used", 17, 2, "elapsed_seconds", "USED      LEFT", align="left"),
        ColumnSpec("nodes", 4, 7, title="N"),
        ColumnSpec("cpus", 5, 6, title="CPU"),
        ColumnSpec("gpus", 4, 5, title="GPU"),
        ColumnSpec("memory", 7, 8, "memory_bytes", "MEM"),
        ColumnSpec(
            "where",
            14,
            2,
            "node_list",
            "NODES / WHY",
            "NODES/(REASON)",
            flexible=True,
            text=format_where,
            inputs=("node_list", "reason", "state"),
        ),
        ColumnSpec("reason", 18, 6),
        ColumnSpec("priority", 8, 8, title="PRIO"),
        ColumnSpec("submitted", 10, 8, "submitted_at"),
        ColumnSpec("eligible", 10, 9, "eligible_at"),
        ColumnSpec("started", 10, 7, "started_at"),
        ColumnSpec("ends", 10, 7, "ends_at"),
        ColumnSpec("starts", 10, 7, "_expected_start_at"),
        ColumnSpec("dependency", 20, 9),
        ColumnSpec("loss", 18, 4, "_loss"),
        ColumnSpec("comment", 20, 9),
        ColumnSpec("work_dir", 24, 9, title="DIRECTORY"),
    ),
    identity="id",
    shown=(
        "id",
        "name",
        "user",
        "queue",
        "state",
        "elapsed",
        "left",
        "nodes",
        "cpus",
        "gpus",
        "where",
    ),
    printed=(
        "id",
        "state",
        "name",
        "user",
        "queue",
        "gpus",
        "cpus",
        "nodes",
        "elapsed",
        "limit",
        "where",
    ),
    whole=("id", "state"),
    dropped=("cpus", "nodes", "limit", "user", "gpus", "queue"),
)


def _on_clusters(spec: TableSpec, name: str) -> TableSpec:
    """Return the table of jobs on several clusters: of no snapshot, joined from each cluster's."""
    return TableSpec(
        name,
        fields={"cluster": "word", **spec.fields, "_row_id": "text"},
        columns=(ColumnSpec("cluster", 12, 0, longest=18), *spec.columns),
        identity="_row_id",
        shown=("cluster", *(name for name in spec.shown if name != "user")),
        printed=("cluster", *spec.printed),
        whole=("cluster", *spec.whole),
        dropped=spec.dropped,
        json_key="jobs",
    )


ALL_JOBS = _on_clusters(JOBS, "all")
NODES = TableSpec(
    "nodes",
    summary="List nodes: load, free resources, drain reasons.",
    empty="The scheduler lists no nodes. hpcdash doctor checks the setup.",
    paces={Kind.NODES: "nodes_seconds"},
    fields={
        "name": "text",
        "state": "word",
        "native_state": "word",
        "flags": "names",
        "reason": "text",
        "reason_by": "word",
        "reason_since": "time",
        "queues": "names",
        "cpus": "count",
        "cpus_used": "count",
        "gpus": "count",
        "gpus_used": "count",
        "gpu_type": "word",
        "memory_bytes": "count",
        "memory_used_bytes": "count",
        "load": "real",
        "features": "names",
        # Jobs running on the node; null if only the user's own jobs are known.
        "jobs": "count",
    },
    columns=(
        ColumnSpec("name", 8, 0, title="NODE", longest=24),
        _STATE,
        ColumnSpec("flags", 14, 8),
        ColumnSpec("cpus", 13, 1, "cpus_used", "CPU", total="cpus"),
        ColumnSpec("gpus", 13, 2, "gpus_used", "GPU", total="gpus"),
        ColumnSpec("type", 6, 6, "gpu_type", heading="GPU_TYPE", longest=14),
        ColumnSpec("memory", 16, 4, "memory_used_bytes", total="memory_bytes"),
        ColumnSpec("load", 6, 5),
        ColumnSpec("jobs", 5, 6),
        ColumnSpec("check", 5, 6, "_check", longest=20),
        ColumnSpec("queues", 14, 7),
        ColumnSpec("features", 18, 9, muted=True),
        ColumnSpec("reason", 16, 3, flexible=True, longest=80),
        ColumnSpec("by", 8, 8, "reason_by"),
        ColumnSpec("since", 8, 8, "reason_since"),
    ),
    shown=(
        "name",
        "state",
        "cpus",
        "gpus",
        "type",
        "memory",
        "load",
        "jobs",
        "check",
        "queues",
        "reason",
    ),
    optional=frozenset({"load", "queues", "_check"}),
    printed=(
        "name",
        "state",
        "flags",
        "queues",
        "cpus",
        "gpus",
        "type",
        "memory",
        "load",
        "jobs",
        "reason",
    ),
    whole=("name", "state"),
    dropped=("flags", "load", "queues", "type", "jobs", "memory"),
)
QUEUES = TableSpec(
    "queues",
    summary="List queues (partitions): limits, free resources, jobs.",
    empty="The scheduler lists no queues. hpcdash doctor checks the setup.",
    paces={Kind.QUEUES: "nodes_seconds"},
    fields={
        "name": "text",
        "available": "flag",
        "default": "flag",
        # Longest time a job may request; null: no limit.
        "limit_seconds": "count",
        "nodes": "count",
        "nodes_idle": "count",
        # Down, drained or otherwise unavailable.
        "nodes_down": "count",
        "cpus": "count",
        "cpus_used": "count",
        "gpus": "count",
        "gpus_used": "count",
        "jobs_running": "count",
        "jobs_pending": "count",
        # Unused ones on unavailable nodes; null if the scheduler does not report that.
        "_cpus_down": "count",
        "_gpus_down": "count",
        # What becomes of a job there, where it is more than `available` tells: a word of
        # QueueStanding; the same in words; when a reservation's queue begins to start jobs; and
        # what keeps all of the server's jobs from starting.
        "_standing": "text",
        "_note": "text",
        "_opens_at": "time",
        "_server_note": "text",
    },
    columns=(
        ColumnSpec("name", 12, 0, title="QUEUE", flexible=True, longest=30),
        ColumnSpec("open", 9, 0, "available", "STATE", "AVAILABLE"),
        ColumnSpec("usable", 6, 1, "_usable", "USABLE", align="right"),
        ColumnSpec("limit", 8, 2, "limit_seconds"),
        ColumnSpec("nodes", 5, 4),
        ColumnSpec("idle", 5, 3, "nodes_idle"),
        ColumnSpec("down", 5, 5, "nodes_down"),
        ColumnSpec("cpus", 21, 2, "cpus_used", "CPU", total="cpus"),
        ColumnSpec("gpus", 19, 1, "gpus_used", "GPU", total="gpus"),
        ColumnSpec("running", 7, 2, "jobs_running"),
        ColumnSpec("pending", 7, 2, "jobs_pending"),
    ),
    shown=(
        "name",
        "open",
        "usable",
        "limit",
        "nodes",
        "idle",
        "down",
        "cpus",
        "gpus",
        "running",
        "pending",
    ),
    # PBS does not bind queues to nodes.
    optional=frozenset({"nodes", "nodes_idle", "nodes_down", "cpus_used", "gpus_used", "_usable"}),
    printed=(
        "name",
        "open",
        "default",
        "limit",
        "nodes",
        "idle",
        "down",
        "cpus",
        "gpus",
        "running",
        "pending",
    ),
    dropped=("default", "down", "open", "nodes", "limit", "cpus", "gpus"),
)
HISTORY = TableSpec(
    "history",
    paces={Kind.HISTORY: "history_seconds", Kind.HISTORY_EVERYONE: "history_seconds"},
    fields=JOBS.fields,
    json_key="jobs",
    columns=(
        *JOBS.select("id", "pinned", "name", "note", "user", "account", "queue", "qos", "state"),
        ColumnSpec(
            "exit",
            10,
            2,
            "exit_code",
            align="left",
            flexible=True,
            text=format_exit_status,
            inputs=("exit_code", "exit_signal"),
        ),
        ColumnSpec("elapsed", 8, 3, "elapsed_seconds"),
        ColumnSpec("ended", 10, 2, "ends_at", heading="ENDS"),
        *JOBS.select("limit", "submitted", "started", "nodes", "cpus", "gpus", "memory"),
        *JOBS.select("comment", "work_dir"),
        ColumnSpec("cpu_use", 6, 5, title="CPU %", align="right"),
        ColumnSpec("memory_use", 6, 5, title="MEM %", align="right"),
        ColumnSpec("gpu_use", 6, 5, title="GPU %", align="right"),
        ColumnSpec("time_use", 6, 5, title="TIME %", align="right"),
        ColumnSpec("nodes_at", 10, 7, "node_list", "NODES", flexible=True),
    ),
    identity="id",
    shown=(
        "id",
        "name",
        "user",
        "queue",
        "state",
        "exit",
        "elapsed",
        "ended",
        "cpus",
        "gpus",
        "nodes_at",
    ),
    printed=(
        "id",
        "state",
        "name",
        "user",
        "queue",
        "gpus",
        "cpus",
        "nodes",
        "exit",
        "elapsed",
        "limit",
        "ended",
    ),
    whole=JOBS.whole,
    dropped=JOBS.dropped,
)
ALL_HISTORY = _on_clusters(HISTORY, "all-history")
SHARES = TableSpec(
    "shares",
    summary="List fair shares: shares, usage and the priority factor.",
    empty="The scheduler lists no fair shares.",
    # Shares change slowly, and the jobs header always shows them.
    paces={Kind.SHARES: 600.0},
    fields={
        "account": "text",
        # Null: the row is the account as a whole.
        "user": "text",
        "partition": "text",
        # Null: inherited from the parent, or not reported.
        "raw_shares": "count",
        "normalized_shares": "real",
        # In the scheduler's units, with the site's decay.
        "raw_usage": "count",
        "normalized_usage": "real",
        "effective_usage": "real",
        # 0-1; higher starts sooner.
        "fair_share": "real",
        # Siblings with a higher value run first; infinite if nothing was used.
        "level_fair_share": "real",
        # Whether it is one of the user's associations.
        "own": "flag",
        "_id": "text",
        # Depth below the root, and whether it is on the path to one of the user's associations.
        "_depth": "count",
        "_on_own_path": "flag",
    },
    columns=(
        ColumnSpec("account", 30, 0, "", "ACCOUNT/USER", "ACCOUNT/USER", text=format_share_tree),
        ColumnSpec("shares", 7, 3, "raw_shares"),
        ColumnSpec("of_parent", 8, 2, "normalized_shares", "SHARE"),
        ColumnSpec("usage", 8, 1, "effective_usage", "USED"),
        ColumnSpec("raw_usage", 9, 4),
        ColumnSpec("fair_share", 14, 0, align="left"),
        ColumnSpec("level", 8, 2, "level_fair_share", "LEVEL FS", "LEVEL_FS"),
        ColumnSpec("norm_usage", 8, 5, "normalized_usage", "OF ALL"),
    ),
    identity="_id",
    shown=("account", "shares", "of_parent", "usage", "raw_usage", "fair_share", "level"),
    optional=frozenset({"level_fair_share"}),
    printed=(
        "account",
        "own",
        "shares",
        "of_parent",
        "raw_usage",
        "usage",
        "fair_share",
        "level",
    ),
    whole=("account",),
    dropped=("raw_usage", "of_parent", "level"),
)
LIMITS = TableSpec(
    "limits",
    summary="List your limits and their usage.",
    paces={Kind.LIMITS: "nodes_seconds"},
    fields={
        # association, account, qos, queue or server, and which.
        "scope": "word",
        "name": "text",
        # Scope of the limit: job, user, account, group, project or all.
        "per": "word",
        # That user, account, group or project; null for a job's and for all.
        "subject": "text",
        # A word of domain.limits.RESOURCES, or the scheduler's own; its unit is in its name.
        "resource": "word",
        "maximum": "count",
        # Null: unknown, or a limit per job.
        "used": "count",
        "free": "count",
        # Queues that apply it to all their jobs; null if a job must choose it.
        "queues": "names",
        # The scheduler's own name for it.
        "native": "text",
        "_id": "text",
        # Jobs that use it up if the scheduler does not report its use; all null: unknown.
        "_of_user": "text",
        "_of_queue": "text",
        "_of_qos": "text",
        "_of_account": "text",
    },
    columns=(
        ColumnSpec("scope", 11, 2, "", "LIMIT OF", "LIMIT_OF", text=format_whose),
        ColumnSpec("name", 10, 0, flexible=True, longest=32),
        ColumnSpec("per", 16, 1, "", "FOR", "FOR", text=format_per),
        ColumnSpec("resource", 26, 0, text=lambda row: format_resource(str(row["resource"]))),
        ColumnSpec("used", 7, 0, text=_limited("used")),
        ColumnSpec("limit", 8, 0, "maximum", text=_limited("maximum")),
        ColumnSpec("free", 16, 1, align="left", text=_limited("free")),
        ColumnSpec("queues", 8, 4, longest=24),
        ColumnSpec("native", 16, 5, title="SCHEDULER'S NAME", muted=True),
    ),
    identity="_id",
    shown=("scope", "name", "per", "resource", "used", "limit", "free"),
    printed=("scope", "per", "resource", "used", "limit", "free", "native"),
    whole=("resource",),
    dropped=("native", "free"),
    empty="No limits apply to you. hpcdash queues shows what queues allow.",
)
RESERVATIONS = TableSpec(
    "reservations",
    summary="List reservations: times, nodes and your access.",
    paces={Kind.RESERVATIONS: "nodes_seconds"},
    fields={
        "name": "text",
        # active, upcoming, ended, or the scheduler's own word.
        "state": "word",
        # Whether the user may use it; null: unknown.
        "allowed": "flag",
        "starts_at": "time",
        # Null: it does not end.
        "ends_at": "time",
        "duration_seconds": "count",
        "nodes": "count",
        "node_list": "text",
        "queue": "text",
        # A name with a leading "-" is excluded.
        "users": "names",
        "groups": "names",
        "accounts": "names",
        "flags": "names",
        # How a job requests it, and the meaning of its flags, as text.
        "_option": "text",
        "_note": "text",
    },
    columns=(
        ColumnSpec("name", 11, 0, title="RESERVATION", flexible=True, longest=30),
        ColumnSpec("state", 11, 0),
        ColumnSpec("allowed", 7, 0, "", "FOR YOU", "FOR_YOU"),
        ColumnSpec("starts", 10, 1, "starts_at", "BEGINS", "BEGINS"),
        ColumnSpec("ends", 10, 1, "ends_at"),
        ColumnSpec("lasts", 8, 5, "duration_seconds"),
        ColumnSpec("nodes", 5, 3),
        ColumnSpec("node_list", 10, 4, longest=24),
        ColumnSpec("queue", 8, 6, longest=16),
        ColumnSpec("who", 26, 2, "users", text=format_who),
        ColumnSpec("flags", 10, 7, flexible=True, muted=True),
    ),
    shown=("name", "state", "allowed", "starts", "ends", "nodes", "node_list", "who", "flags"),
    whole=("name", "state"),
    dropped=("flags", "nodes", "who"),
    empty="The scheduler has no reservations.",
)
# Where a job could run: of no snapshot, searched on request.
PLACES = TableSpec(
    "places",
    fields={
        "cluster": "word",
        "queue": "word",
        # Null: the scheduler's default; of a refusal, all of them.
        "account": "word",
        "qos": "word",
        # Whether it takes the job, and ever starts it; null: unknown.
        "accepts": "flag",
        # Null: unknown.
        "starts_at": "time",
        # Who made the estimate: the scheduler, or what hpcdash computed it from.
        "estimated_by": "text",
        # Waits of similar jobs: the median, and the longest of 80%.
        "wait_seconds": "count",
        "most_wait_seconds": "count",
        # Nodes with room for the job's share: now, in service, in all.
        "nodes_free": "count",
        "nodes_in_service": "count",
        "nodes_able": "count",
        "limit_seconds": "count",
        "reason": "text",
        # A change with which it would start sooner; null for none.
        "sooner": "text",
        "_start": "text",
        "_account": "text",
        "_qos": "text",
        "_id": "text",
    },
    columns=(
        ColumnSpec("start", 14, 0, "_start", "STARTS", "STARTS"),
        ColumnSpec("cluster", 8, 2, longest=16),
        ColumnSpec("queue", 10, 0, flexible=True, longest=24),
        ColumnSpec("account", 10, 2, "_account", longest=16),
        ColumnSpec("qos", 8, 3, "_qos", "QOS", "QOS", longest=14),
        ColumnSpec("free", 7, 1, "nodes_free", "NODES", "NODES", "right", total="nodes_able"),
        ColumnSpec("limit", 8, 4, "limit_seconds"),
        ColumnSpec("by", 10, 3, "estimated_by", "ESTIMATE", "ESTIMATE", longest=28),
        ColumnSpec("reason", 30, 0, title="WHY", heading="WHY", flexible=True, longest=100),
    ),
    identity="_id",
    shown=("start", "cluster", "queue", "account", "qos", "free", "limit", "by", "reason"),
    printed=("start", "cluster", "queue", "account", "qos", "free", "by", "reason"),
    whole=("queue",),
    dropped=("by", "free", "qos", "account", "cluster"),
    empty="No known queues. hpcdash doctor checks the setup.",
)
# File systems and quotas: of no snapshot, queried on request.
_PRINTED_STORAGE = (
    *("path", "used", "limit", "free", "files", "max_files", "full"),
    *("growth", "saves", "owner", "name", "problem"),
)
STORAGE = TableSpec(
    "storage",
    fields={
        "path": "text",
        # The mount point, file system or device.
        "name": "text",
        # Holder of the quota (user alice, group lab); null: the whole file system.
        "owner": "text",
        # Of a quota, the lower of its limits; null: unreported, or no limit.
        "used_bytes": "count",
        "limit_bytes": "count",
        "free_bytes": "count",
        "used_inodes": "count",
        "limit_inodes": "count",
        # The tools that reported it; site: the site's own command.
        "source": "word",
        # From at least three readings over six hours; null: unknown, or it does not grow.
        "daily_growth_bytes": "count",
        # Null: not within a year.
        "full_at": "time",
        # What the checkpoints of running jobs write, as far as it is known.
        "daily_checkpoint_bytes": "count",
        # Why the usage is unknown; null if it is known.
        "problem": "text",
    },
    columns=(
        ColumnSpec("path", 16, 0, flexible=True, longest=60),
        ColumnSpec("used", 9, 0, "used_bytes"),
        ColumnSpec("limit", 9, 1, "limit_bytes"),
        ColumnSpec("free", 9, 0, "free_bytes"),
        ColumnSpec("share", 14, 1, "used_bytes", "USED %", align="left"),
        ColumnSpec("files", 9, 2, "used_inodes"),
        ColumnSpec("max_files", 9, 3, "limit_inodes"),
        ColumnSpec("owner", 12, 3, longest=24),
        ColumnSpec("name", 12, 2, title="FILE SYSTEM", heading="FILE_SYSTEM", longest=40),
        ColumnSpec("source", 8, 4, muted=True, longest=24),
        ColumnSpec("full", 10, 1, "full_at"),
        ColumnSpec("growth", 9, 3, "daily_growth_bytes", "A DAY", heading="A_DAY"),
        ColumnSpec("saves", 9, 3, "daily_checkpoint_bytes", "SAVES A DAY", heading="SAVES_A_DAY"),
        ColumnSpec("problem", 12, 1, longest=60),
    ),
    identity="path",
    shown=("path", "share", *_PRINTED_STORAGE[1:]),
    optional=frozenset(
        {
            "owner",
            "problem",
            "used_inodes",
            "limit_inodes",
            "full_at",
            "daily_growth_bytes",
            "daily_checkpoint_bytes",
        }
    ),
    printed=_PRINTED_STORAGE,
    whole=("path",),
    dropped=("name", "max_files", "files", "owner", "growth", "saves"),
    empty="No known paths. Specify one: hpcdash storage /scratch/me",
)
# A folder of a job: of no snapshot, listed on request.
FILES = TableSpec(
    "files",
    fields={
        # Control characters and bytes that are not UTF-8 are visible.
        "name": "text",
        # file, folder, link or other: links are not followed.
        "kind": "word",
        # Of a file.
        "size_bytes": "count",
        "modified_at": "time",
        "owner": "word",
        # whole or broken; null: it is none, or of an unknown format.
        "checkpoint": "word",
        # Format of a checkpoint; of a job's own folder, what the job uses it for.
        "format": "word",
        # Why a checkpoint is broken.
        "problem": "text",
        # Of a link.
        "target": "text",
        "path": "text",
        # The path's bytes, percent-encoded.
        "encoded_path": "text",
    },
    columns=(
        ColumnSpec("name", 16, 0, flexible=True, longest=80),
        ColumnSpec("size", 9, 0, "size_bytes"),
        ColumnSpec("modified", 10, 1, "modified_at"),
        ColumnSpec("kind", 6, 2, muted=True),
        ColumnSpec("checkpoint", 10, 1),
        ColumnSpec("format", 11, 2, longest=24),
        ColumnSpec("owner", 8, 3, longest=16),
        ColumnSpec("problem", 12, 1, longest=48),
        ColumnSpec("target", 12, 3, longest=60),
        ColumnSpec("path", 20, 4, longest=80),
    ),
    identity="encoded_path",
    shown=(
        *("name", "size", "modified", "kind", "checkpoint", "format"),
        *("owner", "problem", "target"),
    ),
    optional=frozenset({"checkpoint", "format", "problem", "target"}),
    printed=(
        *("name", "size", "modified", "kind", "checkpoint", "format"),
        *("owner", "problem", "target"),
    ),
    whole=("name",),
    dropped=("owner", "target", "kind"),
    empty="The folder is empty.",
)
# Files that were copied to or from a cluster.
TRANSFERS = TableSpec(
    "transfers",
    fields={
        "name": "text",
        # copied, resumed, unchanged, skipped (no regular file), left or failed.
        "result": "word",
        "size_bytes": "count",
        "problem": "text",
        "path": "text",
        "to": "text",
    },
    columns=(
        ColumnSpec("name", 16, 0, flexible=True, longest=80),
        ColumnSpec("result", 9, 0),
        ColumnSpec("size", 9, 0, "size_bytes"),
        ColumnSpec("problem", 12, 0, longest=80),
    ),
    shown=("name", "result", "size", "problem"),
    optional=frozenset({"problem"}),
    whole=("name",),
    empty="There are no files to copy.",
)
# Their columns and order can be configured, and their filters bookmarked.
MAIN_TABLES = (JOBS, NODES, QUEUES, HISTORY)
# What the site allows.
SITE_TABLES = (SHARES, LIMITS, RESERVATIONS)
TABLES: Mapping[str, TableSpec] = {spec.name: spec for spec in (*MAIN_TABLES, *SITE_TABLES)}
SNAPSHOT_TABLES: Mapping[Kind, TableSpec] = {
    kind: spec for spec in TABLES.values() for kind in spec.paces
}
