"""A report as lines of text with roles: figures, bars, a histogram and a heatmap, drawn with
plotext to any width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import zip_longest
from math import isfinite
from threading import Lock
from typing import Any

import numpy as np

from hpcdash.domain.text import cell_width, clip, visible
from hpcdash.domain.units import format_amount, format_count, format_span
from hpcdash.services.usage.report import OF_TIME, WAIT_LABELS, WEEKDAYS, UsageReport

# A text and its role, which a theme colours; a line consists of pieces.
Piece = tuple[str, str]
Line = tuple[Piece, ...]
HEAT = ("heat-1", "heat-2", "heat-3", "heat-4")
ROLES = ("title", "dim", "value", "bad", "warn", "bar", "bad-bar", *HEAT)
MIN_WIDTH = 60
_TWO_COLUMNS_FROM = 150
_GAP = 3
_TALL_FROM = 50
_SHOWN_WAITS = 8
_SHOWN_WASTE = 6
_SHOWN_ADVICE = 6
_MAX_DAYS = 62
_MANY_FAILED = 0.2
_MIN_BAR = 6
_SHADES = "░▒▓█"
_SUCCESS = "█"
_FAILURE = "▒"
# plotext has one global canvas.
_CANVAS = Lock()
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_ASCII = str.maketrans({"█": "#", "▒": "=", "░": ".", "▓": "%", "·": "-", "…": ".", "▌": "#"})

_UNIT_TITLES = {"GPU": "GPU hours", "CPU": "CPU hours"}


def format_hours(seconds: float | None) -> str:
    """Format hours for a narrow column: `0.02`, `3.4`, `38`, `12.3K`; '' if unknown."""
    return "" if seconds is None else rounded(seconds / 3600)


def format_wait(seconds: float | None) -> str:
    """`42 s`, `27 min`, `1.6 h`, `3.2 d`; '' for None."""
    if seconds is None:
        return ""
    if seconds < 3600:
        return format_span(max(seconds, 0))
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def percent(part: float | None, whole: float | None) -> str:
    """`17%` of a whole; '' if either is missing."""
    if part is None or not whole:
        return ""
    share = 100 * part / whole
    return f"{share:.0f}%" if share >= 1 or not share else "< 1%"


def as_ascii(lines: Iterable[Line]) -> list[Line]:
    """Replace block characters for a terminal without Unicode."""
    return [tuple((text.translate(_ASCII), role) for text, role in line) for line in lines]


def draw_report(
    report: UsageReport, width: int, by: str = "queue", height: int | None = None
) -> list[Line]:
    """Draw a report in lines of `width` cells, in two columns if they fit, else in one.

    On a screen of many lines (`height`) bars are longer, and more rows are shown.
    """
    width = max(width, MIN_WIDTH)
    bar_lines = 9
    most_rows = 12
    if height is not None and height >= _TALL_FROM:
        bar_lines = 14
        most_rows = 16
    lines = [*_figures(report, width), ()]
    if report.is_empty:
        return [*lines, (("Nothing ran in this interval.", "dim"),)]
    if width < _TWO_COLUMNS_FROM:
        parts = [
            _over_time(report, width, bar_lines),
            _groups(report, width, by, most_rows),
            _load(report, width),
            _waits(report, width),
            _waste(report, width),
            _advice(report, width),
        ]
        return [*lines, *_stacked(parts)]
    left_width = (width - _GAP) * 11 // 20
    right_width = width - _GAP - left_width
    left_parts = [
        _over_time(report, left_width, bar_lines),
        _groups(report, left_width, by, most_rows),
        _waste(report, left_width),
    ]
    right_parts = [
        _load(report, right_width),
        _waits(report, right_width),
        _advice(report, right_width),
    ]
    for left, right in zip_longest(_stacked(left_parts), _stacked(right_parts)):
        line = left or ()
        if right is not None:
            blanks = left_width + _GAP - sum(cell_width(text) for text, _ in line)
            line = (*line, (" " * blanks, ""), *right)
        lines.append(line)
    return lines


def _stacked(parts: Sequence[Sequence[Line]]) -> list[Line]:
    """Join parts with a blank line between them."""
    lines: list[Line] = []
    for part in filter(None, parts):
        if lines:
            lines.append(())
        lines += part
    return lines


# -- parts of the page


def _figures(report: UsageReport, width: int) -> list[Line]:
    """Draw the totals, each as a title above its value."""
    total = report.total
    unit = report.unit.lower()
    failed = total[f"failed_{unit}_seconds"]
    unused = total[f"unused_{unit}_seconds"]
    measured = total[f"measured_{unit}_seconds"]
    use = None if not measured or unused is None else measured - unused
    failed_jobs = format_count(total["failed"] or 0)
    if total["failed"] and (share := percent(total["failed"], total["jobs"])):
        failed_jobs += f" ({share})"
    failed_hours = format_hours(failed)
    if failed and (share := percent(failed, total[f"{unit}_seconds"])):
        failed_hours += f" ({share})"
    failed_title = f"{report.unit} h lost to failures"
    figures = {}
    if report.unit == "GPU":
        figures["GPU hours"] = format_hours(total["gpu_seconds"])
    figures["CPU hours"] = format_hours(total["cpu_seconds"])
    figures["Jobs"] = format_count(total["jobs"] or 0)
    if total["running"]:
        figures["Running"] = format_count(total["running"])
    figures["Failed"] = failed_jobs
    figures["Requeued"] = format_count(total["requeued"] or 0)
    figures[failed_title] = failed_hours
    figures[f"{report.unit} use"] = percent(use, measured) or "unknown"
    figures["Median wait"] = format_wait(total["wait_median_seconds"]) or "-"
    figures["Total wait"] = f"{format_hours(total['wait_seconds'])} h"
    bad_titles = {"Failed"} if total["failed"] else set()
    if failed:
        bad_titles.add(failed_title)
    lines: list[Line] = []
    titles: list[Piece] = []
    values: list[Piece] = []
    room = width
    for title, value in figures.items():
        role = "bad" if title in bad_titles else "value"
        cells = max(len(title), len(value)) + _GAP
        if cells - _GAP > room and titles:
            lines += [tuple(titles), tuple(values), ()]
            titles = []
            values = []
            room = width
        titles.append((f"{title:<{cells}}", "dim"))
        values.append((f"{value:<{cells}}", role))
        room -= cells
    return [*lines, tuple(titles), tuple(values)]


def _over_time(report: UsageReport, width: int, rows: int) -> list[Line]:
    """Draw bars of the hours of each day, or week if there are many days, failed runs on top."""
    unit = report.unit.lower()
    has_few_days = report.groups["day"].num_rows <= min(_MAX_DAYS, (width - 8) // 2)
    grouping = "day" if has_few_days else "week"
    table = report.groups[grouping]
    keys = table["key"].to_pylist()
    held = np.array(table[f"{unit}_seconds"].to_pylist(), dtype=float) / 3600
    failed = np.array(table[f"failed_{unit}_seconds"].to_pylist(), dtype=float) / 3600
    # A run's failed hours count on the day it ended, though it may have run on earlier days.
    failed = np.minimum(failed, held)
    most = float(held.max())
    if not most:
        return []
    ticks = [0.0, most / 2, most]
    labels = [rounded(tick) for tick in ticks]
    margin = max(map(len, labels))
    # Distance of the bars, whose last cell is blank; a few bars do not fill the width.
    pitch = min((width - margin + 1) / len(keys), 12.0)
    bar_width = max(1, int(pitch) - 1)
    starts = np.floor(np.arange(len(keys)) * pitch).astype(int)
    canvas = int(starts[-1]) + bar_width
    success = np.rint((held - failed) / most * rows).astype(int)
    whole = np.maximum(np.rint(held / most * rows), held > 0).astype(int)

    def fill(plot: Any, marker: str, colour: int, low: np.ndarray, high: np.ndarray) -> None:
        columns = []
        lines = []
        for start, bottom, top in zip(starts.tolist(), low, high, strict=True):
            for column in range(start, start + bar_width):
                for line in range(bottom, top):
                    columns.append(column)
                    lines.append(line)
        if columns:
            plot.scatter(columns, lines, marker=marker, color=colour)

    def build(plot: Any) -> None:
        fill(plot, _SUCCESS, 1, np.zeros_like(success), high=success)
        fill(plot, _FAILURE, 2, success, high=whole)
        plot.xlim(0, canvas - 1)
        plot.ylim(0, rows - 1)
        plot.xticks([])
        plot.yticks([0, (rows - 1) / 2, rows - 1], [label.rjust(margin) for label in labels])

    drawn = draw_plot(build, canvas + margin, rows, {1: "bar", 2: "bad-bar"})
    axis = _date_ticks(keys, starts.tolist(), margin, width)
    head: Line = ((f"{_UNIT_TITLES[report.unit]} per {grouping}", "title"),)
    if failed.any():
        head += (
            (f"  {_SUCCESS}", "bar"),
            (" succeeded  ", "dim"),
            (_FAILURE, "bad-bar"),
            (" failed", "dim"),
        )
    return [head, *drawn, ((axis, "dim"),)]


def _date_ticks(keys: Sequence[str], starts: Sequence[int], margin: int, width: int) -> str:
    """`Nov 3` below the first bar and those of Mondays, if it fits."""
    line = " " * margin
    for number, (key, start) in enumerate(zip(keys, starts, strict=True)):
        day = date.fromisoformat(key)
        label = f"{day:%b} {day.day}"
        at = margin + start
        fits_all = len(starts) > 1 and starts[1] > len(label)
        is_labelled = fits_all or not number or day.weekday() == 0
        blank = 1 if number else 0
        if is_labelled and at >= len(line) + blank and at + len(label) <= width:
            line = line.ljust(at) + label
    return line


def _groups(report: UsageReport, width: int, by: str, most: int) -> list[Line]:
    """Draw a table with a bar in each row, most hours first, days and weeks newest first."""
    unit = report.unit.lower()
    table = report.groups[by]
    rows = table.to_pylist()
    if by in OF_TIME:
        rows.reverse()
    rows = [row for row in rows if row["jobs"] or row[f"{unit}_seconds"] or row["started"]]
    shown = rows[:most]
    rest = len(rows) - most
    if not shown:
        return []
    columns: dict[str, list[str]] = {}
    hours = [format_hours(row[f"{unit}_seconds"]) for row in shown]
    columns[f"{report.unit} h"] = hours
    if unit == "gpu":
        columns["CPU h"] = [format_hours(row["cpu_seconds"]) for row in shown]
    columns["JOBS"] = [format_count(row["jobs"]) for row in shown]
    columns["FAILED"] = [percent(row["failed"], row["jobs"]) for row in shown]
    uses = []
    for row in shown:
        measured = row[f"measured_{unit}_seconds"]
        used = measured - row[f"unused_{unit}_seconds"] if measured else None
        uses.append(percent(used, measured))
    columns["USE"] = uses
    columns["WAIT"] = [format_wait(row["wait_median_seconds"]) for row in shown]
    widths = {}
    for head, texts in columns.items():
        if any(texts):
            widths[head] = max(len(head), *map(len, texts))
    names = [visible(str(row["key"])) or "(empty)" for row in shown]
    name_cells = max(len(by), *map(cell_width, names))
    name_cells = min(name_cells, 24 if width >= _TWO_COLUMNS_FROM // 2 else 14)

    def free_cells() -> int:
        return width - name_cells - sum(widths.values()) - 2 * len(widths) - 3

    # The least important columns are dropped first.
    droppable = ["CPU h", "WAIT", "USE", "FAILED", "JOBS", f"{report.unit} h"]
    for head in droppable:
        if free_cells() >= _MIN_BAR or len(widths) == 1:
            break
        widths.pop(head, None)
    bar_cells = max(_MIN_BAR, free_cells())
    held = np.array([row[f"{unit}_seconds"] for row in shown], dtype=float)
    bars = draw_bars(held, bar_cells)
    title_row = f"{by.upper():<{name_cells}}" + " " * (bar_cells + 2)
    title_row += "".join(f"  {head:>{size}}" for head, size in widths.items())
    lines: list[Line] = [((f"By {by}", "title"),), ((title_row, "dim"),)]
    for place, (name, bar, row) in enumerate(zip(names, bars, shown, strict=True)):
        is_bad = row["failed"] >= _MANY_FAILED * max(1, row["jobs"])
        shown_name = clip(name, name_cells)
        blanks = " " * (name_cells - cell_width(shown_name) + 2)
        line: list[Piece] = [(f"{shown_name}{blanks}", ""), *bar]
        for head, size in widths.items():
            role = "bad" if head == "FAILED" and is_bad else ""
            line.append((f"  {columns[head][place]:>{size}}", role))
        lines.append(tuple(line))
    if rest > 0:
        lines.append(((f"and {rest} more", "dim"),))
    return lines


def draw_bars(values: np.ndarray, cells: int, role: str = "bar") -> list[Line]:
    """Draw a bar for each value in a line of `cells`; the largest value's bar fills it."""
    most = float(values.max(initial=0))
    if not most or not isfinite(most):
        return [((" " * cells, ""),) for _ in values]
    if len(values) == 1:
        return [((_SUCCESS * cells, role),)]

    def build(plot: Any) -> None:
        places = list(range(len(values)))[::-1]
        plot.bar(places, values.tolist(), orientation="h", width=0.001, marker=_SUCCESS, color=1)
        plot.xlim(0, most)
        plot.ylim(0, len(values) - 1)
        plot.xticks([])
        plot.yticks([])

    return draw_plot(build, cells, len(values), {1: role})


