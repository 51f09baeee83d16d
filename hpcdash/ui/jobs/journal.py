"""Journal: actions from this machine on all clusters, and their outcomes, newest first."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from rich.text import Text

from hpcdash.domain.schema import arrow_schema
from hpcdash.domain.tables import ColumnSpec, TableSpec
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age
from hpcdash.services.cluster.store import Changed
from hpcdash.services.state.journal import JournalEntry, JournalUnreadable
from hpcdash.ui.dialogs import TextDialog
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.workers import start_worker

# Columns of an entry; a filter searches text without a key in `name`, `id` and `user`.
JOURNAL = TableSpec(
    "journal",
    fields={
        "_id": "text",
        "at": "time",
        "cluster": "word",
        "user": "word",
        "verb": "word",
        "id": "text",
        "jobs": "count",
        "outcome": "word",
        "words": "text",
        "name": "text",
    },
    columns=(
        ColumnSpec("when", 10, 0, "at"),
        ColumnSpec("cluster", 7, 3, longest=20),
        ColumnSpec("user", 5, 4, longest=12),
        ColumnSpec("verb", 7, 0, title="WHAT", longest=17),
        ColumnSpec("jobs", 12, 1, "id", flexible=True, longest=60),
        ColumnSpec("count", 5, 5, "jobs", "N"),
        ColumnSpec("outcome", 13, 0),
        ColumnSpec("words", 14, 2, title="MESSAGE", flexible=True, muted=True),
    ),
    shown=("when", "cluster", "verb", "jobs", "outcome", "words"),
)
_OUTCOMES = {
    "done": "done",
    "refused": "refused",
    "partly": "partly done",
    "unknown": "unknown",
    "running": "running",
}
_MEANING = {
    "done": "done for every job",
    "refused": "refused: nothing was done",
    "partly": "done for some of the jobs",
    "unknown": "result unknown; check the jobs",
    "running": "still running",
}


def outcome_sign(state: str) -> str:
    """Return `✓`, `✗`, `?` or `…`."""
    states = cells.signs().states
    return {
        "done": states["completed"],
        "refused": states["failed"],
        "partly": states["failed"],
        "running": cells.signs().ellipsis,
    }.get(state, "?")


def outcome_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Format an outcome as a sign and a word with a colour."""
    state = value or "unknown"
    style = {"done": cells.GOOD, "refused": cells.BAD, "running": cells.ACCENT}.get(
        state, cells.WARNING
    )
    return f"{outcome_sign(state)} {_OUTCOMES.get(state, visible(state))}", style


class JournalView(TableView):
    """Newest entries of the journal, read when the view is shown and after an action."""

    SPEC = JOURNAL
    NEWEST_FIRST = True
    IDENTITY = "_id"

    def __init__(self, *arguments: Any, **rest: Any) -> None:
        self._entries: dict[str, JournalEntry] = {}
        self._table: pa.Table | None = None
        self._unreadable = 0
        super().__init__(*arguments, **rest)

    def source(self) -> pa.Table | None:
        return self._table

    def store_changed(self, changed: Changed) -> None:
        """Do nothing, as no cluster data is shown."""

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"outcome": outcome_cell}

    def placeholder(self) -> str:
        return "No actions yet. Submissions and changes to jobs are listed here; q goes back"

    def _format_waiting(self) -> str:
        return "No data yet. ! error · ctrl+r retry" if self._error is not None else "reading …"

    def on_mount(self) -> None:
        self.reload()
        self.reread()

    def shown(self) -> None:
        super().shown()
        self.reread()

    def do_refresh(self) -> None:
        self.reread()

    def reread(self) -> None:
        """Read the file again, beside the event loop."""
        start_worker(self, self._read, exclusive=True, group="journal")

    async def _read(self) -> None:
        try:
            entries, self._unreadable = await asyncio.to_thread(self.session.actions.journal.read)
        except JournalUnreadable as error:
            self._error = error
        else:
            self._error = None
            self._entries = {entry.action_id: entry for entry in entries}
            self._table = build_table(entries)
        self.reload()

    def hint(self) -> str:
        if self._unreadable:
            lines = counted(self._unreadable, "unreadable line")
            return f"{lines} of the journal skipped  ·  enter shows an entry"
        return super().hint()

    def row_hint(self, row: Mapping[str, Any]) -> str:
        entry = self._entries.get(row["_id"])
        if entry is None:
            return ""
        age = format_age(max(0.0, self.session.actions.journal.age_seconds(entry)))
        meaning = _MEANING.get(entry.state, entry.state)
        return f"{age} ago  ·  {meaning}  ·  enter shows the commands and their output"

    def scope_crumbs(self) -> Sequence[str]:
        return (self.spec.name,)

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        entry = self._entries.get(row_id)
        if entry is not None:
            title = f"{entry.verb.capitalize()} on {entry.cluster}"
            self.app.push_screen(TextDialog(title, self.format_entry(entry)))

    def do_copy(self) -> None:
        """Copy the IDs of the jobs."""
        row = self.rows.cursor_row
        if row is not None:
            self.app.copy_to_clipboard(row["id"])
            self.notify(f"copied {visible(row['id'][:60])}")

    def format_entry(self, entry: JournalEntry) -> Text:
        """Format all of an entry."""
        began = datetime.fromtimestamp(entry.at, UTC).astimezone(self.session.zone)
        seconds = 0.0 if entry.ended_at is None else entry.ended_at - entry.at
        took = f", took {seconds:.1f} s" if seconds >= 0.1 else ""
        text = Text()

        def pair(label: str, message: str) -> None:
            text.append(f"{label:<10}", "dim")
            text.append(f"{visible(message)}\n")

        pair("when", f"{began:%Y-%m-%d %H:%M:%S %Z}{took}")
        pair("who", f"{entry.user or 'unknown'} on {entry.cluster}")
        pair("outcome", f"{outcome_sign(entry.state)} {_MEANING.get(entry.state, entry.state)}")
        pair("jobs", " ".join(entry.job_ids))
        for command in entry.commands:
            pair("ran", shlex.join(command))
        if entry.outcomes:
            text.append("\n")
        states = {False: "refused", None: "unknown", True: "done"}
        ranks = list(states)
        for outcome in sorted(entry.outcomes, key=lambda outcome: ranks.index(outcome.done)):
            state = states[outcome.done]
            text.append(f"{outcome_sign(state)} {state:<8}", "" if outcome.done else "bold")
            message = f"{outcome.job_id}  {' '.join(outcome.text.split())}".rstrip()
            text.append(f"{visible(message)}\n")
        text.rstrip()
        return text


def build_table(entries: Sequence[JournalEntry]) -> pa.Table:
    """Build a table of JOURNAL from entries, in their order."""
    rows = []
    for entry in entries:
        failed = [outcome.text for outcome in entry.outcomes if not outcome.done and outcome.text]
        row = {
            "_id": entry.action_id,
            "at": datetime.fromtimestamp(int(entry.at), UTC),
            "cluster": entry.cluster,
            "user": entry.user,
            "verb": entry.verb,
            "id": " ".join(entry.job_ids),
            "jobs": len(entry.job_ids),
            "outcome": entry.state,
            "words": " ".join(failed[0].split()) if failed else "",
            "name": f"{entry.verb} {entry.cluster} {entry.state}",
        }
        rows.append(row)
    return pa.Table.from_pylist(rows, arrow_schema(JOURNAL))
