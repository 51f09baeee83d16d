"""Acting on jobs from the screen: what is asked, what is sent, what is told; nothing is sent
unasked or twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.geometry import Region
from textual.pilot import Pilot
from textual.widgets import Input

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.domain.tables import Kind
from hpcdash.errors import CommandTimedOut
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.ui.app import HpcdashApp
from hpcdash.ui.jobs.action_dialogs import (
    AlterDialog,
    ConfirmDialog,
    Question,
    ResultsDialog,
    SignalDialog,
)
from hpcdash.ui.jobs.journal import JournalView
from tests.embedded.queue_lab import QueueLab
from tests.support.scripted_transport import ACT, ScriptedTransport
from tests.ui.jobs.acting_stage import ENDED, EVERYDAY, PENDING, acting_app, job, mark, point_at
from tests.ui.stage import notices, press, screen_text, settled, type_text, until
from tests.ui.submit.submit_stage import queue_app

USUAL = (120, 40)
SMALL = (80, 24)


async def asked(pilot: Pilot[Any], *keys: str) -> ConfirmDialog:
    """Press keys; the question they lead to."""
    await press(pilot, *keys)
    await until(
        pilot,
        lambda: isinstance(pilot.app.screen, ConfirmDialog) and pilot.app.screen.query("#keys"),
    )
    assert isinstance(pilot.app.screen, ConfirmDialog)
    return pilot.app.screen


def said(app: Any) -> str:
    """The words of the notes that are on the screen."""
    return " ".join(notices(app))


async def test_enter_on_the_question_whether_to_cancel_does_nothing(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await asked(pilot, "x")
        await press(pilot, "enter")
        assert app.screen is app.main
        for key in ("escape", "n", "q"):
            await asked(pilot, "x")
            await press(pilot, key)
            assert app.screen is app.main
    assert transport.acted == []
    assert not (tmp_path / "journal.jsonl").exists()


async def test_y_cancels_the_marked_and_unmarks_them(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await mark(pilot, "101", "302", "200[]")
        await asked(pilot, "x")
        shown = screen_text(app)
        assert "Cancel 7 jobs owned by alice?" in shown
        assert "2 running: 8 h 10 min of run time" in shown
        assert "5 pending jobs lose their place in the queue" in shown
        assert "scancel -v 101 200 302" in shown
        await press(pilot, "y")
        await until(pilot, lambda: "7 jobs cancelled" in said(app))
        assert app.main.view.marks() == 0
        entries, _ = app.main.session.actions.journal.read()
        assert [(entry.verb, entry.state) for entry in entries] == [("cancel", "done")]
    assert transport.acted == [("scancel", "-v", "101", "200", "302")]


async def test_jobs_that_would_wait_for_ever_are_named(tmp_path: Path) -> None:
    waiting = {**PENDING, "reason": "Dependency", "dependency": "afterok:101(unfulfilled)"}
    app = acting_app(ScriptedTransport(*EVERYDAY, job("500", **waiting)), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await asked(pilot, "x")
        assert "job 500 depends on it and may never start" in screen_text(app)
        await press(pilot, "escape")
        await asked(pilot, "r")
        assert "may never start" not in screen_text(app)


async def test_moving_to_yes_lets_enter_cancel(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await asked(pilot, "x")
        await press(pilot, "tab", "enter")
        await until(pilot, lambda: "1 job cancelled" in said(app))
    assert transport.acted == [("scancel", "-v", "101")]


@pytest.mark.parametrize(
    ("rows", "sent"),
    [
        (("302",), ("scontrol", "hold", "302")),
        (("301",), ("scontrol", "release", "301")),
        (("301", "302"), ("scontrol", "hold", "302")),
        (("200[]",), ("scontrol", "hold", "200_[2-5]")),
    ],
)
async def test_h_holds_what_waits_or_releases_what_is_held_with_enter(
    tmp_path: Path, rows: tuple[str, ...], sent: tuple[str, ...]
) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await mark(pilot, *rows)
        await asked(pilot, "h")
        if len(rows) == 2:
            assert "1 already held (skipped)" in screen_text(app)
        await press(pilot, "enter")
        await until(pilot, lambda: transport.acted)
    assert transport.acted == [sent]


async def test_requeue_asks_and_suspend_stops_what_runs(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await asked(pilot, "r")
        assert "starts its script from the beginning" in screen_text(app)
        await press(pilot, "enter")
        assert transport.acted == []
        await asked(pilot, "r")
        await press(pilot, "y")
        await until(pilot, lambda: len(transport.acted) == 1)
        await settled(pilot)
        await asked(pilot, "p")
        await press(pilot, "enter")
        await until(pilot, lambda: len(transport.acted) == 2)
    assert transport.acted == [("scontrol", "requeue", "101"), ("scontrol", "suspend", "101")]


async def test_a_job_that_slurm_does_not_requeue_is_not_offered_for_it(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.native["101"] = (
        "JobId=101 JobName=train\n   UserId=alice(1001)\n   Requeue=0 Restarts=0 BatchFlag=1\n"
    )
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await press(pilot, "r")
        await until(pilot, lambda: "101 is not requeued" in said(app), "why it is not requeued")
        assert app.screen is app.main
        for part in ("--no-requeue", "JobId=101 Requeue=1", "R resubmits it"):
            assert part in said(app)
        transport.native["101"] = transport.native["101"].replace("Requeue=0", "Requeue=1")
        await asked(pilot, "r")
    assert transport.acted == []


async def test_a_verb_that_fits_nothing_says_so_and_asks_nothing(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY, job("50", **ENDED))
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "50")
        await press(pilot, "x")
        assert "nothing to cancel: 1 already finished" in said(app)
        await point_at(pilot, "302")
        await press(pilot, "z")
        assert "nothing to signal: 1 not started yet" in said(app)
        await mark(pilot, "50", "101", "999")
        await asked(pilot, "x")
        assert "1 already finished (skipped)" in screen_text(app)
        assert "1 no longer listed (skipped)" in screen_text(app)
        await press(pilot, "escape")
        app.main.view.set_filter("nothing-has-this-name")
        await press(pilot, "u", "x")
        assert "select a job first" in said(app)
    assert transport.acted == []


async def test_what_is_not_ones_own_is_said_and_enter_leaves_it_alone(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY, job("400", username="bob", **PENDING))
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await mark(pilot, "400", "302")
        await asked(pilot, "h")
        assert "Hold 2 jobs owned by alice and bob?" in screen_text(app)
        assert "! 1 is bob's, not yours" in screen_text(app)
        await press(pilot, "enter")
        assert app.screen is app.main
    assert transport.acted == []


async def test_what_is_refused_is_reported_job_by_job_first_and_no_mark_outlives_the_action(
    tmp_path: Path,
) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.refused = {"302": "Access/permission denied"}
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await mark(pilot, "101", "102", "302")
        await asked(pilot, "x")
        await press(pilot, "y")
        await until(pilot, lambda: isinstance(app.screen, ResultsDialog))
        await settled(pilot)
        lines = screen_text(app)
        assert "Cancel on lab: 2 done, 1 refused" in lines
        assert lines.index("Access/permission denied") < lines.index("done    101")
        await press(pilot, "escape")
        assert app.main.view.rows.marked == frozenset()


async def test_marks_end_as_their_action_begins(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    answered = transport.hangs[ACT] = asyncio.Event()
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await mark(pilot, "101", "102")
        await asked(pilot, "x")
        await pilot.press("y")
        await until(pilot, lambda: bool(transport.acted))
        assert app.main.view.marks() == 0
        assert app.main.view.targets().job_ids == (app.main.view.pointed_job(),)
        answered.set()


async def test_a_key_that_was_not_agreed_to_leaves_the_marks(tmp_path: Path) -> None:
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await mark(pilot, "101", "102")
        await asked(pilot, "x")
        await press(pilot, "escape")
        assert app.main.view.marks() == 2


async def test_a_lost_answer_is_unknown_and_not_repeated(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.fails[ACT] = CommandTimedOut("no answer within 60 s")
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await asked(pilot, "x")
        await press(pilot, "y")
        await until(pilot, lambda: isinstance(app.screen, ResultsDialog))
        await settled(pilot)
        assert "Cancel on lab: 1 unknown" in screen_text(app)
        assert "refresh with ctrl+r to check: the action was not retried" in screen_text(app)
    assert len(transport.acted) == 1


async def test_while_one_runs_keys_work_and_the_same_jobs_are_not_acted_on_again(
    tmp_path: Path,
) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.hangs[ACT] = asyncio.Event()
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await asked(pilot, "x")
        await pilot.press("y")
        await until(pilot, lambda: transport.acted)
        await pilot.press("x", "y", "enter")
        await until(pilot, lambda: "the cancel of 1 job is still running" in said(app))
        await until(pilot, lambda: "cancel of 1 job: 0 of 1 …" in screen_text(app), "progress")
        await pilot.press("escape", "2")
        await until(pilot, lambda: app.main.view_name == "nodes")
        transport.hangs[ACT].set()
        await until(pilot, lambda: "1 job cancelled" in said(app))
        await until(pilot, lambda: "0 of 1 …" not in screen_text(app))
    assert len(transport.acted) == 1


async def test_a_plan_can_be_carried_out_by_any_view_and_reports_how_it_went(
    tmp_path: Path,
) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.refused = {"302": "Access/permission denied"}
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        plan = app.main.session.actions.plan(ActionRequest(Verb.CANCEL, ("101", "302")))
        worker = app.main.run_worker(
            app.main.handlers.runner.carry_out(Question(plan, ("2 of 9 failed tasks",)))
        )
        await until(
            pilot,
            lambda: isinstance(app.screen, ConfirmDialog) and "2 of 9 failed" in screen_text(app),
        )
        await pilot.press("n")
        assert await worker.wait() is None
        worker = app.main.run_worker(app.main.handlers.runner.carry_out(Question(plan)))
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("y")
        report = await worker.wait()
        assert [(outcome.job_id, outcome.done) for outcome in report.outcomes] == [
            ("101", True),
            ("302", False),
        ]
        assert isinstance(app.screen, ResultsDialog)


async def test_what_is_refused_while_a_person_types_is_told_without_taking_the_keys(
    tmp_path: Path,
) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.hangs[ACT] = asyncio.Event()
    transport.refused = {"101": "Access/permission denied"}
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await asked(pilot, "x")
        await pilot.press("y", "slash", "t")
        transport.hangs[ACT].set()
        await until(pilot, lambda: "cancel on lab: 1 refused; J shows the output" in said(app))
        await pilot.press("r")
        assert app.screen is app.main
        assert app.main.view.filter_text == "tr"


async def test_a_task_that_waits_is_acted_on_alone_from_its_own_page(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.recent = list(EVERYDAY)
    transport.native = {"200": "JobId=200 ArrayJobId=200 JobState=PENDING\n"}
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await app.main.push("job", job_id="200_4")
        await settled(pilot)
        await asked(pilot, "h")
        assert "Hold job 200_4 (train-200, alice)?" in screen_text(app)
        await press(pilot, "y")
        await until(pilot, lambda: transport.acted)
    assert transport.acted == [("scontrol", "hold", "200_4")]


async def test_keys_that_are_typed_ahead_ask_once_and_send_once(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await pilot.press("x", "x", "y", "y", "y")
        await until(pilot, lambda: "1 job cancelled" in said(app))
        # On the table `y` offers what can be copied.
        assert not isinstance(app.screen, ConfirmDialog)
    assert len(transport.acted) == 1


def text_within(app: HpcdashApp, region: Region) -> str:
    """What the screen shows in a part of it."""
    lines = screen_text(app).split("\n")[region.y : region.bottom]
    return "\n".join(line[region.x : region.right] for line in lines)


async def test_a_refresh_below_the_question_does_not_change_what_is_done(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await mark(pilot, "200[]")
        dialog = await asked(pilot, "x")
        before = text_within(app, dialog.query_one(".frame").region)
        assert "scancel -v 200" in before
        transport.mine = [job("200_2"), job("900", username="alice")]
        app.main.session.poller.poll_now()
        table = app.main.session.store.table
        await until(pilot, lambda: "900" in table(Kind.MINE)["id"].to_pylist())
        await settled(pilot)
        assert text_within(app, dialog.query_one(".frame").region) == before
        assert dialog.plan.request.job_ids == ("200",)
        await press(pilot, "y")
        await until(pilot, lambda: transport.acted)
    assert transport.acted == [("scancel", "-v", "200")]


async def test_of_a_filtered_array_the_tasks_that_match_are_meant(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY, job("200_6", timeused="1:00:00"))
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        app.main.view.set_filter("state:running")
        await settled(pilot)
        await point_at(pilot, "200[]")
        targets = app.main.view.targets()
        assert targets.job_ids == ("200_1", "200_6")
        assert app.main.view.pointed_job() == "200"
        app.main.view.set_filter("")
        await settled(pilot)
        assert app.main.view.targets().job_ids == ("200",)


async def test_marks_that_a_filter_hides_are_meant_and_those_of_jobs_that_are_gone_end(
    tmp_path: Path,
) -> None:
    app = acting_app(ScriptedTransport(*EVERYDAY), tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await mark(pilot, "101", "200[]", "7", "8[]")
        app.main.view.set_filter("id:302")
        await settled(pilot)
        targets = app.main.view.targets()
        assert targets.job_ids == ("101", "200")
        assert [row["id"] for row in targets.rows] == ["101", "200_1", "200_[2-5%2]"]
        assert targets.missing == ()
        assert app.main.view.rows.marked == {"101", "200[]"}


async def test_a_signal_is_chosen_with_its_recipient_then_asked(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await press(pilot, "z")
        assert isinstance(app.screen, SignalDialog)
        assert "many training programs save a checkpoint" in screen_text(app)
        await press(pilot, "down", "tab", "tab", "down")
        await asked(pilot, "enter")
        shown = screen_text(app)
        assert "Send USR2 to job 101 (train-101, alice)?" in shown
        assert "to batch script" in shown
        await press(pilot, "enter")
        assert isinstance(app.screen, SignalDialog), "no is back to the choice"
        await asked(pilot, "enter")
        await press(pilot, "y")
        await until(pilot, lambda: "USR2 sent to 1 job" in said(app))
        assert app.screen is app.main
    (sent,) = transport.acted
    assert sent[2:] == ("scancel", "-v", "--state=RUNNING", "--signal=USR2", "--batch", "101")


async def test_a_signal_that_is_none_is_said_in_the_dialog_and_one_by_number_is_taken(
    tmp_path: Path,
) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await press(pilot, "z", "tab")
        await type_text(pilot, "NONE")
        await press(pilot, "enter")
        assert isinstance(app.screen, SignalDialog)
        assert "'NONE' is not a signal" in screen_text(app)
        app.screen.query_one(Input).value = "12"
        await asked(pilot, "enter")
        assert "--signal=12" in screen_text(app)
        await press(pilot, "y")
        await until(pilot, lambda: transport.acted)


async def test_altering_sends_what_was_changed_alone(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await point_at(pilot, "302")
        await press(pilot, "A")
        assert isinstance(app.screen, AlterDialog)
        fields = {field.id: field.value for field in app.screen.query(Input)}
        assert fields == {"time": "12:00:00", "queue": "gpu", "qos": "normal", "nice": ""}
        await press(pilot, "enter")
        assert "no changes yet" in screen_text(app)
        app.screen.query_one("#time", Input).value = "two hours"
        app.screen.query_one("#nice", Input).value = "50"
        await press(pilot, "enter")
        assert isinstance(app.screen, AlterDialog)
        assert "'two hours' is not a duration" in screen_text(app)
        assert app.screen.query_one("#nice", Input).value == "50"
        app.screen.query_one("#time", Input).value = "2h"
        await asked(pilot, "enter")
        assert "time limit: 02:00:00 (was 12:00:00)" in screen_text(app)
        await press(pilot, "enter")
        await until(pilot, lambda: "1 job changed" in said(app))
        assert app.screen is app.main
    sent = [word for command in transport.acted for word in command]
    assert "jobid=302" in sent
    assert not [word for word in sent if word.lower().startswith(("partition", "qos"))]
    assert [word for word in sent if word.lower().startswith("nice")] == ["nice=50"]


async def test_of_a_task_the_throttle_is_not_offered(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    transport.recent = list(EVERYDAY)
    transport.native = {"200": "JobId=200 ArrayJobId=200 JobState=PENDING\n"}
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await app.main.push("job", job_id="200_4")
        await settled(pilot)
        await press(pilot, "A")
        await until(pilot, lambda: bool(app.screen.query("#time")))
        assert "throttle" not in [field.id for field in app.screen.query(Input)]


async def test_of_running_jobs_only_the_time_limit_can_be_changed(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await mark(pilot, "101", "302")
        await press(pilot, "A")
        assert [field.id for field in app.screen.query(Input)] == ["time"]
        assert [field.placeholder for field in app.screen.query(Input)] == ["unchanged"]
        assert "1 of the jobs is running" in screen_text(app)
        await press(pilot, "escape", "u")
        await point_at(pilot, "200[]")
        await press(pilot, "A")
        assert {field.id: field.value for field in app.screen.query(Input)} == {
            "time": "12:00:00",
            "throttle": "2",
        }
        app.screen.query_one("#throttle", Input).value = "4"
        await asked(pilot, "enter")
        assert "tasks at once: 4" in screen_text(app)
        await press(pilot, "y")
        await until(pilot, lambda: transport.acted)
    assert transport.acted == [("scontrol", "update", "jobid=200", "arraytaskthrottle=4")]


async def test_the_command_bar_and_the_palette_act_as_the_keys_do(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await point_at(pilot, "101")
        await press(pilot, "colon")
        await type_text(pilot, "cancel")
        await asked(pilot, "enter")
        await press(pilot, "n")
        await pilot.press("ctrl+p")
        await type_text(pilot, "cancel")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await press(pilot, "y")
        await until(pilot, lambda: transport.acted)
    assert transport.acted == [("scancel", "-v", "101")]


async def test_read_only_leaves_no_way_to_act(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path, read_only=True)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await press(pilot, "x", "h", "r", "p", "z", "A")
        assert app.screen is app.main
        for name in ("cancel", "hold", "requeue", "suspend", "signal", "alter"):
            assert await app.main.command_line.run(name) is not None
            await app.main.act(name)
            assert app.screen is app.main
        await press(pilot, "ctrl+p")
        await type_text(pilot, "cancel")
        assert "Nothing matches" in screen_text(app)


async def test_five_thousand_jobs_are_asked_about_at_once(tmp_path: Path) -> None:
    rows = [job(str(number), **PENDING) for number in range(10_000, 15_000)]
    app = acting_app(ScriptedTransport(*rows), tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await mark(pilot, *(row["jobarrayid"] for row in rows))
        dialog = await asked(pilot, "x")
        shown = screen_text(app)
        assert "Cancel 5000 jobs owned by alice?" in shown
        assert "No (n)" in shown
        assert len(dialog.plan.commands) == 5
        await press(pilot, "end", "pagedown", "j")
        await press(pilot, "escape")


async def test_a_name_that_would_forge_the_question_is_shown_as_what_it_is(tmp_path: Path) -> None:
    transport = ScriptedTransport(job("7", name="x?\x1b[2J\n[bold]No, job 8", username="alice"))
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        await asked(pilot, "x")
        assert "Cancel job 7 (x?␛[2J␊[bold]No, job 8, alice)?" in screen_text(app)


async def test_an_action_that_cannot_be_noted_says_so(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        (tmp_path / "journal.jsonl").mkdir()
        await point_at(pilot, "302")
        await asked(pilot, "h")
        await press(pilot, "enter")
        await until(pilot, lambda: "not written to the journal" in said(app))
        assert "1 job held" in said(app)


async def test_the_scheduler_is_asked_again_after_an_action(tmp_path: Path) -> None:
    transport = ScriptedTransport(*EVERYDAY)
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=USUAL) as pilot:
        await settled(pilot)
        before = transport.count("mine")
        await point_at(pilot, "302")
        await asked(pilot, "h")
        await press(pilot, "enter")
        await until(pilot, lambda: transport.count("mine") > before)
        await press(pilot, "J")
        assert isinstance(app.main.view, JournalView)


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
        'name = "night"\nkill_switch = "KILL"\ncheckpoints = "/saved"\n[call]\nfunction = '
        '"a.b:main"\n',
    )
    switch = queue.work / "KILL"
    switch.touch()
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=(150, 60)) as pilot:
        await settled(pilot)
        await press(pilot, "d")
        await until(
            pilot,
            lambda: "Launched from here" in screen_text(app),
            "what is remembered of its launch",
        )
        for words in ("a.b:main", "/jobs/night/result.pkl", "/saved", str(switch)):
            assert words in screen_text(app)
        for is_there in (True, False):
            await press(pilot, "r")
            await until(
                pilot,
                lambda: isinstance(app.screen, ConfirmDialog) and app.screen.query("#keys"),
                "question",
            )
            dialog = app.screen
            assert isinstance(dialog, ConfirmDialog)
            warned = f"the kill switch {switch} is set: the job would stop at once. "
            told = (f"{warned}Clear it first: hpcdash kill-switch {job} --clear",)
            assert dialog.question.warnings == (told if is_there else ())
            assert "resumes from the newest complete checkpoint in /saved" in screen_text(app)
            assert "from the beginning" not in screen_text(app)
            await press(pilot, "n")
            await until(pilot, lambda: app.screen is app.main, "the page")
            switch.unlink(missing_ok=True)
