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
    """A screen of a series; every array is as long as there are columns.

    `low`, `high` and `last` are of the finite values in a column (of the positive ones on a log
    scale), nan where it has none; `points` counts its places. `odd` marks nan and inf in it, and
    `hidden` values that the log scale cannot show.
    """

    low: Floats
    high: Floats
    last: Floats
    points: Integers
    odd: NDArray[np.bool_]
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
    begin, starts, filled, counts = _columns(series, x_from, x_to, columns)
    places = slice(begin, begin + int(counts.sum()))
    low = series.low[places]
    high = series.high[places]
    last = series.newest[places]
    figures = np.full((3, columns), nan)
    odd, hidden = np.zeros((2, columns), dtype=bool)
    if starts.size:
        if log_y:
            hidden[filled] = np.fmin.reduceat(low, starts) <= 0
            if hidden.any():
                if series.exact:
                    low = high = last = np.where(low > 0, low, nan)
                else:
                    low, high, last = (
                        np.where(array > 0, array, nan) for array in (low, high, last)
                    )
                    # Of a cell that reaches below zero the lowest positive value is not known: its
                    # last stands for it.
                    low = np.where(np.isnan(low), np.fmin(last, high), low)
        figures[0, filled] = np.fmin.reduceat(low, starts)
        figures[1, filled] = np.fmax.reduceat(high, starts)
        figures[2, filled] = _last_known(last, starts)
        odd[filled] = np.bitwise_or.reduceat(series.odd[places], starts) > 0
    low, high, last = figures
    return ViewPoints(low, high, last, points=counts, odd=odd, hidden=hidden)


def smoothed(
    series: Series, x_from: float, x_to: float, columns: int, smoothing: Smoothing
) -> Floats:
    """The smoothed curve at the last point of each column of `downsample_view`; nan in a column
    without a finite value.

    An average by weight begins at the first point of the series and is corrected for it, so that
    zooming does not change a curve. Of a cell its mean counts as often as it has points. nan and
    inf take no part.
    """
    begin, starts, filled, counts = _columns(series, x_from, x_to, columns)
    curve = np.full(columns, nan)
    if not starts.size:
        return curve
    ends = np.append(starts[1:], counts.sum()) + begin
    average = _average_at if smoothing.kind == "ema" else _window_at
    curve[filled] = average(series, begin, starts + begin, ends, smoothing)
    return curve


def _columns(
    series: Series, x_from: float, x_to: float, columns: int
) -> tuple[int, Integers, Integers, Integers]:
    """The first place from `x_from` (finite) to `x_to` (beyond it); where each filled column starts
    from there; which are filled; the number of places in each.
    """
    x = series.x
    edges = np.linspace(x_from, x_to, columns + 1)
    begin = int(np.searchsorted(x, x_from))
    end = int(np.searchsorted(x, x_to, side="right"))
    if end < x.size and series.x_first[end] <= x_to:
        # A cell that begins within the range and ends behind it.
        end += 1
    cuts = np.concatenate(([begin], np.clip(np.searchsorted(x, edges[1:-1]), begin, end), [end]))
    counts = np.diff(cuts)
    filled = np.flatnonzero(counts)
    return begin, cuts[:-1][filled] - begin, filled, counts


def _last_known(last: Floats, starts: Integers) -> Floats:
    ends = np.append(starts[1:], last.size) - 1
    values: Floats = last[ends]
    for k in np.flatnonzero(np.isnan(values)):
        known = np.flatnonzero(~np.isnan(last[starts[k] : ends[k] + 1]))
        if known.size:
            values[k] = last[starts[k] + known[-1]]
    return values


def _average_at(
    series: Series, begin: int, starts: Integers, ends: Integers, smoothing: Smoothing
) -> Floats:
    """The exponential average behind each column: columns are decayed and summed at once, then one
    after the other.
    """
    if smoothing.weight == 0:
        return _last_known(series.mean[begin : ends[-1]], starts - begin)
    decay = log(smoothing.weight)
    forgets = ceil(log(_FORGOTTEN) / decay)
    reach = min(begin, forgets)
    while reach < begin and series.points[begin - reach : begin].sum() < forgets:
        reach = min(begin, 2 * reach)  # nan makes nothing forgotten
    first = begin - reach
    places = slice(first, int(ends[-1]))
    points = series.points[places]
    values = np.where(points > 0, series.mean[places], 0.0)
    past = np.cumsum(points) * decay
    starts = starts - first
    ends = ends - first
    if reach:
        starts = np.concatenate(([0], starts))
        ends = np.concatenate(([reach], ends))
    behind = past[ends - 1]
    own = -np.expm1(points * decay) if not series.exact else (1.0 - smoothing.weight) * points
    own *= values
    with np.errstate(over="ignore", invalid="ignore"):
        own *= np.exp(np.repeat(behind, ends - starts) - past)
        sums = np.add.reduceat(own, starts)
    before = np.concatenate(([0.0], behind[:-1]))
    factors = np.exp(behind - before)
    curve = np.empty(sums.size)
    value = 0.0
    weight = 0.0
    for k, (factor, total) in enumerate(zip(factors.tolist(), sums.tolist(), strict=True)):
        value = value * factor + total
        weight = weight * factor + (1.0 - factor)
        curve[k] = value / weight if weight > 0 else nan
    if reach:
        curve = curve[1:]
    return curve


def _window_at(
    series: Series, begin: int, starts: Integers, ends: Integers, smoothing: Smoothing
) -> Floats:
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