def _load(report: UsageReport, width: int) -> list[Line]:
    """Draw the concurrent usage by weekday and hour: a shade for each quarter of the maximum."""
    most = report.load.largest
    if not most:
        return []
    cell = max(1, min(4, (width - 4) // 24))
    levels = np.full(report.load.held.shape, -1)
    known = np.isfinite(report.load.held)
    quarters = np.ceil(report.load.held[known] / most * len(HEAT))
    levels[known] = np.minimum(quarters, len(HEAT)).astype(int) - 1

    def build(plot: Any) -> None:
        for level, shade in enumerate(_SHADES):
            days, hours = np.nonzero(levels == level)
            if days.size:
                x = (hours[:, None] * cell + np.arange(cell)[None, :]).ravel()
                y = np.repeat(6 - days, cell)
                plot.scatter(x.tolist(), y.tolist(), marker=shade, color=level + 1)
        plot.xlim(0, 24 * cell - 1)
        plot.ylim(0, 6)
        plot.xticks([])
        plot.yticks(list(range(7)), [f"{day} " for day in reversed(WEEKDAYS)])

    drawn = draw_plot(build, 24 * cell + 4, 7, dict(enumerate(HEAT, start=1)))
    hours = "".join(f"{hour:<{6 * cell}}" for hour in range(0, 24, 6))
    title = f"Concurrent {report.unit}s by hour"
    legend: list[Piece] = [("    ", "")]
    for level, role in enumerate(HEAT):
        upper = most * (level + 1) / len(HEAT)
        legend += [(_SHADES[level] * 2, role), (f" to {rounded(upper)}  ", "dim")]
    return [((title, "title"),), *drawn, ((f"    {hours}".rstrip(), "dim"),), tuple(legend)]


def rounded(value: float) -> str:
    """Format an amount with two or three digits: `0`, `0.04`, `3.7`, `37`, `12.3K`."""
    if value >= 9.95:
        return format_count(round(value))
    return f"{value:.1f}" if value >= 0.95 else format_amount(value, 1)


def _waits(report: UsageReport, width: int) -> list[Line]:
    """Draw the waits of runs: a histogram of all, and rows of the busiest queues and sizes."""
    table = report.waits
    if not table.num_rows:
        return []
    sums = [sum(table[f"waits_{number}"].to_pylist()) for number in range(len(WAIT_LABELS))]
    counts = np.array(sums, dtype=float)
    all_runs = counts.sum()
    label_cells = max(map(len, WAIT_LABELS))
    bar_cells = max(6, min(48, width - label_cells - 2 - 16))
    lines: list[Line] = [(("Queue wait (from eligible to started)", "title"),)]
    for label, count, bar in zip(WAIT_LABELS, counts, draw_bars(counts, bar_cells), strict=True):
        shares = f"  {format_count(int(count)):>6}  {percent(count, all_runs):>5}"
        lines.append(((f"{label:>{label_cells}}  ", ""), *bar, (shares, "" if count else "dim")))
    rows = sorted(table.to_pylist(), key=lambda row: -row["started"])[:_SHOWN_WAITS]
    queue_cells = max(5, min(20, max(cell_width(visible(row["queue"])) for row in rows)))
    size_cells = max(len(row["size"]) for row in rows)
    parts = {"MEDIAN": "median", "P80": "p80", "P95": "p95"}
    if queue_cells + size_cells + 10 + 10 * len(parts) > width:
        del parts["P95"]
    head = f"{'QUEUE':<{queue_cells}}  {'SIZE':<{size_cells}}    RUNS"
    head += "".join(f"  {name:>8}" for name in parts)
    lines += [(), ((head, "dim"),)]
    for row in rows:
        queue = clip(visible(row["queue"]), queue_cells)
        blanks = " " * (queue_cells - cell_width(queue))
        text = f"{queue}{blanks}  {row['size']:<{size_cells}}  {format_count(row['started']):>6}"
        for name in parts.values():
            text += f"  {format_wait(row[f'wait_{name}_seconds']):>8}"
        lines.append(((text, ""),))
    return lines


def _waste(report: UsageReport, width: int) -> list[Line]:
    """Draw the job names with the most unused resources."""
    rows = report.wasteful.to_pylist()[:_SHOWN_WASTE]
    if not rows:
        return []
    heads = ["CPU h UNUSED", "GiB h UNUSED", "RUNS"]
    if any(row["unused_gpu_seconds"] for row in rows):
        heads.insert(0, "GPU h UNUSED")
    while len(heads) > 2 and width - 14 * len(heads) - 12 < 12:
        heads.pop(-2 if len(heads) > 3 else -1)
    name_cells = max(8, min(36, width - 14 * len(heads) - 12))
    lines: list[Line] = [(("Most wasted", "title"),)]
    titles = f"{'NAME':<{name_cells}}  {'USER':<10}" + "".join(f"  {name:>12}" for name in heads)
    lines.append(((titles, "dim"),))
    for row in rows:
        name = clip(visible(row["name"] or ""), name_cells)
        user = clip(visible(row["user"] or ""), 10)
        name_blanks = " " * (name_cells - cell_width(name) + 2)
        user_blanks = " " * (10 - cell_width(user))
        figures = {
            "GPU h UNUSED": "",
            "GiB h UNUSED": format_hours(row["unused_memory_gib_seconds"]),
            "RUNS": format_count(row["runs"]),
        }
        for unit in ("gpu", "cpu"):
            unused = row[f"unused_{unit}_seconds"]
            held = row[f"{unit}_seconds"]
            if held or unit == "cpu":
                text = f"{format_hours(unused)} {percent(unused, held)}"
                figures[f"{unit.upper()} h UNUSED"] = text
        cells = [(f"  {figures[head]:>12}", "") for head in heads]
        lines.append(((f"{name}{name_blanks}{user}{user_blanks}", ""), *cells))
    return lines


def _advice(report: UsageReport, width: int) -> list[Line]:
    lines: list[Line] = []
    for advice in report.advice[:_SHOWN_ADVICE]:
        name = f"{advice.name} ({advice.user})" if report.users > 1 else advice.name
        lines.append(((clip(visible(name), width), "value"),))
        for text in advice.messages:
            lines += [((f"  {part}", ""),) for part in _wrap(text, width - 2)]
    return [(("Advice", "title"),), *lines] if lines else []


def _wrap(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def draw_plot(
    build: Callable[[Any], None], width: int, height: int, roles: dict[int, str]
) -> list[Line]:
    """Draw a plot of exactly `height` lines with plotext; its colours are the numbers of roles.

    plotext gets no text from users, and only finite values.
    """
    import plotext

    with _CANVAS:
        plotext.clear_figure()
        plotext.limit_size(False, False)
        plotext.theme("clear")
        plotext.frame(False)
        plotext.plotsize(width, height)
        build(plotext)
        drawn = plotext.build()
        plotext.clear_figure()
    return [_line(text, roles) for text in drawn.split("\n")[:height]]


def _line(text: str, roles: dict[int, str]) -> Line:
    pieces: list[Piece] = []
    role = "dim"
    for number, part in enumerate(_COLOUR.split(text)):
        if number % 2:
            colour = part.removeprefix("38;5;")
            role = roles.get(int(colour), "dim") if colour.isdigit() and part != colour else "dim"
        elif part:
            pieces.append((part, role))
    return tuple(pieces)


def format_report_span(report: UsageReport) -> str:
    """`2026-11-01 to 2026-11-20`, with times of day if it is short."""
    since = datetime.fromtimestamp(report.span.since, report.zone)
    until = datetime.fromtimestamp(report.span.until, report.zone)
    if report.span.seconds < 2 * 86_400:
        return f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}"
    # A span that ends at midnight covers the previous day.
    last = until - timedelta(seconds=1)
    return f"{since:%Y-%m-%d} to {last:%Y-%m-%d}"
