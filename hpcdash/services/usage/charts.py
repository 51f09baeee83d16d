"""A report as lines of text with roles: figures, bars, a histogram and a heatmap, drawn with
plotext at any width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from math import isfinite
from threading import Lock
from typing import Any

import numpy as np

from hpcdash.domain.text import cell_width, clip, visible
from hpcdash.domain.units import format_amount, format_count, format_span
from hpcdash.services.usage.report import OF_TIME, WAIT_LABELS, WEEKDAYS, UsageReport

# A text and its role: what a theme colours. A line is a row of them.
Piece = tuple[str, str]
Line = tuple[Piece, ...]
HEAT = ("heat-1", "heat-2", "heat-3", "heat-4")
ROLES = ("title", "dim", "value", "bad", "warn", "bar", "bad-bar", *HEAT)
MIN_WIDTH = 60
_TWO_COLUMNS_FROM = 150
_GAP = 3
_TALL_FROM = 50
_SHOWN_WAITS, _SHOWN_WASTE, _SHOWN_ADVICE = 8, 6, 6
_MAX_DAYS = 62
_MANY_FAILED = 0.2
_MIN_BAR = 6
_SHADES = "░▒▓█"
_WELL, _BADLY = "█", "▒"
# plotext has one canvas for all.
_CANVAS = Lock()
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_ASCII = str.maketrans({"█": "#", "▒": "=", "░": ".", "▓": "%", "·": "-", "…": ".", "▌": "#"})

_UNIT_TITLES = {"GPU": "GPU hours", "CPU": "CPU hours"}


def format_hours(seconds: float | None) -> str:
    """Hours for a narrow column: `0.02`, `3.4`, `38`, `12.3K`; '' where not known."""
    return "" if seconds is None else rounded(seconds / 3600)


def format_wait(seconds: float | None) -> str:
    """`42 s`, `27 min`, `1.6 h`, `3.2 d`; '' where nothing waited."""
    if seconds is None:
        return ""
    if seconds < 3600:
        return format_span(max(seconds, 0))
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def percent(part: float | None, whole: float | None) -> str:
    """`17 %` of a whole; '' where there is none, or it is not known."""
    if part is None or not whole:
        return ""
    share = 100 * part / whole
    return f"{share:.0f}%" if share >= 1 or not share else "< 1%"


def as_ascii(lines: Iterable[Line]) -> list[Line]:
    """The same lines for a terminal that has no blocks."""
    return [tuple((text.translate(_ASCII), role) for text, role in line) for line in lines]


def draw_report(
    report: UsageReport, width: int, by: str = "queue", height: int | None = None
) -> list[Line]:
    """Everything of a report in lines of `width` cells: in two columns where there is room, else
    one below another.

    On a screen of many lines (`height`) bars are longer, and more rows are shown.
    """
    width = max(width, MIN_WIDTH)
    is_tall = (height or 0) >= _TALL_FROM
    rows, most = (14, 16) if is_tall else (9, 12)
    head = [*_figures(report, width), ()]
    if report.is_empty:
        return [*head, (("Nothing ran in this span.", "dim"),)]
    if width < _TWO_COLUMNS_FROM:
        parts = [
            _over_time(report, width, rows),
            _groups(report, width, by, most),
            _load(report, width),
            _waits(report, width),
            _waste(report, width),
            _advice(report, width),
        ]
        return [*head, *_stacked(parts)]
    left = (width - _GAP) * 11 // 20
    right = width - _GAP - left
    columns = (
        _stacked(
            [_over_time(report, left, rows), _groups(report, left, by, most), _waste(report, left)]
        ),
        _stacked([_load(report, right), _waits(report, right), _advice(report, right)]),
    )
    lines = range(max(map(len, columns)))
    return [
        *head,
        *(_beside(columns[0][at : at + 1], columns[1][at : at + 1], left) for at in lines),
    ]


def _stacked(parts: Sequence[Sequence[Line]]) -> list[Line]:
    lines: list[Line] = []
    for part in filter(None, parts):
        lines += [*([()] if lines else []), *part]
    return lines


def _beside(left: Sequence[Line], right: Sequence[Line], width: int) -> Line:
    one = left[0] if left else ()
    blanks = width + _GAP - sum(cell_width(text) for text, _ in one)
    return (*one, (" " * blanks, ""), *right[0]) if right else one


# -- parts of the page


def _figures(report: UsageReport, width: int) -> list[Line]:
    """The totals, each a title over a value."""
    total = report.total
    unit = report.unit.lower()
    held = total[f"{unit}_seconds"]
    failed = total[f"failed_{unit}_seconds"]
    unused = total[f"unused_{unit}_seconds"]
    measured = total[f"measured_{unit}_seconds"]
    use = None if not measured or unused is None else measured - unused
    figures = [
        *(
            [("GPU hours", format_hours(total["gpu_seconds"]), "value")]
            if report.unit == "GPU"
            else []
        ),
        ("CPU hours", format_hours(total["cpu_seconds"]), "value"),
        ("Jobs", format_count(total["jobs"] or 0), "value"),
        *([("Running", format_count(total["running"]), "value")] if total["running"] else []),
        (
            "Failed",
            _with_share(total["failed"], total["jobs"]),
            "bad" if total["failed"] else "value",
        ),
        ("Requeued", format_count(total["requeued"] or 0), "value"),
        (
            f"{report.unit} h lost to failures",
            _hours_with_share(failed, held),
            "bad" if failed else "value",
        ),
        (f"{report.unit} use", percent(use, measured) or "not known", "value"),
        ("Median wait", format_wait(total["wait_median_seconds"]) or "-", "value"),
        ("Total wait", f"{format_hours(total['wait_seconds'])} h", "value"),
    ]
    lines: list[Line] = []
    titles: list[Piece] = []
    values: list[Piece] = []
    room = width
    for title, value, role in figures:
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


def _with_share(count: int | None, of: int | None) -> str:
    share = percent(count, of)
    return f"{format_count(count or 0)} ({share})" if share and count else format_count(count or 0)


def _hours_with_share(seconds: int | None, of: int | None) -> str:
    share = percent(seconds, of)
    return f"{format_hours(seconds)} ({share})" if share and seconds else format_hours(seconds)


def _over_time(report: UsageReport, width: int, rows: int) -> list[Line]:
    """Bars of the hours of each day, or week where there are many days; what failed runs had is on
    top.
    """
    unit = report.unit.lower()
    grouping = (
        "day" if report.groups["day"].num_rows <= min(_MAX_DAYS, (width - 8) // 2) else "week"
    )
    table = report.groups[grouping]
    keys = table["key"].to_pylist()
    held = np.array(table[f"{unit}_seconds"].to_pylist(), dtype=float) / 3600
    failed = np.array(table[f"failed_{unit}_seconds"].to_pylist(), dtype=float) / 3600
    # A run's failed hours are on the day it ended, and may have been held on those before.
    failed = np.minimum(failed, held)
    most = float(held.max())
    if not most:
        return []
    ticks = [0.0, most / 2, most]
    labels = [rounded(tick) for tick in ticks]
    margin = max(map(len, labels))
    # A bar begins every so many cells, and leaves the last of them blank. Two weeks are no wall.
    pitch = min((width - margin + 1) / len(keys), 12.0)
    wide = max(1, int(pitch) - 1)
    starts = np.floor(np.arange(len(keys)) * pitch).astype(int)
    canvas = int(starts[-1]) + wide
    well = np.rint((held - failed) / most * rows).astype(int)
    whole = np.maximum(np.rint(held / most * rows), held > 0).astype(int)

    def build(plot: Any) -> None:
        for marker, colour, low, high in (
            (_WELL, 1, np.zeros_like(well), well),
            (_BADLY, 2, well, whole),
        ):
            cells = [
                (at, row)
                for start, begin, end in zip(starts, low, high, strict=True)
                for at in range(start, start + wide)
                for row in range(begin, end)
            ]
            if cells:
                plot.scatter(
                    [int(at) for at, _ in cells],
                    [row for _, row in cells],
                    marker=marker,
                    color=colour,
                )
        plot.xlim(0, canvas - 1)
        plot.ylim(0, rows - 1)
        plot.xticks([])
        plot.yticks([0, (rows - 1) / 2, rows - 1], [label.rjust(margin) for label in labels])

    drawn = draw_plot(build, canvas + margin, rows, {1: "bar", 2: "bad-bar"})
    axis = _date_ticks(keys, starts.tolist(), margin, width)
    what = f"{_UNIT_TITLES[report.unit]} a {grouping}"
    legend = (
        (f"  {_WELL}", "bar"),
        (" succeeded  ", "dim"),
        (_BADLY, "bad-bar"),
        (" failed", "dim"),
    )
    return [((what, "title"), *(legend if failed.any() else ())), *drawn, ((axis, "dim"),)]


def _date_ticks(keys: Sequence[str], starts: Sequence[int], margin: int, width: int) -> str:
    """`Nov 3` below the first bar and those of Mondays, as there is room."""
    line = " " * margin
    for number, (key, start) in enumerate(zip(keys, starts, strict=True)):
        day = date.fromisoformat(key)
        label = f"{day:%b} {day.day}"
        at = margin + start
        is_round = day.weekday() == 0 or not number or (len(starts) > 1 and starts[1] > len(label))
        if is_round and at >= len(line) + (1 if number else 0) and at + len(label) <= width:
            line = line.ljust(at) + label
    return line


def _groups(report: UsageReport, width: int, by: str, most: int) -> list[Line]:
    """A table with a bar a row: the most hours first, days and weeks the newest first."""
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
    cells = [
        (
            format_hours(row[f"{unit}_seconds"]),
            format_hours(row["cpu_seconds"]) if unit == "gpu" else "",
            format_count(row["jobs"]),
            percent(row["failed"], row["jobs"]),
            _format_use(row, unit),
            format_wait(row["wait_median_seconds"]),
        )
        for row in shown
    ]
    heads = (f"{report.unit} h", "CPU h", "JOBS", "FAILED", "USE", "WAIT")
    remaining = [place for place in range(len(heads)) if any(row[place] for row in cells)]
    names = [visible(str(row["key"])) or "(empty)" for row in shown]
    name_cells = min(
        max(len(by), *map(cell_width, names)), 24 if width >= _TWO_COLUMNS_FROM // 2 else 14
    )
    while True:
        widths = [
            max(len(heads[place]), *(len(row[place]) for row in cells)) for place in remaining
        ]
        bar_cells = width - name_cells - sum(widths) - 2 * len(widths) - 3
        if bar_cells >= _MIN_BAR or len(remaining) == 1:
            break
        remaining.remove(next(place for place in (1, 5, 4, 3, 2, 0) if place in remaining))
    bar_cells = max(_MIN_BAR, bar_cells)
    held = np.array([row[f"{unit}_seconds"] for row in shown], dtype=float)
    bars = draw_bars(held, bar_cells)
    head = f"{by.upper():<{name_cells}}" + " " * (bar_cells + 2)
    head += "".join(
        f"  {heads[place]:>{size}}" for place, size in zip(remaining, widths, strict=True)
    )
    lines: list[Line] = [((f"By {by}", "title"),), ((head, "dim"),)]
    for name, bar, row, of in zip(names, bars, cells, shown, strict=True):
        is_bad = of["failed"] >= _MANY_FAILED * max(1, of["jobs"])
        named = clip(name, name_cells)
        line: list[Piece] = [(named + " " * (name_cells - cell_width(named) + 2), ""), *bar]
        for place, size in zip(remaining, widths, strict=True):
            line.append(
                (f"  {row[place]:>{size}}", "bad" if heads[place] == "FAILED" and is_bad else "")
            )
        lines.append(tuple(line))
    if rest > 0:
        lines.append(((f"and {rest} more", "dim"),))
    return lines


def _format_use(row: dict[str, Any], unit: str) -> str:
    measured = row[f"measured_{unit}_seconds"]
    return percent(measured - row[f"unused_{unit}_seconds"], measured) if measured else ""


def draw_bars(values: np.ndarray, cells: int, role: str = "bar") -> list[Line]:
    """A bar a value, one below the other, of the largest's length; each line has `cells`."""
    most = float(values.max(initial=0))
    if not most or not isfinite(most):
        return [((" " * cells, ""),) for _ in values]
    if len(values) == 1:
        return [((_WELL * cells, role),)]

    def build(plot: Any) -> None:
        places = list(range(len(values)))[::-1]
        plot.bar(places, values.tolist(), orientation="h", width=0.001, marker=_WELL, color=1)
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
    levels[known] = (
        np.minimum(np.ceil(report.load.held[known] / most * len(HEAT)), len(HEAT)).astype(int) - 1
    )

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

    drawn = draw_plot(
        build, 24 * cell + 4, 7, {number + 1: role for number, role in enumerate(HEAT)}
    )
    hours = "".join(f"{hour:<{6 * cell}}" for hour in range(0, 24, 6))
    what = f"Concurrent {report.unit}s by hour"
    legend: list[Piece] = [("    ", "")]
    for level, role in enumerate(HEAT):
        upto = most * (level + 1) / len(HEAT)
        legend += [(_SHADES[level] * 2, role), (f" to {rounded(upto)}  ", "dim")]
    return [((what, "title"),), *drawn, ((f"    {hours}".rstrip(), "dim"),), tuple(legend)]


