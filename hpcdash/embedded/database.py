"""The embedded queue's SQLite database, which only its owner can open."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from hpcdash.embedded import FOLDER_VARIABLE
from hpcdash.errors import HpcdashError
from hpcdash.private_files import has_locks, make_private
from hpcdash.sqlite import Failure, connect, create_schema, failure, transaction

FORMAT = 1
# Another process may lock the file for this time: a backup, a slow disk.
_BUSY_SECONDS = 20.0
# Names, paths and tokens are bytes as in the file system, and may not be UTF-8.
_SCHEMA = """
CREATE TABLE submissions (
    number INTEGER PRIMARY KEY,
    name BLOB NOT NULL,
    work_dir BLOB NOT NULL,
    submit_dir BLOB NOT NULL,
    umask INTEGER NOT NULL,
    request TEXT NOT NULL,
    script BLOB NOT NULL,
    arguments TEXT NOT NULL,
    environment TEXT NOT NULL,
    command BLOB NOT NULL,
    submitted_at REAL NOT NULL,
    throttle INTEGER,
    ignored TEXT NOT NULL,
    token BLOB UNIQUE
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    task INTEGER,
    state TEXT NOT NULL,
    held INTEGER NOT NULL DEFAULT 0,
    -- Of the conditions it depends on: 1 met, 0 not yet, -1 never.
    ready INTEGER NOT NULL DEFAULT 1,
    begin_at REAL,
    cpus INTEGER NOT NULL,
    gpus INTEGER NOT NULL,
    limit_seconds INTEGER,
    attempt INTEGER NOT NULL DEFAULT 0,
    restarts INTEGER NOT NULL DEFAULT 0,
    gpu_ids TEXT NOT NULL DEFAULT '',
    -- What a person wants of a job that runs: cancel or requeue.
    wanted TEXT,
    started_at REAL,
    -- The machine's monotonic clock, which nobody sets, and of which start of the machine it is.
    started_clock REAL,
    boot TEXT,
    ended_at REAL,
    elapsed REAL,
    exit_code INTEGER,
    exit_signal INTEGER,
    reason TEXT,
    cpu_seconds REAL,
    peak_bytes INTEGER
);
CREATE INDEX jobs_waiting ON jobs (state, held, ready, number);
CREATE INDEX jobs_of ON jobs (number, state);
CREATE INDEX jobs_ended ON jobs (ended_at);
CREATE INDEX jobs_begin ON jobs (begin_at) WHERE begin_at IS NOT NULL;
CREATE INDEX submissions_named ON submissions (name);
CREATE TABLE edges (number INTEGER NOT NULL, on_number INTEGER, name BLOB NOT NULL);
CREATE INDEX edges_of ON edges (number);
CREATE INDEX edges_on ON edges (on_number);
CREATE INDEX edges_named ON edges (name);
CREATE TABLE calls (id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL, verb TEXT NOT NULL,
    argument TEXT NOT NULL, done INTEGER, words TEXT NOT NULL DEFAULT '');
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


class StoreUnusable(HpcdashError):
    """The queue's file cannot be opened, read or written."""


class Database:
    """The queue's database in a folder, which is created if it does not exist.

    Not shared between threads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_private(folder, FOLDER_VARIABLE, may_be_replaced=True)
        self.path = folder / "queue.db"
        try:
            self._connection = connect(self.path, wait_seconds=_BUSY_SECONDS)
            self._use_wal()
            self._connection.execute("PRAGMA synchronous = FULL")
            version = create_schema(self._connection, _SCHEMA, FORMAT)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(self.path, error) from error
        if version != FORMAT:
            raise StoreUnusable(
                f"{self.path} was written by another version of hpcdash (format {version}, this "
                f"one reads {FORMAT})",
                "Use that version, or set HPCDASH_QUEUE to another folder.",
            )

    def _use_wal(self) -> None:
        """Switch to a WAL; on file systems without support for it, SQLite keeps its journal."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # SQLite does not wait here if two programs create the file at once.
                if failure(error) is not Failure.LOCKED or time.monotonic() > deadline:
                    raise
                time.sleep(0.002)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run the context in a transaction; raises StoreUnusable if it cannot be written."""
        try:
            with transaction(self._connection):
                yield
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Return all rows of a query."""
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error

    def number(self, sql: str, values: Sequence[object] = ()) -> float | None:
        """Return the number that a query selects; None if there is none."""
        rows = self.rows(sql, values)
        return None if not rows or rows[0][0] is None else float(str(rows[0][0]))

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        """Execute a statement in `writing`; return the number of changed rows."""
        return self._connection.execute(sql, values).rowcount

    def change_each(self, sql: str, rows: Iterator[Sequence[object]]) -> None:
        """Execute a statement in `writing` for each row of values."""
        self._connection.executemany(sql, rows)

    def insert(self, sql: str, values: Sequence[object]) -> int:
        """Insert a row in `writing`, and return its ID."""
        return self._connection.execute(sql, values).lastrowid or 0


def damaged(path: Path, message: str) -> StoreUnusable:
    """Build the error of a damaged queue file; `message` describes the damage."""
    folder = str(path.parent)
    return StoreUnusable(
        f"{path} is damaged: {message}",
        f"Once its running jobs have ended, move the queue's folder away: mv {quote(folder)} "
        f"{quote(folder)}.damaged. hpcdash then starts with an empty queue; the jobs' output files "
        "are not moved.",
    )


def _unusable(path: Path, error: Exception) -> StoreUnusable:
    message = str(error)
    match failure(error):
        case Failure.FULL:
            return StoreUnusable(
                f"cannot write to the queue: no space left for {path}",
                "Free some space, then try again.",
            )
        case Failure.LOCKED if not has_locks(path.parent):
            step = (
                f"Set {FOLDER_VARIABLE} to a folder on another file system, such as a local disk."
            )
            return StoreUnusable(
                f"{path} cannot be locked: its file system does not support locks", step
            )
        case Failure.LOCKED:
            return StoreUnusable(
                f"{path} is locked by another program", "Try again; `lsof` shows the program."
            )
        case Failure.DAMAGED:
            return damaged(path, message)
        case _ if message.startswith(("no such table", "no such column")):
            return damaged(path, message)
    return StoreUnusable(
        f"the queue's file {path} cannot be used: {message}", "Is the disk full, or read-only?"
    )
