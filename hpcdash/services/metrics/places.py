"""Finds the files that a job's metrics may stand in: its streams, those of its tasks, and the one
it names.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from hpcdash.backends.job_detail import JobDetail, LogFiles
from hpcdash.domain.job_ids import holds_many, in_full, parse_array_id, parse_task_part
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.switches import (
    NamedSwitch,
    absolute_path,
    format_unknown,
    path_in_script,
    path_problem,
    variables_in_list,
)
from hpcdash.errors import CommandTimedOut, HpcdashError, NoSuchJob, UnreachableError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.jobs.triage import Tasks, fetch_tasks, path_template
from hpcdash.services.logs.locate import locate_logs
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.services.switches.names import ENVIRONMENT_FIELDS, known_values
from hpcdash.services.switches.scripts import values_query

Row = Mapping[str, Any]
# Of an array with more tasks the logs of the newest are read.
MAX_TASKS = 50
# If paths cannot be derived from those of two tasks, each is queried: two or three commands a task.
MAX_LOCATED = 8
METRICS = "HPCDASH_METRICS"


class MetricPlace(Struct, frozen=True):
    """Files that one job or task writes."""

    job_id: str
    files: LogFiles
    # Whether it has ended.
    is_over: bool
    # The metrics file that it names, '' for none.
    own: str = ""


class MetricPlaces(Struct, frozen=True):
    """The places of a job, oldest first."""

    job_id: str
    # Its row of domain.schema.JOBS, of an array that of the newest task; None before it was located.
    row: Row | None = None
    places: tuple[MetricPlace, ...] = ()
    # Whether the tasks are joined.
    is_array: bool = False
    is_over: bool = False
    # Text on what is left out, '' where nothing is.
    problem: str = ""


async def locate_metrics(
    store: ClusterStore, job_id: str, *, file: str, named: NamedMetricsFiles
) -> MetricPlaces:
    """Locate the files to read; raises NoSuchJob and the errors of an unreachable cluster.

    `file` is a path of a metrics file, from the job's working folder unless it is absolute: it is
    read instead of all else, and needs no job (`job_id` '', where nobody knows whether it still
    grows); '' for none. `named` searches for metrics files that jobs name themselves.
    """
    if not job_id:
        unknown_row = dict.fromkeys(JOBS.names) | {"id": "", "name": file, "state": "unknown"}
        files = LogFiles(file.removeprefix("~/"), None)
        return MetricPlaces("", unknown_row, (MetricPlace("", files, False),))
    place = await locate_logs(store, job_id)
    row = place.row
    is_over = row["state"] in ENDED
    array_id = row["array_id"]
    if file:
        # A path from the home folder stays one: it is relative to where commands begin.
        path = file.removeprefix("~/")
        if path == file:
            path = absolute_path(file, row["work_dir"])
        own = MetricPlace(str(row["id"]), LogFiles(path, None), is_over)
        return MetricPlaces(str(row["id"]), row, (own,), is_over=is_over)
    is_whole = not parse_task_part(job_id) and in_full(job_id, row["id"], array_id) == array_id
    if array_id is not None and (is_whole or holds_many(job_id)):
        return await _task_places(store, await fetch_tasks(store, array_id), row, named)
    paths, unknown = await named.find((row,), place.detail)
    path = paths.get(str(row["id"]), "")
    metric_place = MetricPlace(str(row["id"]), place.files, is_over, path)
    files = place.files
    is_known = bool(path) or files.stdout is not None or files.stderr is not None
    problem = unknown if is_known else files.note or "log path unknown"
    return MetricPlaces(str(row["id"]), row, (metric_place,), is_over=is_over, problem=problem)


async def _task_places(
    store: ClusterStore, tasks: Tasks, row: Row, named: NamedMetricsFiles
) -> MetricPlaces:
    begun = [task for task in tasks.living if task["_tasks"] == 1 and task["state"] not in WAITING]
    begun += [
        task
        for task in tasks.ended
        if task["_tasks"] == 1 and (task["started_at"] or task["node_list"] or task["stdout_path"])
    ]
    # In task order; requeued tasks by their last start, if all starts are known.
    begun.sort(key=lambda task: int(task["_task"] or 0))
    if all(task["started_at"] for task in begun):
        begun.sort(key=lambda task: task["started_at"])
    problem = tasks.problem
    if len(begun) > MAX_TASKS:
        problem = f"only the newest {MAX_TASKS} of {len(begun)} tasks were read"
        begun = begun[-MAX_TASKS:]
    files = await _fetch_task_files(store, begun)
    read = [task for task in begun if task["id"] in files]
    if len(read) < len(begun):
        problem = (
            f"{len(begun) - len(read)} tasks' logs were not read: hpcdash would have to query "
            "each path"
        )
    own, unknown = await named.find(read)
    problem = problem or unknown
    if not begun:
        problem = problem or "no task has started"
    places = []
    for task in read:
        task_id = str(task["id"])
        is_over = task["state"] in ENDED
        places.append(MetricPlace(task_id, files[task["id"]], is_over, own.get(task_id, "")))
    return MetricPlaces(
        tasks.array_id,
        begun[-1] if begun else row,
        tuple(places),
        is_array=True,
        is_over=not tasks.living,
        problem=problem,
    )


async def _fetch_task_files(store: ClusterStore, rows: Sequence[Row]) -> dict[str, LogFiles]:
    """Fetch the log files of tasks, by their ids.

    Two tasks are queried, and the paths of the others derived from these where possible.
    """
    files: dict[str, LogFiles] = {}
    for row in rows:
        if row["stdout_path"]:
            stdout = row["stdout_path"]
            stderr = row["stderr_path"]
            files[row["id"]] = LogFiles(stdout, None if stderr == stdout else stderr)
    unknown = [row for row in rows if row["id"] not in files]
    requested = unknown if len(unknown) <= 2 else [unknown[-1], unknown[0]]
    for row in requested:
        await _locate(store, row, files)
    unknown = [row for row in unknown if row["id"] not in files]
    if unknown and len(requested) == 2 and all(row["id"] in files for row in requested):
        newest, oldest = (files[row["id"]] for row in requested)
        tasks = (str(requested[0]["array_task"]), str(requested[1]["array_task"]))
        stdout = path_template((newest.stdout, oldest.stdout), tasks)
        stderr = path_template((newest.stderr, oldest.stderr), tasks)
        is_one_stream = newest.stderr is None and oldest.stderr is None
        is_derived = stdout is not None and (stderr is not None or is_one_stream)
        if stdout is not None and is_derived and not (newest.host or oldest.host):
            for row in unknown:
                task = str(row["array_task"])
                task_stderr = stderr.path(task) if stderr is not None else None
                files[row["id"]] = LogFiles(stdout.path(task), task_stderr)
            return files
    for row in unknown[::-1][:MAX_LOCATED]:
        await _locate(store, row, files)
    return files


async def _locate(store: ClusterStore, row: Row, files: dict[str, LogFiles]) -> None:
    with suppress(NoSuchJob):
        files[row["id"]] = (await locate_logs(store, str(row["id"]))).files


class NamedMetricsFiles:
    """The metrics files of a cluster's jobs; each job's launch, details and script are read
    once.
    """

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        # Where the path is written, and in which text, by job or array; None: nowhere.
        self._texts: dict[str, tuple[str, str] | None] = {}
        self._environment: dict[str, str] | None = None

    async def find(
        self, rows: Sequence[Row], detail: JobDetail | None = None
    ) -> tuple[dict[str, str], str]:
        """Absolute paths by the ids of jobs that name one, each path once, for the last of those
        that share it; and in words why one that is named is not known, '' where none is. Raises
        what keeps the cluster from answering.

        `detail` is that of the one row where it is known already.
        """
        by_path: dict[str, str] = {}
        problem = ""
        for row in rows:
            named = await self._named(row, detail)
            if named is None:
                continue
            path = absolute_path(named.path, row["work_dir"])
            if named.unknown:
                problem = format_unknown(named)
            elif wrong := path_problem(path):
                problem = f"{path!r} ({named.source}) is not a metrics file: {wrong}"
            else:
                by_path[path] = str(row["id"])
        return {job_id: path for path, job_id in by_path.items()}, problem

    async def _named(self, row: Row, detail: JobDetail | None) -> NamedSwitch | None:
        unit = parse_array_id(str(row["id"]))
        if unit not in self._texts:
            self._texts[unit] = await self._text(str(row["id"]), str(row["name"] or ""), detail)
        named_in = self._texts[unit]
        if named_in is None:
            return None
        source, text = named_in
        if source:
            return NamedSwitch(text, source)
        known = known_values(row, self._store.backend)
        named = path_in_script((METRICS,), text, known)
        names = [name for name in named.unknown if name.isidentifier()] if named is not None else []
        if not names or row["user"] != self._store.user:
            return named
        if self._environment is None or not self._environment.keys() >= set(names):
            # One's own login environment is what sbatch hands to a job.
            values = await self._store.run_query(values_query(names))
            self._environment = {**(self._environment or {}), **dict.fromkeys(names, ""), **values}
        own = {name: value for name, value in self._environment.items() if value}
        return path_in_script((METRICS,), text, {**own, **known})

    async def _text(
        self, job_id: str, name: str, detail: JobDetail | None
    ) -> tuple[str, str] | None:
        """(where it is named, the path), or ('', the script)."""
        if path := await asyncio.to_thread(self._launched, job_id, name):
            return "its request", path
        try:
            detail = detail or await self._store.fetch_detail(job_id)
            for field in ENVIRONMENT_FIELDS:
                named = variables_in_list(detail.native.get(field, ""), (METRICS,))
                if path := named.get(METRICS, ""):
                    return "the environment the scheduler reports", path
            script = await fetch_script(self._store, job_id, detail=detail)
        except (UnreachableError, CommandTimedOut):
            raise
        except HpcdashError:
            # Another user's script, or one that is stored nowhere.
            return None
        return ("", script.text) if METRICS in script.text else None

    def _launched(self, job_id: str, name: str) -> str:
        scripts = self._store.scripts
        # Records of launches are stored beside the scripts.
        folder = None if scripts is None else scripts.folder.parent
        try:
            record = LaunchRecords(folder, self._store.name).find_by_job(job_id, name)
        except StateUnusable:
            return ""
        return "" if record is None else _requested(record.request)


def _requested(text: str) -> str:
    try:
        request = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ""
    environment = request.get("environment")
    path = str(environment.get(METRICS, "")) if isinstance(environment, dict) else ""
    return absolute_path(path, str(request.get("work_dir", "")) or None) if path else ""
