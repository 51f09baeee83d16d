"""The column of losses in the table of jobs: its cells, and when logs are read for them."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.domain.text import cell_width
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.metrics.loss_tails import LossTail
from hpcdash.ui.jobs.row_logs import (
    CURVE_CELLS,
    VALUE_CELLS,
    ending,
    format_value,
    loss_cell,
    sparkline,
)
from hpcdash.ui.widgets import cells
from tests.support.real_files import append, put
from tests.ui.logs.log_stage import RUNNING, log_dashboard, of_files, set_state
from tests.ui.metrics.chart_stage import training_log
from tests.ui.stage import press, screen_text, settled, until

COLUMNS = {"jobs": ("id", "name", "state", "loss", "where")}


def words_of(tail: LossTail | None) -> str:
    cell = loss_cell(tail)
    return "".join(text for text, _ in cell) if isinstance(cell, list) else str(cell)


def test_a_curve_that_falls_falls_and_a_stretch_with_nan_is_a_cross() -> None:
    assert "".join(sparkline(list(range(80, 0, -1)), 8)) == "█▇▆▅▄▃▂▁"
    assert "".join(sparkline([3.0, 2.0, math.nan, math.inf, 1.0], 10)) == "█▅✗✗▁"
    assert "".join(sparkline([3.0, 2.0, math.nan, 1.0], 10, is_ascii=True)) == "#=x_"
    assert "".join(sparkline([2.0, 2.0], 10)) == "▁▁"
    assert sparkline([], 10) == []


@given(st.lists(st.floats(), max_size=60), st.booleans())
def test_any_values_fit_their_cells(values: list[float], is_ascii: bool) -> None:
    curve = sparkline(values, CURVE_CELLS, is_ascii=is_ascii)
    assert len(curve) == min(len(values), CURVE_CELLS)
    assert all(cell_width(sign) == 1 for sign in curve)
    for value in values:
        assert 0 < len(format_value(value)) <= VALUE_CELLS


def test_the_newest_value_stands_beside_the_curve_and_nan_is_said() -> None:
    assert words_of(LossTail("loss", (3.0, 2.0, 1.23456))) == "█▄▁        1.235"
    assert words_of(LossTail("loss", (3.0, math.nan))) == "▁✗         nan"
    assert words_of(None) == ""
    assert loss_cell(LossTail()) == ("–", cells.MUTED)


async def test_losses_are_read_only_where_their_column_was_chosen_and_at_the_pace_of_polls(
    tmp_path: Path,
) -> None:
    log = tmp_path / "job.out"
    put(log, training_log(range(1, 201)))
    app = log_dashboard(tmp_path, both_in_one=True)
    transport = app.sessions[0].store.transport
    async with app.run_test(size=(120, 26)) as pilot:
        await settled(pilot)
        assert transport.count(of_files) == 0
        app.main.view.choose_columns(COLUMNS["jobs"])
        rows = app.main.view.rows
        # Polls that bring the same rows do not draw them anew: what was read does.
        await until(pilot, lambda: "▁" in screen_text(app), "a curve")
        line = next(one for one in screen_text(app).splitlines() if f" {RUNNING} " in one)
        assert "▁ 4." in line
        assert transport.count(of_files) == 1
        app.main.view.reload()
        await settled(pilot)
        assert transport.count(of_files) == 1, "a filter or a sort is not a poll"
        append(log, b" iteration 201/ 4000 | lm loss: nan | grad norm: nan |\n")
        app.main.view._logs._read_at = float("-inf")
        await press(pilot, "6")
        app.sessions[0].store.notify_health()
        await settled(pilot)
        assert transport.count(of_files) == 1, "another view is shown"
        await press(pilot, "1")
        await until(pilot, lambda: "nan" in screen_text(app), "the nan")
        assert transport.count(of_files) == 2
        assert "_loss" not in app.main.view.sort_keys()
        assert rows.is_attached


async def test_a_row_shows_when_its_training_ends(tmp_path: Path) -> None:
    line = " iteration {}/250 | elapsed time per iteration (ms): 1400.0 | lm loss: 2.5 |\n"
    put(tmp_path / "job.out", "".join(line.format(step) for step in range(1, 201)).encode())
    app = log_dashboard(tmp_path, both_in_one=True)
    async with app.run_test(size=(140, 26)) as pilot:
        await settled(pilot)
        app.main.view.choose_columns(COLUMNS["jobs"])
        await until(pilot, lambda: "g07  ends in 1 min" in screen_text(app), "its end")


def test_a_limit_before_the_end_of_a_training_is_a_warning() -> None:
    assert ending(7200, 3600) == ("limit 1 h short", cells.WARNING)
    assert ending(7200, 7300) == ending(7200, None) == ("ends in 2 h", cells.MUTED)
    # The column of the time left shows that a limit has passed.
    assert ending(7200, -5) == ("ends in 2 h", cells.MUTED)
    assert ending(0, 5) == ("at the final step", cells.MUTED)


async def test_a_row_shows_why_its_job_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.services.metrics.loss_tails._LOCATED_AT_ONCE", 50)
    put(tmp_path / "job.out", training_log(range(1, 201)) + b"RuntimeError: loss is nan\n")
    app = log_dashboard(tmp_path, both_in_one=True)
    store = app.sessions[0].store
    # It ends as it is first listed.
    store.clock = FrozenClock(1_795_244_354.0)
    set_state(store.transport, b"FAILED")
    async with app.run_test(size=(150, 90)) as pilot:

        def row() -> str:
            lines = screen_text(app).splitlines()
            return next((line for line in lines if f" {RUNNING} " in line), "")

        await until(pilot, lambda: "failed" in row() and "loss is nan" in row(), "its cause")


async def test_a_cause_is_shown_though_the_log_was_read_before_the_job_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.services.metrics.loss_tails._LOCATED_AT_ONCE", 50)
    put(tmp_path / "job.out", training_log(range(1, 201)) + b"RuntimeError: loss is nan\n")
    app = log_dashboard(tmp_path, both_in_one=True)
    async with app.run_test(size=(150, 90)) as pilot:

        def row() -> str:
            lines = screen_text(app).splitlines()
            return next((line for line in lines if f" {RUNNING} " in line), "")

        await until(pilot, lambda: "ends in" in row(), "its log to be read")
        app.sessions[0].store.clock = FrozenClock(1_795_244_354.0)
        set_state(app.sessions[0].store.transport, b"FAILED")
        app.main.view._logs._read_at = float("-inf")
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "failed" in row() and "loss is nan" in row(), "its cause")


def test_the_app_starts_without_what_only_the_column_needs() -> None:
    modules = (
        "hpcdash.services.metrics.loss_tails",
        "hpcdash.ui.jobs.row_logs",
        "hpcdash.services.metrics.run",
    )
    program = (
        f"import sys, hpcdash.ui.app; sys.exit(any(name in sys.modules for name in {modules}))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_a_log_that_cannot_be_read_is_said_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("of no sense")

    put(tmp_path / "job.out", training_log(range(1, 201)))
    app = log_dashboard(tmp_path, both_in_one=True)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await settled(pilot)
        monkeypatch.setattr("hpcdash.services.metrics.reader.MetricReader.feed", fails)
        app.main.view.choose_columns(COLUMNS["jobs"])
        await until(pilot, lambda: "hpcdash could not read this" in screen_text(app), "the words")


def test_huge_losses_have_a_curve() -> None:
    assert sparkline([-1.7e308] * 10 + [1.7e308] * 10, 2) == ["▁", "█"]
