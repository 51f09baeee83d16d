"""Results of a simulated pool as lines of text: figures, nodes in use, waits by priority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdash.domain.share import LEVELS, Priority
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_count
from hpcdash.services.share.simulation import PolicyResult
from hpcdash.services.usage.charts import (
    Line,
    draw_bars,
    draw_plot,
    format_hours,
    format_wait,
    percent,
)

_DAY = 86_400.0
_ROWS = 6
_BLOCK = "█"


def outcome_figures(outcome: PolicyResult) -> dict[str, Any]:
    """Return the figures of an outcome; times in seconds, waits until the first start."""
    return {
        "name": outcome.name,
        "nodes": outcome.nodes,
        "tasks": outcome.tasks,
        "never_run": outcome.never_run,
        "utilisation": outcome.utilisation(),
        "ended_at": outcome.ended_at,
        "worked_node_seconds": outcome.worked,
        "lost_node_seconds": outcome.lost,
        "idled_node_seconds": outcome.idled,
        "interruptions": outcome.interruptions,
        "interrupted_tasks": outcome.interrupted_tasks,
        "forced": outcome.forced,
        "suspended_seconds": outcome.suspended_seconds,
        "waits": {
            priority.name: {
                "tasks": len(waits),
                "median_seconds": float(np.median(waits)),
                "p95_seconds": float(np.percentile(waits, 95)),
            }
            for priority in (*LEVELS, Priority.AUTO)
            if (waits := outcome.waits.get(priority))
        },
    }


def draw_outcomes(outcomes: Sequence[PolicyResult], width: int) -> list[Line]:
    """Draw the outcomes of a trace beside each other, in lines of `width` cells."""
    lines = _draw_figures(outcomes)
    end = max((outcome.ended_at for outcome in outcomes), default=0.0)
    for outcome in outcomes:
        title = (f"Nodes in use: {outcome.name}", "title")
        lines += [(), (title,), *_draw_nodes_in_use(outcome, width, end)]
    return [*lines, *_draw_waits(outcomes, width)]


def _draw_figures(outcomes: Sequence[PolicyResult]) -> list[Line]:
    titles = (
        "Utilisation",
        "Total time",
        "Node hours worked",
        "Node hours lost",
        "Spent loading and saving",
        "Interruptions",
        "Not saved in time",
        "Tasks that never run",
    )
    columns = []
    for outcome in outcomes:
        figures = (
            percent(outcome.utilisation(), 1.0) or "-",
            format_wait(outcome.ended_at) or "-",
            format_hours(outcome.worked),
            format_hours(outcome.lost),
            format_hours(outcome.idled),
            format_count(outcome.interruptions),
            format_count(outcome.forced),
            format_count(outcome.never_run),
        )
        width = max(len(outcome.name), 8)
        columns.append([f"{figure:>{width}}" for figure in (outcome.name, *figures)])
    heading, *rows = ["  ".join(cells) for cells in zip(*columns, strict=True)]
    title_width = max(map(len, titles))
    lines: list[Line] = [((" " * title_width + "  " + heading, "dim"),)]
    for title, row in zip(titles, rows, strict=True):
        lines.append(((f"{title:<{title_width}}  ", ""), (row, "value")))
    return lines


def _draw_nodes_in_use(outcome: PolicyResult, width: int, end: float) -> list[Line]:
    """Draw a column for each interval, as high as the average number of nodes in use."""
    label = f"{outcome.nodes} "
    columns = max(10, width - len(label) - 1)
    if end <= 0 or not outcome.busy:
        return [(("nothing ran", "dim"),)]
    edges = np.linspace(0.0, end, columns + 1)
    times = np.array([time for time, _ in outcome.busy])
    nodes = np.array([busy for _, busy in outcome.busy], dtype=float)
    # Cumulative node-seconds, which are linear between two steps.
    cumulative = np.concatenate([[0.0], np.cumsum(nodes[:-1] * np.diff(times))])
    node_seconds = np.interp(edges, times, cumulative, left=0.0)
    after = edges > times[-1]
    node_seconds[after] = cumulative[-1] + nodes[-1] * (edges[after] - times[-1])
    mean = np.diff(node_seconds) / np.diff(edges)
    heights = np.maximum(np.rint(mean / outcome.nodes * _ROWS), mean > 0).astype(int)

    def build(plot: Any) -> None:
        cells = [(column, row) for column, height in enumerate(heights) for row in range(height)]
        if cells:
            xs, ys = zip(*cells, strict=True)
            plot.scatter(xs, ys, marker=_BLOCK, color=1)
        plot.xlim(0, columns - 1)
        plot.ylim(0, _ROWS - 1)
        plot.xticks([])
        plot.yticks([0, _ROWS - 1], ["0 ".rjust(len(label)), label])

    plot = draw_plot(build, columns + len(label), _ROWS, {1: "bar"})
    last = counted(max(1, round(end / _DAY)), "day") if end >= _DAY else format_wait(end)
    axis = " " * len(label) + "0" + last.rjust(columns - 1)
    return [*plot, ((axis, "dim"),)]


def _draw_waits(outcomes: Sequence[PolicyResult], width: int) -> list[Line]:
    """Draw each priority's median wait in each outcome, with the 95th percentile."""
    lines: list[Line] = []
    name_width = max(len(outcome.name) for outcome in outcomes)
    bar_width = max(8, min(40, width - name_width - 36))
    for priority in (*LEVELS, Priority.AUTO):
        known = [outcome for outcome in outcomes if outcome.waits.get(priority)]
        if not known:
            continue
        medians = np.array([np.median(outcome.waits[priority]) for outcome in known])
        bars = draw_bars(medians, bar_width)
        lines.append(((f"  {priority.name}", "value"),))
        for outcome, median, bar in zip(known, medians, bars, strict=True):
            p95 = format_wait(float(np.percentile(outcome.waits[priority], 95)))
            figures = f"  {format_wait(float(median)):>8}  95% within {p95}"
            lines.append(((f"    {outcome.name:<{name_width}}  ", ""), *bar, (figures, "")))
    return [(), (("Wait for the first start, median", "title"),), *lines] if lines else []
