"""Losses, ends of trainings and causes of failures in a table of jobs: read in the logs of the
visible rows at the pace of polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import fsum, isfinite, isnan
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.root_cause import Strength, root_cause
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_span
from hpcdash.services.jobs.failures import FAILED
from hpcdash.services.metrics.charts.state import main_metric
from hpcdash.services.metrics.loss_tails import LossTail, LossTails
from hpcdash.services.metrics.vocabulary import is_loss
from hpcdash.services.session import ClusterSession
from hpcdash.ui.screen import unexpected
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table import RowsTable

# Polls are not exactly on time.
_EARLY = 0.8
# Interval of a column that the user did not choose, and the duration of a read that ends it.
_UNCHOSEN_SECONDS = 60.0
_SLOW_READ_SECONDS = 1.0
CURVE_CELLS = 10
VALUE_CELLS = 7
_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=+*#"
_NOT_FINITE = "✗"
_NOT_FINITE_PLAIN = "x"


class RowLogs:
    """Logs of the visible jobs, for the cells of their rows."""

    def __init__(self, session: ClusterSession, patterns: Sequence[str] = ()) -> None:
        self._session = session
        self._tails = LossTails(session.store, loss_among, patterns)
        self._read_at = float("-inf")
        self._took_seconds = 0.0
        self._notified: set[str] = set()
        # Causes of failed jobs, '' where the log shows none; their logs are not read again.
        self._causes: dict[str, str] = {}

    def cell(self, value: object, row: cells.RowContext) -> cells.Cell:
        if row["state"] != JobState.RUNNING:
            return ""
        return loss_cell(self._tails.tail(str(row["id"])))

    def outcome(self, row: cells.RowContext, now: datetime) -> cells.Piece | None:
        """Return when the training of a running job ends, or why a job failed; None if its log does
        not show that.
        """
        job_id = str(row["id"])
        if row["state"] in FAILED:
            cause = self._causes.get(job_id)
            return (visible(cause), cells.BAD) if cause else None
        tail = self._tails.tail(job_id) if row["state"] == JobState.RUNNING else None
        if tail is None or tail.seconds_to_end is None:
            return None
        limit = row["ends_at"]
        return ending(tail.seconds_to_end, None if limit is None else (limit - now).total_seconds())

    def is_due(self, kind: Kind, *, is_chosen: bool) -> bool:
        """Whether the logs must be read again: at the interval of polls of `kind`.

        If the user did not choose the column, once a minute, and never after a slow read.
        """
        pause = self._session.poller.interval_seconds(kind)
        if not is_chosen:
            if self._took_seconds > _SLOW_READ_SECONDS:
                return False
            pause = max(pause, _UNCHOSEN_SECONDS)
        return time.monotonic() - self._read_at >= _EARLY * pause

    async def refresh(self, rows: RowsTable) -> None:
        """Read the logs of the user's running and failed jobs among the visible rows."""
        seen = rows.visible_ids()
        if not seen:
            return
        self._read_at = time.monotonic()
        try:
            requested = self._requested(rows.table, seen)
            is_new = await self._tails.refresh(requested)
            running = {str(row["id"]) for row in requested if row["state"] == JobState.RUNNING}
            read = {
                job_id
                for job_id in self._tails.looked_at - running
                if self._tails.by_file(job_id) or not self._tails.files(job_id)
            }
            # A cause takes milliseconds to find.
            causes = await asyncio.to_thread(lambda: {one: self._cause(one) for one in read})
            # A failed job that runs again was requeued.
            self._causes = {
                job_id: cause for job_id, cause in self._causes.items() if job_id not in running
            } | causes
            is_new = is_new or any(causes.values())
        except Exception as error:  # a log may contain anything
            is_new = False
            self._notify(rows, "", error)
        self._took_seconds = time.monotonic() - self._read_at
        for job_id, failure in list(self._tails.failures.items()):
            self._notify(rows, f"{job_id}: ", failure)
        for text in self._tails.pattern_problems():
            self._notify_once(rows, text, "warning")
        if is_new and rows.is_attached:
            rows.repaint()

    def _notify(self, rows: RowsTable, whose: str, error: Exception) -> None:
        """Notify once for each job and type of error."""
        key = f"{whose}{type(error).__name__}"
        if key not in self._notified and rows.is_attached:
            self._notified.add(key)
            message = unexpected(rows.app, "read this", error).message
            self._notify_once(rows, f"{whose}{message}", "error")

    def _notify_once(
        self, rows: RowsTable, text: str, severity: Literal["warning", "error"]
    ) -> None:
        if text not in self._notified and rows.is_attached:
            self._notified.add(text)
            rows.app.notify(visible(text), severity=severity)

    def _cause(self, job_id: str) -> str:
        """Return the cause of a failure in the last lines of a job's logs; '' for none."""
        causes = (root_cause(tail.lines) for tail in self._tails.by_file(job_id).values())
        known = [cause for cause in causes if cause and cause.strength > Strength.WORDS]
        return max(known, key=lambda cause: cause.strength).text if known else ""

    def _requested(self, table: pa.Table, seen: Sequence[str]) -> list[dict[str, Any]]:
        ids = table["_row_id"]
        shown = table.filter(pc.is_in(ids, value_set=pa.array(seen, ids.type)))
        requested = shown.select(
            ["id", "state", "user", "stdout_path", "stderr_path", "_fold"]
        ).to_pylist()
        user = self._session.store.user

        def is_requested(row: Mapping[str, Any]) -> bool:
            # 1 and 2 are summaries of arrays, whose tasks have the logs (ui.jobs.table).
            if row["_fold"] in (1, 2) or (user and row["user"] != user):
                return False
            is_failed = row["state"] in FAILED and str(row["id"]) not in self._causes
            return is_failed or row["state"] == JobState.RUNNING

        return list(filter(is_requested, requested))


