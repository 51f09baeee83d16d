"""The chart view on real logs that grow, with the scheduler's answers recorded."""

from __future__ import annotations

import asyncio
import csv
import math
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import SelectionList

from hpcdash.config.metric_patterns import EXAMPLE, EXAMPLE_LINE
from hpcdash.ui.dialogs import ChecklistDialog, TextDialog
from hpcdash.ui.help import HelpDialog
from tests.support.real_files import append, put
from tests.ui.logs.log_stage import PENDING, RUNNING, shows
from tests.ui.metrics.chart_stage import (
    chart_dashboard,
    chart_of,
    drawn,
    lines_of,
    open_chart,
    plot_of,
    press_drawn,
    training_log,
)
from tests.ui.stage import screen_text, settled, until

SIZE = (120, 34)
SPIKE_AT = 700


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are looked at, and findings looked for, every 50 ms."""
    monkeypatch.setattr("hpcdash.services.metrics.run.next_check_seconds", lambda quiet: 0.05)
    monkeypatch.setattr("hpcdash.services.metrics.run.NOTIFY_SECONDS", 0.02)
    monkeypatch.setattr("hpcdash.ui.metrics.following.READ_SECONDS", 0.05)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.out"


def spiked(step: int) -> float:
    """A loss at 2 with a little ripple, and a spike of three steps."""
    return 2.0 + 0.02 * math.sin(step) + (4.0 if SPIKE_AT <= step < SPIKE_AT + 3 else 0.0)


async def test_the_loss_of_a_running_job_is_there_and_goes_on(log: Path) -> None:
    put(log, training_log(range(1, 801)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        assert [panel.name for panel in view.picture.panels] == ["lm loss"]
        assert view.picture.whole == (1.0, 800.0)
        assert "newest" in lines_of(pilot)[0]
        assert "lowest" in lines_of(pilot)[0]
        append(log, training_log(range(801, 901)))
        await until(pilot, lambda: view.picture.whole == (1.0, 900.0), "the new points")


async def test_g_opens_the_chart_of_the_job_one_points_at(log: Path) -> None:
    put(log, training_log(range(1, 101)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await settled(pilot)
        pointed = pilot.app.main.view.pointed_job()
        await pilot.press("g")
        await until(pilot, lambda: pilot.app.main.view_name == "chart")
        assert chart_of(pilot).job_id == pointed
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.main.view_name == "jobs")


async def test_marked_jobs_lie_over_each_other_with_letters(log: Path) -> None:
    put(log, training_log(range(1, 101)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("space", "down", "space", "g")
        await until(pilot, lambda: pilot.app.main.view_name == "chart")
        view = chart_of(pilot)
        assert len(view.runs) == 2
        await until(pilot, lambda: "A" in "".join(lines_of(pilot)[2:]), "the first run's letter")
        assert f"A {view.runs[0].job_id}" in screen_text(pilot.app)
        assert f"B {view.runs[1].job_id}" in screen_text(pilot.app)


async def test_space_lays_tasks_of_the_same_array_over_a_task_and_takes_them_off_again(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.metrics.view._HISTORY_SECONDS", 0.1)
    put(log, training_log(range(1, 101)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot, "13_7")
        await pilot.press("space")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, ChecklistDialog), "the list of runs"
        )
        await shows(pilot, "same array")
        assert "13_9" in screen_text(pilot.app)
        await pilot.press("space", "down", "space", "enter")
        await until(
            pilot,
            lambda: [run.job_id for run in view.runs] == ["13_7", "13_9", "13_8"],
            "three runs",
        )
        await drawn(pilot)
        assert "C 13_8 lr-sweep" in screen_text(pilot.app)
        await pilot.press("space")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, ChecklistDialog), "the list of runs"
        )
        await pilot.press("space", "down", "space", "enter")
        await until(pilot, lambda: [run.job_id for run in view.runs] == ["13_7"], "one run again")


async def test_a_spike_has_its_sign_on_the_chart_and_its_words_below(log: Path) -> None:
    put(log, training_log(range(1, 1501), spiked))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        assert any("▲" in line for line in lines_of(pilot))
        assert f"▲ spike at {SPIKE_AT}" in screen_text(pilot.app)
        await press_drawn(pilot, "n")
        assert view.state.cursor == SPIKE_AT
        assert (
            "6 " in lines_of(pilot)[0] or "6.0" in lines_of(pilot)[0] or "5.9" in lines_of(pilot)[0]
        )
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, TextDialog)
        assert "0.52 s/step" in screen_text(pilot.app)
        await pilot.press("escape", "question_mark")
        await until(pilot, lambda: "Help: chart" in screen_text(pilot.app), "the help")
        assert isinstance(pilot.app.screen, HelpDialog)
        words = dict(pilot.app.screen.notes)["signs"].plain
        for sign in ["▲", "◆", "✗", "═", "‖", "┊", "R", "•", "↑", "↓", ">"]:
            assert any(sign in line[:14] for line in words.splitlines()), sign
        assert "  ▲           a spike\n" in words


async def test_of_few_points_nothing_is_told_and_of_several_findings_how_many_there_are(
    log: Path,
) -> None:
    put(log, training_log(range(1, 13)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        assert "too few points" in screen_text(pilot.app)
        assert "no anomalies" not in screen_text(pilot.app)
        append(
            log,
            training_log(
                range(13, 1501), lambda step: spiked(step) if step < 1400 else spiked(step - 699)
            ),
        )
        await shows(pilot, "2 spikes")
        await shows(pilot, "recovered after")


async def test_a_log_of_nan_alone_says_so_and_does_not_fall_over(log: Path) -> None:
    put(log, training_log(range(1, 401), lambda step: math.nan))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        assert "nan first at 1 (400 times" in screen_text(pilot.app)
        assert "lm loss has no finite values here" in screen_text(pilot.app)
        await press_drawn(pilot, "y", "plus", "o")
        assert "lm loss (log)" in lines_of(pilot)[0]


async def test_values_of_zero_and_below_are_said_on_a_log_scale(log: Path) -> None:
    put(log, training_log(range(1, 301), lambda step: 1.0 - step / 200))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        await press_drawn(pilot, "y")
        assert "cannot be shown on a log scale" in screen_text(pilot.app)
        await press_drawn(pilot, "y")
        assert "log scale" not in screen_text(pilot.app)


async def test_zoom_and_pan_stay_within_what_there_is_and_escape_shows_all_again(log: Path) -> None:
    put(log, training_log(range(1, 1001)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        await press_drawn(pilot, "plus", "plus")
        begin, end = view.picture.panels[0].x
        assert end == 1000.0
        assert end - begin == pytest.approx(999 / 4)
        await press_drawn(pilot, "left")
        assert view.picture.panels[0].x[1] < 1000.0
        assert not view.state.follows
        assert "paused; end resumes" in screen_text(pilot.app)
        await press_drawn(pilot, *["left"] * 30)
        assert view.picture.panels[0].x[0] == 1.0
        await press_drawn(pilot, "end")
        assert view.picture.panels[0].x[1] == 1000.0
        await press_drawn(pilot, "escape")
        assert view.picture.panels[0].x == (1.0, 1000.0)


async def test_what_one_looks_at_stays_while_the_log_grows(log: Path) -> None:
    put(log, training_log(range(1, 1001)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        await press_drawn(pilot, "plus", "plus", "left", "c")
        seen, cursor = view.picture.panels[0].x, view.state.cursor
        append(log, training_log(range(1001, 1101)))
        await until(pilot, lambda: view.picture.whole[1] == 1100.0, "the new points")
        assert view.picture.panels[0].x == seen
        assert view.state.cursor == cursor
        await press_drawn(pilot, "escape", "end")
        assert view.picture.panels[0].x[1] == 1100.0


async def test_up_and_down_move_the_height_of_the_metric_one_is_at(log: Path) -> None:
    put(log, training_log(range(1, 301)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        low, high = view.picture.panels[0].y
        await press_drawn(pilot, "up")
        assert view.picture.panels[0].y == pytest.approx(
            (low + 0.2 * (high - low), high + 0.2 * (high - low))
        )
        await press_drawn(pilot, "home")
        assert view.picture.panels[0].y == pytest.approx((low, high))


async def test_several_metrics_are_small_multiples(log: Path) -> None:
    put(log, training_log(range(1, 301)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        await pilot.press("v")
        assert isinstance(pilot.app.screen, ChecklistDialog)
        shown = pilot.app.screen.query_one(SelectionList)
        names = [str(shown.get_option_at_index(index).value) for index in range(shown.option_count)]
        assert names[0] == "lm loss"
        assert "grad norm" in names
        await pilot.press(*["down"] * names.index("grad norm"), "space", "enter")
        await drawn(pilot)
        assert [panel.name for panel in view.picture.panels] == ["lm loss", "grad norm"]
        await press_drawn(pilot, "tab", "up")
        assert set(view.state.heights) == {"grad norm"}


async def test_the_x_axis_is_that_of_samples_or_tokens_too(log: Path) -> None:
    put(log, training_log(range(1, 301)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        assert view.picture.axis == "step"
        seen = {view.picture.axis}
        for _ in view.picture.axes[1:]:
            await press_drawn(pilot, "a")
            seen.add(view.picture.axis)
        assert seen == set(view.picture.axes)
        assert len(seen) > 1


async def test_a_restart_is_marked_and_what_it_repeated_is_dotted(log: Path) -> None:
    put(
        log,
        training_log(range(1, 601))
        + training_log(range(501, 1001), lambda step: 5.0 - step / 1000),
    )
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        assert any("R" in line for line in lines_of(pilot)[1:])
        assert "1 restart: 100 steps repeated" in screen_text(pilot.app)
        assert any(style == "again-0" for line in view.picture.lines for _, style in line)


async def test_a_log_without_metrics_says_what_was_looked_for(log: Path) -> None:
    put(log, b"hello\n" * 50)
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        await shows(pilot, "no metrics found")
        assert "patterns = [" in screen_text(pilot.app)
        append(log, training_log(range(1, 50)))
        await shows(pilot, "newest")


async def test_the_pattern_on_the_screen_teaches_the_format_on_the_screen(log: Path) -> None:
    put(log, "".join(EXAMPLE_LINE.replace("12", str(at)) + "\n" for at in range(1, 30)).encode())
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        await shows(pilot, "no metrics found")
        shown = screen_text(pilot.app)
        assert EXAMPLE_LINE in " ".join(shown.split())
        assert all(line in shown for line in EXAMPLE.splitlines())
    patterns = tomllib.loads(EXAMPLE)["metrics"]["patterns"]
    async with chart_dashboard(log.parent, metric_patterns=patterns).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        await shows(pilot, "29 points")


async def test_a_job_that_waits_has_no_chart_yet(log: Path) -> None:
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_chart(pilot, PENDING)
        await shows(pilot, "the job is pending")
        assert "the chart appears with the first output" in screen_text(pilot.app)


async def test_a_log_that_is_missing_is_said_to_be(log: Path) -> None:
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await open_chart(pilot)
        await shows(pilot, "job.out")


async def test_one_writes_the_points_and_the_picture_into_the_working_folder(
    log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(log, training_log(range(1, 301)))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    async with chart_dashboard(log.parent).run_test(size=SIZE, notifications=True) as pilot:
        view = await open_chart(pilot)
        await press_drawn(pilot, "a", "plus")
        assert view.picture.axis == "samples"
        await pilot.press("w")
        await until(pilot, lambda: list(folder.glob("*.csv")), "written")
        await shows(pilot, "saved:")
        begin, end = view.picture.panels[0].x
    with next(folder.glob("*.csv")).open() as stream:
        rows = list(csv.DictReader(stream))
    steps = [step for step in range(1, 301) if begin <= 1024 * step <= end]
    assert [(int(row["step"]), float(row["samples"])) for row in rows] == [
        (step, 1024.0 * step) for step in steps
    ]
    assert {row["metric"] for row in rows} == {"lm loss"}
    picture = ET.parse(next(folder.glob("*.svg"))).getroot()
    assert [one.get("class") for one in picture.iter() if one.get("points")] == ["raw"]
    assert {"lm loss", "samples"} <= {one.text for one in picture.iter()}


async def test_a_zoom_right_after_another_axis_is_chosen_is_of_that_axis(log: Path) -> None:
    put(log, training_log(range(1, 301)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        # Nothing is drawn in between.
        view.do_x_axis()
        view.do_zoom_in()
        await drawn(pilot)
        begin, end = view.picture.panels[0].x
        assert (view.picture.axis, begin < 1024 * 200, end) == ("samples", True, 1024 * 300)


async def test_the_cursor_is_set_in_the_span_of_the_last_key_drawn_or_not(log: Path) -> None:
    put(log, training_log(range(1, 1001)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        view.do_zoom_in()
        view.action_sideways(-1)
        view.do_point()
        await drawn(pilot)
        place = view.picture.panels[0]
        assert view.state.cursor is not None
        assert place.column_at(view.state.cursor) == pytest.approx(
            place.left + place.width / 2, abs=1
        )


async def test_the_wheel_zooms_at_the_mouse_and_a_click_sets_the_cursor(log: Path) -> None:
    put(log, training_log(range(1, 1001)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        place = view.picture.panels[0]
        column = place.left + place.width // 4
        x = place.x_at(column)
        await pilot.click(plot_of(pilot), offset=(column, place.top + 3))
        await drawn(pilot)
        assert view.state.cursor == pytest.approx(x)
        plot_of(pilot).post_message(plot_of(pilot).Zoomed(0.5, x))
        await drawn(pilot)
        assert view.picture.panels[0].column_at(x) == pytest.approx(column, abs=1)


async def test_dragging_moves_the_span_with_the_mouse(log: Path) -> None:
    put(log, training_log(range(1, 1001)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        await press_drawn(pilot, "plus", "plus")
        place = view.picture.panels[0]
        row = place.top + 5
        x = place.x_at(place.left + 20)
        await pilot.mouse_down(plot_of(pilot), offset=(place.left + 20, row))
        await pilot.hover(plot_of(pilot), offset=(place.left + 60, row))
        await pilot.mouse_up(plot_of(pilot), offset=(place.left + 60, row))
        await until(
            pilot, lambda: view.is_drawn and view.picture.panels[0].x != place.x, "another span"
        )
        assert view.picture.panels[0].column_at(x) == pytest.approx(place.left + 60, abs=1)
        assert view.state.cursor is None


async def test_how_much_of_a_large_log_is_read_is_said(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(run: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("hpcdash.services.metrics.source.FIRST_BYTES", 200_000)
    monkeypatch.setattr("hpcdash.services.metrics.run.WatchedRun._keep_filled", never)
    put(log, training_log(range(1, 3001)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.app.main.push("chart", job_id=RUNNING)
        await shows(pilot, "loading older points")


async def test_a_chart_that_is_not_shown_reads_nothing(log: Path) -> None:
    put(log, training_log(range(1, 101)))
    async with chart_dashboard(log.parent).run_test(size=SIZE) as pilot:
        view = await open_chart(pilot)
        await pilot.press("l")
        await until(pilot, lambda: pilot.app.main.view_name == "log")
        await until(pilot, lambda: not _watching(pilot), "nothing is watched")
        append(log, training_log(range(101, 201)))
        await pilot.press("escape")
        await until(
            pilot, lambda: view.picture.whole == (1.0, 200.0), "the new points, back at the chart"
        )


def _watching(pilot: Pilot[Any]) -> bool:
    view = next(
        view for view in pilot.app.main.stack if view.name is None and hasattr(view, "runs")
    )
    return any(worker.node is view and not worker.is_finished for worker in pilot.app.workers)


def test_no_array_of_a_chart_is_imported_before_one_is_opened() -> None:
    code = (
        "import sys, hpcdash.ui.app\n"
        "print([name for name in sys.modules if name in ('pandas', "
        "'hpcdash.services.metrics.joined',"
        " 'hpcdash.services.metrics.charts.draw', 'hpcdash.services.metrics.run')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


async def test_a_chart_that_had_no_room_is_drawn_once_it_has(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_bytes(training_log(range(1, 600)))
    app = chart_dashboard(tmp_path)
    async with app.run_test(size=(140, 8)) as pilot:
        await settled(pilot)
        await app.main.push("chart", job_id=RUNNING)
        await until(pilot, lambda: "not enough room" in screen_text(app))
        await pilot.resize_terminal(140, 40)
        await until(pilot, lambda: chart_of(pilot).picture.panels)
        assert "not enough room" not in screen_text(app)


async def test_what_goes_wrong_with_a_log_is_said_and_ends_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[Exception] = []
    put(log, training_log(range(1, 101)))
    with monkeypatch.context() as wrong:

        def fails(*_: object, **__: object) -> None:
            raise ValueError("year 54892898 is out of range")

        wrong.setattr("hpcdash.services.metrics.charts.draw.draw", fails)
        async with chart_dashboard(log.parent, note_error=noted.append).run_test(
            size=SIZE
        ) as pilot:
            await settled(pilot)
            await pilot.app.main.push("chart", job_id=RUNNING)
            await shows(
                pilot, "hpcdash could not draw this: ValueError: year 54892898 is out of range"
            )
            assert [str(one) for one in noted] == ["year 54892898 is out of range"]
            wrong.undo()
            chart_of(pilot).start()
            await drawn(pilot)
            assert "could not" not in screen_text(pilot.app)
            wrong.setattr("hpcdash.services.metrics.facts.RunReader.read", fails)
            append(log, training_log(range(101, 201)))
            await until(
                pilot,
                lambda: "hpcdash could not read this: ValueError" in screen_text(pilot.app),
                "the words",
            )
            wrong.undo()
            append(log, training_log(range(201, 211)))
            await until(pilot, lambda: "could not" not in screen_text(pilot.app), "no words")
            wrong.setattr("hpcdash.services.metrics.run.JoinedRun", fails)
            append(log, training_log(range(211, 301)))
            await until(
                pilot,
                lambda: "hpcdash could not read this: ValueError" in screen_text(pilot.app),
                "the words",
            )
