"""Jobs on all clusters in one table, with the state of each cluster above it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from textual.app import ComposeResult
from textual.content import Content

from hpcdash.domain.offers import Offers
from hpcdash.domain.tables import ALL_JOBS, Kind
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_age, format_count
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.everywhere import join_jobs
from hpcdash.services.cluster.store import Changed
from hpcdash.services.cluster.summary import own_jobs
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.notes import StoredNotes
from hpcdash.services.submit.places import FreeSlots, count_free
from hpcdash.services.submit.queues import fetch_offers
from hpcdash.ui.cluster.wall import letter_style
from hpcdash.ui.jobs.table import elapsed_cell, job_hint, where_cell
from hpcdash.ui.notes import COLUMNS, session_notes, with_notes
from hpcdash.ui.table_view import TableView
from hpcdash.ui.themes import style_name
from hpcdash.ui.view import Targets
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.widgets.table_rows import Column
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardScreen


# The nodes of each cluster are fetched this often while the view is shown.
_FREE_SECONDS = 120.0
_FREE_CELLS = 28
_FREE_CPU_CELLS = 16
# A cluster's name, its jobs, and the notes on them.
_Known = tuple[str, pa.Table, StoredNotes]


class AllJobsView(TableView):
    """One's own jobs on all clusters; enter goes to a job on its cluster."""

    SPEC = ALL_JOBS
    DEFAULT_CSS = """
    AllJobsView > #clusters { height: auto; max-height: 12; padding: 0 1; }
    """

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        super().__init__(session, **rest)
        self._stops: list[Callable[[], None]] = []
        # The clusters' tables and notes, and the table that they are joined to.
        self._joined: tuple[list[_Known], pa.Table | None] = ([], None)
        # What the user may use on each cluster, and the free slots by its table of nodes.
        self._offers: dict[str, Offers] = {}
        self._free: dict[str, tuple[pa.Table, Offers, FreeSlots]] = {}
        self._fetched_at: dict[str, float] = {}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*super().schema, *COLUMNS])

    @property
    def sessions(self) -> Sequence[ClusterSession]:
        return cast("DashboardScreen", self.screen).sessions

    def compose(self) -> ComposeResult:
        yield PlainStatic(id="clusters")
        yield from super().compose()

    def on_mount(self) -> None:
        for session in self.sessions:
            if session is not self.session:
                session.store.load_cached((Kind.MINE,))
                self._stops.append(session.store.listen(self._other_changed))
                session.poller.show(())
                session.poller.start()

    def on_unmount(self) -> None:
        for stop in self._stops:
            stop()

    def _other_changed(self, changed: Changed) -> None:
        if changed.kind in (None, Kind.MINE):
            self.call_later(self.reload)

    @property
    def kind(self) -> Kind:
        return Kind.MINE

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"cluster": self._cluster_cell, "elapsed": elapsed_cell, "where": where_cell}

    def _cluster_cell(self, value: str | None, row: cells.RowContext) -> cells.Cell:
        return [("▌", self._edge(str(value))), (visible(str(value)), "")]

    def _edge(self, cluster: str) -> str:
        """Return the style of a cluster's edge."""
        names = [session.name for session in self.sessions]
        return letter_style(ascii_letters[names.index(cluster) % len(ascii_letters)])

    def source(self) -> pa.Table | None:
        known: list[_Known] = []
        for session in self.sessions:
            table = session.store.table(Kind.MINE)
            if table is not None:
                known.append((session.name, table, session_notes(session).load()))
        before = self._joined[0]
        is_same = len(known) == len(before) and all(
            table is earlier and notes is earlier_notes
            for (_, table, notes), (_, earlier, earlier_notes) in zip(known, before, strict=True)
        )
        # A filter is typed letter by letter, over the same tables.
        if not is_same:
            joined = join_jobs((name, with_notes(table, notes)) for name, table, notes in known)
            self._joined = (known, joined)
        return self._joined[1]

    def notes_changed(self) -> None:
        self.reload()

    def reload(self) -> None:
        super().reload()
        self._show_clusters()

    def tick(self) -> None:
        if self.is_live:
            for session in self.sessions:
                self._fetch_free_when_due(session)
            self._show_clusters()

    def _show_clusters(self) -> None:
        if self.is_live:
            lines = [self._cluster_line(session) for session in self.sessions]
            self.query_one("#clusters", PlainStatic).update(Content("\n").join(lines))

    def _fetch_free_when_due(self, session: ClusterSession) -> None:
        """Fetch the nodes of a connected cluster every two minutes, first also the access."""
        now = time.monotonic()
        fetched_at = self._fetched_at.get(session.name)
        is_due = fetched_at is None or now - fetched_at >= _FREE_SECONDS
        if session.store.probe is None or not is_due:
            return
        self._fetched_at[session.name] = now
        start_worker(self, self._fetch_free, session, group=f"free-{session.name}")

    async def _fetch_free(self, session: ClusterSession) -> None:
        if session.name not in self._offers:
            self._offers[session.name] = await fetch_offers(session.store)
        else:
            with contextlib.suppress(HpcdashError):
                await session.store.fetch(Kind.NODES)
        self._show_clusters()

    def _free_slots(self, session: ClusterSession) -> FreeSlots | None:
        """Return the free slots that the user may use; None: unknown."""
        nodes = session.store.table(Kind.NODES)
        offers = self._offers.get(session.name)
        if nodes is None or offers is None or not nodes.num_rows:
            return None
        known = self._free.get(session.name)
        if known is None or known[0] is not nodes or known[1] is not offers:
            known = (nodes, offers, count_free(nodes, offers))
            self._free[session.name] = known
        return known[2]

    def _cluster_line(self, session: ClusterSession) -> Content:
        """Return a cluster's free slots, jobs by state, their age, and its error."""
        store = session.store
        snapshot = store.snapshots.get(Kind.MINE)
        parts = [self._format_free(session)]
        if snapshot is not None:
            counts = own_jobs(snapshot.table)
            parts.append(", ".join(f"{count} {state}" for state, count in counts) or "no jobs")
            parts.append(f"{format_age(max(0.0, store.clock.now() - snapshot.taken_at))} ago")
        error = store.connection_error or store.errors.get(Kind.MINE)
        if error is not None:
            parts.append(error.message)
        elif snapshot is None or snapshot.cached:
            parts.append(store.transport.health.detail or "connecting …")
        elif (problem := store.errors.get(Kind.NODES)) is not None:
            parts.append(f"nodes: {problem.message}")
        name = f"{clip(visible(store.title), 20):<20}  "
        text = clip(visible("  ·  ".join(parts)), max(20, self.size.width - len(name) - 4))
        style = "$warning" if error is not None else "$text-muted"
        return Content.assemble(("▌", style_name(self._edge(session.name))), name, (text, style))

    def _format_free(self, session: ClusterSession) -> str:
        """Return `  12 GPUs    340 CPUs free`, as wide for each cluster.

        An old list of nodes has its age.
        """
        slots = {one.name: self._free_slots(one) for one in self.sessions}
        has_gpus = any(free is not None and free.gpus is not None for free in slots.values())
        width = _FREE_CELLS if has_gpus else _FREE_CPU_CELLS
        free = slots[session.name]
        if free is None:
            return f"{'free: unknown':<{width}}"
        gpus = "" if free.gpus is None else f"{format_count(free.gpus)} GPUs"
        text = f"{format_count(free.cpus):>6} CPUs free"
        text = f"{gpus:>11}{text:>17}" if has_gpus else text
        snapshot = session.store.snapshots[Kind.NODES]
        age = session.store.clock.now() - snapshot.taken_at
        return f"{text} ({format_age(age)} ago)" if age >= 2 * _FREE_SECONDS else text

    def columns(self) -> list[Column]:
        """Return the chosen columns, with the notes if there are any."""
        columns = super().columns()
        has_notes = any(notes.notes for _, _, notes in self._joined[0])
        if has_notes and self.column_names == self.spec.shown:
            at = next(place for place, one in enumerate(columns) if one.key == "name") + 1
            columns.insert(at, self.catalogue["note"])
        return columns

    def scope_crumbs(self) -> Sequence[str]:
        return ("all clusters",)

    def placeholder(self) -> str:
        return "You have no jobs on any cluster"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        session = self._named_session(str(row["cluster"]))
        return "" if session is None else job_hint(session, row, self.now())

    def _named_session(self, name: str) -> ClusterSession | None:
        return next((one for one in self.sessions if one.name == name), None)

    def cluster_targets(self, session: ClusterSession) -> Sequence[tuple[ClusterSession, Targets]]:
        table = self.source()
        row_ids = self.rows.marked or {self.rows.cursor_id}
        if table is None:
            return ()
        found = []
        for one in self.sessions:
            is_selected = pc.is_in(table["_row_id"], pa.array(sorted(filter(None, row_ids))))
            selected = pc.and_(is_selected, pc.equal(table["cluster"], one.name))
            rows = table.filter(selected).to_pylist()
            if rows:
                found.append((one, Targets(tuple(str(row["id"]) for row in rows), tuple(rows))))
        return found

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(
            self.Requested("cluster", name=str(row["cluster"]), job_id=str(row["id"]))
        )
