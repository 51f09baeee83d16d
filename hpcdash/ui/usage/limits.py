"""The limits that hold for oneself, with what is used of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from hpcdash.domain.limits import format_limit, format_limited, format_per, format_resource
from hpcdash.domain.text import visible
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import Changed
from hpcdash.services.usage.limits import with_counted_use
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table_rows import Column

_BAR_CELLS = 8
_SCOPES = {"qos": "QoS"}


def scope_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    return _SCOPES.get(str(value), str(value))


def per_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    return visible(format_per(row))


def resource_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    return visible(format_resource(str(value)))


def amount_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """An amount in the resource's unit; a job uses nothing up."""
    if value is None:
        return "" if row["per"] == "job" else cells.text_cell(None, row)
    return format_limited(str(row["resource"]), value)


def free_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """What is left, and how full it is."""
    words = amount_cell(value, row)
    if value is None or not isinstance(words, str):
        return words
    used = min(1.0, (row["used"] or 0) / row["maximum"]) if row["maximum"] else 1.0
    return [
        (f"{words:>7} ", cells.WARNING if not value else ""),
        *cells.usage_bar(used, _BAR_CELLS),
    ]


def only(key: str, value: str) -> str:
    """A filter for one value; no name has a quote that would end it."""
    return f'{key}:"{value.replace(chr(34), "")}"'


class LimitsView(TableView):
    """Associations and accounts, then QoS; or the server and its queues."""

    NAME = "limits"
    IDENTITY = "_id"
    DEFAULT_COLUMNS = ("scope", "name", "per", "resource", "used", "limit", "free")

    @property
    def kind(self) -> Kind:
        return Kind.LIMITS

    @property
    def kinds(self) -> frozenset[Kind]:
        # One's own jobs tell what is used where the scheduler does not.
        return frozenset({Kind.LIMITS, Kind.MINE})

    @cached_property
    def _catalogue(self) -> dict[str, Column]:
        return {
            "scope": Column("scope", "LIMIT OF", 11, "left", 2, scope_cell),
            "name": Column(
                "name", "NAME", 10, "left", 0, cells.text_cell, flexible=True, longest=32
            ),
            "per": Column("per", "FOR", 16, "left", 1, per_cell),
            "resource": Column("resource", "RESOURCE", 26, "left", 0, resource_cell),
            "used": Column("used", "USED", 7, "right", 0, amount_cell),
            "limit": Column("maximum", "LIMIT", 8, "right", 0, amount_cell),
            "free": Column("free", "FREE", 8 + _BAR_CELLS, "left", 1, free_cell),
            "queues": Column("queues", "QUEUES", 8, "left", 4, cells.text_cell, longest=24),
            "native": Column("native", "SCHEDULER'S NAME", 16, "left", 5, cells.muted_cell),
        }

    def catalogue(self) -> Mapping[str, Column]:
        return self._catalogue

    def source(self) -> pa.Table | None:
        store = self.session.store
        table = super().source()
        if table is None:
            return None
        everyone = store.snapshots.get(Kind.EVERYONE)
        is_fresh = everyone is not None and not everyone.cached
        return with_counted_use(
            table,
            store.table(Kind.MINE),
            everyone.table if everyone and is_fresh else None,
            store.user,
        )

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, Kind.LIMITS, Kind.MINE):
            self.reload()

    def placeholder(self) -> str:
        return "No limits are set for you. 3 shows what queues allow"

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """The jobs that it is on."""
        name = str(row["name"])
        filters = {
            "qos": only("qos", name),
            "queue": only("queue", name),
            "account": only("account", name),
            "association": only("account", name.partition("/")[0]),
        }
        wanted = filters.get(row["scope"], "")
        if row["scope"] == "qos" and row["queues"]:
            wanted = " or ".join(only("queue", queue) for queue in row["queues"])
        self.post_message(
            self.Requested("jobs", everyone=row["per"] not in ("user", "job"), filter_text=wanted)
        )

    def row_hint(self, row: Mapping[str, Any]) -> str:
        queues = (
            f"all jobs in {', '.join(row['queues'])}"
            if row["queues"] and row["scope"] == "qos"
            else ""
        )
        return "  ·  ".join(
            filter(None, (format_limit(row), queues, row["native"], "enter shows the jobs"))
        )
