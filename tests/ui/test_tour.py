"""The tour and the notice at the start: what they say, for whom, and how they go away."""

from __future__ import annotations

import pytest
from textual.widgets import Static
from textual.widgets._toast import Toast

from hpcdash.ui.actions import remapped
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.widgets.hints import HINTS, Notice, Tour
from tests.ui.stage import dashboard, notices, press, settled, until


def line_of(app: HpcdashApp) -> str:
    return shown(app.main.query_one(Tour))


def told_words(toast: Toast) -> str:
    return str(toast.render())


def shown(widget: Static) -> str:
    return str(widget.render())


@pytest.mark.parametrize("columns", [80, 120, 200])
async def test_every_hint_fits_beside_how_to_go_on(columns: int) -> None:
    app = dashboard(tour=True)
    async with app.run_test(size=(columns, 24)) as pilot:
        for number in range(1, len(HINTS) + 1):
            await pilot.pause()
            line = line_of(app)
            assert line.startswith(f"{number}/{len(HINTS)} ")
            assert "…" not in line
            assert line.endswith("ctrl+t next · ctrl+e end")
            assert len(line) <= columns - 2
            await pilot.press("ctrl+t")
        await pilot.pause()
        assert not app.main.query_one(Tour).display


async def test_in_a_narrow_terminal_how_to_go_on_stays() -> None:
    app = dashboard(tour=True)
    async with app.run_test(size=(50, 20)) as pilot:
        await pilot.pause()
        assert line_of(app).startswith("1/6 enter open")
        assert "…" in line_of(app)
        assert line_of(app).endswith("ctrl+t next · ctrl+e end")


async def test_doing_what_a_hint_says_goes_on_and_the_end_is_told_once() -> None:
    ends: list[str] = []
    app = dashboard(tour=True, tour_ended=lambda: ends.append("ended"))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        await pilot.press("a")
        assert line_of(app).startswith("1/6 ")
        await pilot.press("d")
        await pilot.pause()
        assert line_of(app).startswith("2/6 l live log")
        await pilot.press("ctrl+e")
        await pilot.pause()
        assert not app.main.query_one(Tour).display
        assert ends == ["ended"]
        # The keys are another's again.
        assert "tour_next" not in {action.name for action in app.main.actions()}
    assert ends == ["ended"]


async def test_leaving_is_an_end_as_well() -> None:
    ends: list[str] = []
    app = dashboard(tour=True, tour_ended=lambda: ends.append("ended"))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
    assert ends == ["ended"]


async def test_without_a_tour_nothing_is_told() -> None:
    ends: list[str] = []
    app = dashboard(tour_ended=lambda: ends.append("ended"))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert not app.main.query_one(Tour).display
        assert not app.main.query_one(Notice).display
    assert ends == []


async def test_remapped_keys_are_shown_as_they_are() -> None:
    app = dashboard(tour=True, actions=remapped({"open": "ctrl+y", "tour_next": "f2"}))
    async with app.run_test(size=(100, 24)) as pilot:
        await pilot.pause()
        assert line_of(app).startswith("1/6 ctrl+y open job · d full details")
        assert "f2 next" in line_of(app)
        await pilot.press("f2")
        await pilot.pause()
        assert line_of(app).startswith("2/6 ")


async def test_what_cannot_be_done_is_not_told() -> None:
    app = dashboard(tour=True, read_only=True)
    async with app.run_test(size=(100, 24)) as pilot:
        said = []
        while app.main.query_one(Tour).display or not said:
            await pilot.pause()
            said.append(line_of(app))
            await pilot.press("ctrl+t")
            await pilot.pause()
        assert [line[:4] for line in said] == ["1/5 ", "2/5 ", "3/5 ", "4/5 ", "5/5 "]
        assert not any("cancel" in line or "save" in line for line in said)


async def test_the_hint_is_one_for_the_view_one_is_in() -> None:
    app = dashboard(tour=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        assert line_of(app).startswith("1/6 enter open job")
        await press(pilot, "2")
        assert line_of(app).startswith("1/6 ? all keys"), "none was followed yet"
        await press(pilot, "1")
        await app.main.push("chart", job_id="16")
        await settled(pilot)
        assert line_of(app).startswith("1/6 l live log")
        await press(pilot, "escape")
        assert line_of(app).startswith("1/6 enter open job")
        await press(pilot, "e")
        assert app.main.view_name == "log"
        assert line_of(app).startswith("1/6 S save checkpoint")
        await press(pilot, "escape", "n")
        # A form's keys are its fields'.
        await until(
            pilot, lambda: app.main.view_name == "submit" and not app.main.query_one(Tour).display
        )


async def test_notifications_stand_above_the_status_and_never_many_of_them() -> None:
    app = dashboard(tour=True)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settled(pilot)
        app.notify("not submitted: no such account", severity="error", timeout=30)
        for number in (7, 8, 9):
            app.notify(f"{number} train completed", timeout=30)
        await until(
            pilot, lambda: any("9 train" in told_words(toast) for toast in app.main.query(Toast))
        )
        await until(pilot, lambda: len(app.main.query(Toast)) == 2)
        toasts = list(app.main.query(Toast))
        assert [told_words(toast) for toast in toasts] == [
            "not submitted: no such account",
            "9 train completed",
        ]
        # Above the status and the keys.
        assert [toast.region.bottom for toast in toasts] == [27, 28]
        assert [(toast.region.x >= 60, toast.region.right) for toast in toasts] == [(True, 100)] * 2


async def test_a_notice_stands_below_the_table_until_it_is_put_away() -> None:
    app = dashboard(notice="no cluster is [b]configured[/b]: this is \x1b[31mthis machine's queue")
    async with app.run_test(size=(80, 24)) as pilot:
        notice = app.main.query_one(Notice)
        await until(pilot, lambda: notice.display, "the notice")
        await pilot.pause()
        assert "[b]configured[/b]" in shown(notice)
        assert "\x1b" not in shown(notice)
        assert not notices(app)
        table = app.main.view.region
        assert notice.region.y >= table.bottom
        await pilot.press("escape")
        await pilot.pause()
        assert not notice.display


async def test_escape_goes_back_from_a_view_though_a_notice_stands() -> None:
    app = dashboard()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: app.main.view_name == "nodes")
        app.main.notice("no cluster is configured")
        await pilot.press("escape")
        await until(pilot, lambda: app.main.view_name == "jobs")
        assert not app.main.query_one(Notice).display
