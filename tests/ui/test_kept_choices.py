"""What a person chose on the screen is there in the next run."""

from __future__ import annotations

from hpcdash.services.state.choices import Choices
from tests.ui.stage import dashboard, press, rows_of, screen_text, settled, type_text

USUAL = (120, 34)


async def test_the_next_run_begins_with_what_the_last_one_chose() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "T", "v", "slash")
        await type_text(pilot, "gpu")
        await press(pilot, "enter", "escape", "a", "O")
        app.main.view.choose_columns(("id", "state", "name"))
        theme = app.theme
    again = dashboard(choices=app.choices)
    async with again.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert again.theme == theme
        view = again.main.view
        assert view.column_names == ("id", "state", "name")
        assert (view.sort_key, view.sort_descending) == ("state", True)
        assert rows_of(again).row_count == 18, "arrays are unfolded"
        assert not view.overview.display
        await press(pilot, "slash")
        assert "/ gpu" in screen_text(again), "the last filter is proposed"


async def test_columns_of_another_version_are_left_out() -> None:
    app = dashboard(choices=Choices(theme="gone", columns={"jobs": ("gone",)}, sort={"jobs": "gone"}))
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert app.main.view.column_names == app.main.view.DEFAULT_COLUMNS
        assert rows_of(app).row_count > 10
