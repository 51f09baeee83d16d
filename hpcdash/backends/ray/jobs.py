"""Jobs of a Ray cluster: submissions to its Jobs API, and drivers that connected by themselves."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from hpcdash.backends.base import (
    DetailPart,
    HistoryPart,
    QueuePart,
    ReasonsPart,
    ScriptsPart,
)
from hpcdash.backends.job_detail import Activity, JobDetail, Script
from hpcdash.backends.queries import TEXT_BYTES, Answer, JobScope, ParsedTable, Query
from hpcdash.backends.ray.nodes import nodes_query, queues_query
from hpcdash.backends.ray.request_fields import REQUEST_FIELDS
from hpcdash.backends.ray.responses import (
    ACCELERATORS,
    MAX_ROWS,
    Response,
    amount,
    decode,
    format_value,
    json_table,
    refusal,
    require_first,
    require_success,
    resources,
    seconds,
    state_filter,
    state_rows,
    table,
    text,
    unreadable,
)
from hpcdash.backends.ray.slices import (
    METADATA_KEY,
    SliceRun,
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
_SUPERVISORS = state_filter("class_name", "JobSupervisor")
_SUPERVISORS_PATH = f"/api/v0/actors?detail=1&limit={MAX_ROWS}&{_SUPERVISORS}"
_SUPERVISORS_NAMESPACE = "SUPERVISOR_ACTOR_RAY_NAMESPACE"
_SUPERVISOR_NAME = "_ray_internal_job_actor_"
# A log's path in hpcdash: LOGS/NODE/FILE.
LOGS = "/ray-logs/"
LOG_SUFFIX = ".log"
# Metadata for hpcdash alone.
_OWN_PREFIXES = ("hpcdash_", "HPCDASH_")
# Parts of a request that the Jobs API does not return: its entrypoint's resources, and the command
# of its package.
RESOURCES_KEY = "hpcdash_resources"
SCRIPT_KEY = "hpcdash_script"
# Names of the entrypoint's resources in a submission, and Ray's kinds.
_RESOURCES = {
    "entrypoint_num_cpus": "CPU",
    "entrypoint_num_gpus": "GPU",
    "entrypoint_memory": "memory",
}
_MAX_AMOUNT = 1 << 62
_STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "STOPPED": JobState.CANCELLED,
    "SUCCEEDED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
}
_MAX_EXIT_CODE = 1 << 31
SWITCH_VARIABLES = ("HPCDASH_KILL_SWITCH", "HPCDASH_SAVE_SWITCH")
# The last lines of the driver's log follow.
_COMMAND_FAILED = "Job entrypoint command failed"
# Error types of the Jobs API, source: ray/job_submission JobErrorType.
_ERRORS = {
    "RUNTIME_ENV_SETUP_FAILURE": "the runtime environment could not be set up",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": "no node had room for the driver in time",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": "the driver could not be started",
    "JOB_SUPERVISOR_ACTOR_DIED": "the driver's node or supervisor died",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": "no node can run the driver",
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": "the command could not be started",
    "JOB_ENTRYPOINT_COMMAND_ERROR": "the command failed",
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
    """Parse rows of domain.schema.JOBS, newest first; Ray's own job ID also selects a submission.

    `since_seconds`: leave out jobs that ended earlier.
    """
    response, *others = require_first(answer)
    jobs = decode(answer, response)
    if not isinstance(jobs, list):
        raise unreadable(answer, "this is not a list of Ray jobs")
    held: dict[str, Mapping[str, float]] = {}
    for other in others:
        held |= _entrypoint_resources(answer, other)
    now = response.epoch_seconds
    ended_after = -math.inf if since_seconds is None or now is None else now - since_seconds
    rows = []
    rejected = []
    for job in jobs:
        row = job_row(job, held) if isinstance(job, dict) else None
        if row is None:
            rejected.append(str(job)[:400])
            continue
        if job_ids and not job_ids & {row["id"], row["_other_id"]}:
            continue
        if row["state"] in ENDED:
            is_selected = ended and (row["ends_at"] is None or row["ends_at"] >= ended_after)
        else:
            is_selected = active
        if is_selected:
            rows.append(row)
            is_running = row["state"] == JobState.RUNNING and row["started_at"] is not None
            if is_running and now is not None:
                row["elapsed_seconds"] = max(int(now) - row["started_at"], 0)
    rows.sort(key=lambda row: row["_number"], reverse=True)
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.JOBS), tuple(rejected))


def _entrypoint_resources(answer: Answer, response: Response) -> dict[str, Mapping[str, float]]:
    """Return the resources in the State API's list of supervisors, by the ID of the submission."""
    held = {}
    for actor in state_rows(answer, response):
        name = text(actor.get("name")) or ""
        # In another namespace, anyone may give a class and an actor these names.
        is_from_ray = actor.get("ray_namespace") == _SUPERVISORS_NAMESPACE
        if is_from_ray and name.startswith(_SUPERVISOR_NAME):
            held[name.removeprefix(_SUPERVISOR_NAME)] = resources(actor.get("required_resources"))
    return held


