"""Jobs of a Ray cluster: those submitted by its Jobs API, and the drivers that connected by
themselves.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from hpcdash.backends.base import (
    DetailPart,
    HistoryPart,
    LogsPart,
    QueuePart,
    ReasonsPart,
    ScriptsPart,
)
from hpcdash.backends.job_detail import Activity, JobDetail, LogFiles, Script
from hpcdash.backends.queries import TEXT_BYTES, Answer, JobScope, ParsedTable, Query
from hpcdash.backends.ray.nodes import nodes_query, queues_query
from hpcdash.backends.ray.responses import (
    ACCELERATORS,
    MAX_ROWS,
    Response,
    amount,
    decode,
    format_value,
    read_responses,
    refusal,
    require_success,
    resources,
    seconds,
    state_rows,
    table,
    text,
    unreadable,
)
from hpcdash.backends.ray.slices import (
    METADATA_KEY,
    PART,
    part_pattern,
    run_columns,
    slice_run,
    task_rows,
    worker_rows,
)
from hpcdash.backends.ray.tasks import activity_query, node_activity_query
from hpcdash.domain import schema
from hpcdash.domain.states import ENDED, JobState
from hpcdash.errors import NoSuchJob

JOBS_PATH = "/api/jobs/"
# Each submission has an actor that starts its entrypoint and has its resources, which the Jobs API
# leaves out. Source: ray/dashboard/modules/job/job_manager.py.
_SUPERVISORS_PATH = (
    f"/api/v0/actors?detail=1&limit={MAX_ROWS}"
    "&filter_keys=class_name&filter_predicates=%3D&filter_values=JobSupervisor"
)
_SUPERVISORS_NAMESPACE = "SUPERVISOR_ACTOR_RAY_NAMESPACE"
_SUPERVISOR_NAME = "_ray_internal_job_actor_"
# A log's path as hpcdash names it: LOGS/NODE/FILE.
LOGS = "/ray-logs/"
_LOG_END = ".log"
# Metadata that hpcdash keeps for itself begin so.
_OWN = ("hpcdash_", "HPCDASH_")
# Parts of a request that the Jobs API does not return: its entrypoint's resources, and the command
# of its package.
RESOURCES_KEY, SCRIPT_KEY = "hpcdash_resources", "hpcdash_script"
# Names of the entrypoint's resources in a submission, and Ray's kinds.
_RESOURCES = {
    "entrypoint_num_cpus": "CPU",
    "entrypoint_num_gpus": "GPU",
    "entrypoint_memory": "memory",
}
_MOST = 1 << 62
_STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "STOPPED": JobState.CANCELLED,
    "SUCCEEDED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
}
_DRIVER = "DRIVER"
_LARGEST_EXIT = 1 << 31
SWITCH_VARIABLES = ("HPCDASH_KILL_SWITCH", "HPCDASH_SAVE_SWITCH")
# The last lines of the driver's log follow.
_COMMAND_FAILED = "Job entrypoint command failed"
# Error types of the Jobs API, source: ray/job_submission JobErrorType.
_ERRORS = {
    "RUNTIME_ENV_SETUP_FAILURE": "its runtime environment could not be set up",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": "no node had room for its driver in time",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": "its driver could not be started",
    "JOB_SUPERVISOR_ACTOR_DIED": "its driver's node or supervisor died",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": "no node can run its driver",
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": "its command could not be started",
    "JOB_ENTRYPOINT_COMMAND_ERROR": "its command failed",
}


def job_path(job_id: str) -> str:
    return JOBS_PATH + quote(job_id, safe="")


def parse_jobs(
    answer: Answer,
    *,
    job_ids: frozenset[str] = frozenset(),
    active: bool = True,
    ended: bool = False,
    since_seconds: int | None = None,
) -> ParsedTable:
    """Rows of domain.schema.JOBS, newest first. Ray's own job ID finds a submission too."""
    response, *others = read_responses(answer)
    if not response.is_success:
        require_success(answer)
    listed = decode(answer, response)
    if not isinstance(listed, list):
        raise unreadable(answer, "this is not a list of Ray jobs")
    held = {name: found for other in others for name, found in _entrypoint_resources(answer, other)}
    rows = []
    rejected = []
    for job in listed:
        row = job_row(job, held) if isinstance(job, dict) else None
        if row is None:
            rejected.append(str(job)[:400])
        elif not job_ids or row["id"] in job_ids or row["_other_id"] in job_ids:
            rows.append(row)
    now = response.epoch_seconds
    remaining = [
        row
        for row in rows
        if (ended if row["state"] in ENDED else active)
        and (since_seconds is None or now is None or (row["ends_at"] or now) >= now - since_seconds)
    ]
    if now is not None:
        for row in remaining:
            if row["state"] == JobState.RUNNING and row["started_at"] is not None:
                row["elapsed_seconds"] = max(int(now) - row["started_at"], 0)
    remaining.sort(key=lambda row: row["_number"], reverse=True)
    return ParsedTable(
        pa.Table.from_pylist(remaining, schema=_PLAIN).cast(schema.JOBS), tuple(rejected)
    )


