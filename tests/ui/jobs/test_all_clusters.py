"""Jobs of several clusters in one table: each cluster has its line, and enter goes to a job there."""

from __future__ import annotations

from typing import Any

from textual.pilot import Pilot

from hpcdash.errors import ConnectionFailed
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.notes import session_notes
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
    # What is free is fetched within a second.
    await until(pilot, lambda: screen_text(pilot.app).count("CPUs free") == 2)
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


async def marked_held_jobs(pilot: Pilot[Any]) -> None:
    """Mark the held jobs, which are on two clusters."""
    await all_clusters(pilot)
    await press(pilot, "slash", *"state:held", "enter")
    await settled(pilot)
    await press(pilot, "ctrl+a")


async def test_what_is_free_is_shown_for_each_cluster() -> None:
    app = two_clusters_and_a_dead_one()
    async with app.run_test(size=SIZE) as pilot:
        await all_clusters(pilot)
        lines = [line for line in screen_text(app).splitlines() if line.strip().startswith("▌")]
        training, everyday, dead = lines[:3]
        assert "GPUs" in training
        assert "CPUs free" in everyday
        assert "free: unknown" in dead


async def test_a_signal_is_chosen_once_and_sent_by_each_cluster() -> None:
    app = two_clusters_and_a_dead_one()
    async with app.run_test(size=SIZE) as pilot:
        await all_clusters(pilot)
        await press(pilot, "slash", *"state:running", "enter")
        await settled(pilot)
        await press(pilot, "ctrl+a", "z")
        assert "on training (recorded), everyday (recorded)" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "--signal=USR1" in screen_text(app))
        assert "on training (recorded)" in screen_text(app)
        await pilot.press("n")
        await until(pilot, lambda: "qsig" in screen_text(app))
        assert "on everyday (recorded)" in screen_text(app)
        await pilot.press("n")
        await until(pilot, lambda: "Command" not in screen_text(app))


async def test_changes_have_a_dialog_for_each_cluster() -> None:
    app = two_clusters_and_a_dead_one()
    async with app.run_test(size=SIZE) as pilot:
        await marked_held_jobs(pilot)
        await press(pilot, "A")
        assert "on training (recorded)" in screen_text(app)
        await press(pilot, "escape")
        await until(pilot, lambda: "on everyday (recorded)" in screen_text(app))
        await press(pilot, "escape")
        await until(pilot, lambda: "esc cancel" not in screen_text(app))


async def test_a_note_is_on_each_marked_job_of_its_own_cluster() -> None:
    app = two_clusters_and_a_dead_one()
    async with app.run_test(size=SIZE) as pilot:
        await marked_held_jobs(pilot)
        marked = app.main.view.cluster_targets(app.main.session)
        held = [job_id for _, targets in marked for job_id in targets.job_ids]
        assert len(marked) == 2
        await press(pilot, "N", *"retry", "enter")
        await until(pilot, lambda: screen_text(app).count("retry") == len(held))
        for session, targets in marked:
            assert set(session_notes(session).load().notes) == set(targets.job_ids)
