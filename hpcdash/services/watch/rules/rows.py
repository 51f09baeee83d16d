"""Rows that rules select from whole tables, and findings on jobs."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.alerts import Finding, Severity, format_job
from hpcdash.domain.columns import match_text

Row = dict[str, Any]


def rows_where(table: pa.Table, **selected: Collection[str]) -> list[Row]:
    """Return the rows whose columns each hold exactly one of the texts.

    Of a list column one element is enough.
    """
    for name, texts in selected.items():
        is_selected = partial(pc.is_in, value_set=pa.array(sorted(texts), pa.string()))
        table = table.filter(match_text(table[name], is_selected))
    rows: list[Row] = table.to_pylist()
    return rows


def job_finding(
    rule: str,
    row: Row,
    text: str,
    next_step: str,
    severity: Severity = Severity.WARNING,
) -> Finding:
    """Build a finding on a job (a row of domain.schema.JOBS): `text` follows `job 7 (train)`."""
    text = f"{format_job(row['id'], row['name'])}{text}"
    return Finding(rule, str(row["id"]), severity, text, next_step, name=row["name"] or "")
