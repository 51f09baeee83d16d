"""What checks of nodes found is told in the view of nodes; its key submits them, in that of queues
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.node_findings import NodeCheckRecords
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.cluster.nodes import NodesView
from tests.embedded.queue_lab import QueueLab
from tests.ui.stage import ids_of, notices, press, replayed, screen_text, settled, shown_rows, until
from tests.ui.submit.submit_stage import queue_app, recorded_app

SIZE = (150, 40)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work", cpus=2)
    yield lab
    lab.end()


async def test_the_pointed_node_tells_what_a_check_found_last(tmp_path: Path) -> None:
    session = replayed()
    session = replace(session, launches=Launches(session.store, state_folder=tmp_path))
    app = HpcdashApp([session])
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "2")
        view = app.main.view
        assert isinstance(view, NodesView)
        row = {"name": "g01", "native_state": "idle", "reason": None, "features": ["[bold]"]}
        assert view.row_hint(row) == "g01 idle  ·  [bold]"
        assert "CHECK" not in screen_text(app)
        records = NodeCheckRecords(tmp_path, session.name)
        records.note_lines(
            ["g01: hpcdash: the disk check failed: /tmp \x1b[2J full"],
            view.now().timestamp() - 7200,
        )
        assert (
            view.row_hint(row)
            == "g01 idle  ·  [bold]  ·  disk check failed 2 h ago: /tmp ␛[2J full"
        )
        view.notes_changed()
        await settled(pilot)
        assert "CHECK" in screen_text(app)
        assert "disk failed" in screen_text(app)


async def test_the_marked_nodes_are_checked_by_a_job_for_each_kind_once_that_is_agreed(
    tmp_path: Path,
) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "2")
        shown_rows(app).mark_all(["g01", "g02", "c001"])
        await pilot.press("C")
        await until(pilot, lambda: "Check 3 nodes with 2 jobs?" in screen_text(app), "the question")
        shown = screen_text(app)
        assert "g[01-02]: cuda, nccl, gpu-memory, disk, clock" in shown
        assert "c001: disk, clock" in shown
        assert "Script (first of 2 jobs)" in shown
        await pilot.press(*["pagedown"] * 9)
        await until(
            pilot,
            lambda: "wait_nodes" in screen_text(app) or "srun " in screen_text(app),
            "the script's end",
        )
        await press(pilot, "n")
        assert app.screen is app.main
        shown_rows(app).mark_all(["g01", "gone"])
        await press(pilot, "C")
        assert notices(app)[-1] == "not checked: gone is no longer listed. u clears all marks"


async def test_read_only_nothing_is_checked(tmp_path: Path) -> None:
    app = recorded_app(tmp_path, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "3", "C")
        assert notices(app)[-1] == "read-only: check nodes is disabled"


@pytest.mark.system
async def test_what_the_job_finds_is_told_by_the_run_that_sees_its_end(
    queue: QueueLab, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    before = queue.submit("sleep 600", "--cpus-per-task=2")
    queue.wait(before, "running")
    app = queue_app(queue, state)
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "3")
        await until(pilot, lambda: shown_rows(app).cursor_id == "local", "the queue")
        await press(pilot, "C")
        assert "no idle nodes in local" in notices(app)[-1]
        await press(pilot, "2")
        await pilot.press("C")
        await until(pilot, lambda: "with 1 job?" in screen_text(app), "the question")
        await press(pilot, "y")
        await until(pilot, lambda: "results will appear here" in screen_text(app), "the job")
    queue.act("cancel", before)
    queue.ended("2")
    again = queue_app(queue, state)
    async with again.run_test(size=SIZE) as pilot:
        await press(pilot, "2")
        (node,) = ids_of(again)
        await until(pilot, lambda: "job 2 checked 1 node: " in screen_text(again), "what it found")
    assert NodeCheckRecords(state, "local").unread() == ()
    assert set(NodeCheckRecords(state, "local").findings()) == {node}