def rounded(value: float) -> str:
    """An amount by two digits or three: `0`, `0.04`, `3.7`, `37`, `12.3K`."""
    if value >= 9.95:
        return format_count(round(value))
    return f"{value:.1f}" if value >= 0.95 else format_amount(value, 1)


def _waits(report: UsageReport, width: int) -> list[Line]:
    """Draw the waits of runs: a histogram of all, and rows of the busiest queues and sizes."""
    table = report.waits
    if not table.num_rows:
        return []
    counts = np.array(
        [sum(table[f"waits_{number}"].to_pylist()) for number in range(len(WAIT_LABELS))],
        dtype=float,
    )
    all_runs = counts.sum()
    label_cells = max(map(len, WAIT_LABELS))
    bar_cells = max(6, min(48, width - label_cells - 2 - 16))
    lines: list[Line] = [(("Queue wait (eligible to start)", "title"),)]
    for label, count, bar in zip(WAIT_LABELS, counts, draw_bars(counts, bar_cells), strict=True):
        shares = f"  {format_count(int(count)):>6}  {percent(count, all_runs):>5}"
        lines.append(((f"{label:>{label_cells}}  ", ""), *bar, (shares, "" if count else "dim")))
    rows = sorted(table.to_pylist(), key=lambda row: -row["started"])[:_SHOWN_WAITS]
    queue_cells = max(5, min(20, max(cell_width(visible(row["queue"])) for row in rows)))
    size_cells = max(len(row["size"]) for row in rows)
    parts = {"MEDIAN": "median", "P80": "p80", "P95": "p95"}
    if queue_cells + size_cells + 10 + 10 * len(parts) > width:
        del parts["P95"]
    head = f"{'QUEUE':<{queue_cells}}  {'SIZE':<{size_cells}}    RUNS" + "".join(
        f"  {name:>8}" for name in parts
    )
    lines += [(), ((head, "dim"),)]
    for row in rows:
        queue = clip(visible(row["queue"]), queue_cells)
        figures = [format_wait(row[f"wait_{name}_seconds"]) for name in parts.values()]
        text = queue + " " * (queue_cells - cell_width(queue)) + f"  {row['size']:<{size_cells}}"
        text += f"  {format_count(row['started']):>6}" + "".join(
            f"  {figure:>8}" for figure in figures
        )
        lines.append(((text, ""),))
    return lines