def recorded_resources(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources of a request's entrypoint by their names in the Jobs API.

    Anyone may have written them.
    """
    recorded = json_table(text(metadata.get(RESOURCES_KEY)) or "")
    return {name: recorded[name] for name in _RESOURCES if (amount(recorded.get(name)) or 0) > 0}


def _resource_columns(
    held: Mapping[str, float] | None, metadata: Mapping[str, Any]
) -> dict[str, int]:
    """Return the resources of a job's entrypoint, rounded up. Its tasks may have more."""
    if held is None:
        requested = recorded_resources(metadata)
        held = {_RESOURCES[name]: amount for name, amount in requested.items()}
    gpus = next((kind for kind in ACCELERATORS if held.get(kind)), "")
    kinds = {"cpus": "CPU", "gpus": gpus, "memory_bytes": "memory"}
    return {
        column: math.ceil(min(held[kind], _MAX_AMOUNT))
        for column, kind in kinds.items()
        if held.get(kind, 0) > 0
    }


def job_row(
    job: Mapping[str, Any], held: Mapping[str, Mapping[str, float]] = MappingProxyType({})
) -> dict[str, Any] | None:
    """Return a job in the columns of domain.schema.JOBS; None without an ID or a state.

    `held`: the known resources of entrypoints by the IDs of their submissions.
    """
    metadata = table(job.get("metadata"))
    submission_id = text(job.get("submission_id"))
    ray_job = text(job.get("job_id"))
    job_id = submission_id or ray_job
    native = text(job.get("status"))
    if job_id is None or native is None:
        return None
    state = _STATES.get(native, JobState.UNKNOWN)
    has_ended = state in ENDED
    is_waiting = state is JobState.PENDING
    started_at = seconds(job.get("start_time"))
    ends_at = seconds(job.get("end_time"))
    elapsed_seconds = None
    if started_at is not None and ends_at is not None and not is_waiting:
        elapsed_seconds = max(ends_at - started_at, 0)
    exit_code = job.get("driver_exit_code")
    has_exit_code = has_ended and type(exit_code) is int and abs(exit_code) < _MAX_EXIT_CODE
    names = (metadata.get("job_name"), metadata.get("name"), job.get("entrypoint"), "driver")
    node_id = text(job.get("driver_node_id"))
    log = f"{LOGS}{node_id}/job-driver-{job_id}{LOG_SUFFIX}"
    row: dict[str, Any] = dict.fromkeys(schema.JOBS.names)
    row |= {
        "id": job_id,
        "name": next(filter(None, map(text, names))),
        "state": state.value,
        "native_state": native,
        "reason": text(job.get("message" if is_waiting else "error_type")),
        "submitted_at": started_at,
        "started_at": None if is_waiting else started_at,
        "ends_at": ends_at if has_ended else None,
        "elapsed_seconds": elapsed_seconds,
        "node_list": text(table(job.get("driver_info")).get("node_ip_address")),
        "work_dir": text(table(job.get("runtime_env")).get("working_dir")),
        "stdout_path": log if node_id and submission_id else None,
        "exit_code": exit_code if has_exit_code else None,
        "_number": started_at or 0,
        "_tasks": 1,
        "_other_id": None if ray_job == job_id else ray_job,
    }
    return row | _resource_columns(held.get(job_id), metadata) | run_columns(metadata, state)


def _parse_native(answer: Answer) -> Mapping[str, str]:
    [response] = require_success(answer)
    job = decode(answer, response)
    if not isinstance(job, dict):
        raise unreadable(answer, "this is not a Ray job")
    if not job:
        raise NoSuchJob("Ray does not know this job", argv=answer.argv, status=answer.status)
    return {name: format_value(value) for name, value in job.items() if value is not None}


def _job_run(job: Mapping[str, Any]) -> tuple[SliceRun | None, JobState]:
    """Return a job's run on slices, None if it has none, and its state."""
    state = _STATES.get(str(job.get("status")), JobState.UNKNOWN)
    return slice_run(table(job.get("metadata"))), state


def _parse_workers(answer: Answer) -> ParsedTable:
    """Parse the workers of a job on slices as rows of domain.schema.STEPS."""
    [response] = require_success(answer)
    run, state = _job_run(table(decode(answer, response)))
    rows = [] if run is None else worker_rows(run, state, response.epoch_seconds)
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.STEPS))


