"""Places for a job on the screen: a size is entered, the answer ranked, a place fills the form."""

from __future__ import annotations

from typing import Any

from textual.pilot import Pilot

from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.submit.places import PlacesView
from hpcdash.ui.submit.view import SubmitView
from tests.ui.stage import (
    PBS_CASES,
    dashboard,
    press,
    replayed,
    screen_text,
    settled,
    type_text,
    until,
)

SIZE = (150, 30)


async def search(pilot: Pilot[Any], size: str) -> None:
    await settled(pilot)
    await press(pilot, "2")
    await settled(pilot)
    await press(pilot, "F")
    await until(pilot, lambda: "a job with:" in screen_text(pilot.app))
    await type_text(pilot, size)
    await press(pilot, "enter")


async def found(pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: "scheduler command" in screen_text(pilot.app))
    await settled(pilot)


def test_places_look_as_they_did(snap_compare: Any) -> None:
    async def go_there(pilot: Pilot[Any]) -> None:
        await search(pilot, "gpus=2 time=4h")
        await found(pilot)

    assert snap_compare(
        dashboard("everyday", cases=PBS_CASES), terminal_size=SIZE, run_before=go_there
    )


async def test_a_size_that_cannot_be_read_stays_in_the_line_with_the_reason() -> None:
    app = dashboard("everyday", cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await search(pilot, "gpu=2")
        assert "no option gpu" in screen_text(app)
        assert "a job with: gpu=2" in screen_text(app)


async def test_enter_on_a_place_fills_the_form_and_keeps_what_was_typed() -> None:
    app = dashboard("everyday", cases=PBS_CASES)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "n")
        await until(pilot, lambda: isinstance(app.main.view, SubmitView))
        await type_text(pilot, "train-llm")
        await press(pilot, "escape")
        await search(pilot, "cpus=2 time=4h")
        await found(pilot)
        view = app.main.view
        assert isinstance(view, PlacesView)
        queue = str((view.rows.cursor_row or {})["queue"])
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(app.main.view, SubmitView))
        await settled(pilot)
        form = app.main.view
        assert isinstance(form, SubmitView)
        texts = form.draft().texts
        assert texts["command"] == "train-llm"
        assert texts["queue"] == queue
        assert (texts["slots"], texts["time"]) == ("2", "04:00:00")


async def test_enter_on_a_place_of_another_cluster_opens_the_form_there() -> None:
    app = HpcdashApp([replayed("training"), replayed("everyday", PBS_CASES)])
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        # Only clusters that were opened are searched.
        await press(pilot, "M")
        await until(pilot, lambda: app.main.sessions[1].store.probe is not None)
        await search(pilot, "cpus=2 time=4h")
        await found(pilot)
        await press(pilot, "slash", *"cluster:everyday", "enter")
        await settled(pilot)
        view = app.main.view
        assert isinstance(view, PlacesView)
        queue = str((view.rows.cursor_row or {})["queue"])
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(app.main.view, SubmitView))
        await settled(pilot)
        assert app.main.session.name == "everyday"
        form = app.main.view
        assert isinstance(form, SubmitView)
        texts = form.draft().texts
        assert (texts["queue"], texts["slots"], texts["time"]) == (queue, "2", "04:00:00")
