"""share.db: the tasks and runs of one shared pool, open to its coordinator's account alone."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcdash.domain.share import Priority
from hpcdash.errors import HpcdashError
from hpcdash.private_files import make_private
from hpcdash.services.share.scheduling import PoolTask, RunningTask
from hpcdash.sqlite import connect, create_schema, transaction

NAME = "share.db"
_LOCK = "share.lock"
UNFINISHED = ("waiting", "starting", "running", "suspending", "paused")
WITH_NODES = ("starting", "running", "suspending")
# Ends of a run that was interrupted for another: its task had saved, was too slow to save, or did
# not respond.
INTERRUPTED = ("suspended", "slow", "ignored")
_LEASE_SECONDS = 60.0
_BUSY_SECONDS = 20.0
# In one query.
_MAX_VALUES = 500
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE lease (id INTEGER PRIMARY KEY CHECK (id = 1), token TEXT NOT NULL,
    holder TEXT NOT NULL, host TEXT NOT NULL, expires_at REAL NOT NULL);
CREATE TABLE tasks (id TEXT PRIMARY KEY, number INTEGER NOT NULL, user TEXT NOT NULL,
    name TEXT NOT NULL, nodes INTEGER NOT NULL, priority INTEGER NOT NULL,
    submitted_at REAL NOT NULL, folder TEXT NOT NULL, state TEXT NOT NULL,
    words TEXT NOT NULL DEFAULT '', level INTEGER, since REAL,
    above_normal_seconds REAL NOT NULL DEFAULT 0, demoted INTEGER NOT NULL DEFAULT 0,
    suspended INTEGER NOT NULL DEFAULT 0, asked_at REAL, retry_at REAL NOT NULL DEFAULT 0,
    labels TEXT NOT NULL DEFAULT '', gone_since REAL);
CREATE TABLE runs (task TEXT NOT NULL, run INTEGER NOT NULL, level INTEGER NOT NULL,
    started_at REAL, ended_at REAL, how TEXT NOT NULL DEFAULT '', PRIMARY KEY (task, run));
CREATE INDEX tasks_by_state ON tasks (state, submitted_at, number);
CREATE INDEX tasks_by_age ON tasks (submitted_at, number)
"""


class PoolHeld(HpcdashError):
    """Another coordinator has the pool, or has taken it over."""


class StoredTask(Struct, frozen=True):
    """Row of `tasks`; times in epoch seconds.

    `state`: waiting, starting, running, suspending, paused, succeeded, failed, stopped, refused or
    unknown. `reason`: why it was refused, cancelled, or did not start. `level` and `since` are of
    the present run; `requested_at` is when it was requested to suspend. It is not started before
    `retry_at`. `gone_since`: when its job was first missing from the queue and the history.
    `labels` are as domain/share.py formats them.
    """

    id: str
    number: int
    user: str
    name: str
    nodes: int
    priority: int
    submitted_at: float
    folder: str
    state: str
    reason: str = ""
    level: int | None = None
    since: float | None = None
    above_normal_seconds: float = 0.0
    demoted: int = 0
    suspended: int = 0
    requested_at: float | None = None
    retry_at: float = 0.0
    labels: str = ""
    gone_since: float | None = None

    @property
    def pool_task(self) -> PoolTask:
        """Task as an argument of the rules."""
        return PoolTask(
            self.id,
            self.user,
            self.nodes,
            Priority(self.priority),
            (self.submitted_at, self.number),
            above_normal_seconds=self.above_normal_seconds,
            demoted=bool(self.demoted),
        )

    @property
    def running_level(self) -> Priority:
        """Priority that the task has nodes at."""
        return Priority.NORMAL if self.level is None else Priority(self.level)

    @property
    def running_task(self) -> RunningTask:
        return RunningTask(self.pool_task, self.running_level, self.since or 0.0)


_RENAMED = {"reason": "words", "requested_at": "asked_at"}
# Columns of `tasks` by the fields of StoredTask.
_COLUMNS = {name: _RENAMED.get(name, name) for name in StoredTask.__struct_fields__}
_TASKS = f"SELECT {', '.join(_COLUMNS.values())} FROM tasks"


class StoredRun(Struct, frozen=True):
    """Row of `runs`: `number` counts from 1 by task, `how` says how it ended ('': not yet)."""

    number: int
    level: int
    started_at: float | None
    ended_at: float | None
    how: str


