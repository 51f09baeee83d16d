"""The log view where a job's output is on its node's own disk until the job ends; ssh is a program
of the test's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.domain.tables import Kind
from hpcdash.services.logs.file import UNREACHED_PAUSE_SECONDS
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.logs.stream import LogPace
from tests.support.node_disk import NOTE, REACHES, REFUSES, Node, make_node
from tests.support.real_files import append, put, remove
from tests.ui.logs.log_stage import (
    current_view,
    log_dashboard,
    open_log,
    pane_of,
    set_state,
    shows,
    shows_no_more,
)
from tests.ui.stage import screen_text, until

SIZE = (120, 30)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr("hpcdash.ui.logs.stream._SHORTEST_SECONDS", 0.05)
    monkeypatch.setattr("hpcdash.ui.logs.stream._LONGEST_SECONDS", 0.05)
    return make_node(tmp_path, monkeypatch)


async def end_the_job(pilot: Pilot[Any], app: HpcdashApp) -> None:
    set_state(app.main.session.store.transport, b"COMPLETED")
    await app.main.session.store.fetch(Kind.MINE)
    await pilot.pause()


async def test_a_log_on_a_node_is_followed_and_says_where_it_is(node: Node, tmp_path: Path) -> None:
    put(node.log, b"epoch 1\n")
    async with log_dashboard(tmp_path).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "epoch 1")
        append(node.log, b"epoch 2\n")
        await shows(pilot, "epoch 2")
        await shows(pilot, "stdout on cn01")
        await shows(pilot, NOTE)
        assert current_view(pilot).hint().startswith(f"cn01:{node.log}")
    assert "-oBatchMode=yes" in node.calls.read_text()


async def test_a_node_that_refuses_is_said_to_in_its_own_words(node: Node, tmp_path: Path) -> None:
    put(node.log, b"epoch 1\n")
    node.ssh_does(REFUSES)
    async with log_dashboard(tmp_path).run_test(size=(200, 30)) as pilot:
        await open_log(pilot)
        await shows(pilot, f"the log is on cn01 ({node.log})"[:60])
        await shows(pilot, NOTE)
        # Lines are cut wherever they are full.
        text = "".join(screen_text(pilot.app).replace("│", "").split())
        words = (
            "ssh cn01 from the login node does not work (maya@cn01: Permission denied "
            "(publickey,password).)"
        )
        assert "".join(words.split()) in text
        assert pane_of(pilot).error is None


async def test_a_node_that_refuses_is_asked_seldom(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(pace: LogPace, seconds: float) -> None:
        rests.append(seconds)
        if seconds >= UNREACHED_PAUSE_SECONDS:
            node.ssh_does(REACHES)
        await asyncio.sleep(0)

    monkeypatch.setattr(LogPace, "rest", rest)
    put(node.log, b"epoch 1\n")
    node.ssh_does(REFUSES)
    async with log_dashboard(tmp_path).run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "epoch 1")
        await until(pilot, lambda: len(rests) > 1)
    assert rests[0] >= UNREACHED_PAUSE_SECONDS
    assert min(rests[1:]) < 5


async def test_when_the_job_ends_its_log_is_shown_from_where_it_is_then(
    node: Node, tmp_path: Path
) -> None:
    put(node.log, b"epoch 1\n")
    app = log_dashboard(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "epoch 1")
        put(node.last, b"epoch 1\nthe very end\n")
        remove(node.log)
        await shows(pilot, "left cn01 at")
        assert "epoch 1" in screen_text(pilot.app)
        await end_the_job(pilot, app)
        await shows(pilot, "the very end")
        await shows_no_more(pilot, "on cn01")
        await shows(pilot, "the job ended")


async def test_one_who_reads_further_up_stays_there_when_the_log_moves(
    node: Node, tmp_path: Path
) -> None:
    lines = b"".join(b"line %05d\n" % number for number in range(2000))
    put(node.log, lines)
    app = log_dashboard(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "line 01999")
        await pilot.press("home")
        await shows(pilot, "line 00000")
        await pilot.press("down", "down", "down")
        await until(pilot, lambda: "line 00002" not in screen_text(pilot.app))
        put(node.last, lines + b"the very end\n")
        before = pane_of(pilot)
        await end_the_job(pilot, app)
        await until(
            pilot, lambda: pane_of(pilot) is not before and bool(pane_of(pilot).window.rows)
        )
        await shows(pilot, "line 00003")
        assert not pane_of(pilot).viewport.following


async def test_a_refused_log_is_shown_once_the_job_has_ended(node: Node, tmp_path: Path) -> None:
    node.ssh_does(REFUSES)
    app = log_dashboard(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await shows(pilot, "the log is on cn01")
        put(node.last, b"the very end\n")
        await end_the_job(pilot, app)
        await shows(pilot, "the very end")
