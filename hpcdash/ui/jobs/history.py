"""Ended jobs of the last week, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import as_array
from hpcdash.domain.job_text import format_end
from hpcdash.domain.states import JobState
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.services.cluster.store import Changed
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table_rows import Column

_EXIT_CELLS = 10
_MOST_EXIT_CELLS = 40


def exit_cell(value: object, row: cells.RowContext) -> cells.Cell:
    """How it ended, where there is more to say than the state."""
    # The tasks of an array have a reason each; that its time was up the state says.
    is_said = row.get("_states") or row["state"] == JobState.TIMEOUT
    return "" if is_said and not row["exit_signal"] and not row["exit_code"] else format_end(row)


class HistoryView(JobsView):
    """What the accounting database knows."""

    NAME = "history"
    # As it comes: the newest end first.
    DEFAULT_SORT = ""
    DEFAULT_COLUMNS = ("id", "name", "user", "queue", "state", "exit", "elapsed", "ended", "cpus", "gpus", "nodes_at")

    @property
    def kind(self) -> Kind:
        return Kind.HISTORY_EVERYONE if self.everyone else Kind.HISTORY

    def make_catalogue(self) -> dict[str, Column]:
        """Those of the queue that an ended job still has, and how it ended."""
        of_jobs = super().make_catalogue()
        kept = ("id", "pinned", "name", "note", "user", "account", "queue", "qos", "state")
        then = ("limit", "submitted", "started", "nodes", "cpus", "gpus", "memory", "comment", "work_dir")
        instant = cells.instant_cell(self.now, self.session.zone)
        return {
            **{name: of_jobs[name] for name in kept},
            "exit": Column("exit_code", "EXIT", _EXIT_CELLS, "left", 2, exit_cell, flexible=True),
            "elapsed": Column("elapsed_seconds", "ELAPSED", 8, "right", 3, cells.duration_cell),
            "ended": Column("ends_at", "ENDED", 10, "right", 2, instant),
            **{name: of_jobs[name] for name in then},
            "nodes_at": Column("node_list", "NODES", 10, "left", 7, cells.text_cell, flexible=True),
        }

    def fitted(self, column: Column, table: pa.Table) -> Column:
        """How a job ended takes what its longest reason does."""
        if column.key != "exit_code":
            return super().fitted(column, table)
        has_number = pc.or_(
            pc.greater(pc.fill_null(as_array(table["exit_code"]), 0), 0),
            pc.greater(pc.fill_null(as_array(table["exit_signal"]), 0), 0),
        )
        reasons = as_array(table["reason"]).cast(pa.string()).filter(pc.invert(has_number))
        longest = pc.max(pc.utf8_length(reasons)).as_py() or 0
        return replace(column, longest=max(_EXIT_CELLS, min(longest, _MOST_EXIT_CELLS)))

    def placeholder(self) -> str:
        if self.everyone:
            return "No jobs ended in the last 7 days. m shows only yours"
        return "None of your jobs ended in the last 7 days. m shows everyone's"

    def scope_crumbs(self) -> Sequence[str]:
        return ("history", "everyone's" if self.everyone else "mine", "7 days")

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, self.kind):
            self.reload()
