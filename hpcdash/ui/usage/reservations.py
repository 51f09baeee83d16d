"""Reservations: when they begin and end, which nodes they keep, and whether one may use them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from hpcdash.domain.limits import format_when, format_who
from hpcdash.domain.text import counted, visible
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table_rows import Column

_STATES = {"active": cells.GOOD, "ended": cells.MUTED}


def state_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    return visible(str(value)), _STATES.get(str(value), "")


def allowed_cell(value: bool | None, row: cells.RowContext) -> cells.Cell:
    if value is None:
        return cells.text_cell(None, row)
    return ("yes", cells.GOOD) if value else ("no", cells.MUTED)


def who_cell(value: object, row: cells.RowContext) -> cells.Cell:
    return visible(format_who(row)) or cells.text_cell(None, row)


class ReservationsView(TableView):
    """All that one may see, the earliest first."""

    NAME = "reservations"
    DEFAULT_COLUMNS = (
        "name",
        "state",
        "allowed",
        "starts",
        "ends",
        "nodes",
        "node_list",
        "who",
        "flags",
    )

    @property
    def kind(self) -> Kind:
        return Kind.RESERVATIONS

    @cached_property
    def _catalogue(self) -> dict[str, Column]:
        instant = cells.instant_cell(self.now, self.session.zone)
        return {
            "name": Column(
                "name", "RESERVATION", 11, "left", 0, cells.text_cell, flexible=True, longest=30
            ),
            "state": Column("state", "STATE", 11, "left", 0, state_cell),
            "allowed": Column("allowed", "FOR YOU", 7, "left", 0, allowed_cell),
            "starts": Column("starts_at", "BEGINS", 10, "right", 1, instant),
            "ends": Column("ends_at", "ENDS", 10, "right", 1, instant),
            "lasts": Column("duration_seconds", "LASTS", 8, "right", 5, cells.duration_cell),
            "nodes": Column("nodes", "NODES", 5, "right", 3, cells.count_cell),
            "node_list": Column(
                "node_list", "NODE LIST", 10, "left", 4, cells.text_cell, longest=24
            ),
            "queue": Column("queue", "QUEUE", 8, "left", 6, cells.text_cell, longest=16),
            "who": Column("users", "WHO", 26, "left", 2, who_cell),
            "flags": Column("flags", "FLAGS", 10, "left", 7, cells.muted_cell, flexible=True),
        }

    def catalogue(self) -> Mapping[str, Column]:
        return self._catalogue

    def key_ranks(self) -> Mapping[str, int | None]:
        # There is no more to show of one.
        return {"open": None}

    def counts(self) -> tuple[str, str]:
        count = self.rows.row_count if self.is_live else 0
        return counted(count, "reservation"), str(count)

    def placeholder(self) -> str:
        return "No reservations. ctrl+r asks again"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        may = {True: f"you may use it: {row['_option']}", False: "not for you", None: ""}[
            row["allowed"]
        ]
        return "  ·  ".join(
            filter(None, (row["name"], format_when(row, self.now()), may, row["_note"]))
        )
