"""Finished tasks of an array, grouped by state, exit and last log line."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.job_detail import LogFiles
from hpcdash.backends.queries import JobScope
from hpcdash.domain.array_tasks import ArrayTasks, read_tasks
from hpcdash.domain.job_ids import in_full, parse_array_id
from hpcdash.domain.states import ENDED, ENDED_BADLY
from hpcdash.domain.triage import EndedTask, TaskGroup, group_tasks, last_meaningful, node_names
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob, RateLimited, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.lookup import known_tables
from hpcdash.services.jobs.rows import array_rows
from hpcdash.services.logs.ends import FILES_A_COMMAND, LogEnd, ends_query
from hpcdash.services.logs.locate import LogPlace, locate_logs

Row = Mapping[str, Any]
# Last meaningful line of a task's log, and the reason that there is none, by task and end.
_Lines = dict[tuple[str, object], tuple[str | None, str]]
# The logs of more failed tasks than this are not read.
MAX_LOGS = 200
# If paths cannot be derived from those of two tasks, each is queried: two or three commands a task.
MAX_LOCATED = 8
_FAILURE_COLUMNS = [
    "id",
    "array_id",
    "array_task",
    "state",
    "exit_code",
    "exit_signal",
    "node_list",
    "ends_at",
    "_task",
    "_tasks",
]
_DIGITS = re.compile(r"([0-9]+)")


class Tasks(Struct, frozen=True):
    """Finished and unfinished tasks of an array, or workers of a job, as rows of
    domain.schema.JOBS.

    `problem` is the reason that finished tasks may be missing; '' if none are.
    """

    array_id: str
    ended: tuple[Row, ...]
    living: tuple[Row, ...]
    problem: str = ""
    are_workers: bool = False

    @property
    def name(self) -> str:
        names = (str(row["name"]) for row in (*self.ended, *self.living) if row["name"])
        return next(names, "")


async def fetch_tasks(store: ClusterStore, job_id: str) -> Tasks:
    """Fetch the tasks of an array, or of a task's array.

    The queue precedes the history, as accounting cuts exit codes. Raises UsageError for a job that
    is not an array, NoSuchJob, and the errors of an unreachable cluster.
    """
    number = parse_array_id(job_id)
    backend = store.backend
    queued, past = await asyncio.gather(
        store.run_query(backend.queue.jobs(JobScope(job_ids=(number,)))),
        store.run_query(backend.history.jobs(None, 0, (number,))),
        return_exceptions=True,
    )
    problem = ""
    tables: list[pa.Table] = []
    for answer in (queued, past):
        if not isinstance(answer, BaseException):
            tables.append(answer.table)
        elif answer is past and isinstance(answer, AccountingUnavailable):
            problem = f"only tasks still in the queue: {answer.message}"
        elif not isinstance(answer, NoSuchJob):
            raise answer
    if not any(table.num_rows for table in tables):
        raise NoSuchJob(
            f"job {job_id} was not found in the queue or in the job history",
            "It may have ended long ago.",
        )
    first = next(table for table in tables if table.num_rows)
    number = in_full(number, first["id"][0].as_py(), first["array_id"][0].as_py())
    rows = await asyncio.to_thread(_array_rows, tables, number)
    are_workers = not rows
    if are_workers:
        query = backend.detail.workers(await store.fetch_detail(number))
        rows = [] if query is None else (await store.run_query(query)).table.to_pylist()
    if not rows:
        raise UsageError(f"job {number} is not an array", "l shows its log.")
    ended = tuple(row for row in rows if row["state"] in ENDED)
    living = tuple(row for row in rows if row["state"] not in ENDED)
    return Tasks(number, ended, living, problem, are_workers)


def _array_rows(tables: Sequence[pa.Table], number: str) -> list[Row]:
    """Return the rows of an array's tasks, each task from the first table that has it."""
    rows: list[Row] = []
    seen: set[int] = set()
    for table in tables:
        for row in array_rows(table, number).to_pylist():
            tasks = array_tasks(row)
            if tasks is None or any(task in seen for task in tasks):
                continue
            seen.update(tasks)
            rows.append(row)
    return sorted(rows, key=lambda row: row["_task"] if row["_task"] is not None else -1)


def array_tasks(row: Row) -> ArrayTasks | None:
    """Return the tasks of a row; None if they are unknown."""
    tasks = read_tasks(row["array_task"])
    return None if tasks is None else dataclasses.replace(tasks, throttle=None)


