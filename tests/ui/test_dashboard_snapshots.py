"""What each view looks like, on recorded cases whose clock stands still."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
from textual.pilot import Pilot

from benchmarks.generate_jobs import jobs_text
from benchmarks.stand_in import nodes_text
from hpcdash.ui.app import HpcdashApp
from tests.support.scripted_transport import NODES
from tests.ui.metrics.chart_stage import drawn
from tests.ui.stage import (
    CASES,
    PBS_CASES,
    answering,
    answering_transport,
    dashboard,
    press,
    replayed,
    screen_text,
    settled,
    shown_rows,
    until,
)

SMALL, LOW, USUAL, WIDE, LARGE = (80, 24), (100, 30), (120, 34), (160, 45), (250, 70)
MAIN_SIZES = (SMALL, (120, 35), WIDE, (220, 60))
RAY_CASES = CASES.parents[1] / "ray" / "2.60"
MAIN_CASES = {
    "training": (CASES, "training"),
    "empty": (CASES, "empty"),
    "pbs": (PBS_CASES, "training"),
    "ray": (RAY_CASES, "training"),
}


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
    "job": Scene(row="6", keys=("d",)),
    "job and log": Scene(row="6", keys=("enter",), shown="step 29140 loss"),
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
SIZES = {"job and log": WIDE, "chart": WIDE, "log": WIDE, "array": WIDE, "journal": SMALL}
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


@pytest.mark.parametrize("size", MAIN_SIZES, ids=[f"{w}x{h}" for w, h in MAIN_SIZES])
@pytest.mark.parametrize("name", MAIN_CASES)
def test_the_first_screen_looks_as_it_did(
    snap_compare: Any, monkeypatch: pytest.MonkeyPatch, name: str, size: tuple[int, int]
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", math.inf)
    cases, case = MAIN_CASES[name]
    app = dashboard(case, cases=cases)

    async def read(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        if size[0] >= 180 and name != "empty":
            losses = app.main.view._logs
            await until(pilot, lambda: losses._took_seconds, "the losses of the rows")
            await settled(pilot)

    assert snap_compare(app, terminal_size=size, run_before=read)


def test_several_clusters_look_as_they_did(snap_compare: Any) -> None:
    app = HpcdashApp(
        [replayed("training"), replayed("controller-down"), replayed("everyday", PBS_CASES)]
    )

    async def visit_all(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        for name in ("controller-down", "everyday"):
            await press(pilot, "6")
            shown_rows(app).move_to(name)
            await press(pilot, "enter")
        await press(pilot, "6")

    assert snap_compare(app, terminal_size=(140, 20), run_before=visit_all)


@pytest.mark.parametrize(("jobs", "nodes"), [(200, 4_000), (100_000, 40)])
def test_a_large_cluster_looks_as_it_did(
    snap_compare: Any, monkeypatch: pytest.MonkeyPatch, jobs: int, nodes: int
) -> None:
    monkeypatch.setattr("hpcdash.ui.jobs.overview.READ_EVERY_SECONDS", math.inf)
    transport = answering_transport(mine=jobs_text(jobs))
    transport.answers[NODES] = nodes_text(nodes)
    app = HpcdashApp([answering(transport)])

    async def wall_drawn(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        # The occupancy of thousands of nodes is computed in a thread.
        await until(pilot, lambda: "yours · " in screen_text(app), "the wall")
        await settled(pilot)

    assert snap_compare(app, terminal_size=WIDE, run_before=wall_drawn)
