"""Draws metrics once in a terminal's width and says below what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.color import ColorSystem
from rich.style import Style

from hpcdash.cli.metric_output import axis_of
from hpcdash.domain.text import visible
from hpcdash.services.metrics.charts.curves import ChartRequest, ChartRun, SeriesKept
from hpcdash.services.metrics.charts.draw import draw
from hpcdash.services.metrics.charts.reading import JobFacts, RunReader, words_of_course
from hpcdash.services.metrics.charts.state import ChartState, Line
from hpcdash.services.metrics.eta import lost_time_words
from hpcdash.services.metrics.findings import find_not_finite, find_plateau, number_words, step_words
from hpcdash.services.metrics.joined import JoinedRun
from hpcdash.services.metrics.spikes import FEWEST_POINTS, find_spikes
from hpcdash.services.metrics.throughput import Growth, pace_of_age, paces_of_run, quantity_of

LEAST_WIDTH, LARGEST_WIDTH = 40, 240
# Rows of a chart: of a single one, of each of several, and of each where the screen has few.
_HEIGHT, _SMALL_HEIGHT, _LEAST_HEIGHT = 18, 12, 7
_TWO_BESIDE_FROM = 110
# Drawn where nobody said which.
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


@dataclass(frozen=True, slots=True)
class Paper:
    """What is drawn on: `width` in cells, `height` where no more rows fit, and which colours and letters it has."""

    width: int
    height: int | None = None
    colours: ColorSystem | None = None
    has_unicode: bool = True


def shown_by_default(run: JoinedRun) -> list[str]:
    """The losses; where there is none, what is neither a pace nor a place."""
    names = list(run.names)
    losses = sorted((name for name in names if "loss" in name.lower()), key=lambda name: (len(name), name))
    others = [name for name in names if quantity_of(name) is None]
    return (losses or others or names)[:MOST_SHOWN]


def chart_text(run: JoinedRun, names: Sequence[str], paper: Paper, *, log_y: bool = False) -> str:
    """A chart a metric, two beside each other where there is room; metrics along another axis come below."""
    width = min(max(paper.width, LEAST_WIDTH), LARGEST_WIDTH)
    by_axis: dict[str, list[str]] = {}
    for name in names:
        by_axis.setdefault(axis_of(run, name), []).append(name)
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
    run: JoinedRun, names: Sequence[str], axis: str, width: int, height: int, paper: Paper, log_y: bool
) -> Iterator[str]:
    kept = SeriesKept()
    reading = RunReader(is_ascii=not paper.has_unicode).read(run, names, axis, JobFacts(0.0), kept)
    # Without colours a smooth curve would be one with what it smooths.
    smoothing = "auto" if paper.colours is not None else "none"
    # No panel is the one that keys act on.
    state = ChartState(tuple(names), axis, log_y, smoothing, panel=-1)
    chart = ChartRun("A", "", run, reading.marks, reading.axis)
    request = ChartRequest((chart,), state, width, height, kept, is_ascii=not paper.has_unicode)
    return (_painted(line, paper) for line in draw(request).lines)


def _painted(line: Line, paper: Paper) -> str:
    if paper.colours is None:
        text = "".join(words for words, _ in line).rstrip()
    else:
        text = "".join(_STYLES.get(name, Style()).render(words, color_system=paper.colours) for words, name in line)
    return text if paper.has_unicode else text.translate(_PLAIN_LETTERS)


def facts_of(row: Mapping[str, Any], now: float, *, is_array: bool, is_whole: bool) -> JobFacts:
    """What a job's row says that its end is told from; `is_whole`: all that it wrote is read."""
    if row.get("state") != "running":
        return JobFacts(now)
    limit, elapsed = row["limit_seconds"], row["elapsed_seconds"]
    left = float(limit - elapsed) if limit is not None and elapsed is not None else None
    age = float(elapsed) if is_whole and elapsed is not None else None
    return JobFacts(now, True, left, None if limit is None else float(limit), is_array, age)


def meaning(run: JoinedRun, names: Sequence[str], job: JobFacts, growth: Growth) -> list[str]:
    """What the metrics say, in lines: where each stands, its spikes and nan; end and pace against the job's limit.

    `growth` is what earlier calls saw of the same run.
    """
    lines = []
    for name in names:
        axis = axis_of(run, name)
        series = run.series(name, axis)
        if not len(series):
            continue
        values = series.values
        said = [f"{visible(name)} {number_words(float(values[-1]))} at {axis} {step_words(float(series.x[-1]))}"]
        if "loss" in name.lower():
            finite = np.isfinite(values)
            spikes = find_spikes(series.x[finite], values[finite]).findings
            if finite.sum() < FEWEST_POINTS:
                said.append("too few points to tell whether something stands out")
            if spikes:
                more = f" (the newest of {len(spikes)})" if len(spikes) > 1 else ""
                said.append(spikes[-1].words + more)
            plateau = find_plateau(series.x, values)
            said += [plateau.words] if plateau is not None else []
        said += [finding.words for finding in find_not_finite(series.x, values)]
        lines.append("; ".join(part for part in said if part))
    lines += _pace(run, names[0], job, growth) if names else []
    return lines


def _pace(run: JoinedRun, name: str, job: JobFacts, growth: Growth) -> list[str]:
    """End and pace in a line, and what restarts cost in one."""
    axes, _ = run.written(name)
    steps = axes[0][np.isfinite(axes[0])]
    grown = age = None
    if job.is_running and steps.size:
        growth.note(job.now, float(steps[-1]))
        grown, age = growth.pace(), pace_of_age(run, job.age_seconds)
    said = words_of_course(run, paces_of_run(run, name, grown, age), steps, job)
    return [line for line in ("; ".join(said), lost_time_words(run.lost_time())) if line]
