"""Reduction of a series to a number of screen columns, and its smoothed curve there."""

from __future__ import annotations

from math import ceil, log, nan
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hpcdash.services.metrics.batch import Floats, Integers
from hpcdash.services.metrics.series import Series

# What an average forgets: a point counts no more once its weight is this.
_FORGOTTEN = 1e-9


class ViewPoints(Struct, frozen=True):
    """A screen of a series; every array is as long as there are columns."""

    # Of the finite values in a column (of the positive ones on a log scale), nan where it has none.
    low: Floats
    high: Floats
    last: Floats
    # Number of its places.
    points: Integers
    # Whether nan or inf is in it.
    odd: NDArray[np.bool_]
    # Whether values are in it that the log scale cannot show.
    hidden: NDArray[np.bool_]


class Smoothing(Struct, frozen=True):
    """Smoothing of a curve: `ema` or a sliding `mean` or `median`.

    `ema` has a `weight` from 0 to below 1 (as TensorBoard's), the others a `window` in points.
    """

    kind: Literal["ema", "mean", "median"]
    weight: float = 0.9
    window: int = 50


def downsample_view(
    series: Series,
    x_from: float,
    x_to: float,
    columns: int,
    log_y: bool = False,
) -> ViewPoints:
    """Reduce a series from `x_from` to `x_to` (inclusive) to columns of equal width."""
    view = _ColumnPlaces(series, x_from, x_to, columns)
    low, high, last = np.full((3, columns), nan)
    odd, hidden = np.zeros((2, columns), dtype=bool)
    if view.filled.size:
        filled = view.filled
        starts = view.starts - view.begin
        lows = series.low[view.begin : view.end]
        highs = series.high[view.begin : view.end]
        lasts = series.newest[view.begin : view.end]
        if log_y:
            hidden[filled] = np.fmin.reduceat(lows, starts) <= 0
        if hidden.any():
            if series.exact:
                lows = highs = lasts = np.where(lows > 0, lows, nan)
            else:
                lows, highs, lasts = (
                    np.where(array > 0, array, nan) for array in (lows, highs, lasts)
                )
                # Of a cell that reaches below zero the lowest positive value is not known: its
                # last stands for it.
                lows = np.where(np.isnan(lows), np.fmin(lasts, highs), lows)
        low[filled] = np.fmin.reduceat(lows, starts)
        high[filled] = np.fmax.reduceat(highs, starts)
        last[filled] = _last_known(lasts, starts)
        odd[filled] = np.bitwise_or.reduceat(series.odd[view.begin : view.end], starts) > 0
    return ViewPoints(low, high, last, points=view.counts, odd=odd, hidden=hidden)


def smoothed(
    series: Series, x_from: float, x_to: float, columns: int, smoothing: Smoothing
) -> Floats:
    """The smoothed curve at the last point of each column of `downsample_view`; nan in a column
    without a finite value.

    An average by weight begins at the first point of the series and is corrected for it, so that
    zooming does not change a curve. Of a cell its mean counts as often as it has points. nan and
    inf take no part.
    """
    view = _ColumnPlaces(series, x_from, x_to, columns)
    curve = np.full(columns, nan)
    if view.filled.size:
        ends = np.append(view.starts[1:], view.end)
        average = _average_at if smoothing.kind == "ema" else _window_at
        curve[view.filled] = average(series, view.starts, ends, smoothing)
    return curve


class _ColumnPlaces:
    """The places of a series from `x_from` to `x_to`, by column."""

    def __init__(self, series: Series, x_from: float, x_to: float, columns: int) -> None:
        x = series.x
        edges = np.linspace(x_from, x_to, columns + 1)
        self.begin = int(np.searchsorted(x, x_from))
        self.end = int(np.searchsorted(x, x_to, side="right"))
        if self.end < x.size and series.x_first[self.end] <= x_to:
            # A cell that begins within the range and ends behind it.
            self.end += 1
        inner = np.clip(np.searchsorted(x, edges[1:-1]), self.begin, self.end)
        cuts = np.concatenate(([self.begin], inner, [self.end]))
        # In each column.
        self.counts = np.diff(cuts)
        # The columns that have places, and the first place of each.
        self.filled = np.flatnonzero(self.counts)
        self.starts = cuts[:-1][self.filled]


def _last_known(last: Floats, starts: Integers) -> Floats:
    ends = np.append(starts[1:], last.size) - 1
    values: Floats = last[ends]
    for k in np.flatnonzero(np.isnan(values)):
        known = np.flatnonzero(~np.isnan(last[starts[k] : ends[k] + 1]))
        if known.size:
            values[k] = last[starts[k] + known[-1]]
    return values


def _average_at(series: Series, starts: Integers, ends: Integers, smoothing: Smoothing) -> Floats:
    """The exponential average behind each column: columns are decayed and summed at once, then one
    after the other.
    """
    begin = int(starts[0])
    if smoothing.weight == 0:
        return _last_known(series.mean[begin : ends[-1]], starts - begin)
    decay = log(smoothing.weight)
    forgets = ceil(log(_FORGOTTEN) / decay)
    reach = min(begin, forgets)
    while reach < begin and series.points[begin - reach : begin].sum() < forgets:
        reach = min(begin, 2 * reach)  # nan makes nothing forgotten
    if reach:
        # What stands before the first column.
        starts = np.append(begin - reach, starts)
        ends = np.append(begin, ends)
    places = slice(int(starts[0]), int(ends[-1]))
    points = series.points[places]
    values = np.where(points > 0, series.mean[places], 0.0)
    past = np.cumsum(points) * decay
    behind = past[ends - places.start - 1]
    own = -np.expm1(points * decay) if not series.exact else (1.0 - smoothing.weight) * points
    own *= values
    with np.errstate(over="ignore", invalid="ignore"):
        own *= np.exp(np.repeat(behind, ends - starts) - past)
        sums = np.add.reduceat(own, starts - places.start)
    factors = np.exp(np.diff(behind, prepend=0.0))
    curve = np.empty(sums.size)
    value = 0.0
    weight = 0.0
    for k, (factor, total) in enumerate(zip(factors.tolist(), sums.tolist(), strict=True)):
        value = value * factor + total
        weight = weight * factor + (1.0 - factor)
        curve[k] = value / weight if weight > 0 else nan
    return curve[1:] if reach else curve


def _window_at(series: Series, starts: Integers, ends: Integers, smoothing: Smoothing) -> Floats:
    """The mean or median of the newest `window` points up to the end of each column."""
    curve = np.full(ends.size, nan)
    for k, end in enumerate(ends.tolist()):
        first = max(end - smoothing.window, 0)
        values = series.mean[first:end]
        points = series.points[first:end]
        if not series.exact:
            # A place takes part while those behind it do not fill the window.
            behind = np.cumsum(points[::-1])[::-1]
            taken = behind - points < smoothing.window
            values = values[taken]
            points = points[taken]
        known = points > 0
        values = values[known]
        points = points[known]
        if not values.size:
            continue
        if smoothing.kind == "mean":
            with np.errstate(over="ignore", invalid="ignore"):
                curve[k] = float(np.dot(values, points) / points.sum())
        elif series.exact:
            curve[k] = float(np.median(values))
        else:
            order = np.argsort(values)
            half = np.searchsorted(np.cumsum(points[order]), points.sum() / 2)
            curve[k] = float(values[order][min(int(half), values.size - 1)])
    return curve
