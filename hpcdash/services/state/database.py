"""state.db: the SQLite file of launches, switches, alerts, drafts and observations of jobs."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpcdash.domain.text import without_surrogates
from hpcdash.errors import HpcdashError
from hpcdash.private_files import close_to_others, has_locks, make_folder, wait_for_lock

if TYPE_CHECKING:
    import sqlite3

NAME = "state.db"
SCHEMA_VERSION = 2
# A transaction takes milliseconds. Before a longer wait the file system is checked for locks.
_FIRST_WAIT_SECONDS = 0.3
_LONGEST_WAIT_SECONDS = 5.0
_SCHEMA = """
CREATE TABLE launches (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, number TEXT NOT NULL,
    folder TEXT NOT NULL, sums TEXT NOT NULL, job_id TEXT NOT NULL, name TEXT NOT NULL,
    keep TEXT NOT NULL, run_as TEXT NOT NULL, tasks INTEGER NOT NULL, at REAL NOT NULL,
    request TEXT NOT NULL, folder_state TEXT NOT NULL DEFAULT '',
    UNIQUE (cluster, folder, job_id, name, at));
CREATE INDEX launches_of_job ON launches (cluster, number);
CREATE TABLE code_states (cluster TEXT NOT NULL, folder TEXT NOT NULL, words TEXT NOT NULL,
    PRIMARY KEY (cluster, folder));
CREATE TABLE served_launches (id TEXT PRIMARY KEY, cluster TEXT NOT NULL, client TEXT NOT NULL,
    key TEXT, account TEXT NOT NULL, at REAL NOT NULL, stage TEXT NOT NULL, content TEXT NOT NULL,
    request TEXT NOT NULL, UNIQUE (cluster, client, key));
