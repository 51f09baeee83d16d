"""The curves of a chart: which metrics of which runs, along which axis, how smooth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from math import inf, log10, nan

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
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
from hpcdash.services.metrics.downsample import Smoothing, downsample_view, smoothed
from hpcdash.services.metrics.findings import format_step
from hpcdash.services.metrics.joined import JoinedRun
from hpcdash.services.metrics.series import Series

_WEIGHTS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999)
_NO_HEIGHT = 1e-9
_MAX_REPEATED = 20
# Axes whose x are whole numbers.
COUNTED = ("step", "samples", "point")
_AXES_BY_USE = ("step", "tokens", "samples", "epoch", "time", "point")


class ChartRun(Struct, frozen=True):
    """A run as it is now."""

    # Its sign where there are several.
    letter: str
    title: str
    run: JoinedRun
    # By metric, along `marks_axis`.
    marks: Mapping[str, tuple[Mark, ...]] = field(default_factory=dict)
    marks_axis: str = ""


class ChartRequest(Struct, frozen=True):
    """Content of a chart and its size in cells. `zone` is that of the clock."""

    runs: tuple[ChartRun, ...]
    state: ChartState
    width: int
    height: int
    zone: tzinfo | None = None
    is_ascii: bool = False

    @property
    def all_names(self) -> tuple[str, ...]:
        return tuple(sorted({name for shown in self.runs for name in shown.run.names}))

    @property
    def names(self) -> tuple[str, ...]:
        """The chosen metrics that exist; the main one if none does."""
        known = self.all_names
        chosen = tuple(name for name in self.state.names if name in known)
        if chosen:
            return chosen
        # Of the run itself rather than of those over it, where it has any.
        main = (main_metric(shown.run.names) for shown in self.runs)
        return tuple(name for name in main if name is not None)[:1]

    @property
    def axes(self) -> tuple[str, ...]:
        has = {axis for shown in self.runs for axis in shown.run.axes()}
        return tuple(axis for axis in _AXES_BY_USE if axis in has)

    @property
    def axis(self) -> str:
        if self.state.axis in self.axes:
            return self.state.axis
        return next(iter(self.axes), "point")

    @property
    def doubt(self) -> str:
        """Text on what the logs leave open about the steps of the x axis; '' for nothing."""
        return next(
            (shown.run.doubt for shown in self.runs if self.axis == "step" and shown.run.doubt), ""
        )

    @property
    def is_since_begin(self) -> bool:
        """Whether times are counted from each run's beginning: those of several runs, to lie over
        each other.
        """
        return self.axis == "time" and len(self.runs) > 1

    def series(self, shown: ChartRun, name: str) -> Series:
        return shown.run.series(name, self.axis)

    def shift(self, shown: ChartRun) -> float:
        """Return the amount to subtract from a run's x."""
        if not self.is_since_begin:
            return 0.0
        all_series = (self.series(shown, name) for name in self.names)
        return min((series.span[0] for series in all_series if len(series)), default=0.0)

    def x_ticks(self, span: Span, most: int) -> list[Tick]:
        """Return the ticks of the x axis, about `most`."""
        if self.axis in COUNTED:
            return whole_ticks(*span, most, format_step)
        if self.axis != "time":
            return linear_ticks(*span, most)
        if self.is_since_begin:
            return duration_ticks(*span, most)
        return clock_ticks(*span, most, self.zone)

    def marks(self, shown: ChartRun, name: str) -> list[Mark]:
        """Return a run's marks with x and y as drawn."""
        if shown.marks_axis != self.axis:
            return []
        shift = self.shift(shown)
        marks = []
        for mark in shown.marks.get(name, ()):
            y = mark.y
            if self.state.log_y:
                y = log10(y) if y > 0 else nan
            marks.append(replace(mark, x=mark.x - shift, y=y))
        return marks

    def whole(self) -> Span:
        """Return the span from the first to the last x of the chart; (0, 1) if it is empty."""
        begin = inf
        end = -inf
        for shown in self.runs:
            shift = self.shift(shown)
            for name in self.names:
                series = self.series(shown, name)
                if len(series):
                    first, last = series.span
                    begin = min(begin, first - shift)
                    end = max(end, last - shift)
        if begin > end:
            return 0.0, 1.0
        return (begin, end) if end > begin else (begin - 0.5, end + 0.5)


class Curve(Struct, frozen=True):
    """One metric of one run in the columns of dots; every array is as long as there are columns, as
    drawn (logarithms on a log scale).
    """

    run: ChartRun
    series: Series
    line: Floats
    low: Floats
    high: Floats
    # Columns over which nothing is joined: they have no finite value but nan, inf, or what a log
    # scale cannot show.
    broken: NDArray[np.bool_]
    # None where nothing is smoothed.
    smooth: Floats | None
    # What restarts repeated.
    again: tuple[Floats, ...]
    # Columns with values that a log scale cannot show.
    hidden_columns: int
    # Places of the series in the span.
    places: int


