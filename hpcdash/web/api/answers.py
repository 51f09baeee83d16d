"""Answers for programs, as JSON and in Prometheus's format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from hpcdash.domain.rfc3339 import format_utc, table_to_json_rows
from hpcdash.domain.schema import JOBS, public_names
from hpcdash.domain.states import NodeState
from hpcdash.errors import (
    EXIT_UNREACHABLE,
    CommandError,
    ConfigError,
    HpcdashError,
    NoSuchJob,
    RateLimited,
    SchedulerRefused,
    UsageError,
    readable_command,
)
from hpcdash.services.jobs.launch_status import LaunchStatus
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launch_service import (
    KeyReused,
    LaunchState,
    NoLog,
    NoResult,
    NoSuchLaunch,
    NotAllowed,
    NotEnded,
    ResultTooLarge,
)

# A launch may be an array of a hundred thousand tasks; `tasks` counts them all.
MAX_JOBS_OF_A_LAUNCH = 1000
_USABLE = (NodeState.IDLE, NodeState.MIXED, NodeState.ALLOCATED)


class ErrorDetail(msgspec.Struct, kw_only=True, rename={"text": "words"}):
    """Error in the form of the command line: command, result, own output, next step."""

    message: str
    next_step: str | None = None
    exit_status: int
    command: str | None = None
    status: int | None = None
    text: str | None = None
    file: str | None = None
    line: int | None = None
    key: str | None = None


class Error(msgspec.Struct, kw_only=True):
    schema: int = 1
    error: ErrorDetail


class Envelope(msgspec.Struct, kw_only=True):
    """First fields of each answer about a cluster."""

    schema: int = 1
    cluster: str
    backend: str
    taken_at: str


class LaunchSummary(msgspec.Struct, kw_only=True, rename={"text": "words"}):
    """A launch. `tasks` counts its jobs by their state; null if unknown so far."""

    id: str
    name: str | None
    account: str
    status: LaunchStatus
    job_id: str | None
    submitted_at: str
    folder: str
    tasks: dict[str, int] | None
    exit_code: int | None
    exit_signal: int | None
    idempotency_key: str | None
    text: str | None


class LaunchAnswer(Envelope, kw_only=True):
    """A launch, with the rows of its queued and running jobs as in `hpcdash jobs`."""

    launch: LaunchSummary
    jobs: list[dict[str, Any]]


class LaunchesAnswer(Envelope, kw_only=True):
    launches: list[LaunchSummary]


class TerminationAnswer(Envelope, kw_only=True, rename={"text": "words"}):
    """Result of a termination; `done` is true if its job was cancelled.

    It is null if the scheduler's answer was lost. `text` is the scheduler's message.
    """

    id: str
    done: bool | None
    text: str


class SlotUsage(msgspec.Struct, kw_only=True):
    """Slots of one type.

    `unavailable` are on nodes that are down, drained or reserved; null is unknown.
    """

    slot_type: str
    gpu_type: str | None
    total: int
    used: int | None
    free: int | None
    unavailable: int


class ResourcesAnswer(Envelope, kw_only=True):
    """`node_states` counts nodes by their state; `nodes` are rows as in `hpcdash nodes`."""

    node_states: dict[str, int]
    slots: list[SlotUsage]
    nodes: list[dict[str, Any]]


class JobsAnswer(Envelope, kw_only=True):
    """Rows as in `hpcdash jobs`."""

    rejected_rows: int
    jobs: list[dict[str, Any]]


class LogPage(msgspec.Struct, kw_only=True):
    """Part of a log: the bytes from `offset` to `next_offset` as text.

    Invalid UTF-8 becomes U+FFFD.
    """

    schema: int = 1
    stream: str
    path: str
    offset: int
    next_offset: int
    size: int | None
    text: str


class CallFailure(msgspec.Struct, kw_only=True):
    """Exception of a function, with its traceback."""

    type: str
    message: str
    traceback: str


class ResultAnswer(msgspec.Struct, kw_only=True):
    """Result of the function of a launch, or of a task of its array.

    `failure` is its exception, if it raised one.
    """

    schema: int = 1
    id: str
    task: int | None
    path: str
    value: Any
    failure: CallFailure | None


class ServerHealth(msgspec.Struct, kw_only=True):
    """Health: `status` is `ok`, or `degraded` if the cluster did not answer the last query."""

    schema: int = 1
    status: str
    version: str


ANSWERS = (
    Error,
    LaunchAnswer,
    LaunchesAnswer,
    TerminationAnswer,
    ResourcesAnswer,
    JobsAnswer,
    LogPage,
    ResultAnswer,
    ServerHealth,
)


def summarize_launch(state: LaunchState) -> LaunchSummary:
    launch = state.launch
    row = state.rows[0] if len(state.rows) == 1 else None
    return LaunchSummary(
        id=launch.launch_id,
        name=launch.record.name or None,
        account=launch.account,
        status=state.status,
        job_id=launch.job_id or None,
        submitted_at=format_utc(launch.at),
        folder=launch.record.folder,
        tasks=None if state.tasks is None else dict(state.tasks),
        exit_code=launch.exit_code if row is None else row["exit_code"],
        exit_signal=launch.exit_signal if row is None else row["exit_signal"],
        idempotency_key=launch.key,
        text=launch.text or None,
    )


def job_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert the first rows of domain.schema.JOBS to JSON."""
    table = pa.Table.from_pylist(list(map(dict, rows[:MAX_JOBS_OF_A_LAUNCH])), JOBS)
    return table_to_json_rows(table, public_names(JOBS))


