"""nan and inf, plateaus, and logs gone silent."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdash.services.metrics.findings import find_not_finite, find_plateau, find_stall
from tests.services.metrics.metric_batches import clean_loss


def test_the_first_nan_is_told_with_how_often_and_where_it_was_over() -> None:
    steps = np.arange(0.0, 100.0, 10)
    values = np.ones(10)
    values[[3, 5]] = np.nan
    (finding,) = find_not_finite(steps, values)
    assert (finding.kind, finding.step_from, finding.step_to) == ("nan", 30, 60)
    assert finding.words == "nan first at 30 (2 times, last at 50); a number again since 60"


def test_an_inf_that_became_nan_has_not_ended() -> None:
    found = find_not_finite(np.arange(4.0), np.array([1, np.inf, np.nan, np.nan]))
    assert [(finding.kind, finding.step_from, finding.step_to) for finding in found] == [
        ("nan", 2, None),
        ("inf", 1, None),
    ]
    assert found[1].words == "inf first at 1 (once); no number since"


def test_numbers_alone_are_nothing_to_tell() -> None:
    assert find_not_finite(np.arange(3.0), np.ones(3)) == ()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [2000, 20_000, 100_000])
def test_a_loss_that_still_falls_is_no_plateau(seed: int, count: int) -> None:
    assert find_plateau(*clean_loss(seed, count)) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_no_longer_falls_is_a_plateau(seed: int) -> None:
    steps, loss = clean_loss(seed, 10_000)
    loss[5000:] = 2.5 + 0.02 * np.random.default_rng(seed).standard_normal(5000)
    finding = find_plateau(steps, loss)
    assert finding is not None
    assert finding.step_from == 7000
    assert finding.value == pytest.approx(2.5, abs=0.003)
    assert finding.words.endswith("since 7 000 (3000 points)")


def test_noise_that_would_hide_the_progress_is_no_plateau() -> None:
    loss = 2.5 + 0.5 * np.random.default_rng(1).standard_normal(2000)
    assert find_plateau(np.arange(2000.0), loss) is None


def test_a_log_silent_for_ten_usual_gaps_has_stalled() -> None:
    times = np.arange(0.0, 6000, 30)
    last = times[-1]
    assert find_stall(times, last + 290, 200) is None
    finding = find_stall(times, last + 1200, 200)
    assert finding is not None
    assert finding.value == 1200
    assert finding.words == "no sample for 20 min after 200; usual is every 30 s"


def test_an_evaluation_as_long_as_the_last_one_is_no_stall() -> None:
    times = np.concatenate((np.arange(0.0, 1000, 5), np.arange(1400.0, 2400, 5)))
    assert find_stall(times, times[-1] + 700, 1) is None
    assert find_stall(times, times[-1] + 900, 1) is not None


def test_without_times_nothing_is_said() -> None:
    assert find_stall(np.full(10, np.nan), 1e9, 1) is None
    assert find_stall(np.array([1.0, 2.0]), 1e9, 1) is None
