"""Tables of what a site allows: limits, fair shares and reservations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any

import pyarrow as pa

from hpcdash.domain.limits import format_limit, format_limited, format_share_tree, format_when
from hpcdash.domain.tables import LIMITS, RESERVATIONS, SHARES, Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_count
from hpcdash.services.cluster.store import Changed
from hpcdash.services.usage.limits import with_counted_use
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells

_BAR_CELLS = 8
_SCOPES = {"qos": "QoS"}
_RESERVATION_STATES = {"active": cells.GOOD, "ended": cells.MUTED}


def scope_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    return _SCOPES.get(str(value), str(value))


def amount_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """An amount in the resource's unit; a job uses nothing up."""
    if value is None:
        return "" if row["per"] == "job" else cells.text_cell(None, row)
    return format_limited(str(row["resource"]), value)


def free_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Return the amount left, and a bar of the use."""
    text = amount_cell(value, row)
    if value is None or not isinstance(text, str):
        return text
    used = min(1.0, (row["used"] or 0) / row["maximum"]) if row["maximum"] else 1.0
    return [
        (f"{text:>7} ", cells.WARNING if not value else ""),
        *cells.usage_bar(used, _BAR_CELLS),
    ]


def only(key: str, value: str) -> str:
    """A filter for one value; no name has a quote that would end it."""
    return f'{key}:"{value.replace(chr(34), "")}"'


class LimitsView(TableView):
    """Associations and accounts, then QoS; or the server and its queues."""

    SPEC = LIMITS

    @property
    def kinds(self) -> frozenset[Kind]:
        # One's own jobs show the use where the scheduler does not report it.
        return frozenset({Kind.LIMITS, Kind.MINE})

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"scope": scope_cell, "used": amount_cell, "limit": amount_cell, "free": free_cell}

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
        return "No limits apply to you. 3 shows queue limits"

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """The jobs that it is on."""
        name = str(row["name"])
        filters = {
            "qos": only("qos", name),
            "queue": only("queue", name),
            "account": only("account", name),
            "association": only("account", name.partition("/")[0]),
        }
        requested = filters.get(row["scope"], "")
        if row["scope"] == "qos" and row["queues"]:
            requested = " or ".join(only("queue", queue) for queue in row["queues"])
        self.post_message(
            self.Requested(
                "jobs", everyone=row["per"] not in ("user", "job"), filter_text=requested
            )
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


def tree_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """A user under its account, an account under its parent; one's own are marked."""
    name = visible(format_share_tree(row))
    return (f"{name} {cells.signs().mark}", cells.STRONG) if row["own"] else name


def raw_shares_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """The root has no shares of anything."""
    return "" if value is None and not row["_depth"] else cells.count_cell(value, row)


def percent_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """A part of a whole; the root is none."""
    if value is None:
        return cells.text_cell(None, row) if row["_depth"] else ""
    return f"{100 * value:.1f}%"


def factor_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """0-1, with a bar; only users have one."""
    if value is None:
        return "" if row["user"] is None else cells.text_cell(None, row)
    return [(f"{value:.3f} ", ""), *cells.usage_bar(min(value, 1.0), _BAR_CELLS)]


def level_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """Over 1: less was used than its share; where nothing was used there is no bound."""
    if value is None:
        return cells.text_cell(None, row) if row["_depth"] else ""
    text = "unused" if isinf(value) else f"{value:.2f}"
    return text, cells.GOOD if value >= 1 else cells.WARNING


class SharesView(TableView):
    """One's own associations with the accounts above; with everyone's all accounts."""

    SPEC = SHARES

    def __init__(self, *arguments: Any, everyone: bool = False, **rest: Any) -> None:
        self.everyone = everyone
        super().__init__(*arguments, **rest)

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            "account": tree_cell,
            "shares": raw_shares_cell,
            "of_parent": percent_cell,
            "usage": percent_cell,
            "fair_share": factor_cell,
            "level": level_cell,
            "norm_usage": percent_cell,
        }

    def source(self) -> pa.Table | None:
        table = super().source()
        return table if table is None or self.everyone else table.filter(table["_on_own_path"])

    def scope_crumbs(self) -> Sequence[str]:
        return (self.spec.name, "all accounts" if self.everyone else "mine")

    def placeholder(self) -> str:
        return "You have no accounts here. m shows all accounts"

    def do_mine(self) -> None:
        self.everyone = not self.everyone
        self.reload()

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """The account's jobs, or one's own there."""
        requested = only("account", str(row["account"]))
        self.post_message(self.Requested("jobs", everyone=not row["own"], filter_text=requested))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        who = f"{row['user']} in {row['account']}" if row["user"] else f"account {row['account']}"
        parts = [who]
        if (
            row["raw_shares"] is not None
            and row["normalized_shares"] is not None
            and row["effective_usage"] is not None
        ):
            parts.append(
                f"{format_count(row['raw_shares'])} shares: "
                f"{100 * row['normalized_shares']:.1f}% of the level; usage "
                f"{100 * row['effective_usage']:.1f}%"
            )
        level = row["level_fair_share"]
        if level is not None:
            has_more = "has not used anything recently" if isinf(level) else ""
            parts.append(
                has_more
                or (
                    "has used less than its share" if level >= 1 else "has used more than its share"
                )
            )
        if row["fair_share"] is not None:
            parts.append(f"fair share {row['fair_share']:.3f} of 1: higher values start sooner")
        return "  ·  ".join(parts)


def state_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    return visible(str(value)), _RESERVATION_STATES.get(str(value), "")


def allowed_cell(value: bool | None, row: cells.RowContext) -> cells.Cell:
    if value is None:
        return cells.text_cell(None, row)
    return ("yes", cells.GOOD) if value else ("no", cells.MUTED)


class ReservationsView(TableView):
    """All that one may see, the earliest first."""

    SPEC = RESERVATIONS

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"state": state_cell, "allowed": allowed_cell}

    def key_ranks(self) -> Mapping[str, int | None]:
        # There is no more to show of one.
        return {"open": None}

    def counts(self) -> tuple[str, str]:
        count = self.rows.row_count if self.is_live else 0
        return counted(count, "reservation"), str(count)

    def placeholder(self) -> str:
        return "No reservations. ctrl+r refreshes"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        may = {
            True: f"you may use it: {row['_option']}",
            False: "you are not allowed to use it",
            None: "",
        }[row["allowed"]]
        return "  ·  ".join(
            filter(None, (row["name"], format_when(row, self.now()), may, row["_note"]))
        )
