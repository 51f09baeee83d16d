"""What each view looks like on a PBS: recorded cases whose clock stands still."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from tests.ui.jobs.acting_stage import point_at
from tests.ui.stage import PBS_CASES, dashboard, press, settled

SMALL, LARGE = (80, 24), (120, 40)

# View: the case, the keys that lead to a table, the row to point at there (none: as it is), and the
# keys from there on.
SCENES: dict[str, tuple[str, tuple[str, ...], str, tuple[str, ...]]] = {
    "mine": ("everyday", (), "", ()),
    "training": ("training", (), "2.pbs01", ()),
    "everyone": ("everyday", ("m",), "", ()),
    "unfolded": ("everyday", ("a",), "14[4].pbs01", ()),
    "nodes": ("everyday", ("2",), "", ()),
    "node": ("everyday", ("2",), "gpu01[0]", ("enter",)),
    "queues": ("everyday", ("3",), "", ()),
    "history": ("everyday", ("4", "m"), "", ()),
    "ended": ("finished", ("4", "m"), "", ()),
    "running": ("everyday", ("m",), "3.pbs01", ("d",)),
    "waiting": ("everyday", (), "4.pbs01", ("d",)),
    "chained": ("everyday", (), "11.pbs01", ("d",)),
    "failed": ("everyday", ("4", "m"), "18.pbs01", ("d",)),
    "array": ("everyday", (), "14[].pbs01[]", ("d",)),
    "task": ("everyday", ("a",), "14[3].pbs01", ("d",)),
    "script": ("everyday", (), "22.pbs01", ("b",)),
    "log": ("everyday", (), "5.pbs01", ("l",)),
    "cancel": ("everyday", (), "14[].pbs01[]", ("x",)),
    "hold": ("everyday", (), "4.pbs01", ("h",)),
    "alter": ("everyday", (), "4.pbs01", ("A",)),
    "odd": ("odd", (), "", ()),
    "preempted": ("preempted", (), "", ()),
    "server down": ("server-down", (), "", ()),
    "no history": ("history-off", ("4",), "", ()),
    "server hung": ("server-hung", (), "", ()),
}
SHOWN = [("everyone", SMALL), *((name, LARGE) for name in SCENES)]


@pytest.fixture(autouse=True)
def _no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back-off of a failed question has no jitter."""
    monkeypatch.setattr("hpcdash.services.cluster.poller.random.random", lambda: 0.5)


@pytest.mark.parametrize(
    ("scene", "size"), SHOWN, ids=[f"{name}-{size[0]}x{size[1]}" for name, size in SHOWN]
)
def test_a_pbs_looks_as_it_did(snap_compare: Any, scene: str, size: tuple[int, int]) -> None:
    case, before, row, keys = SCENES[scene]

    async def go_there(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        for key in before:
            await press(pilot, key)
        if row:
            await point_at(pilot, row)
        for key in keys:
            await press(pilot, key)
        await settled(pilot)

    assert snap_compare(dashboard(case, cases=PBS_CASES), terminal_size=size, run_before=go_there)
