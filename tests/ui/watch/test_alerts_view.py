"""The view of alerts: what the watchdogs find in what the dashboard knows, silenced, announced
once, counted.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from hpcdash.config.read import settings_from_text
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.domain.tables import Kind
from hpcdash.errors import ConnectionFailed
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.session import ClusterSession
from hpcdash.services.watch.board import WatchBoard
from hpcdash.services.watch.facts import facts_script
from hpcdash.services.watch.state import WatchFiles
from hpcdash.ui.actions import help_groups
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.watch.view import AlertsView
from hpcdash.ui.widgets.lines import StatusLine
from tests.ui.stage import (
    answering,
    answering_transport,
    notices,
    press,
    replayed,
    screen_text,
    settled,
    until,
)

SIZE = (120, 34)
TEXT = """
[watch]
[[watch.running]]
name = "train-7b"
[watch.nodes]
"""


def watched(session: ClusterSession, folder: Path, text: str = TEXT) -> ClusterSession:
    settings = settings_from_text(text, folder / "config.toml").watch
    return replace(
        session, watching=WatchBoard(session.store, settings, WatchFiles(folder, session.name))
    )


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
        assert screen_text(app).index("no job train-7b") < screen_text(app).index("is drained"), (
            screen_text(app)
        )
        assert "submit it again" in screen_text(app)
        await press(pilot, "enter")
        assert "is-running//train-7b" in screen_text(app)
        assert "Job not running" in screen_text(app)
        await press(pilot, "escape", "slash", *"rule:drained", "enter")
        assert "no job train-7b" not in screen_text(app)


def test_the_alerts_of_a_recorded_cluster_look_as_they_did(
    snap_compare: Any, tmp_path: Path
) -> None:
    async def judged(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "is drained" in screen_text(pilot.app), "the nodes to be judged")
        await settled(pilot)

    session = watched(replayed("training"), tmp_path)
    assert snap_compare(
        HpcdashApp([session], first_view="alerts"), terminal_size=SIZE, run_before=judged
    )


async def test_z_silences_an_alert_for_the_watchdogs_in_the_background_too(tmp_path: Path) -> None:
    session = watched(
        replayed(), tmp_path, '[watch]\nsnooze_seconds = "2h"\n[[watch.running]]\nname = "x"'
    )
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
    app = HpcdashApp(
        [watched(replayed(), tmp_path, '[[watch.running]]\nname = "x"')], first_view="alerts"
    )
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
    transport = answering_transport()
    session = watched(answering(transport), tmp_path, '[[watch.storage]]\npath = "/scratch"')
    app = HpcdashApp([session])

    def looks() -> int:
        return sum(facts_script() in words for words in transport.argvs)

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

        began = session.store.clock.now()
        session.store.clock = FrozenClock(began + 40)
        await press(pilot, "5")
        await until(pilot, lambda: "checked 40 s ago" in status(app), "the age of the look")
        assert "live ·" not in status(app)
        assert looks() == 1
        await press(pilot, "1")
        session.store.clock = FrozenClock(began + 61)
        await press(pilot, "5")
        await until(pilot, lambda: looks() == 2, "a look when it is opened after long")
        await until(pilot, lambda: "checked 0 s ago" in status(app), "the age of the look")
        session.store.clock = FrozenClock(began + 122)
        await until(
            pilot,
            lambda: looks() == 3,
            "a look a minute while it is shown, however seldom [watch] looks",
        )
        await settled(pilot)
        # Where the cluster does not respond nothing is checked: the age is that of the check before.
        transport.fails["squeue"] = ConnectionFailed("no route to here", "Is the network up?")
        session.store.clock = FrozenClock(began + 192)
        await until(pilot, lambda: Kind.MINE in session.store.errors, "a look without an answer")
        await settled(pilot)
        await until(
            pilot,
            lambda: "checked 1 min ago" in status(app),
            "the age of the last look that was answered",
        )


async def test_what_has_a_hostile_name_is_shown_and_harms_nothing(tmp_path: Path) -> None:
    text = '[[watch.running]]\nname = "[bold]x[/] \\u001b]0;y\\u0007 [/b"'
    with pytest.raises(Exception, match="non-printable"):
        watched(replayed(), tmp_path, text)
    app = HpcdashApp(
        [watched(replayed(), tmp_path, '[[watch.running]]\nname = "[bold]x[/b] [link=a]"')]
    )
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "5")
        await until(pilot, lambda: "no job [bold]x[/b] [link=a]" in screen_text(app), "the alert")


async def test_where_nothing_is_configured_it_says_so_and_what_is_written_meanwhile_counts(
    tmp_path: Path,
) -> None:
    written: list[str] = []

    def reread() -> WatchSettings | None:
        return (
            settings_from_text(written.pop(), tmp_path / "config.toml").watch if written else None
        )

    transport = answering_transport()
    session = answering(transport)
    board = WatchBoard(
        session.store,
        WatchSettings(),
        WatchFiles(tmp_path, "here"),
        config_file="/home/ada/c.toml",
        reread=reread,
    )
    app = HpcdashApp([replace(session, watching=board)])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert board.alerts.states == {}
        await press(pilot, "5")
        await until(
            pilot,
            lambda: "No watchdogs: only jobs that never start are checked" in screen_text(app),
            "words",
        )
        assert "add [watch] to /home/ada/c.toml; see hpcdash config example" in screen_text(app)
        assert "No alerts" not in screen_text(app)
        await press(pilot, "1")
        written.append('[[watch.running]]\nname = "x"\n[[watch.storage]]\npath = "/scratch"')
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "1 alert" in status(app), "what was written to be watched")
        assert not transport.count(of_facts)
        await press(pilot, "5")
        await until(pilot, lambda: "no job x" in screen_text(app), "the alert")
        await until(pilot, lambda: transport.count(of_facts), "the disk to be looked at")
        written.append("[watch")
        await press(pilot, "ctrl+r")
        await until(
            pilot,
            lambda: "the configuration cannot be read" in screen_text(app),
            "what is wrong with it",
        )
        assert "no job x" in screen_text(app)


def of_facts(words: tuple[str, ...]) -> bool:
    return facts_script() in words


async def test_what_is_written_while_the_view_is_open_is_looked_at_before_nothing_is_wrong(
    tmp_path: Path,
) -> None:
    may_answer, written = asyncio.Event(), list[WatchSettings]()
    transport = answering_transport()
    transport.hangs[of_facts] = may_answer
    session = answering(transport)
    store = session.store
    board = WatchBoard(
        store,
        WatchSettings(),
        WatchFiles(tmp_path, "here"),
        reread=lambda: written.pop() if written else None,
    )
    app = HpcdashApp([replace(session, watching=board)])
    unwatched = "No watchdogs: only jobs that never start are checked"
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "5")
        await until(pilot, lambda: unwatched in screen_text(app), "words")
        text = '[[watch.storage]]\npath = "/scratch"'
        written.append(settings_from_text(text, tmp_path / "c.toml").watch)
        await store.fetch(Kind.MINE)
        await until(pilot, lambda: transport.count(of_facts) == 1, "the disk to be looked at")
        # A silenced alert, for one, has the view drawn anew.
        assert isinstance(app.main.view, AlertsView)
        app.main.view.reload()
        await pilot.pause()
        assert "looking …" in screen_text(app)
        assert "No alerts" not in screen_text(app)
        may_answer.set()
        await until(pilot, lambda: "No alerts" in screen_text(app), "what it found")
        written.append(WatchSettings())
        await store.fetch(Kind.MINE)
        await until(pilot, lambda: unwatched in screen_text(app), "nothing to be watched any more")


async def test_an_alert_about_a_job_leads_to_the_job_its_log_script_and_chart(
    tmp_path: Path,
) -> None:
    session = watched(replayed(), tmp_path, "[watch.nodes]\n[[watch.chains]]\n")
    app = HpcdashApp([session])
    async with app.run_test(size=(100, 30)) as pilot:
        await settled(pilot)
        await press(pilot, "5")
        await until(pilot, lambda: "is drained" in screen_text(app), "the nodes to be judged")
        view, board = app.main.view, session.watching
        assert isinstance(view, AlertsView)
        assert board is not None
        by_rule = {state.finding.rule: state.finding for state in board.states}
        node, train = by_rule["drained-nodes"], by_rule["no-successor"]
        assert view.rows.move_to(node.key)
        await until(
            pilot, lambda: "l log" not in screen_text(app).splitlines()[-1], "no keys of a job"
        )
        await press(pilot, "l", "d")
        assert app.main.view is view
        await press(pilot, "enter")
        assert node.key in screen_text(app)
        await press(pilot, "escape")

        assert view.rows.move_to(train.key)
        await press(pilot, "w")
        assert train.key in screen_text(app)
        await press(pilot, "escape")
        of_its_job = {
            one.name
            for words, group in help_groups(app.main.actions(), "alerts")
            for one in group
            if words == "Job"
        }
        assert of_its_job == {"detail", "log", "error_log", "chart", "script", "chain"}
        for key, name in (
            ("enter", "job"),
            ("d", "job"),
            ("l", "log"),
            ("e", "log"),
            ("b", "script"),
            ("g", "chart"),
        ):
            assert view.rows.move_to(train.key)
            assert "g chart" in screen_text(app).splitlines()[-1]
            await press(pilot, key)
            assert (app.main.view_name, getattr(app.main.view, "job_id", "")) == (
                name,
                train.subject,
            ), key
            await press(pilot, "q")
            assert app.main.view is view


async def test_a_recording_says_that_it_has_no_watchdogs() -> None:
    app = HpcdashApp([replayed()])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "colon", *"alerts", "enter")
        told = [*notices(app), screen_text(app)]
        assert [words for words in told if "no watchdogs in a recording" in words]