def _parse_worker_jobs(answer: Answer, *, row: Mapping[str, Any]) -> ParsedTable:
    """Parse the workers of a job on slices as rows of domain.schema.JOBS, like array tasks."""
    [response] = require_success(answer)
    job = table(decode(answer, response))
    run, state = _job_run(job)
    columns = [] if run is None else task_rows(run, state, row["id"], row["stdout_path"])
    job_columns = job_row(job) or {}
    rows = [job_columns | worker_columns for worker_columns in columns]
    return ParsedTable(pa.Table.from_pylist(rows, schema=schema.JOBS))


def _parse_script(answer: Answer) -> Script:
    native = _parse_native(answer)
    metadata = json_table(native.get("metadata", ""))
    runtime_env = json_table(native.get("runtime_env", ""))
    parts = {"entrypoint": [native.get("entrypoint", "")]}
    for title, key in (
        ("command", SCRIPT_KEY),
        ("entrypoint resources", RESOURCES_KEY),
    ):
        if recorded := text(metadata.get(key)):
            parts[title] = [recorded.rstrip()]
    for title, values in (("runtime environment", runtime_env), ("metadata", metadata)):
        if values:
            formatted = _format_values(values)
            parts[title] = [f"{name} = {value}" for name, value in formatted.items()]
    # hpcdash writes the switches of a request into the metadata.
    variables = table(runtime_env.get("env_vars"))
    switches = [
        f"export {name}={shlex.quote(path)}"
        for name in SWITCH_VARIABLES
        if (path := text(variables.get(name)) or text(metadata.get(name)))
    ]
    if switches:
        parts["switches"] = switches
    lines = [line for title, part in parts.items() for line in (f"# {title}", *part, "")]
    return Script("\n".join(lines).rstrip() + "\n", "Ray's record of the job")


def _format_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Format the values of a JSON object by name, without those for hpcdash alone."""
    return {
        name: format_value(value)
        for name, value in sorted(values.items())
        if not name.startswith(_OWN_PREFIXES)
    }


class RayReasons(ReasonsPart):
    """Explanations of Ray's error types, and its messages on jobs."""

    def hint(self, state: str, reason: str | None) -> str:
        return _ERRORS.get(reason or "", "")

    def cause(self, native: Mapping[str, str]) -> str:
        """Return Ray's message; '' for a job whose command failed, as its log shows more."""
        message = native.get("message", "")
        state = _STATES.get(native.get("status", ""), JobState.UNKNOWN)
        if state not in (JobState.FAILED, JobState.PENDING) or message.startswith(_COMMAND_FAILED):
            return ""
        return refusal(message.encode())


class RayQueue(QueuePart):
    """Jobs and nodes in the lists of Ray's dashboard."""

    lists_ended = True

    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        """Return the query for all jobs: Ray knows no users."""
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
    """Finished jobs that the head node still lists: a restart removes them."""

    forgotten = "Ray no longer knows the job (after a restart of the head node, for example)"

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
    """One job of Ray's Jobs API."""

    def steps(self, row: Mapping[str, Any]) -> Query[ParsedTable] | None:
        """Return the query for the workers of a job on slices; None for any other job."""
        if not row["comment"]:
            return None
        return Query(("GET", job_path(str(row["id"]))), _parse_workers, cap_bytes=TEXT_BYTES)

    def workers(self, detail: JobDetail) -> Query[ParsedTable] | None:
        """Return the query for the workers of a job on slices, like array tasks; None for any other
        job.
        """
        if METADATA_KEY not in detail.native.get("metadata", ""):
            return None
        row = detail.job.to_pylist()[0]
        parse = partial(_parse_worker_jobs, row=row)
        return Query(("GET", job_path(row["id"])), parse, cap_bytes=TEXT_BYTES)

    def facts(self, native: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Return the job page's additional groups of facts."""
        driver = json_table(native.get("driver_info", ""))
        places = {
            "address": text(driver.get("node_ip_address")),
            "process": text(driver.get("pid")),
            "node ID": native.get("driver_node_id"),
            "Ray's job ID": native.get("job_id"),
        }
        groups = {
            "Driver": {label: value for label, value in places.items() if value},
            "Metadata": _format_values(json_table(native.get("metadata", ""))),
            "Runtime environment": _format_values(json_table(native.get("runtime_env", ""))),
        }
        return {title: values for title, values in groups.items() if values}

    def native(self, job_id: str) -> Query[Mapping[str, str]]:
        return Query(("GET", job_path(job_id)), _parse_native, cap_bytes=TEXT_BYTES)

    def activity(self, row: Mapping[str, Any], native: Mapping[str, str]) -> Query[Activity] | None:
        return activity_query(row, native)


class RayScripts(ScriptsPart):
    """Entrypoints of jobs, in place of scripts."""

    request_fields = REQUEST_FIELDS

    def query(self, job_id: str) -> Query[Script]:
        """Return the query for the entrypoint, runtime environment and metadata of a job."""
        return Query(("GET", job_path(job_id)), _parse_script, cap_bytes=TEXT_BYTES)

    history_query = query