def loss_among(names: tuple[str, ...]) -> str | None:
    """Return the metric that is the training's loss; None without one."""
    name = main_metric(names)
    return name if name is not None and is_loss(name) else None


def sparkline(values: Sequence[float], width: int, *, is_ascii: bool = False) -> list[str]:
    """Draw the means of at most `width` parts of the values as blocks.

    A part with nan or inf is a cross.
    """
    count = min(width, len(values))
    means = []
    for at in range(count):
        part = values[at * len(values) // count : (at + 1) * len(values) // count]
        is_finite = all(map(isfinite, part))
        # The sum of huge values may exceed the range of a float.
        means.append(fsum(one / len(part) for one in part) if is_finite else None)
    known = [mean for mean in means if mean is not None]
    low = min(known, default=0.0)
    high = max(known, default=0.0)
    levels, cross = (_PLAIN, _NOT_FINITE_PLAIN) if is_ascii else (_BLOCKS, _NOT_FINITE)
    signs = []
    for mean in means:
        if mean is None:
            signs.append(cross)
            continue
        # The range of two huge values may exceed that of a float.
        height = (mean / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0
        signs.append(levels[min(int(height * len(levels)), len(levels) - 1)])
    return signs


def format_value(value: float) -> str:
    """Format a value in at most VALUE_CELLS: four digits; nan and inf as text."""
    if isnan(value):
        return "nan"
    if not isfinite(value):
        return "inf" if value > 0 else "-inf"
    for digits in (4, 3, 2):
        text = f"{value:.{digits}g}".replace("e+0", "e").replace("e-0", "e-")
        if len(text) <= VALUE_CELLS:
            return text
    return f"{value:.0e}"[:VALUE_CELLS]


def ending(seconds_to_end: float, limit_seconds_left: float | None) -> cells.Piece:
    """Format when a training ends, or how much too short the limit of its job is."""
    if limit_seconds_left is not None and 0 < limit_seconds_left < seconds_to_end:
        missing = format_span(seconds_to_end - limit_seconds_left)
        return f"limit {missing} short", cells.WARNING
    return (
        f"ends in {format_span(seconds_to_end)}" if seconds_to_end else "at the final step",
        cells.MUTED,
    )


def loss_cell(tail: LossTail | None) -> cells.Cell:
    """Draw a loss: `█▆▅▃▃▂▂▂▁▁ 2.313`; a dash for a log without one, '' for an unread log."""
    is_ascii = cells.signs() is cells.ASCII_SIGNS
    if tail is None:
        return ""
    if not tail.values:
        return cells.signs().missing, cells.MUTED
    curve = sparkline(tail.values, CURVE_CELLS, is_ascii=is_ascii)
    pieces: list[cells.Piece] = []
    for sign in curve:
        is_bad = sign in (_NOT_FINITE, _NOT_FINITE_PLAIN)
        pieces.append((sign, cells.BAD if is_bad else cells.ACCENT))
    pieces.append((" " * (CURVE_CELLS - len(curve) + 1), ""))
    newest = tail.values[-1]
    pieces.append((format_value(newest), "" if isfinite(newest) else cells.BAD))
    return pieces