class ShareDatabase:
    """Database of a pool in a folder of its own; `writing` needs the lease, reading does not."""

    def __init__(self, folder: Path) -> None:
        make_private(folder, "HPCDASH_STATE")
        self.path = folder / NAME
        for file in (self.path, folder / _LOCK):
            _require_plain(file)
        self._token = ""
        self._lock: int | None = None
        try:
            self._connection = connect(self.path, wait_seconds=_BUSY_SECONDS)
            self._connection.execute("PRAGMA synchronous = FULL")
            version = create_schema(self._connection, _SCHEMA, _SCHEMA_VERSION)
        except (OSError, sqlite3.Error) as error:
            raise HpcdashError(
                f"{self.path} cannot be used: {error}", "Is the disk full, or read-only?"
            ) from error
        if version != _SCHEMA_VERSION:
            raise HpcdashError(
                f"{self.path} was written by another version of hpcdash (schema {version}, this "
                f"one reads {_SCHEMA_VERSION})",
                "Use that version, or move the file away: the pool then starts without history.",
            )

    def acquire(self, now: float) -> None:
        """Acquire the pool's lease; raises PoolHeld, which names its holder.

        The lease of a dead coordinator on this host is taken over at once, as its lock is free;
        that of another host once it has expired.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self.path.with_name(_LOCK), flags, 0o600)
        host = socket.gethostname()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except BlockingIOError:
            is_locked = False
        [foreign_leases] = self._connection.execute(
            "SELECT count(*) FROM lease WHERE host != ? AND expires_at > ?", (host, now)
        ).fetchone()
        if not is_locked or foreign_leases:
            os.close(lock)
            raise PoolHeld(
                f"this pool already has a coordinator: {self.holder() or 'another process'}",
                "A pool has one coordinator at a time; start this one after the other has stopped.",
            )
        self._lock = lock
        self._token = secrets.token_hex(8)
        self._connection.execute(
            "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?)",
            (self._token, f"process {os.getpid()} on {host}", host, now + _LEASE_SECONDS),
        )

    def holder(self) -> str:
        """Return the process and the host that last had the lease; '' for none."""
        rows = self._connection.execute("SELECT holder FROM lease").fetchall()
        return str(rows[0][0]) if rows else ""

    def keep_lease(self, now: float) -> None:
        """Renew the lease if a third of it has passed; raises PoolHeld if another coordinator has
        it.
        """
        [(token, expires_at)] = self._connection.execute("SELECT token, expires_at FROM lease")
        if token != self._token or expires_at < now + _LEASE_SECONDS * 2 / 3:
            with self.writing(now):
                pass

    def close(self) -> None:
        if self._token:
            self._connection.execute(
                "UPDATE lease SET expires_at = 0 WHERE token = ?", (self._token,)
            )
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)

    @contextmanager
    def writing(self, now: float) -> Iterator[None]:
        """Open a transaction that also renews the lease; raises PoolHeld if another has it."""
        with transaction(self._connection):
            renewed = self.change(
                "UPDATE lease SET expires_at = ? WHERE token = ?", now + _LEASE_SECONDS, self._token
            )
            if not renewed:
                raise PoolHeld(
                    f"this pool was taken over by {self.holder()}", "This coordinator has stopped."
                )
            yield

    def change(self, sql: str, *values: Any) -> int:
        """Execute a statement and return the number of changed rows."""
        return self._connection.execute(sql, values).rowcount

    def task(self, job_id: str) -> StoredTask:
        """Return the task of a job, which must exist."""
        [task] = self.tasks("id = ?", job_id)
        return task

    def tasks(self, where: str = "1", *values: Any) -> list[StoredTask]:
        """Return the tasks that a condition selects, in their order of submission."""
        rows = self._connection.execute(
            f"{_TASKS} WHERE {where} ORDER BY submitted_at, number", values
        )
        return [StoredTask(*row) for row in rows]

    def unfinished_tasks(self) -> list[StoredTask]:
        return self.tasks_in_states(*UNFINISHED)

    def tasks_in_states(self, *states: str) -> list[StoredTask]:
        return self.tasks(f"state IN {_placeholders(states)}", *states)

    def find_tasks(self, job_ids: Iterable[str]) -> list[StoredTask]:
        """Return the tasks of some jobs, in their order of submission."""
        ids = list(job_ids)
        tasks = []
        for start in range(0, len(ids), _MAX_VALUES):
            batch = ids[start : start + _MAX_VALUES]
            tasks += self.tasks(f"id IN {_placeholders(batch)}", *batch)
        return sorted(tasks, key=lambda task: (task.submitted_at, task.number))

    def finished_tasks(self, limit: int) -> list[StoredTask]:
        """Return the finished tasks that were submitted last, the newest first."""
        rows = self._connection.execute(
            f"{_TASKS} WHERE state NOT IN {_placeholders(UNFINISHED)} "
            "ORDER BY submitted_at DESC, number DESC LIMIT ?",
            (*UNFINISHED, limit),
        )
        return [StoredTask(*row) for row in rows]

    def task_runs(self, job_ids: Sequence[str], limit: int) -> dict[str, list[StoredRun]]:
        """Return the last runs of tasks by job, at most `limit` of each."""
        runs: dict[str, list[StoredRun]] = {}
        for start in range(0, len(job_ids), _MAX_VALUES):
            batch = job_ids[start : start + _MAX_VALUES]
            rows = self._connection.execute(
                "SELECT task, run, level, started_at, ended_at, how FROM runs "
                f"WHERE task IN {_placeholders(batch)} ORDER BY task, run",
                batch,
            )
            for job_id, *values in rows:
                runs.setdefault(job_id, []).append(StoredRun(*values))
        return {job_id: task_runs[-limit:] for job_id, task_runs in runs.items()}

    @property
    def changes(self) -> int:
        """Number of rows that this connection has changed."""
        return self._connection.total_changes

    # -- statements inside `writing`

    def update(self, job_id: str, changes: Mapping[str, object]) -> None:
        """Change fields of a task."""
        columns = ", ".join(f"{_COLUMNS[name]} = ?" for name in changes)
        self.change(f"UPDATE tasks SET {columns} WHERE id = ?", *changes.values(), job_id)

    def add(self, task: StoredTask) -> None:
        values = [getattr(task, name) for name in _COLUMNS]
        self.change(
            f"INSERT INTO tasks ({', '.join(_COLUMNS.values())}) VALUES {_placeholders(values)}",
            *values,
        )

    def remove(self, job_id: str) -> None:
        self.change("DELETE FROM tasks WHERE id = ?", job_id)
        self.change("DELETE FROM runs WHERE task = ?", job_id)

    def begin_run(self, job_id: str, level: Priority, now: float) -> None:
        """Record that a task is to be started."""
        changes = {"state": "starting", "level": level, "since": now, "reason": ""}
        self.update(job_id, {**changes, "requested_at": None})
        self.change(
            "INSERT INTO runs (task, run, level) SELECT ?, coalesce(max(run), 0) + 1, ? FROM runs "
            "WHERE task = ?",
            job_id,
            level,
            job_id,
        )

    def start_run(self, job_id: str, started_at: float) -> None:
        """Record that a task which was to be started runs."""
        self.update(job_id, {"state": "running", "reason": ""})
        self.change(
            "UPDATE runs SET started_at = ? WHERE task = ? AND ended_at IS NULL", started_at, job_id
        )

    def withdraw_run(self, job_id: str, reason: str, retry_at: float) -> None:
        """Record that a task did not start, and waits again."""
        changes = {"state": "waiting", "level": None, "since": None}
        self.update(job_id, {**changes, "reason": reason, "retry_at": retry_at})
        self.change(
            "DELETE FROM runs WHERE task = ? AND started_at IS NULL AND ended_at IS NULL", job_id
        )

    def end_run(self, task: StoredTask, state: str, now: float, how: str) -> None:
        """Record that a task has no nodes any more: it waits again, or has finished."""
        changes = {"state": state, "level": None, "since": None, "requested_at": None}
        self.update(
            task.id,
            {
                **changes,
                "suspended": task.suspended + (state == "waiting"),
                "above_normal_seconds": task.running_task.above_normal_seconds(now),
            },
        )
        self.change(
            "UPDATE runs SET ended_at = ?, how = ? WHERE task = ? AND ended_at IS NULL",
            now,
            how,
            task.id,
        )


def _placeholders(values: Sequence[object]) -> str:
    """Return an SQL list of placeholders for values: `(?,?)`."""
    return f"({','.join('?' * len(values))})"


def _require_plain(file: Path) -> None:
    """Raise HpcdashError if a file of the pool exists and is not a regular file of this account
    alone.
    """
    try:
        status = os.lstat(file)
    except FileNotFoundError:
        return
    if not is_own_file(status):
        raise HpcdashError(
            f"{file} is a link, or not this account's own file",
            "Move it aside, and find out who put it there.",
        )
    if status.st_mode & 0o077:
        file.chmod(0o600)


def is_own_file(status: os.stat_result) -> bool:
    """Whether a file is a regular file of this account under one name."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1


def level_changes(running: RunningTask) -> dict[str, Any]:
    """Return the fields of a task that has moved to another level."""
    return {
        "level": int(running.level),
        "since": running.since,
        "above_normal_seconds": running.task.above_normal_seconds,
    }
