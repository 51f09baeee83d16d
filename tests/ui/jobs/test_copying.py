"""`y` offers what there is of a job: its row tells most at once, the rest is asked for when it is
chosen.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from hpcdash.ui.dialogs import ChoiceDialog
from tests.embedded.queue_lab import QueueLab
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.jobs.acting_stage import EVERYDAY, acting_app, mark
from tests.ui.stage import notices, press, settled, until
from tests.ui.submit.submit_stage import queue_app

SIZE = (120, 34)


async def choose(pilot: Pilot[Any], label: str) -> None:
    """Choose what has this label in the list that `y` opens."""
    await pilot.press("y")
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog), "the list")
    dialog = pilot.app.screen
    assert isinstance(dialog, ChoiceDialog)
    dialog.query_one(OptionList).highlighted = [choice.value for choice in dialog.choices].index(
        label
    )
    await pilot.press("enter")
    await until(pilot, lambda: pilot.app.screen is pilot.app.main, "the table")


async def test_id_name_folder_and_logs_of_a_job_are_copied(queue: QueueLab, tmp_path: Path) -> None:
    number = queue.submit("sleep 60", "--job-name=train")
    queue.wait(number, "running")
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "y", "enter")
        assert app.clipboard == number
        for label, text in (
            ("name", "train"),
            ("work dir", str(queue.work)),
            ("stdout", f"{queue.work}/slurm-{number}.out"),
        ):
            await choose(pilot, label)
            await until(pilot, lambda text=text: app.clipboard == text, f"{label}: {text}")
        await choose(pilot, "submit command")
        await until(
            pilot,
            lambda: any("is unknown" in words for words in notices(app)),
            "that it is not known",
        )


async def test_all_marked_ids_are_copied_at_once(tmp_path: Path) -> None:
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await mark(pilot, "101", "102")
        await choose(pilot, "marked ids")
        assert sorted(app.clipboard.split()) == ["101", "102"]


async def test_inside_tmux_what_is_copied_goes_through_it_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    written: list[str] = []
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        app.copy_to_clipboard("train \udcff 7")
    text = base64.b64encode("train \ufffd 7".encode()).decode()
    assert f"\x1b]52;c;{text}\a" in written
    assert f"\x1bPtmux;\x1b\x1b]52;c;{text}\a\x1b\\" in written
