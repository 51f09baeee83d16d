"""What a person chose on the screen is there in the next run."""

from __future__ import annotations

from hpcdash.services.state.choices import Choices
from tests.ui.stage import dashboard, ids_of, press, screen_text, settled, shown_rows, type_text

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
        assert shown_rows(again).row_count == 23, "arrays are unfolded"
        assert not view.overview.display
        await press(pilot, "slash")
        assert "/ gpu" in screen_text(again), "the last filter is proposed"


async def test_columns_of_another_version_are_left_out() -> None:
    app = dashboard(
        choices=Choices(theme="gone", columns={"jobs": ("gone",)}, sort={"jobs": "gone"})
    )
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert app.main.view.column_names == app.main.view.spec.shown
        assert shown_rows(app).row_count > 10


async def test_the_last_filter_and_the_folds_are_there_again_and_esc_clears_the_filter() -> None:
    app = dashboard()
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        array = next(one for one in ids_of(app) if one.endswith("[]"))
        shown_rows(app).move_to(array)
        await press(pilot, "enter")
        unfolded = ids_of(app)
        await press(pilot, "slash")
        await type_text(pilot, "state:running")
        await press(pilot, "enter")
    again = dashboard(choices=app.choices)
    async with again.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert "Filter from the last session: state:running" in screen_text(again)
        assert "/state:running" in screen_text(again).splitlines()[0]
        await press(pilot, "escape")
        assert ids_of(again) == unfolded


async def test_a_filter_of_the_last_time_that_cannot_be_read_is_left_out() -> None:
    app = dashboard(choices=Choices(filter="gone:yes"))
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        assert "Filter from the last session" not in screen_text(app)
        assert ids_of(app)


async def test_what_was_chosen_in_a_view_that_is_not_opened_stays() -> None:
    before = Choices(
        columns={"nodes": ("name", "state")}, sort={"history": "name"}, filter="state:running"
    )
    app = dashboard(choices=before, first_view="queues")
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "q")
    assert (app.choices.columns, app.choices.sort, app.choices.filter) == (
        before.columns,
        before.sort,
        before.filter,
    )
