"""Text of the screen: its height, and what it never is."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.containers import Vertical

from hpcdash.ui.widgets.lines import PlainStatic
from tests.ui.stage import dashboard, screen_text, settled


class _OneText(App[None]):
    CSS = """
    Vertical { height: 10; }
    PlainStatic { height: auto; }
    """

    def compose(self) -> ComposeResult:
        with Vertical():
            yield PlainStatic("[bold]one[/bold]")


async def test_its_height_follows_a_second_update_after_a_layout_of_another_widget() -> None:
    async with _OneText().run_test() as pilot:
        text = pilot.app.query_one(PlainStatic)
        text.update("one\ntwo\nthree")
        # Another widget's layout comes before the text has reported its own.
        pilot.app.screen._refresh_layout()
        assert text.size.height == 3
        text.update("one\ntwo")
        await pilot.pause()
        assert text.size.height == 2


async def test_it_is_not_read_as_markup() -> None:
    async with _OneText().run_test() as pilot:
        assert "[bold]one[/bold]" in screen_text(pilot.app)


async def test_a_notification_is_not_read_as_markup() -> None:
    async with dashboard().run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        pilot.app.main.view.notify("[bold]job[/bold]")
        await pilot.pause()
        assert [note.markup for note in pilot.app._notifications] == [False]
