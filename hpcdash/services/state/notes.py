"""Notes of a person on a cluster: pins and notes by job, bookmarks of filters by view."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field

from hpcdash.domain.text import visible
from hpcdash.services.state.database import StateDatabase, Statement, StateUnusable

# Of all clusters together; pinned ones go last.
MAX_KEPT = 10_000
MAX_BOOKMARKS = 20
LONGEST_NOTE = 500
_NO_MORE = (
    "DELETE FROM job_notes WHERE rowid NOT IN (SELECT rowid FROM job_notes ORDER BY is_pinned "
    "DESC, at DESC, rowid DESC LIMIT ?)",
    (MAX_KEPT,),
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
        """Pin jobs, or let them go. Raises StateUnusable."""
        notes = self.load().notes
        self._note([(job_id, is_pinned, notes.get(job_id, "")) for job_id in job_ids], at)

    def write(self, job_id: str, note: str, at: float) -> None:
        """Note something on a job in the place of what was noted, '' for nothing.

        Raises StateUnusable.
        """
        self._note(
            [(job_id, job_id in self.load().pinned, visible(note.strip())[:LONGEST_NOTE])], at
        )

    def _note(self, jobs: Sequence[tuple[str, bool, str]], at: float) -> None:
        sql = "INSERT OR REPLACE INTO job_notes VALUES (?, ?, ?, ?, ?)"
        inserts = [
            (sql, (self._cluster, job_id, int(is_pinned), note, at))
            for job_id, is_pinned, note in jobs
        ]
        self._write(
            *inserts, ("DELETE FROM job_notes WHERE is_pinned = 0 AND note = ''", ()), _NO_MORE
        )

    def _write(self, *statements: Statement) -> None:
        self._database.write(*statements)
        self._stamp = None

    def bookmark(self, view: str, text: str) -> None:
        """Keep a filter of a view, the last MAX_BOOKMARKS of them. Raises StateUnusable."""
        insert = (
            "INSERT OR IGNORE INTO bookmarks (cluster, view, filter) VALUES (?, ?, ?)",
            (self._cluster, view, text),
        )
        bookmarks = "SELECT id FROM bookmarks WHERE cluster = ? AND view = ?"
        no_more = (
            f"DELETE FROM bookmarks WHERE id IN ({bookmarks} ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (self._cluster, view, MAX_BOOKMARKS),
        )
        self._write(insert, no_more)

    def forget_bookmark(self, view: str, text: str) -> None:
        """Keep a filter no longer. Raises StateUnusable."""
        sql = "DELETE FROM bookmarks WHERE cluster = ? AND view = ? AND filter = ?"
        self._write((sql, (self._cluster, view, text)))
