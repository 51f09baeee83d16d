"""Ended jobs of the last week, newest first."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdash.backends.base import Capability
from hpcdash.domain.states import JobState
from hpcdash.domain.words import ended_words
from hpcdash.stores.cluster import Changed
from hpcdash.stores.snapshots import Kind
from hpcdash.ui.views.base import ViewSpec
from hpcdash.ui.views.jobs import JobsView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.rows_layout import Column


def exit_cell(value: object, row: cells.RowContext) -> cells.Cell:
    """How it ended, where there is more to say than the state."""
    # The tasks of an array have a reason each; that its time was up the state says.
    is_said = row.get("_states") or row["state"] == JobState.TIMEOUT
    return "" if is_said and not row["exit_signal"] and not row["exit_code"] else ended_words(row)


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
        kept = ("id", "name", "user", "account", "queue", "qos", "state")
        then = ("limit", "submitted", "started", "nodes", "cpus", "gpus", "memory", "comment", "work_dir")
        instant = cells.instant_cell(self.now, self.session.zone)
        return {
            **{name: of_jobs[name] for name in kept},
            "exit": Column("exit_code", "EXIT", 10, "left", 2, exit_cell),
            "elapsed": Column("elapsed_seconds", "ELAPSED", 8, "right", 3, cells.duration_cell),
            "ended": Column("ends_at", "ENDED", 10, "right", 2, instant),
            **{name: of_jobs[name] for name in then},
            "nodes_at": Column("node_list", "NODES", 10, "left", 7, cells.text_cell, flexible=True),
        }

    def placeholder(self) -> str:
        return "no job ended in the last 7 days" if self.everyone else "no job of yours ended in the last 7 days"

    def scope_crumbs(self) -> Sequence[str]:
        return ("history", "everyone's" if self.everyone else "mine", "7 days")

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, self.kind):
            self.reload()


VIEW = ViewSpec("history", "history", HistoryView, Capability.HISTORY)
