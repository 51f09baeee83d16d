"""The attempts of several logs in the order in which they were made, also where one log holds
several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
import pytest

from hpcdash.services.metrics.joined import joined
from hpcdash.services.metrics.series import MetricLog
from tests.services.metrics.metric_batches import batch_of


def steps_of(*spans: tuple[int, int]) -> np.ndarray:
    return np.concatenate([np.arange(first, last + 1.0) for first, last in spans])


def write_log(
    *spans: tuple[int, int],
    value: float = 0.0,
    clock: Callable[[float], float] | None = None,
    **limits: int,
) -> MetricLog:
    """A log of these steps; `value` is what it says at each of them."""
    log = MetricLog(**limits)
    steps = steps_of(*spans)
    times = None if clock is None else [clock(step) for step in steps]
    log.append(batch_of(steps, np.full(steps.size, value), times=times))
    return log


def assert_whole(logs: Sequence[MetricLog], restarts: int, again: float, last: int) -> None:
    for order in permutations(logs):
        run = joined(order)
        series = run.series("loss")
        assert series.x.tolist() == list(range(1, last + 1))
        lost = run.lost_time()
        assert (lost.restarts, lost.repeated_steps) == (restarts, again)
        assert run.written("loss")[0][0][-1] == last


def test_a_requeued_task_goes_on_in_its_log_after_what_another_did_meanwhile() -> None:
    requeued, other = write_log((1, 99), (276, 400), value=1), write_log((100, 275), value=2)
    assert_whole([requeued, other], restarts=2, again=0, last=400)
    values = joined([requeued, other]).series("loss").values
    assert (values[98], values[99], values[274], values[275]) == (1, 2, 2, 1)
    assert joined([requeued, other]).overlap("loss") == ()


def test_steps_that_are_done_again_count_as_the_newest_does_them() -> None:
    requeued, other = write_log((1, 99), (251, 400), value=1), write_log((91, 275), value=2)
    assert_whole([requeued, other], restarts=2, again=9 + 25, last=400)
    values = joined([requeued, other]).series("loss").values
    assert (values[89], values[90], values[249], values[250]) == (1, 2, 2, 1)


def test_several_tasks_fill_what_several_requeued_ones_left_out() -> None:
    logs = [
        write_log((1, 99), (301, 400)),
        write_log((100, 200), (401, 500)),
        write_log((201, 300)),
    ]
    assert_whole(logs, restarts=4, again=0, last=500)


def test_a_requeued_task_that_wrote_nothing_yet_is_before_what_went_on_from_it() -> None:
    assert_whole([write_log((1, 99)), write_log((90, 275))], restarts=1, again=10, last=275)


def test_what_goes_back_far_is_ordered_by_the_times_that_are_known() -> None:
    first = write_log((1, 99), clock=lambda step: step)
    steps = steps_of((61, 400))
    first.append(batch_of(steps, np.ones(steps.size), begin=1000, times=steps + 1000))
    between = write_log((100, 275), value=2, clock=lambda step: 400 + step)
    for logs in ([first, between], [between, first]):
        run = joined(logs)
        assert run.series("loss").x.tolist() == list(range(1, 401))
        assert run.series("loss").values[300] == run.series("loss").values[99] == 1
        assert run.overlap("loss")[-1].x.tolist() == list(range(100, 276))


def test_runs_that_begin_at_the_same_step_are_not_mixed() -> None:
    first, second = (
        write_log((1, 300), (151, 400), value=1),
        write_log((1, 350), (201, 390), value=2),
    )
    assert (joined([first, second]).series("loss").values == 2).all()
    assert (joined([second, first]).series("loss").values == 1).all()


def test_runs_at_once_are_not_mixed_where_one_says_steps_more_seldom() -> None:
    often = write_log((1, 300), value=1)
    seldom = MetricLog()
    steps = np.concatenate((np.arange(1.0, 10), np.arange(10.0, 500, 100)))
    seldom.append(batch_of(steps, np.full(steps.size, 2.0)))
    values = joined([often, seldom]).series("loss").values
    assert (values == 2).all()


@pytest.mark.parametrize("is_backward", [False, True])
def test_where_old_points_are_folded_the_gap_is_still_seen(*, is_backward: bool) -> None:
    whole = steps_of((1, 9_999), (27_600, 40_000))
    requeued = MetricLog(exact_points=100, cells=64, border_bytes=64)
    begins = range(0, whole.size, 500)
    for begin in reversed(begins) if is_backward else begins:
        part = whole[begin : begin + 500]
        (requeued.prepend if is_backward else requeued.append)(
            batch_of(part, np.ones(part.size), begin=begin)
        )
    other = write_log((10_000, 27_599), value=2)
    for logs in ([requeued, other], [other, requeued]):
        run = joined(logs)
        series = run.series("loss")
        assert run.lost_time().restarts == 2
        assert run.lost_time().repeated_steps == 0
        assert series.points.sum() == 40_000
        assert {float(v) for v in series.mean[(series.x >= 10_000) & (series.x < 27_600)]} == {2.0}
        assert series.x[-1] == 40_000
