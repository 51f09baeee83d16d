"""Filters worth keeping are tabs above the table, of the cluster and the view they were kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from hpcdash.ui.widgets.filter_tabs import FilterTabs
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import EVERYDAY, acting_app
from tests.ui.stage import ids_of, notices, press, screen_text, settled, type_text, until

SIZE = (120, 34)


async def keep_filter(pilot: Pilot[Any], text: str) -> None:
    await press(pilot, "slash")
    await type_text(pilot, text)
    await press(pilot, "enter", "B")


async def test_bookmarked_filters_are_tabs_that_keys_and_mouse_choose(tmp_path: Path) -> None:
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        everything = ids_of(app)
        tabs = app.main.view.query_one(FilterTabs)
        assert not tabs.display
        await press(pilot, "greater_than_sign")
        assert "no bookmarks; B bookmarks the current filter" in notices(app)
        await keep_filter(pilot, "state:running")
        await press(pilot, "escape")
        await keep_filter(pilot, "id:302")
        await until(pilot, lambda: "all │ state:running │ id:302" in screen_text(app), "the tabs")
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert ids_of(app) == everything
        await press(pilot, "less_than_sign")
        assert ids_of(app) == ["302"]
        await press(pilot, "greater_than_sign", "greater_than_sign")
        running = ids_of(app)
        assert {"101", "102"} <= set(running)
        tabs = app.main.view.query_one(FilterTabs)
        at = str(tabs.render()).index("id:302")
        await pilot.click(FilterTabs, offset=(tabs.content_offset.x + at + 1, 0))
        await settled(pilot)
        assert ids_of(app) == ["302"]
        await press(pilot, "B")
        await until(pilot, lambda: "id:302" not in str(tabs.render()), "one tab less")
        await press(pilot, "2")
        assert not app.main.view.query_one(FilterTabs).display


async def test_a_bookmark_of_another_version_that_is_no_filter_says_so(tmp_path: Path) -> None:
    from hpcdash.services.state.notes import JobNotes

    JobNotes(tmp_path, "lab").bookmark("jobs", "colour:red")
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        before = ids_of(app)
        await press(pilot, "greater_than_sign")
        assert "no column colour" in " ".join(notices(app))
        assert ids_of(app) == before


async def test_on_a_narrow_screen_the_chosen_tab_is_on_the_line(tmp_path: Path) -> None:
    from hpcdash.services.state.notes import JobNotes

    for number in range(12):
        JobNotes(tmp_path, "lab").bookmark("jobs", f"name~experiment-{number}")
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=(60, 20)) as pilot:
        await settled(pilot)
        await press(pilot, "less_than_sign")
        line = next(line for line in screen_text(app).splitlines() if "│" in line)
        assert "name~experiment-11" in line