class Triage(Struct, frozen=True):
    """An array's tasks, with the finished ones in groups; `notes` name what is unknown."""

    tasks: Tasks
    groups: tuple[TaskGroup, ...]
    notes: tuple[str, ...] = ()

    @property
    def failed_rows(self) -> tuple[Row, ...]:
        failed = {
            member.job_id for group in self.groups if group.failed for member in group.members
        }
        return tuple(row for row in self.tasks.ended if row["id"] in failed)


# Lines read from the logs of each cluster's tasks.
_read: WeakKeyDictionary[ClusterStore, _Lines] = WeakKeyDictionary()


def known_failures(
    store: ClusterStore, array_id: str, lines: Mapping[str, str]
) -> tuple[TaskGroup, ...]:
    """Group an array's failed tasks in the store's lists. Queries nothing.

    `lines` are last log lines by task ID, in addition to those that a TriageReader has read.
    """
    tables = [table.select(_FAILURE_COLUMNS) for table in known_tables(store)]
    rows = [row for row in _array_rows(tables, array_id) if row["state"] in ENDED_BADLY]
    known = dict(_read.get(store, {}))
    for row in rows:
        if row["id"] in lines:
            known[row["id"], row["ends_at"]] = (lines[row["id"]], "")
    return _group_rows(rows, known)


def lines_read(store: ClusterStore) -> int:
    """Count the tasks whose logs were read; another number means new data."""
    return len(_read.get(store, ()))


