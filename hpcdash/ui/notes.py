"""Pins and notes on jobs, bookmarks of filters: stored locally, shown in tables and job pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

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
    """Return the notes of a cluster, the same object for every view."""
    folder = session.actions.journal.path.parent
    return _cluster_notes.setdefault((str(folder), session.name), JobNotes(folder, session.name))


def listed_filters(
    session: ClusterSession, view: str, configured: Mapping[str, str] | None = None
) -> tuple[tuple[str, str], ...]:
    """(label, filter) of the filters there are for a view: those `configured` by name, then the
    bookmarks.
    """
    named = tuple((configured or {}).items())
    bookmarks = session_notes(session).load().bookmarks.get(view, ())
    return (
        *named,
        *((text, text) for text in bookmarks if text not in {text for _, text in named}),
    )


def toggle_bookmark(screen: DashboardScreen, view: str, text: str) -> None:
    """Bookmark a view's filter, or no longer."""
    notes = session_notes(screen.session)
    if text in notes.load().bookmarks.get(view, ()):
        keep(
            screen, lambda: notes.forget_bookmark(view, text), f"bookmark removed: {visible(text)}"
        )
    else:
        keep(screen, lambda: notes.bookmark(view, text), f"bookmarked {visible(text)}")


def with_notes(table: pa.Table, stored: StoredNotes) -> pa.Table:
    """Return rows of domain.schema.JOBS with `pinned` and `note`.

    An array's apply to its tasks too.
    """
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
    """Folded rows with the pinned ones in front; a pinned task of an open array stays below its
    array.
    """
    if not stored.pinned:
        return rows
    is_array_mark = pc.fill_null(
        pc.is_in(rows["array_id"], pa.array(sorted(stored.pinned), pa.string())), False
    )
    is_child = pc.equal(rows["_fold"], 3)
    is_first = pc.and_(
        pc.fill_null(rows["pinned"], False), pc.or_(is_array_mark, pc.invert(is_child))
    )
    if not pc.any(is_first).as_py():
        return rows
    return pa.concat_tables([rows.filter(is_first), rows.filter(pc.invert(is_first))])


def toggle_pins(screen: DashboardScreen) -> None:
    """Pin the marked jobs, or the one that is pointed at; where all are pinned let them go."""
    view = screen.view
    notes = session_notes(screen.session)
    job_ids = view.targets().job_ids if view.marks() else tuple(filter(None, [view.pointed_job()]))
    if not job_ids:
        screen.notify("select a job first", severity="warning", timeout=3)
        return
    is_requested = not notes.load().pinned.issuperset(job_ids)
    what = f"job {visible(job_ids[0])}" if len(job_ids) == 1 else f"{len(job_ids)} jobs"
    now = screen.session.store.clock.now()
    done = f"{what} {'pinned' if is_requested else 'no longer pinned'}"
    view.clear_marks()
    keep(screen, lambda: notes.pin(job_ids, is_requested, now), done)


def write_note(screen: DashboardScreen) -> None:
    """Prompt for a note on the selected job."""
    from hpcdash.ui.jobs.action_dialogs import NoteDialog

    job_id = screen.view.pointed_job()
    notes = session_notes(screen.session)
    if job_id is None:
        screen.notify("select a job first", severity="warning", timeout=3)
        return
    now = screen.session.store.clock.now()

    def take(note: str | None) -> None:
        if note is not None:
            keep(
                screen,
                lambda: notes.write(job_id, note, now),
                "noted" if note.strip() else "note removed",
            )

    screen.app.push_screen(
        NoteDialog(f"Note on job {job_id}", notes.load().notes.get(job_id, "")), take
    )


def keep(screen: DashboardScreen, write: Callable[[], None], done: str) -> None:
    """Write beside the screen, and notify of the result or the error."""
    view = screen.view

    async def run() -> None:
        try:
            await asyncio.to_thread(write)
        except StateUnusable as error:
            screen.notify(f"not kept: {error.message}", severity="error", timeout=8, markup=False)
            return
        screen.notify(done, timeout=2, markup=False)
        view.notes_changed()

    start_worker(screen, run, group="notes")
