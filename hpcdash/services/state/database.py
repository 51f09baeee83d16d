"""state.db: launches, switches, alerts, drafts and what was seen of jobs, in one SQLite file of a
state folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from hpcdash.domain.text import without_surrogates
from hpcdash.errors import HpcdashError
from hpcdash.private_files import close_to_others, has_locks, make_folder

if TYPE_CHECKING:
    import sqlite3

    from hpcdash.services.state.records import Statement

NAME = "state.db"
SCHEMA_VERSION = 1
# A transaction takes milliseconds. Who waits longer finds out first whether the file system has
# locks at all.
_FIRST_WAIT_SECONDS = 0.3
_LONGEST_WAIT_SECONDS = 5.0
_SCHEMA = """
CREATE TABLE launches (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, number TEXT NOT NULL, folder TEXT NOT NULL,
    sums TEXT NOT NULL, job_id TEXT NOT NULL, name TEXT NOT NULL, keep TEXT NOT NULL, run_as TEXT NOT NULL,
    tasks INTEGER NOT NULL, at REAL NOT NULL, request TEXT NOT NULL, folder_state TEXT NOT NULL DEFAULT '',
    UNIQUE (cluster, folder, job_id, name, at));
CREATE INDEX launches_of_job ON launches (cluster, number);
CREATE TABLE cleanups (cluster TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE recents (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL,
    kind TEXT NOT NULL, at REAL NOT NULL, UNIQUE (cluster, name, kind, at));
CREATE TABLE switches (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, kind TEXT NOT NULL, user TEXT NOT NULL,
    name TEXT NOT NULL, number TEXT NOT NULL, path TEXT NOT NULL, at REAL NOT NULL,
    UNIQUE (cluster, kind, user, name, number, path, at));
CREATE TABLE log_marks (cluster TEXT NOT NULL, kind TEXT NOT NULL, path TEXT NOT NULL, job_id TEXT NOT NULL,
    sizes TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (cluster, kind, path));
CREATE TABLE alerts (cluster TEXT NOT NULL, part TEXT NOT NULL, content BLOB NOT NULL, written_at REAL NOT NULL,
    PRIMARY KEY (cluster, part));
CREATE TABLE drafts (cluster TEXT PRIMARY KEY, content TEXT NOT NULL)
"""
# Tables that came later; an older version leaves them alone, so that they need no version of their
# own.
_LATER = (
    "CREATE TABLE IF NOT EXISTS code_states (cluster TEXT NOT NULL, folder TEXT NOT NULL, words "
    "TEXT NOT NULL,"
    " PRIMARY KEY (cluster, folder))",
    "CREATE TABLE IF NOT EXISTS node_checks (cluster TEXT NOT NULL, node TEXT NOT NULL, name TEXT "
    "NOT NULL,"
    " state TEXT NOT NULL, words TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (cluster, node, "
    "name))",
    "CREATE TABLE IF NOT EXISTS check_jobs (cluster TEXT NOT NULL, job_id TEXT NOT NULL, nodes "
    "TEXT NOT NULL,"
    " names TEXT NOT NULL, PRIMARY KEY (cluster, job_id))",
    "CREATE TABLE IF NOT EXISTS gpus (cluster TEXT NOT NULL, uuid TEXT NOT NULL, node TEXT NOT "
    "NULL,"
    " finding TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (cluster, uuid))",
    "CREATE TABLE IF NOT EXISTS watched (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, job_id "
    "TEXT NOT NULL,"
    " started_at REAL NOT NULL, seconds REAL NOT NULL, cores REAL, memory_peak_bytes INTEGER, "
    "gpu_percent REAL,"
    " gpu_memory_peak_bytes INTEGER, watts REAL, UNIQUE (cluster, job_id, started_at))",
    "CREATE TABLE IF NOT EXISTS served_launches (id TEXT PRIMARY KEY, cluster TEXT NOT NULL, "
    "client TEXT NOT NULL,"
    " key TEXT, account TEXT NOT NULL, at REAL NOT NULL, stage TEXT NOT NULL, content TEXT NOT "
    "NULL,"
    " request TEXT NOT NULL, UNIQUE (cluster, client, key))",
)

_T = TypeVar("_T")
# Closing any descriptor of a file drops the locks that this process has on it (fcntl(2)): while one
# thread makes the file, no other may have it open.
_creating = threading.Lock()
# Folders whose file system has no locks: no later call waits for them.
_without_locks: set[Path] = set()
_noticed: set[str] = set()
_listener: Callable[[str], None] = lambda text: None  # noqa: E731


def listen(listener: Callable[[str], None]) -> None:
    """Have `listener` called, from any thread, with what a person should know of the file: each of
    it once.
    """
    global _listener
    _listener = listener
    _noticed.clear()


class StateUnusable(HpcdashError):
    """state.db cannot be opened, read or written."""


class StateDatabase:
    """Each call opens the file, does one transaction and closes it, so that threads, processes and
    hosts may share it.

    It is made 0600, and its folder 0700, by the first write, which also takes in the files of older
    versions. A rollback journal keeps it whole: a WAL does not work on a network file system. A
    damaged file is renamed, and a new one begun; where the file system has no locks it is read and
    not written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def stamp(self) -> tuple[int, int] | None:
        """Another one after each write; None where there is no file."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows; none where nothing was ever written. Raises StateUnusable."""
        from hpcdash.services.state.migration import old_files

        if not self.path.exists() and not old_files(self.path.parent):
            return []
        return self._run(
            lambda connection: connection.execute(sql, _encodable(values)).fetchall(),
            is_write=False,
        )

    def write(self, *statements: Statement) -> int:
        """All of them or none, on the disk when it returns how many rows the last one changed;
        raises StateUnusable.
        """

        def run(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            changed = 0
            for sql, values in statements:
                changed = connection.execute(sql, _encodable(values)).rowcount
            connection.execute("COMMIT")
            return changed

        return self._run(run, is_write=True)

    def _run(self, work: Callable[[sqlite3.Connection], _T], *, is_write: bool) -> _T:
        import sqlite3

        last: sqlite3.Error | None = None
        if self.path.parent in _without_locks:
            return self._run_without_locks(work, is_write=is_write)
        for seconds in (_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS):
            before = _identity(self.path)
            try:
                with contextlib.closing(self._connect(seconds, is_write=is_write)) as connection:
                    return work(connection)
            except sqlite3.Error as error:
                last = error
                code = getattr(error, "sqlite_errorcode", 0)
                if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    self._set_aside(before)
                elif not _is_lock_error(code):
                    raise self._unusable(error, is_write=is_write) from error
                elif not has_locks(self.path.parent):
                    _without_locks.add(self.path.parent)
                    return self._run_without_locks(work, is_write=is_write)
        assert last is not None
        raise self._unusable(last, is_write=is_write) from last

    # -- opening

    def _connect(self, seconds: float, *, is_write: bool) -> sqlite3.Connection:
        import sqlite3

        try:
            self._create()
        except OSError as error:
            if is_write or self.path.exists():
                raise self._unusable(error, is_write=is_write) from error
            return self._in_memory()
        connection = sqlite3.connect(
            self._uri("mode=rw"), uri=True, timeout=seconds, isolation_level=None
        )
        try:
            return self._prepared(connection, is_write=is_write)
        except BaseException:
            connection.close()
            raise

    def _create(self) -> None:
        with _creating:
            if self.path.exists():
                close_to_others(self.path)
                return
            make_folder(self.path.parent)
            with contextlib.suppress(FileExistsError):
                os.close(
                    os.open(
                        os.path.realpath(self.path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
                    )
                )

    def _prepared(self, connection: sqlite3.Connection, *, is_write: bool) -> sqlite3.Connection:
        """With this version's tables, and all that files of older versions hold."""
        import sqlite3

        from hpcdash.services.state.migration import old_files, scrub_secrets

        version = _version(connection)
        if version > SCHEMA_VERSION:
            text = (
                f"{self.path} belongs to a newer hpcdash (schema {version}, this one writes "
                f"{SCHEMA_VERSION})"
            )
            if is_write:
                raise StateUnusable(
                    f"{text}: opened read-only", "Use that version, or set HPCDASH_STATE."
                )
            _notice(f"{text}: opened read-only")
        elif version < SCHEMA_VERSION or old_files(self.path.parent):
            try:
                self._migrate(connection)
            except sqlite3.OperationalError as error:
                # The disk is full or read-only, but the file can still be read.
                if is_write or _is_lock_error(error.sqlite_errorcode):
                    raise
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if version == 0:
                    connection.close()
                    return self._in_memory()
        if is_write:
            for sql in _LATER:
                connection.execute(sql)
        if version <= SCHEMA_VERSION:
            try:
                scrub_secrets(connection)
            except sqlite3.OperationalError:
                # The next process that can write does it.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Take files of older versions in, in one transaction; then they are renamed.

        Taking them in twice changes nothing: a program may end before the renaming, two may do this
        at once.
        """
        from hpcdash.services.state.migration import locked, old_files, renamed, statements

        folder = self.path.parent
        with locked(old_files(folder)) as files:
            connection.execute("BEGIN IMMEDIATE")
            if _version(connection) == 0:
                _make_tables(connection)
            for sql, values in statements(files):
                connection.execute(sql, _encodable(values))
            if files:
                # What is in them was not.
                connection.execute("DROP TABLE IF EXISTS scrubbed")
            connection.execute("COMMIT")
            for file in files:
                renamed(file)

    def _in_memory(self) -> sqlite3.Connection:
        """Build a database in memory from files of older versions, if it cannot be written."""
        import sqlite3

        from hpcdash.services.state.migration import old_files, statements

        connection = sqlite3.connect(":memory:", isolation_level=None)
        _make_tables(connection)
        for sql, values in statements(old_files(self.path.parent)):
            connection.execute(sql, _encodable(values))
        return connection

    def _run_without_locks(self, work: Callable[[sqlite3.Connection], _T], *, is_write: bool) -> _T:
        import sqlite3

        text = f"{self.path} is read-only: its file system has no locks"
        step = "HPCDASH_STATE names a folder on another one, such as a local disk."
        if is_write:
            raise StateUnusable(text, step)
        _notice(f"{text}, so it is read-only. {step}")
        uri = self._uri("mode=ro&immutable=1")
        try:
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, isolation_level=None)
            ) as connection:
                if _version(connection) > 0:
                    return work(connection)
            with contextlib.closing(self._in_memory()) as connection:
                return work(connection)
        except sqlite3.Error as error:
            raise self._unusable(error, is_write=False) from error

    def _uri(self, options: str) -> str:
        return f"file:{quote(os.fsencode(self.path.absolute()))}?{options}"

    # -- what goes wrong

    def _set_aside(self, damaged: tuple[int, int] | None) -> None:
        """Rename the damaged file and its journal, which would be rolled back into a new one;
        raises StateUnusable.
        """
        from hpcdash.services.state.migration import locked

        # Its journal is beside the file that a link leads to.
        path = Path(os.path.realpath(self.path))
        with locked([path.parent]):
            if damaged is None or _identity(path) != damaged:
                # Another program did.
                return
            from hpcdash.services.state.records import free_name

            aside = free_name(path, f"damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{path}-journal", f"{aside}-journal")
                os.rename(path, aside)
            except OSError as error:
                raise StateUnusable(
                    f"{path} is damaged, and cannot be renamed: {error.strerror}",
                    "Move it away; hpcdash then creates a new one.",
                ) from error
        _notice(
            f"{self.path} was damaged: it was renamed to {aside.name}, and a new one starts "
            f"without earlier launches, "
            "recent submissions, named switches and alerts"
        )

    def _unusable(self, error: Exception, *, is_write: bool) -> StateUnusable:
        import sqlite3

        step = "HPCDASH_STATE names another folder for it."
        code = getattr(error, "sqlite_errorcode", 0)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        elif code & 0xFF == sqlite3.SQLITE_FULL:
            reason = os.strerror(errno.ENOSPC)
        elif code & 0xFF == sqlite3.SQLITE_READONLY:
            reason = "it is read-only"
        elif code & 0xFF == sqlite3.SQLITE_BUSY:
            reason, step = "another program has locked it", "Try again."
        elif code & 0xFF == sqlite3.SQLITE_IOERR:
            reason, step = str(error), f"Check free space and quota. {step}"
        else:
            reason = str(error)
        return StateUnusable(
            f"{self.path} cannot be {'written' if is_write else 'read'}: {reason}", step
        )


def _make_tables(connection: sqlite3.Connection) -> None:
    for sql in _SCHEMA.split(";\n"):
        connection.execute(sql)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_lock_error(code: int) -> bool:
    """SQLite takes most errors of fcntl(2) for a lock that another has, ENOLCK among them."""
    import sqlite3

    return code & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_PERM,
    ) or code in (
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
    )


def _encodable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(without_surrogates(one) if isinstance(one, str) else one for one in values)


def _notice(text: str) -> None:
    if text not in _noticed:
        _noticed.add(text)
        _listener(text)
