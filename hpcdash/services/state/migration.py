"""Takes the files in which older versions kept their state into state.db; they stay beside it,
renamed. Takes the secrets out of what older versions kept.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hpcdash.config.toml_text import without_secrets
from hpcdash.domain.request import without_secret_lines
from hpcdash.private_files import close_to_others
from hpcdash.services.state.journal import lock, older_file
from hpcdash.services.state.records import Statement, free_name

if TYPE_CHECKING:
    import sqlite3

_LAUNCHES, _SWITCHES, _DRAFTS, _RECENTS = (
    "launches.jsonl",
    "switches.jsonl",
    "drafts.json",
    "submitted",
)
_SNOOZED_END, _STATE_END = ".snoozed.json", ".json"
_T = TypeVar("_T")
# Tables with requests, and the rows that contain one.
_REQUESTS = (
    ("launches", "request", ""),
    ("recents", "text", "WHERE kind = 'request'"),
    ("served_launches", "request", ""),
)


class _SwitchLine(msgspec.Struct, tag_field="schema", tag=1):
    cluster: str
    kind: str
    user: str
    name: str
    number: str
    path: str
    at: float


class _MarkLine(msgspec.Struct, tag_field="schema", tag=2):
    cluster: str
    kind: str
    path: str
    job: str
    sizes: dict[str, int]
    at: float


def old_files(folder: Path) -> list[Path]:
    """Files of older versions in a state folder, the older ones of each kind first."""
    lines = [
        path
        for name in (_LAUNCHES, _SWITCHES)
        for path in (older_file(folder / name), folder / name)
    ]
    found = [path for path in (*lines, folder / _DRAFTS, folder / _RECENTS) if path.exists()]
    with contextlib.suppress(OSError):
        found += sorted(path for path in (folder / "watch").iterdir() if path.suffix == _STATE_END)
    return found


@contextlib.contextmanager
def locked(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """With each file or folder locked; an older version that appends to one waits, and then begins
    a new one.
    """
    with contextlib.ExitStack() as opened:
        for path in files:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
                lock(descriptor)
        yield files


def renamed(path: Path) -> None:
    """PATH.migrated, in the place of nothing; what cannot be renamed is taken in again, which
    changes nothing.
    """
    if path.is_file():
        close_to_others(path)
    with contextlib.suppress(OSError):
        os.rename(path, free_name(path, "migrated"))


def statements(files: Sequence[Path]) -> Iterator[Statement]:
    """Build the statements that import all files; unreadable parts are left out."""
    for path in files:
        name = path.name.removesuffix(".1")
        try:
            if name == _LAUNCHES:
                yield from _launches(path.read_bytes())
            elif name == _SWITCHES:
                yield from _switches(path.read_bytes())
            elif name == _DRAFTS:
                yield from _drafts(path.read_bytes())
            elif name == _RECENTS:
                yield from _recents(path)
            else:
                yield _alerts(path)
        except OSError:
            continue


def _launches(written: bytes) -> Iterator[Statement]:
    from hpcdash.services.state.records import LaunchRecord, ended_statement, launched_statement

    for line in _decoded(written.splitlines(), dict[str, Any]):
        cluster, folder = str(line.get("cluster")), str(line.get("folder"))
        if line.get("event") != "launched":
            yield ended_statement(cluster, folder, str(line.get("why") or "removed"))
            continue
        with contextlib.suppress(msgspec.ValidationError):
            yield launched_statement(cluster, msgspec.convert(line, LaunchRecord))


def _switches(written: bytes) -> Iterator[Statement]:
    from hpcdash.services.state.records import mark_statement, switch_statement

    lines: Iterator[_SwitchLine | _MarkLine] = _decoded(
        written.splitlines(), _SwitchLine | _MarkLine
    )
    for line in lines:
        if isinstance(line, _SwitchLine):
            named = (line.kind, line.user, line.name, line.number, line.path, line.at)
            yield switch_statement(line.cluster, *named)
        else:
            yield mark_statement(line.cluster, line.kind, line.path, line.job, line.sizes, line.at)


def _recents(folder: Path) -> Iterator[Statement]:
    from hpcdash.services.state.records import Recent, recent_statement

    files = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    for path in files:
        with contextlib.suppress(OSError):
            for recent in _decoded([path.read_bytes()], Recent):
                yield recent_statement(recent)


def _drafts(written: bytes) -> Iterator[Statement]:
    for drafts in _decoded([written], dict[str, Any]):
        for cluster, draft in drafts.items():
            # A row that was written since is newer.
            yield "INSERT OR IGNORE INTO drafts VALUES (?, ?)", (cluster, json.dumps(draft))


def _alerts(path: Path) -> Statement:
    """Build the statement that imports a cluster's alerts, or snoozes, unless newer ones exist."""
    part = "snoozed" if path.name.endswith(_SNOOZED_END) else "state"
    cluster = path.name.removesuffix(_SNOOZED_END if part == "snoozed" else _STATE_END)
    sql = (
        "INSERT INTO alerts VALUES (?, ?, ?, ?) ON CONFLICT (cluster, part) DO UPDATE"
        " SET content = excluded.content, written_at = excluded.written_at WHERE "
        "excluded.written_at > written_at"
    )
    return sql, (cluster, part, path.read_bytes(), path.stat().st_mtime)


def _decoded(written: Sequence[bytes], form: Any) -> Iterator[Any]:
    for text in written:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield msgspec.json.decode(text, type=form)


def scrub_secrets(connection: sqlite3.Connection) -> None:
    """Take the secrets of environments out of the file, once: older versions kept them with
    requests and drafts.

    Raises sqlite3.Error where it cannot be written, or another program writes: then it is done
    another time.
    """
    # What was deleted stays in the file otherwise, until something else is written there.
    connection.execute("PRAGMA secure_delete = ON")
    tables = {
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    if "scrubbed" in tables:
        return
    columns = [(*one, without_secrets) for one in _REQUESTS] + [
        ("drafts", "content", "", _without_secrets_in_draft)
    ]
    rows = 0
    connection.execute("BEGIN IMMEDIATE")
    for table, column, condition, clean in columns:
        if table not in tables:
            continue
        for row_id, text in connection.execute(
            f"SELECT rowid, {column} FROM {table} {condition}"
        ).fetchall():
            rows += 1
            if (cleaned := clean(text)) != text:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (cleaned, row_id)
                )
    connection.execute("COMMIT")
    if rows or connection.execute("PRAGMA freelist_count").fetchone()[0]:
        connection.execute("VACUUM")
    connection.execute("CREATE TABLE IF NOT EXISTS scrubbed (at REAL)")


def _without_secrets_in_draft(content: str) -> str:
    """Remove secrets from a draft; unchanged if it has none, or cannot be read."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        draft = json.loads(content)
        environment = draft["texts"]["environment"]
        if (hidden := without_secret_lines(environment)) != environment:
            draft["texts"]["environment"] = hidden
            return json.dumps(draft)
    return content
