"""Draws a chart: panels with their curves in braille, axes, signs and cursor, as lines of styled
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import isfinite

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from rich.cells import cell_len

from hpcdash.domain.job_text import format_clock_time
from hpcdash.domain.text import clip, visible
from hpcdash.services.metrics.batch import AXES, Floats
from hpcdash.services.metrics.charts.curves import (
    COUNTED,
    ChartPanel,
    ChartRequest,
    ChartRun,
    Curve,
    build_panel,
    has_outliers,
    value_at,
)
from hpcdash.services.metrics.charts.scale import height_ticks
from hpcdash.services.metrics.charts.state import (
    ACTIVE_PANEL,
    ASCII_FRAME,
    FRAME,
    RESTART_LETTER,
    Line,
    PanelPlace,
    Picture,
    Piece,
)
from hpcdash.services.metrics.findings import format_number, format_step
from hpcdash.services.metrics.joined import SAMPLES

GUTTER = 8
_TWO_COLUMNS_FROM = 110
_GAP = 2
# Title, axis and its ticks.
_AROUND_ROWS = 3
_MIN_ROWS = 7
_LETTER_EVERY = 24
_MAX_RESTART_LINES = 20
Dots = NDArray[np.bool_]
DOTS_ACROSS = 2
DOTS_DOWN = 4
_BRAILLE = 0x2800
# The bit of each dot of a braille letter, by row and column.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
# Rows so far off are as good as any farther.
_FARTHEST = 1e7


def draw(request: ChartRequest) -> Picture:
    """The picture of a request; one without panels where there is nothing to show."""
    names = request.names
    if not names or request.width < GUTTER + 10 or request.height < _MIN_ROWS - 1:
        return Picture(axis=request.axis, axes=request.axes)
    whole = request.whole()
    span = request.state.shown(whole)
    across = 2 if len(names) > 1 and request.width >= _TWO_COLUMNS_FROM else 1
    most = max(1, request.height // _MIN_ROWS) * across
    notes = [f"{len(names) - most} more metrics do not fit"] if len(names) > most else []
    names = names[:most]
    down = -(-len(names) // across)
    width = (request.width - _GAP * (across - 1)) // across
    columns = (width - GUTTER) * DOTS_ACROSS
    panels: list[_Panel] = []
    lines: list[Line] = []
    top = 0
    for row in range(down):
        height = request.height // down + (row < request.height % down)
        beside = []
        for number, name in enumerate(names[row * across : (row + 1) * across], row * across):
            is_lowest = number + across >= len(names)
            rows = height - _AROUND_ROWS + (not is_lowest)
            curves = build_panel(request, name, span, columns)
            left = (number % across) * (width + _GAP) + GUTTER
            place = PanelPlace(
                name, left, top + 1, width=width - GUTTER, height=rows, x=span, y=curves.y
            )
            panel = _Panel(request, curves, place, number)
            panels.append(panel)
            beside.append(panel.lines(is_lowest=is_lowest))
            notes += panel.notes()
        for parts in zip(*beside, strict=True):
            line = list(parts[0])
            for part in parts[1:]:
                line += [(" " * _GAP, ""), *part]
            lines.append(tuple(line))
        top += height
    return Picture(
        tuple(lines),
        tuple(panel.place for panel in panels),
        whole,
        tuple(dict.fromkeys(notes)),
        points=max(curve.places for panel in panels for curve in panel.curves),
        axis=request.axis,
        axes=request.axes,
    )


class _Panel:
    """One metric of all runs on some cells of the picture."""

    def __init__(
        self, request: ChartRequest, panel: ChartPanel, place: PanelPlace, number: int
    ) -> None:
        self._request = request
        self._panel = panel
        self.curves = panel.curves
        self.place = place
        self._number = number
        self._is_cut = panel.name in request.state.heights or request.state.leaves_out
        self._signs = ASCII_FRAME if request.is_ascii else FRAME
        self._canvas = Canvas(place.width, place.height, is_ascii=request.is_ascii)

    def notes(self) -> list[str]:
        """Return what the curves do not show."""
        curves = self.curves
        name = visible(self.place.name)
        notes = []
        if hidden := sum(curve.hidden_columns for curve in curves):
            notes.append(
                f"{name}: 0 and below, in {hidden} columns, cannot be shown on a log scale"
            )
        runs = [curve.run for curve in curves]
        without = [run.letter for run in runs if self.place.name not in run.run.names]
        if without and len(curves) > 1:
            notes.append(f"{', '.join(without)}: no {name}")
        if not any(len(curve.series) for curve in curves):
            notes.append(f"{name} has no {self._request.axis}; a changes the x axis")
        elif not any(np.isfinite(curve.line).any() for curve in curves):
            is_broken = any(curve.broken.any() for curve in curves)
            notes.append(
                f"{name} has no finite values here"
                if is_broken
                else "no points here; home shows all"
            )
        elif not self._is_cut and not self._request.state.log_y and has_outliers(curves):
            notes.append("o hides outliers")
        return notes

    # -- lines

    def lines(self, *, is_lowest: bool) -> list[Line]:
        """Draw the lines from the title down to the ticks of the x axis."""
        self._draw_curves()
        place = self.place
        labels: dict[int, str] = {}
        if self._panel.has_values:
            most = max(2, place.height // 3)
            is_log = self._request.state.log_y
            ticks = height_ticks(*place.y, most, GUTTER - 1, is_log=is_log)
            labels = {self._row(value): text for value, text in ticks}
        lines: list[Line] = [self._title()]
        for row, drawn in enumerate(self._canvas.lines()):
            text = labels.get(row, "")
            edge = self._signs.left if text else self._signs.bare
            lines.append(((f"{clip(text, GUTTER - 1):>{GUTTER - 1}}{edge}", "axis"), *drawn))
        return [*lines, *self._foot()[: 2 if is_lowest else 1]]

    def _title(self) -> Line:
        room = self.place.width + GUTTER
        state = self._request.state
        several = len(self.curves) > 1
        is_active = len(self._request.names) > 1 and self._number == state.panel
        name = clip(visible(self.place.name), max(10, room // 2))
        scale = " (log)" if state.log_y else ""
        pieces: list[Piece] = [
            ((ACTIVE_PANEL if is_active else " ") + name, "title"),
            (scale, "axis"),
        ]
        room -= 1 + cell_len(name) + len(scale)
        for number, curve in enumerate(self.curves):
            text = self._curve_text(curve, several)
            if text and len(text) + 2 <= room:
                pieces.append(("  " + text, f"run-{number}" if several else "axis"))
                room -= len(text) + 2
        # The first panel shows how all are smoothed.
        aside = f"{self._panel.smoothing} " if self._number == 0 and self._panel.smoothing else ""
        if 2 + len(aside) > room:
            aside = ""
        pieces.append((" " * max(0, room - len(aside)), ""))
        return (*pieces, (aside, "axis")) if aside else tuple(pieces)

    def _curve_text(self, curve: Curve, several: bool) -> str:
        """The newest value, of a single run the lowest too; with a cursor what stands there."""
        series = curve.series
        cursor = self._request.state.cursor
        if not len(series):
            return ""
        letter = f"{curve.run.letter} " if several else ""
        if cursor is not None:
            nearest = value_at(series, cursor + self._request.shift(curve.run))
            if nearest is None:
                return ""
            x, y = nearest
            where = "" if several else f" at {self._format_x(x)}"
            return f"{letter}{format_number(y)}{self._smooth_text(curve, cursor)}{where}"
        newest = format_number(float(series.values[-1]))
        if several:
            return f"{letter}{newest}"
        if not np.isfinite(series.low).any():
            return f"newest {newest}"
        lowest = int(np.nanargmin(series.low))
        x = float(series.x[lowest])
        y = float(series.low[lowest])
        return f"newest {newest}   lowest {format_number(y)} at {self._format_x(x)}"

    def _smooth_text(self, curve: Curve, x: float) -> str:
        cell = self._column(x)
        if curve.smooth is None or cell is None:
            return ""
        values = _cell_values(curve.smooth, cell)
        if not values:
            return ""
        value = 10 ** values[-1] if self._request.state.log_y else values[-1]
        return f" (smoothed {format_number(value)})"

    def _format_x(self, x: float) -> str:
        match self._request.axis:
            case "time":
                return format_clock_time(x, self._request.zone)
            case "tokens":
                return f"{format_number(x)} tokens"
            case "samples":
                return f"{format_step(x)} samples"
            case axis:
                return f"{axis} {format_step(x)}"

    def _foot(self) -> list[Line]:
        """Draw the x axis, and its labels."""
        place = self.place
        signs = self._signs
        line = [signs.foot] * place.width
        labels = [" "] * (place.width + GUTTER)
        name = self._request.axis
        if name == "time":
            name = "since begin" if self._request.is_since_begin else ""
        if doubt := self._request.doubt:
            name = f"{name} {doubt}" if len(doubt) < len(labels) // 3 else f"{name}?"
        last = len(labels) - len(name) - 1 if name else len(labels)
        free_from = 0
        most = max(2, place.width // 12)
        if self._request.axis in COUNTED:
            # In the format of the text above and below.
            longest = len(format_step(place.x[1]))
            most = min(most, max(2, place.width // (longest + 5)))
        for x, label in self._request.x_ticks(place.x, most):
            if (column := self._column(x)) is None:
                continue
            begin = max(free_from, GUTTER + column - len(label) // 2)
            if begin > GUTTER + column or begin + len(label) > last:
                continue
            line[column] = signs.tick
            labels[begin : begin + len(label)] = label
            free_from = begin + len(label) + 1
        if name:
            labels[last + 1 :] = name
        axis = " " * (GUTTER - 1) + signs.corner + "".join(line)
        return [((axis, "axis"),), (("".join(labels), "axis"),)]

    # -- curves and signs

    def _draw_curves(self) -> None:
        canvas = self._canvas
        restarts = self._restarts()
        # Under the curves.
        for restart in restarts[-_MAX_RESTART_LINES:]:
            self._put_line(restart, self._signs.restart, "restart")
        for number, curve in enumerate(self.curves):
            for again in curve.again:
                dots = self._dots(again, np.zeros(again.size, dtype=bool))
                # Every other column: what was repeated is dotted.
                dots[:, ::2] = False
                canvas.draw(dots, f"again-{number}")
            raw = f"run-{number}" if curve.smooth is None else f"raw-{number}"
            canvas.draw(self._dots(curve.line, curve.broken, curve.low, curve.high), raw)
        for number, curve in enumerate(self.curves):
            if curve.smooth is not None:
                canvas.draw(self._dots(curve.smooth, curve.broken), f"run-{number}")
        cursor = self._request.state.cursor
        if cursor is not None and (column := self._column(cursor)) is not None:
            self._put_line(column, self._signs.cursor, "cursor", under=True)
        for number, curve in enumerate(self.curves):
            self._put_signs(curve, number)
        self._put_edges()
        foot = canvas.height - 1
        for restart in restarts:
            canvas.put(restart, foot, RESTART_LETTER, "restart")
        for curve in self.curves:
            for mark in self._request.marks(curve.run, self.place.name):
                if (column := self._column(mark.x)) is not None:
                    row = min(max(self._row(mark.y) - 1, 0), foot) if isfinite(mark.y) else foot
                    sign = mark.sign(is_ascii=self._request.is_ascii)
                    canvas.put(column, row, sign, mark.style)

    def _dots(
        self, line: Floats, broken: Dots, low: Floats | None = None, high: Floats | None = None
    ) -> Dots:
        low = line if low is None else low
        high = line if high is None else high
        return curve_dots((line, low, high), broken, self.place.y, self._canvas.rows)

    def _row(self, value: float) -> int:
        """The row of cells a value as drawn stands in; rows outside of the range are outside of
        the canvas.
        """
        [row] = _chart_rows(np.array([value]), self.place.y, self._canvas.rows)
        return int(np.rint(row)) // DOTS_DOWN

    def _column(self, x: float) -> int | None:
        """The column of the canvas an x stands in, None where it is not shown."""
        column = self.place.column_at(x)
        return None if column is None else column - self.place.left

    def _put_line(self, column: int, sign: str, style: str, *, under: bool = False) -> None:
        for row in range(self._canvas.height):
            self._canvas.put(column, row, sign, style, under=under)

    def _put_signs(self, curve: Curve, number: int) -> None:
        """Mark points that are far from each other, and curves of several runs with letters."""
        known = np.flatnonzero(np.isfinite(curve.line))
        if known.size <= self._canvas.width // 6:
            for dot in known.tolist():
                row = self._row(float(curve.line[dot]))
                self._canvas.put(dot // DOTS_ACROSS, row, self._signs.point, f"run-{number}")
        if len(self.curves) == 1:
            return
        line = curve.line if curve.smooth is None else curve.smooth
        for cell in range(3 + 5 * number, self._canvas.width, _LETTER_EVERY):
            for value in _cell_values(line, cell)[:1]:
                self._canvas.put(cell, self._row(value), curve.run.letter, f"letter-{number}")

    def _restarts(self) -> list[int]:
        """The columns in which newer attempts begin."""
        axis = self._request.axis
        if axis not in (*AXES, SAMPLES):
            return []
        row = AXES.index("step" if axis == SAMPLES else axis)
        columns: list[int | None] = []
        for shown in self._request.runs:
            begins = np.array([attempt.first[row] for attempt in shown.run.attempts[1:]])
            if axis == SAMPLES:
                begins = shown.run.samples_at(begins)
            columns += map(self._column, (begins - self._request.shift(shown)).tolist())
        return [column for column in columns if column is not None]

    def _put_edges(self) -> None:
        """Mark where a curve leaves the height that is shown."""
        if not self._is_cut:
            return
        low, high = self.place.y
        for number, curve in enumerate(self.curves):
            for row, sign, is_outside in (
                (0, self._signs.above, curve.high > high),
                (self._canvas.height - 1, self._signs.below, curve.low < low),
            ):
                for column in np.unique(np.flatnonzero(is_outside) // DOTS_ACROSS).tolist():
                    self._canvas.put(column, row, sign, f"raw-{number}", under=True)


def legend(runs: Sequence[ChartRun]) -> Line:
    """Build the line with the letter of each run; empty for a single run."""
    if len(runs) < 2:
        return ()
    pieces = (
        (
            ("  " if number else " ", ""),
            (f"{shown.letter} {clip(visible(shown.title), 36)}", f"run-{number}"),
        )
        for number, shown in enumerate(runs)
    )
    return tuple(chain.from_iterable(pieces))


class Canvas:
    """`width` by `height` cells.

    Rows of dots are counted from the top; `is_ascii` draws without braille letters.
    """

    def __init__(self, width: int, height: int, *, is_ascii: bool = False) -> None:
        self.width = width
        self.height = height
        self._is_ascii = is_ascii
        self._letters = np.full((height, width), ord(" "), dtype=np.uint32)
        self._styles = np.zeros((height, width), dtype=np.int16)
        self._names = [""]

    @property
    def rows(self) -> int:
        """Number of dots from top to bottom."""
        return self.height * DOTS_DOWN

    @property
    def columns(self) -> int:
        """Number of dots from left to right."""
        return self.width * DOTS_ACROSS

    def draw(self, dots: Dots, style: str) -> None:
        """A layer over all that was drawn; `dots` is (rows, columns)."""
        bits = dots.reshape(self.height, DOTS_DOWN, self.width, DOTS_ACROSS).transpose(0, 2, 1, 3)
        codes = (bits * _BITS).sum(axis=(2, 3))
        drawn = codes > 0
        letters = codes + _BRAILLE
        if self._is_ascii:
            upper = bits[:, :, :2].any(axis=(2, 3))
            lower = bits[:, :, 2:].any(axis=(2, 3))
            letters = np.where(upper & lower, ord(":"), np.where(upper, ord("'"), ord(".")))
        self._letters[drawn] = letters[drawn]
        self._styles[drawn] = self._style(style)

    def put(self, column: int, row: int, sign: str, style: str, *, under: bool = False) -> None:
        """A letter in a cell, left out outside of the canvas; with `under` where nothing was drawn
        alone.
        """
        if not (0 <= row < self.height and 0 <= column < self.width):
            return
        if not under or self._letters[row, column] == ord(" "):
            self._letters[row, column] = ord(sign)
            self._styles[row, column] = self._style(style)

    def lines(self) -> list[Line]:
        """Each row, as pieces of one style."""
        lines = []
        for letters, styles in zip(self._letters, self._styles, strict=True):
            starts = [0, *(np.flatnonzero(np.diff(styles)) + 1).tolist(), styles.size]
            text = letters.astype("<u4").tobytes().decode("utf-32-le")
            lines.append(tuple((text[a:b], self._names[styles[a]]) for a, b in pairwise(starts)))
        return lines

    def _style(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)


def curve_dots(
    curve: tuple[Floats, Floats, Floats], broken: Dots, y: tuple[float, float], rows: int
) -> Dots:
    """The dots (rows, n) of a curve: its line, low and high values (n each, nan where a column has
    none) and what joins them.

    Nothing is joined over a `broken` column. `y` is the range from the foot to the top; what is
    outside is cut off.
    """
    line, low, high = (_chart_rows(values, y, rows) for values in curve)
    known = np.flatnonzero(np.isfinite(line))
    if not known.size:
        return np.zeros((rows, line.size), dtype=bool)
    full = np.interp(np.arange(line.size), known, line[known], left=np.nan, right=np.nan)
    breaks = np.cumsum(broken)
    for k in np.flatnonzero(np.diff(breaks[known])):
        full[known[k] + 1 : known[k + 1]] = np.nan
    # Each column reaches half the way to its neighbours.
    half = (full[1:] + full[:-1]) / 2
    before = np.append(np.nan, half)
    behind = np.append(half, np.nan)
    reach = np.stack((full, before, behind, low, high))
    top = np.fmin.reduce(reach)
    bottom = np.fmax.reduce(reach)
    drawn = np.isfinite(top)
    top = np.where(drawn, np.rint(top), rows)
    bottom = np.where(drawn, np.rint(bottom), -1)
    row = np.arange(rows)[:, None]
    return (row >= top) & (row <= bottom)


class SmallCurve(Struct, frozen=True):
    """Lines of a curve from its `low` to its `high` value."""

    lines: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0


def small_curve(
    values: Sequence[float], width: int, height: int, *, is_ascii: bool = False
) -> SmallCurve:
    """Draw a curve alone, without axes, in `height` lines of `width` cells; no lines where no value
    is finite.
    """
    line = np.asarray(values, dtype=np.float64)
    canvas = Canvas(width, height, is_ascii=is_ascii)
    columns = min(canvas.columns, max(line.size, 2))
    # Each column is the mean of its values.
    places = np.arange(line.size) * columns // max(line.size, 1)
    known = np.isfinite(line)
    counts = np.bincount(places[known], minlength=columns)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        means = np.bincount(places[known], weights=line[known], minlength=columns) / counts
    if not np.isfinite(means).any():
        return SmallCurve()
    low = float(np.nanmin(means))
    high = float(np.nanmax(means))
    stretched = np.full(canvas.columns, np.nan)
    stretched[np.arange(columns) * (canvas.columns - 1) // max(columns - 1, 1)] = means
    y = (low, high) if high > low else (low - 1, high + 1)
    unbroken = np.zeros(canvas.columns, dtype=bool)
    canvas.draw(curve_dots((stretched, stretched, stretched), unbroken, y, canvas.rows), "")
    lines = tuple("".join(text for text, _ in line) for line in canvas.lines())
    return SmallCurve(lines, low, high)


def _cell_values(line: Floats, cell: int) -> list[float]:
    """The finite values of a line in a column of cells."""
    values = line[DOTS_ACROSS * cell : DOTS_ACROSS * (cell + 1)]
    finite: list[float] = values[np.isfinite(values)].tolist()
    return finite


def _chart_rows(values: Floats, y: tuple[float, float], rows: int) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        part = (y[1] - values) / (y[1] - y[0])
    return np.clip(part * (rows - 1), -_FARTHEST, rows + _FARTHEST)
