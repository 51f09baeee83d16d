"""Rows that rules select from whole tables, and findings on jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.alerts import Finding, Severity, format_job
from hpcdash.domain.columns import match_text

Row = dict[str, Any]


def rows_where(table: pa.Table, **selected: Collection[str]) -> list[Row]:
    """The rows whose columns each hold exactly one of the given words; of a list column one element
    is enough.
    """
    for name, parts in selected.items():
        value_set = pa.array(sorted(parts), pa.string())

        def is_one(texts: pa.Array, value_set: pa.Array = value_set) -> pa.Array:
            return pc.is_in(texts, value_set=value_set)

        table = table.filter(match_text(table[name], is_one))
    rows: list[Row] = table.to_pylist()
    return rows


def job_finding(
    rule: str,
    row: Mapping[str, Any],
    text: str,
    next_step: str,
    severity: Severity = Severity.WARNING,
) -> Finding:
    """Build a finding on a job (a row of domain.schema.JOBS): `text` follows `job 7 (train)`."""
    text = f"{format_job(row['id'], row['name'])}{text}"
    return Finding(rule, str(row["id"]), severity, text, next_step, name=row["name"] or "")
