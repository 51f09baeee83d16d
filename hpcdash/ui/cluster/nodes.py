"""Nodes: what is free, what is drained, why, by whom and since when."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hpcdash.domain.units import format_age
from hpcdash.services.cluster.snapshots import Kind
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.table_rows import Column

if TYPE_CHECKING:
    from hpcdash.services.submit.node_findings import NodeFinding

_CHECK = "_check"


def load_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """The load average, marked where it is far above the CPUs."""
    if value is None:
        return cells.count_cell(None, row)
    over = row["cpus"] is not None and value > 1.5 * row["cpus"]
    return f"{value:.1f}", cells.WARNING if over else ""


class NodesView(TableView):
    """The machines."""

    NAME = "nodes"
    DEFAULT_COLUMNS = (
        "name",
        "state",
        "cpus",
        "gpus",
        "type",
        "memory",
        "load",
        "jobs",
        "check",
        "queues",
        "reason",
    )
    NOT_ALWAYS_TOLD = frozenset({"load", "queues", _CHECK})
    _findings_stamp: tuple[int, int] | None = None
    _findings_read: Mapping[str, NodeFinding] = MappingProxyType({})

    @property
    def kind(self) -> Kind:
        return Kind.NODES

    @property
    def kinds(self) -> frozenset[Kind]:
        # Everyone's queue tells how many jobs run on each node.
        return frozenset({Kind.NODES, Kind.EVERYONE})

    @cached_property
    def _catalogue(self) -> dict[str, Column]:
        return {
            "name": Column("name", "NODE", 8, "left", 0, cells.text_cell, longest=24),
            "state": Column("state", "STATE", cells.STATE_WIDTH, "left", 0, cells.state_cell),
            "flags": Column("flags", "FLAGS", 14, "left", 8, cells.text_cell),
            "cpus": Column("cpus_used", "CPU", 13, "left", 1, cells.usage_cell("cpus")),
            "gpus": Column("gpus_used", "GPU", 13, "left", 2, cells.usage_cell("gpus")),
            "type": Column("gpu_type", "TYPE", 6, "left", 6, gpu_type_cell, longest=14),
            "memory": Column(
                "memory_used_bytes",
                "MEMORY",
                16,
                "left",
                4,
                cells.memory_usage_cell("memory_bytes"),
            ),
            "load": Column("load", "LOAD", 6, "right", 5, load_cell),
            "jobs": Column("jobs", "JOBS", 5, "right", 6, cells.count_cell),
            "check": Column(_CHECK, "CHECK", 5, "left", 6, check_cell, longest=20),
            "queues": Column("queues", "QUEUES", 14, "left", 7, cells.text_cell),
            "features": Column("features", "FEATURES", 18, "left", 9, cells.muted_cell),
            "reason": Column(
                "reason", "REASON", 16, "left", 3, blank_text, flexible=True, longest=80
            ),
            "by": Column("reason_by", "BY", 8, "left", 8, blank_text),
            "since": Column("reason_since", "SINCE", 8, "right", 8, cells.age_cell(self.now)),
        }

    def catalogue(self) -> Mapping[str, Column]:
        return self._catalogue

    def placeholder(self) -> str:
        return "The scheduler lists no nodes. ctrl+r asks again"

    def source(self) -> pa.Table | None:
        table = super().source()
        return None if table is None else self._with_checks(table)

    def shaped(self, table: pa.Table, sort: tuple[str, bool] | None = None) -> pa.Table:
        return super().shaped(
            table if _CHECK in table.column_names else self._with_checks(table), sort
        )

    def _with_checks(self, table: pa.Table) -> pa.Table:
        findings = self._findings()
        names = table["name"].to_pylist() if findings else ()
        said: list[str | None] = [
            findings[name].summary if name in findings else None for name in names
        ]
        return table.append_column(
            _CHECK, pa.array(said, pa.string()) if names else pa.nulls(len(table), pa.string())
        )

    def row_hint(self, row: Mapping[str, Any]) -> str:
        now = self.now().timestamp()
        found = self._findings().get(str(row["name"]))
        return "  ·  ".join(
            filter(None, (node_hint(row, now), "" if found is None else found.format(now)))
        )

    def _findings(self) -> Mapping[str, NodeFinding]:
        """What the checks of nodes found last, by node; read again once there may be more."""
        from hpcdash.services.submit.node_findings import NodeCheckRecords

        launches = self.session.launches
        folder = None if launches is None else launches.state_folder
        records = NodeCheckRecords(folder, self.session.name)
        stamp = records.stamp()
        if stamp != self._findings_stamp:
            self._findings_stamp, self._findings_read = stamp, records.findings()
        return self._findings_read

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        self.post_message(self.Requested("node", name=row_id))


def gpu_type_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """The model; nothing on a node without GPUs."""
    return cells.muted_cell(value, row) if row["gpus"] else ""


def check_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    """What checks found last: nothing on a node that was not checked."""
    return ("", "") if value is None else (value, cells.GOOD if value == "ok" else cells.BAD)


def blank_text(value: object, row: cells.RowContext) -> cells.Cell:
    return "" if value is None else cells.text_cell(value, row)


def node_hint(row: Mapping[str, Any], now: float) -> str:
    """Why a node is not to be had, by whom and since when."""
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
