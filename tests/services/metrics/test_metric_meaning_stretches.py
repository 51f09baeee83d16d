"""nan and inf, plateaus, and logs gone silent."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.findings import (
    MetricFinding,
    find_lost_numbers,
    find_not_finite,
    find_plateau,
    find_stall,
    find_vanished,
    find_zero,
    sample_gaps,
)
from tests.services.metrics.metric_batches import clean_loss
from tests.support.records import for_each


def test_the_first_nan_is_told_with_how_often_and_where_it_was_over() -> None:
    steps = np.arange(0.0, 100.0, 10)
    values = np.ones(10)
    values[[3, 5]] = np.nan
    (finding,) = find_not_finite(steps, values)
    assert (finding.kind, finding.step_from, finding.step_to) == ("nan", 30, 60)
    assert finding.text == "nan first at 30 (2 times, last at 50); finite again since 60"


def test_an_inf_that_became_nan_has_not_ended() -> None:
    found = find_not_finite(np.arange(4.0), np.array([1, np.inf, np.nan, np.nan]))
    assert [(finding.kind, finding.step_from, finding.step_to) for finding in found] == [
        ("nan", 2, None),
        ("inf", 1, None),
    ]
    assert found[1].text == "inf first at 1 (once); no finite value since"


def test_numbers_alone_are_nothing_to_tell() -> None:
    assert find_not_finite(np.arange(3.0), np.ones(3)) == ()


def test_a_metric_that_became_nan_stands_out_and_one_that_never_was_a_number_does_not() -> None:
    x = np.arange(6.0)
    (finding,) = find_lost_numbers("reward", x, np.array([1, 1, 1, np.nan, np.nan, np.nan]))
    assert finding.text == "nan first at 3 (3 times, last at 5); no finite value since"
    assert find_lost_numbers("val_acc", x, np.full(6, np.nan)) == ()
    assert find_lost_numbers("reward", x, np.array([1, np.nan, 1, 1, 1, 1])) == ()
    # A gradient that is nan from the first step on is broken, too.
    assert len(find_lost_numbers("grad_norm", x, np.full(6, np.nan))) == 1


def test_a_loss_that_falls_to_exactly_0_stands_out() -> None:
    x = np.arange(10.0)
    finding = find_zero(x, np.array([2.1, 2.05, 2.08, 2.01, 1.99, 2, 0, 0, 0, 0]))
    assert finding is not None
    assert finding.text == "exactly 0 since 6 (4 points)"
    assert find_zero(x, np.zeros(10)) is not None
    assert find_zero(x, np.array([2.1, 2.05, 2.08, 2.01, 1.99, 2, 0, 0, 1.9, 0])) is None


def test_a_loss_that_comes_down_to_0_in_small_steps_was_rounded() -> None:
    values = np.round(np.exp(-np.arange(0.0, 20, 0.1)), 4)
    assert values[-1] == 0
    assert find_zero(np.arange(200.0), values) is None


def test_a_loss_that_is_no_longer_logged_while_steps_go_on_stands_out() -> None:
    steps = np.arange(1.0, 101)
    finding = find_vanished(steps[:90], [steps, steps[::10]])
    assert finding is not None
    assert (finding.kind, finding.step_from, finding.step_to) == ("nan", 91, None)
    assert finding.text.startswith("not logged since 91, in 10 records")
    assert find_vanished(steps[:97], [steps]) is None


def test_a_loss_that_is_logged_rarely_or_paused_for_an_evaluation_has_not_vanished() -> None:
    steps = np.arange(1.0, 101)
    # Each tenth step; then an evaluation whose metrics never stood beside the loss.
    assert find_vanished(steps[9:90:10], [steps]) is None
    assert find_vanished(steps[:50], [np.arange(51.0, 90)]) is None
    # A restart repeats steps: only those beyond the last loss count.
    assert find_vanished(steps[:90], [np.concatenate([steps[:90], steps[40:93]])]) is None


@for_each("seed", range(10))
@for_each("count", [2000, 20_000, 100_000])
def test_a_loss_that_still_falls_is_no_plateau(seed: int, count: int) -> None:
    assert find_plateau(*clean_loss(seed, count)) is None


@for_each("seed", range(5))
def test_a_loss_that_no_longer_falls_is_a_plateau(seed: int) -> None:
    steps, loss = clean_loss(seed, 10_000)
    loss[5000:] = 2.5 + 0.02 * np.random.default_rng(seed).standard_normal(5000)
    finding = find_plateau(steps, loss)
    assert finding is not None
    assert finding.step_from == 7000
    assert finding.value == pytest.approx(2.5, abs=0.003)
    assert finding.text.endswith("since 7 000 (3000 points)")


def test_noise_that_would_hide_the_progress_is_no_plateau() -> None:
    loss = 2.5 + 0.5 * np.random.default_rng(1).standard_normal(2000)
    assert find_plateau(np.arange(2000.0), loss) is None


def stall(times: Floats, silence: float, step: float = 1) -> MetricFinding | None:
    gaps = sample_gaps(times)
    return None if gaps is None else find_stall(silence, *gaps, step)


def test_a_log_silent_for_ten_usual_gaps_has_stalled() -> None:
    times = np.arange(0.0, 6000, 30)
    assert stall(times, 290) is None
    finding = stall(times, 1200, 200)
    assert finding is not None
    assert finding.value == 1200
    assert finding.text == "no sample for 20 min after 200; usually every 30 s"


def test_an_evaluation_as_long_as_the_last_one_is_no_stall() -> None:
    times = np.concatenate((np.arange(0.0, 1000, 5), np.arange(1400.0, 2400, 5)))
    assert stall(times, 700) is None
    assert stall(times, 900) is not None


def test_without_times_nothing_is_said() -> None:
    assert stall(np.full(10, np.nan), 1e9) is None
    assert stall(np.array([1.0, 2.0]), 1e9) is None
