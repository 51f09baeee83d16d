"""What each view looks like, on recorded cases whose clock stands still."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from textual.pilot import Pilot

from tests.ui.metrics.chart_stage import drawn
from tests.ui.stage import dashboard, press, screen_text, settled, shown_rows, until

SMALL, LOW, USUAL, WIDE, LARGE = (80, 24), (100, 30), (120, 34), (160, 45), (250, 70)


class Scene(NamedTuple):
    """The case, the keys that lead to a table, the row to point at there, the keys from there on,
    what is seen then.
    """

    case: str = "training"
    before: tuple[str, ...] = ()
    row: str = ""
    keys: tuple[str, ...] = ()
    shown: str = ""


SCENES: dict[str, Scene] = {
    "mine": Scene(row="6", shown="step 29140 loss"),
    "array": Scene(before=("4",), row="13[]", shown="task 3 · FloatingPointError"),
    "everyone": Scene(before=("m",)),
    "unfolded": Scene("arrays", before=("m",), keys=("a", "end")),
    "nodes": Scene(keys=("2",)),
    "queues": Scene(keys=("3",)),
    "history": Scene(before=("4",), row="52", shown="Segmentation fault"),
    "clusters": Scene("everyday", keys=("6",)),
    "job": Scene(row="6", keys=("d",)),
    "failed job": Scene(before=("4",), row="52", keys=("d",), shown="Segmentation fault"),
    "node": Scene(keys=("2", "end", "enter")),
    "log": Scene(row="6", keys=("l",), shown="step 29140 loss"),
    "chart": Scene(row="6", keys=("g",), shown="spike at"),
    "script": Scene(row="6", keys=("b",), shown="--signal=USR1@300"),
    "triage": Scene(before=("4",), row="13[]", keys=("t",), shown="FloatingPointError"),
    "chain": Scene(row="57", keys=("c",), shown="Chain of 57"),
    "journal": Scene(keys=("J",)),
    "columns": Scene(keys=("comma",)),
    "help": Scene(keys=("question_mark",)),
    "filter": Scene(before=("m",), keys=("slash", *"gpu")),
    "error": Scene("controller-down"),
    "hostile": Scene("hostile"),
}
# What stands at a size of its own.
SIZES = {"chart": WIDE, "log": WIDE, "array": WIDE, "journal": SMALL}
SHOWN = [
    *((name, SMALL) for name in ("mine", "job", "help")),
    *((name, SIZES.get(name, USUAL)) for name in SCENES),
    *(("mine", size) for size in (LOW, WIDE, LARGE)),
]


@pytest.fixture(autouse=True)
def _no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back-off of a failed question has no jitter."""
    monkeypatch.setattr("hpcdash.services.cluster.poller.random.random", lambda: 0.5)


@pytest.mark.parametrize(
    ("scene", "size"), SHOWN, ids=[f"{name}-{size[0]}x{size[1]}" for name, size in SHOWN]
)
def test_a_view_looks_as_it_did(
    snap_compare: Any, monkeypatch: pytest.MonkeyPatch, scene: str, size: tuple[int, int]
) -> None:
    case, before, row, keys, shown = SCENES[scene]
    # A log in the overview is read once.
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", math.inf)

    async def go_there(pilot: Pilot[Any]) -> None:
        app = pilot.app
        await settled(pilot)
        for key in before:
            await press(pilot, key)
        if row:
            shown_rows(app).move_to(row)  # type: ignore[arg-type]
            await settled(pilot)
        for key in keys:
            await press(pilot, key)
        if scene == "chart":
            await drawn(pilot)
        # At 80 columns there is no overview.
        if shown and (keys or size != SMALL):
            await until(pilot, lambda: shown in screen_text(app), f"{shown!r} is seen")
        await settled(pilot)

    assert snap_compare(dashboard(case), terminal_size=size, run_before=go_there)
