"""The overview pane: what it says of the job under the cursor, when it asks, and where it
stands.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any, cast

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot

from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.jobs.lookup import known_row
from hpcdash.services.metrics.charts.draw import small_curve
from hpcdash.services.usage.waits import compute_waits
from hpcdash.ui.jobs.overview import JobOverview
from tests.support.job_rows import at, build_table, job_row
from tests.support.real_files import append, put
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.logs.log_stage import PENDING, RUNNING, log_dashboard, of_files, set_state
from tests.ui.metrics.chart_stage import training_log
from tests.ui.stage import dashboard, ids_of, press, screen_text, settled, shown_rows, until

UNDER, BESIDE, SMALL = (120, 40), (220, 50), (80, 24)


def overview_of(pilot: Pilot[Any]) -> JobOverview:
    return pilot.app.screen.query_one(JobOverview)


async def pointed_at(pilot: Pilot[Any], job_id: str) -> None:
    """The cursor rests on a job, which the pane shows."""
    shown_rows(pilot.app).move_to(job_id)  # type: ignore[arg-type]
    await until(
        pilot, lambda: f"─ {job_id} " in screen_text(pilot.app), f"the overview of {job_id}"
    )


async def test_a_running_job_has_its_loss_and_the_end_of_its_log_and_new_lines_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", 0.1)
    log = tmp_path / "job.out"
    put(log, training_log(range(1, 201)))
    app = log_dashboard(tmp_path, both_in_one=True)
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        await pointed_at(pilot, RUNNING)
        await until(
            pilot,
            lambda: "lm loss ▇" in screen_text(app) or "lm loss █" in screen_text(app),
            "its loss",
        )
        await until(pilot, lambda: "iteration      200/" in screen_text(app), "the end of the log")
        append(log, b" iteration 201/ 4000 | lm loss: 1.5 | grad norm: 1 |\nthe newest line\n")
        await until(pilot, lambda: "the newest line" in screen_text(app), "what was appended")
        monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", 600.0)
        append(log, b"RuntimeError: out of memory\n")
        set_state(app.sessions[0].store.transport, b"FAILED")
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "failed" in screen_text(app), "that it failed")
        monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", 0.1)
        await until(
            pilot, lambda: "RuntimeError: out of memory" in screen_text(app), "its last words"
        )


async def test_a_log_that_had_to_wait_for_room_for_commands_is_read_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", 0.1)
    put(tmp_path / "job.out", b"the last words\n")
    app = log_dashboard(tmp_path, both_in_one=True)
    store = app.sessions[0].store
    # It ends as it is first listed.
    store.clock = FrozenClock(1_795_244_354.0)
    set_state(store.transport, b"FAILED")
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        with monkeypatch.context() as full:
            full.setattr(store.budget, "ceiling", 1)
            await pointed_at(pilot, RUNNING)
            await app.workers.wait_for_complete(
                [worker for worker in app.workers if worker.group == "overview"]
            )
            await pilot.pause()
            assert "Reading the log" in screen_text(app)
        await until(pilot, lambda: "the last words" in screen_text(app), "the end of its log")


async def test_the_log_of_an_ended_job_is_read_as_the_terminal_has_the_focus_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", 0.1)
    put(tmp_path / "job.out", b"the last words\n")
    app = log_dashboard(tmp_path, both_in_one=True)
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        set_state(app.sessions[0].store.transport, b"FAILED")
        await press(pilot, "ctrl+r")
        await settled(pilot)
        app.app_focus = False
        await pointed_at(pilot, RUNNING)
        assert "Reading the log" not in screen_text(app)
        app.app_focus = True
        await until(pilot, lambda: "the last words" in screen_text(app), "the end of its log")


async def test_nothing_is_asked_while_the_cursor_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.REST_SECONDS", 1.0)
    put(tmp_path / "job.out", b"words\n")
    app = log_dashboard(tmp_path, both_in_one=True)
    transport = app.sessions[0].store.transport
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        asked = transport.count(of_files)  # type: ignore[attr-defined]
        for _ in range(20):
            await pilot.press("down", "up")
        assert transport.count(of_files) == asked  # type: ignore[attr-defined]


async def test_a_log_that_is_read_slower_than_it_is_refreshed_still_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", 0.0)
    put(tmp_path / "job.out", b"the last words\n")
    app = log_dashboard(tmp_path, both_in_one=True)
    transport = cast("ScriptedTransport", app.sessions[0].store.transport)
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        transport.hangs[of_files] = asyncio.Event()
        asked = transport.count(of_files)
        await pointed_at(pilot, RUNNING)
        await until(pilot, lambda: transport.count(of_files) > asked, "a read that hangs")
        for _ in range(5):
            app.main.view.tick()
            await pilot.pause()
        assert transport.count(of_files) == asked + 1
        transport.hangs.pop(of_files).set()
        await until(pilot, lambda: "the last words" in screen_text(app), "the end of its log")


async def test_a_waiting_job_says_why_and_asks_nothing() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        rate = app.sessions[0].store.budget.per_minute
        await pointed_at(pilot, "60")
        await until(pilot, lambda: "may start" in screen_text(app), "when it may start")
        assert "Slurm's estimate" in screen_text(app)
        await pointed_at(pilot, "61")
        await until(pilot, lambda: "held by its owner" in screen_text(app), "why")
        assert app.sessions[0].store.budget.per_minute == rate


async def test_an_array_says_how_many_tasks_are_in_which_state_and_which_keys_help() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        array = next(one for one in ids_of(app) if one.startswith("13"))
        shown_rows(app).move_to(array)
        await until(pilot, lambda: "─ 13 lr-sweep" in screen_text(app), "the array")
        await until(
            pilot, lambda: "group failures by cause" in screen_text(app), "the keys that help"
        )


async def test_an_array_shows_the_log_of_its_first_task_that_runs() -> None:
    app = dashboard("training")
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        shown_rows(app).move_to(next(one for one in ids_of(app) if one.startswith("13")))
        await until(pilot, lambda: "Log of 13_" in screen_text(app), "whose log it is")
        await until(
            pilot, lambda: "lr " in screen_text(app).partition("Log of 13_")[2], "the end of it"
        )


async def test_an_array_with_failures_groups_them_and_shows_why_with_the_commands_of_one_log() -> (
    None
):
    app = dashboard("training")
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        await press(pilot, "4")
        asked = app.sessions[0].store.budget.per_minute
        shown_rows(app).move_to(next(one for one in ids_of(app) if one.startswith("13")))
        await until(
            pilot,
            lambda: "1 failed, exit 1 · task 3 · FloatingPointError" in screen_text(app),
            "the cause",
        )
        assert "Log of 13_3 /home/maya/vision/sweep/logs" in screen_text(app)
        assert app.sessions[0].store.budget.per_minute - asked <= 4


@pytest.mark.parametrize(
    ("size", "place"), [(UNDER, "under"), (BESIDE, "beside"), (SMALL, "nowhere")]
)
async def test_it_stands_where_the_terminal_has_room(size: tuple[int, int], place: str) -> None:
    app = dashboard("everyday")
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        pane, table = overview_of(pilot), shown_rows(app)
        assert pane.display == (place != "nowhere")
        if place == "under":
            assert pane.region.y >= table.region.bottom
        elif place == "beside":
            assert pane.region.x >= table.region.right
        assert table.region.width >= 78


async def test_keys_hide_it_change_its_size_and_move_the_focus() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        pane = overview_of(pilot)
        lines = pane.size.height
        await press(pilot, "plus", "plus")
        assert pane.size.height > lines
        await press(pilot, *["underscore"] * 3)
        assert pane.size.height < lines
        await press(pilot, "ctrl+w")
        assert pane.has_focus_within
        await press(pilot, "ctrl+w")
        assert shown_rows(app).has_focus
        await press(pilot, "ctrl+w", "v")
        assert not pane.display
        assert shown_rows(app).has_focus
        await press(pilot, "v")
        assert pane.display


def test_a_small_curve_falls_where_its_values_fall_and_leaves_out_what_is_not_finite() -> None:
    curve = small_curve([4.0, 3.0, 2.0, 1.0], 8, 2)
    assert (curve.low, curve.high) == (1.0, 4.0)
    lines = curve.lines
    assert [len(line) for line in lines] == [8, 8]
    assert lines[0].strip() == lines[0].rstrip()
    assert lines[1].startswith(" ")
    assert small_curve([math.nan, math.inf], 8, 2).lines == ()
    assert small_curve([], 8, 2).lines == ()
    assert len(small_curve([2.0, 2.0, 2.0], 8, 1).lines) == 1
    assert all(
        letter in " .':"
        for letter in "".join(small_curve([1.0, 5.0, 2.0], 6, 3, is_ascii=True).lines)
    )


async def test_a_click_on_the_other_stream_shows_it(tmp_path: Path) -> None:
    put(tmp_path / "job.out", training_log(range(1, 50)))
    put(tmp_path / "job.err", b"a warning\n")
    app = log_dashboard(tmp_path)
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        await pointed_at(pilot, RUNNING)
        await until(pilot, lambda: "Log  stdout  stderr" in screen_text(app), "both streams")
        await until(pilot, lambda: "iteration       49/" in screen_text(app), "its end")
        await settled(pilot)
        await pilot.click("#heading", offset=(15, 0))
        await until(pilot, lambda: "a warning" in screen_text(app), "stderr")
        assert "job.err" in screen_text(app)


async def test_a_log_stays_where_one_scrolled_and_shows_its_end_again_for_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", 0.1)
    log = tmp_path / "job.out"
    put(log, training_log(range(1, 201)))
    app = log_dashboard(tmp_path, both_in_one=True)
    async with app.run_test(size=UNDER) as pilot:
        await settled(pilot)
        await pointed_at(pilot, RUNNING)
        await until(pilot, lambda: "iteration      200/" in screen_text(app), "the end")
        pane = app.main.view.query_one("#log", VerticalScroll)
        pane.scroll_relative(y=-20, animate=False)
        await until(pilot, lambda: "iteration      200/" not in screen_text(app), "scrolled up")
        append(log, b" iteration 201/ 4000 | lm loss: 1.5 | grad norm: 1 |\n")
        await until(pilot, lambda: " 1.5 " in screen_text(app), "the new loss")
        assert "iteration 201/ 4000" not in screen_text(app)
        await pointed_at(pilot, PENDING)
        await pointed_at(pilot, RUNNING)
        await until(pilot, lambda: "iteration 201/ 4000" in screen_text(app), "the end again")


async def test_a_waiting_job_has_how_long_jobs_like_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = log_dashboard(tmp_path, both_in_one=True)
    store = app.sessions[0].store
    async with app.run_test(size=BESIDE) as pilot:
        await settled(pilot)
        row = known_row(store, PENDING)
        assert row is not None
        same = {name: row[name] for name in ("queue", "nodes", "gpus", "limit_seconds")}
        runs = [
            job_row("1", **same, submitted_at=at(0), started_at=at(60 * minutes))
            for minutes in range(1, 11)
        ]
        monkeypatch.setattr(store.archive, "known_waits", lambda: compute_waits(build_table(*runs)))
        await pointed_at(pilot, PENDING)
        await until(
            pilot,
            lambda: "similar jobs half started within" in screen_text(app),
            "how long others waited",
        )
        await pointed_at(pilot, RUNNING)
        assert "similar jobs" not in screen_text(app)


async def test_a_second_that_goes_by_while_an_array_is_looked_at_loses_no_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", math.inf)
    group_failures, has_begun, may_go_on = (
        JobOverview._group_failures,
        asyncio.Event(),
        asyncio.Event(),
    )

    async def slow(overview: JobOverview, row: Any) -> None:
        has_begun.set()
        await may_go_on.wait()
        await group_failures(overview, row)

    app = dashboard("training")
    async with app.run_test(size=(160, 45)) as pilot:
        await press(pilot, "4")
        monkeypatch.setattr(JobOverview, "_group_failures", slow)
        shown_rows(app).move_to("13[]")
        await until(pilot, has_begun.is_set, "the array")
        overview = app.main.view.query_one(JobOverview)
        overview.tick()
        # A poll brings the job in a row of its own.
        overview.point_at(dict(overview._row or {}))
        may_go_on.set()
        await until(
            pilot, lambda: "task 3 · FloatingPointError" in screen_text(app), "why it failed"
        )
