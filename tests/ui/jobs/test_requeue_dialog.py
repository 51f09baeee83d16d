"""The question whether to run again jobs of the embedded queue that were launched from here, and their page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.services.state.records import LaunchRecord
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.ui.jobs.action_dialogs import ConfirmDialog
from tests.embedded.queue_lab import QueueLab
from tests.ui.stage import press, screen_text, settled, until
from tests.ui.submit.submit_stage import queue_app


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "run", cpus=4)
    yield lab
    lab.end()


def remembered(state: Path, job_id: str, request: str) -> None:
    """A launch, as it is noted when it is submitted."""
    record = LaunchRecord("/jobs/night", "", job_id, "night", "always", "", 1, 1.0, request)
    LaunchRecords(state, "local").launched(record)


async def test_a_kill_switch_that_is_there_still_is_told_before_its_job_runs_again(
    queue: QueueLab, tmp_path: Path
) -> None:
    job = queue.submit("sleep 300", "--job-name=night", "--requeue")
    queue.wait(job, "running")
    remembered(
        tmp_path / "state",
        job,
        'name = "night"\nkill_switch = "KILL"\ncheckpoints = "/saved"\n[call]\nfunction = "a.b:main"\n',
    )
    switch = queue.work / "KILL"
    switch.touch()
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=(160, 60)) as pilot:
        await settled(pilot)
        await press(pilot, "d")
        await until(pilot, lambda: "launched from here" in screen_text(app), "what is remembered of its launch")
        for words in ("a.b:main", "/jobs/night/result.pkl", "/saved", str(switch)):
            assert words in screen_text(app)
        for is_there in (True, False):
            await press(pilot, "r")
            await until(pilot, lambda: isinstance(app.screen, ConfirmDialog) and app.screen.query("#keys"), "question")
            dialog = app.screen
            assert isinstance(dialog, ConfirmDialog)
            warned = f"the kill switch {switch} is there: the job ends at once. "
            told = (f"{warned}Clear it first: hpcdash kill-switch {job} --clear",)
            assert dialog.warnings == (told if is_there else ())
            assert "goes on from the newest whole checkpoint in /saved" in screen_text(app)
            assert "starts over" not in screen_text(app)
            await press(pilot, "n")
            await until(pilot, lambda: app.screen is app.main, "the page")
            switch.unlink(missing_ok=True)
