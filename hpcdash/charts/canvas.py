"""Draws curves with the eight dots of braille letters, a layer over the other.

A cell shows the dots of its topmost layer alone, so that a curve stays a line where it crosses another's noise.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hpcdash.charts.state import Line
from hpcdash.logs.metrics import Floats

Dots = NDArray[np.bool_]

DOTS_ACROSS, DOTS_DOWN = 2, 4
_BRAILLE = 0x2800
# The bit of each dot of a braille letter, by row and column.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
# Rows so far off are as good as any farther.
_FARTHEST = 1e7


class Canvas:
    """`width` by `height` cells. Rows of dots are counted from the top; `is_ascii` draws without braille letters."""

    def __init__(self, width: int, height: int, *, is_ascii: bool = False) -> None:
        self.width, self.height = width, height
        self._is_ascii = is_ascii
        self._letters = np.full((height, width), ord(" "), dtype=np.uint32)
        self._styles = np.zeros((height, width), dtype=np.int16)
        self._names = [""]

    @property
    def rows(self) -> int:
        """How many dots stand above each other."""
        return self.height * DOTS_DOWN

    @property
    def columns(self) -> int:
        """How many dots stand beside each other."""
        return self.width * DOTS_ACROSS

    def draw(self, dots: Dots, style: str) -> None:
        """A layer over all that was drawn; `dots` is (rows, columns)."""
        bits = dots.reshape(self.height, DOTS_DOWN, self.width, DOTS_ACROSS).transpose(0, 2, 1, 3)
        codes = (bits * _BITS).sum(axis=(2, 3))
        drawn = codes > 0
        letters = _ascii_letters(bits) if self._is_ascii else codes + _BRAILLE
        self._letters[drawn] = letters[drawn]
        self._styles[drawn] = self._style(style)

    def put(self, column: int, row: int, text: str, style: str, *, under: bool = False) -> None:
        """Letters from a cell on, one a cell, those outside left out; with `under` where nothing was drawn alone."""
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


def _ascii_letters(bits: NDArray[np.bool_]) -> NDArray[np.uint32]:
    upper, lower = bits[:, :, :2].any(axis=(2, 3)), bits[:, :, 2:].any(axis=(2, 3))
    return np.where(upper & lower, ord(":"), np.where(upper, ord("'"), ord("."))).astype(np.uint32)


def _pieces(letters: NDArray[np.uint32], styles: NDArray[np.int16], names: list[str]) -> Line:
    starts = [0, *(np.flatnonzero(np.diff(styles)) + 1).tolist(), styles.size]
    text = letters.astype("<u4").tobytes().decode("utf-32-le")
    return tuple((text[a:b], names[styles[a]]) for a, b in pairwise(starts))


def curve_dots(curve: Floats, low: Floats, high: Floats, broken: Dots, y: tuple[float, float], rows: int) -> Dots:
    """The dots (rows, n) of a curve: `curve`, `low` and `high` (n, nan where a column has none) and what joins them.

    Nothing is joined over a `broken` column. `y` is the range from the foot to the top; what is outside is cut off.
    """
    at = [_rows_of(values, y, rows) for values in (curve, low, high)]
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
    before, behind = np.append(np.nan, half), np.append(half, np.nan)
    reach = np.stack((full, before, behind, at[1], at[2]))
    top, bottom = np.fmin.reduce(reach), np.fmax.reduce(reach)
    drawn = np.isfinite(top)
    top, bottom = np.where(drawn, np.rint(top), rows), np.where(drawn, np.rint(bottom), -1)
    row = np.arange(rows)[:, None]
    return (row >= top[None, :]) & (row <= bottom[None, :])


def row_of(value: float, y: tuple[float, float], rows: int) -> int:
    """The row a value stands in, counted from the top; rows outside of the range are outside of 0 to `rows`."""
    return int(np.rint(_rows_of(np.array([value]), y, rows)[0]))


def _rows_of(values: Floats, y: tuple[float, float], rows: int) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        part = (y[1] - values) / (y[1] - y[0])
    return np.clip(part * (rows - 1), -_FARTHEST, rows + _FARTHEST)
