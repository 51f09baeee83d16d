"""An array's failures on the screen: told apart, marked, and submitted again as exactly these
tasks.
"""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hpcdash.assembly import cluster_pace
from hpcdash.backends.base import Backend
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.submit import PbsSubmit
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.config.settings import ClusterSettings
from hpcdash.errors import CommandTimedOut
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.journal import Journal
from hpcdash.services.submit import recovery as lost_answers
from hpcdash.services.submit.launches import Launches
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.action_dialogs import ConfirmDialog
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.jobs.triage import TriageView
from tests.support.parts import changed, fixed_backend
from tests.support.scripted_cluster import end_task, failed_array
from tests.support.scripted_transport import ScriptedTransport
from tests.ui.stage import notices, press, screen_text, settled, shown_rows, until

NOW = 1_795_250_000.0
SIZE = (120, 30)
PLAIN = {"jobarrayid": "90", "arrayjobid": "90", "name": "plain", "state": "RUNNING"}


def app_on(
    transport: ScriptedTransport, folder: Path, *, backend: Backend = BACKEND, **arguments: Any
) -> HpcdashApp:
    store = ClusterStore(
        "lab",
        transport,
        (backend,),
        clock=FrozenClock(NOW),
        budget=CommandBudget(600),
        user="alice",
    )
    poller = Poller(store, cluster_pace(ClusterSettings("lab", "lab")), monotonic=lambda: 0.0)
    journal = Journal(folder / "journal.jsonl", now=lambda: NOW)
    return HpcdashApp(
        [ClusterSession(store, poller, Actions(store, journal), Launches(store), "", UTC)],
        **arguments,
    )


@pytest.fixture
def transport(tmp_path: Path) -> ScriptedTransport:
    folder = tmp_path / "logs"
    folder.mkdir()
    return failed_array(folder)


async def open_triage(pilot: Pilot[Any]) -> TriageView:
    """The triage of array 88, with all that it asks for."""
    await settled(pilot)
    await press(pilot, "t")
    view = pilot.app.main.view
    assert isinstance(view, TriageView)
    return view


async def question(pilot: Pilot[Any]) -> ConfirmDialog:
    await until(
        pilot,
        lambda: isinstance(pilot.app.screen, ConfirmDialog) and pilot.app.screen.query("#keys"),
        "the question",
    )
    await pilot.pause()
    dialog = pilot.app.screen
    assert isinstance(dialog, ConfirmDialog)
    return dialog


def told(pilot: Pilot[Any]) -> list[str]:
    return notices(pilot.app)


def groups_shown(view: TriageView) -> list[str]:
    return [str(value) for value in view.rows.table["tasks"].to_pylist()]


