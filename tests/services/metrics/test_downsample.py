"""A screen of a series: every spike stays visible, and its curve is the one that all points would
give.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.downsample import Smoothing, downsample_view, smoothed
from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.series import MetricLog, Series
from tests.services.metrics.metric_batches import batch_of

any_value = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([float("nan"), float("inf"), float("-inf")])
)


def series_of(values: list[float] | Floats, steps: Floats | None = None, **limits: int) -> Series:
    log = MetricLog(**limits)
    log.append(batch_of(np.arange(float(len(values))) if steps is None else steps, values))
    return joined([log]).series("loss")


@given(
    values=st.lists(any_value, min_size=1, max_size=200),
    columns=st.integers(1, 90),
    exact=st.sampled_from([0, 20, 1000]),
    log_y=st.booleans(),
)
def test_lowest_highest_nan_and_inf_are_on_the_screen(
    values: list[float], columns: int, exact: int, log_y: bool
) -> None:
    series = series_of(values, exact_points=exact, cells=8, border_bytes=100)
    view = downsample_view(series, *series.span, columns, log_y=log_y)
    array = np.array(values)
    finite = array[np.isfinite(array)]
    shown = finite[finite > 0] if log_y else finite
    assert int(view.points.sum()) == len(series)
    if shown.size:
        assert np.nanmax(view.high) == shown.max()
        if series.exact or not log_y:
            assert np.nanmin(view.low) == shown.min()
    assert view.odd.any() == (not np.isfinite(array).all())
    assert view.hidden.any() == (log_y and bool((finite <= 0).any()))


@given(
    values=st.lists(any_value, min_size=1, max_size=100),
    ends=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_a_stretch_shows_its_own_points_and_no_others(
    values: list[float], ends: tuple[int, int]
) -> None:
    series = series_of(values)
    begin, end = min(ends), max(ends)
    view = downsample_view(series, begin, end, 7)
    inside = np.array(values)[begin : end + 1]
    finite = inside[np.isfinite(inside)]
    assert int(view.points.sum()) == inside.size
    if finite.size:
        assert (np.nanmin(view.low), np.nanmax(view.high)) == (finite.min(), finite.max())
    else:
        assert np.isnan(view.high).all()


def test_a_column_says_lowest_highest_and_last() -> None:
    view = downsample_view(series_of([5, 1, 9, 4, 7, 7]), 0, 6, 2)
    assert view.low.tolist() == [1, 4]
    assert view.high.tolist() == [9, 7]
    assert view.last.tolist() == [9, 7]


def test_a_column_that_ends_with_nan_has_the_last_number_before_it() -> None:
    view = downsample_view(series_of([5, 1, np.nan, np.nan]), 0, 3, 1)
    assert view.last.tolist() == [1]
    assert view.odd.tolist() == [True]


def test_a_column_without_points_is_empty() -> None:
    view = downsample_view(series_of([1, 2], np.array([0.0, 10.0])), 0, 10, 5)
    assert view.points.tolist() == [1, 0, 0, 0, 1]
    assert np.isnan(view.high[1:4]).all()


def test_a_cell_is_seen_by_who_zooms_into_it() -> None:
    series = series_of(np.arange(1000.0), exact_points=0, cells=4, border_bytes=100)
    middle = (series.x_first[1] + series.x[1]) / 2
    view = downsample_view(series, middle, middle + 1, 10)
    assert view.points.sum() == 1
    assert np.nanmax(view.high) == series.high[1]


def test_a_log_scale_shows_what_is_above_zero_and_marks_the_rest() -> None:
    view = downsample_view(series_of([3.0, -1.0, 0.5, 0.0, -2.0, -3.0]), 0, 6, 2, log_y=True)
    assert view.low[0] == 0.5
    assert view.last[0] == 0.5
    assert np.isnan(view.high[1])
    assert view.hidden.tolist() == [True, True]


def average_one_by_one(values: Floats, weight: float) -> Floats:
    average, known, curve = 0.0, 0.0, []
    for value in values:
        if np.isfinite(value):
            average = weight * average + (1 - weight) * value
            known = weight * known + (1 - weight)
        curve.append(average / known if known else np.nan)
    return np.array(curve)


@given(
    values=st.lists(any_value, min_size=1, max_size=200),
    columns=st.integers(1, 60),
    weight=st.sampled_from([0.0, 0.3, 0.9, 0.999]),
    begin=st.integers(0, 150),
)
def test_the_average_by_weight_is_that_of_all_points_wherever_one_zooms(
    values: list[float], columns: int, weight: float, begin: int
) -> None:
    series = series_of(values)
    begin = min(begin, len(values) - 1)
    curve = smoothed(series, begin, len(values) - 1, columns, Smoothing("ema", weight=weight))
    view = downsample_view(series, begin, len(values) - 1, columns)
    ends = np.cumsum(view.points)[view.points > 0] - 1 + begin
    expected = average_one_by_one(np.array(values), weight)[ends]
    if weight:
        assert curve[view.points > 0] == pytest.approx(expected, rel=1e-6, abs=1e-2, nan_ok=True)
    assert np.isnan(curve[view.points == 0]).all()


def test_nan_makes_an_average_forget_nothing() -> None:
    values = np.array([1.0, 0.0, 0.0, 0.0] + [np.nan] * 100)
    curve = smoothed(series_of(values), 103, 103, 1, Smoothing("ema", weight=0.3))
    assert curve[0] == pytest.approx(average_one_by_one(values, 0.3)[-1])


def test_an_average_is_the_same_on_a_million_points() -> None:
    values = np.random.default_rng(7).lognormal(0, 1, 1_000_000)
    values[500_000] = np.nan
    series = series_of(values, exact_points=2_000_000)
    curve = smoothed(series, *series.span, 200, Smoothing("ema", weight=0.99))
    assert curve[-1] == pytest.approx(average_one_by_one(values[-5000:], 0.99)[-1], rel=1e-9)
    assert curve[99] == pytest.approx(
        average_one_by_one(values[495_000:500_000], 0.99)[-1], rel=1e-9
    )


@pytest.mark.parametrize("kind", ["mean", "median"])
def test_a_window_takes_the_newest_points_and_leaves_nan_out(kind: str) -> None:
    values = [1.0, 2.0, np.nan, 4.0, 100.0, np.inf]
    curve = smoothed(series_of(values), 0, 5, 1, Smoothing(kind, window=5))  # type: ignore[arg-type]
    assert curve[0] == pytest.approx({"mean": 106 / 3, "median": 4.0}[kind])


def test_a_window_on_cells_is_close_to_that_on_points() -> None:
    values = np.linspace(5, 1, 4000)
    series = series_of(values, exact_points=0, cells=400, border_bytes=100)
    for kind in ("mean", "median"):
        curve = smoothed(series, *series.span, 4, Smoothing(kind, window=200))  # type: ignore[arg-type]
        assert curve[-1] == pytest.approx(values[-200:].mean(), abs=0.02)
    curve = smoothed(series, *series.span, 4, Smoothing("ema", weight=0.99))
    assert curve[-1] == pytest.approx(average_one_by_one(values, 0.99)[-1], abs=0.02)


def test_a_series_of_nothing_but_nan_has_no_curve() -> None:
    series = series_of([np.nan, np.nan])
    for kind in ("ema", "mean", "median"):
        assert np.isnan(smoothed(series, 0, 1, 2, Smoothing(kind))).all()  # type: ignore[arg-type]


def test_an_empty_series_has_an_empty_screen() -> None:
    empty = replace(
        series_of([1.0]),
        **{f: np.empty(0) for f in ("x_first", "x", "low", "high", "newest", "mean")},
    )
    empty = replace(empty, points=np.empty(0), odd=np.empty(0, dtype=np.int64))
    assert downsample_view(empty, *empty.span, 5).points.sum() == 0
    assert np.isnan(smoothed(empty, 0, 1, 5, Smoothing("ema"))).all()