def _arrow(field: pa.Field) -> pa.DataType:
    """Return the type that Python values are converted to first.

    A dictionary column is built from text, times from whole seconds.
    """
    if pa.types.is_timestamp(field.type):
        return pa.int64()
    return pa.string() if pa.types.is_dictionary(field.type) else field.type


_PLAIN = pa.schema([(field.name, _arrow(field)) for field in schema.JOBS])


def _entrypoint_resources(
    answer: Answer, response: Response
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield (submission ID, resources by kind) of each supervisor in the State API's answer."""
    for actor in state_rows(answer, response):
        name = text(actor.get("name")) or ""
        # Anyone may call a class and an actor so, in another namespace.
        is_ray_s = actor.get("ray_namespace") == _SUPERVISORS_NAMESPACE
        if is_ray_s and name.startswith(_SUPERVISOR_NAME):
            yield name.removeprefix(_SUPERVISOR_NAME), resources(actor.get("required_resources"))


def noted_resources(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources of a request's entrypoint by their names in the Jobs API. Anyone may
    have written them."""
    try:
        noted = table(json.loads(text(metadata.get(RESOURCES_KEY)) or "{}"))
    except (ValueError, RecursionError):
        return {}
    return {name: noted[name] for name in _RESOURCES if (amount(noted.get(name)) or 0) > 0}


def _resource_columns(
    held: Mapping[str, float] | None, metadata: Mapping[str, Any]
) -> dict[str, int]:
    """Return what a job's entrypoint holds, a part counted as a whole. Its tasks may hold more."""
    if held is None:
        held = {
            _RESOURCES[name]: requested for name, requested in noted_resources(metadata).items()
        }
    gpus = next((kind for kind in ACCELERATORS if held.get(kind)), "")
    kinds = {"cpus": "CPU", "gpus": gpus, "memory_bytes": "memory"}
    amounts = {column: held.get(kind, 0) for column, kind in kinds.items()}
    return {column: math.ceil(min(one, _MOST)) for column, one in amounts.items() if one > 0}


def job_row(
    job: Mapping[str, Any], held: Mapping[str, Mapping[str, float]] = MappingProxyType({})
) -> dict[str, Any] | None:
    """One job in the columns of domain.schema.JOBS; None for what has no id or no state.

    `held` are the known resources of entrypoints by the IDs of their submissions.
    """
    driver, metadata, runtime = (
        table(job.get(key)) for key in ("driver_info", "metadata", "runtime_env")
    )
    job_id = text(job.get("submission_id")) or text(job.get("job_id"))
    native = text(job.get("status"))
    if job_id is None or native is None:
        return None
    state = _STATES.get(native, JobState.UNKNOWN)
    begun = seconds(job.get("start_time"))
    ends = seconds(job.get("end_time"))
    has_ended = state in ENDED
    is_waiting = state is JobState.PENDING
    code = job.get("driver_exit_code")
    log = text(job.get("driver_node_id"))
    entrypoint = text(job.get("entrypoint")) or ""
    row = dict.fromkeys(schema.JOBS.names)
    row |= {
        "id": job_id,
        "name": text(metadata.get("job_name"))
        or text(metadata.get("name"))
        or entrypoint
        or "driver",
        "state": state.value,
        "native_state": native,
        "reason": text(job.get("message")) if is_waiting else text(job.get("error_type")),
        "submitted_at": begun,
        "started_at": None if is_waiting else begun,
        "ends_at": ends if has_ended else None,
        "elapsed_seconds": None
        if begun is None or ends is None or is_waiting
        else max(ends - begun, 0),
        "node_list": text(driver.get("node_ip_address")),
        "work_dir": text(runtime.get("working_dir")),
        "stdout_path": f"{LOGS}{log}/job-driver-{job_id}{_LOG_END}"
        if log and text(job.get("submission_id"))
        else None,
        "exit_code": code
        if has_ended and type(code) is int and abs(code) < _LARGEST_EXIT
        else None,
        "_number": begun or 0,
        "_tasks": 1,
        "_other_id": number if (number := text(job.get("job_id"))) != job_id else None,
    }
    return row | _resource_columns(held.get(job_id), metadata) | run_columns(metadata, state)


def _parse_native(answer: Answer) -> Mapping[str, str]:
    [response] = require_success(answer)
    found = decode(answer, response)
    if not isinstance(found, dict):
        raise unreadable(answer, "this is not a Ray job")
    if not found:
        raise NoSuchJob("Ray does not know this job", argv=answer.argv, status=answer.status)
    return {name: format_value(value) for name, value in found.items() if value is not None}


def _parse_workers(answer: Answer) -> ParsedTable:
    [response] = require_success(answer)
    job = table(decode(answer, response))
    run = slice_run(table(job.get("metadata")))
    state = _STATES.get(str(job.get("status")), JobState.UNKNOWN)
    rows = [] if run is None else worker_rows(run, state, response.epoch_seconds)
    plain = pa.schema([(field.name, _arrow(field)) for field in schema.STEPS])
    return ParsedTable(pa.Table.from_pylist(rows, schema=plain).cast(schema.STEPS))


def _parse_ended_workers(answer: Answer, *, row: Mapping[str, Any]) -> ParsedTable:
    [response] = require_success(answer)
    job = table(decode(answer, response))
    run = slice_run(table(job.get("metadata")))
    state = _STATES.get(str(job.get("status")), JobState.UNKNOWN)
    whole = job_row(job) or {}
    rows = (
        []
        if run is None
        else [{**whole, **one} for one in task_rows(run, state, row["id"], row["stdout_path"])]
    )
    return ParsedTable(pa.Table.from_pylist(rows, schema=_PLAIN).cast(schema.JOBS))


def _json_table(written: str) -> Mapping[str, Any]:
    try:
        return table(json.loads(written or "{}"))
    except (ValueError, RecursionError):
        return {}


def _parse_script(answer: Answer) -> Script:
    native = _parse_native(answer)
    lines = ["# entrypoint", native.get("entrypoint", ""), ""]
    metadata = _json_table(native.get("metadata", ""))
    for title, key in (
        ("what it runs", SCRIPT_KEY),
        ("resources of its entrypoint", RESOURCES_KEY),
    ):
        if noted := text(metadata.get(key)):
            lines += [f"# {title}", noted.rstrip(), ""]
    for title, key in (("runtime environment", "runtime_env"), ("metadata", "metadata")):
        if found := _json_table(native.get(key, "")):
            shown = [
                f"{name} = {format_value(value)}"
                for name, value in sorted(found.items())
                if not name.startswith(_OWN)
            ]
            lines += [f"# {title}", *shown, ""]
    if switches := _switches(native):
        lines += [
            "# switches",
            *(f"export {name}={shlex.quote(path)}" for name, path in switches.items()),
            "",
        ]
    return Script("\n".join(lines).rstrip() + "\n", "Ray's record of the job")


def _switches(native: Mapping[str, str]) -> dict[str, str]:
    """The variables that name a job's switches, of its runtime environment or, as hpcdash notes
    them, its metadata.
    """
    given = table(_json_table(native.get("runtime_env", "")).get("env_vars"))
    noted = _json_table(native.get("metadata", ""))
    found = {name: text(given.get(name)) or text(noted.get(name)) for name in SWITCH_VARIABLES}
    return {name: path for name, path in found.items() if path is not None}


class RayReasons(ReasonsPart):
    """Ray's messages on jobs and the errors it names."""

    def hint(self, state: str, reason: str | None) -> str:
        return _ERRORS.get(reason or "", "")

    def cause(self, native: Mapping[str, str]) -> str:
        """Ray's message; '' for a job whose command failed, as its log shows more."""
        message = native.get("message", "")
        state = _STATES.get(native.get("status", ""), JobState.UNKNOWN)
        if state not in (JobState.FAILED, JobState.PENDING) or message.startswith(_COMMAND_FAILED):
            return ""
        return refusal(message.encode())


class DriverLogs(LogsPart):
    """The drivers' logs, which Ray's dashboard streams."""

    def files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        """The driver's log, to which both of its streams go."""
        path = detail.job["stdout_path"][0].as_py()
        if path:
            return LogFiles(path, None)
        if detail.native.get("type") == _DRIVER:
            return LogFiles(
                None, None, "This driver connected by itself: its output is where it was started"
            )
        return LogFiles(None, None, "Its driver has no node yet")

    def request(self, path: str) -> str:
        """Behind the path of a driver's log may stand the part of it that is requested, as of
        slices.log_parts.
        """
        node, slash, name = path.removeprefix(LOGS).partition("/")
        if not path.startswith(LOGS) or not slash or not node or not name:
            return ""
        # An id may hold any character.
        whole, part_name, part = name.rpartition(f"{_LOG_END}{PART}")
        pattern = part_pattern(part) if part_name else ""
        if pattern:
            name = f"{whole}{_LOG_END}"
        file = f"node_id={quote(node, safe='')}&filename={quote(name, safe='')}"
        request = f"/api/v0/logs/stream?{file}&lines=-1&interval=1"
        return f"{request}#{quote(pattern, safe='')}" if pattern else request


class RayQueue(QueuePart):
    """The jobs and nodes that Ray's dashboard lists."""

    lists_ended = True

    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        """All jobs are one list there; Ray knows no users."""
        includes_ended = scope.ended or bool(scope.job_ids)
        parse = partial(
            parse_jobs, job_ids=frozenset(scope.job_ids), active=True, ended=includes_ended
        )
        return Query(("GET", JOBS_PATH, _SUPERVISORS_PATH), parse)

    def nodes(self) -> Query[ParsedTable]:
        return nodes_query()

    def queues(self) -> Query[ParsedTable]:
        return queues_query()

    def node_activity(self, node: str) -> Query[Activity]:
        return node_activity_query(node)


class RayHistory(HistoryPart):
    """Ended jobs that the head node still lists: it forgets them with a restart."""

    forgotten = "Ray no longer knows it, as after a restart of its head node"

    def jobs(
        self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
    ) -> Query[ParsedTable]:
        parse = partial(
            parse_jobs,
            job_ids=frozenset(job_ids),
            active=bool(job_ids),
            ended=True,
            since_seconds=None if job_ids else since_seconds,
        )
        return Query(("GET", JOBS_PATH, _SUPERVISORS_PATH), parse)

    def native(self, job_id: str) -> Query[Mapping[str, str]]:
        return RayDetail().native(job_id)


class RayDetail(DetailPart):
    """A job as Ray's Jobs API reports it."""

    def steps(self, row: Mapping[str, Any]) -> Query[ParsedTable] | None:
        """The workers of a job on slices, as steps; None of a job without."""
        if not row["comment"]:
            return None
        return Query(("GET", job_path(str(row["id"]))), _parse_workers, cap_bytes=TEXT_BYTES)

    def workers(self, detail: JobDetail) -> Query[ParsedTable] | None:
        """The workers of a job on slices as an array's tasks are; None of a job without."""
        row = detail.job.to_pylist()[0]
        if METADATA_KEY not in detail.native.get("metadata", ""):
            return None
        return Query(
            ("GET", job_path(row["id"])),
            partial(_parse_ended_workers, row=row),
            cap_bytes=TEXT_BYTES,
        )

    def facts(self, native: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Return the job page's additional groups of facts."""
        driver = _json_table(native.get("driver_info", ""))
        where = {
            "address": text(driver.get("node_ip_address")),
            "process": text(driver.get("pid")),
            "node ID": native.get("driver_node_id"),
            "Ray's job ID": native.get("job_id"),
        }
        metadata, runtime = (
            _json_table(native.get(key, "")) for key in ("metadata", "runtime_env")
        )
        groups = {
            "Driver": {label: value for label, value in where.items() if value},
            "Metadata": {
                name: format_value(value)
                for name, value in sorted(metadata.items())
                if not name.startswith(_OWN)
            },
            "Runtime environment": {
                name: format_value(value) for name, value in sorted(runtime.items())
            },
        }
        return {title: pairs for title, pairs in groups.items() if pairs}

    def native(self, job_id: str) -> Query[Mapping[str, str]]:
        return Query(("GET", job_path(job_id)), _parse_native, cap_bytes=TEXT_BYTES)

    def activity(self, row: Mapping[str, Any], native: Mapping[str, str]) -> Query[Activity] | None:
        return activity_query(row, native)


class RayScripts(ScriptsPart):
    """Entrypoints of jobs, in place of scripts."""

    def query(self, job_id: str) -> Query[Script]:
        """The entrypoint and runtime environment of a job, in place of its script."""
        return Query(("GET", job_path(job_id)), _parse_script, cap_bytes=TEXT_BYTES)

    history_query = query