def _waste(report: UsageReport, width: int) -> list[Line]:
    """The names of jobs that held the most for nothing."""
    rows = report.wasteful.to_pylist()[:_SHOWN_WASTE]
    if not rows:
        return []
    has_gpus = any(row["unused_gpu_seconds"] for row in rows)
    heads = [*(["GPU h UNUSED"] if has_gpus else []), "CPU h UNUSED", "GiB h UNUSED", "RUNS"]
    while len(heads) > 2 and width - 14 * len(heads) - 12 < 12:
        heads.pop(-2 if len(heads) > 3 else -1)
    name_cells = max(8, min(36, width - 14 * len(heads) - 12))
    lines: list[Line] = [(("Most wasted", "title"),)]
    titles = f"{'NAME':<{name_cells}}  {'USER':<10}" + "".join(f"  {name:>12}" for name in heads)
    lines.append(((titles, "dim"),))
    for row in rows:
        name = clip(visible(row["name"] or ""), name_cells)
        user = clip(visible(row["user"] or ""), 10)
        text = (
            name + " " * (name_cells - cell_width(name) + 2) + user + " " * (10 - cell_width(user))
        )
        gpu = (
            f"{format_hours(row['unused_gpu_seconds'])} "
            f"{percent(row['unused_gpu_seconds'], row['gpu_seconds'])}"
        )
        cpu = (
            f"{format_hours(row['unused_cpu_seconds'])} "
            f"{percent(row['unused_cpu_seconds'], row['cpu_seconds'])}"
        )
        head_styles = {
            "GPU h UNUSED": gpu if row["gpu_seconds"] else "",
            "CPU h UNUSED": cpu,
            "GiB h UNUSED": format_hours(row["unused_memory_gib_seconds"]),
            "RUNS": format_count(row["runs"]),
        }
        lines.append(((text, ""), *((f"  {head_styles[head]:>12}", "") for head in heads)))
    return lines


