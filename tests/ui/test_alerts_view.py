"""The view of alerts: what the watchdogs find in what the dashboard knows, silenced, announced once, counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdash.config import settings_from_text
from hpcdash.stores.watch_board import WatchBoard
from hpcdash.stores.watch_facts import FACTS_SCRIPT
from hpcdash.stores.watch_state import WatchFiles
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.widgets.lines import StatusLine
from tests.ui.stage import AnsweringTransport, answering, press, replayed, screen_text, settled, until

SIZE = (120, 34)
TEXT = """
[watch]
[[watch.running]]
name = "train-7b"
[watch.nodes]
"""


def watched(session: ClusterSession, folder: Path, text: str = TEXT) -> ClusterSession:
    settings = settings_from_text(text, folder / "config.toml").watch
    return replace(session, watching=WatchBoard(session.store, settings, WatchFiles(folder, session.name)))


def notices(app: HpcdashApp) -> list[str]:
    return [str(one.message) for one in app._notifications]


def status(app: HpcdashApp) -> str:
    return str(app.main.query_one(StatusLine).render())


async def test_5_shows_what_is_wrong_the_gravest_first_and_what_to_do(tmp_path: Path) -> None:
    app = HpcdashApp([watched(replayed(), tmp_path)])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "5")
        assert app.main.view_name == "alerts"
        await until(pilot, lambda: "is drained" in screen_text(app), "the nodes to be judged")
        lines = [line for line in screen_text(app).splitlines() if "!" in line]
        assert "!! critical" in lines[0]
        assert "no job train-7b" in lines[0]
        assert screen_text(app).index("no job train-7b") < screen_text(app).index("is drained"), screen_text(app)
        assert "submit it anew" in screen_text(app)
        await press(pilot, "enter")
        assert "is-running//train-7b" in screen_text(app)
        assert "a job does not run" in screen_text(app)
        await press(pilot, "escape", "slash", *"rule:drained", "enter")
        assert "no job train-7b" not in screen_text(app)


async def test_z_silences_an_alert_for_the_watchdogs_in_the_background_too(tmp_path: Path) -> None:
    session = watched(replayed(), tmp_path, '[watch]\nsnooze_seconds = "2h"\n[[watch.running]]\nname = "x"')
    app = HpcdashApp([session])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await until(pilot, lambda: "1 alert" in status(app), "the count")
        await press(pilot, "5")
        await until(pilot, lambda: "no job x" in screen_text(app), "the alert")
        await press(pilot, "z")
        assert "1 alert" not in status(app)
        ((key, end),) = WatchFiles(tmp_path, session.name).read_snoozed().items()
        assert key.startswith("is-running/")
        assert end == pytest.approx(session.store.clock.now() + 7200)
        await press(pilot, "z")
        assert WatchFiles(tmp_path, session.name).read_snoozed() == {}
        await until(pilot, lambda: "1 alert" in status(app), "the count")


async def test_a_new_alert_is_announced_once_and_rings_only_where_asked(tmp_path: Path) -> None:
    written: list[str] = []
    session = watched(replayed(), tmp_path, '[[watch.running]]\nname = "x"\n[watch.terminal]')
    app = HpcdashApp([session])
    async with app.run_test(size=SIZE) as pilot:
        assert app._driver is not None
        app._driver.write = written.append  # type: ignore[method-assign]
        await settled(pilot)
        await until(pilot, lambda: any("\x1b]9;hpcdash" in text for text in written), "it to ring")
        await press(pilot, "ctrl+r", "5")
        await settled(pilot)
        assert len([words for words in notices(app) if "no job x" in words]) == 1
        assert len([text for text in written if "\x1b]9;" in text]) == 1
        assert "\a" in "".join(written)


async def test_what_stands_in_the_view_of_alerts_is_not_announced_over_it(tmp_path: Path) -> None:
    app = HpcdashApp([watched(replayed(), tmp_path, '[[watch.running]]\nname = "x"')], first_view="alerts")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await until(pilot, lambda: "no job x" in screen_text(app), "the alert")
        assert [words for words in notices(app) if "no job x" in words] == []


async def test_without_asking_for_it_nothing_rings(tmp_path: Path) -> None:
    written: list[str] = []
    app = HpcdashApp([watched(replayed(), tmp_path, '[[watch.running]]\nname = "x"')])
    async with app.run_test(size=SIZE) as pilot:
        assert app._driver is not None
        app._driver.write = written.append  # type: ignore[method-assign]
        await settled(pilot)
        await until(pilot, lambda: "1 alert" in status(app), "the count")
        assert not any("\x1b]9;" in text or "\a" in text for text in written)


async def test_disks_and_logs_are_asked_for_only_while_alerts_are_shown(tmp_path: Path) -> None:
    transport = AnsweringTransport()
    session = watched(answering(transport), tmp_path, '[[watch.storage]]\npath = "/scratch"')
    app = HpcdashApp([session])

    def looks() -> int:
        return sum(FACTS_SCRIPT in words for words in transport.asked)

    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "ctrl+r")
        await settled(pilot)
        assert looks() == 0
        await press(pilot, "5")
        await until(pilot, lambda: looks() == 1, "one look")
        await press(pilot, "1", "ctrl+r")
        await settled(pilot)
        assert looks() == 1


async def test_what_has_a_hostile_name_is_shown_and_harms_nothing(tmp_path: Path) -> None:
    text = '[[watch.running]]\nname = "[bold]x[/] \\u001b]0;y\\u0007 [/b"'
    with pytest.raises(Exception, match="does not print"):
        watched(replayed(), tmp_path, text)
    app = HpcdashApp([watched(replayed(), tmp_path, '[[watch.running]]\nname = "[bold]x[/b] [link=a]"')])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "5")
        await until(pilot, lambda: "no job [bold]x[/b] [link=a]" in screen_text(app), "the alert")


async def test_where_nothing_is_configured_it_says_how(tmp_path: Path) -> None:
    session: Any = watched(replayed(), tmp_path, "")
    app = HpcdashApp([session])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert session.watching.alerts.states == {}
        await press(pilot, "5")
        await settled(pilot)
        text = screen_text(app)
        assert "hpcdash config example" in text or "will never start" in text


async def test_a_recording_says_that_it_has_no_watchdogs() -> None:
    app = HpcdashApp([replayed()])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "colon", *"alerts", "enter")
        told = [*notices(app), screen_text(app)]
        assert [words for words in told if "a recording has no watchdogs" in words]