class ChartPanel(Struct, frozen=True):
    """One metric of all runs of a chart in a span of the x axis."""

    name: str
    x: Span
    # As drawn.
    y: Span
    curves: list[Curve]
    # Whether there is anything that y could be the range of.
    has_values: bool
    smoothing: str

    def part(self, x: Floats) -> Floats:
        """Return what part of the width is left of an x."""
        return (x - self.x[0]) / (self.x[1] - self.x[0])


def parse_smoothing(text: str, points: float) -> Smoothing | None:
    """One of SMOOTHINGS where so many points are seen; None for none."""
    kind, _, amount = text.partition(" ")
    if kind == "ema":
        return Smoothing("ema", weight=float(amount))
    if kind in ("mean", "median"):
        window = int(amount.removeprefix("of "))
        return Smoothing("mean" if kind == "mean" else "median", window=window)
    if kind == "none" or points < FEW_POINTS:
        return None
    # It lags behind by less than a fiftieth of the width, whatever is seen.
    weight = max(
        (weight for weight in _WEIGHTS if 1 / (1 - weight) <= points / 60), default=_WEIGHTS[0]
    )
    return Smoothing("ema", weight=weight)


def build_panel(request: ChartRequest, name: str, span: Span, columns: int) -> ChartPanel:
    """Build the curves of a metric in a span of the x axis, and find the height they take."""
    state = request.state
    curves = [_build_curve(request, shown, name, span, columns) for shown in request.runs]
    height = chart_height(curves, leaves_out=state.leaves_out)
    smoothing = ""
    if next((curve.smooth is not None for curve in curves if len(curve.series)), False):
        # Without the weight that fits, which moves.
        smoothing = "smoothed (auto)" if state.smoothing == "auto" else state.smoothing
    return ChartPanel(
        name,
        span,
        state.heights.get(name) or height or (0.0, 1.0),
        curves,
        has_values=height is not None,
        smoothing=smoothing,
    )


def _build_curve(
    request: ChartRequest, shown: ChartRun, name: str, span: Span, columns: int
) -> Curve:
    series = request.series(shown, name)
    shift = request.shift(shown)
    begin = span[0] + shift
    end = span[1] + shift
    log_y = request.state.log_y
    view = downsample_view(series, begin, end, columns, log_y=log_y)
    first, last = np.searchsorted(series.x, (begin, end))
    smoothing = parse_smoothing(request.state.smoothing, float(series.points[first:last].sum()))
    smooth = None
    if smoothing is not None and len(series):
        smooth = _as_drawn(smoothed(series, begin, end, columns, smoothing), log_y)
    repeated: tuple[Series, ...] = ()
    if name in shown.run.names and len(shown.run.attempts) > 1:
        repeated = shown.run.overlap(name, request.axis)[-_MAX_REPEATED:]
    again = [downsample_view(series, begin, end, columns, log_y=log_y).last for series in repeated]
    return Curve(
        shown,
        series,
        line=_as_drawn(view.last, log_y),
        low=_as_drawn(view.low, log_y),
        high=_as_drawn(view.high, log_y),
        broken=(view.odd | view.hidden) & ~np.isfinite(view.last),
        smooth=smooth,
        again=tuple(_as_drawn(last, log_y) for last in again),
        hidden_columns=int(view.hidden.sum()),
        places=int(view.points.sum()),
    )


def chart_height(curves: Sequence[Curve], *, leaves_out: bool) -> Span | None:
    """The y range that shows these curves, or all but the outermost fiftieth of their columns; None
    of nothing.
    """
    parts = [array for curve in curves for array in (curve.low, curve.high)]
    if not leaves_out:
        parts += [curve.smooth for curve in curves if curve.smooth is not None]
        parts += [again for curve in curves for again in curve.again]
    values = np.concatenate([np.empty(0), *parts])
    values = np.clip(values[np.isfinite(values)], -1e300, 1e300)
    if not values.size:
        return None
    if leaves_out:
        low, high = np.quantile(values, (0.02, 0.98)).tolist()
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
    behind = int(np.searchsorted(series.x, x))
    near = [place for place in (behind - 1, behind) if 0 <= place < len(series)]
    nearest = min(near, key=lambda k: abs(float(series.x[k]) - x))
    return float(series.x[nearest]), float(series.values[nearest])


def _as_drawn(values: Floats, log_y: bool) -> Floats:
    if not log_y:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn: Floats = np.where(values > 0, np.log10(values), np.nan)
    return drawn