CREATE TABLE cleanups (cluster TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE recents (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, name TEXT NOT NULL,
    text TEXT NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL, UNIQUE (cluster, name, kind, at));
CREATE TABLE switches (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, kind TEXT NOT NULL,
    user TEXT NOT NULL, name TEXT NOT NULL, number TEXT NOT NULL, path TEXT NOT NULL,
    at REAL NOT NULL, UNIQUE (cluster, kind, user, name, number, path, at));
CREATE TABLE log_marks (cluster TEXT NOT NULL, kind TEXT NOT NULL, path TEXT NOT NULL,
    job_id TEXT NOT NULL, sizes TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (cluster, kind, path));
CREATE TABLE alerts (cluster TEXT NOT NULL, part TEXT NOT NULL, content BLOB NOT NULL,
    written_at REAL NOT NULL, PRIMARY KEY (cluster, part));
CREATE TABLE drafts (cluster TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE node_checks (cluster TEXT NOT NULL, node TEXT NOT NULL, name TEXT NOT NULL,
    state TEXT NOT NULL, words TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (cluster, node, name));
CREATE TABLE check_jobs (cluster TEXT NOT NULL, job_id TEXT NOT NULL, nodes TEXT NOT NULL,
    names TEXT NOT NULL, PRIMARY KEY (cluster, job_id));
CREATE TABLE gpus (cluster TEXT NOT NULL, uuid TEXT NOT NULL, node TEXT NOT NULL,
    finding TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (cluster, uuid));
CREATE TABLE watched (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, job_id TEXT NOT NULL,
    started_at REAL NOT NULL, seconds REAL NOT NULL, cores REAL, memory_peak_bytes INTEGER,
    gpu_percent REAL, gpu_memory_peak_bytes INTEGER, watts REAL,
    UNIQUE (cluster, job_id, started_at));
CREATE TABLE job_notes (cluster TEXT NOT NULL, job_id TEXT NOT NULL, is_pinned INTEGER NOT NULL,
    note TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (cluster, job_id));
CREATE TABLE bookmarks (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, view TEXT NOT NULL,
    filter TEXT NOT NULL, UNIQUE (cluster, view, filter))
"""
_CONTENT = "earlier launches, recent submissions, named switches and alerts"
# Files of versions that had no state.db.
_FORMER_FILES = ("launches.jsonl", "switches.jsonl")

_T = TypeVar("_T")
# SQL and its values.
Statement = tuple[str, tuple[Any, ...]]
# Folders on file systems without locks: nothing waits for their locks again.
_without_locks: set[Path] = set()
_noticed: set[str] = set()
_listener: Callable[[str], None] = lambda message: None  # noqa: E731


def listen(listener: Callable[[str], None]) -> None:
    """Call `listener`, from any thread, with each message on the file for a person, once."""
    global _listener
    _listener = listener
    _noticed.clear()


class StateUnusable(HpcdashError):
    """state.db cannot be opened, read or written."""


class StateDatabase:
    """Each call opens the file, does one transaction and closes it, so that threads, processes and
    hosts may share it.

    The first write creates it 0600, and its folder 0700. A rollback journal keeps it whole: a WAL
    does not work on a network file system. A damaged file, or one of an earlier version, is renamed
    and a new one started. One of a later version, or on a file system without locks, is only read.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that differs after each write; None if there is no file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query; none if nothing was ever written. Raises StateUnusable."""
        stamp = self.stamp()
        if stamp is None or not stamp[1]:
            return []
        return self._run(
            lambda connection: connection.execute(sql, _encodable(values)).fetchall(),
            is_write=False,
        )

    def write(self, *statements: Statement) -> int:
        """Run statements in a transaction; return the number of rows that the last one changed.

        The changes are on the disk then. Raises StateUnusable.
        """
        from hpcdash.sqlite import transaction

        def run(connection: sqlite3.Connection) -> int:
            changed = 0
            with transaction(connection):
                for sql, values in statements:
                    changed = connection.execute(sql, _encodable(values)).rowcount
            return changed

        return self._run(run, is_write=True)

    def _run(self, work: Callable[[sqlite3.Connection], _T], *, is_write: bool) -> _T:
        import sqlite3

        from hpcdash.sqlite import Failure, failure

        last: sqlite3.Error | None = None
        for seconds in (_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS):
            if self.path.parent in _without_locks:
                return self._run_without_locks(work, is_write=is_write)
            before = _identity(self.path)
            try:
                with contextlib.closing(self._connect(seconds, is_write=is_write)) as connection:
                    return work(connection)
            except sqlite3.Error as error:
                last = error
                reason = failure(error)
                if reason is Failure.DAMAGED:
                    damaged = f"damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
                    self._replace(before, damaged, "was damaged")
                elif reason is not Failure.LOCKED:
                    raise self._unusable(error, is_write=is_write) from error
                elif not has_locks(self.path.parent):
                    _without_locks.add(self.path.parent)
        assert last is not None
        raise self._unusable(last, is_write=is_write) from last

    # -- opening

    def _connect(self, seconds: float, *, is_write: bool) -> sqlite3.Connection:
        """Open the file with the tables of this version."""
        from hpcdash.sqlite import connect, create_schema

        before = self.stamp()
        identity = _identity(self.path)
        try:
            make_folder(self.path.parent)
            connection = connect(self.path, wait_seconds=seconds)
        except OSError as error:
            raise self._unusable(error, is_write=is_write) from error
        try:
            version = create_schema(connection, _SCHEMA, SCHEMA_VERSION)
            if version > SCHEMA_VERSION:
                message = (
                    f"{self.path} was written by a newer version of hpcdash (schema {version}, "
                    f"this one writes {SCHEMA_VERSION})"
                )
                if is_write:
                    raise StateUnusable(
                        f"{message}: opened read-only", "Use that version, or set HPCDASH_STATE."
                    )
                _notice(f"{message}: opened read-only")
        except BaseException:
            connection.close()
            raise
        if version < SCHEMA_VERSION:
            connection.close()
            self._replace(
                identity, f"schema-{version}", "was written by an earlier version of hpcdash"
            )
            return self._connect(seconds, is_write=is_write)
        if before is None or not before[1]:
            self._rename_former_files()
        return connection

    def _run_without_locks(self, work: Callable[[sqlite3.Connection], _T], *, is_write: bool) -> _T:
        import sqlite3

        from hpcdash.sqlite import file_uri, schema_version

        message = f"{self.path} is read-only: the file system does not support locks"
        step = "Set HPCDASH_STATE to a folder on another one, such as a local disk."
        if is_write:
            raise StateUnusable(message, step)
        _notice(f"{message}. {step}")
        uri = file_uri(self.path, "mode=ro&immutable=1")
        try:
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, isolation_level=None)
            ) as connection:
                if schema_version(connection) < SCHEMA_VERSION:
                    raise StateUnusable(
                        f"{self.path} was written by an earlier version of hpcdash", step
                    )
                return work(connection)
        except sqlite3.Error as error:
            raise self._unusable(error, is_write=False) from error

    # -- other files

    def _replace(self, found: tuple[int, int] | None, ending: str, problem: str) -> None:
        """Rename the file that was found, and its journal, which must not enter a new file.

        Raises StateUnusable.
        """
        # The journal is beside the target of a link.
        path = Path(os.path.realpath(self.path))
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            wait_for_lock(folder)
            if found is None or _identity(path) != found:
                # Another program renamed it.
                return
            renamed = _free_name(path, ending)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{path}-journal", f"{renamed}-journal")
                os.rename(path, renamed)
            except OSError as error:
                raise StateUnusable(
                    f"{path} {problem}, and cannot be renamed: {error.strerror}",
                    "Move it aside; hpcdash then creates a new one.",
                ) from error
        finally:
            os.close(folder)
        _notice(
            f"{self.path} {problem}: it was renamed to {renamed.name}, and a new one starts "
            f"without {_CONTENT}"
        )

    def _rename_former_files(self) -> None:
        for path in map(self.path.with_name, _FORMER_FILES):
            renamed = _free_name(path, "schema-0")
            close_to_others(path)
            with contextlib.suppress(OSError):
                os.rename(path, renamed)
                _notice(
                    f"{path} was written by an earlier version of hpcdash: it was renamed to "
                    f"{renamed.name}, and {NAME} starts without its content"
                )

    def _unusable(self, error: Exception, *, is_write: bool) -> StateUnusable:
        from hpcdash.sqlite import Failure, failure

        step = "Set HPCDASH_STATE to another folder."
        reason = str(error)
        match failure(error):
            case Failure.FULL:
                reason = os.strerror(errno.ENOSPC)
            case Failure.READ_ONLY:
                reason = "read-only"
            case Failure.LOCKED:
                reason = "locked by another program"
                step = "Try again."
            case Failure.DISK:
                step = f"Check free space and quota. {step}"
            case _ if isinstance(error, OSError):
                reason = error.strerror or reason
        return StateUnusable(
            f"{self.path} cannot be {'written' if is_write else 'read'}: {reason}", step
        )


def _free_name(path: Path, ending: str) -> Path:
    """Return PATH.ENDING, or the first of PATH.ENDING-2, -3 … that does not exist."""
    free = path.with_name(f"{path.name}.{ending}")
    number = 1
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}.{ending}-{number}")
    return free


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _encodable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(without_surrogates(value) if isinstance(value, str) else value for value in values)


def _notice(message: str) -> None:
    if message not in _noticed:
        _noticed.add(message)
        _listener(message)
