"""Queues (Slurm's partitions): limits, free resources, running and pending jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from textual.content import Content

from hpcdash.domain.job_text import queue_note
from hpcdash.domain.room import NODE_COLUMNS, QueueNodes, count_gpu_types, count_usable
from hpcdash.domain.schema import COUNT, TEXT
from hpcdash.domain.states import REFUSING, WAITING
from hpcdash.domain.tables import QUEUES, Kind
from hpcdash.domain.text import clip, visible
from hpcdash.domain.units import format_duration
from hpcdash.services.cluster.store import Changed
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.workers import start_worker

_MAX_REASONS = 8


def name_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Return the name; the default queue has a star, as Slurm prints it."""
    return f"{value}{'*' if row['default'] else ''}", cells.STRONG if row["default"] else ""


def open_cell(value: bool | None, row: cells.RowContext) -> cells.Cell:
    """Return whether a queue starts the user's jobs, or its standing."""
    if standing := row["_standing"]:
        if standing in REFUSING:
            return standing, cells.BAD
        return standing, "" if value else cells.WARNING
    if value and row["_refusal"]:
        return "no access", cells.MUTED
    if value is None:
        return cells.text_cell(None, row)
    return ("up", cells.GOOD) if value else ("down", cells.BAD)


def limit_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    return "none" if value is None else format_duration(value)


def down_cell(value: int | None, row: cells.RowContext) -> cells.Cell:
    return (str(value), cells.BAD) if value else ("", "")


def _format_free(row: Mapping[str, Any], unit: str) -> str:
    """Return `24 of 32 CPUs free (8 on down nodes)`."""
    down = row[f"_{unit}_down"] or 0
    free = row[unit] - (row[f"{unit}_used"] or 0) - down
    where = f" ({down} on down nodes)" if down else ""
    return f"{free} of {row[unit]} {unit[:-1].upper()}s free{where}"


class QueuesView(TableView):
    """All queues of the cluster."""

    SPEC = QUEUES
    # A table of nodes, and its rows by queue.
    _node_rows: tuple[pa.Table | None, QueueNodes] = (None, QueueNodes())

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the rows, with why none of the user's accounts may submit, and the
        free GPUs (CPUs in queues without GPUs) that a job could have; null: unknown.
        """
        return super().schema.append(pa.field("_refusal", TEXT)).append(pa.field("_usable", COUNT))

    @property
    def kinds(self) -> frozenset[Kind]:
        # Jobs for the reasons of waits, nodes for GPUs that are free together with CPUs and memory.
        return frozenset({Kind.QUEUES, Kind.EVERYONE, Kind.NODES})

    def on_mount(self) -> None:
        start_worker(self, self._fetch_access, group="access", exclusive=True)

    async def _fetch_access(self) -> None:
        from hpcdash.services.submit.queues import fetch_offers

        await fetch_offers(self.session.store)
        self.reload()

    def store_changed(self, changed: Changed) -> None:
        super().store_changed(changed)
        if changed.kind is Kind.NODES:
            self.reload()

    def _read_nodes(self) -> QueueNodes:
        """Return the nodes by queue; thousands of rows are read once for each poll."""
        table = self.session.store.table(Kind.NODES)
        if table is not None and table is not self._node_rows[0]:
            self._node_rows = (table, QueueNodes(table.select(NODE_COLUMNS).to_pylist()))
        return self._node_rows[1]

    def source(self) -> pa.Table | None:
        table = super().source()
        if table is None:
            return None
        rows = table.to_pylist()
        nodes = self._read_nodes()
        refusals = self.session.store.queue_refusals
        for row in rows:
            # PBS binds no nodes to queues.
            if bound := nodes.bound_to(row["name"]):
                row["_usable"] = count_usable(bound, "gpus" if row["gpus"] else "cpus")
            row["_refusal"] = refusals.get(row["name"])
        return pa.Table.from_pylist(rows, self.schema)

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            "name": name_cell,
            "open": open_cell,
            "limit": limit_cell,
            "usable": cells.count_cell,
            "down": down_cell,
            "cpus": cells.usage_cell("cpus", digits=11, bar=8),
            "gpus": cells.usage_cell("gpus", digits=9, bar=8),
        }

    def placeholder(self) -> str:
        return "The scheduler lists no queues. ctrl+r refreshes"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        free = [_format_free(row, unit) for unit in ("gpus", "cpus") if row[unit]]
        note = visible(row["_refusal"] or queue_note(row, self.session.store.clock.now()))
        return "  ·  ".join(filter(None, [row["name"], *free, note, "enter shows its jobs"]))

    def detail_lines(self, row: Mapping[str, Any], room: int) -> Sequence[Content]:
        """Return the free GPUs by model, and the pending jobs by reason, most frequent first."""
        models = self._model_lines(str(row["name"]))
        jobs = self.session.store.table(Kind.EVERYONE)
        if jobs is None:
            return models
        reasons = waiting_reasons(jobs, str(row["name"]))
        width = max((len(str(count)) for _, count in reasons), default=0)
        lines = [
            Content.assemble(
                (f"{count:>{width}}  ", "$state-pending"),
                clip(visible(reason or "no reason given"), room - width - 2),
            )
            for reason, count in reasons[:_MAX_REASONS]
        ]
        if lines:
            lines.insert(0, Content.styled("Pending, by reason", "bold"))
        return [*models, *([Content()] if models and lines else []), *lines]

    def _model_lines(self, queue: str) -> list[Content]:
        """Return the free GPUs of a queue by model."""
        counts = count_gpu_types(self._read_nodes().bound_to(queue))
        lines = [
            Content(visible(f"{free:>4} of {total} {name} free"))
            for name, (free, total) in sorted(counts.items())
        ]
        return [Content.styled("GPUs, by model", "bold"), *lines] if lines else []

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("jobs", everyone=True, filter_text=f'queue:"{row_id}"'))


def waiting_reasons(jobs: pa.Table, queue: str) -> list[tuple[str, int]]:
    """Return the reasons of a queue's pending jobs with their tasks, most frequent first.

    `jobs` are rows of domain.schema.JOBS.
    """
    waits = pc.is_in(jobs["state"].cast(pa.string()), pa.array(sorted(WAITING), pa.string()))
    rows = jobs.filter(pc.and_(waits, pc.equal(jobs["queue"].cast(pa.string()), queue)))
    counts: Counter[str] = Counter()
    for reason, tasks in zip(
        rows["reason"].cast(pa.string()).to_pylist(), rows["_tasks"].to_pylist(), strict=True
    ):
        counts[reason or ""] += tasks or 1
    return counts.most_common()
