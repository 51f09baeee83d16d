"""Metrics as machines read them: JSON, a wide table as CSV or Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.spreadsheets import without_formulas
from hpcdash.services.metrics.joined import JoinedRun, Series
from hpcdash.services.metrics.series import MINUS_INF, NAN, PLUS_INF


def axis_of(run: JoinedRun, name: str | None = None) -> str:
    """What x is, of all or of one metric: the step where the log says it, else the next that it says."""
    return run.axes(name)[0]


def as_json(
    run: JoinedRun,
    names: Sequence[str],
    source_of: Callable[[str], str],
    *,
    cluster: str,
    backend: str,
    taken_at: float,
) -> bytes:
    """The contract's object and a newline. y is null where nan or inf stood, whose x are under `nan` and `inf`.

    `exact` is false where old points were folded into means, for a log of very many.
    """
    answer = {
        "schema": 1,
        "cluster": cluster,
        "backend": backend,
        "taken_at": format_utc(taken_at),
        "series": [_object(run.series(name, axis_of(run, name)), source_of(name)) for name in names],
    }
    return msgspec.json.encode(answer) + b"\n"


def _object(series: Series, source: str) -> dict[str, Any]:
    finite = np.isfinite(series.values)
    y: list[float | None] = series.mean.tolist()
    for place in np.flatnonzero(~finite).tolist():
        y[place] = None
    return {
        "name": series.name,
        "x": _whole(series.x).tolist(),
        "y": y,
        "source": source,
        "axis": series.axis,
        "exact": series.exact,
        "nan": _whole(series.x[series.odd & NAN > 0]).tolist(),
        "inf": _whole(series.x[series.odd & (PLUS_INF | MINUS_INF) > 0]).tolist(),
    }


def _whole(x: Any) -> Any:
    """Steps are whole numbers; other x are as they are."""
    return x.astype(np.int64) if x.size and (np.abs(x) < 2**53).all() and (x == np.floor(x)).all() else x


def wide_table(run: JoinedRun, names: Sequence[str]) -> pa.Table:
    """A row a step, ascending: the axis first, then a column a metric; null where it has no value there."""
    axis = axis_of(run)
    found = [run.series(name, axis) for name in names]
    places = np.unique(np.concatenate([series.x for series in found])) if found else np.empty(0)
    columns = {axis: pa.array(_whole(places))}
    for series in found:
        values, is_missing = np.zeros(places.size), np.ones(places.size, dtype=bool)
        at = np.searchsorted(places, series.x)
        values[at], is_missing[at] = series.values, False
        # A metric may bear the axis' name.
        name = series.name if series.name not in columns else f"{series.name} (metric)"
        columns[name] = pa.array(values, mask=is_missing, from_pandas=False)
    return pa.table(columns)


def as_csv(run: JoinedRun, names: Sequence[str]) -> bytes:
    """The wide table with a header; nan, inf and -inf as such, nothing where a metric has no value."""
    return table_as_csv(wide_table(run, names))


def table_as_csv(table: pa.Table, *, has_titles: bool = True) -> bytes:
    """A wide table, or some rows of it that come after others; no title is a formula to a spreadsheet."""
    out = io.BytesIO()
    pa_csv.write_csv(
        without_formulas(table), out, pa_csv.WriteOptions(include_header=has_titles, quoting_style="needed")
    )
    return out.getvalue()


def as_parquet(run: JoinedRun, names: Sequence[str]) -> bytes:
    """The wide table as a Parquet file."""
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(wide_table(run, names), out)
    return out.getvalue()
