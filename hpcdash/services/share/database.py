"""share.db: the tasks and runs of one shared pool, which only its coordinator's account can
open.
"""

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
# How a run ended that was interrupted for another: its task had saved, was too slow to, or did not
# answer.
INTERRUPTED = ("suspended", "slow", "ignored")
LEASE_SECONDS = 60.0
_BUSY_SECONDS = 20.0
# Of one query.
_MAX_VALUES = 500
SCHEMA_VERSION = 1
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
COLUMNS = (
    "id, number, user, name, nodes, priority, submitted_at, folder, state, words, level, since, "
    "above_normal_seconds, demoted, suspended, asked_at, retry_at, labels, gone_since"
)


# Number, level, start, end, how it ended.
RunRow = tuple[int, Priority, float | None, float | None, str]


class PoolHeld(HpcdashError):
    """Another coordinator has the pool, or has taken it over."""


class StoredTask(Struct, frozen=True):
    """One row of `tasks`.

    `state`: waiting, starting, running, suspending, paused, succeeded, failed, stopped, refused or
    unknown. `level` and `since` are of the present run, `asked_at` is when it was told to suspend,
    and it is not started before `retry_at`; `gone_since` is when its job was first seen to have
    left the queue, with no history yet of how it ended; epoch seconds. `words` say why it is
    refused, ended, or did not start. `labels` are as domain/share.py writes them.
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
    words: str
    level: int | None
    since: float | None
    above_normal_seconds: float
    demoted: int
    suspended: int
    asked_at: float | None
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
            self.above_normal_seconds,
            bool(self.demoted),
        )

    @property
    def running_task(self) -> RunningTask:
        level = Priority.NORMAL if self.level is None else Priority(self.level)
        return RunningTask(self.pool_task, level, self.since or 0.0)


class ShareDatabase:
    """The pool's file in a folder of its own. Reads need no lease; `writing` does."""

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
            version = create_schema(self._connection, _SCHEMA, SCHEMA_VERSION)
        except (OSError, sqlite3.Error) as error:
            raise HpcdashError(
                f"{self.path} cannot be used: {error}", "Is the disk full, or read-only?"
            ) from error
        if version != SCHEMA_VERSION:
            raise HpcdashError(
                f"{self.path} was written by another version of hpcdash (schema {version}, this "
                f"one reads {SCHEMA_VERSION})",
                "Use that version, or move the file away: the pool then starts without history.",
            )

    def acquire(self, now: float) -> None:
        """Take the pool's lease; raises PoolHeld, which says who has it.

        A coordinator of this host that is gone has left its lock: its lease is taken over at once,
        another host's when it is over.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self.path.with_name(_LOCK), flags, 0o600)
        host = socket.gethostname()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
        holder, holder_host, expires_at = self.holder() or ("another process", host, 0.0)
        if not is_free or (holder_host != host and expires_at > now):
            os.close(lock)
            raise PoolHeld(
                f"this pool has a coordinator: {holder}",
                "A pool has one coordinator at a time; this one can start once the other has "
                "ended.",
            )
        self._lock, self._token = lock, secrets.token_hex(8)
        self._connection.execute(
            "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?)",
            (self._token, f"process {os.getpid()} on {host}", host, now + LEASE_SECONDS),
        )

    def holder(self) -> tuple[str, str, float] | None:
        """(who, on which host, until when) has the lease; None where nobody ever had it."""
        rows = self._connection.execute("SELECT holder, host, expires_at FROM lease").fetchall()
        return rows[0] if rows else None

    def keep_lease(self, now: float) -> None:
        """Renew the lease where a third of it is over; raises PoolHeld where another coordinator
        has taken it.
        """
        [(token, expires_at)] = self._connection.execute("SELECT token, expires_at FROM lease")
        if token != self._token or expires_at < now + LEASE_SECONDS * 2 / 3:
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
        """A transaction that is all done or not at all, and renews the lease; raises PoolHeld where
        that was taken.
        """
        with transaction(self._connection):
            renewed = self.change(
                "UPDATE lease SET expires_at = ? WHERE token = ?", now + LEASE_SECONDS, self._token
            )
            if not renewed:
                raise PoolHeld(
                    f"this pool was taken over: {(self.holder() or ('',))[0]}",
                    "This one has ended.",
                )
            yield

    def change(self, sql: str, *values: Any) -> int:
        return self._connection.execute(sql, values).rowcount

    def tasks(self, where: str = "1", *values: Any) -> list[StoredTask]:
        rows = self._connection.execute(
            f"SELECT {COLUMNS} FROM tasks WHERE {where} ORDER BY submitted_at, number", values
        )
        return [StoredTask(*row) for row in rows]

    def find_tasks(self, job_ids: Iterable[str]) -> list[StoredTask]:
        """Return the tasks of some jobs, in the order in which they came."""
        ids = list(job_ids)
        found = []
        for start in range(0, len(ids), _MAX_VALUES):
            some = ids[start : start + _MAX_VALUES]
            found += self.tasks(f"id IN ({','.join('?' * len(some))})", *some)
        return sorted(found, key=lambda task: (task.submitted_at, task.number))

    def ended_tasks(self, most: int) -> list[StoredTask]:
        """Return the `most` ended tasks that came last."""
        rows = self._connection.execute(
            f"SELECT {COLUMNS} FROM tasks WHERE NOT {in_states(UNFINISHED)} ORDER BY submitted_at "
            "DESC, number DESC LIMIT ?",
            (*UNFINISHED, most),
        )
        return [StoredTask(*row) for row in rows]

    def task_runs(self, tasks: Sequence[str], most: int) -> dict[str, list[RunRow]]:
        """The last runs of some tasks, at most so many of each."""
        found: dict[str, list[RunRow]] = {}
        for start in range(0, len(tasks), _MAX_VALUES):
            some = tasks[start : start + _MAX_VALUES]
            rows = self._connection.execute(
                "SELECT task, run, level, started_at, ended_at, how FROM runs WHERE task IN "
                f"({','.join('?' * len(some))}) ORDER BY task, run",
                some,
            )
            for task, run, level, began, ended, how in rows:
                found.setdefault(task, []).append((run, Priority(level), began, ended, how))
        return {task: runs[-most:] for task, runs in found.items()}

    @property
    def changes(self) -> int:
        """Number of rows that this connection has changed."""
        return self._connection.total_changes

    # -- statements inside `writing`

    def move(self, running: RunningTask) -> None:
        """Note that a running task goes on at another level."""
        self.alter(running.task.id, level_columns(running))

    def alter(self, task: str, changes: Mapping[str, object]) -> None:
        """Change columns of a task, by their names."""
        names = ", ".join(f"{name} = ?" for name in changes)
        self.change(f"UPDATE tasks SET {names} WHERE id = ?", *changes.values(), task)

    def add(self, task: StoredTask) -> None:
        marks = ",".join("?" * len(StoredTask.__struct_fields__))
        values: Sequence[Any] = [getattr(task, name) for name in StoredTask.__struct_fields__]
        self.change(f"INSERT INTO tasks ({COLUMNS}) VALUES ({marks})", *values)

    def remove(self, task: str) -> None:
        self.change("DELETE FROM tasks WHERE id = ?", task)
        self.change("DELETE FROM runs WHERE task = ?", task)

    def begin(self, task: str, level: Priority, now: float) -> None:
        """Note that a task is to be started."""
        self.change(
            "UPDATE tasks SET state = 'starting', level = ?, since = ?, asked_at = NULL, words = "
            "'' WHERE id = ?",
            level,
            now,
            task,
        )
        self.change(
            "INSERT INTO runs (task, run, level) SELECT ?, coalesce(max(run), 0) + 1, ? FROM runs "
            "WHERE task = ?",
            task,
            level,
            task,
        )

    def withdraw(self, task: StoredTask, text: str, retry_at: float) -> None:
        """Note that a task did not start, and waits again."""
        self.change(
            "UPDATE tasks SET state = 'waiting', level = NULL, since = NULL, words = ?, retry_at = "
            "? WHERE id = ?",
            text,
            retry_at,
            task.id,
        )
        self.change(
            "DELETE FROM runs WHERE task = ? AND started_at IS NULL AND ended_at IS NULL", task.id
        )

    def end_run(self, task: StoredTask, state: str, now: float, how: str) -> None:
        """Note that a task has no nodes any more: it waits again, or has ended."""
        self.change(
            "UPDATE tasks SET state = ?, level = NULL, since = NULL, asked_at = NULL, suspended = "
            "suspended + ?, above_normal_seconds = ? WHERE id = ?",
            state,
            int(state == "waiting"),
            task.running_task.above_normal_seconds(now),
            task.id,
        )
        self.change(
            "UPDATE runs SET ended_at = ?, how = ? WHERE task = ? AND ended_at IS NULL",
            now,
            how,
            task.id,
        )


def _require_plain(file: Path) -> None:
    """Raises HpcdashError where a file of the pool's is there and is no regular file of this
    account's alone.
    """
    try:
        found = os.lstat(file)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        raise HpcdashError(
            f"{file} is a link, or not this account's own file",
            "Move it aside, and find out who put it there.",
        )
    if found.st_mode & 0o077:
        file.chmod(0o600)


def level_columns(running: RunningTask) -> dict[str, Any]:
    """The columns that a running task's level is kept in."""
    return {
        "level": int(running.level),
        "since": running.since,
        "above_normal_seconds": running.task.above_normal_seconds,
    }


def in_states(states: tuple[str, ...]) -> str:
    """A condition on `tasks` that takes the states as its values."""
    return f"state IN ({','.join('?' * len(states))})"


def unfinished_tasks(database: ShareDatabase) -> list[StoredTask]:
    return database.tasks(in_states(UNFINISHED), *UNFINISHED)
