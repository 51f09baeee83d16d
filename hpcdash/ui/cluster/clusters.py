"""Clusters: what is configured or found, and the health of each connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from hpcdash.domain.units import format_age
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table_rows import Column

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("title", pa.string()),
        ("state", pa.string()),
        ("user", pa.string()),
        ("version", pa.string()),
        ("age", pa.string()),
        ("answer_ms", pa.int64()),
        ("per_minute", pa.string()),
        ("jobs", pa.int64()),
        ("detail", pa.string()),
        ("origin", pa.string()),
    ]
)
_CONNECTION_STYLES = {
    "connected": cells.GOOD,
    "lost": cells.BAD,
    "failed": cells.BAD,
    "asking": cells.WARNING,
}


def connection_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """The state of the line, in a word."""
    return str(value), _CONNECTION_STYLES.get(str(value), cells.MUTED)


def session_row(session: ClusterSession, now: float) -> dict[str, Any]:
    """One line of the table from a session's store."""
    store = session.store
    health = store.transport.health
    error: HpcdashError | None = store.connection_error or next(iter(store.errors.values()), None)
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


class ClustersView(TableView):
    """Every cluster there is; enter goes to one."""

    NAME = "clusters"
    DEFAULT_COLUMNS: ClassVar[tuple[str, ...]] = (
        "name",
        "state",
        "user",
        "version",
        "jobs",
        "age",
        "answer",
        "commands",
        "detail",
    )

    @cached_property
    def _catalogue(self) -> dict[str, Column]:
        text = cells.text_cell
        return {
            "name": Column("title", "CLUSTER", 10, "left", 0, text, flexible=True, longest=40),
            "state": Column("state", "CONNECTION", 10, "left", 0, connection_cell),
            "user": Column("user", "USER", 9, "left", 4, text),
            "version": Column("version", "SCHEDULER", 17, "left", 6, text),
            "jobs": Column("jobs", "MINE", 5, "right", 3, cells.count_cell),
            "age": Column("age", "AGE", 7, "right", 2, text),
            "answer": Column("answer_ms", "MS", 6, "right", 5, cells.count_cell),
            "commands": Column("per_minute", "CMD/MIN", 9, "right", 5, text),
            "detail": Column("detail", "MESSAGE", 20, "left", 1, text, flexible=True),
            "origin": Column("origin", "FROM", 16, "left", 7, text),
        }

    def catalogue(self) -> Mapping[str, Column]:
        return self._catalogue

    @property
    def kind(self) -> Kind:
        return Kind.MINE

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def main_kind(self) -> Kind | None:
        return None

    def source(self) -> pa.Table | None:
        now = self.session.store.clock.now()
        sessions = self.app.sessions  # type: ignore[attr-defined]
        return pa.Table.from_pylist([session_row(one, now) for one in sessions], schema=SCHEMA)

    def counts(self) -> tuple[str, str]:
        return "", ""

    def on_mount(self) -> None:
        self.reload()
        self.set_interval(1.0, self._refresh_ages)

    def _refresh_ages(self) -> None:
        if self.display:
            self.reload()

    def store_changed(self, changed: Changed) -> None:
        self.reload()

    def scope_crumbs(self) -> Sequence[str]:
        return ("clusters",)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        session = next((one for one in self.app.sessions if one.name == row["name"]), None)  # type: ignore[attr-defined]
        if session is None:
            return ""
        error = session.store.connection_error or next(iter(session.store.errors.values()), None)
        if error is not None and error.next_step:
            return str(error.next_step)
        health = session.store.transport.health
        hops = " → ".join(health.hops)
        since = ""
        if health.connected_at is not None:
            since = (
                f"connected for "
                f"{format_age(max(0.0, session.store.clock.now() - health.connected_at))}"
            )
        return "  ·  ".join(
            part
            for part in (hops, since, health.detail, session.origin, "enter goes there")
            if part
        )

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("cluster", name=row_id))
