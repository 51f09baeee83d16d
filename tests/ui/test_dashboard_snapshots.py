"""What each view looks like, on recorded cases whose clock stands still."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.ui.stage import dashboard, press, settled

SMALL, USUAL, LARGE = (80, 24), (120, 34), (200, 50)

# View: the case, and the keys that lead there.
SCENES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mine": ("everyday", ()),
    "everyone": ("everyday", ("m",)),
    "unfolded": ("arrays", ("m", "a", "end")),
    "nodes": ("everyday", ("2",)),
    "queues": ("everyday", ("3",)),
    "history": ("everyday", ("4",)),
    "clusters": ("everyday", ("6",)),
    "job": ("everyday", ("d",)),
    "node": ("everyday", ("2", "end", "enter")),
    "columns": ("everyday", ("comma",)),
    "help": ("everyday", ("question_mark",)),
    "filter": ("everyday", ("m", "slash", *"gpu")),
    "error": ("controller-down", ()),
    "hostile": ("hostile", ()),
}
SHOWN = [
    *((name, SMALL) for name in ("everyone", "job", "help")),
    *((name, USUAL) for name in SCENES),
    ("everyone", LARGE),
]


@pytest.fixture(autouse=True)
def _no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back-off of a failed question has no jitter."""
    monkeypatch.setattr("hpcdash.services.cluster.poller.random.random", lambda: 0.5)


@pytest.mark.parametrize(("scene", "size"), SHOWN, ids=[f"{name}-{size[0]}x{size[1]}" for name, size in SHOWN])
def test_a_view_looks_as_it_did(snap_compare: Any, scene: str, size: tuple[int, int]) -> None:
    case, keys = SCENES[scene]

    async def go_there(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        for key in keys:
            await press(pilot, key)
        for field in pilot.app.screen.query(Input):
            field.cursor_blink = False
        await settled(pilot)

    assert snap_compare(dashboard(case), terminal_size=size, run_before=go_there)
