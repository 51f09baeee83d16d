"""Logs of a Ray job: of its driver, its workers, its setup, and Ray on its nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import quote

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.base import LogsPart
from hpcdash.backends.job_detail import JobDetail, LogFiles, OtherLog, Script
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.ray.jobs import LOG_SUFFIX, LOGS, job_path
from hpcdash.backends.ray.responses import (
    MAX_ROWS,
    Response,
    decode,
    nested_table,
    number,
    require_first,
    require_success,
    state_filter,
    state_rows,
    table,
    text,
    truncation_note,
)
from hpcdash.backends.ray.slices import METADATA_KEY, PART, log_parts, part_pattern, slice_run
from hpcdash.backends.ray.submit import logged_result
from hpcdash.backends.ray.tasks import format_state
from hpcdash.domain.text import counted

_NODES_PATH = f"/api/v0/nodes?limit={MAX_ROWS}"
_MAX_NAMES = 3
# Nodes whose raylet's log is listed.
_MAX_NODES = 100
_ID = re.compile(r"[0-9a-f]{16,64}")
_FILE = re.compile(r"[^/]+\.(out|err)")
_SHORT_ID = 8


class _Worker(Struct):
    """A worker process on a node.

    `names` of its tasks and its actor, in the order of their start; `states` are titles of its
    tasks' states; `files` are those that it reports.
    """

    node: str
    worker: str
    pid: int | None = None
    files: dict[str, str] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)


def _parse_parts(answer: Answer, driver_log: str, detail: JobDetail) -> tuple[OtherLog, ...]:
    """Parse the logs of a run on slices, of which the workers' are parts of the driver's."""
    response, *others = require_first(answer)
    run = slice_run(nested_table(decode(answer, response), "metadata"))
    parts = [] if run is None else log_parts(run, driver_log)
    nodes = () if run is None else run.nodes
    return (
        *(OtherLog(name, title, LogFiles(path, None)) for name, title, path in parts),
        *_ray_logs(answer, others, detail.native, nodes),
    )


def _parse_worker_logs(
    answer: Answer, ray_job: str, native: Mapping[str, str]
) -> tuple[OtherLog, ...]:
    """Parse the log of each worker, in the order of their first tasks, of the setup, and of Ray."""
    response, *others = require_first(answer)
    tasks = state_rows(answer, response)
    tasks.sort(key=lambda task: number(task.get("creation_time_ms")) or 0)
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
        if node is None or worker_id is None or not _ID.fullmatch(worker_id):
            continue
        worker = workers.setdefault((node, worker_id), _Worker(node, worker_id))
        worker.pid = worker.pid or number(task.get("worker_pid"))
        if actor := actors.get(str(task.get("actor_id"))):
            worker.names.setdefault(actor)
        name = text(task.get("name")) or text(task.get("func_or_class_name")) or "task"
        worker.names.setdefault(name)
        worker.states[format_state(str(task.get("state")))] += 1
        reported = table(task.get("task_log_info"))
        for key in ("stdout_file", "stderr_file"):
            file = (text(reported.get(key)) or "").rpartition("/")[2]
            if _FILE.fullmatch(file):
                worker.files[key] = file
    logs = [_worker_log(worker, ray_job) for worker in workers.values()]
    if logs and (note := truncation_note(answer, response, "tasks")):
        logs[-1] = replace(logs[-1], title=f"{logs[-1].title} · {note}")
    driver_node = native.get("driver_node_id")
    if driver_node and "runtime_env" in native:
        path = f"{LOGS}{driver_node}/runtime_env_setup-{ray_job}.log"
        title = "runtime environment setup"
        logs.append(OtherLog("setup", title, LogFiles(path, None)))
    nodes = {node for node, _ in workers}
    return (*logs, *_ray_logs(answer, others, native, nodes))


def _ray_logs(
    answer: Answer, responses: Sequence[Response], native: Mapping[str, str], used: Collection[str]
) -> Iterator[OtherLog]:
    """Yield the logs of the raylets on a job's living nodes (`used`: IDs or addresses), and of the
    GCS.
    """
    used = {*used, native.get("driver_node_id", "")}
    raylets = []
    gcs = []
    for response in responses:
        for node in state_rows(answer, response):
            node_id = text(node.get("node_id")) or ""
            address = text(node.get("node_ip"))
            if node.get("state") != "ALIVE" or not _ID.fullmatch(node_id) or not address:
                continue
            if node_id in used or address in used:
                raylets.append((node_id, address))
            if node.get("is_head_node") is True:
                title = f"Ray's control service on node {address}"
                gcs.append(_ray_log("gcs", title, node_id, "gcs_server"))
    note = ""
    if len(raylets) > _MAX_NODES:
        note = f", one of {len(raylets)}: {_MAX_NODES} are listed"
    for node_id, address in raylets[:_MAX_NODES]:
        yield _ray_log(f"raylet@{address}", f"Ray on node {address}{note}", node_id, "raylet")
    yield from gcs


def _ray_log(name: str, title: str, node_id: str, process: str) -> OtherLog:
    path = f"{LOGS}{node_id}/{process}"
    return OtherLog(name, title, LogFiles(f"{path}.out", f"{path}.err"), (process,))


def _worker_log(worker: _Worker, ray_job: str) -> OtherLog:
    names = list(worker.names)
    title = ", ".join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        title += f" and {len(names) - _MAX_NAMES} more"
    tasks = counted(worker.states.total(), "task")
    states = ", ".join(f"{count} {state}" for state, count in worker.states.items())
    place = f"node {worker.node[:_SHORT_ID]}"
    if worker.pid:
        place = f"pid {worker.pid} on {place}"
    folder = f"{LOGS}{worker.node}"
    default = f"worker-{worker.worker}-{ray_job}-{worker.pid or 0}"
    files = LogFiles(
        f"{folder}/{worker.files.get('stdout_file', f'{default}.out')}",
        f"{folder}/{worker.files.get('stderr_file', f'{default}.err')}",
    )
    title = f"{title} · {tasks}: {states} · {place}"
    return OtherLog(worker.worker[:_SHORT_ID], title, files, tuple(names))


class RayLogs(LogsPart):
    """Logs that Ray's dashboard streams."""

    has_results = True

    def files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        """Return the driver's log, which has both of its streams."""
        path = detail.job["stdout_path"][0].as_py()
        if path:
            return LogFiles(path, None)
        if detail.native.get("type") == "DRIVER":
            return LogFiles(
                None, None, "This driver connected by itself: the output is where it was started"
            )
        return LogFiles(None, None, "The driver has no node yet")

    def request(self, path: str) -> str:
        """Return the request that streams a log, of which the path may name a part."""
        node, _, name = path.removeprefix(LOGS).partition("/")
        if not path.startswith(LOGS) or not node or not name:
            return ""
        # An ID may contain any character.
        driver_log, separator, part = name.rpartition(f"{LOG_SUFFIX}{PART}")
        pattern = part_pattern(part) if separator else ""
        if pattern:
            name = f"{driver_log}{LOG_SUFFIX}"
        file = f"node_id={quote(node, safe='')}&filename={quote(name, safe='')}"
        request = f"/api/v0/logs/stream?{file}&lines=-1&interval=1"
        return f"{request}#{quote(pattern, safe='')}" if pattern else request

    def others(self, detail: JobDetail, files: LogFiles) -> Query[tuple[OtherLog, ...]] | None:
        """Return the query for the logs of a job's workers, and of Ray on its nodes.

        None for a job without a node. On slices the workers' logs are parts of the driver's, which
        remains when their nodes are gone.
        """
        native = detail.native
        if METADATA_KEY in native.get("metadata", ""):
            row = detail.job.to_pylist()[0]
            driver_log = str(row["stdout_path"])
            return Query(
                ("GET", job_path(row["id"]), _NODES_PATH),
                lambda answer: _parse_parts(answer, driver_log, detail),
                cap_bytes=TEXT_BYTES,
            )
        if ray_job := native.get("job_id"):
            tasks = state_filter("job_id", ray_job)
            return Query(
                ("GET", f"/api/v0/tasks?detail=1&limit={MAX_ROWS}&{tasks}", _NODES_PATH),
                lambda answer: _parse_worker_logs(answer, ray_job, native),
            )
        if not native.get("driver_node_id"):
            return None
        return Query(
            ("GET", _NODES_PATH),
            lambda answer: tuple(_ray_logs(answer, require_success(answer), native, ())),
        )

    def result(self, content: bytes) -> tuple[bytes | None, bytes | None]:
        return logged_result(content)
