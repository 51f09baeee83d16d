"""The files of a job: folders, text, rows of CSV, links, hostile names, and deletion."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from tests.embedded.queue_lab import QueueLab
from tests.ui.stage import ids_of, notices, press, screen_text, settled, until
from tests.ui.submit.submit_stage import queue_app

SIZE = (120, 34)


@asynccontextmanager
async def files_of(queue: QueueLab, folder: Path, state: Path) -> AsyncIterator[Pilot[Any]]:
    """The folder of a job that has ended, opened from the history."""
    number = queue.submit("exit 0", "--output=/dev/null", cwd=folder)
    queue.ended(number)
    app = queue_app(queue, state)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "4")
        await press(pilot, "f")
        await until(pilot, lambda: "work dir" in screen_text(app), "the job's folder")
        await press(pilot, "enter")
        yield pilot


def names(pilot: Pilot[Any]) -> list[str]:
    return [Path(row_id).name for row_id in ids_of(pilot.app)]


async def go_to(pilot: Pilot[Any], name: str) -> None:
    """Move the cursor to a file."""
    await until(pilot, lambda: name in screen_text(pilot.app), name)
    await press(pilot, "home", *["down"] * names(pilot).index(name))


async def test_a_folder_a_text_and_a_link_are_opened(queue: QueueLab, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "notes.txt").write_text("first line\n")
    (folder / "link").symlink_to(folder / "out")
    async with files_of(queue, folder, tmp_path / "state") as pilot:
        await go_to(pilot, "out")
        await press(pilot, "enter")
        await go_to(pilot, "notes.txt")
        await press(pilot, "enter")
        await until(pilot, lambda: "first line" in screen_text(pilot.app), "the text")
        await press(pilot, "q", "q")
        await go_to(pilot, "link")
        await press(pilot, "enter")
        # The crumbs have the place that it leads to.
        await until(pilot, lambda: names(pilot) == ["notes.txt"], "what the link leads to")
        assert "run/out" in screen_text(pilot.app).splitlines()[0]


async def test_hostile_names_are_shown_and_opened_byte_for_byte(
    queue: QueueLab, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / os.fsdecode(b"[red]\xff\x1b[31m\n$(id)")).write_text("what is in it\n")
    async with files_of(queue, folder, tmp_path / "state") as pilot:
        await until(pilot, lambda: "[red]\\xff␛[31m␊$(id)" in screen_text(pilot.app), "the name")
        await press(pilot, "enter")
        await until(pilot, lambda: "what is in it" in screen_text(pilot.app), "the text")


async def test_rows_of_csv_and_json_are_a_table(queue: QueueLab, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "m.csv").write_text("step,loss\n1,0.5\n2,nan\n3,x\x1b\n")
    (folder / "m.jsonl").write_text(
        '{"step": 10, "loss": 2.5}\n[1]\n{"step": 9, "state": "up"}\n{"st'
    )
    async with files_of(queue, folder, tmp_path / "state") as pilot:
        await go_to(pilot, "m.csv")
        await press(pilot, "enter")
        await until(pilot, lambda: "x␛" in screen_text(pilot.app), "the rows")
        await press(pilot, "q")
        await go_to(pilot, "m.jsonl")
        await press(pilot, "enter")
        await until(pilot, lambda: "2.5" in screen_text(pilot.app), "the rows")
        await press(pilot, "o", "o")
        # Sorted as numbers.
        await until(pilot, lambda: ids_of(pilot.app) == ["2", "1"], "the rows by step")


async def test_marked_files_are_deleted_after_a_yes(queue: QueueLab, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "precious").write_text("mine")
    (folder / "link").symlink_to(tmp_path / "precious")
    (folder / "big").write_bytes(bytes(3000))
    (folder / "stays").write_text("")
    async with files_of(queue, folder, tmp_path / "state") as pilot:
        for name in ("link", "big"):
            await go_to(pilot, name)
            await press(pilot, "space")
        await pilot.press("delete")
        await until(pilot, lambda: "Delete 2 files, 2.9K?" in screen_text(pilot.app), "a question")
        assert "(the link itself)" in screen_text(pilot.app)
        await press(pilot, "n")
        assert (folder / "big").exists()
        await pilot.press("delete")
        await until(pilot, lambda: "Delete 2 files" in screen_text(pilot.app), "a question")
        # A file of the same name takes the place of the one that was shown.
        os.rename(folder / "big", folder / "moved")
        (folder / "big").write_text("another")
        await pilot.press("y")
        await until(pilot, lambda: "another file has the name" in screen_text(pilot.app), "why not")
        await press(pilot, "escape")
        await until(pilot, lambda: "link" not in names(pilot), "the link's end")
    assert sorted(os.listdir(folder)) == ["big", "moved", "stays"]
    assert (tmp_path / "precious").read_text() == "mine"


async def test_files_of_a_running_job_are_not_deleted(queue: QueueLab, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a").write_text("")
    number = queue.submit("sleep 600", "--output=/dev/null", cwd=folder)
    queue.wait(number, "running")
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "f")
        await until(pilot, lambda: "work dir" in screen_text(app), "the job's folder")
        await press(pilot, "enter")
        await go_to(pilot, "a")
        await press(pilot, "delete")
        await until(
            pilot, lambda: any("has not ended" in text for text in notices(app)), "a refusal"
        )
    assert (folder / "a").exists()
