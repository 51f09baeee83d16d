"""Callbacks after a while, on a loaded machine too."""

from __future__ import annotations

import time

from textual.app import App
from textual.widgets import Static

from hpcdash.ui.workers import call_after


async def test_a_callback_whose_time_is_over_before_the_loop_runs_is_called() -> None:
    called: list[str] = []
    app: App[None] = App()
    async with app.run_test() as pilot:
        call_after(app, 0.05, lambda: called.append("late"))
        time.sleep(0.2)  # noqa: ASYNC251
        while not called:
            await pilot.pause(0.01)


async def test_a_cancelled_callback_and_one_of_a_removed_widget_are_not_called() -> None:
    called: list[str] = []
    app: App[None] = App()
    async with app.run_test() as pilot:
        widget = Static()
        await app.mount(widget)
        call_after(app, 0.01, lambda: called.append("cancelled")).cancel()
        queued = call_after(app, 0, lambda: called.append("cancelled when queued"))
        app.call_later(queued.cancel)
        call_after(widget, 0.05, lambda: called.append("removed"))
        await widget.remove()
        call_after(app, 0.1, lambda: called.append("last"))
        while "last" not in called:
            await pilot.pause(0.01)
    assert called == ["last"]
