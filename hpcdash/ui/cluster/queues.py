"""Queues (Slurm's partitions): limits, what is free, and how many jobs run and wait in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from textual.content import Content

from hpcdash.domain.job_text import queue_note
from hpcdash.domain.states import REFUSING, WAITING
from hpcdash.domain.tables import QUEUES, Kind
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_duration
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells

_MAX_REASONS = 8


def name_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """The name, with a star on the default queue, as Slurm prints it."""
    return f"{value}{'*' if row['default'] else ''}", cells.STRONG if row["default"] else ""


def open_cell(value: bool | None, row: cells.RowContext) -> cells.Cell:
    """Return whether a queue starts jobs, or its standing."""
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

    SPEC = QUEUES

    @property
    def kinds(self) -> frozenset[Kind]:
        # Everyone's queue shows how many jobs run and wait in each.
        return frozenset({Kind.QUEUES, Kind.EVERYONE})

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            "name": name_cell,
            "open": open_cell,
            "limit": limit_cell,
            "down": down_cell,
            "cpus": cells.usage_cell("cpus", digits=11, bar=8),
            "gpus": cells.usage_cell("gpus", digits=9, bar=8),
        }

    def placeholder(self) -> str:
        return "The scheduler lists no queues. ctrl+r refreshes"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        free = [_format_free(row, unit) for unit in ("gpus", "cpus") if row[unit]]
        note = visible(queue_note(row, self.session.store.clock.now()))
        return "  ·  ".join(filter(None, [row["name"], *free, note, "enter shows its jobs"]))

    def detail_lines(self, row: Mapping[str, Any], room: int) -> Sequence[Content]:
        """Return why jobs wait in the queue: the reasons, the most frequent first."""
        jobs = self.session.store.table(Kind.EVERYONE)
        if jobs is None:
            return ()
        reasons = waiting_reasons(jobs, str(row["name"]))
        width = max((len(str(count)) for _, count in reasons), default=0)
        lines = [
            Content.assemble(
                (f"{count:>{width}}  ", "$state-pending"),
                clip(visible(reason or "no reason given"), room - width - 2),
            )
            for reason, count in reasons[:_MAX_REASONS]
        ]
        return [Content.styled("Pending, by reason", "bold"), *lines] if lines else ()

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("jobs", everyone=True, filter_text=f'queue:"{row_id}"'))


def waiting_reasons(jobs: pa.Table, queue: str) -> list[tuple[str, int]]:
    """Return the reasons of a queue's pending jobs (rows of domain.schema.JOBS) and the jobs of
    each, tasks counted; the most frequent first.
    """
    waits = pc.is_in(jobs["state"].cast(pa.string()), pa.array(sorted(WAITING), pa.string()))
    rows = jobs.filter(pc.and_(waits, pc.equal(jobs["queue"].cast(pa.string()), queue)))
    counts: Counter[str] = Counter()
    for reason, tasks in zip(
        rows["reason"].cast(pa.string()).to_pylist(), rows["_tasks"].to_pylist(), strict=True
    ):
        counts[reason or ""] += tasks or 1
    return counts.most_common()
