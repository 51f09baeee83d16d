"""What a click does: on gauges, on what `/` lists, in the overview."""

from __future__ import annotations

from typing import Any

from textual.pilot import Pilot
from textual.widgets import Input

from tests.ui.stage import dashboard, press, screen_text, settled, until

SIZE = (160, 45)


async def click(pilot: Pilot[Any], words: str, times: int = 1) -> None:
    """Click on the first letter of some words on the screen."""
    lines = screen_text(pilot.app).splitlines()
    [x, y] = next((line.find(words), y) for y, line in enumerate(lines) if words in line)
    await pilot.click(offset=(x, y), times=times)
    await settled(pilot)


async def test_a_gauge_leads_to_the_queues() -> None:
    app = dashboard("training")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await click(pilot, "gpu ━")
        assert app.main.view_name == "queues"


async def test_what_slash_lists_is_taken_by_a_click_and_filters_at_once() -> None:
    app = dashboard("training")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "slash")
        await click(pilot, "gpus>=8")
        assert app.screen.query_one(Input).value == "gpus>=8"
        await until(
            pilot,
            lambda: "dedup-images" not in screen_text(app).partition("Next ")[0],
        )
        assert "mae-vit-l" in screen_text(app)
        assert app.screen.query_one(Input).has_focus


async def test_a_double_click_in_the_overview_opens_the_log_or_the_page() -> None:
    app = dashboard("training")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await until(pilot, lambda: "INFO dedup" in screen_text(app), "the log")
        await click(pilot, "INFO dedup", times=2)
        await until(pilot, lambda: app.main.view_name == "log", "the log view")
        await press(pilot, "q")
        await until(pilot, lambda: "32 CPUs" in screen_text(app), "the overview")
        await click(pilot, "1 node, 32 CPUs", times=2)
        await until(pilot, lambda: app.main.view_name == "job", "the job's page")
