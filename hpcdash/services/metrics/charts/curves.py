"""The curves of a chart: which metrics of which runs, along which axis, how smooth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from math import inf, log10, nan

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.charts.scale import (
    Tick,
    clock_ticks,
    duration_ticks,
    linear_ticks,
    whole_ticks,
)
from hpcdash.services.metrics.charts.state import FEW_POINTS, ChartState, Mark, Span, main_metric
from hpcdash.services.metrics.downsample import Smoothing, downsample_view, smoothed, whole_range
from hpcdash.services.metrics.findings import format_step
from hpcdash.services.metrics.joined import JoinedRun
from hpcdash.services.metrics.series import Series

_WEIGHTS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999)
_NO_HEIGHT = 1e-9
# Axes whose x are whole numbers.
COUNTED = ("step", "samples", "point")
_AXES_BY_USE = ("step", "tokens", "samples", "epoch", "time", "point")


class SeriesCache:
    """Series of runs, made once for each state of a run.

    Safe in several threads: the worst is one made twice.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[int, str, str], tuple[JoinedRun, Series]] = {}

    def series(self, run: JoinedRun, name: str, axis: str) -> Series:
        key = (id(run), name, axis)
        remaining = self._series.get(key)
        if remaining is None or remaining[0] is not run:
            remaining = self._series[key] = (run, run.series(name, axis))
        return remaining[1]

    def keep_only(self, runs: Sequence[JoinedRun]) -> None:
        """Forget what is of other runs, or of older states of these."""
        ids = {id(run) for run in runs}
        for key in [key for key in list(self._series) if key[0] not in ids]:
            self._series.pop(key, None)


class ChartRun(Struct, frozen=True):
    """A run as it is now.

    `letter` is its sign where there are several; `marks` by metric, along `marks_axis`.
    """

    letter: str
    title: str
    run: JoinedRun
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    marks_axis: str = ""


class ChartRequest(Struct, frozen=True):
    """Content of a chart and its size in cells. `zone` is that of the clock."""

    runs: tuple[ChartRun, ...]
    state: ChartState
    width: int
    height: int
    stored: SeriesCache
    zone: tzinfo | None = None
    is_ascii: bool = False

    @property
    def all_names(self) -> tuple[str, ...]:
        return tuple(sorted({name for one in self.runs for name in one.run.names}))

    @property
    def names(self) -> tuple[str, ...]:
        """The chosen metrics that exist; the main one if none does."""
        known = self.all_names
        chosen = tuple(name for name in self.state.names if name in known)
        # Of the run itself rather than of those over it, where it has any.
        first = next(
            (name for one in self.runs if (name := main_metric(one.run.names)) is not None), None
        )
        return chosen or ((first,) if first is not None else ())

    @property
    def axes(self) -> tuple[str, ...]:
        has = {axis for one in self.runs for axis in one.run.axes()}
        return tuple(axis for axis in _AXES_BY_USE if axis in has)

    @property
    def axis(self) -> str:
        axes = self.axes
        return self.state.axis if self.state.axis in axes else axes[0] if axes else "point"

    @property
    def doubt(self) -> str:
        """Text on what the logs leave open about the steps of the x axis; '' for nothing."""
        return next(
            (one.run.doubt for one in self.runs if self.axis == "step" and one.run.doubt), ""
        )

    @property
    def is_since_begin(self) -> bool:
        """Whether times are counted from each run's beginning: those of several runs, to lie over
        each other.
        """
        return self.axis == "time" and len(self.runs) > 1

    def series(self, one: ChartRun, name: str) -> Series:
        return self.stored.series(one.run, name, self.axis)

    def shift(self, one: ChartRun) -> float:
        """Return the amount to subtract from a run's x."""
        if not self.is_since_begin:
            return 0.0
        firsts = [
            whole_range(series)[0] for name in self.names if len(series := self.series(one, name))
        ]
        return min(firsts, default=0.0)

    def x_ticks(self, span: Span, most: int) -> list[Tick]:
        """Return the ticks of the x axis, about `most`."""
        if self.axis in COUNTED:
            return whole_ticks(*span, most, format_step)
        if self.axis != "time":
            return linear_ticks(*span, most)
        if self.is_since_begin:
            return duration_ticks(*span, most)
        return clock_ticks(*span, most, self.zone)

    def marks(self, one: ChartRun, name: str) -> list[tuple[float, float, Mark]]:
        """Return the x and the y, as drawn, of a run's marks; y is nan at the foot."""
        if one.marks_axis != self.axis:
            return []
        shift = self.shift(one)
        found = []
        for mark in one.marks.get(name, ()):
            y = mark.y
            if self.state.log_y:
                y = log10(y) if y > 0 else nan
            found.append((mark.x - shift, y, mark))
        return found

    def whole(self) -> Span:
        """Return the span from the first to the last x of the chart; (0, 1) if it is empty."""
        begin = inf
        end = -inf
        for one in self.runs:
            shift = self.shift(one)
            for name in self.names:
                series = self.series(one, name)
                if len(series):
                    first, last = whole_range(series)
                    begin = min(begin, first - shift)
                    end = max(end, last - shift)
        if begin > end:
            return 0.0, 1.0
        return (begin, end) if end > begin else (begin - 0.5, end + 0.5)


