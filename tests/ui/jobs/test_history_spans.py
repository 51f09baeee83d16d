"""The history of change the time range: its picker, its progress, and how it is stopped."""

from __future__ import annotations

import asyncio

import pytest
from textual.widgets import Input, Static

from hpcdash.ui.app import HpcdashApp
from tests.support.accounting import RUNS_ASKED, Accounting
from tests.support.slurm_text import Fields
from tests.ui.stage import (
    NOW,
    answering,
    answering_transport,
    ids_of,
    press,
    screen_text,
    shown_rows,
    until,
)

DAY = 86_400


def run(job_id: str, days_ago: float, **fields: str) -> Fields:
    end = int(NOW - days_ago * DAY)
    times = {
        "start": str(end - 3600),
        "end": str(end),
        "submit": str(end - 7200),
        "eligible": str(end - 7200),
    }
    return {"jobid": job_id, "user": "user000", **times, **fields}


@pytest.fixture
def accounting() -> Accounting:
    everyone = run("50", 50, user="user001", jobname="[red]\x1b[31m")
    return Accounting([run("1", 1), run("2", 20), run("3", 80), everyone, run("4", 300)])


@pytest.fixture
def app(accounting: Accounting) -> HpcdashApp:
    transport = answering_transport()
    transport.answers[RUNS_ASKED] = accounting
    return HpcdashApp([answering(transport)])


async def test_a_span_is_chosen_and_shown_with_whose_jobs(
    app: HpcdashApp, accounting: Accounting
) -> None:
    async with app.run_test(size=(140, 40)) as pilot:
        await press(pilot, "4")
        assert "w shows older jobs" in screen_text(app)
        await pilot.press("w", "down", "down", "enter")
        await until(pilot, lambda: ids_of(app) == ["1", "2", "3"])
        assert "mine › 90 days" in screen_text(app)
        asked = len(accounting.asked)
        await press(pilot, "m")
        await until(pilot, lambda: ids_of(app) == ["1", "2", "50", "3"])
        assert "\x1b" not in screen_text(app)
        assert len(accounting.asked) > asked
        await pilot.press("w", "up", "up", "enter")
        await until(pilot, lambda: "7 days" in screen_text(app))


async def test_the_cursor_follows_the_newest_end_until_a_person_moves_it(
    app: HpcdashApp, accounting: Accounting
) -> None:
    async with app.run_test(size=(140, 40)) as pilot:
        await press(pilot, "4")
        await pilot.press("w", "down", "down", "enter")
        await until(pilot, lambda: ids_of(app) == ["1", "2", "3"])

        async def end_another(job_id: str) -> None:
            accounting.runs.append(run(job_id, 0.01 / len(accounting.runs)))
            shown = ids_of(app)
            await pilot.press("ctrl+r")
            await until(pilot, lambda: ids_of(app) == [job_id, *shown])

        await end_another("5")
        assert shown_rows(app).cursor_id == "5"
        await press(pilot, "down")
        assert shown_rows(app).cursor_id == "1"
        await end_another("6")
        assert shown_rows(app).cursor_id == "1"


async def test_any_span_can_be_typed_and_a_bad_one_says_why(app: HpcdashApp) -> None:
    async with app.run_test(size=(140, 40)) as pilot:
        await press(pilot, "4", "w", "end", "enter")
        app.screen.query_one("#since", Input).value = "soon"
        await pilot.press("enter")
        await until(
            pilot, lambda: "not a time" in str(app.screen.query_one("#problem", Static).render())
        )
        app.screen.query_one("#since", Input).value = "100d"
        app.screen.query_one("#until", Input).value = "30d"
        await pilot.press("enter")
        await until(pilot, lambda: ids_of(app) == ["3"])
        assert "100d to 30d" in screen_text(app)


async def test_esc_stops_it_and_what_has_come_is_shown(
    app: HpcdashApp, accounting: Accounting
) -> None:
    never = asyncio.Event()
    accounting.before = lambda turn: never if turn == 1 else None
    async with app.run_test(size=(140, 40)) as pilot:
        await press(pilot, "4")
        await pilot.press("w", "down", "down", "down", "enter")
        await until(pilot, lambda: "esc stops" in screen_text(app) and len(accounting.asked) == 2)
        assert "% of 1 year" in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: ids_of(app) == ["1", "2"])
        assert "esc stops" not in screen_text(app)
        accounting.before = lambda turn: None
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ids_of(app) == ["1", "2", "3", "4"])
