"""What the dialogs around an action look like, and the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from hpcdash.ui.jobs.action_dialogs import ResultsDialog
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import EVERYDAY, PENDING, acting_app, job, mark
from tests.ui.jobs.test_journal_view import everyday
from tests.ui.stage import press, settled, type_text, until

SMALL, LARGE = (80, 24), (120, 40)
MINE = ("101", "200[]", "301", "302")


async def cancel(pilot: Pilot[Any]) -> None:
    await mark(pilot, *MINE, "400", "401")
    await press(pilot, "x")


async def many(pilot: Pilot[Any]) -> None:
    await mark(pilot, *(str(number) for number in range(1000, 1400)))
    await press(pilot, "x")


async def hold(pilot: Pilot[Any]) -> None:
    await mark(pilot, "301", "302")
    await press(pilot, "h")


async def results(pilot: Pilot[Any]) -> None:
    await mark(pilot, *MINE, "400")
    await press(pilot, "x", "y")
    await until(pilot, lambda: isinstance(pilot.app.screen, ResultsDialog))


async def signal(pilot: Pilot[Any]) -> None:
    await mark(pilot, "101", "102")
    await press(pilot, "z", "down")


async def alter(pilot: Pilot[Any]) -> None:
    await mark(pilot, "302")
    await press(pilot, "A")
    pilot.app.screen.query_one("#time", Input).value = ""
    await type_text(pilot, "soon")
    await press(pilot, "enter")


async def journal(pilot: Pilot[Any]) -> None:
    await press(pilot, "J")


async def entry(pilot: Pilot[Any]) -> None:
    await press(pilot, "J", "down", "down", "enter")


SCENES = (cancel, many, hold, results, signal, alter, journal, entry)
SHOWN = [(cancel, SMALL), *((scene, LARGE) for scene in SCENES)]


@pytest.mark.parametrize(
    ("scene", "size"), SHOWN, ids=[f"{scene.__name__}-{size[0]}x{size[1]}" for scene, size in SHOWN]
)
def test_acting_looks_as_it_did(
    snap_compare: Any, scene: Any, size: tuple[int, int], tmp_path: Path
) -> None:
    others = [
        job("400", username="bob", name="eval [bold]\x1b[2J", **PENDING),
        job("401", state="COMPLETED"),
    ]
    bulk = [job(str(number), **PENDING) for number in range(1000, 1400)] if scene is many else []
    transport = ScriptedTransport(*EVERYDAY, *others, *bulk)
    transport.refused = {"400": "Access/permission denied"}
    everyday(tmp_path)

    async def go_there(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await scene(pilot)
        await settled(pilot)

    assert snap_compare(acting_app(transport, tmp_path), terminal_size=size, run_before=go_there)