class TriageReader:
    """Reads the tasks of an array, and the log of each failed task once.

    `changed` is called in the event loop when there is more to show: first the states of the tasks,
    then their last lines.
    """

    def __init__(
        self, store: ClusterStore, job_id: str, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.store = store
        self.job_id = job_id
        self.triage: Triage | None = None
        self.is_reading_logs = False
        self._changed = changed
        # A requeued task that ended again has written new lines.
        self._lines: _Lines = {}
        self._paths: _Paths | None = None

    async def read(self) -> Triage:
        """Read the array; an unreadable log is a note. Raises the errors of fetch_tasks."""
        tasks = await fetch_tasks(self.store, self.job_id)
        await self._group(tasks, ())
        unread = [row for row in tasks.ended if self._is_unread(row)]
        room = max(0, MAX_LOGS - len(self._lines))
        notes: list[str] = []
        self.is_reading_logs = bool(unread[:room])
        self._changed()
        if self.is_reading_logs:
            try:
                notes += await self._read_logs(unread[:room])
            finally:
                self.is_reading_logs = False
        if (left := len(unread) - room) > 0:
            notes.append(f"the logs of {MAX_LOGS} failed tasks were read, {left} were not")
        triage = await self._group(tasks, notes)
        self._changed()
        return triage

    async def _group(self, tasks: Tasks, notes: Sequence[str]) -> Triage:
        groups = await asyncio.to_thread(_group_rows, tasks.ended, dict(self._lines))
        if tasks.problem:
            notes = (tasks.problem, *notes)
        self.triage = Triage(tasks, groups, tuple(notes))
        return self.triage

    def _is_unread(self, row: Row) -> bool:
        """Whether it is a failed task that may have written a log, which was not read."""
        if row["state"] not in ENDED_BADLY or (row["id"], row["ends_at"]) in self._lines:
            return False
        has_begun = bool(row["node_list"] or row["stdout_path"])
        return has_begun and row["_tasks"] == 1

    async def _read_logs(self, rows: Sequence[Row]) -> list[str]:
        """Read the ends of the tasks' logs; return notes on those that were not read."""
        try:
            if self._paths is None:
                self._paths = await _find_paths(self.store, rows)
            logs: list[tuple[Row, LogFiles]] = []
            unlocated: list[Row] = []
            for row in rows:
                if (files := self._paths.find(row)) is not None:
                    logs.append((row, files))
                else:
                    unlocated.append(row)
            for row in unlocated[:MAX_LOCATED]:
                if (place := await _locate(self.store, row)) is not None:
                    # Logs on a node's own disk are not read.
                    logs.append((row, LogFiles(None, None) if place.files.host else place.files))
            for begin in range(0, len(logs), FILES_A_COMMAND):
                portion = logs[begin : begin + FILES_A_COMMAND]
                pairs = [(files.stdout, files.stderr) for _, files in portion]
                self._store(portion, await self.store.run_query(ends_query(pairs)))
        except RateLimited as error:
            return [f"some logs were not read: {error.message}"]
        except HpcdashError as error:
            return [f"the logs were not read: {error.message}"]
        left = len(rows) - len(logs)
        if not left:
            return []
        return [f"{left} logs were not read: hpcdash would have to query each task's path"]

    def _store(self, portion: Sequence[tuple[Row, LogFiles]], ends: Sequence[LogEnd]) -> None:
        for (row, files), end in zip(portion, ends, strict=True):
            problem = "log path unknown" if files.stdout is None else end.problem
            line = None if problem else last_meaningful(end.lines)
            self._lines[row["id"], row["ends_at"]] = (line, problem)
        _read.setdefault(self.store, {}).update(self._lines)


def _group_rows(rows: Sequence[Row], lines: _Lines) -> tuple[TaskGroup, ...]:
    ended = []
    for row in rows:
        tasks = array_tasks(row)
        assert tasks is not None
        line, problem = lines.get((row["id"], row["ends_at"]), (None, ""))
        task = EndedTask(
            job_id=str(row["id"]),
            tasks=tasks,
            state=str(row["state"]),
            exit_code=row["exit_code"],
            exit_signal=row["exit_signal"],
            nodes=node_names(row["node_list"]),
            line=line,
            line_problem=problem,
        )
        ended.append(task)
    return group_tasks(ended)


# -- log files


async def _locate(store: ClusterStore, row: Row) -> LogPlace | None:
    try:
        return await locate_logs(store, str(row["id"]))
    except (NoSuchJob, AccountingUnavailable):
        return None


async def _find_paths(store: ClusterStore, rows: Sequence[Row]) -> _Paths:
    """Derive the paths of all tasks from those of two, if they differ only in the task's number."""
    if all(row["stdout_path"] for row in rows):
        return _Paths({})
    first = rows[0]
    # A task on another node shows whether the node's name is in the path.
    second = next((row for row in rows[1:] if row["node_list"] != first["node_list"]), rows[-1])
    known: dict[str, LogFiles] = {}
    for row in [first] if second is first else [first, second]:
        place = await _locate(store, row)
        if place is not None and not place.files.host:
            known[row["id"]] = place.files
    if len(known) < 2:
        return _Paths(known)
    files = known[first["id"]]
    others = known[second["id"]]
    tasks = (str(first["array_task"]), str(second["array_task"]))
    stdout = path_template((files.stdout, others.stdout), tasks)
    if files.stderr is None and others.stderr is None:
        return _Paths(known, stdout)
    stderr = path_template((files.stderr, others.stderr), tasks)
    return _Paths(known) if stderr is None else _Paths(known, stdout, stderr)


class PathTemplate(Struct, frozen=True):
    """Pieces of a path, with the task's number, zero-padded to `widths`, between them."""

    pieces: tuple[str, ...]
    widths: tuple[int, ...]

    def path(self, task: str) -> str:
        path = self.pieces[0]
        for width, piece in zip(self.widths, self.pieces[1:], strict=True):
            path += task.rjust(width, "0") + piece
        return path


def path_template(
    paths: tuple[str | None, str | None], tasks: tuple[str, str]
) -> PathTemplate | None:
    """Return the template of two tasks' paths if they differ only in the tasks' numbers; else None.

    A number that both share is the array's, or part of a folder's name, and stays.
    """
    first, second = paths
    if first is None or second is None:
        return None
    parts = _DIGITS.split(first)
    others = _DIGITS.split(second)
    if len(parts) != len(others) or parts[::2] != others[::2]:
        return None
    pieces = [parts[0]]
    widths = []
    for at in range(1, len(parts), 2):
        numbers = (parts[at], others[at])
        if numbers[0] == numbers[1]:
            pieces[-1] += parts[at] + parts[at + 1]
            continue
        if numbers == tasks:
            width = 0
        else:
            width = max(map(len, numbers))
            if numbers != tuple(task.rjust(width, "0") for task in tasks):
                return None
        widths.append(width)
        pieces.append(parts[at + 1])
    return PathTemplate(tuple(pieces), tuple(widths)) if widths else None


class _Paths(Struct, frozen=True):
    """Log files by task ID, and templates for the other tasks."""

    known: Mapping[str, LogFiles]
    stdout: PathTemplate | None = None
    stderr: PathTemplate | None = None

    def find(self, row: Row) -> LogFiles | None:
        if row["stdout_path"]:
            stdout = row["stdout_path"]
            stderr = row["stderr_path"]
            return LogFiles(stdout, None if stderr == stdout else stderr)
        if (files := self.known.get(row["id"])) is not None:
            return files
        if self.stdout is None:
            return None
        task = str(row["array_task"])
        stderr = None if self.stderr is None else self.stderr.path(task)
        return LogFiles(self.stdout.path(task), stderr)
