"""Logs of a Ray job besides its driver's: of its workers, its setup, and Ray on its nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.job_detail import JobDetail, LogFiles, OtherLog
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.jobs import LOGS, DriverLogs, job_path
from hpcdash.backends.ray.requests import logged_result
from hpcdash.backends.ray.responses import (
    MAX_ROWS,
    Response,
    decode,
    number,
    read_responses,
    require_success,
    state_rows,
    table,
    text,
    truncation_note,
)
from hpcdash.backends.ray.slices import METADATA_KEY, log_parts, slice_run
from hpcdash.backends.ray.tasks import format_state, job_tasks_query
from hpcdash.domain.text import counted

_NODES_PATH = f"/api/v0/nodes?limit={MAX_ROWS}"
_MAX_TITLES = 3
# Nodes whose raylet's log is listed.
_MAX_NODES = 100
_WORKER_ID = re.compile(r"[0-9a-f]{16,64}")
_FILE = re.compile(r"[^/]+\.(out|err)")
_SHORT_ID = 8


class _Worker(Struct):
    """A worker process: where it is, what it ran, and what it runs."""

    node: str
    worker: str
    pid: int | None
    files: dict[str, str] = field(default_factory=dict)
    # Names of its tasks and its actor, in the order they began; how each state is called that a
    # task of it is in.
    names: dict[str, None] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)


def _parts(answer: Answer, driver_log: str, detail: JobDetail) -> tuple[OtherLog, ...]:
    response, *others = read_responses(answer)
    if not response.is_success:
        require_success(answer)
    run = slice_run(table(table(decode(answer, response)).get("metadata")))
    parts = tuple(
        OtherLog(name, title, LogFiles(path, None))
        for name, title, path in (() if run is None else log_parts(run, driver_log))
    )
    return (*parts, *_ray_logs(answer, others, detail.native, {} if run is None else run.nodes))


def parse_worker_logs(
    answer: Answer, ray_job: str, native: Mapping[str, str]
) -> tuple[OtherLog, ...]:
    """Parse one log per worker, that of the first task first.

    Its file gives the name where no task does.
    """
    response, *others = read_responses(answer)
    if not response.is_success:
        require_success(answer)
    tasks = sorted(
        state_rows(answer, response), key=lambda one: number(one.get("creation_time_ms")) or 0
    )
    # The task that creates an actor reports no worker; the tasks that the actor runs do.
    actors = {
        str(task.get("actor_id")): (text(task.get("name")) or "").partition(":")[0]
        for task in tasks
        if task.get("type") == "ACTOR_CREATION_TASK"
    }
    workers: dict[tuple[str, str], _Worker] = {}
    for task in tasks:
        node = text(task.get("node_id"))
        worker_id = text(task.get("worker_id"))
        if node is None or worker_id is None or not _WORKER_ID.fullmatch(worker_id):
            continue
        worker = workers.setdefault((node, worker_id), _Worker(node, worker_id, None))
        worker.pid = worker.pid or number(task.get("worker_pid"))
        if actor := actors.get(str(task.get("actor_id"))):
            worker.names.setdefault(actor)
        name = text(task.get("name")) or text(task.get("func_or_class_name")) or "task"
        worker.names.setdefault(name)
        state = format_state(str(task.get("state")))
        worker.states[state] = worker.states.get(state, 0) + 1
        worker.files |= _task_files(task)
    nodes = {node for node, _ in workers}
    logs = [_log(worker, ray_job) for worker in workers.values()]
    if logs and (note := truncation_note(answer, response, "tasks")):
        logs[-1] = replace(logs[-1], title=f"{logs[-1].title} · {note}")
    return (
        *logs,
        *_setup_log(native, ray_job),
        *_ray_logs(answer, others, native, nodes),
    )


def _ray_logs(
    answer: Answer, responses: Sequence[Response], native: Mapping[str, str], used: Collection[str]
) -> Iterator[OtherLog]:
    """The logs of the raylet on each living node of a job (`used`: IDs or addresses), and the
    GCS.
    """
    used = {*used, native.get("driver_node_id", "")}
    nodes = [
        (node_id, address, node.get("is_head_node") is True)
        for response in responses
        for node in state_rows(answer, response)
        if node.get("state") == "ALIVE"
        and (node_id := text(node.get("node_id")))
        and _WORKER_ID.fullmatch(node_id)
        if (address := text(node.get("node_ip")))
    ]
    job_tasks_query = [node for node in nodes if node[0] in used or node[1] in used]
    for node_id, address, _ in job_tasks_query[:_MAX_NODES]:
        more = f", one of {len(job_tasks_query)}: {_MAX_NODES} are listed" * (
            len(job_tasks_query) > _MAX_NODES
        )
        yield _ray_log(f"raylet@{address}", f"Ray on node {address}{more}", node_id, "raylet")
    for node_id, address, is_head in nodes:
        if is_head:
            title = f"Ray's control service on node {address}"
            yield _ray_log("gcs", title, node_id, "gcs_server")


def _ray_log(name: str, title: str, node_id: str, process: str) -> OtherLog:
    folder = f"{LOGS}{node_id}/{process}"
    return OtherLog(name, title, LogFiles(f"{folder}.out", f"{folder}.err"), (process,))


def _task_files(task: Mapping[str, Any]) -> dict[str, str]:
    reported = table(task.get("task_log_info"))
    found = {}
    for key in ("stdout_file", "stderr_file"):
        name = (text(reported.get(key)) or "").rpartition("/")[2]
        if _FILE.fullmatch(name):
            found[key] = name
    return found


def _log(worker: _Worker, ray_job: str) -> OtherLog:
    usual = f"worker-{worker.worker}-{ray_job}-{worker.pid or 0}"
    folder = f"{LOGS}{worker.node}/"
    names = list(worker.names)
    shown = ", ".join(names[:_MAX_TITLES]) + (
        f" and {len(names) - _MAX_TITLES} more" * (len(names) > _MAX_TITLES)
    )
    states = ", ".join(f"{count} {state}" for state, count in worker.states.items())
    where = (
        f"pid {worker.pid} on node {worker.node[:_SHORT_ID]}"
        if worker.pid
        else f"node {worker.node[:_SHORT_ID]}"
    )
    tasks = counted(sum(worker.states.values()), "task")
    return OtherLog(
        worker.worker[:_SHORT_ID],
        f"{shown} · {tasks}: {states} · {where}",
        LogFiles(
            folder + worker.files.get("stdout_file", f"{usual}.out"),
            folder + worker.files.get("stderr_file", f"{usual}.err"),
        ),
        tuple(names),
    )


def _setup_log(native: Mapping[str, str], ray_job: str) -> tuple[OtherLog, ...]:
    node = native.get("driver_node_id")
    if not node or "runtime_env" not in native:
        return ()
    path = f"{LOGS}{node}/runtime_env_setup-{ray_job}.log"
    return (OtherLog("setup", "setup of its runtime environment", LogFiles(path, None)),)


class RayLogs(DriverLogs):
    """Logs of the drivers, of the jobs' workers, and of Ray on its nodes."""

    has_results = True

    def others(self, detail: JobDetail, files: LogFiles) -> Query[tuple[OtherLog, ...]] | None:
        """The logs of a job's workers, and of Ray on its nodes; None for a job without a node.

        On slices the workers' logs are parts of the driver's, which has those of nodes that are
        gone.
        """
        ray_job = detail.native.get("job_id")
        if METADATA_KEY in detail.native.get("metadata", ""):
            job_id, driver_log = (
                str(detail.job[name][0].as_py()) for name in ("id", "stdout_path")
            )
            argv = ("GET", job_path(job_id), _NODES_PATH)
            return Query(
                argv, lambda answer: _parts(answer, driver_log, detail), cap_bytes=TEXT_BYTES
            )
        if not ray_job:
            if not detail.native.get("driver_node_id"):
                return None
            return Query(
                ("GET", _NODES_PATH),
                lambda answer: tuple(_ray_logs(answer, require_success(answer), detail.native, ())),
            )
        path = f"/api/v0/tasks?detail=1&limit={MAX_ROWS}&{job_tasks_query(ray_job)}"
        return Query(
            ("GET", path, _NODES_PATH),
            lambda answer: parse_worker_logs(answer, ray_job, detail.native),
        )

    def result(self, content: bytes) -> tuple[bytes | None, bytes | None]:
        return logged_result(content)
