"""Metrics on stdout: JSON, CSV, Parquet, the rows as a run writes them, or a chart in a terminal's
width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from rich.color import ColorSystem
from rich.style import Style

from hpcdash.domain.columns import encode_csv
from hpcdash.domain.text import visible
from hpcdash.services.metrics.charts.curves import ChartRequest, ChartRun, SeriesCache
from hpcdash.services.metrics.charts.draw import draw
from hpcdash.services.metrics.charts.reading import (
    JobFacts,
    RunReader,
    describe_course,
    find_broken,
)
from hpcdash.services.metrics.charts.state import ChartState, Line
from hpcdash.services.metrics.eta import format_lost_time
from hpcdash.services.metrics.findings import (
    find_not_finite,
    find_plateau,
    format_number,
    format_step,
)
from hpcdash.services.metrics.joined import JoinedRun, Series
from hpcdash.services.metrics.series import MINUS_INF, NAN, PLUS_INF
from hpcdash.services.metrics.spikes import FEWEST_POINTS, find_spikes
from hpcdash.services.metrics.throughput import PaceGrowth, average_pace, metric_quantity, run_paces
from hpcdash.services.metrics.vocabulary import is_loss

LEAST_WIDTH, LARGEST_WIDTH = 40, 240
# Rows of a chart: of a single one, of each of several, and of each where the screen has few.
_HEIGHT, _SMALL_HEIGHT, _LEAST_HEIGHT = 18, 12, 7
_TWO_BESIDE_FROM = 110
# Most metrics drawn by default.
MOST_SHOWN = 4
_STYLES = {
    "title": Style(bold=True),
    "axis": Style(dim=True),
    "restart": Style(dim=True),
    "run-0": Style(color="cyan"),
    "raw-0": Style(color="cyan", dim=True),
    "again-0": Style(color="cyan", dim=True),
    "warning": Style(color="yellow", bold=True),
    "bad": Style(color="red", bold=True),
}
_PLAIN_LETTERS = str.maketrans({"→": ">", "–": "-", "…": "."})


def run_axis(run: JoinedRun, name: str | None = None) -> str:
    """Return the x axis of all metrics or of one: the log's step, else the next axis it has."""
    return run.axes(name)[0]


