"""Fair shares: one's accounts and those above them, what each may use and has used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isinf
from typing import Any

import pyarrow as pa

from hpcdash.domain.text import visible
from hpcdash.domain.units import format_count
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.ui.table_view import TableView
from hpcdash.ui.usage.limits import only
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table_rows import Column

_BAR_CELLS = 8


def tree_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """A user under its account, an account under its parent; one's own are marked."""
    partition = f" ({row['partition']})" if row["partition"] else ""
    words = f"{'  ' * (row['_depth'] or 0)}{visible(str(row['user'] or value))}{visible(partition)}"
    return (f"{words} {cells.signs().mark}", cells.STRONG) if row["own"] else words


def raw_shares_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """The root has no shares of anything."""
    return "" if value is None and not row["_depth"] else cells.count_cell(value, row)


def percent_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """A part of a whole; the root is none."""
    if value is None:
        return cells.text_cell(None, row) if row["_depth"] else ""
    return f"{100 * value:.1f} %"


def factor_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """0-1, with a bar; only users have one."""
    if value is None:
        return "" if row["user"] is None else cells.text_cell(None, row)
    return [(f"{value:.3f} ", ""), *cells.usage_bar(min(value, 1.0), _BAR_CELLS)]


def level_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """Over 1: less was used than its share; where nothing was used there is no bound."""
    if value is None:
        return cells.text_cell(None, row) if row["_depth"] else ""
    words = "unused" if isinf(value) else f"{value:.2f}"
    return words, cells.GOOD if value >= 1 else cells.WARNING


class SharesView(TableView):
    """One's own associations with the accounts above; with everyone's all accounts."""

    NAME = "shares"
    IDENTITY = "_id"
    DEFAULT_COLUMNS = (
        "account",
        "shares",
        "of_parent",
        "usage",
        "raw_usage",
        "fair_share",
        "level",
    )
    NOT_ALWAYS_TOLD = frozenset({"level_fair_share"})

    def __init__(self, *arguments: Any, everyone: bool = False, **rest: Any) -> None:
        self.everyone = everyone
        super().__init__(*arguments, **rest)

    @property
    def kind(self) -> Kind:
        return Kind.SHARES

    @cached_property
    def _catalogue(self) -> dict[str, Column]:
        return {
            "account": Column("account", "ACCOUNT/USER", 30, "left", 0, tree_cell),
            "shares": Column("raw_shares", "SHARES", 7, "right", 3, raw_shares_cell),
            "of_parent": Column("normalized_shares", "SHARE", 8, "right", 2, percent_cell),
            "usage": Column("effective_usage", "USED", 8, "right", 1, percent_cell),
            "raw_usage": Column("raw_usage", "RAW USAGE", 9, "right", 4, cells.count_cell),
            "fair_share": Column(
                "fair_share", "FAIR SHARE", 6 + _BAR_CELLS, "left", 0, factor_cell
            ),
            "level": Column("level_fair_share", "LEVEL FS", 8, "right", 2, level_cell),
            "norm_usage": Column("normalized_usage", "OF ALL", 8, "right", 5, percent_cell),
        }

    def catalogue(self) -> Mapping[str, Column]:
        return self._catalogue

    def source(self) -> pa.Table | None:
        table = super().source()
        return table if table is None or self.everyone else table.filter(table["_on_own_path"])

    def scope_crumbs(self) -> Sequence[str]:
        return (self.NAME, "all accounts" if self.everyone else "mine")

    def placeholder(self) -> str:
        return "No account here is yours. m shows all accounts"

    def do_mine(self) -> None:
        self.everyone = not self.everyone
        self.reload()

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        """The account's jobs, or one's own there."""
        wanted = only("account", str(row["account"]))
        self.post_message(self.Requested("jobs", everyone=not row["own"], filter_text=wanted))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        return "  ·  ".join(format_share(row))


def format_share(row: Mapping[str, Any]) -> list[str]:
    """What the figures of a row say."""
    who = f"{row['user']} in {row['account']}" if row["user"] else f"account {row['account']}"
    words = [who]
    if (
        row["raw_shares"] is not None
        and row["normalized_shares"] is not None
        and row["effective_usage"] is not None
    ):
        words.append(
            f"{format_count(row['raw_shares'])} shares: {100 * row['normalized_shares']:.1f} % of "
            f"its level, "
            f"used {100 * row['effective_usage']:.1f} %"
        )
    level = row["level_fair_share"]
    if level is not None:
        has_more = "has used nothing lately" if isinf(level) else ""
        words.append(
            has_more
            or ("has used less than its share" if level >= 1 else "has used more than its share")
        )
    if row["fair_share"] is not None:
        words.append(
            f"fair share {row['fair_share']:.3f} of 1: the higher, the sooner its jobs start"
        )
    return words
