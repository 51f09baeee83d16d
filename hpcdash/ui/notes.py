"""Pins and notes of jobs and bookmarks of filters, stored on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.text import visible
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.state.notes import JobNotes, StoredNotes
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.workers import start_worker

COLUMNS = (("pinned", pa.bool_()), ("note", pa.string()))
_cluster_notes: dict[tuple[str, str], JobNotes] = {}


def session_notes(session: ClusterSession) -> JobNotes:
    """Return the notes of a cluster, which all views share."""
    folder = session.actions.journal.path.parent
    return _cluster_notes.setdefault((str(folder), session.name), JobNotes(folder, session.name))


def listed_filters(
    session: ClusterSession, view: str, configured: Mapping[str, str] | None = None
) -> tuple[tuple[str, str], ...]:
    """Return (label, filter) of a view's filters: the `configured` by name, then the bookmarks."""
    named = dict(configured or {})
    bookmarks = session_notes(session).load().bookmarks.get(view, ())
    unnamed = [text for text in bookmarks if text not in named.values()]
    return (*named.items(), *((text, text) for text in unnamed))


def toggle_bookmark(screen: DashboardScreen, view: str, text: str) -> None:
    """Bookmark a view's filter, or remove its bookmark."""
    notes = session_notes(screen.session)
    if text in notes.load().bookmarks.get(view, ()):
        write = partial(notes.forget_bookmark, view, text)
        store(screen, write, f"bookmark removed: {visible(text)}")
    else:
        store(screen, partial(notes.bookmark, view, text), f"bookmarked {visible(text)}")


def with_notes(table: pa.Table, stored: StoredNotes) -> pa.Table:
    """Add `pinned` and `note` to rows of domain.schema.JOBS; an array's apply to its tasks too."""
    count = table.num_rows
    pinned: pa.Array = pa.repeat(pa.scalar(False), count)
    if stored.pinned:
        ids = pa.array(sorted(stored.pinned), pa.string())
        pinned = pc.or_(pc.is_in(table["id"], ids), pc.is_in(table["array_id"], ids))
    note: pa.Array = pa.nulls(count, pa.string())
    if stored.notes:
        ids = pa.array(list(stored.notes), pa.string())
        texts = pa.array(list(stored.notes.values()), pa.string())
        found = pc.coalesce(pc.index_in(table["id"], ids), pc.index_in(table["array_id"], ids))
        note = texts.take(found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found)
    return table.append_column("pinned", pinned).append_column("note", note)


def pinned_first(rows: pa.Table, stored: StoredNotes) -> pa.Table:
    """Return folded rows with pinned jobs first; a pinned task of an open array stays below it."""
    if not stored.pinned:
        return rows
    ids = pa.array(sorted(stored.pinned), pa.string())
    has_pinned_array = pc.fill_null(pc.is_in(rows["array_id"], ids), False)
    is_task = pc.equal(rows["_fold"], 3)
    is_pinned = pc.fill_null(rows["pinned"], False)
    is_first = pc.and_(is_pinned, pc.or_(has_pinned_array, pc.invert(is_task)))
    if not pc.any(is_first).as_py():
        return rows
    return pa.concat_tables([rows.filter(is_first), rows.filter(pc.invert(is_first))])


def toggle_pins(screen: DashboardScreen) -> None:
    """Pin the marked jobs, or the selected job; unpin them if all are pinned."""
    view = screen.view
    notes = session_notes(screen.session)
    job_ids = view.targets().job_ids if view.marks() else tuple(filter(None, [view.pointed_job()]))
    if not job_ids:
        screen.notify("select a job first", severity="warning", timeout=3)
        return
    are_pinned = notes.load().pinned.issuperset(job_ids)
    jobs = f"job {visible(job_ids[0])}" if len(job_ids) == 1 else f"{len(job_ids)} jobs"
    message = f"{jobs} {'no longer pinned' if are_pinned else 'pinned'}"
    now = screen.session.store.clock.now()
    view.clear_marks()
    store(screen, partial(notes.pin, job_ids, not are_pinned, now), message)


def write_note(screen: DashboardScreen) -> None:
    """Prompt for a note on the selected job; on all clusters, on each marked job by its cluster."""
    from hpcdash.ui.jobs.action_dialogs import NoteDialog

    view = screen.view
    pointed = view.pointed_job()
    noted = [(session_notes(screen.session), pointed)]
    if pointed is None:
        noted = [
            (session_notes(session), job_id)
            for session, targets in view.cluster_targets(screen.session)
            for job_id in targets.job_ids
        ]
    jobs = [(notes, job_id) for notes, job_id in noted if job_id is not None]
    if not jobs:
        screen.notify("select a job first", severity="warning", timeout=3)
        return
    now = screen.session.store.clock.now()

    def take(note: str | None) -> None:
        if note is None:
            return

        def write() -> None:
            for notes, job_id in jobs:
                notes.write(job_id, note, now)

        view.clear_marks()
        store(screen, write, "noted" if note.strip() else "note removed")

    title = f"Note on job {jobs[0][1]}" if len(jobs) == 1 else f"Note on {len(jobs)} jobs"
    before = {notes.load().notes.get(job_id, "") for notes, job_id in jobs}
    screen.app.push_screen(NoteDialog(title, before.pop() if len(before) == 1 else ""), take)


def store(screen: DashboardScreen, write: Callable[[], None], message: str) -> None:
    """Run `write` beside the event loop, and show the message or its error."""
    view = screen.view

    async def run() -> None:
        try:
            await asyncio.to_thread(write)
        except StateUnusable as error:
            screen.notify(f"not saved: {error.message}", severity="error", timeout=8)
            return
        screen.notify(message, timeout=2)
        view.notes_changed()

    start_worker(screen, run, group="notes")
