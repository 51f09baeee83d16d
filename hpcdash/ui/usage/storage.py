"""Use of file systems and quotas, queried when the view is opened and at ctrl+r."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from hpcdash.domain.tables import STORAGE
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_count, format_memory
from hpcdash.errors import HpcdashError
from hpcdash.services.session import ClusterSession
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.workers import start_worker

_BAR_CELLS = 8
_NEARLY_FULL = 0.85


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
        super().on_mount()
        self.do_refresh()

    def source(self) -> pa.Table | None:
        return self._table

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"share": share_cell, "files": files_cell, "max_files": files_cell}

    def scope_crumbs(self) -> Sequence[str]:
        return ("storage",)

    def row_hint(self, row: Mapping[str, Any]) -> str:
        parts = [visible(row["path"]), visible(row["name"] or ""), visible(row["problem"] or "")]
        if row["free_bytes"] is not None:
            parts.append(f"{format_memory(row['free_bytes'])} free")
        if row["owner"]:
            parts.append(f"quota of {visible(row['owner'])}")
        if row["source"]:
            parts.append(f"reported by {row['source']}")
        return "  ·  ".join(filter(None, parts))

    def do_refresh(self) -> bool:
        start_worker(self, self._fetch, group="fetch", exclusive=True)
        return True

    async def _fetch(self) -> None:
        from hpcdash.services.usage.storage import fetch_storage

        board = self.session.watching
        rules = () if board is None else board.settings.storage
        try:
            self._table = await fetch_storage(self.session, (), rules)
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        else:
            self._error = None
            self._taken_at = self.session.store.clock.now()
        self.reload()
