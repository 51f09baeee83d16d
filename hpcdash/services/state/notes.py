"""Notes of a person on a cluster: pins and notes by job, bookmarks of filters by view."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, field

from hpcdash.domain.text import visible
from hpcdash.services.state.database import StateDatabase, Statement, StateUnusable

# Of all clusters together; pinned jobs are deleted last.
MAX_KEPT = 10_000
MAX_BOOKMARKS = 20
LONGEST_NOTE = 500
_PIN = (
    "INSERT INTO job_notes VALUES (?, ?, ?, '', ?) ON CONFLICT (cluster, job_id) DO UPDATE SET "
    "is_pinned = excluded.is_pinned, at = excluded.at"
)
_NOTE = (
    "INSERT INTO job_notes VALUES (?, ?, 0, ?, ?) ON CONFLICT (cluster, job_id) DO UPDATE SET "
    "note = excluded.note, at = excluded.at"
)
_DELETE_EMPTY = "DELETE FROM job_notes WHERE is_pinned = 0 AND note = ''"
_DELETE_EXCESS = (
    "DELETE FROM job_notes WHERE rowid NOT IN (SELECT rowid FROM job_notes ORDER BY is_pinned "
    "DESC, at DESC, rowid DESC LIMIT ?)"
)


class StoredNotes(Struct, frozen=True):
    """The pinned jobs of a cluster, the notes by job, and the bookmarked filters by view, oldest
    first.
    """

    pinned: frozenset[str] = frozenset()
    notes: dict[str, str] = field(default_factory=dict)
    bookmarks: dict[str, tuple[str, ...]] = field(default_factory=dict)


class JobNotes:
    """Notes on one cluster's jobs and filters, in the state database of a folder.

    Jobs are identified by id, a whole array by its number.
    """

    def __init__(self, folder: Path, cluster: str) -> None:
        self._database = StateDatabase(folder)
        self._cluster = cluster
        self._stamp: tuple[int, int] | None = None
        self._notes = StoredNotes()

    def load(self) -> StoredNotes:
        """Return the notes in the file; if it cannot be read, those read before, or none."""
        stamp = self._database.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            with contextlib.suppress(StateUnusable):
                self._notes = self._read()
        return self._notes

    def _read(self) -> StoredNotes:
        sql = "SELECT job_id, is_pinned, note FROM job_notes WHERE cluster = ?"
        jobs = self._database.read(sql, self._cluster)
        marked: dict[str, tuple[str, ...]] = {}
        sql = "SELECT view, filter FROM bookmarks WHERE cluster = ? ORDER BY id"
        for view, text in self._database.read(sql, self._cluster):
            marked[view] = (*marked.get(view, ()), text)
        return StoredNotes(
            frozenset(job_id for job_id, is_pinned, _ in jobs if is_pinned),
            {job_id: note for job_id, _, note in jobs if note},
            marked,
        )

    def pin(self, job_ids: Iterable[str], is_pinned: bool, at: float) -> None:
        """Pin or unpin jobs. Raises StateUnusable."""
        self._write_jobs(
            *((_PIN, (self._cluster, job_id, int(is_pinned), at)) for job_id in job_ids)
        )

    def write(self, job_id: str, note: str, at: float) -> None:
        """Replace the note on a job; '' removes it. Raises StateUnusable."""
        text = visible(note.strip())[:LONGEST_NOTE]
        self._write_jobs((_NOTE, (self._cluster, job_id, text, at)))

    def _write_jobs(self, *statements: Statement) -> None:
        self._write(*statements, (_DELETE_EMPTY, ()), (_DELETE_EXCESS, (MAX_KEPT,)))

    def _write(self, *statements: Statement) -> None:
        self._database.write(*statements)
        self._stamp = None

    def bookmark(self, view: str, text: str) -> None:
        """Store a filter of a view, and the latest MAX_BOOKMARKS only. Raises StateUnusable."""
        insert = (
            "INSERT OR IGNORE INTO bookmarks (cluster, view, filter) VALUES (?, ?, ?)",
            (self._cluster, view, text),
        )
        bookmarks = "SELECT id FROM bookmarks WHERE cluster = ? AND view = ?"
        delete_excess = (
            f"DELETE FROM bookmarks WHERE id IN ({bookmarks} ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (self._cluster, view, MAX_BOOKMARKS),
        )
        self._write(insert, delete_excess)

    def forget_bookmark(self, view: str, text: str) -> None:
        """Delete a filter. Raises StateUnusable."""
        sql = "DELETE FROM bookmarks WHERE cluster = ? AND view = ? AND filter = ?"
        self._write((sql, (self._cluster, view, text)))
