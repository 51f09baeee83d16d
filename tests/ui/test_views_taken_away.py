"""A view that is left while its answers are still coming: nothing is painted into what is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.ui.metrics.chart_stage import RUNNING, chart_dashboard, training_log
from tests.ui.stage import settled

# Turns of the event loop between opening and leaving.
_TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
_OF_A_JOB = ("job", "log", "chart", "script", "chain", "triage")


@pytest.mark.parametrize("view", [*_OF_A_JOB, "journal", "submit"])
async def test_a_view_is_left_at_any_moment_of_its_opening(tmp_path: Path, view: str) -> None:
    (tmp_path / "job.out").write_bytes(training_log(range(1, 60)))
    app = chart_dashboard(tmp_path)
    arguments = {"job_id": RUNNING} if view in _OF_A_JOB else {}
    async with app.run_test(size=(120, 30)) as pilot:
        await settled(pilot)
        for turns in _TURNS:
            await app.main.push(view, **arguments)
            for _ in range(turns):
                await asyncio.sleep(0)
            await app.main.pop()
            assert app.crash is None
        await pilot.pause()
        assert app.crash is None
        assert len(app.main.stack) == 1


@pytest.mark.parametrize("view", _OF_A_JOB)
async def test_the_app_is_left_at_any_moment_of_a_view_s_opening(tmp_path: Path, view: str) -> None:
    (tmp_path / "job.out").write_bytes(training_log(range(1, 60)))
    for turns in (0, 5, 34):
        app = chart_dashboard(tmp_path)
        async with app.run_test(size=(120, 30)) as pilot:
            await settled(pilot)
            await app.main.push(view, job_id=RUNNING)
            for _ in range(turns):
                await asyncio.sleep(0)
            app.exit()
        assert app.crash is None
