"""Jobs of several clusters in one table: each cluster has its line, and enter goes to a job there."""

from __future__ import annotations

from typing import Any

from textual.pilot import Pilot

from hpcdash.errors import ConnectionFailed
from hpcdash.ui.app import HpcdashApp
from tests.ui.stage import (
    PBS_CASES,
    answering,
    answering_transport,
    press,
    replayed,
    screen_text,
    settled,
    until,
)

SIZE = (150, 36)


def two_clusters_and_a_dead_one() -> HpcdashApp:
    dead = answering_transport()
    dead.connect_error = ConnectionFailed("lab9 refused the connection", "Is it up?")
    return HpcdashApp(
        [replayed("training"), replayed("everyday", PBS_CASES), answering(dead, name="lab9")]
    )


async def all_clusters(pilot: Pilot[Any]) -> None:
    await settled(pilot)
    await press(pilot, "M")
    await until(pilot, lambda: "lab9 refused" in screen_text(pilot.app))
    await settled(pilot)


def test_jobs_of_all_clusters_look_as_they_did(snap_compare: Any) -> None:
    assert snap_compare(two_clusters_and_a_dead_one(), terminal_size=SIZE, run_before=all_clusters)


async def test_enter_goes_to_a_job_on_its_cluster() -> None:
    app = two_clusters_and_a_dead_one()
    async with app.run_test(size=SIZE) as pilot:
        await all_clusters(pilot)
        await press(pilot, "slash", *"cluster:everyday", "enter")
        await settled(pilot)
        assert "▌training" not in screen_text(app).split("NODES / WHY")[1]
        await press(pilot, "enter")
        await until(pilot, lambda: app.main.view_name == "job")
        assert app.main.session.name == "everyday"


async def test_marks_on_several_clusters_are_confirmed_cluster_by_cluster() -> None:
    app = two_clusters_and_a_dead_one()
    async with app.run_test(size=SIZE) as pilot:
        await all_clusters(pilot)
        await press(pilot, "slash", *"state:held", "enter")
        await settled(pilot)
        # A worker waits for the answers: nothing settles before them.
        await pilot.press("ctrl+a", "x")
        await until(pilot, lambda: "on training (recorded)" in screen_text(app))
        assert "scancel" in screen_text(app)
        await pilot.press("n")
        await until(pilot, lambda: "on everyday (recorded)" in screen_text(app))
        assert "qdel" in screen_text(app)
        await pilot.press("n")
        await until(pilot, lambda: "Command" not in screen_text(app))
