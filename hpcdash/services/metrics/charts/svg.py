"""A chart as an SVG picture, for a paper, a mail or a browser: a panel a metric below each other.

Of many points each column keeps its lowest and its highest, so that no spike is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite
from typing import TypeVar
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from hpcdash.domain.text import clip, visible
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.charts.curves import ChartPanel, ChartRequest, Curve, build_panel
from hpcdash.services.metrics.charts.scale import height_ticks

# In pixels; a column of points is half of one, so that a picture that is printed large stays sharp.
WIDTH = 960
PANEL_HEIGHT = 300
_LEFT = 78
_RIGHT = 18
_TOP = 72
_BETWEEN = 44
_BOTTOM = 46
_COLUMNS = 2 * (WIDTH - _LEFT - _RIGHT)
# Colours that colour-blind people can distinguish.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3fbf", "#555555")
_MARKS = {"warning": "#d98200", "bad": "#c0232c"}
_MAX_LETTERS = 90
AnyX = TypeVar("AnyX", float, Floats)
# XML has no place for these.
_IMPOSSIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def draw_svg(request: ChartRequest, title: str) -> str:
    """The metrics that a request shows, in the span and the heights it shows, as the text of an SVG
    file.
    """
    names = request.names
    span = request.state.shown(request.whole())
    height = _TOP + len(names) * (PANEL_HEIGHT + _BETWEEN) - _BETWEEN + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 '
        f'{WIDTH} {height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" '
        f'font-weight="bold">{_text(clip(title, _MAX_LETTERS))}</text>',
    ]
    for number, name in enumerate(names):
        panel = build_panel(request, name, span, _COLUMNS)
        if not number:
            parts += _legend(panel)
        parts += _Panel(request, panel, number).parts(is_lowest=number == len(names) - 1)
    return "\n".join((*parts, "</svg>", ""))


class _Panel:
    """One metric of all runs, below those before it."""

    def __init__(self, request: ChartRequest, panel: ChartPanel, number: int) -> None:
        self._request = request
        self._panel = panel
        self._span = panel.x
        self._top = _TOP + number * (PANEL_HEIGHT + _BETWEEN)
        self._clip = f"clip-{number}"
        self._across = request.x_ticks(panel.x, 8)
        self._up = height_ticks(*panel.y, 6, 9, is_log=request.state.log_y)

    def parts(self, *, is_lowest: bool) -> Iterator[str]:
        foot = self._top + PANEL_HEIGHT
        right = WIDTH - _RIGHT
        scale = " (log scale)" if self._request.state.log_y else ""
        name = clip(visible(self._panel.name) + scale, _MAX_LETTERS)
        yield (f'<text x="{_LEFT}" y="{self._top - 7}" font-weight="bold">{_text(name)}</text>')
        yield (
            f'<clipPath id="{self._clip}"><rect x="{_LEFT}" y="{self._top}" '
            f'width="{right - _LEFT}" '
            f'height="{PANEL_HEIGHT}"/></clipPath>'
        )
        grid = [f'<path d="M{self._x(x):.1f} {self._top}V{foot}"/>' for x, _ in self._across]
        grid += [f'<path d="M{_LEFT} {self._height(y):.1f}H{right}"/>' for y, _ in self._up]
        yield f'<g stroke="#e3e3e3" stroke-width="1">{"".join(grid)}</g>'
        yield (
            f'<path d="M{_LEFT} {self._top}V{foot}H{right}" fill="none" stroke="#333333" '
            'stroke-width="1" '
            'class="axes"/>'
        )
        yield from self._tick_labels(foot, is_lowest=is_lowest)
        yield f'<g clip-path="url(#{self._clip})" fill="none" stroke-linejoin="round">'
        for number, curve in enumerate(self._panel.curves):
            yield from self._curve(curve, _COLOURS[number % len(_COLOURS)])
        yield "</g>"
        yield from self._marks()

    def _tick_labels(self, foot: int, *, is_lowest: bool) -> Iterator[str]:
        for y, text in self._up:
            yield (
                f'<text x="{_LEFT - 7}" y="{self._height(y) + 4:.1f}" '
                f'text-anchor="end">{_text(text)}</text>'
            )
        for x, text in self._across:
            column = self._x(x)
            anchor = "end" if column + 4 * len(text) > WIDTH - 2 else "middle"
            yield f'<text x="{column:.1f}" y="{foot + 17}" text-anchor="{anchor}">{_text(text)}</text>'
        if is_lowest:
            axis = "time since start" if self._request.is_since_begin else self._request.axis
            middle = (_LEFT + WIDTH - _RIGHT) / 2
            yield (
                f'<text x="{middle:.0f}" y="{foot + 36}" text-anchor="middle">{_text(axis)}</text>'
            )

    def _curve(self, curve: Curve, colour: str) -> Iterator[str]:
        for again in curve.again:
            dotted = f'stroke="{colour}" stroke-width="1" stroke-dasharray="2 3" opacity="0.6"'
            yield from self._lines(_columns_x(), again, np.isnan(again), dotted)
        style = f'stroke="{colour}" stroke-width="1"'
        if curve.smooth is None:
            yield from self._raw(curve, f'{style} class="raw"')
            return
        yield from self._raw(curve, f'{style} opacity="0.35" class="raw"')
        style = f'stroke="{colour}" stroke-width="1.8" class="smoothed"'
        smooth = np.where(curve.broken, np.nan, curve.smooth)
        yield from self._lines(_columns_x(), smooth, curve.broken, style)

    def _raw(self, curve: Curve, style: str) -> Iterator[str]:
        """Every point where there are few, else each column's lowest and highest."""
        series = curve.series
        shift = self._request.shift(curve.run)
        first, last = np.searchsorted(
            series.x, (self._span[0] + shift, np.nextafter(self._span[1] + shift, np.inf))
        )
        if series.exact and last - first <= _COLUMNS:
            values = series.values[first:last]
            if self._request.state.log_y:
                values = np.log10(np.where(values > 0, values, np.nan))
            x = self._x(series.x[first:last] - shift)
            return self._lines(x, values, ~np.isfinite(values), style)
        known = np.flatnonzero(np.isfinite(curve.low) | curve.broken)
        # From the side that the column before ended on, so that the line does not go to and fro
        # more than it must.
        pairs = np.stack((curve.low[known], curve.high[known]), axis=1)
        pairs[1::2] = pairs[1::2, ::-1]
        x = np.repeat(_columns_x()[known], 2)
        return self._lines(x, pairs.reshape(-1), np.repeat(curve.broken[known], 2), style)

    def _lines(
        self, x: Floats, values: Floats, broken: NDArray[np.bool_], style: str
    ) -> Iterator[str]:
        """Polylines between breaks; a point alone is a dot."""
        for piece in np.split(np.arange(values.size), np.flatnonzero(broken)):
            piece = piece[np.isfinite(values[piece])]
            if piece.size == 1:
                yield (
                    f'<circle cx="{x[piece[0]]:.1f}" cy="{self._height(values[piece[0]]):.1f}" '
                    f'r="1.5" {style}/>'
                )
            elif piece.size:
                y = [self._height(value) for value in values[piece].tolist()]
                points = " ".join(
                    f"{a:.1f},{b:.1f}" for a, b in zip(x[piece].tolist(), y, strict=True)
                )
                yield f'<polyline points="{points}" {style}/>'

    def _marks(self) -> Iterator[str]:
        foot = self._top + PANEL_HEIGHT - 4.0
        for curve in self._panel.curves:
            for mark in self._request.marks(curve.run, self._panel.name):
                if not self._span[0] <= mark.x <= self._span[1]:
                    continue
                y = self._height(mark.y) - 5 if isfinite(mark.y) else foot
                y = min(max(y, self._top + 9), foot)
                colour = _MARKS.get(mark.style, "#333333")
                sign = _text(mark.sign(is_ascii=self._request.is_ascii))
                yield (
                    f'<text x="{self._x(mark.x):.1f}" y="{y:.1f}" text-anchor="middle" '
                    f'fill="{colour}">{sign}<title>{_text(mark.text)}</title></text>'
                )

    def _x(self, x: AnyX) -> AnyX:
        part = (x - self._span[0]) / (self._span[1] - self._span[0])
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def _height(self, value: float) -> float:
        low, high = self._panel.y
        part = (value - low) / (high - low)
        # Values far outside are cut off; a file need not show how far.
        return self._top + PANEL_HEIGHT * (1 - min(max(part, -10.0), 11.0))


def _legend(panel: ChartPanel) -> Iterator[str]:
    """Draw the legend of the lines, if there are several."""
    several = len(panel.curves) > 1
    # Colour, text, width and opacity of each.
    lines = []
    for number, curve in enumerate(panel.curves):
        colour = _COLOURS[number % len(_COLOURS)]
        is_smoothed = curve.smooth is not None
        if several:
            width = "1.8" if is_smoothed else "1"
            lines.append((colour, visible(curve.run.title), width, "1"))
        elif is_smoothed:
            lines += [(colour, "as written", "1", "0.35"), (colour, panel.smoothing, "1.8", "1")]
    x = _LEFT
    for colour, text, width, opacity in lines:
        text = clip(text, 36)
        yield (
            f'<path d="M{x} 36h22" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"/>'
        )
        yield f'<text x="{x + 28}" y="40" class="legend">{_text(text)}</text>'
        x += 50 + 7 * len(text)


def _columns_x() -> Floats:
    middles: Floats = _LEFT + (np.arange(_COLUMNS) + 0.5) / _COLUMNS * (WIDTH - _LEFT - _RIGHT)
    return middles


def _text(text: str) -> str:
    return escape(_IMPOSSIBLE.sub("�", visible(text)), {'"': "&quot;"})
