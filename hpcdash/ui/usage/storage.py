"""Use of file systems and quotas, queried when the view is opened and at ctrl+r."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from hpcdash.domain.tables import STORAGE
from hpcdash.domain.text import visible
from hpcdash.domain.units import DAY, format_age, format_count, format_memory
from hpcdash.errors import HpcdashError
from hpcdash.services.session import ClusterSession
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.workers import start_worker

_BAR_CELLS = 8
_NEARLY_FULL = 0.85
_SOON_SECONDS = 3 * DAY


def share_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    """Return the used share of the limit, with a bar."""
    if value is None or not row["limit_bytes"]:
        return ""
    share = value / row["limit_bytes"]
    style = cells.WARNING if share >= _NEARLY_FULL else ""
    return [(f"{100 * share:3.0f}% ", style), *cells.usage_bar(min(1.0, share), _BAR_CELLS)]


def files_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    return "" if value is None else format_count(value)


class StorageView(TableView):
    """One's home, launches, jobs' folders and the configured paths."""

    SPEC = STORAGE

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        super().__init__(session, **rest)
        self._table: pa.Table | None = None

    def on_mount(self) -> None:
        self.do_refresh()

    def source(self) -> pa.Table | None:
        return self._table

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            "share": share_cell,
            "files": files_cell,
            "max_files": files_cell,
            "full": self._full_cell,
        }

    def _full_cell(self, value: datetime | None, row: cells.RowContext) -> cells.Cell:
        if value is None:
            return ""
        seconds = max(0.0, (value - self.now()).total_seconds())
        return f"in {format_age(seconds)}", cells.WARNING if seconds < _SOON_SECONDS else ""

    def scope_crumbs(self) -> Sequence[str]:
        return ("storage",)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        parts = [visible(row["path"]), visible(row["name"] or ""), visible(row["problem"] or "")]
        if row["free_bytes"] is not None:
            parts.append(f"{format_memory(row['free_bytes'])} free")
        if row["full_at"] is not None:
            seconds = max(0.0, (row["full_at"] - self.now()).total_seconds())
            growth = format_memory(row["daily_growth_bytes"])
            parts.append(f"full in {format_age(seconds)} at {growth} a day")
        elif row["daily_growth_bytes"] is not None:
            parts.append(f"grows by {format_memory(row['daily_growth_bytes'])} a day")
        if row["daily_checkpoint_bytes"] is not None:
            saves = format_memory(row["daily_checkpoint_bytes"])
            parts.append(f"checkpoints write {saves} a day")
        if row["owner"]:
            parts.append(f"quota of {visible(row['owner'])}")
        if row["source"]:
            source = "the site's command" if row["source"] == "site" else row["source"]
            parts.append(f"reported by {source}")
        return "  ·  ".join(filter(None, parts))

    def do_refresh(self) -> bool:
        start_worker(self, self._fetch, group="fetch", exclusive=True)
        return True

    async def _fetch(self) -> None:
        from hpcdash.services.usage.storage import fetch_storage

        board = self.session.watching
        rules = () if board is None else board.settings.storage
        try:
            use = await fetch_storage(self.session, (), rules)
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        else:
            self._table = use.table
            self._error = None if use.problem is None else use.problem.with_traceback(None)
            self._taken_at = self.session.store.clock.now()
        self.reload()
