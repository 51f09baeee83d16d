"""Whose terminal has no focus is told by it when jobs end: what is written to it, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.events import AppBlur, AppFocus

from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.tracker import JobEvent
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.terminal import desktop_notification
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import EVERYDAY, acting_app
from tests.ui.stage import settled, until

ENDED = JobEvent(0.0, "101", "train\x1b]0;x\a", "running", "completed")
BEGAN = JobEvent(0.0, "102", "eval", "pending", "running")


async def written(
    app: HpcdashApp, monkeypatch: pytest.MonkeyPatch, event: JobEvent, *, focus: bool = False
) -> str:
    """What the terminal is sent besides what is painted, from an event on."""
    found: list[str] = []
    async with app.run_test(size=(120, 34)) as pilot:
        await settled(pilot)
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", found.append)
        app.post_message(AppFocus() if focus else AppBlur())
        await until(pilot, lambda: app.app_focus is focus, "the focus")
        app.main._store_changed(app.main.session, Changed(Kind.MINE, (event,)))
        await pilot.pause()
    return "".join(one for one in found if "hpcdash" in one or one == "\a")


async def test_without_focus_the_end_of_a_job_is_a_desktop_notification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path, notify="osc9")
    text = await written(app, monkeypatch, ENDED)
    assert text.startswith("\x1b]9;hpcdash: 101 train")
    assert text.endswith("completed on lab\x1b\\\a")
    assert text.count("\x1b") == 2


@pytest.mark.parametrize(
    ("event", "focus", "way"),
    [(ENDED, True, "osc9"), (BEGAN, False, "osc9"), (ENDED, False, "none")],
)
async def test_nothing_is_sent_with_focus_or_where_nothing_ended_or_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: JobEvent, focus: bool, way: str
) -> None:
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path, notify=way)
    assert await written(app, monkeypatch, event, focus=focus) == ""


def test_each_way_has_its_own_sequence_and_tmux_is_passed_through() -> None:
    assert desktop_notification("bell", "7 ended") == "\a"
    assert desktop_notification("osc777", "7; ended") == "\x1b]777;notify;hpcdash;7, ended\x1b\\\a"
    assert (
        desktop_notification("osc9", "7", in_tmux=True)
        == "\x1bPtmux;\x1b\x1b]9;hpcdash: 7\x1b\x1b\\\x1b\\\a"
    )


def test_no_name_of_a_job_controls_the_terminal() -> None:
    for hostile in ("\x1b\\\x1b]52;c;aGk=\a", "\x9c\x9d52;c;x", "\r\n", "\x00"):
        inside = (
            desktop_notification("osc9", hostile)
            .removeprefix("\x1b]9;hpcdash: ")
            .removesuffix("\x1b\\\a")
        )
        assert not [letter for letter in inside if letter < " " or "\x7f" <= letter <= "\x9f"]
