"""Pace, end and cost of restarts: figures from times, from what logs say, and their words."""

from __future__ import annotations

from math import inf, isnan, nan

import numpy as np
import pytest
from msgspec.structs import replace

from hpcdash.services.metrics.batch import Points
from hpcdash.services.metrics.findings import format_number, format_step
from hpcdash.services.metrics.joined import JoinedRun, LostTime, joined
from hpcdash.services.metrics.pace import (
    Measure,
    PaceGrowth,
    TrainingPace,
    average_pace,
    format_end,
    format_lost_time,
    metric_pace,
    metric_quantity,
    run_paces,
    seconds_per_step,
    times_pace,
    tokens_per_second,
)
from hpcdash.services.metrics.series import MetricLog
from tests.services.metrics.metric_batches import batch_of
from tests.support.records import for_each

HOUR = 3600.0
DAY = 24 * HOUR


@for_each(
    ("name", "measure", "factor", "per_device"),
    [
        ("elapsed time per iteration (ms)", "seconds_per_step", 1e-3, False),
        ("ms/step", "seconds_per_step", 1e-3, False),
        ("step_time", "seconds_per_step", 1.0, False),
        ("s/it", "seconds_per_step", 1.0, False),
        ("it/s", "steps_per_second", 1.0, False),
        ("train_steps_per_second", "steps_per_second", 1.0, False),
        ("throughput/batches_per_sec", "steps_per_second", 1.0, False),
        ("tps", "tokens_per_second", 1.0, False),
        ("tokens/s", "tokens_per_second", 1.0, False),
        ("tok/s", "tokens_per_second", 1.0, False),
        ("wps", "tokens_per_second", 1.0, False),
        ("tokens per gpu per second (tgs)", "tokens_per_second", 1.0, True),
        ("throughput/device/tokens_per_sec", "tokens_per_second", 1.0, True),
        ("samples per second", "samples_per_second", 1.0, False),
        ("samples/sec", "samples_per_second", 1.0, False),
        ("CurrSamplesPerSec", "samples_per_second", 1.0, False),
        ("TFLOPs", "teraflops", 1.0, False),
        ("throughput per GPU (TFLOP/s/GPU)", "teraflops", 1.0, True),
    ],
)
def test_the_names_of_real_logs_say_what_they_measure(
    name: str, measure: str, factor: float, per_device: bool
) -> None:
    quantity = metric_quantity(name)
    assert quantity is not None
    assert (quantity.measure, quantity.factor, quantity.per_device) == (measure, factor, per_device)


@for_each(
    "name",
    [
        "loss",
        "lr",
        "eval_samples_per_second",
        "num_tokens",
        "epoch_time",
        "time",
        "time/batch",
        "time/sample",
    ],
)
def test_other_names_are_no_pace(name: str) -> None:
    assert metric_quantity(name) is None


def test_a_steady_run_has_its_seconds_per_step() -> None:
    steps = np.arange(0.0, 10_000, 10)
    pace = times_pace(steps, steps * 0.5)
    assert pace is not None
    assert pace.newest == pytest.approx(0.5)
    assert pace.drift_percent == pytest.approx(0)
    assert pace.text == "0.5 s/step, steady"


def test_times_of_whole_seconds_give_the_pace_of_quick_steps() -> None:
    steps = np.arange(20_000.0)
    pace = times_pace(steps, np.floor(steps / 7.3))
    assert pace is not None
    assert 1 / pace.newest == pytest.approx(7.3, rel=0.02)


def test_pauses_for_checkpoints_are_not_the_pace() -> None:
    steps = np.arange(5000.0)
    times = steps * 2.0 + np.floor(steps / 1000) * 300
    pace = times_pace(steps, times)
    assert pace is not None
    assert pace.newest == pytest.approx(2.0)


def test_a_newest_hour_that_is_slower_is_told_in_percent() -> None:
    took = np.concatenate((np.full(20_000, 1.0), np.full(3000, 1.25)))
    pace = times_pace(np.arange(23_000.0), np.cumsum(took))
    assert pace is not None
    assert pace.drift_percent == pytest.approx(-20)
    assert pace.text == "1.25 s/step, 20% slower than the run's median"


def test_a_restart_is_no_pace() -> None:
    steps = np.concatenate((np.arange(100.0), np.arange(50.0, 150)))
    times = np.concatenate((np.arange(100.0), np.arange(5000.0, 5100))) * 3
    pace = times_pace(steps, times)
    assert pace is not None
    assert (pace.newest, pace.drift_percent) == (3, 0)
    assert times_pace(np.array([5.0, 4.0]), np.array([0.0, 1.0])) is None
    assert times_pace(np.empty(0), np.empty(0)) is None


