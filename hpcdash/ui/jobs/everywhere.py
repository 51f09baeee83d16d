"""Jobs on all clusters in one table, with the state of each cluster above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from textual.app import ComposeResult
from textual.content import Content

from hpcdash.domain.tables import ALL_JOBS, Kind
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_age
from hpcdash.services.cluster.everywhere import join_jobs
from hpcdash.services.cluster.store import Changed
from hpcdash.services.cluster.summary import own_jobs
from hpcdash.services.session import ClusterSession
from hpcdash.ui.cluster.wall import letter_style
from hpcdash.ui.jobs.table import elapsed_cell, job_hint, where_cell
from hpcdash.ui.table_view import TableView
from hpcdash.ui.themes import style_name
from hpcdash.ui.view import Targets
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.lines import PlainStatic

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardScreen


class AllJobsView(TableView):
    """One's own jobs on all clusters; enter goes to a job on its cluster."""

    SPEC = ALL_JOBS
    DEFAULT_CSS = """
    AllJobsView > #clusters { height: auto; max-height: 12; padding: 0 1; }
    """

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        super().__init__(session, **rest)
        self._stops: list[Callable[[], None]] = []
        # The clusters' tables, and the one that they are joined to.
        self._joined: tuple[list[tuple[str, pa.Table]], pa.Table | None] = ([], None)

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
        super().on_mount()

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
        tables = [(one.name, one.store.table(Kind.MINE)) for one in self.sessions]
        known = [(name, table) for name, table in tables if table is not None]
        before = self._joined[0]
        is_same = len(known) == len(before) and all(
            table is earlier for (_, table), (_, earlier) in zip(known, before, strict=True)
        )
        # A filter is typed letter by letter, over the same tables.
        if not is_same:
            self._joined = (known, join_jobs(known))
        return self._joined[1]

    def reload(self) -> None:
        super().reload()
        self.tick()

    def tick(self) -> None:
        if self.is_live:
            lines = [self._cluster_line(session) for session in self.sessions]
            self.query_one("#clusters", PlainStatic).update(Content("\n").join(lines))

    def _cluster_line(self, session: ClusterSession) -> Content:
        """Return a cluster's jobs by state, their age, and why they are not newer."""
        store = session.store
        snapshot = store.snapshots.get(Kind.MINE)
        parts = []
        if snapshot is not None:
            counts = own_jobs(snapshot.table)
            parts.append(", ".join(f"{count} {state}" for state, count in counts) or "no jobs")
            parts.append(f"{format_age(max(0.0, store.clock.now() - snapshot.taken_at))} ago")
        error = store.connection_error or store.errors.get(Kind.MINE)
        if error is not None:
            parts.append(error.message)
        elif snapshot is None or snapshot.cached:
            parts.append(store.transport.health.detail or "connecting …")
        name = f"{clip(visible(store.title), 20):<20}  "
        text = clip(visible("  ·  ".join(parts)), max(20, self.size.width - len(name) - 4))
        style = "$warning" if error is not None else "$text-muted"
        return Content.assemble(("▌", style_name(self._edge(session.name))), name, (text, style))

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