def _advice(report: UsageReport, width: int) -> list[Line]:
    lines: list[Line] = []
    for advice in report.advice[:_SHOWN_ADVICE]:
        name = clip(
            visible(f"{advice.name} ({advice.user})" if report.users > 1 else advice.name), width
        )
        lines.append(((name, "value"),))
        for text in advice.messages:
            lines += [
                ((f"  {part}", "warn" if first else ""),)
                for first, part in _wrapped(text, width - 2)
            ]
    return [(("Advice", "title"),), *lines] if lines else []


def _wrapped(text: str, width: int) -> list[tuple[bool, str]]:
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return [(False, line) for line in lines]


def draw_plot(
    build: Callable[[Any], None], width: int, height: int, roles: dict[int, str]
) -> list[Line]:
    """Draw a plot with plotext, of exactly that many lines; its colours are the numbers of roles.

    plotext receives no text that a person wrote, and no value that is not finite.
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
    """`1 Nov to 20 Nov 2026`, or with times of day where it is short."""
    since, until = (
        datetime.fromtimestamp(at, report.zone) for at in (report.span.since, report.span.until)
    )
    if report.span.seconds < 2 * 86_400:
        return f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}"
    # A span up to midnight ends with the day before.
    last = until - timedelta(seconds=1)
    return f"{since:%Y-%m-%d} to {last:%Y-%m-%d}"
