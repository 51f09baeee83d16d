"""Queues (Slurm's partitions): limits, what is free, and how many jobs run and wait in each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from hpcdash.domain.job_text import queue_note
from hpcdash.domain.states import REFUSING
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_duration
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table_rows import Column


def name_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """The name, with a star on the default queue, as Slurm prints it."""
    return f"{value}{'*' if row['default'] else ''}", cells.STRONG if row["default"] else ""


def open_cell(value: bool | None, row: cells.RowContext) -> cells.Cell:
    """Whether it starts jobs, or what it does with them instead."""
    if standing := row["_standing"]:
        return standing, cells.BAD if standing in REFUSING else "" if value else cells.WARNING
    if value is None:
        return cells.text_cell(None, row)
    return ("up", cells.GOOD) if value else ("down", cells.BAD)


def limit_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    return "none" if value is None else format_duration(value)


def down_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    return (str(value), cells.BAD) if value else ("", "")


def _format_free(row: Mapping[str, Any], unit: str) -> str:
    """`24 of 32 CPUs free (8 on down nodes)`."""
    down = row[f"_{unit}_down"] or 0
    free = row[unit] - (row[f"{unit}_used"] or 0) - down
    where = f" ({down} on down nodes)" if down else ""
    return f"{free} of {row[unit]} {unit[:-1].upper()}s free{where}"


class QueuesView(TableView):
    """The queues one may submit to."""

    NAME = "queues"
    DEFAULT_COLUMNS = (
        "name",
        "open",
        "limit",
        "nodes",
        "idle",
        "down",
        "cpus",
        "gpus",
        "running",
        "pending",
    )
    # PBS does not bind queues to nodes.
    NOT_ALWAYS_TOLD = frozenset({"nodes", "nodes_idle", "nodes_down", "cpus_used", "gpus_used"})

    @property
    def kind(self) -> Kind:
        return Kind.QUEUES

    @property
    def kinds(self) -> frozenset[Kind]:
        # Everyone's queue tells how many jobs run and wait in each.
        return frozenset({Kind.QUEUES, Kind.EVERYONE})

    @cached_property
    def _catalogue(self) -> dict[str, Column]:
        return {
            "name": Column("name", "QUEUE", 12, "left", 0, name_cell, flexible=True, longest=30),
            "open": Column("available", "STATE", 8, "left", 0, open_cell),
            "limit": Column("limit_seconds", "LIMIT", 8, "right", 2, limit_cell),
            "nodes": Column("nodes", "NODES", 5, "right", 3, cells.count_cell),
            "idle": Column("nodes_idle", "IDLE", 5, "right", 1, cells.count_cell),
            "down": Column("nodes_down", "DOWN", 5, "right", 4, down_cell),
            "cpus": Column(
                "cpus_used", "CPU", 21, "left", 2, cells.usage_cell("cpus", digits=11, bar=8)
            ),
            "gpus": Column(
                "gpus_used", "GPU", 19, "left", 1, cells.usage_cell("gpus", digits=9, bar=8)
            ),
            "running": Column("jobs_running", "RUNNING", 7, "right", 3, cells.count_cell),
            "pending": Column("jobs_pending", "PENDING", 7, "right", 3, cells.count_cell),
        }

    def catalogue(self) -> Mapping[str, Column]:
        return self._catalogue

    def placeholder(self) -> str:
        return "The scheduler lists no queues. ctrl+r asks again"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        free = [_format_free(row, unit) for unit in ("gpus", "cpus") if row[unit]]
        note = visible(queue_note(row, self.session.store.clock.now()))
        return "  ·  ".join(filter(None, [row["name"], *free, note, "enter shows its jobs"]))

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("jobs", everyone=True, filter_text=f'queue:"{row_id}"'))
