"""SQLite files of one's own: readable by nobody else, with a schema version, written all or
nothing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path
from urllib.parse import quote

from hpcdash.private_files import close_to_others

# Closing any descriptor of a file drops the locks that this process has on it (fcntl(2)): while one
# thread creates the file, no other may have it open.
_creating = threading.Lock()


class Failure(Enum):
    """The cause of an error of SQLite's."""

    DAMAGED = auto()
    FULL = auto()
    READ_ONLY = auto()
    # By another program, or the file system has no locks: fcntl(2) fails with ENOLCK or ENOSYS.
    LOCKED = auto()
    DISK = auto()
    OTHER = auto()


_FAILURES = {
    sqlite3.SQLITE_CORRUPT: Failure.DAMAGED,
    sqlite3.SQLITE_NOTADB: Failure.DAMAGED,
    sqlite3.SQLITE_FULL: Failure.FULL,
    sqlite3.SQLITE_READONLY: Failure.READ_ONLY,
    sqlite3.SQLITE_BUSY: Failure.LOCKED,
    sqlite3.SQLITE_PROTOCOL: Failure.LOCKED,
    sqlite3.SQLITE_PERM: Failure.LOCKED,
    sqlite3.SQLITE_IOERR: Failure.DISK,
    sqlite3.SQLITE_IOERR_LOCK: Failure.LOCKED,
    sqlite3.SQLITE_IOERR_RDLOCK: Failure.LOCKED,
    sqlite3.SQLITE_IOERR_UNLOCK: Failure.LOCKED,
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK: Failure.LOCKED,
}


def failure(error: Exception) -> Failure:
    code = getattr(error, "sqlite_errorcode", 0)
    return _FAILURES.get(code) or _FAILURES.get(code & 0xFF, Failure.OTHER)


def connect(path: Path, *, wait_seconds: float) -> sqlite3.Connection:
    """Open a file, created 0600 where there is none; a looser one is closed to others.

    Raises sqlite3.Error and OSError.
    """
    with _creating:
        if path.exists():
            close_to_others(path)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with contextlib.suppress(FileExistsError):
                os.close(os.open(os.path.realpath(path), flags, 0o600))
    return sqlite3.connect(
        file_uri(path, "mode=rw"), uri=True, timeout=wait_seconds, isolation_level=None
    )


def file_uri(path: Path, options: str) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}?{options}"


def create_schema(connection: sqlite3.Connection, schema: str, version: int) -> int:
    """Create the tables of a new file, and return the schema version of any: 0 where it has tables
    and no version.

    Statements of `schema` are separated by ';' at the end of a line. Raises sqlite3.Error.
    """
    if schema_version(connection) == 0:
        with transaction(connection):
            # Another program may have created them meanwhile.
            if not connection.execute("SELECT name FROM sqlite_master").fetchone():
                for statement in schema.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version}")
    return schema_version(connection)


def schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or none, on the disk at the end. Raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # On a full disk SQLite has rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
