"""A log's samples: kept within bounds, the same however they come, joined over restarts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.services.metrics.attempts import MAX_ATTEMPTS
from hpcdash.services.metrics.batch import MAX_LOSSES, MAX_METRICS, MetricBatch, Points
from hpcdash.services.metrics.cells import CELL_ROWS, LOW, TOTAL
from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.reader import MetricReader
from hpcdash.services.metrics.series import MINUS_INF, NAN, PLUS_INF, MetricLog, Series
from tests.services.metrics.metric_batches import batch_of, stored_counts
from tests.support.records import for_each

ODD = [float("nan"), float("inf"), float("-inf")]


def write_log(*batches: MetricBatch, **limits: int) -> MetricLog:
    log = MetricLog(**limits)
    for batch in batches:
        log.append(batch)
    return log


def part_of(batch: MetricBatch, begin: int, end: int) -> MetricBatch:
    of = slice(begin, end)
    metrics = {}
    for name, points in batch.metrics.items():
        inside = (points.samples >= begin) & (points.samples < end)
        metrics[name] = Points(points.samples[inside] - begin, points.values[inside])
    return replace(
        batch,
        offsets=batch.offsets[of],
        axes=batch.axes[:, of],
        metrics=metrics,
    )


def same(a: Series, b: Series) -> bool:
    exact = all(
        np.array_equal(getattr(a, field), getattr(b, field), equal_nan=True)
        for field in ("x_first", "x", "low", "high", "newest", "points", "odd")
    )
    return exact and np.allclose(a.mean, b.mean, rtol=1e-9, equal_nan=True)


steps_with_restarts = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 3)), min_size=1, max_size=5
).map(
    lambda runs: [float(first + k // twice) for first, count, twice in runs for k in range(count)]
)
any_value = st.one_of(st.floats(-1e6, 1e6), st.sampled_from(ODD))


@st.composite
def whole_logs(draw: st.DrawFn) -> MetricBatch:
    steps = draw(steps_with_restarts)
    values = draw(st.lists(any_value, min_size=len(steps), max_size=len(steps)))
    whole = batch_of(steps, values, times=np.arange(len(steps)) * 2.0)
    is_back = np.concatenate(([False], np.diff(whole.steps) < 0))
    epochs = 5.0 + np.cumsum(is_back * draw(st.sampled_from([-1.0, 0.0, 1.0])))
    # Samples without a step or an epoch, also where it goes back, and all of them.
    spans = st.lists(
        st.tuples(st.sampled_from([0, *np.flatnonzero(is_back).tolist()]), st.integers(-9, 9)),
        max_size=6,
    )
    for column in (whole.steps, epochs):
        for begin, length in draw(spans):
            column[max(0, min(begin, begin + length)) : max(begin, begin + length)] = np.nan
    if draw(st.sampled_from([False, False, True])):
        whole.steps[draw(st.integers(0, 20)) :] = np.nan
    whole.axes[1] = epochs
    whole = replace(whole, last_step=draw(st.sampled_from([None, 40, 1000])))
    rare = np.array(sorted(draw(st.sets(st.integers(0, len(steps) - 1)))), dtype=np.int64)
    return replace(whole, metrics={**whole.metrics, "accuracy": Points(rare, rare / 7)})


@given(
    whole=whole_logs(),
    cuts=st.lists(st.integers(0, 100), max_size=12),
    first=st.integers(0, 8),
    exact=st.sampled_from([0, 10, 40, 10_000]),
    cells=st.sampled_from([4, 16, 10_000]),
)
def test_however_a_log_is_cut_and_read_its_series_are_the_same(
    whole: MetricBatch, cuts: list[int], first: int, exact: int, cells: int
) -> None:
    if np.isnan(whole.steps).any():
        # Where an attempt begins shows only with the samples before it: until then there may be
        # more and wider cells.
        exact = 10_000
    limits = {"exact_points": exact, "cells": cells, "border_bytes": 512}
    at_once = write_log(whole, **limits)
    count = whole.offsets.size
    edges = [0, *sorted(min(cut, count) for cut in cuts), count]
    parts = [part_of(whole, a, b) for a, b in itertools.pairwise(edges)]
    first = min(first, len(parts) - 1)
    in_parts = MetricLog(**limits)
    forward, backward = parts[first:], parts[:first][::-1]
    while forward or backward:
        if forward and (len(forward) >= len(backward) or not backward):
            in_parts.append(forward.pop(0))
        else:
            in_parts.prepend(backward.pop(0))
    assert repr(in_parts.attempts) == repr(at_once.attempts)
    for name in ("loss", "accuracy"):
        for axis in ("step", "epoch", "time", "point"):
            assert same(joined([in_parts]).series(name, axis), joined([at_once]).series(name, axis))
        one, other = joined([in_parts]).overlap(name), joined([at_once]).overlap(name)
        assert len(one) == len(other)
        assert all(same(a, b) for a, b in zip(one, other, strict=True))


@given(
    whole=whole_logs(), exact=st.sampled_from([0, 10, 10_000]), cells=st.sampled_from([4, 10_000])
)
def test_joined_steps_ascend_and_nothing_is_lost(
    whole: MetricBatch, exact: int, cells: int
) -> None:
    whole.axes[0, np.isnan(whole.steps)] = 7.0
    run = joined([write_log(whole, exact_points=exact, cells=cells, border_bytes=512)])
    series = run.series("loss")
    assert (np.diff(series.x) > 0).all()
    shown = [series, *run.overlap("loss")]
    values = whole.metrics["loss"].values
    finite = values[np.isfinite(values)]
    if finite.size:
        assert np.nanmin(np.concatenate([part.low for part in shown])) == finite.min()
        assert np.nanmax(np.concatenate([part.high for part in shown])) == finite.max()
    odd = int(np.bitwise_or.reduce(np.concatenate([part.odd for part in shown])))
    assert bool(odd & NAN) == bool(np.isnan(values).any())
    assert bool(odd & PLUS_INF) == bool((values == np.inf).any())
    assert bool(odd & MINUS_INF) == bool((values == -np.inf).any())


def test_a_healthy_log_is_kept_point_by_point() -> None:
    log = write_log(
        batch_of([10, 20], [3.5, 3.25], times=[100.0, 104.0], last_step=1000),
        batch_of([30], [3.0], begin=2),
    )
    series = joined([log]).series("loss")
    assert series.exact
    assert series.x.tolist() == [10, 20, 30]
    assert series.values.tolist() == [3.5, 3.25, 3.0]
    assert log.last_step == 1000
    assert log.axes() == ("step", "time", "point")
    assert joined([log]).series("loss", "time").x.tolist() == [100.0, 104.0]


def test_samples_that_were_read_before_are_left_out() -> None:
    log = write_log(batch_of([1, 2, 3], begin=1), batch_of([2, 3, 4], begin=2))
    log.prepend(batch_of([0, 1], begin=0))
    assert joined([log]).series("loss").values.tolist() == [0, 1, 2, 3, 4]


def test_a_series_that_was_read_does_not_change_as_its_log_grows() -> None:
    log = write_log(batch_of([1, 2, 3], begin=2), exact_points=4, border_bytes=100)
    before = joined([log]).series("loss")
    for line in range(5, 60):
        log.append(batch_of([line], [99.0], begin=line))
    log.prepend(batch_of([-1, 0], [77.0, 77.0], begin=0))
    assert before.values.tolist() == [1, 2, 3]


def test_a_snapshot_stays_as_it_is_while_its_log_grows_at_both_ends() -> None:
    limits = {"exact_points": 50, "cells": 1000, "border_bytes": 100}
    log = write_log(batch_of(np.arange(100.0, 300), begin=100), **limits)
    taken = log.snapshot()
    before = joined([log]).series("loss")
    for begin in range(300, 3000, 30):
        log.append(batch_of(np.arange(begin, begin + 30.0), begin=begin))
    log.prepend(batch_of(np.arange(50.0, 100), begin=50))
    assert same(joined([taken]).series("loss"), before)
    assert len(taken.attempts) == 1


def test_old_points_become_cells_and_the_newest_stay_exact() -> None:
    values = np.arange(10_000.0)
    values[1234] = 1e9
    values[2345] = np.nan
    log = write_log(
        batch_of(np.arange(10_000.0), values), exact_points=1000, cells=100, border_bytes=1000
    )
    exact_points, cells = stored_counts(log)
    assert 950 < exact_points <= 1000
    assert cells <= 100
    series = joined([log]).series("loss")
    assert series.values[-900:].tolist() == values[-900:].tolist()
    assert np.nanmax(series.high) == 1e9
    at_nan = np.flatnonzero(series.odd & NAN)
    assert at_nan.size == 1
    assert series.x_first[at_nan[0]] <= 2345 <= series.x[at_nan[0]]
    assert series.points.sum() == 9999


@for_each("lines", [7, 64, 999])
def test_cells_wider_than_what_comes_are_those_of_the_whole(lines: int) -> None:
    limits = {"exact_points": 0, "cells": 16, "border_bytes": 100}
    values = np.random.default_rng(1).standard_normal(2000)
    whole = batch_of(np.arange(2000.0), values)
    parts = [part_of(whole, begin, begin + lines) for begin in range(0, 2000, lines)]
    backward = MetricLog(**limits)
    for part in reversed(parts):
        backward.prepend(part)
    at_once = joined([write_log(whole, **limits)]).series("loss")
    assert 8 <= len(at_once) <= 16
    assert same(joined([write_log(*parts, **limits)]).series("loss"), at_once)
    assert same(joined([backward]).series("loss"), at_once)


def test_metrics_that_come_later_take_their_share_of_the_cells() -> None:
    log = write_log(batch_of(np.arange(5050.0)), exact_points=1000, cells=2000, border_bytes=10_000)
    assert 1024 < stored_counts(log)[1] <= 2000
    points = Points(np.array([0]), np.array([1.0]))
    log.append(replace(batch_of([5050], begin=5050), metrics={f"m{k}": points for k in range(9)}))
    assert stored_counts(log)[1] <= 1024


@pytest.mark.slow
def test_ten_million_points_stay_within_their_memory() -> None:
    log = MetricLog()
    for begin in range(0, 10_000_000, 250_000):
        steps = np.arange(begin, begin + 250_000, dtype=float)
        log.append(batch_of(steps, begin=begin))
    assert stored_counts(log)[0] > 550_000
    assert log.nbytes < 120_000_000


def test_many_metrics_share_the_memory_of_one() -> None:
    log = MetricLog(exact_points=10_000, cells=4000, border_bytes=1000)
    points = Points(np.arange(5000), np.arange(5000.0))
    for begin in range(0, 100_000, 5000):
        whole = batch_of(np.arange(begin, begin + 5000), begin=begin)
        log.append(replace(whole, metrics={f"m{k}": points for k in range(40)}))
    exact_points, cells = stored_counts(log)
    assert exact_points <= 10_000
    assert cells <= 40 * 1024
    assert log.nbytes < 40 * 1024 * CELL_ROWS * 8 * 2


def test_steps_that_go_back_begin_an_attempt_and_the_newest_counts() -> None:
    log = write_log(batch_of([1, 2, 3, 4, 5, 2, 3, 4, 5, 6], [10, 9, 8, 7, 6, 90, 80, 70, 60, 50]))
    assert [attempt.first[0] for attempt in log.attempts] == [1, 2]
    run = joined([log])
    assert run.series("loss").x.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.series("loss").values.tolist() == [10, 90, 80, 70, 60, 50]
    (repeated,) = run.overlap("loss")
    assert repeated.x.tolist() == [2, 3, 4, 5]
    assert repeated.values.tolist() == [9, 8, 7, 6]


def test_ranks_that_overtake_each_other_are_no_restart() -> None:
    run = joined(
        [
            write_log(
                batch_of([10, 10, 20, 10, 20, 20, 30, 40, 20, 30], [1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
            )
        ]
    )
    assert run.lost_time().restarts == 0
    series = run.series("loss")
    assert series.x.tolist() == [10, 20, 30, 40]
    assert series.low.tolist() == [1, 3, 0, 8]
    assert series.high.tolist() == [4, 9, 7, 8]


def test_a_step_back_after_more_than_a_minute_is_a_restart() -> None:
    run = joined([write_log(batch_of([10, 20, 30, 20, 30], times=[0, 5, 10, 100, 105]))])
    lost = run.lost_time()
    assert (lost.restarts, lost.gap_seconds) == (1, 90)
    assert run.overlap("loss")[0].x.tolist() == [20, 30]


def test_a_cell_on_both_sides_of_a_restart_is_shown_on_both() -> None:
    steps = np.concatenate((np.arange(1000.0), np.arange(500.0, 800)))
    run = joined([write_log(batch_of(steps), exact_points=0, cells=40, border_bytes=100)])
    series, (repeated,) = run.series("loss"), run.overlap("loss")
    assert repeated.x_first[0] < 500 < repeated.x[0]
    assert repeated.x_first[0] in series.x_first
    assert (np.diff(series.x) > 0).all()
    assert series.x[-1] == 799


def test_what_an_abandoned_attempt_reached_further_on_does_not_count() -> None:
    run = joined([write_log(batch_of([1, 2, 3, 4, 5, 2, 3]))])
    assert run.series("loss").x.tolist() == [1, 2, 3]
    assert run.overlap("loss")[0].x.tolist() == [2, 3, 4, 5]


def test_along_time_everything_stays() -> None:
    run = joined([write_log(batch_of([1, 2, 3, 2, 3], times=[0, 1, 2, 10, 11]))])
    assert run.series("loss", "time").x.tolist() == [0, 1, 2, 10, 11]
    assert run.overlap("loss", "time") == ()


def test_a_rare_metric_is_cut_where_the_new_attempt_begins_not_where_it_says_the_metric_again() -> (
    None
):
    whole = batch_of([100, 200, 300, 150, 160])
    whole = replace(
        whole,
        metrics={**whole.metrics, "validation": Points(np.array([0, 2]), np.array([5.0, 4.0]))},
    )
    run = joined([write_log(whole)])
    assert run.series("validation").x.tolist() == [100]
    assert run.overlap("validation")[0].x.tolist() == [300]


def test_two_lines_of_one_step_are_one_place_that_shows_both() -> None:
    series = joined([write_log(batch_of([1, 2, 2, 2, 3], [5, 1, np.nan, 9, 4]))]).series("loss")
    assert series.x.tolist() == [1, 2, 3]
    assert (series.low[1], series.high[1], series.newest[1], series.points[1]) == (1, 9, 9, 2)
    assert series.odd[1] == NAN


def test_tasks_of_an_array_join_by_their_times_whatever_their_order() -> None:
    older = write_log(batch_of([1, 2, 3], [3, 2, 1], times=[0, 10, 20]))
    newer = write_log(batch_of([3, 4], [7, 6], times=[620, 630]))
    for logs in ([older, newer], [newer, older]):
        run = joined(logs)
        assert run.series("loss").values.tolist() == [3, 2, 7, 6]
        assert run.overlap("loss")[0].values.tolist() == [1]
        lost = run.lost_time()
        assert (lost.restarts, lost.repeated_steps, lost.repeated_seconds, lost.gap_seconds) == (
            1,
            1,
            10,
            600,
        )


def test_tasks_without_times_join_as_they_are_given() -> None:
    run = joined([write_log(batch_of([1, 2, 3])), MetricLog(), write_log(batch_of([3, 4]))])
    assert run.series("loss").x.tolist() == [1, 2, 3, 4]
    lost = run.lost_time()
    assert lost.repeated_steps == 1
    assert np.isnan(lost.repeated_seconds)
    assert np.isnan(lost.gap_seconds)


def test_a_task_that_goes_on_where_the_last_one_ended_lost_no_steps() -> None:
    run = joined(
        [write_log(batch_of([1, 2], times=[0, 1])), write_log(batch_of([3, 4], times=[61, 62]))]
    )
    assert run.overlap("loss") == ()
    lost = run.lost_time()
    assert (lost.repeated_steps, lost.repeated_seconds, lost.gap_seconds) == (0, 0, 60)


def test_epochs_tell_attempts_apart_where_there_are_no_steps() -> None:
    nothing = np.full(4, np.nan)
    whole = batch_of(nothing, [4, 3, 2, 1])
    whole.axes[1] = [0.1, 0.2, 0.1, 0.2]
    run = joined([write_log(whole)])
    assert run.axes() == ("epoch", "point")
    assert run.series("loss", "epoch").values.tolist() == [2, 1]
    assert len(run.series("loss", "step")) == 0


def test_a_log_whose_steps_jump_about_is_bounded_and_shows_everything() -> None:
    count = 40_000
    steps = np.where(np.arange(count) % 2 == 0, 2.0, 1.0)
    values = np.arange(float(count))
    limits = {"exact_points": 1000, "cells": 500, "border_bytes": 1000}
    at_once = write_log(batch_of(steps, values), **limits)
    in_parts = MetricLog(**limits)
    for begin in range(0, count, 500):
        in_parts.append(
            batch_of(steps[begin : begin + 500], values[begin : begin + 500], begin=begin)
        )
    for log in (at_once, in_parts):
        assert len(log.attempts) == 1 < MAX_ATTEMPTS
        assert stored_counts(log)[1] <= 500
        series = joined([log]).series("loss")
        assert (series.low.min(), series.high.max()) == (0, count - 1)
        assert (np.diff(series.x) > 0).all()
    assert same(joined([at_once]).series("loss"), joined([in_parts]).series("loss"))


def test_a_cell_of_huge_values_keeps_its_ends_and_a_mean_between_them() -> None:
    huge = np.full(1000, 1.7e308)
    log = write_log(batch_of(np.arange(1000.0), huge), exact_points=10, cells=8, border_bytes=100)
    series = joined([log]).series("loss")
    assert (series.low == 1.7e308).all()
    assert (series.values == 1.7e308).all()
    assert CELL_ROWS > TOTAL > LOW


def test_a_metric_has_the_axes_that_its_own_samples_have() -> None:
    by_epoch = batch_of([np.nan], begin=2, name="accuracy")
    by_epoch.axes[1] = 1.0
    run = joined([write_log(batch_of([1, 2]), by_epoch)])
    assert run.axes() == ("step", "epoch", "point")
    assert run.axes("loss") == ("step", "point")
    assert run.axes("accuracy") == ("epoch", "point")


def test_what_was_written_is_told_in_its_order_with_what_was_repeated() -> None:
    run = joined([write_log(batch_of([1, 2, 1], [3, np.inf, 5], times=[0, 1, 2]))])
    axes, values = run.written("loss")
    assert axes[0].tolist() == [1, 2, 1]
    assert axes[3].tolist() == [0, 1, 2]
    assert values.tolist() == [3, np.inf, 5]


def test_a_metric_that_no_log_has_is_named() -> None:
    with pytest.raises(KeyError, match="gone"):
        write_log(batch_of([1])).series("gone", 0, None)
    assert len(joined([write_log(batch_of([1]))]).series("gone")) == 0


EPOCH_LINES = [
    "Epoch {e} step {s}/600 loss {v}",
    "epoch={e} step={s} loss={v}",
    "[epoch {e}, iter {s}] loss: {v}",
    "Epoch [{e}/5], Step [{s}/600], loss: {v}",
    '{{"epoch": {e}, "step": {s}, "loss": {v}}}',
    '{{"epoch": {e}, "step": {s}, "loss": {v}}}\n{{"epoch": {e}, "val_loss": {v}}}',
]


@for_each("line", EPOCH_LINES)
def test_steps_counted_within_their_epoch_count_on(line: str) -> None:
    said = [(e, s) for e in range(1, 6) for s in range(100, 601, 100)]
    content = "".join(line.format(e=e, s=s, v=9 - e - s / 1000) + "\n" for e, s in said).encode()
    log = write_log(MetricReader().feed(content, is_end=True))
    run = joined([log])
    assert len(run.attempts) == 1
    assert run.series("loss").x.tolist() == [float(s + 600 * (e - 1)) for e, s in said]
    assert run.series("loss").values.tolist() == pytest.approx([9 - e - s / 1000 for e, s in said])
    # Of 5 epochs of 600 steps all are known, and no other line names the last.
    assert log.last_step == (3000 if "/5]" in line else None)
    folded = write_log(
        MetricReader().feed(content, is_end=True), exact_points=0, cells=4, border_bytes=64
    )
    assert (np.diff(joined([folded]).series("loss").x) > 0).all()


def test_a_restart_within_an_epoch_is_one_where_steps_are_counted_within_it() -> None:
    steps, epochs = [1, 2, 3, 1, 2, 3, 1, 2, 1, 2, 3, 1], [1, 1, 1, 2, 2, 2, 3, 3, 2, 2, 2, 3]
    whole = batch_of(steps, range(12), times=np.arange(12) * 100.0)
    whole.axes[1] = epochs
    run = joined([write_log(whole)])
    assert [attempt.first[0] for attempt in run.attempts] == [1, 4]
    assert run.series("loss").x.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.series("loss").values.tolist() == [0, 1, 2, 8, 9, 10, 11]


def test_a_log_has_no_more_metrics_however_it_is_read() -> None:
    log = MetricLog()
    for begin in range(300, 0, -1):
        (log.prepend if begin % 2 else log.append)(batch_of([1], begin=begin, name=f"x{begin}"))
        log.prepend(batch_of([1], begin=begin - 301, name=f"loss{begin}"))
    assert len(log.names) == MAX_LOSSES
    assert sum("loss" not in name for name in log.names) <= MAX_METRICS
