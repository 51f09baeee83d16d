"""Draws a chart: panels with their curves in braille, axes, signs and cursor, as lines of styled
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
    ChartRequest,
    ChartRun,
    Curve,
    build_curve,
    chart_height,
    format_smoothing,
    has_outliers,
    value_at,
)
from hpcdash.services.metrics.charts.scale import Tick, height_ticks
from hpcdash.services.metrics.charts.state import (
    ACTIVE_PANEL,
    ASCII_FRAME,
    FRAME,
    RESTART_LETTER,
    Line,
    PanelPlace,
    Picture,
    Piece,
    Span,
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
Dots = NDArray[np.bool_]
DOTS_ACROSS, DOTS_DOWN = 2, 4
_BRAILLE = 0x2800
# The bit of each dot of a braille letter, by row and column.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
# Rows so far off are as good as any farther.
_FARTHEST = 1e7


def draw(request: ChartRequest) -> Picture:
    """The picture of a request; one without panels where there is nothing to show."""
    names = request.names
    axis = request.axis
    if not names or request.width < GUTTER + 10 or request.height < _MIN_ROWS - 1:
        return Picture(axis=axis, axes=request.axes)
    whole = request.whole()
    span = request.state.shown(whole)
    across = 2 if len(names) > 1 and request.width >= _TWO_COLUMNS_FROM else 1
    most = max(1, request.height // _MIN_ROWS) * across
    notes = [f"{len(names) - most} more metrics do not fit"] if len(names) > most else []
    names = names[:most]
    down = -(-len(names) // across)
    width = (request.width - _GAP * (across - 1)) // across
    heights = [request.height // down + (row < request.height % down) for row in range(down)]
    panels: list[PanelPlace] = []
    blocks: list[list[Line]] = []
    points = 0
    for at, name in enumerate(names):
        row, column = divmod(at, across)
        left = column * (width + _GAP)
        top = sum(heights[:row])
        panel = _Panel(
            request, name, span, left, top, width, heights[row], at, at + across >= len(names)
        )
        blocks.append(panel.lines())
        panels.append(panel.place)
        notes += [note for note in panel.notes if note not in notes]
        points = max(points, panel.points)
    lines: list[Line] = []
    for row in range(down):
        beside = blocks[row * across : (row + 1) * across]
        for parts in zip(*beside, strict=True):
            joined: list[Piece] = list(parts[0])
            for part in parts[1:]:
                joined += [(" " * _GAP, ""), *part]
            lines.append(tuple(joined))
    return Picture(tuple(lines), tuple(panels), whole, tuple(notes), points, axis, request.axes)


class _Panel:
    """One metric of all runs on some cells of the picture."""

    def __init__(
        self,
        request: ChartRequest,
        name: str,
        span: Span,
        left: int,
        top: int,
        width: int,
        height: int,
        number: int,
        is_lowest: bool,
    ) -> None:
        self._request = request
        self._name = name
        self._number = number
        self._is_lowest = is_lowest
        self._signs = ASCII_FRAME if request.is_ascii else FRAME
        self._canvas = Canvas(
            width - GUTTER, height - (_AROUND_ROWS - (not is_lowest)), is_ascii=request.is_ascii
        )
        state = request.state
        columns = self._canvas.columns
        self._curves = [build_curve(request, one, name, span, columns) for one in request.runs]
        own = state.heights.get(name)
        found = chart_height(self._curves, leaves_out=state.leaves_out)
        self._has_values = found is not None
        y = own or found or (0.0, 1.0)
        self._is_cut = own is not None or state.leaves_out
        self.place = PanelPlace(
            name,
            left + GUTTER,
            top + 1,
            self._canvas.width,
            self._canvas.height,
            span,
            (float(y[0]), float(y[1])),
        )
        self.points = max((curve.places for curve in self._curves), default=0)
        first = next((curve for curve in self._curves if len(curve.series)), None)
        self.smoothing = format_smoothing(
            state.smoothing, first.smoothing if first is not None else None
        )
        self.notes = self._notes()

    def _notes(self) -> list[str]:
        notes = []
        hidden = sum(curve.hidden_columns for curve in self._curves)
        if hidden:
            notes.append(
                f"{visible(self._name)}: 0 and below, in {hidden} columns, cannot be shown on a "
                "log scale"
            )
        if len(self._curves) > 1:
            without = [
                curve.run.letter for curve in self._curves if self._name not in curve.run.run.names
            ]
            notes += [f"{', '.join(without)}: no {visible(self._name)}"] if without else []
        if not any(len(curve.series) for curve in self._curves):
            notes.append(
                f"{visible(self._name)} has no {self._request.axis}; a takes another x axis"
            )
        elif not any(np.isfinite(curve.line).any() for curve in self._curves):
            odd = any(curve.broken.any() for curve in self._curves)
            notes.append(
                f"no finite value of {visible(self._name)} here"
                if odd
                else "no points here; home shows all"
            )
        elif not self._is_cut and not self._request.state.log_y and has_outliers(self._curves):
            notes.append("o leaves outliers out")
        return notes

    # -- lines

    def lines(self) -> list[Line]:
        """Draw the lines from the title down to the ticks of the x axis."""
        self._draw_curves()
        place = self.place
        signs = self._signs
        most = max(2, place.height // 3)
        ticks = height_ticks(*place.y, most, GUTTER - 1, is_log=self._request.state.log_y)
        at_row = {self._row(value): text for value, text in ticks} if self._has_values else {}
        lines: list[Line] = [self._title()]
        for row, drawn in enumerate(self._canvas.lines()):
            text = at_row.get(row, "")
            edge = signs.left if text else signs.bare
            lines.append(((f"{clip(text, GUTTER - 1):>{GUTTER - 1}}{edge}", "axis"), *drawn))
        lines += self._foot()
        return lines

    def _title(self) -> Line:
        room = self.place.width + GUTTER
        several = len(self._curves) > 1
        is_active = len(self._request.names) > 1 and self._number == self._request.state.panel
        name = clip(visible(self._name), max(10, room // 2))
        scale = " (log)" if self._request.state.log_y else ""
        pieces: list[Piece] = [
            ((ACTIVE_PANEL if is_active else " ") + name, "title"),
            (scale, "axis"),
        ]
        cells = 1 + cell_len(name) + len(scale)
        for number, curve in enumerate(self._curves):
            text = self._curve_text(curve, several)
            if not text or cells + len(text) + 2 > room:
                continue
            pieces.append(("  " + text, f"run-{number}" if several else "axis"))
            cells += len(text) + 2
        # The first panel shows how all are smoothed.
        aside = f"{self.smoothing} " if self._number == 0 and self.smoothing else ""
        if cells + 2 + len(aside) > room:
            aside = ""
        pieces.append((" " * max(0, room - cells - len(aside)), ""))
        return (*pieces, (aside, "axis")) if aside else tuple(pieces)

    def _curve_text(self, curve: Curve, several: bool) -> str:
        """The newest value, of a single run the lowest too; with a cursor what stands there."""
        series = curve.series
        request = self._request
        if not len(series):
            return ""
        letter = f"{curve.run.letter} " if several else ""
        if request.state.cursor is not None:
            found = value_at(series, request.state.cursor + request.shift(curve.run))
            if found is None:
                return ""
            smooth = self._smooth_at(curve, request.state.cursor)
            return f"{letter}{format_number(found[1])}{smooth}" + (
                "" if several else f" at {self._format_x(found[0])}"
            )
        newest = format_number(float(series.values[-1]))
        if several:
            return f"{letter}{newest}"
        text = f"newest {newest}"
        if np.isfinite(series.low).any():
            at = int(np.nanargmin(series.low))
            text += (
                f"   lowest {format_number(float(series.low[at]))} at "
                f"{self._format_x(float(series.x[at]))}"
            )
        return text

    def _smooth_at(self, curve: Curve, x: float) -> str:
        column = self._column(x)
        if curve.smooth is None or column is None:
            return ""
        values = curve.smooth[2 * column : 2 * column + 2]
        values = values[np.isfinite(values)]
        if not values.size:
            return ""
        value = float(values[-1])
        return f" (smoothed {format_number(10**value if self._request.state.log_y else value)})"

    def _format_x(self, x: float) -> str:
        axis = self._request.axis
        if axis == "time":
            return format_clock_time(x, self._request.zone)
        if axis == "tokens":
            return f"{format_number(x)} tokens"
        return f"{format_step(x)} samples" if axis == "samples" else f"{axis} {format_step(x)}"

    def _foot(self) -> list[Line]:
        place = self.place
        signs = self._signs
        line = [signs.foot] * place.width
        parts = [" "] * (place.width + GUTTER)
        free_from = 0
        unit = {"time": "since begin" if self._request.is_since_begin else ""}
        name = unit.get(self._request.axis, self._request.axis)
        if doubt := self._request.doubt:
            name = f"{name} {doubt}" if len(doubt) < len(parts) // 3 else f"{name}?"
        last = len(parts) - len(name) - 1 if name else len(parts)
        for x, label in self._x_ticks():
            at = self._column(x)
            if at is None:
                continue
            begin = max(free_from, GUTTER + at - len(label) // 2)
            if begin > GUTTER + at or begin + len(label) > last:
                continue
            line[at] = signs.tick
            parts[begin : begin + len(label)] = label
            free_from = begin + len(label) + 1
        if name:
            parts[last + 1 :] = name
        foot: list[Line] = [((" " * (GUTTER - 1) + signs.corner + "".join(line), "axis"),)]
        if self._is_lowest:
            foot.append((("".join(parts), "axis"),))
        return foot

    def _x_ticks(self) -> list[Tick]:
        most = max(2, self.place.width // 12)
        if self._request.axis in COUNTED:
            # In the format of the text above and below.
            longest = len(format_step(self.place.x[1]))
            most = min(most, max(2, self.place.width // (longest + 5)))
        return self._request.x_ticks(self.place.x, most)

    # -- curves and signs

    def _draw_curves(self) -> None:
        foot = self._canvas.height - 1
        restarts = self._restarts()
        # Under the curves.
        for column in restarts[-20:]:
            self._put_line(column, self._signs.restart, "restart")
        for number, curve in enumerate(self._curves):
            for again in curve.again:
                dots = self._dots(again, np.zeros(again.size, dtype=bool))
                # Every other column: what was repeated is dotted.
                dots[:, ::2] = False
                self._canvas.draw(dots, f"again-{number}")
            raw = f"run-{number}" if curve.smooth is None else f"raw-{number}"
            self._canvas.draw(self._dots(curve.line, curve.broken, curve.low, curve.high), raw)
        for number, curve in enumerate(self._curves):
            if curve.smooth is not None:
                self._canvas.draw(self._dots(curve.smooth, curve.broken), f"run-{number}")
        cursor = self._request.state.cursor
        if cursor is not None and (at := self._column(cursor)) is not None:
            self._put_line(at, self._signs.cursor, "cursor", under=True)
        for number, curve in enumerate(self._curves):
            self._put_points(curve, f"run-{number}")
            if len(self._curves) > 1:
                self._put_letters(curve, number)
        self._put_edges()
        for column in restarts:
            self._canvas.put(column, foot, RESTART_LETTER, "restart")
        for curve in self._curves:
            self._put_marks(curve)

    def _dots(
        self, line: Floats, broken: Dots, low: Floats | None = None, high: Floats | None = None
    ) -> Dots:
        low, high = (line if one is None else one for one in (low, high))
        return curve_dots(line, low, high, broken, self.place.y, self._canvas.rows)

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

    def _put_points(self, curve: Curve, style: str) -> None:
        """Points far from each other are shown as such."""
        known = np.flatnonzero(np.isfinite(curve.line))
        if not 0 < known.size <= self._canvas.width // 6:
            return
        for column in known.tolist():
            self._canvas.put(
                column // 2, self._row(float(curve.line[column])), self._signs.point, style
            )

    def _put_letters(self, curve: Curve, number: int) -> None:
        line = curve.line if curve.smooth is None else curve.smooth
        for cell in range(3 + 5 * number, self._canvas.width, _LETTER_EVERY):
            near = line[2 * cell : 2 * cell + 2]
            near = near[np.isfinite(near)]
            if near.size:
                self._canvas.put(
                    cell, self._row(float(near[0])), curve.run.letter, f"letter-{number}"
                )

    def _restarts(self) -> list[int]:
        """The columns in which newer attempts begin."""
        axis = self._request.axis
        if axis not in (*AXES, SAMPLES):
            return []
        columns = []
        for one in self._request.runs:
            row = AXES.index("step" if axis == SAMPLES else axis)
            firsts = np.array([attempt.first[row] for attempt in one.run.attempts[1:]])
            begins = one.run.samples_at(firsts) if axis == SAMPLES else firsts
            shown = map(self._column, (begins - self._request.shift(one)).tolist())
            columns += [column for column in shown if column is not None]
        return columns

    def _put_edges(self) -> None:
        """Mark where a curve leaves the height that is shown."""
        if not self._is_cut:
            return
        low, high = self.place.y
        for number, curve in enumerate(self._curves):
            for row, sign, is_outside in (
                (0, self._signs.above, curve.high > high),
                (self._canvas.height - 1, self._signs.below, curve.low < low),
            ):
                for column in np.unique(np.flatnonzero(is_outside) // 2).tolist():
                    self._canvas.put(column, row, sign, f"raw-{number}", under=True)

    def _put_marks(self, curve: Curve) -> None:
        for x, y, mark in self._request.marks(curve.run, self._name):
            column = self._column(x)
            if column is None:
                continue
            row = self._canvas.height - 1
            if isfinite(y):
                row = min(max(self._row(y) - 1, 0), row)
            self._canvas.put(column, row, mark.sign, mark.style)


def legend(runs: Sequence[ChartRun]) -> Line:
    """Build the line with the letter of each run; empty for a single run."""
    if len(runs) < 2:
        return ()
    pieces: list[Piece] = []
    for number, one in enumerate(runs):
        pieces += [
            ("  " if number else " ", ""),
            (f"{one.letter} {clip(visible(one.title), 36)}", f"run-{number}"),
        ]
    return tuple(pieces)


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

    def put(self, column: int, row: int, text: str, style: str, *, under: bool = False) -> None:
        """Letters from a cell on, one a cell, those outside left out; with `under` where nothing
        was drawn alone.
        """
        if not 0 <= row < self.height:
            return
        number = self._style(style)
        for at, letter in enumerate(text, start=column):
            if 0 <= at < self.width and not (under and self._letters[row, at] != ord(" ")):
                self._letters[row, at] = ord(letter)
                self._styles[row, at] = number

    def lines(self) -> list[Line]:
        """Each row, as pieces of one style."""
        return [
            tuple(_pieces(letters, styles, self._names))
            for letters, styles in zip(self._letters, self._styles, strict=True)
        ]

    def _style(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)


def _pieces(letters: NDArray[np.uint32], styles: NDArray[np.int16], names: list[str]) -> Line:
    starts = [0, *(np.flatnonzero(np.diff(styles)) + 1).tolist(), styles.size]
    text = letters.astype("<u4").tobytes().decode("utf-32-le")
    return tuple((text[a:b], names[styles[a]]) for a, b in pairwise(starts))


def curve_dots(
    curve: Floats, low: Floats, high: Floats, broken: Dots, y: tuple[float, float], rows: int
) -> Dots:
    """The dots (rows, n) of a curve: `curve`, `low` and `high` (n, nan where a column has none) and
    what joins them.

    Nothing is joined over a `broken` column. `y` is the range from the foot to the top; what is
    outside is cut off.
    """
    at = [_chart_rows(values, y, rows) for values in (curve, low, high)]
    known = np.flatnonzero(np.isfinite(at[0]))
    if not known.size:
        return np.zeros((rows, curve.size), dtype=bool)
    columns = np.arange(curve.size)
    full = np.interp(columns, known, at[0][known], left=np.nan, right=np.nan)
    breaks = np.cumsum(broken)
    for k in np.flatnonzero(np.diff(breaks[known])):
        full[known[k] + 1 : known[k + 1]] = np.nan
    # Each column reaches half the way to its neighbours.
    half = (full[1:] + full[:-1]) / 2
    before = np.append(np.nan, half)
    behind = np.append(half, np.nan)
    reach = np.stack((full, before, behind, at[1], at[2]))
    top = np.fmin.reduce(reach)
    bottom = np.fmax.reduce(reach)
    drawn = np.isfinite(top)
    top = np.where(drawn, np.rint(top), rows)
    bottom = np.where(drawn, np.rint(bottom), -1)
    row = np.arange(rows)[:, None]
    return (row >= top[None, :]) & (row <= bottom[None, :])


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
    line[~np.isfinite(line)] = np.nan
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
    canvas.draw(
        curve_dots(
            stretched, stretched, stretched, np.zeros(canvas.columns, dtype=bool), y, canvas.rows
        ),
        "",
    )
    lines = tuple("".join(text for text, _ in line) for line in canvas.lines())
    return SmallCurve(lines, low, high)


def _chart_rows(values: Floats, y: tuple[float, float], rows: int) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        part = (y[1] - values) / (y[1] - y[0])
    return np.clip(part * (rows - 1), -_FARTHEST, rows + _FARTHEST)
