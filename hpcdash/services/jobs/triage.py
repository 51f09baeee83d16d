"""Gathers what is known of an array's ended tasks: how each ended, its log's last words."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.job_detail import LogFiles
from hpcdash.backends.queries import JobScope
from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks
from hpcdash.domain.columns import as_array
from hpcdash.domain.job_ids import in_full, parse_array_id
from hpcdash.domain.states import ENDED, ENDED_BADLY
from hpcdash.domain.triage import EndedTask, TaskGroup, group_tasks, last_meaningful, node_names
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob, RateLimited, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.lookup import known_tables
from hpcdash.services.logs.ends import FILES_A_COMMAND, LogEnd, ends_query
from hpcdash.services.logs.locate import LogPlace, locate_logs

Row = Mapping[str, Any]
# By task and when it ended: the last line that says something, and why there is none.
_Lines = dict[tuple[str, object], tuple[str | None, str]]
# The logs of more failed tasks than this are not read.
MAX_LOGS = 200
# If paths cannot be derived from those of two tasks, each is queried: two or three commands a task.
MAX_LOCATED = 8
_OF_FAILURES = [
    "id",
    "array_id",
    "array_task",
    "state",
    "exit_code",
    "exit_signal",
    "node_list",
    "ends_at",
]
_DIGITS = re.compile(r"([0-9]+)")


class Tasks(Struct, frozen=True):
    """An array's rows of domain.schema.JOBS: those that ended, and the others; or those of the
    workers of one job.

    `problem` says in words why some of the past may be missing, '' where nothing is.
    """

    array_id: str
    ended: tuple[Row, ...]
    living: tuple[Row, ...]
    problem: str = ""
    are_workers: bool = False

    @property
    def name(self) -> str:
        return next((str(row["name"]) for row in (*self.ended, *self.living) if row["name"]), "")


async def fetch_tasks(store: ClusterStore, job_id: str) -> Tasks:
    """The tasks of an array, or of the array that a task is of.

    What the queue says of a task counts before what the past does: accounting cuts exit codes.
    Raises UsageError for a job that is no array, NoSuchJob, and what keeps the cluster from
    answering.
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
            f"job {job_id} was not found in the queue or in its history",
            "It may have ended long ago.",
        )
    first = next(table for table in tables if table.num_rows)
    number = in_full(number, first["id"][0].as_py(), first["array_id"][0].as_py())
    rows, are_workers = await asyncio.to_thread(_array_rows, tables, number), False
    if not rows:
        rows, are_workers = await _fetch_workers(store, number), True
    if not rows:
        raise UsageError(f"job {number} is not an array", "l shows its log.")
    ended = tuple(row for row in rows if row["state"] in ENDED)
    living = tuple(row for row in rows if row["state"] not in ENDED)
    return Tasks(number, ended, living, problem, are_workers)


async def _fetch_workers(store: ClusterStore, job_id: str) -> list[Row]:
    """The workers of a job that is one, where each ends by itself; [] of any other job."""
    query = store.backend.detail.workers(await store.fetch_detail(job_id))
    return [] if query is None else (await store.run_query(query)).table.to_pylist()


def _array_rows(tables: Sequence[pa.Table], number: str) -> list[Row]:
    """Each task once, of the first table that knows it; a task of a record that holds many is found
    there too.
    """
    rows: list[Row] = []
    seen: set[int] = set()
    for table in tables:
        mine = table.filter(pc.fill_null(pc.equal(as_array(table["array_id"]), number), False))
        for row in mine.to_pylist():
            tasks = array_tasks(row)
            if tasks is None or any(task in seen for task in tasks):
                continue
            seen.update(tasks)
            rows.append(row)
    return sorted(rows, key=lambda row: row["_task"] if row["_task"] is not None else -1)


def array_tasks(row: Row) -> ArrayTasks | None:
    """The tasks a row holds; None where they are not told."""
    try:
        return dataclasses.replace(parse_tasks(row["array_task"] or ""), throttle=None)
    except ValueError:
        return None


class Triage(Struct, frozen=True):
    """Result of an array: `groups` of its ended tasks, and its rows.

    `notes` describe what is unknown.
    """

    tasks: Tasks
    groups: tuple[TaskGroup, ...]
    notes: tuple[str, ...] = ()

    @property
    def failed_rows(self) -> tuple[Row, ...]:
        failed = {
            member.job_id for group in self.groups if group.failed for member in group.members
        }
        return tuple(row for row in self.tasks.ended if row["id"] in failed)


# What was read of the logs of a cluster's tasks, for as long as its store is there.
_read: WeakKeyDictionary[ClusterStore, _Lines] = WeakKeyDictionary()


