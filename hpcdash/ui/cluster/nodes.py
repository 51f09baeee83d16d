"""Nodes with their state; of unavailable nodes the reason, its author and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from textual.content import Content

from hpcdash.domain.tables import NODES, Kind
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_age
from hpcdash.services.cluster.occupancy import on_node
from hpcdash.ui.cluster.wall import job_letters, letter_style
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells

if TYPE_CHECKING:
    from hpcdash.services.submit.node_findings import NodeFinding

_CHECK = "_check"
# The page of a node, behind enter, lists all its jobs.
_MAX_JOBS = 20


def load_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """Return the load average, marked if it far exceeds the CPUs."""
    if value is None:
        return cells.count_cell(None, row)
    over = row["cpus"] is not None and value > 1.5 * row["cpus"]
    return f"{value:.1f}", cells.WARNING if over else ""


class NodesView(TableView):
    """All nodes of the cluster."""

    SPEC = NODES
    _findings_stamp: tuple[int, int] | None = None
    _findings_read: Mapping[str, NodeFinding] = MappingProxyType({})

    @property
    def kinds(self) -> frozenset[Kind]:
        # Everyone's jobs, for the detail of a node.
        return frozenset({Kind.NODES, Kind.EVERYONE})

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            "type": gpu_type_cell,
            "load": load_cell,
            "check": check_cell,
            "reason": blank_text,
            "by": blank_text,
            "since": cells.age_cell(self.now),
        }

    def placeholder(self) -> str:
        return "The scheduler lists no nodes. ctrl+r refreshes"

    def source(self) -> pa.Table | None:
        table = super().source()
        return None if table is None else self._with_checks(table)

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        return super().shaped(
            table if _CHECK in table.column_names else self._with_checks(table), sort
        )

    def _with_checks(self, table: pa.Table) -> pa.Table:
        findings = self._findings()
        summaries = [
            findings[name].summary if name in findings else None
            for name in table["name"].to_pylist()
        ]
        return table.append_column(_CHECK, pa.array(summaries, pa.string()))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        now = self.now().timestamp()
        found = self._findings().get(str(row["name"]))
        return "  ·  ".join(
            filter(None, (node_hint(row, now), "" if found is None else found.format(now)))
        )

    def detail_lines(self, row: Mapping[str, Any], room: int) -> Sequence[Content]:
        """Return the jobs on the node, one's own by letter."""
        jobs = self.session.store.table(Kind.EVERYONE)
        if jobs is None:
            return ()
        letters = job_letters(self.session.store)
        lines = []
        for job in on_node(jobs, str(row["name"])).slice(0, _MAX_JOBS).to_pylist():
            letter = letters.letter(str(job["id"]))
            style = f"bold ${letter_style(letter)}" if letter else "$table-dim"
            gpus = f"  {counted(job['gpus'], 'GPU')}" if job["gpus"] else ""
            text = f"{job['id']} {job['name'] or ''}  {job['user'] or ''}{gpus}"
            lines.append(
                Content.assemble((f"{letter or ' '} ", style), clip(visible(text), room - 2))
            )
        return [Content.styled("Jobs", "bold"), *lines] if lines else ()

    def _findings(self) -> Mapping[str, NodeFinding]:
        """Return the newest findings of node checks by node; they are read after each change."""
        from hpcdash.services.submit.node_findings import NodeCheckRecords

        folder = self.session.launches.state_folder
        records = NodeCheckRecords(folder, self.session.name)
        stamp = records.stamp()
        if stamp != self._findings_stamp:
            self._findings_stamp = stamp
            self._findings_read = records.findings()
        return self._findings_read

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("node", name=row_id))


def gpu_type_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Return the GPU model; blank for a node without GPUs."""
    return cells.muted_cell(value, row) if row["gpus"] else ""


def check_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """Return the last finding of the checks; blank for a node that was not checked."""
    return ("", "") if value is None else (value, cells.GOOD if value == "ok" else cells.BAD)


def blank_text(value: object, row: cells.RowContext) -> cells.Cell:
    return "" if value is None else cells.text_cell(value, row)


def node_hint(row: Mapping[str, Any], now: float) -> str:
    """Return why a node is unavailable, who made it so and since when."""
    parts = [f"{row['name']} {row['native_state']}"]
    if row["reason"]:
        parts.append(row["reason"])
        if row["reason_by"]:
            parts.append(f"by {row['reason_by']}")
        if row["reason_since"] is not None:
            parts.append(f"{format_age(now - row['reason_since'].timestamp())} ago")
    elif row["features"]:
        parts.append(", ".join(row["features"]))
    return "  ·  ".join(parts)
