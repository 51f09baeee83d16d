"""Ended jobs of the last week, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from hpcdash.backends.base import Capability
from hpcdash.domain.words import ended_words
from hpcdash.stores.cluster import Changed
from hpcdash.stores.snapshots import Kind
from hpcdash.ui.views.base import ViewSpec
from hpcdash.ui.views.jobs import JobsView, id_cell, zero_is_blank
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.rows_layout import Column


def exit_cell(value: object, row: cells.RowContext) -> cells.Cell:
    """How it ended, where there is more to say than the state."""
    return ended_words(row)


class HistoryView(JobsView):
    """What the accounting database knows."""

    NAME = "history"
    # As it comes: the newest end first.
    DEFAULT_SORT = ""
    DEFAULT_COLUMNS = ("id", "name", "user", "queue", "state", "exit", "elapsed", "ended", "cpus", "gpus", "nodes_at")

    @property
    def kind(self) -> Kind:
        return Kind.HISTORY_EVERYONE if self.everyone else Kind.HISTORY

    @cached_property
    def _catalogue(self) -> dict[str, Column]:
        instant = cells.instant_cell(self.now, self.session.zone)
        text = cells.text_cell
        return {
            "id": Column("id", "ID", 6, "left", 0, id_cell, flexible=True, longest=18),
            "name": Column("name", "NAME", 14, "left", 1, text, flexible=True, longest=60),
            "user": Column("user", "USER", 5, "left", 2, text, longest=12),
            "account": Column("account", "ACCOUNT", 9, "left", 9, cells.muted_cell),
            "queue": Column("queue", "QUEUE", 5, "left", 5, text, longest=14),
            "qos": Column("qos", "QOS", 8, "left", 9, cells.muted_cell),
            "state": Column("state", "STATE", cells.STATE_WIDTH, "left", 0, cells.state_cell),
            "exit": Column("exit_code", "EXIT", 10, "left", 2, exit_cell),
            "elapsed": Column("elapsed_seconds", "ELAPSED", 8, "right", 3, cells.duration_cell),
            "limit": Column("limit_seconds", "LIMIT", 8, "right", 8, cells.duration_cell),
            "submitted": Column("submitted_at", "SUBMITTED", 10, "right", 8, instant),
            "started": Column("started_at", "STARTED", 10, "right", 7, instant),
            "ended": Column("ends_at", "ENDED", 10, "right", 2, instant),
            "nodes": Column("nodes", "N", 4, "right", 7, cells.count_cell),
            "cpus": Column("cpus", "CPU", 5, "right", 6, cells.count_cell),
            "gpus": Column("gpus", "GPU", 4, "right", 5, zero_is_blank),
            "memory": Column("memory_bytes", "MEM", 7, "right", 8, cells.memory_cell),
            "nodes_at": Column("node_list", "NODES", 10, "left", 7, text, flexible=True),
            "comment": Column("comment", "COMMENT", 20, "left", 9, text),
            "work_dir": Column("work_dir", "DIRECTORY", 24, "left", 9, text),
        }

    def catalogue(self) -> Mapping[str, Column]:
        return self._catalogue

    def placeholder(self) -> str:
        return "no job ended in the last 7 days" if self.everyone else "no job of yours ended in the last 7 days"

    def scope_crumbs(self) -> Sequence[str]:
        return ("history", "everyone's" if self.everyone else "mine", "7 days")

    def store_changed(self, changed: Changed) -> None:
        if changed.kind in (None, self.kind):
            self.reload()


VIEW = ViewSpec("history", "history", HistoryView, Capability.HISTORY)