def as_json(
    run: JoinedRun,
    names: Sequence[str],
    named_source: Callable[[str], str],
    envelope: Mapping[str, Any],
) -> bytes:
    """The contract's object and a newline.

    y is null where nan or inf stood, whose x are under `nan` and `inf`.

    `exact` is false where old points were folded into means, for a log of very many.
    """
    answer = {
        "schema": 1,
        **envelope,
        "series": [
            _object(run.series(name, run_axis(run, name)), named_source(name)) for name in names
        ],
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
    return (
        x.astype(np.int64)
        if x.size and (np.abs(x) < 2**53).all() and (x == np.floor(x)).all()
        else x
    )


def wide_table(run: JoinedRun, names: Sequence[str]) -> pa.Table:
    """A row a step, ascending: the axis first, then a column a metric; null where it has no value
    there.
    """
    axis = run_axis(run)
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


class ComingRows:
    """Gives what is new of the wide table: its columns are the metrics of its first rows.

    The newest row waits for the next one, as another metric of its step may follow; the end brings
    it.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._axis = ""
        self._last: float | None = None
        self._attempts = 1
        self._announced: set[str] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the titles were given."""
        return bool(self._names)

    def new_rows(self, run: JoinedRun, names: Sequence[str], *, is_end: bool = False) -> bytes:
        """Return the CSV rows to write now, with the titles before the first row."""
        axis = run_axis(run)
        if self.has_begun and axis != self._axis:
            return b""
        table = wide_table(run, self._names or list(names))
        if not is_end:
            table = table.slice(0, max(0, table.num_rows - 1))
        if self._last is not None:
            table = table.filter(pc.greater(table[axis], self._last))
        if not table.num_rows:
            return b""
        is_first = not self.has_begun
        if is_first:
            self._names, self._axis = list(names), axis
        self._last = table[axis][-1].as_py()
        return encode_csv(table, has_titles=is_first)

    def left_out(self, run: JoinedRun, names: Sequence[str]) -> list[str]:
        """Return messages, each once, on metrics that are missing from the rows."""
        if not self.has_begun:
            self._attempts = max(1, len(run.attempts))
            return []
        messages = []
        if late := [
            name for name in names if name not in self._names and name not in self._announced
        ]:
            self._announced.update(late)
            came = ", ".join(visible(name) for name in late)
            messages.append(
                f"{came} appeared later and has no column; run again without -f to include it"
            )
        if len(run.attempts) > self._attempts:
            self._attempts = len(run.attempts)
            messages.append(
                f"it restarted: repeated rows up to {self._axis} {self._last:g} are skipped"
            )
        if run_axis(run) != self._axis and self._axis not in self._announced:
            self._announced.add(self._axis)
            messages.append(
                f"the log no longer counts in {self._axis}: nothing more is written; start again "
                f"with -f"
            )
        return messages


class Paper(Struct, frozen=True):
    """Surface to draw on: `width` in cells, colours, and character set.

    `height` is the most rows that fit, None for no limit.
    """

    width: int
    height: int | None = None
    colours: ColorSystem | None = None
    has_unicode: bool = True


def shown_by_default(run: JoinedRun) -> list[str]:
    """The losses; where there is none, what is neither a pace nor a place."""
    names = list(run.names)
    losses = sorted((name for name in names if is_loss(name)), key=lambda name: (len(name), name))
    others = [name for name in names if metric_quantity(name) is None]
    return (losses or others or names)[:MOST_SHOWN]


def chart_text(run: JoinedRun, names: Sequence[str], paper: Paper, *, log_y: bool = False) -> str:
    """A chart a metric, two beside each other where there is room; metrics along another axis come
    below.
    """
    width = min(max(paper.width, LEAST_WIDTH), LARGEST_WIDTH)
    by_axis: dict[str, list[str]] = {}
    for name in names:
        by_axis.setdefault(run_axis(run, name), []).append(name)
    beside = 2 if width >= _TWO_BESIDE_FROM else 1
    rows = sum(-(-len(alike) // beside) for alike in by_axis.values())
    height = _HEIGHT if rows == 1 else _SMALL_HEIGHT
    if paper.height is not None:
        height = max(_LEAST_HEIGHT, min(height, paper.height // max(rows, 1)))
    lines = [
        line
        for axis, alike in by_axis.items()
        for line in _chart(run, alike, axis, width, height * -(-len(alike) // beside), paper, log_y)
    ]
    return "\n".join(lines)


def _chart(
    run: JoinedRun,
    names: Sequence[str],
    axis: str,
    width: int,
    height: int,
    paper: Paper,
    log_y: bool,
) -> Iterator[str]:
    stored = SeriesCache()
    reading = RunReader(is_ascii=not paper.has_unicode).read(
        run, names, axis, JobFacts(0.0), stored
    )
    # Without colours a smooth curve would look like the curve it smooths.
    smoothing = "auto" if paper.colours is not None else "none"
    # No panel is the one that keys act on.
    state = ChartState(tuple(names), axis, log_y, smoothing, panel=-1)
    chart = ChartRun("A", "", run, reading.marks, reading.axis)
    request = ChartRequest((chart,), state, width, height, stored, is_ascii=not paper.has_unicode)
    return (_painted(line, paper) for line in draw(request).lines)


def _painted(line: Line, paper: Paper) -> str:
    if paper.colours is None:
        text = "".join(message for message, _ in line).rstrip()
    else:
        text = "".join(
            _STYLES.get(name, Style()).render(message, color_system=paper.colours)
            for message, name in line
        )
    return text if paper.has_unicode else text.translate(_PLAIN_LETTERS)


def job_facts(row: Mapping[str, Any], now: float, *, is_array: bool, is_whole: bool) -> JobFacts:
    """Return the facts of a job's row that estimate its end; `is_whole`: its log is fully read."""
    if row.get("state") != "running":
        return JobFacts(now)
    limit, elapsed = row["limit_seconds"], row["elapsed_seconds"]
    left = float(limit - elapsed) if limit is not None and elapsed is not None else None
    age = float(elapsed) if is_whole and elapsed is not None else None
    return JobFacts(now, True, left, None if limit is None else float(limit), is_array, age)


def meaning(run: JoinedRun, names: Sequence[str], job: JobFacts, growth: PaceGrowth) -> list[str]:
    """Return a line per metric: last value, spikes and nan; then end and pace against the limit.

    `growth` has the observations of earlier calls on the same run.
    """
    lines = []
    for name in names:
        axis = run_axis(run, name)
        series = run.series(name, axis)
        if not len(series):
            continue
        values = series.values
        messages = [
            f"{visible(name)} {format_number(float(values[-1]))} at {axis} "
            f"{format_step(float(series.x[-1]))}"
        ]
        if is_loss(name):
            finite = np.isfinite(values)
            spikes = find_spikes(series.x[finite], values[finite]).findings
            if finite.sum() < FEWEST_POINTS:
                messages.append("too few points to detect anomalies")
            if spikes:
                more = f" (the newest of {len(spikes)})" if len(spikes) > 1 else ""
                messages.append(spikes[-1].words + more)
            plateau = find_plateau(series.x, values)
            messages += [plateau.words] if plateau is not None else []
        messages += [finding.words for finding in find_not_finite(series.x, values)]
        lines.append("; ".join(part for part in messages if part))
    lines += [f"{visible(name)}: {finding.words}" for name, finding in find_broken(run, names)]
    lines += _pace(run, names[0], job, growth) if names else []
    return lines


def _pace(run: JoinedRun, name: str, job: JobFacts, growth: PaceGrowth) -> list[str]:
    """End and pace in a line, and what restarts cost in one."""
    axes, _ = run.written(name)
    steps = axes[0][np.isfinite(axes[0])]
    grown = age = None
    if job.is_running and steps.size:
        growth.note(job.now, float(steps[-1]))
        grown, age = growth.pace(), average_pace(run, job.age_seconds)
    messages = describe_course(run, run_paces(run, name, grown, age), steps, job)
    return [line for line in ("; ".join(messages), format_lost_time(run.lost_time())) if line]