def test_a_clock_that_was_set_back_is_no_pace() -> None:
    pace = times_pace(np.arange(3.0), np.array([100.0, 110.0, 10.0]))
    assert pace is not None
    assert pace.newest == 10


def test_what_a_log_says_itself_is_read_with_its_unit_and_its_drift() -> None:
    values = np.concatenate((np.full(900, 500.0), np.full(100, 400.0)))
    pace = metric_pace("elapsed time per iteration (ms)", values, np.full(1000, nan))
    assert pace is not None
    assert pace.newest == pytest.approx(0.4)
    assert pace.drift_percent == pytest.approx(25)
    assert pace.text == "0.4 s/step, 25% faster than the run's median"
    flops = metric_pace(
        "throughput per GPU (TFLOP/s/GPU)", np.array([150.0, nan, 160, 155]), np.full(4, nan)
    )
    assert flops is not None
    assert flops.text == "155 TFLOP/s per device, steady"
    assert metric_pace("loss", values, values) is None
    assert metric_pace("tps", np.array([nan]), np.array([nan])) is None


def test_tokens_per_second_follow_from_consumed_tokens() -> None:
    steps = np.arange(100.0)
    assert tokens_per_second(2.0, steps, steps * 4_000_000) == pytest.approx(2_000_000)
    assert isnan(tokens_per_second(2.0, steps, np.full(100, nan)))


def test_a_run_gives_one_pace_a_measure_its_own_words_first() -> None:
    steps = np.arange(1000.0)
    batch = batch_of(steps, times=1e9 + steps * 2, tokens=steps * 1000)
    own = {"iteration time (ms)": Points(np.arange(1000), np.full(1000, 1900.0))}
    said, timed = MetricLog(), MetricLog()
    said.append(replace(batch, metrics={**batch.metrics, **own}))
    timed.append(batch)
    by_log, by_times = run_paces(joined([said]), "loss"), run_paces(joined([timed]), "loss")
    assert [(pace.measure, pace.source) for pace in by_log] == [
        ("seconds_per_step", "iteration time (ms)"),
        ("tokens_per_second", "tokens"),
    ]
    assert seconds_per_step(by_log) == pytest.approx(1.9)
    assert seconds_per_step(by_times) == pytest.approx(2.0)
    assert by_times[1].newest == pytest.approx(500)
    assert seconds_per_step(()) is None
    with pytest.raises(KeyError):
        run_paces(joined([timed]), "accuracy")


def test_of_two_that_say_the_same_the_one_said_most_often_counts_and_a_devices_last() -> None:
    batch = batch_of(np.arange(100.0))
    said = {"samples/sec": (10, 5.0), "samples per second": (100, 6.0), "samples/gpu/s": (100, 1.0)}
    points = {
        name: Points(np.arange(count), np.full(count, value))
        for name, (count, value) in said.items()
    }
    log = MetricLog()
    log.append(replace(batch, metrics={**batch.metrics, **points}))
    assert [pace.source for pace in run_paces(joined([log]), "loss")] == ["samples per second"]


def test_the_time_beside_an_mfu_is_milliseconds_a_step() -> None:
    batch = batch_of(np.arange(3.0))
    own = {
        "time": Points(np.arange(3), np.full(3, 130.0)),
        "mfu": Points(np.arange(3), np.full(3, 30.0)),
    }
    log = MetricLog()
    log.append(replace(batch, metrics={**batch.metrics, **own}))
    assert seconds_per_step(run_paces(joined([log]), "loss")) == pytest.approx(0.13)


@for_each(
    ("measure", "newest", "words"),
    [
        ("tokens_per_second", 51_432.7, "51.4k tokens/s"),
        ("tokens_per_second", 1_234_567.0, "1.23M tokens/s"),
        ("samples_per_second", 9820.4, "9820 samples/s"),
        ("teraflops", 155.27, "155 TFLOP/s"),
        ("teraflops", 12_345.0, "12.3k TFLOP/s"),
        ("steps_per_second", 0.008333, "0.00833 steps/s"),
        ("seconds_per_step", 0.01234, "12.3 ms/step"),
        ("seconds_per_step", 0.000041, "0.041 ms/step"),
        ("seconds_per_step", 120.44, "120 s/step"),
    ],
)
def test_a_pace_is_told_as_people_write_it(measure: Measure, newest: float, words: str) -> None:
    assert TrainingPace(measure, newest, nan, "times").text == words


def test_an_end_behind_the_limit_is_told_in_array_tasks() -> None:
    end = format_end(0, 111_600, 1.0, 18 * HOUR, 12 * HOUR, repeated_seconds=600)
    assert end == "ends in 1 d 7 h, limit in 18 h: needs 2 more array tasks"
    end = format_end(0, 200_000, 1.0, DAY, DAY, repeated_seconds=HOUR)
    assert end == "ends in 2 d 7 h, limit in 1 d: needs 2 more array tasks"