async def test_groups_are_shown_failures_first_with_what_their_logs_say_last(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        view = await open_triage(pilot)
        assert groups_shown(view) == ["3,7-8", "1", "9", "0,2,4-5"]
        text = screen_text(pilot.app)
        assert "RuntimeError: CUDA out of memory" in text
        assert "3 of 3 on g1: a bad node?" in text
        assert "R resubmits 5 tasks that failed" in text
        assert view.pointed_job() == "88_3"


async def test_enter_shows_the_tasks_of_a_group_and_the_log_key_is_for_the_one_pointed_at(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        view = await open_triage(pilot)
        await press(pilot, "enter", "j", "j")
        assert groups_shown(view)[:4] == ["3,7-8", "3", "7", "8"]
        assert (view.rows.cursor_id, view.pointed_job()) == ("88_7", "88_7")
        assert [row["id"] for row in view.targets().rows] == ["88_7"]


async def test_cursor_marks_and_open_groups_stay_when_another_task_fails(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        view = await open_triage(pilot)
        await press(pilot, "enter", "j", "space")
        cursor = view.rows.cursor_id
        end_task(transport, tmp_path / "logs", 6, "FAILED", "256", "g1", "ValueError: nan\n")
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: "6" in groups_shown(view), "the new group")
        assert groups_shown(view)[:4] == ["3,7-8", "3", "7", "8"]
        assert (view.rows.cursor_id, view.rows.marked) == (cursor, {"88_3"})


async def test_a_group_marked_before_its_logs_were_read_stays_marked(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        view = await open_triage(pilot)
        before = {"group failed 1 0": frozenset({"88_3", "88_7", "88_8"})}
        view._members = before
        view.rows.mark_all(before)
        view._read_more()
        assert [row["id"] for row in view.rows_to_submit()] == ["88_3", "88_7", "88_8"]
        assert view.rows.marked_missing == frozenset()


async def test_exactly_the_failed_tasks_are_submitted_again_and_the_new_job_is_told(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await open_triage(pilot)
        await pilot.press("R")
        await question(pilot)
        text = screen_text(pilot.app)
        assert "sbatch --mem=4G" in text
        assert "--array=1,3,7-9%4" in text
        assert transport.submitted == []
        await pilot.press("y")
        await until(
            pilot, lambda: "5 jobs submitted: job 93 on lab" in told(pilot), "the new job's number"
        )
        [(words, stdin)] = transport.submitted
        assert "--array=1,3,7-9%4" in words
        assert stdin == b"#!/bin/bash\n#SBATCH --time=20\nsrun train\n"


async def test_failed_tasks_that_are_no_one_submission_are_submitted_again_in_parts(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    del transport.answers["sbatch"]
    ranges_only = fixed_backend(
        BACKEND,
        submit=changed(BACKEND.submit, array_parts=PbsSubmit(Dialect.OPENPBS).array_parts),
    )
    async with app_on(transport, tmp_path, backend=ranges_only).run_test(size=SIZE) as pilot:
        await open_triage(pilot)
        await pilot.press("R")
        await question(pilot)
        text = screen_text(pilot.app)
        assert "Slurm accepts one task range at a time: 2 submissions" in text
        assert ("--array=1-3:2%4" in text, "--array=7-9%4" in text) == (True, True)
        await pilot.press("y")
        await until(pilot, lambda: "resubmitted in 2 parts: 91 92" in told(pilot), "the new jobs")
        assert len(Journal(tmp_path / "journal.jsonl").read()[0]) == 2


async def test_with_a_cause_pointed_at_its_tasks_alone_are_submitted_again(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        view = await open_triage(pilot)
        await press(pilot, "k")
        assert view.rows.cursor_id is not None
        assert [row["id"] for row in view.rows_to_submit()] == ["88_3", "88_7", "88_8"]
        await press(pilot, "j")
        assert len(view.rows_to_submit()) == 1
        await until(
            pilot,
            lambda: "R resubmits 1 task with this cause" in screen_text(pilot.app),
            "the hint",
        )
        await pilot.press("R")
        # It hit its time limit.
        await until(
            pilot,
            lambda: "Resubmit array 88 (lr-sweep, 1 job) with more" in screen_text(pilot.app),
            "a form",
        )


async def test_only_marked_groups_are_submitted_again_and_no_longer_marked_then(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        view = await open_triage(pilot)
        await press(pilot, "space")
        await pilot.press("R")
        await question(pilot)
        await pilot.press("y")
        await until(pilot, lambda: transport.submitted, "sbatch")
        assert "--array=3,7-8%4" in transport.submitted[0][0]
        await until(pilot, lambda: not view.rows.marked, "no mark")


async def test_f_marks_all_that_failed_and_takes_the_marks_away_again(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        view = await open_triage(pilot)
        await press(pilot, "f")
        assert len(view.rows.marked) == 3
        await press(pilot, "f")
        assert not view.rows.marked


async def test_after_no_nothing_is_submitted(transport: ScriptedTransport, tmp_path: Path) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await open_triage(pilot)
        await pilot.press("R")
        await question(pilot)
        await press(pilot, "n")
        assert transport.submitted == []


async def test_what_the_scheduler_refuses_is_shown_in_its_words(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    transport.answers["sbatch"] = (
        1,
        b"",
        b"sbatch: error: Batch job submission failed: Invalid qos specification\n",
    )
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await open_triage(pilot)
        await pilot.press("R")
        await question(pilot)
        await pilot.press("y")
        await until(
            pilot, lambda: "Invalid qos specification" in screen_text(pilot.app), "the refusal"
        )


async def test_a_lost_answer_is_looked_for_and_nothing_is_sent_twice(
    transport: ScriptedTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_answers, "_RETRY_SECONDS", 0.01)
    transport.answers["sbatch"] = CommandTimedOut("no answer in time")
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await open_triage(pilot)
        await pilot.press("R")
        dialog = await question(pilot)
        mark = next(word for word in dialog.plan.commands[0].argv if word.startswith("--comment="))
        new = {
            "jobarrayid": "93_1",
            "arrayjobid": "93",
            "arraytaskid": "1",
            "comment": mark.removeprefix("--comment="),
        }
        transport.recent.append(new)
        await pilot.press("y")
        await until(pilot, lambda: "found: job 93" in told(pilot), "what became of it")
        assert len(transport.submitted) == 1


async def test_on_the_list_of_jobs_an_array_means_its_failed_tasks(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("R")
        dialog = await question(pilot)
        assert dialog.plan.request.job_ids == ("88_[1,3,7-9]",)
        assert "5 of the 9 tasks of array 88 failed" in screen_text(pilot.app)


async def test_an_array_without_failures_is_offered_as_a_whole(tmp_path: Path) -> None:
    transport = failed_array(tmp_path, dict.fromkeys((1, 2), ("COMPLETED", "0", "g1", "")))
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("R")
        dialog = await question(pilot)
        assert dialog.plan.request.job_ids == ("88",)
        assert "no task of array 88 failed: this resubmits the whole array" in screen_text(
            pilot.app
        )
        assert "--array=0-9%4" in dialog.plan.commands[0].argv


async def test_a_job_that_still_runs_is_submitted_again_only_with_a_word_of_that(
    tmp_path: Path,
) -> None:
    transport = failed_array(tmp_path, {1: ("COMPLETED", "0", "g1", "")})
    transport.mine = transport.recent = [PLAIN]
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("R")
        dialog = await question(pilot)
        assert dialog.plan.request.job_ids == ("90",)
        assert "the job has not finished: both copies would run" in screen_text(pilot.app)
        assert not [word for word in dialog.plan.commands[0].argv if word.startswith("--array")]


async def test_a_job_that_is_no_array_says_so(tmp_path: Path) -> None:
    transport = failed_array(tmp_path, {1: ("COMPLETED", "0", "g1", "")})
    transport.mine = transport.recent = [PLAIN]
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await settled(pilot)
        await press(pilot, "t")
        await until(pilot, lambda: "job 90 is not an array; l shows its log" in told(pilot), "told")
        assert isinstance(pilot.app.main.view, JobsView)


async def test_what_logs_and_names_hold_cannot_reach_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]0;title\x07[bold]boom[/bold] \u202e\x1b[2J"
    transport = failed_array(tmp_path, {1: ("FAILED", "256", "g1", hostile)})
    transport.mine = transport.recent = [
        {**row, "name": "\x1b[31m" + "x" * 200} for row in transport.mine
    ]
    async with app_on(transport, tmp_path).run_test(size=SIZE) as pilot:
        await open_triage(pilot)
        text = screen_text(pilot.app)
        assert "[bold]boom[/bold]" in text
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_triage_looks_as_it_did(
    snap_compare: Any, transport: ScriptedTransport, tmp_path: Path
) -> None:
    async def go_there(pilot: Pilot[Any]) -> None:
        await open_triage(pilot)
        await press(pilot, "enter", "j", "space")
        assert shown_rows(pilot.app).row_count == 7

    assert snap_compare(app_on(transport, tmp_path), terminal_size=(120, 24), run_before=go_there)