def known_failures(
    store: ClusterStore, array_id: str, lines: Mapping[str, str]
) -> tuple[TaskGroup, ...]:
    """The failed tasks of an array that the lists have, by how they ended.

    Asks nothing of the cluster.

    `lines` are the last words of tasks whose logs were read, by id; those that a TriageReader has
    read are known too.
    """
    tables = [table.select([*_OF_FAILURES, "_task", "_tasks"]) for table in known_tables(store)]
    rows = [row for row in _array_rows(tables, array_id) if row["state"] in ENDED_BADLY]
    found = {
        (row["id"], row["ends_at"]): (lines[row["id"]], "") for row in rows if row["id"] in lines
    }
    return _groups(rows, {**_read.get(store, {}), **found})


def lines_read(store: ClusterStore) -> int:
    """Count the tasks whose logs known_failures has read; another number means new data."""
    return len(_read.get(store, ()))


class TriageReader:
    """Reads one array, again and again: a log that was read is not read a second time.

    `changed` is called in the event loop when there is more to show than before: first how tasks
    ended, then why.
    """

    def __init__(
        self, store: ClusterStore, job_id: str, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.store = store
        self.job_id = job_id
        self.triage: Triage | None = None
        self.is_reading_logs = False
        self._changed = changed
        # Keyed by task and end: a task that was requeued and ended again has written new lines.
        self._lines: _Lines = {}
        self._paths: _Paths | None = None

    async def read(self) -> Triage:
        """Raises what fetch_tasks raises; a log that cannot be read is a note, and no error."""
        tasks = await fetch_tasks(self.store, self.job_id)
        await self._show(tasks, ())
        failed = [row for row in tasks.ended if row["state"] in ENDED_BADLY]
        unread = [
            row for row in failed if (row["id"], row["ends_at"]) not in self._lines and _is_one(row)
        ]
        room = max(0, MAX_LOGS - len(self._lines))
        notes: list[str] = []
        self.is_reading_logs = bool(unread[:room])
        self._changed()
        try:
            if unread[:room]:
                notes += await self._read_logs(unread[:room])
        finally:
            self.is_reading_logs = False
        if len(unread) > room:
            notes.append(
                f"the logs of {MAX_LOGS} failed tasks were read, {len(unread) - room} were not"
            )
        await self._show(tasks, notes)
        self._changed()
        assert self.triage is not None
        return self.triage

    async def _show(self, tasks: Tasks, notes: Sequence[str]) -> None:
        reported = [tasks.problem] if tasks.problem else []
        groups = await asyncio.to_thread(_groups, tasks.ended, dict(self._lines))
        self.triage = Triage(tasks, groups, (*reported, *notes))

    async def _read_logs(self, rows: Sequence[Row]) -> list[str]:
        """Reads the ends of these tasks' logs; what kept some from being read, in words."""
        try:
            if self._paths is None:
                self._paths = await _find_paths(self.store, rows)
            files = [(row, place) for row in rows if (place := self._paths.of(row)) is not None]
            located = await self._located(
                [row for row in rows if self._paths.of(row) is None][:MAX_LOCATED]
            )
            files += located
            for begin in range(0, len(files), FILES_A_COMMAND):
                portion = files[begin : begin + FILES_A_COMMAND]
                ends = await self.store.run_query(
                    ends_query([(place.stdout, place.stderr) for _, place in portion])
                )
                self._keep(portion, ends)
        except RateLimited as error:
            return [f"not all logs were read: {error.message}"]
        except HpcdashError as error:
            return [f"the logs were not read: {error.message}"]
        left = len(rows) - len(files)
        return (
            [f"{left} logs were not read: hpcdash would have to query each task's path"]
            if left
            else []
        )

    async def _located(self, rows: Sequence[Row]) -> list[tuple[Row, LogFiles]]:
        found = []
        for row in rows:
            place = await _locate(self.store, row)
            if place is not None:
                # What is on a node's own disk still is not read here.
                found.append((row, LogFiles(None, None) if place.files.host else place.files))
        return found

    def _keep(self, portion: Sequence[tuple[Row, LogFiles]], ends: Sequence[LogEnd]) -> None:
        for (row, place), end in zip(portion, ends, strict=True):
            problem = "its log path is unknown" if place.stdout is None else end.problem
            line = None if problem else last_meaningful(end.lines)
            self._lines[(row["id"], row["ends_at"])] = (line, problem)
        _read.setdefault(self.store, {}).update(self._lines)


def _groups(rows: Sequence[Row], lines: _Lines) -> tuple[TaskGroup, ...]:
    return group_tasks(_task(row, lines) for row in rows)


def _task(row: Row, lines: _Lines) -> EndedTask:
    tasks = array_tasks(row)
    assert tasks is not None
    line, problem = lines.get((row["id"], row["ends_at"]), (None, ""))
    return EndedTask(
        str(row["id"]),
        tasks,
        str(row["state"]),
        row["exit_code"],
        row["exit_signal"],
        node_names(row["node_list"]),
        line,
        problem,
    )


def _is_one(row: Row) -> bool:
    """Whether it is one task that began, and so may have written."""
    return row["_tasks"] == 1 and bool(row["node_list"] or row["stdout_path"])


# -- log files


async def _locate(store: ClusterStore, row: Row) -> LogPlace | None:
    try:
        return await locate_logs(store, str(row["id"]))
    except (NoSuchJob, AccountingUnavailable):
        return None


async def _find_paths(store: ClusterStore, rows: Sequence[Row]) -> _Paths:
    """Asks where two tasks write, and so knows it of all whose paths differ in the task's number
    alone.
    """
    if all(row["stdout_path"] for row in rows):
        return _Paths({}, None, None)
    one = rows[0]
    # A task on another node shows whether the node's name is in the path.
    other = next((row for row in rows[1:] if row["node_list"] != one["node_list"]), rows[-1])
    requested = [one] if other is one else [one, other]
    places = dict(
        zip(
            (row["id"] for row in requested),
            [await _locate(store, row) for row in requested],
            strict=True,
        )
    )
    known = {
        job_id: place.files
        for job_id, place in places.items()
        if place is not None and not place.files.host
    }
    if len(known) < 2:
        return _Paths(known, None, None)
    first = known[one["id"]]
    second = known[other["id"]]
    tasks = (str(one["array_task"]), str(other["array_task"]))
    stdout = path_template((first.stdout, second.stdout), tasks)
    is_joined = first.stderr is None and second.stderr is None
    stderr = None if is_joined else path_template((first.stderr, second.stderr), tasks)
    if not is_joined and stderr is None:
        return _Paths(known, None, None)
    return _Paths(known, stdout, stderr)


class PathTemplate(Struct, frozen=True):
    """A path in pieces; between two of them stands the task's number, zero-padded to `widths`."""

    pieces: tuple[str, ...]
    widths: tuple[int, ...]

    def path(self, task: str) -> str:
        numbers = [task.rjust(width, "0") for width in self.widths]
        return "".join(
            part for pair in zip(self.pieces, (*numbers, ""), strict=True) for part in pair
        )


def path_template(
    paths: tuple[str | None, str | None], tasks: tuple[str, str]
) -> PathTemplate | None:
    """Return the template of two tasks' paths if they differ only in the tasks' numbers; else None.

    A number that both share is the array's, or of the folder: it stays. Tasks differ by their
    decimal numbers.
    """
    one, other = paths
    if one is None or other is None:
        return None
    ours = _DIGITS.split(one)
    theirs = _DIGITS.split(other)
    if len(ours) != len(theirs) or ours[::2] != theirs[::2]:
        return None
    pieces = [ours[0]]
    widths = []
    for at in range(1, len(ours), 2):
        if ours[at] == theirs[at]:
            pieces[-1] += ours[at] + ours[at + 1]
            continue
        width = _shared_width((ours[at], theirs[at]), tasks)
        if width is None:
            return None
        widths.append(width)
        pieces.append(ours[at + 1])
    return PathTemplate(tuple(pieces), tuple(widths)) if widths else None


def _shared_width(numbers: tuple[str, str], tasks: tuple[str, str]) -> int | None:
    """The width two tasks' numbers are padded to; None where these are no such numbers."""
    if numbers == tasks:
        return 0
    widths = {len(number) for number in numbers}
    padded = tuple(task.rjust(max(widths), "0") for task in tasks)
    return widths.pop() if padded == numbers else None


class _Paths(Struct, frozen=True):
    """Paths that tasks write to: known ones, and templates for the others."""

    known: Mapping[str, LogFiles]
    stdout: PathTemplate | None
    stderr: PathTemplate | None

    def of(self, row: Row) -> LogFiles | None:
        if row["stdout_path"]:
            stdout = row["stdout_path"]
            stderr = row["stderr_path"]
            return LogFiles(stdout, None if stderr == stdout else stderr)
        if (place := self.known.get(row["id"])) is not None:
            return place
        if self.stdout is None:
            return None
        task = str(row["array_task"])
        return LogFiles(
            self.stdout.path(task), self.stderr.path(task) if self.stderr is not None else None
        )