def test_an_end_before_the_limit_needs_nothing() -> None:
    assert format_end(900, 1000, 36.0, limit_seconds_left=2 * HOUR) == "ends in 1 h, limit in 2 h"


def test_what_is_not_known_is_not_made_up() -> None:
    assert format_end(0, 7200, 1.0) == "ends in 2 h"
    no_task_limit = format_end(0, 7200, 1.0, limit_seconds_left=HOUR)
    assert no_task_limit == "ends in 2 h, limit in 1 h: needs more array tasks"
    assert format_end(0, nan, 1.0) is None
    assert format_end(0, 10, 0.0) is None


def test_tasks_shorter_than_a_restart_never_get_there() -> None:
    end = format_end(0, 7200, 1.0, HOUR, 600, repeated_seconds=900)
    assert end == (
        "ends in 2 h, limit in 1 h: another task cannot finish the run: repeating steps takes "
        "15 min of its 10 min"
    )


def test_a_run_at_its_final_step_says_so() -> None:
    assert format_end(1000, 1000, 1.0, limit_seconds_left=0.0) == "at the final step"


def test_restarts_are_told_with_what_they_cost() -> None:
    lost = LostTime(restarts=3, repeated_steps=1200, repeated_seconds=2400, gap_seconds=720)
    assert (
        format_lost_time(lost)
        == "3 restarts: 1 200 steps repeated (40 min), 12 min between attempts"
    )
    assert format_lost_time(LostTime(1, 5, nan, nan)) == "1 restart: 5 steps repeated"
    assert format_lost_time(LostTime(1, 0, 0, nan)) == "1 restart"
    assert format_lost_time(LostTime(0, 0, 0, 0)) == ""


def test_figures_are_told_shortly() -> None:
    figures = {
        2.51349: "2.513",
        51_432.1: "51.43k",
        1.2e30: "1.2e+30",
        3e-5: "3e-05",
        nan: "nan",
        -inf: "-inf",
    }
    assert [format_number(value) for value in figures] == list(figures.values())
    assert (format_step(12_400), format_step(0.5)) == ("12 400", "0.5")


def test_what_is_seen_counts_where_the_log_says_clearly_another_pace() -> None:
    steps = np.arange(1000.0)
    own = {"iteration time (ms)": Points(np.arange(1000), np.full(1000, 1020.0))}

    def make_run(seconds: float) -> JoinedRun:
        batch = batch_of(steps, times=1e9 + steps * seconds) if seconds else batch_of(steps)
        log = MetricLog()
        log.append(replace(batch, metrics={**batch.metrics, **own}))
        return joined([log])

    (pace,) = run_paces(make_run(0.25), "loss")
    assert pace.newest == pytest.approx(0.25)
    assert pace.text == "0.25 s/step, steady (the log reports 1.02 s/step)"
    assert seconds_per_step(run_paces(make_run(1.4), "loss")) == pytest.approx(1.02)
    growth = PaceGrowth()
    for second in range(10):
        growth.note(50.0 + second, 600 + 10.0 * second)
    assert seconds_per_step(run_paces(make_run(0.0), "loss", growth.pace())) == pytest.approx(0.1)
    assert seconds_per_step(run_paces(make_run(0.0), "loss")) == pytest.approx(1.02)
    # A job that old did not need so long for a step; that it is older says nothing of the pace.
    short, long = average_pace(make_run(0.0), 600.0), average_pace(make_run(0.0), 7200.0)
    assert seconds_per_step(run_paces(make_run(0.0), "loss", None, short)) == pytest.approx(
        0.6, rel=0.01
    )
    assert seconds_per_step(run_paces(make_run(0.0), "loss", None, long)) == pytest.approx(1.02)
    assert average_pace(make_run(0.0), 60.0) is None


def test_growth_tells_nothing_before_it_was_seen_for_a_while_nor_over_a_restart() -> None:
    growth = PaceGrowth()
    for second in range(5):
        growth.note(float(second), 10.0 * second)
        assert growth.pace() is None
    for second in range(5, 9):
        growth.note(float(second), 10.0 * second)
    assert growth.pace() is not None
    growth.note(9.0, 5.0)
    assert growth.pace() is None


def test_a_job_that_is_no_array_needs_more_jobs_of_its_length() -> None:
    end = format_end(0, 180_000, 1.0, 1740, 1800, is_array=False)
    assert end == "ends in 2 d 2 h, limit in 29 min: needs 100 more jobs of this length"
    end = format_end(0, 3600, 1.0, 1800, 1800, is_array=False)
    assert end is not None
    assert end.endswith("needs 1 more job of this length")
