"""The column of losses in a table of jobs: of the rows on the screen, read at the pace of polls while it is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.states import JobState
from hpcdash.domain.text import visible
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.metrics.charts.state import is_loss, main_metric
from hpcdash.services.metrics.loss_tails import LossTails
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.unexpected import unexpected
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.loss_cell import loss_cell
from hpcdash.ui.widgets.rows_table import RowsTable

# Polls are never quite on time.
_EARLY = 0.8


class ShownLosses:
    """What the logs of the jobs on the screen say, for their cells."""

    def __init__(self, session: ClusterSession, patterns: Sequence[str] = ()) -> None:
        self._session = session
        self._tails = LossTails(session.store, loss_among, patterns)
        self._looked_at = float("-inf")
        self._told: set[str] = set()

    def cell(self, value: object, row: cells.RowContext) -> cells.Cell:
        return loss_cell(self._tails.tail(str(row["id"]))) if row["state"] == JobState.RUNNING else ""

    def is_due(self, kind: Kind) -> bool:
        """Whether it is so long since the last look as polls of that kind are apart."""
        pause = self._session.poller.interval_seconds(kind)
        return time.monotonic() - self._looked_at >= _EARLY * pause

    async def look(self, rows: RowsTable) -> None:
        """Read the logs of one's own running jobs among the rows that are seen."""
        seen = rows.visible_ids()
        if not seen:
            return
        self._looked_at = time.monotonic()
        try:
            is_new = await self._tails.refresh(self._own_running(rows.table, seen))
        except Exception as error:  # a log may hold anything; it ends nothing
            is_new = False
            self._tell(rows, "", error)
        for job_id, failure in list(self._tails.failures.items()):
            self._tell(rows, f"{job_id}: ", failure)
        for words in self._tails.pattern_problems():
            self._say_once(rows, words, "warning")
        if is_new and rows.is_attached:
            rows.repaint()

    def _tell(self, rows: RowsTable, whose: str, error: Exception) -> None:
        """Once for each job and kind of error."""
        if (key := f"{whose}{type(error).__name__}") not in self._told and rows.is_attached:
            self._told.add(key)
            self._say_once(rows, f"{whose}{unexpected(rows.app, 'read this', error).message}", "error")

    def _say_once(self, rows: RowsTable, words: str, severity: Literal["warning", "error"]) -> None:
        if words not in self._told and rows.is_attached:
            self._told.add(words)
            rows.app.notify(visible(words), severity=severity, markup=False)

    def _own_running(self, table: pa.Table, seen: Sequence[str]) -> list[dict[str, Any]]:
        ids = table["_row_id"]
        shown = table.filter(pc.is_in(ids, value_set=pa.array(seen, ids.type)))
        wanted = shown.select(["id", "state", "user", "stdout_path", "stderr_path", "_fold"]).to_pylist()
        user = self._session.store.user
        # 1 and 2 are summaries of arrays, whose tasks have the logs (see views.jobs).
        return [
            row
            for row in wanted
            if row["state"] == JobState.RUNNING and row["_fold"] not in (1, 2) and (not user or row["user"] == user)
        ]


def loss_among(names: tuple[str, ...]) -> str | None:
    """The training's loss, where a log has one."""
    name = main_metric(names)
    return name if name is not None and is_loss(name) else None
