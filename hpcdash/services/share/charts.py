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
    """The figures of an outcome; times in seconds, waits to the first start."""
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
    """Outcomes of one trace beside each other, in lines of `width` cells."""
    lines = _figures(outcomes)
    for outcome in outcomes:
        lines += [
            (),
            ((f"Nodes in use: {outcome.name}", "title"),),
            *_busy(outcome, width, _end(outcomes)),
        ]
    return [*lines, *_waits(outcomes, width)]


def _figures(outcomes: Sequence[PolicyResult]) -> list[Line]:
    rows = [
        ("Utilisation", [percent(one.utilisation(), 1.0) or "-" for one in outcomes]),
        ("All done after", [format_wait(one.ended_at) or "-" for one in outcomes]),
        ("Node hours worked", [format_hours(one.worked) for one in outcomes]),
        ("Node hours lost", [format_hours(one.lost) for one in outcomes]),
        ("Loading and saving", [format_hours(one.idled) for one in outcomes]),
        ("Interruptions", [format_count(one.interruptions) for one in outcomes]),
        ("Not saved in time", [format_count(one.forced) for one in outcomes]),
        ("Tasks that never run", [format_count(one.never_run) for one in outcomes]),
    ]
    cells = max(len(title) for title, _ in rows)
    widths = [max(len(one.name), 8) for one in outcomes]
    head = "  ".join(f"{one.name:>{size}}" for one, size in zip(outcomes, widths, strict=True))
    lines: list[Line] = [((" " * cells + "  " + head, "dim"),)]
    for title, figures in rows:
        line = "  ".join(f"{figure:>{size}}" for figure, size in zip(figures, widths, strict=True))
        lines.append(((f"{title:<{cells}}  ", ""), (line, "value")))
    return lines


def _end(outcomes: Sequence[PolicyResult]) -> float:
    return max((one.ended_at for one in outcomes), default=0.0)


def _busy(outcome: PolicyResult, width: int, end: float) -> list[Line]:
    """A column for each piece of time, as high as the nodes in use on average."""
    label = f"{outcome.nodes} "
    columns = max(10, width - len(label) - 1)
    if end <= 0 or not outcome.busy:
        return [(("nothing ran", "dim"),)]
    edges = np.linspace(0.0, end, columns + 1)
    times = np.array([at for at, _ in outcome.busy])
    nodes = np.array([busy for _, busy in outcome.busy], dtype=float)
    # Node-seconds up to a moment; of steps that is linear between them.
    held = np.concatenate([[0.0], np.cumsum(nodes[:-1] * np.diff(times))])
    upto = np.interp(edges, times, held, left=0.0)
    after = edges > times[-1]
    upto[after] = held[-1] + nodes[-1] * (edges[after] - times[-1])
    mean = np.diff(upto) / np.diff(edges)
    heights = np.maximum(np.rint(mean / outcome.nodes * _ROWS), mean > 0).astype(int)

    def build(plot: Any) -> None:
        cells = [(at, row) for at, height in enumerate(heights) for row in range(height)]
        if cells:
            plot.scatter([at for at, _ in cells], [row for _, row in cells], marker=_BLOCK, color=1)
        plot.xlim(0, columns - 1)
        plot.ylim(0, _ROWS - 1)
        plot.xticks([])
        plot.yticks([0, _ROWS - 1], ["0 ".rjust(len(label)), label])

    drawn = draw_plot(build, columns + len(label), _ROWS, {1: "bar"})
    ends = counted(max(1, round(end / _DAY)), "day") if end >= _DAY else format_wait(end)
    axis = " " * len(label) + "0" + ends.rjust(columns - 1)
    return [*drawn, ((axis, "dim"),)]


def _waits(outcomes: Sequence[PolicyResult], width: int) -> list[Line]:
    """The median wait of each priority under each rule, and the time within which 95 % of its tasks
    started.
    """
    lines: list[Line] = []
    cells = max(len(one.name) for one in outcomes)
    bar_cells = max(8, min(40, width - cells - 36))
    for priority in (*LEVELS, Priority.AUTO):
        known = [(one, waits) for one in outcomes if (waits := one.waits.get(priority))]
        if not known:
            continue
        medians = np.array([np.median(waits) for _, waits in known])
        lines.append(((f"  {priority.name}", "value"),))
        for (one, waits), median, bar in zip(
            known, medians, draw_bars(medians, bar_cells), strict=True
        ):
            figures = (
                f"  {format_wait(float(median)):>8}  95% within "
                f"{format_wait(float(np.percentile(waits, 95)))}"
            )
            lines.append(((f"    {one.name:<{cells}}  ", ""), *bar, (figures, "")))
    return [(), (("Wait for the first start, median", "title"),), *lines] if lines else []
