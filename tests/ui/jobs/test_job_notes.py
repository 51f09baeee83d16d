"""Pins and notes on jobs: kept on this machine, shown in the tables and on a job's page, found by
the filter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from hpcdash.ui.jobs.action_dialogs import NoteDialog
from hpcdash.ui.notes import session_notes
from tests.embedded.queue_lab import QueueLab
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import EVERYDAY, acting_app, mark, point_at
from tests.ui.stage import ids_of, press, screen_text, settled, type_text, until
from tests.ui.submit.submit_stage import queue_app

SIZE = (140, 34)


def app_on(folder: Path) -> Any:
    return acting_app(ScriptedTransport(*EVERYDAY), folder)


async def note(pilot: Pilot[Any], text: str) -> None:
    await pilot.press("N")
    await until(pilot, lambda: isinstance(pilot.app.screen, NoteDialog), "the note")
    await pilot.press("ctrl+u")
    await type_text(pilot, text)
    await press(pilot, "enter")


async def test_a_pinned_job_comes_first_with_a_sign_until_it_is_let_go(tmp_path: Path) -> None:
    app = app_on(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        before = ids_of(app)
        assert "PIN" not in screen_text(app)
        await point_at(pilot, "302")
        await press(pilot, "P")
        await until(pilot, lambda: ids_of(app)[0] == "302", "the pinned first")
        assert "PIN" in screen_text(app)
        await press(pilot, "o")
        assert ids_of(app)[0] == "302"
    app = app_on(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert ids_of(app) == ["302", *(one for one in before if one != "302")]
        await point_at(pilot, "302")
        await press(pilot, "P")
        await until(pilot, lambda: ids_of(app) == before, "as before")


async def test_marked_jobs_and_whole_arrays_are_pinned_and_their_tasks_stay_below_them(
    tmp_path: Path,
) -> None:
    app = app_on(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await mark(pilot, "200[]", "302")
        await press(pilot, "P")
        await until(pilot, lambda: set(ids_of(app)[:2]) == {"200[]", "302"}, "both first")
        await press(pilot, "a")
        shown = ids_of(app)
        at = shown.index("200[]")
        assert set(shown[at + 1 : at + 3]) == {"200_1", "200_[2-5%2]"}
        assert set(shown[:4]) == {"200[]", "200_1", "200_[2-5%2]", "302"}


async def test_a_note_is_shown_in_the_table_and_on_the_page_and_found_by_the_filter(
    tmp_path: Path,
) -> None:
    app = app_on(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await note(pilot, "baseline with dropout, lr 3e-4")
        await until(
            pilot, lambda: "note: baseline with dropout, lr 3e-4" in screen_text(app), "the note"
        )
        assert "baseline with dropout,…" in screen_text(app)
        await press(pilot, "slash")
        await type_text(pilot, "note~dropout")
        await press(pilot, "enter")
        assert ids_of(app) == ["101"]
        await press(pilot, "escape", "slash")
        await type_text(pilot, "pinned:yes")
        await press(pilot, "enter")
        assert ids_of(app) == []
        await press(pilot, "escape", "d")
        await until(pilot, lambda: "note: baseline with dropout" in screen_text(app), "the page")
        await note(pilot, "")
        await until(pilot, lambda: "note:" not in screen_text(app), "no note")


async def test_a_note_outlives_its_job(queue: QueueLab, tmp_path: Path) -> None:
    number = queue.submit("exit 3")
    queue.wait(number, "failed")
    app = queue_app(queue, tmp_path / "state", first_view="history")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "P")
        await note(pilot, "wrong data set")
        await until(pilot, lambda: "wrong data set" in screen_text(app), "the note")
        kept = session_notes(app.main.session).load()
        assert (kept.notes, kept.pinned) == ({number: "wrong data set"}, {number})
