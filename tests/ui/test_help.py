"""Finding without reading: the help's menu, lists of what can be typed, the line of keys, the last
view.
"""

from __future__ import annotations

import pytest

from hpcdash.ui.command_line import CandidateList
from hpcdash.ui.help import HelpDialog
from hpcdash.ui.widgets.lines import KeyLine
from tests.ui.stage import (
    dashboard,
    ids_of,
    press,
    screen_text,
    settled,
    shown_rows,
    type_text,
    until,
)

USUAL, SMALL = (120, 34), (80, 24)


async def test_what_is_typed_in_the_help_leaves_what_has_it_and_enter_runs_it() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "question_mark")
        assert isinstance(app.screen, HelpDialog)
        await type_text(pilot, "queue zz")
        assert "Nothing matches" in screen_text(app)
        await press(pilot, *["backspace"] * 3)
        assert "requeue (confirms)" in screen_text(app)
        assert "batch script" not in screen_text(app)
        await press(pilot, "down", "up", "escape", "question_mark")
        await type_text(pilot, "nodes")
        await press(pilot, "enter")
        await until(pilot, lambda: app.main.view_name == "nodes", "the view chosen")
        assert app.screen is app.main


async def test_the_help_has_the_language_of_filters_and_finds_it() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "question_mark")
        await type_text(pilot, "filters")
        assert "state:running,pending" in screen_text(app)
        await press(pilot, "enter")
        assert isinstance(app.screen, HelpDialog), "nothing to run"


async def test_a_filter_opens_with_examples_and_keys_and_lists_what_what_is_typed_may_become() -> (
    None
):
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "slash")
        listed = str(app.main.query_one(CandidateList).render())
        assert "gpus>=8" in listed
        assert "user:me" in listed
        await type_text(pilot, "sta")
        listed = str(app.main.query_one(CandidateList).render()).split()
        assert listed[:2] == ["state:", "started_at:"]
        await press(pilot, "tab")
        await type_text(pilot, "run")
        assert "state:running" in str(app.main.query_one(CandidateList).render())
        await press(pilot, "tab", "enter")
        assert not app.main.query_one(CandidateList).display
        await press(pilot, "escape", "2", "slash")
        assert "gpus>=8" in str(app.main.query_one(CandidateList).render())
        assert "limit>2h" not in str(app.main.query_one(CandidateList).render()), (
            "nodes have no limit"
        )


async def test_a_command_opens_with_views_and_what_was_entered_before() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "colon")
        assert "queues view" in str(app.main.query_one(CandidateList).render())
        await type_text(pilot, "nodes state:idle")
        await press(pilot, "enter", "colon")
        assert str(app.main.query_one(CandidateList).render()).split()[:3] == [
            "nodes",
            "state:idle",
            "recent",
        ]
        await press(pilot, "escape")
        assert not app.main.query_one(CandidateList).display


@pytest.mark.parametrize("size", [SMALL, USUAL, (250, 70)])
async def test_the_line_of_keys_begins_with_what_matters_for_the_row(size: tuple[int, int]) -> None:
    app = dashboard("everyday")
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        keys = app.main.query_one(KeyLine)
        shown_rows(app).move_to("6")
        await until(
            pilot, lambda: str(keys.render()).startswith("l log   g chart"), "keys of a running job"
        )
        shown_rows(app).move_to("61")
        await until(pilot, lambda: "h hold or release" in str(keys.render()), "keys of a held one")
        assert "? help" in str(keys.render())
        assert "/ filter" in str(keys.render())
        if size[0] > 200:
            assert "ctrl+p commands" in str(keys.render())


async def test_minus_shows_the_last_view() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "3", "minus")
        assert app.main.view_name == "jobs"
        await press(pilot, "minus")
        assert app.main.view_name == "queues"
        await press(pilot, "1", "l", "minus")
        assert app.main.view_name == "jobs"


async def test_a_column_to_sort_by_can_be_chosen_and_chosen_again_turns_it_round() -> None:
    app = dashboard("everyday")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        view = app.main.view
        await press(pilot, "ctrl+o")
        assert "Sort by" in screen_text(app)
        await press(pilot, "home", "down", "enter")
        assert (view.sort_key, view.sort_descending) == (view.sort_keys()[0], False)
        ascending = ids_of(app)
        await press(pilot, "ctrl+o", "enter")
        assert (view.sort_key, view.sort_descending) == (view.sort_keys()[0], True)
        assert ids_of(app) == ascending[::-1]
