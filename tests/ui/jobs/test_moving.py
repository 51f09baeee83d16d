"""A waiting job moves from the dashboard: the places for it, the dialog with the commands, what
came of it, and what the next start says after a kill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.services.submit import moves
from hpcdash.services.submit.moves import run_move
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.submit.places import PlacesView
from tests.services.submit.test_moves import plan
from tests.support.moving_sites import RUNS, Killed, Sites
from tests.ui.stage import notices, press, screen_text, settled, until

SIZE = (150, 40)


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sites:
    async def no_pause(seconds: float) -> None:
        pass

    monkeypatch.setattr(moves, "pause", no_pause)
    return Sites(tmp_path)


def moving_app(sites: Sites) -> HpcdashApp:
    return HpcdashApp([sites.lab.session, sites.other.session])


async def open_places(pilot: Pilot[Any], sites: Sites) -> PlacesView:
    """Connect to both clusters, and open the places for job 12."""
    await settled(pilot)
    await sites.other.session.store.open()
    await press(pilot, "Q")
    await until(pilot, lambda: isinstance(pilot.app.main.view, PlacesView))
    await until(pilot, lambda: "scheduler command" in screen_text(pilot.app))
    view = pilot.app.main.view
    assert isinstance(view, PlacesView)
    return view


async def choose(pilot: Pilot[Any], view: PlacesView, cluster: str, queue: str) -> None:
    table = view.rows.table
    [row_id] = [
        row["_id"]
        for row in table.to_pylist()
        if (row["cluster"], row["queue"]) == (cluster, queue)
    ]
    assert view.rows.move_to(row_id)
    # The dialog's worker waits for the person.
    await pilot.press("enter")


async def test_a_chosen_place_on_another_cluster_takes_a_copy_after_a_dialog(sites: Sites) -> None:
    app = moving_app(sites)
    async with app.run_test(size=SIZE) as pilot:
        view = await open_places(pilot, sites)
        assert "job 12 moves: " in screen_text(app)
        await choose(pilot, view, "lab2", "main")
        await until(pilot, lambda: "Commands to run (4)" in screen_text(app))
        text = screen_text(app)
        assert "Move job 12 (train) to main on lab2?" in text
        assert "lab: scontrol hold 12" in text
        assert "lab2: scontrol release COPY" in text
        assert sites.lab.sent == []
        await pilot.press("y")
        await until(pilot, lambda: "job 12: moved: now job 93 on lab2" in notices(app))
        assert sites.states == ("cancelled", "pending")
        await until(pilot, lambda: not isinstance(app.main.view, PlacesView))


async def test_no_in_the_dialog_changes_nothing(sites: Sites) -> None:
    app = moving_app(sites)
    async with app.run_test(size=SIZE) as pilot:
        view = await open_places(pilot, sites)
        await choose(pilot, view, "lab2", "main")
        await until(pilot, lambda: "Commands to run (4)" in screen_text(app))
        await pilot.press("n")
        await settled(pilot)
        assert sites.lab.sent == []
        assert sites.entries() == []


async def test_a_queue_of_the_same_cluster_is_changed_in_place(sites: Sites) -> None:
    def update(command: Any) -> tuple[int, bytes, bytes]:
        sites.lab.jobs["12"]["partition"] = "long"
        return (0, b"", b"")

    sites.lab.transport.answers["scontrol update"] = update
    app = moving_app(sites)
    async with app.run_test(size=SIZE) as pilot:
        view = await open_places(pilot, sites)
        await choose(pilot, view, "lab", "long")
        await until(pilot, lambda: "in place: it keeps its ID" in screen_text(app))
        await pilot.press("y")
        await until(pilot, lambda: "job 12: moved to queue long" in str(notices(app)))


async def test_a_job_that_cannot_move_says_why(sites: Sites) -> None:
    sites.other.paths.discard("/data/set")
    app = moving_app(sites)
    async with app.run_test(size=SIZE) as pilot:
        view = await open_places(pilot, sites)
        await choose(pilot, view, "lab2", "main")
        await until(pilot, lambda: "not moved: not on lab2: /data/set" in str(notices(app)))


async def test_a_running_job_opens_no_places(sites: Sites) -> None:
    sites.lab.jobs["12"].update(RUNS)
    app = moving_app(sites)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "Q")
        await until(pilot, lambda: "nothing to move: job 12 is running" in notices(app))


async def test_after_a_kill_the_dashboard_says_at_its_start_what_stands_where(
    sites: Sites,
) -> None:
    sites.other.after["submit"] = sites.die
    planned = await plan(sites)
    with pytest.raises(Killed):
        await run_move(planned)
    sites.restart()
    app = moving_app(sites)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "nothing was moved: it was" in str(notices(app)))
        assert sites.states == ("pending", "cancelled")
