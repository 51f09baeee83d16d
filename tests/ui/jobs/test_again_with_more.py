"""A job that was ended for want of time is submitted again with more, as a person has it, on a real
embedded queue.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from tests.embedded.queue_lab import QueueLab
from tests.ui.jobs.acting_stage import point_at
from tests.ui.stage import press, screen_text, settled, until
from tests.ui.submit.submit_stage import queue_app

SIZE = (120, 34)


@pytest.mark.slow
async def test_a_longer_limit_is_proposed_after_a_timeout_and_may_be_edited(
    queue: QueueLab, tmp_path: Path
) -> None:
    old = queue.submit("sleep 60", "--time=00:00:01", "--job-name=slow")
    queue.wait(old, "timeout")
    app = queue_app(queue, tmp_path / "state", first_view="history")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, old)
        await pilot.press("R")
        await until(
            pilot, lambda: f"Resubmit job {old} (slow) with more" in screen_text(app), "the limits"
        )
        text = screen_text(app)
        assert "hit the time limit of 1 s" in text
        field = app.screen.query_one("#time", Input)
        assert field.value == "00:05:00"
        assert not app.screen.query("#memory")
        field.value = "never"
        await pilot.press("enter")
        await until(pilot, lambda: "! 'never' is not a duration" in screen_text(app), "the error")
        field.value = "7m"
        await pilot.press("enter")
        await until(pilot, lambda: "with --time=00:07:00" in screen_text(app), "the command")
        assert len(queue.store.jobs("1 = 1")) == 1
        await pilot.press("y")
        await until(pilot, lambda: len(queue.store.jobs("1 = 1")) == 2, "the new job")
    [new] = [job for job in queue.store.jobs("1 = 1") if str(job.number) != old]
    assert new.limit_seconds == 420
    assert queue.store.submission(new.number).request.name == "slow"


async def test_leaving_the_limits_submits_nothing(queue: QueueLab, tmp_path: Path) -> None:
    old = queue.submit("sleep 60", "--time=00:00:01")
    queue.wait(old, "timeout")
    app = queue_app(queue, tmp_path / "state", first_view="history")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, old)
        await pilot.press("R")
        await until(pilot, lambda: app.screen.query("#time"), "the limits")
        await press(pilot, "escape")
        assert app.screen is app.main
        assert len(queue.store.jobs("1 = 1")) == 1


async def test_a_job_that_failed_by_itself_is_submitted_again_as_it_was(
    queue: QueueLab, tmp_path: Path
) -> None:
    old = queue.submit("exit 3")
    queue.wait(old, "failed")
    app = queue_app(queue, tmp_path / "state", first_view="history")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await point_at(pilot, old)
        await pilot.press("R")
        await until(pilot, lambda: f"resubmit {old} unchanged" in screen_text(app), "the question")
