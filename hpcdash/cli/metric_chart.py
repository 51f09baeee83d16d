"""Draws metrics once in a terminal's width and says below what they mean. Knows no cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from hpcdash.cli.metric_output import axis_of
from hpcdash.domain.text import visible
from hpcdash.logs.downsample import view_of, whole_range
from hpcdash.logs.joined import JoinedRun, Series
from hpcdash.logs.metric_meaning.eta import eta_of
from hpcdash.logs.metric_meaning.findings import number_words, step_words
from hpcdash.logs.metric_meaning.paces import paces_of_run, seconds_per_step
from hpcdash.logs.metric_meaning.restarts import lost_time_words, restart_seconds
from hpcdash.logs.metric_meaning.spikes import find_spikes
from hpcdash.logs.metric_meaning.stretches import find_not_finite, find_plateau
from hpcdash.logs.metric_meaning.throughput import quantity_of

LEAST_WIDTH, LARGEST_WIDTH = 40, 240
_HEIGHT, _SMALL_HEIGHT = 18, 11
# Drawn where nobody said which.
MOST_SHOWN = 4
_TICKS = 5


def shown_by_default(run: JoinedRun) -> list[str]:
    """The losses; where there is none, what is neither a pace nor a place."""
    names = list(run.names)
    losses = sorted((name for name in names if "loss" in name.lower()), key=lambda name: (len(name), name))
    others = [name for name in names if quantity_of(name) is None]
    return (losses or others or names)[:MOST_SHOWN]


def chart_text(run: JoinedRun, names: Sequence[str], *, width: int, colours: bool, unicode: bool = True) -> str:
    """One chart a metric, one below the other; without colours where none are wanted."""
    width = min(max(width, LEAST_WIDTH), LARGEST_WIDTH)
    height = _HEIGHT if len(names) == 1 else _SMALL_HEIGHT
    return "\n".join(_chart(run.series(name, axis_of(run, name)), width, height, colours, unicode) for name in names)


def _chart(series: Series, width: int, height: int, colours: bool, unicode: bool) -> str:
    import plotext

    columns = max(10, width - 12) * (2 if unicode else 1)
    x, y = view_of(series, *whole_range(series), columns).outline()
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plotsize(width, height)
    plotext.theme("clear" if not colours else "default")
    if colours:
        plotext.canvas_color("default")
        plotext.axes_color("default")
        plotext.ticks_color("default")
    first, last = whole_range(series)
    if last > first:
        plotext.xlim(first, last)
        ticks = np.linspace(first, last, _TICKS)
        # A short run has fewer steps than there are ticks.
        ticks = np.unique(np.round(ticks)) if last - first >= _TICKS - 1 and series.axis != "epoch" else ticks
        plotext.xticks(ticks.tolist(), [step_words(tick) for tick in ticks.tolist()])
    plotext.title(visible(f"{series.name} by {series.axis}"))
    if x.size:
        plotext.plot(x.tolist(), y.tolist(), marker="braille" if unicode else "*", color="cyan" if colours else None)
    drawn: str = plotext.build()
    return (drawn if colours else plotext.uncolorize(drawn)).rstrip("\n")


def meaning(run: JoinedRun, names: Sequence[str], row: Mapping[str, Any], *, is_array: bool) -> list[str]:
    """What the metrics say, in lines: where each stands, its spikes and nan; pace and end against the job's limit."""
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
            if spikes:
                more = f" (the newest of {len(spikes)})" if len(spikes) > 1 else ""
                said.append(spikes[-1].words + more)
            plateau = find_plateau(series.x, values)
            said += [plateau.words] if plateau is not None else []
        said += [finding.words for finding in find_not_finite(series.x, values)]
        lines.append("; ".join(part for part in said if part))
    lines += _pace(run, names[0], row, is_array) if names else []
    return lines


def _pace(run: JoinedRun, name: str, row: Mapping[str, Any], is_array: bool) -> list[str]:
    paces = paces_of_run(run, name)
    lost = run.lost_time()
    said = [pace.words for pace in paces[:2]]
    seconds = seconds_per_step(paces)
    steps = run.series(name, "step").x
    if row["state"] == "running" and seconds is not None and run.last_step is not None and steps.size:
        limit, elapsed = row["limit_seconds"], row["elapsed_seconds"]
        left = float(limit - elapsed) if limit is not None and elapsed is not None else None
        task_limit = float(limit) if is_array and limit is not None else None
        eta = eta_of(float(steps[-1]), float(run.last_step), seconds, left, task_limit, restart_seconds(lost))
        if eta is not None and isfinite(eta.steps_left):
            said.append(eta.words)
    restarts = lost_time_words(lost)
    return [line for line in ("; ".join(said), restarts) if line]
