"""The checkpoint calculator: its golden figures, on its own and through the command."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hpcdash.domain.checkpoints import CheckpointPlan
from hpcdash.errors import UsageError
from tests.support.program import Program, Run
from tests.support.records import for_each

HOUR = 3600.0


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Run]:
    """`hpcdash checkpoints` with these words."""
    return partial(Program(tmp_path), "checkpoints")


def test_three_months_every_three_hours_at_forty_seconds() -> None:
    plan = CheckpointPlan(90, 3 * HOUR, 40, 2.3)
    assert plan.saves == 720
    assert plan.hours_lost == 8
    assert round(plan.percent_lost, 2) == 0.37
    assert plan.tb_per_day == pytest.approx(18.4)
    assert plan.tb_in_all == pytest.approx(1656)


def test_what_it_costs_in_a_sentence() -> None:
    assert (
        CheckpointPlan(90, 3 * HOUR, 40).text
        == "a save every 3 h, taking 40 s each: 720 saves, 8 h lost, 0.37% of its time"
    )
    assert CheckpointPlan(1, 13 * HOUR, 90).text.endswith(
        ": 1 save, 1.5 min lost, 0.10% of its time"
    )
    assert (
        CheckpointPlan(0.1, 3 * HOUR, 40).text
        == "a save every 3 h, taking 40 s each: no saves in 2.4 h"
    )


def test_a_disk_five_times_slower_costs_nearly_two_percent() -> None:
    assert round(CheckpointPlan(90, 3 * HOUR, 200).percent_lost, 2) == 1.85


def test_a_save_that_would_not_be_over_by_the_end_of_the_training_does_not_count() -> None:
    assert CheckpointPlan(1, 5 * HOUR, 10).saves == 4
    assert CheckpointPlan(0.3, 0.1 * 86_400, 10).saves == 3


def test_without_a_size_nothing_is_said_of_the_disk() -> None:
    assert CheckpointPlan(1, HOUR, 1).tb_per_day is None


@for_each(
    ("days", "interval", "save", "tb"),
    [
        (0, 60, 1, None),
        (float("nan"), 60, 1, None),
        (1, 0, 0, None),
        (1, 60, 60, None),
        (1, 60, -1, None),
        (1, 60, 1, -2),
    ],
)
def test_what_is_no_plan_is_refused(
    days: float, interval: float, save: float, tb: float | None
) -> None:
    with pytest.raises(UsageError):
        CheckpointPlan(days, interval, save, tb)


@pytest.mark.system
def test_the_command_prints_the_golden_figures(command: Callable[..., Run]) -> None:
    ended = command("--days", "90", "--every", "3h", "--save", "40s", "--tb", "2.3")
    assert ended.stderr == ""
    assert [line.split() for line in ended.text.splitlines()] == [
        ["saves", "720"],
        ["time", "lost", "8.00", "h"],
        ["share", "of", "time", "0.37", "%"],
        ["written", "daily", "18.40", "TB"],
        ["written", "total", "1656.00", "TB"],
    ]


@pytest.mark.system
def test_bare_numbers_are_hours_and_seconds_and_json_has_seconds(
    command: Callable[..., Run],
) -> None:
    ended = command("--days", "90", "--every", "3", "--save", "40", "--format", "json")
    answer = ended.json
    assert (answer["schema"], answer["interval_seconds"], answer["save_seconds"]) == (1, 10_800, 40)
    assert (answer["saves"], answer["hours_lost"], answer["tb_per_day"]) == (720, 8, None)


@pytest.mark.system
def test_a_training_that_is_over_before_its_first_save_is_warned_of(
    command: Callable[..., Run],
) -> None:
    ended = command("--days", "1", "--every", "3d", "--save", "40s")
    assert (ended.status, ended.text.split()[:2]) == (0, ["saves", "0"])
    assert (
        "--days 1 ends before the first save (--every 3d): nothing would be saved" in ended.stderr
    )


@pytest.mark.system
def test_a_duration_that_cannot_be_read_names_its_option_and_ends_with_2(
    command: Callable[..., Run],
) -> None:
    ended = command("--days", "90", "--every", "soon", "--save", "40s")
    assert ended.status == 2
    assert "--every: 'soon' is not a duration" in ended.stderr


@pytest.mark.system
def test_what_is_left_out_is_named_with_an_example(command: Callable[..., Run]) -> None:
    ended = command("--days", "90")
    assert (ended.status, ended.text) == (2, "")
    *_, said, example = ended.stderr.splitlines()
    assert said.endswith("the estimate needs --every and --save")
    assert command(*example.split()[2:]).text.startswith("saves                720\n")