def summarize_slots(nodes: pa.Table) -> list[SlotUsage]:
    """Count the CPUs of all nodes, and their GPUs by type."""
    columns = ["state", "cpus", "cpus_used", "gpus", "gpus_used", "gpu_type"]
    rows = nodes.select(columns).to_pylist()
    slots = [_count_slots(rows, "cpus", "cpu", None)]
    gpu_types = {row["gpu_type"] for row in rows if row["gpus"]}
    for gpu_type in sorted(gpu_types, key=lambda name: name or ""):
        gpu_rows = [row for row in rows if row["gpu_type"] == gpu_type]
        slots.append(_count_slots(gpu_rows, "gpus", "gpu", gpu_type))
    return slots


def _count_slots(
    rows: Sequence[Mapping[str, Any]], column: str, slot_type: str, gpu_type: str | None
) -> SlotUsage:
    total = sum(row[column] or 0 for row in rows)
    usable = [row for row in rows if row["state"] in _USABLE]
    is_known = all(row[f"{column}_used"] is not None for row in rows if row[column])
    free = sum((row[column] or 0) - (row[f"{column}_used"] or 0) for row in usable)
    used = sum(row[f"{column}_used"] or 0 for row in rows)
    return SlotUsage(
        slot_type=slot_type,
        gpu_type=gpu_type,
        total=total,
        used=used if is_known else None,
        free=free if is_known else None,
        unavailable=sum(row[column] or 0 for row in rows if row["state"] not in _USABLE),
    )


# -- errors


def build_error(error: HpcdashError) -> Error:
    """Build an error with the fields that the command line shows."""
    detail = ErrorDetail(
        message=error.message, next_step=error.next_step or None, exit_status=error.exit_status
    )
    if isinstance(error, CommandError):
        detail.command = readable_command(error.argv) if error.argv else None
        detail.status = error.status
        detail.text = error.output or None
    elif isinstance(error, ConfigError):
        detail.file = error.file or None
        detail.line = error.line
        detail.key = error.key or None
    return Error(error=detail)


def http_status(error: HpcdashError) -> int:
    """Return the HTTP status of an error.

    404 missing, 403 not allowed, 409 refused in the present state, 413 too large, 422 impossible,
    429 too often, 503 no answer.
    """
    match error:
        case NoSuchLaunch() | NoSuchJob() | NoLog() | NoResult():
            return 404
        case NotAllowed():
            return 403
        case KeyReused() | NotEnded() | SchedulerRefused():
            return 409
        case ResultTooLarge():
            return 413
        case RateLimited():
            return 429
        case UsageError() | ConfigError():
            return 422
        case _:
            return 503 if error.exit_status == EXIT_UNREACHABLE else 409


# -- metrics


def format_metrics(
    session: ClusterSession,
    states: Iterable[LaunchState] | None,
    requests: Mapping[tuple[str, str, int], int],
) -> str:
    """Format metrics for Prometheus; `states` are None if the cluster did not answer.

    `requests` counts requests by method, route and status.
    """
    store = session.store
    is_up = store.connection_error is None and states is not None
    lines = _metric(
        "hpcdash_cluster_up",
        "gauge",
        "1 if the cluster's last answer succeeded, else 0.",
        {"": int(is_up)},
    )
    lines += _metric(
        "hpcdash_commands_total",
        "counter",
        "Commands sent to the cluster.",
        {"": store.budget.sent},
    )
    per_minute = {"": store.budget.per_minute}
    lines += _metric(
        "hpcdash_commands_last_minute", "gauge", "Commands sent in the last minute.", per_minute
    )
    if store.budget.last_seconds is not None:
        seconds = {"": round(store.budget.last_seconds, 6)}
        lines += _metric(
            "hpcdash_command_seconds", "gauge", "Response time of the last command.", seconds
        )
    if states is not None:
        counted = Counter(state.status for state in states)
        by_status = {f'{{status="{status}"}}': counted[status] for status in LaunchStatus}
        lines += _metric(
            "hpcdash_launches", "gauge", "Launches of this token's accounts, by status.", by_status
        )
    by_route = {
        f'{{method="{method}",route="{route}",status="{status}"}}': count
        for (method, route, status), count in sorted(requests.items())
    }
    lines += _metric("hpcdash_http_requests_total", "counter", "Requests answered.", by_route)
    return "".join(f"{line}\n" for line in lines)


def _metric(name: str, kind: str, text: str, values: Mapping[str, float]) -> list[str]:
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return [*head, *(f"{name}{labels} {value}" for labels, value in values.items())]
