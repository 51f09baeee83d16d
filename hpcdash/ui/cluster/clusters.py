"""Configured and detected clusters, and the health of each connection."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from textual.app import ComposeResult

from hpcdash.domain.tables import ColumnSpec, Kind, TableSpec
from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.site import (
    FILE,
    fetch_site_clusters,
    format_proposals,
    propose_clusters,
    read_site_clusters,
)
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.ui.screen import DashboardScreen

CLUSTERS = TableSpec(
    "clusters",
    fields={
        "name": "text",
        "title": "text",
        "state": "text",
        "user": "text",
        "version": "text",
        "age": "text",
        "answer_ms": "count",
        "per_minute": "text",
        "jobs": "count",
        "detail": "text",
        "origin": "text",
    },
    columns=(
        ColumnSpec("name", 10, 0, "title", "CLUSTER", flexible=True, longest=40),
        ColumnSpec("state", 10, 0, title="CONNECTION"),
        ColumnSpec("user", 9, 4),
        ColumnSpec("version", 17, 6, title="SCHEDULER"),
        ColumnSpec("jobs", 5, 3, title="MINE"),
        ColumnSpec("age", 7, 2, align="right"),
        ColumnSpec("answer", 6, 5, "answer_ms", "MS"),
        ColumnSpec("commands", 9, 5, "per_minute", "CMD/MIN", align="right"),
        ColumnSpec("detail", 20, 1, title="MESSAGE", flexible=True),
        ColumnSpec("origin", 16, 7, title="FROM"),
    ),
    shown=(
        "name",
        "state",
        "user",
        "version",
        "jobs",
        "age",
        "answer",
        "commands",
        "detail",
    ),
)
_CONNECTION_STYLES = {
    "connected": cells.GOOD,
    "lost": cells.BAD,
    "failed": cells.BAD,
    "asking": cells.WARNING,
}


def connection_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Return the state of the connection with its colour."""
    return str(value), _CONNECTION_STYLES.get(str(value), cells.MUTED)


def session_row(session: ClusterSession, now: float) -> dict[str, Any]:
    """Return a row of CLUSTERS."""
    store = session.store
    health = store.transport.health
    error = first_error(session)
    mine = store.snapshots.get(Kind.MINE)
    return {
        "name": store.name,
        "title": store.title,
        "state": health.state,
        "user": store.user,
        "version": store.probe.version if store.probe else "",
        "age": format_age(max(0.0, now - mine.taken_at)) if mine else "",
        "answer_ms": None
        if store.budget.last_seconds is None
        else round(store.budget.last_seconds * 1000),
        "per_minute": f"{store.budget.per_minute} of {store.budget.ceiling}",
        "jobs": mine.table.num_rows if mine else None,
        "detail": error.message if error else health.detail,
        "origin": session.origin,
    }


def first_error(session: ClusterSession) -> HpcdashError | None:
    """Return the error of a cluster's connection, else of one of its tables."""
    return session.store.connection_error or next(iter(session.store.errors.values()), None)


class ClustersView(TableView):
    """All clusters; enter goes to the selected cluster. Below, those of a site that are not
    configured.
    """

    SPEC = CLUSTERS
    DEFAULT_CSS = """
    ClustersView > #proposed { height: auto; max-height: 12; padding: 0 1; color: $text-muted; }
    """

    def compose(self) -> ComposeResult:
        yield from super().compose()
        below = PlainStatic(id="proposed")
        below.display = False
        yield below

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"state": connection_cell}

    @property
    def sessions(self) -> Sequence[ClusterSession]:
        return cast("DashboardScreen", self.screen).sessions

    def source(self) -> pa.Table | None:
        now = self.session.store.clock.now()
        rows = [session_row(session, now) for session in self.sessions]
        return pa.Table.from_pylist(rows, self.schema)

    def counts(self) -> tuple[str, str]:
        return "", ""

    def on_mount(self) -> None:
        self.reload()
        self.set_interval(1.0, self._refresh_ages)
        start_worker(self, self._fetch_sites, group="sites", exclusive=True)

    async def _fetch_sites(self) -> None:
        """Read the clusters of each connected site, and list those that are not configured."""
        known = []
        for session in self.sessions:
            store = session.store
            if session.settings is None:
                continue
            site = read_site_clusters(store.cache_file(FILE))
            if store.probe is not None:
                with contextlib.suppress(HpcdashError):
                    site = await fetch_site_clusters(store)
            known.append((session.settings, site))
        lines = format_proposals(propose_clusters(known), "config.toml")
        if self.is_live:
            below = self.query_one("#proposed", PlainStatic)
            below.update("\n".join(lines))
            below.display = bool(lines)

    def _refresh_ages(self) -> None:
        if self.display:
            self.reload()

    def store_changed(self, changed: Changed) -> None:
        self.reload()

    def scope_crumbs(self) -> Sequence[str]:
        return ("clusters",)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        session = next(one for one in self.sessions if one.name == row["name"])
        error = first_error(session)
        if error is not None and error.next_step:
            return error.next_step
        health = session.store.transport.health
        parts = [" → ".join(health.hops)]
        if health.connected_at is not None:
            seconds = max(0.0, session.store.clock.now() - health.connected_at)
            parts.append(f"connected for {format_age(seconds)}")
        parts += [health.detail, session.origin, "enter switches to this cluster"]
        return "  ·  ".join(filter(None, parts))

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("cluster", name=row_id))