class Curve(Struct, frozen=True):
    """One metric of one run in the columns of dots; every array is as long as there are columns, as
    drawn (logarithms on a log scale). `smooth` is None where nothing is smoothed; `again` are what
    restarts repeated.
    """

    run: ChartRun
    series: Series
    line: Floats
    low: Floats
    high: Floats
    broken: NDArray[np.bool_]
    smooth: Floats | None
    smoothing: Smoothing | None
    again: tuple[Floats, ...]
    hidden_columns: int
    places: int


def parse_smoothing(text: str, points: float) -> Smoothing | None:
    """One of SMOOTHINGS where so many points are seen; None for none."""
    if text == "auto":
        if points < FEW_POINTS:
            return None
        # It lags behind by less than a fiftieth of the width, whatever is seen.
        weight = max((one for one in _WEIGHTS if 1 / (1 - one) <= points / 60), default=_WEIGHTS[0])
        return Smoothing("ema", weight=weight)
    kind, _, amount = text.partition(" ")
    if kind == "ema":
        return Smoothing("ema", weight=float(amount))
    window = int(amount.removeprefix("of ")) if amount else 0
    return Smoothing("mean" if kind == "mean" else "median", window=window) if window else None


def format_smoothing(text: str, smoothing: Smoothing | None) -> str:
    """Format the effect of one of SMOOTHINGS; '' for none.

    For example `smoothed (auto)`, `ema 0.9`, `mean of 50`.
    """
    if smoothing is None:
        return ""
    if text == "auto":
        return "smoothed (auto)"
    return (
        f"ema {smoothing.weight:g}"
        if smoothing.kind == "ema"
        else f"{smoothing.kind} of {smoothing.window}"
    )


def build_curve(request: ChartRequest, one: ChartRun, name: str, span: Span, columns: int) -> Curve:
    """Build the curve of a run's metric in a span of the x axis."""
    series = request.series(one, name)
    shift = request.shift(one)
    log_y = request.state.log_y
    begin = span[0] + shift
    end = span[1] + shift
    view = downsample_view(series, begin, end, columns, log_y=log_y)
    first, last = np.searchsorted(series.x, (begin, end))
    smoothing = parse_smoothing(request.state.smoothing, float(series.points[first:last].sum()))
    smooth = None
    if smoothing is not None and len(series):
        smooth = _as_drawn(smoothed(series, begin, end, columns, smoothing), log_y)
    again = []
    if name in one.run.names and len(one.run.attempts) > 1:
        for repeated in one.run.overlap(name, request.axis)[-20:]:
            again.append(
                _as_drawn(downsample_view(repeated, begin, end, columns, log_y=log_y).last, log_y)
            )
    broken = (view.odd | view.hidden) & ~np.isfinite(view.last)
    return Curve(
        one,
        series,
        _as_drawn(view.last, log_y),
        _as_drawn(view.low, log_y),
        _as_drawn(view.high, log_y),
        broken,
        smooth,
        smoothing,
        tuple(again),
        int(view.hidden.sum()),
        int(view.points.sum()),
    )


def chart_height(curves: Sequence[Curve], *, leaves_out: bool) -> Span | None:
    """The y range that shows these curves, or all but the outermost fiftieth of their columns; None
    of nothing.
    """
    parts = [array for curve in curves for array in (curve.low, curve.high)]
    if not leaves_out:
        parts += [
            array for curve in curves for array in (curve.smooth, *curve.again) if array is not None
        ]
    values = np.concatenate(parts) if parts else np.empty(0)
    values = np.clip(values[np.isfinite(values)], -1e300, 1e300)
    if not values.size:
        return None
    if leaves_out:
        low, high = (float(value) for value in np.quantile(values, (0.02, 0.98)))
    else:
        low = float(values.min())
        high = float(values.max())
    room = 0.04 * (high - low)
    if high - low <= _NO_HEIGHT * max(abs(low), abs(high)):
        # What differs by rounding alone is a level.
        room = 0.05 * abs(low) or 0.5
    return low - room, high + room


def has_outliers(curves: Sequence[Curve]) -> bool:
    """Whether a few columns take most of the height."""
    whole = chart_height(curves, leaves_out=False)
    most = chart_height(curves, leaves_out=True)
    return whole is not None and most is not None and whole[1] - whole[0] > 6 * (most[1] - most[0])


def value_at(series: Series, x: float) -> tuple[float, float] | None:
    """x and value of the place nearest to an x; None of a series without places."""
    if not len(series):
        return None
    at = int(np.searchsorted(series.x, x))
    near = [k for k in (at - 1, at) if 0 <= k < len(series)]
    nearest = min(near, key=lambda k: abs(float(series.x[k]) - x))
    return float(series.x[nearest]), float(series.values[nearest])


def _as_drawn(values: Floats, log_y: bool) -> Floats:
    if not log_y:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn: Floats = np.where(values > 0, np.log10(values), np.nan)
    return drawn
