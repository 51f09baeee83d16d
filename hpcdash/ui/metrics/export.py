"""Writes what a chart shows into files: its points as CSV, its picture as SVG."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from hpcdash.domain.columns import encode_csv, without_formulas
from hpcdash.private_files import write_output
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.charts.curves import ChartRequest
from hpcdash.services.metrics.charts.svg import draw_svg


def file_stem(job_id: str, metric: str, time: datetime) -> str:
    """A file's name without its ending: `hpcdash-4711-lm-loss-20261121-103000`."""
    text = re.sub(r"[^A-Za-z0-9._]+", "-", f"{job_id}-{metric}").strip("-.")[:80]
    return f"hpcdash-{text}-{time:%Y%m%d-%H%M%S}"


def write_chart(folder: Path, stem: str, request: ChartRequest, title: str) -> tuple[Path, Path]:
    """Write the points that stand in the span that is shown, and the picture; raises OSError.

    The columns are job, metric, step, the axis' name where it is another, value, lowest, highest
    and points: a place of several points has its mean; a step that is not known is empty. No text
    is a formula to a spreadsheet.
    """
    span = request.state.shown(request.whole())
    tables = []
    for shown in request.runs:
        shift = request.shift(shown)
        for name in request.names:
            series = request.series(shown, name)
            places = slice(
                *np.searchsorted(series.x, (span[0] + shift, np.nextafter(span[1] + shift, np.inf)))
            )
            count = series.x[places].size
            columns = {
                "job": pa.array([shown.title] * count, pa.string()),
                "metric": pa.array([name] * count, pa.string()),
                "step": _steps(shown.run.steps_along(name, request.axis)[places]),
                request.axis: series.x[places] - shift,
                "value": series.values[places],
                "lowest": series.low[places],
                "highest": series.high[places],
                "points": series.points[places],
            }
            tables.append(pa.table(columns))
    csv_file = folder / f"{stem}.csv"
    svg_file = folder / f"{stem}.svg"
    write_output(svg_file, draw_svg(request, title).encode())
    write_output(csv_file, encode_csv(without_formulas(pa.concat_tables(tables))))
    return csv_file, svg_file


def _steps(steps: Floats) -> pa.Array:
    """Return steps as whole numbers, null where a step is unknown."""
    is_unknown = ~np.isfinite(steps)
    return pa.array(np.where(is_unknown, 0, steps), mask=is_unknown, from_pandas=False)
