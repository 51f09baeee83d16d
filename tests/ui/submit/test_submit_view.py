"""The form of a new submission: what it says while one types, and jobs that are submitted from it
and run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace
from textual.events import Key
from textual.pilot import Pilot

from hpcdash.backends.actions import ActionCommand, Outcome
from hpcdash.backends.queries import Answer
from hpcdash.backends.submissions import StartEstimate
from hpcdash.config.read import settings_from_text
from hpcdash.config.settings import PoolSettings
from hpcdash.domain.offers import Offers
from hpcdash.errors import CommandTimedOut
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Report
from hpcdash.services.submit.form import Draft
from hpcdash.services.watch.board import WatchBoard
from hpcdash.services.watch.state import WatchFiles
from hpcdash.ui.dialogs import ChoiceDialog
from hpcdash.ui.jobs.action_dialogs import ConfirmDialog, ResultsDialog
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.submit.view import SubmitView
from tests.embedded.queue_lab import QueueLab
from tests.ui.stage import PBS_CASES, press, screen_text, settled, type_text, until
from tests.ui.submit.submit_stage import fill, form_of, looked, open_form, queue_app, recorded_app

SMALL, LARGE = (80, 24), (140, 40)
WATCHED = '[[watch.saves]]\nname = "train-7b"\ninterval_seconds = "1h"\nsave_seconds = 40'


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueLab]:
    # Jobs write their logs where they are submitted from.
    monkeypatch.chdir(tmp_path)
    lab = QueueLab(tmp_path / "queue", tmp_path / "work")
    yield lab
    lab.end()


async def submit(pilot: Pilot[Any]) -> None:
    """Submit what stands in the form, saying yes."""
    await pilot.press("ctrl+j")
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmDialog), "a question")
    await pilot.press("y")
    await until(pilot, lambda: not isinstance(pilot.app.main.view, SubmitView), "submitted")


# -- jobs that run


async def test_what_is_typed_is_submitted_once_and_runs(queue: QueueLab, tmp_path: Path) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await type_text(pilot, "echo it runs")
        await pilot.press("tab")
        await type_text(pilot, "hello")
        await looked(pilot)
        assert "echo it runs" in form_of(pilot).seen.script
        await submit(pilot)
        assert queue.ended("1").state == "completed"
        assert [row["id"] for row in queue.rows("history", "1")] == ["1"]
        with pytest.raises(ValueError, match="not enough"):
            queue.job("2")
        (folder,) = (tmp_path / "state" / "launches").glob("[!.]*")
        assert (folder / "1.out").read_text() == "it runs\n"
        assert 'command = "echo it runs"' in (folder / "request.toml").read_text()
        await until(pilot, lambda: app.main.view.pointed_job() == "1", "the cursor on the new job")
        # However long the path is, and wherever it is broken.
        assert f"logswillbein{folder}" in "".join(screen_text(app).split())


@pytest.mark.slow
async def test_a_plain_script_is_chosen_by_a_switch_and_submitted(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        await fill(pilot, command="echo it runs", slots="0")
        view.form.enter("plain")
        await until(pilot, lambda: "without hpcdash.job, switches" in screen_text(app), "its hint")
        await pilot.press("space")
        await looked(pilot)
        assert view.seen.script.split("\n\n")[1] == "echo it runs\n"
        assert "hpcdash.job is not on PYTHONPATH" in " ".join(screen_text(app).split())
        await fill(pilot, kill_switch="/KILL", environment="HF_TOKEN=x")
        assert view.form.field_error("kill_switch").startswith("✗ cannot be combined with plain")
        assert "HF_TOKEN: cannot be combined with" in view.form.field_error("environment")
        await fill(pilot, kill_switch="", environment="")
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "a question")
        assert "hpcdash.job is not on" in " ".join(screen_text(app).split())
        await pilot.press("y")
        await until(pilot, lambda: not isinstance(app.main.view, SubmitView), "submitted")
        assert queue.ended("1").state == "completed"
        (folder,) = (tmp_path / "state" / "launches").glob("[!.]*")
        assert (folder / "1.out").read_text() == "it runs\n"
        assert "plain = true" in (folder / "request.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("array", ["", "0-1"])
async def test_the_cursor_goes_to_what_was_submitted_though_the_list_changed_meanwhile(
    queue: QueueLab, tmp_path: Path, array: str
) -> None:
    for _ in range(3):
        queue.submit("#!/bin/sh\nsleep 600\n")
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        first = app.main.view.pointed_job()
        assert first in ("1", "2", "3")
        await open_form(pilot)
        await fill(pilot, name="zz", command="sleep 600", array=array)
        await looked(pilot)
        queue.act("cancel", first)
        await submit(pilot)
        await until(pilot, lambda: app.main.view.pointed_job() == "4", "the cursor on the new job")


@pytest.mark.slow
async def test_a_kill_switch_that_is_there_still_is_told_as_one_is_asked(
    queue: QueueLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_seconds = "hpcdash.ui.submit.page._REST_SECONDS"
    monkeypatch.setattr(rest_seconds, 3600.0)
    switch = tmp_path / "KILL"
    switch.touch()
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(pilot, command="true", kill_switch=str(switch))
        for is_asked_before, is_there in ((False, True), (False, False), (True, True)):
            if is_asked_before:
                monkeypatch.setattr(rest_seconds, 0.1)
                view.preview_soon()
                await until(
                    pilot,
                    lambda: view.answer.is_for(view.seen),
                    "the cluster asked as typing rests",
                )
                monkeypatch.setattr(rest_seconds, 3600.0)
                switch.touch()
            await pilot.press("ctrl+j")
            await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "the question")
            assert isinstance(app.screen, ConfirmDialog)
            words = (
                f"the kill switch {switch} is still set: the job would stop at once. Clear it "
                "first: rm "
            )
            assert [one.startswith(words) for one in app.screen.question.warnings] == (
                [True] if is_there else []
            )
            assert not [words for words in app.screen.question.notes if "kill switch" in words]
            default = app.screen.query_one("#no" if is_there else "#yes")
            await until(pilot, lambda default=default: default.has_focus, "the answer to enter")  # type: ignore[misc]
            switch.unlink(missing_ok=True)
            await pilot.press("n")
            await until(pilot, lambda: app.screen is app.main, "the form again")
        # The form tells too, and knows better once one comes back to it.
        assert "is still set" in screen_text(app)
        monkeypatch.setattr(rest_seconds, 0.1)
        await press(pilot, "escape", "n")
        await until(pilot, lambda: "is still set" not in screen_text(app), "asked again")

        # What was told of one request is told of no other.
        of_switch, (answer, switch_there) = (
            view.seen,
            (view.answer, f"the kill switch {switch} is still set"),
        )
        of_other = (await fill(pilot, kill_switch=str(tmp_path / "OTHER"))).seen
        switch.touch()
        await answer.refresh(of_other)
        await answer.check_paths(of_switch)
        assert answer.preview_findings(of_other) == ()
        assert [
            one.text.startswith(switch_there) for one in answer.preview_findings(of_switch)
        ] == [True]
        await answer.check_paths(of_other)
        await answer.check_paths(of_switch)
        assert [
            one.text.startswith(switch_there) for one in answer.preview_findings(of_switch)
        ] == [True]

        async def unanswered(*_: object) -> NoReturn:
            raise CommandTimedOut("no answer in 10 s")

        monkeypatch.setattr("hpcdash.services.submit.checks.missing_paths", unanswered)
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "the question")
        assert isinstance(app.screen, ConfirmDialog)
        not_known = f"cannot check the kill switch {tmp_path}/OTHER: no answer in 10 s"
        assert not_known in app.screen.question.notes


@pytest.mark.slow
async def test_what_a_request_calls_is_told_in_the_place_of_its_command_and_as_one_is_asked(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        view.put(
            Draft({"slots": "0"}, {"call": {"function": "nightpkg.go:main", "items": [1, 2, 3]}})
        )
        await until(
            pilot,
            lambda: "calls nightpkg.go:main with 3 items, one task each" in screen_text(app),
            "the call",
        )
        await looked(pilot)
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "the question")
        assert isinstance(app.screen, ConfirmDialog)
        assert app.screen.question.notes[0] == "calls nightpkg.go:main with 3 items, one task each"
        await pilot.press("n")
        await until(pilot, lambda: app.screen is app.main, "the form again")
        view.put(Draft({"command": "true"}))
        await until(pilot, lambda: "calls nightpkg" not in screen_text(app), "no call")


async def test_a_no_keeps_what_was_typed_and_submits_nothing(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(pilot, name="hello", command="true")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "a question")
        await pilot.press("n")
        await until(pilot, lambda: app.screen is app.main, "the form again")
        assert app.main.view is view
        assert view.form.texts()["name"] == "hello"
        assert queue.rows("jobs") == []
        assert not (tmp_path / "state" / "launches").exists()


async def test_the_key_pressed_twice_asks_once_and_submits_once(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, command="true", name="once")
        for _ in range(3):
            app.post_message(Key("ctrl+j", None))
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "a question")
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.main.view, JobsView), "submitted")
        assert app.screen is app.main
        assert queue.ended("1").state == "completed"
        with pytest.raises(ValueError, match="not enough"):
            queue.job("2")


@pytest.mark.slow
async def test_what_may_have_been_submitted_is_asked_about_before_it_is_once_more(
    queue: QueueLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, is_lost = ClusterStore.act, True

    async def act(store: ClusterStore, command: ActionCommand, *more: Any) -> Answer:
        answer = await plain(store, command, *more)
        if is_lost and "submit" in command.argv:
            raise CommandTimedOut("no answer", argv=command.argv)
        return answer

    async def reconcile(
        store: ClusterStore, again: Any, report: Report, told: Any
    ) -> tuple[Outcome, ...]:
        return report.outcomes

    monkeypatch.setattr(ClusterStore, "act", act)
    monkeypatch.setattr("hpcdash.services.submit.launches.reconcile", reconcile)
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, command="true", name="once")
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "a question")
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, ResultsDialog), "how it went")
        await press(pilot, "escape")
        is_lost = False
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "a question")
        words = " ".join(screen_text(app).replace("│", " ").replace("┃", " ").split())
        assert re.search(r"job once may have been submitted at \d\d:\d\d\. Submit again\?", words)
        await press(pilot, "enter")
        await until(pilot, lambda: app.screen is app.main, "the form again")
        assert queue.ended("1").state == "completed"
        await submit(pilot)
        assert queue.ended("2").state == "completed"


async def test_a_chain_is_jobs_that_wait_each_for_the_one_before(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, name="train", command="true", chain="3")
        await submit(pilot)
        for number in "123":
            assert queue.ended(number).state == "completed"
        first, second, third = (queue.job(number) for number in "123")
        assert (first.ended_at or 0.0) <= (second.started_at or 0.0)
        assert (second.ended_at or 0.0) <= (third.started_at or 0.0)


async def test_a_batch_script_is_submitted_as_it_is_with_what_is_said_over_it(
    queue: QueueLab, tmp_path: Path
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --job-name=own --time=10\necho $1 >{tmp_path}/said\n")
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await press(pilot, "ctrl+n")
        view = await fill(pilot, file=str(script), arguments="'two words'", time="5m")
        await until(pilot, lambda: "--job-name=own" in view.seen.script, "the script")
        assert "time limit 10 min" in screen_text(app)
        await submit(pilot)
        assert queue.ended("1").state == "completed"
        assert (tmp_path / "said").read_text() == "two words\n"
        (row,) = queue.rows("history", "1")
        assert (row["name"], row["limit_seconds"]) == ("own", 300)


@pytest.mark.slow
async def test_directives_behind_a_command_are_warned_of_and_do_not_keep_a_script_back(
    queue: QueueLab, tmp_path: Path
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\nset -euo pipefail\n#SBATCH --job-name=own\n")
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await press(pilot, "ctrl+n")
        await fill(pilot, file=str(script))
        warning = "line 3: ignored: ignored: after a command (line 2)"
        await until(pilot, lambda: warning in screen_text(app), "the warning")
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "the question")
        assert screen_text(app).count(f"│  {warning}") == 1
        await pilot.press("y")
        await until(pilot, lambda: queue.run("history", "1").returncode == 0, "the job")
        await settled(pilot)
        assert queue.ended("1").state == "completed"


@pytest.mark.slow
async def test_all_of_a_chain_is_the_script_that_was_asked_about(
    queue: QueueLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, other = tmp_path / "train.sbatch", tmp_path / "other.sbatch"
    script.write_text(f"#!/bin/bash\necho asked >>{tmp_path}/said\n")
    other.write_text(f"#!/bin/bash\necho other >>{tmp_path}/said\n")
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await press(pilot, "ctrl+n")
        view = await fill(pilot, file=str(script), chain="3")
        planned = ClusterStore.act

        async def act(store: ClusterStore, command: ActionCommand, *more: Any) -> Answer:
            """Another file is named as soon as the first is on its way."""
            if (
                command.stdin is not None
                and "submit" in command.argv
                and view.form.texts()["file"] != str(other)
            ):
                view.form.set_text("file", str(other))
                await view.preview_now()
            return await planned(store, command, *more)

        monkeypatch.setattr(ClusterStore, "act", act)
        await pilot.press("ctrl+j")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog), "a question")
        await pilot.press("y")
        await until(
            pilot,
            lambda: "your later edits are kept" in screen_text(app).replace("\n", " "),
            "submitted",
        )
        assert app.main.view is view
        assert view.form.texts() == {"file": str(other), "chain": "3"}
        for number in "123":
            assert queue.ended(number).state == "completed"
        assert (tmp_path / "said").read_text() == "asked\n" * 3


@pytest.mark.slow
async def test_what_stood_there_before_is_there_after_another_was_submitted(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(pilot, name="long-thought", command="python train.py")
        view.put(Draft({"name": "quick", "command": "true"}))
        await looked(pilot)
        await submit(pilot)
        await open_form(pilot)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog), "the list")
        await pilot.press("down", "enter")
        await looked(pilot)
        assert view.form.texts() == {"name": "long-thought", "command": "python train.py"}


@pytest.mark.slow
async def test_a_template_with_choices_fills_the_form(queue: QueueLab, tmp_path: Path) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: "JupyterLab on a node (a template)" in screen_text(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: "jupyter: time" in screen_text(app), "the choice")
        await pilot.press("down", "enter")
        await until(pilot, lambda: view.form.texts().get("name") == "jupyter", "the form")
        assert view.form.texts()["time"] == "12:00:00"
        assert "--ip=127.0.0.1" in view.form.texts()["command"]


@pytest.mark.slow
async def test_to_open_the_form_again_and_again_asks_the_cluster_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def fetch(store: ClusterStore) -> Offers:
        asked.append(store.name)
        return Offers()

    monkeypatch.setattr("hpcdash.services.submit.queues.fetch_offers", fetch)
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        for _ in range(3):
            await press(pilot, "escape")
            await open_form(pilot)
        assert len(asked) == 1
        await press(pilot, "ctrl+r")
        await looked(pilot)
        assert len(asked) == 2


@pytest.mark.slow
async def test_an_array_is_submitted_held_where_that_is_wanted(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, name="sweep", command="true", array="1-3%1", hold="yes")
        await submit(pilot)
        assert queue.job("1_2").held


# -- drafts, recent ones, templates


async def test_escape_keeps_the_draft_and_n_goes_on_with_it(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await type_text(pilot, "train")
        await press(pilot, "escape")
        assert isinstance(app.main.view, JobsView)
        await press(pilot, "n")
        assert form_of(pilot).form.texts() == {"command": "train"}
        assert form_of(pilot).form.field == "command"


@pytest.mark.slow
async def test_what_was_submitted_can_be_started_from_and_compared_with(
    queue: QueueLab, tmp_path: Path
) -> None:
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, name="train", command="true", time="5m")
        await submit(pilot)
        await open_form(pilot)
        assert form_of(pilot).form.texts() == {}
        await pilot.press("ctrl+l")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog), "the list")
        assert "train" in screen_text(app)
        await pilot.press("down", "enter")
        await looked(pilot)
        view = await fill(pilot, time="1h")
        assert view.form.texts() == {"name": "train", "command": "true", "time": "1h"}
        assert "▸ 6 lines by hpcdash: start on the nodes" in screen_text(app)
        assert "set_end_time 3600" not in screen_text(app)
        await press(pilot, "ctrl+o")
        assert "▾ 6 lines by hpcdash: start on the nodes" in screen_text(app)
        assert "  start on the nodes: the command for each node" in screen_text(app)
        await press(pilot, "ctrl+o")
        changed = [line.text for line in view.page.lines if line.text[:1] in "+-"][2:]
        assert changed[:2] == ["-#SBATCH --time=00:05:00", "+#SBATCH --time=01:00:00"]
        # When it is over, where Slurm would not say it.
        assert changed[2:] == ["-set_end_time 300", "+set_end_time 3600"]


async def test_a_template_is_kept_and_started_from(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, name="base", command="python train.py", container__image="torch.sif")
        await pilot.press("ctrl+g")
        await pilot.press("enter")
        assert (tmp_path / "templates" / "base.toml").exists()
        await pilot.press("ctrl+l")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog), "the list")
        await pilot.press("enter")
        await looked(pilot)
        assert form_of(pilot).form.texts() == {}
        await pilot.press("ctrl+l")
        await until(pilot, lambda: "a template" in screen_text(app), "the list")
        # An empty form, the previous content, the template.
        await pilot.press("down", "down", "enter")
        await looked(pilot)
        assert form_of(pilot).form.texts()["container.image"] == "torch.sif"


async def test_a_template_is_replaced_by_another_only_after_that_was_said(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    file = tmp_path / "templates" / "base.toml"
    file.parent.mkdir()
    file.write_text('command = "thought about for long"\n')
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, name="base", command="true")
        await pilot.press("ctrl+g")
        await pilot.press("enter")
        await until(pilot, lambda: "template base exists" in screen_text(app), "a complaint")
        assert "thought about" in file.read_text()
        await pilot.press("enter")
        await until(
            pilot, lambda: "thought about" not in file.read_text(), "the other in its place"
        )


# -- what it says while one types


async def test_what_is_wrong_is_said_by_its_field_and_goes_when_it_is_mended(
    tmp_path: Path,
) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(pilot, command="true", time="30")
        assert "has no unit" in view.form.field_error("time")
        view = await fill(pilot, time="30m")
        assert view.form.field_error("time") == ""
        assert "--time=00:30:00" in screen_text(app)


async def test_what_saving_costs_is_said_in_a_line_by_what_is_typed_or_watched(
    tmp_path: Path,
) -> None:
    app = recorded_app(tmp_path)
    settings = settings_from_text(WATCHED, tmp_path / "config.toml").watch
    session = app.sessions[0]
    files = WatchFiles(tmp_path, session.name)
    app.sessions[0] = replace(session, watching=WatchBoard(session.store, settings, files))
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(
            pilot, command="true", time="9d", chain="10", saves_every="3h", save_takes="40s"
        )
        assert (
            view.seen.saving
            == "a save every 3 h, taking 40 s each: 720 saves, 8 h lost, 0.37% of its time"
        )
        assert view.seen.saving in screen_text(app)
        assert view.seen.saving in view.format_notes()
        assert "3h" not in view.seen.text
        view = await fill(pilot, save_takes="40 s of it")
        assert (view.seen.saving, view.seen.problems.get("save_takes")) == ("", None)
        assert "40 s of it" in view.form.field_error("save_takes")
        view = await fill(pilot, name="train-7b", saves_every="", save_takes="")
        assert (
            view.seen.saving
            == "a save every 1 h, taking 40 s each: 2160 saves, 24 h lost, 1.11% of its time"
        )


async def test_a_queue_that_is_not_there_is_told_and_keeps_it_from_being_submitted(
    tmp_path: Path,
) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(pilot, command="true", queue="gqu")
        assert "no queue" in view.form.field_error("queue")
        await press(pilot, "ctrl+j")
        assert app.screen is app.main
        assert view.form.field == "queue"


async def test_what_is_no_task_of_a_pool_is_told_at_its_field(tmp_path: Path) -> None:
    pools = (PoolSettings("lab", 8, queue="gpu"), PoolSettings("spare", 2, queue="cpu"))
    app = recorded_app(tmp_path, pools=pools)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(pilot, command="true", share="HIGH")
        assert "several pools match" in view.form.field_error("share")
        view = await fill(pilot, pool="lab", slots="4")
        assert "fixed number of nodes" in view.form.field_error("slots_per_node")
        view = await fill(pilot, slots_per_node="2", chain="3")
        assert view.form.field_error("slots_per_node") == ""
        assert "either share or chain" in view.form.field_error("chain")


async def test_a_queue_that_is_not_there_is_told_while_other_fields_do_not_parse(
    tmp_path: Path,
) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        view = await fill(pilot, command="true", queue="gqu", time="30", container__binds="x")
        assert "no queue" in view.form.field_error("queue")
        assert "has no unit" in view.form.field_error("time")


async def test_what_arrow_right_takes_is_said(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        view.form.enter("queue")
        await type_text(pilot, "gp")
        await looked(pilot)
        assert "→ accepts gpu" in view.hint()
        await press(pilot, "right")
        assert view.form.texts()["queue"] == "gpu"
        assert "→" not in view.hint()


async def test_a_script_as_it_is_has_its_own_queue_in_hints_and_its_time_said_over(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --time=900-0\ntrue\n")
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await press(pilot, "ctrl+n")
        view = await fill(pilot, file=str(script))
        assert "exceeds the limit" in view.form.field_error("file")
        view = await fill(pilot, time="5m")
        assert view.form.field_error("file") == ""
        assert "exceeds the limit" not in screen_text(app)
        view.form.enter("queue")
        await pilot.pause()
        assert view.hint().startswith("default: gpu, ")


async def test_an_empty_form_complains_of_nothing_until_one_submits_it(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        assert view.form.field_error("command") == ""
        await press(pilot, "ctrl+j")
        assert "set command, script" in view.form.field_error("command")
        assert view.form.field == "command"


async def test_queues_are_listed_with_what_is_idle_in_them(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        view.form.enter("queue")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog), "the list")
        assert "0 of 40 GPUs idle (a100, h100)" in screen_text(app)
        await pilot.press("down", "enter")
        await looked(pilot)
        assert view.form.texts()["queue"] == "gpu"
        assert "--partition=gpu" in view.seen.script


@pytest.mark.slow
async def test_a_running_job_that_was_pointed_at_is_offered_to_be_waited_for(
    tmp_path: Path,
) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        job_id = app.main.view.pointed_job()
        assert job_id is not None
        view = await open_form(pilot)
        view.form.enter("after")
        await settled(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog), "the list")
        assert "the selected job" in screen_text(app)
        await pilot.press("enter")
        await looked(pilot)
        assert view.form.texts()["after"] == job_id
        await fill(pilot, command="true")
        assert f"--dependency=afterany:{job_id}" in view.seen.script


async def test_when_it_would_start_is_asked_once_typing_rests_and_not_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def estimate(
        store: ClusterStore, script: bytes, options: Sequence[str] = (), **_: object
    ) -> StartEstimate:
        asked.append(script)
        if b"--time=00:30:00" in script:
            return StartEstimate(refusal="Job violates accounting\x1b[2J", hint="ask for less")
        return StartEstimate(starts_at_epoch=store.clock.now() + 7200, node_list="g[01-02]")

    monkeypatch.setattr("hpcdash.services.submit.checks.estimate_start", estimate)
    monkeypatch.setattr("hpcdash.ui.submit.page._EVERY_SECONDS", 0.0)
    monkeypatch.setattr("hpcdash.ui.submit.page._REST_SECONDS", 0.3)
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        assert asked == []
        await fill(pilot, command="true", time="1h")
        await until(pilot, lambda: "start: in 2 h" in screen_text(app), "an answer")
        assert "on g[01-02]" in screen_text(app)
        await fill(pilot, time="30m")
        await until(
            pilot,
            lambda: "would be rejected: Job violates accounting␛[2J" in screen_text(app),
            "a refusal",
        )
        view.preview_soon()
        await looked(pilot)
        assert len(asked) == 2
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: len(asked) == 3, "asked again, as a person wanted")


async def test_on_pbs_the_script_is_in_its_words(tmp_path: Path) -> None:
    app = recorded_app(tmp_path, cases=PBS_CASES)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        await fill(
            pilot,
            name="train",
            command="true",
            time="1h",
            queue="workq",
            slot_type="cpu",
            slots="4",
        )
        assert "#PBS -N train" in view.seen.script
        assert "walltime=1:00:00" in view.seen.script.replace("01:", "1:")
        assert "#PBS -q workq" in screen_text(app)


async def test_keys_of_the_dashboard_are_letters_in_a_field(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        await pilot.press("q", "1", "m", "question_mark", "n")
        await pilot.pause()
        assert app.main.view is view
        assert view.form.texts() == {"command": "q1m?n"}


async def test_what_is_typed_ahead_goes_where_it_would_have_gone(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        to_after = [*["tab"] * 8, "enter", "tab", "tab"]
        for key in ("b", "enter", "c", "tab", "a", *["tab"] * 5, "d", *to_after, "7"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: view.form.texts().get("after"), "the last letter")
        assert view.form.texts() == {"name": "a", "command": "b\nc", "queue": "d", "after": "7"}


@pytest.mark.slow
async def test_slots_are_called_by_what_the_queue_has(tmp_path: Path) -> None:
    from hpcdash.domain.offers import QueueOffer

    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        # The default queue of the recording has GPUs.
        assert view.form.label("slots") == "GPUs"
        queues = Offers((QueueOffer("gpu", gpus=4), QueueOffer("cpu")))
        for offers, texts, label in (
            (Offers(), {}, "GPUs or CPUs"),
            (Offers(), {"gpu_type": "a100"}, "GPUs"),
            (Offers(), {"gpu_type": "", "slot_type": "cpu"}, "CPUs"),
            (Offers(), {"slot_type": "rocm"}, "GPUs"),
            (queues, {"slot_type": "", "queue": "gpu"}, "GPUs"),
            (queues, {"queue": "cpu"}, "CPUs"),
        ):
            view.offers = offers
            await fill(pilot, **texts)
            assert view.form.label("slots") == label, (offers, texts)
        # What is wrong is told of the field as it is called, and of a file by its key.
        await fill(pilot, command="true", slots="two")
        await pilot.press("ctrl+j")
        await until(pilot, lambda: "✗ fix: CPUs" in screen_text(app), "the verdict")
        assert "expected a whole number" in view.form.field_error("slots")


async def test_remote_text_is_made_visible_in_lists_and_complaints(tmp_path: Path) -> None:
    from hpcdash.domain.offers import Offers, QueueOffer

    app = recorded_app(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        view.offers = Offers(
            queues=(QueueOffer("ev\x1b[2Jil[bold]", gpu_types=("\x1b]0;x\x07",), gpus=1),)
        )
        view.form.enter("queue")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog), "the list")
        assert "ev␛[2Jil[bold]" in screen_text(app)
        assert "\x1b" not in screen_text(app)
        await pilot.press("enter")
        await fill(pilot, command="if x\n\tthen \x1b]0;y\x07")
        assert view.form.texts()["command"] == "if x\n\tthen ␛]0;y␇"
        assert "\x1b" not in screen_text(app)


async def test_read_only_opens_no_form(tmp_path: Path) -> None:
    app = recorded_app(tmp_path, read_only=True)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await press(pilot, "n")
        assert isinstance(app.main.view, JobsView)


async def test_on_a_narrow_screen_the_script_takes_the_place_of_the_form(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        view = await open_form(pilot)
        await fill(pilot, command="true")
        assert "#SBATCH" not in screen_text(app)
        await press(pilot, "ctrl+o")
        assert "#SBATCH" in screen_text(app)
        await press(pilot, "escape")
        assert app.main.view is view
        assert "#SBATCH" not in screen_text(app)


# -- what it looks like


async def empty(pilot: Pilot[Any]) -> None:
    await open_form(pilot)


async def typed(pilot: Pilot[Any]) -> None:
    await open_form(pilot)
    await fill(
        pilot,
        name="train",
        command="module load cuda\ntorchrun train.py",
        queue="gpu",
        slots="12",
        slots_per_node="4",
    )
    await fill(pilot, time="90", container__image="docker://pytorch/pytorch")


async def queues(pilot: Pilot[Any]) -> None:
    view = await open_form(pilot)
    view.form.enter("queue")
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))


async def script(pilot: Pilot[Any]) -> None:
    await open_form(pilot)
    await fill(pilot, name="train", command="python train.py", queue="gpu", array="1-10%1")
    await press(pilot, "ctrl+o")


async def as_it_is(pilot: Pilot[Any]) -> None:
    await open_form(pilot)
    await press(pilot, "ctrl+n")
    view = await fill(pilot, file="train.sbatch", time="2h")
    await until(pilot, lambda: view.seen.script, "the script")


SHOWN = [(typed, SMALL), *((scene, LARGE) for scene in (empty, typed, queues, script, as_it_is))]


@pytest.mark.parametrize(
    ("scene", "size"), SHOWN, ids=[f"{scene.__name__}-{size[0]}x{size[1]}" for scene, size in SHOWN]
)
def test_the_form_looks_as_it_did(
    snap_compare: Any,
    scene: Any,
    size: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --time=1:00:00 --gpus=4\n#SBATCH -p nowhere\nsrun true\n"
    )
    # What the cluster says once typing rests comes when it comes.
    monkeypatch.setattr("hpcdash.ui.submit.page._REST_SECONDS", 3600.0)

    async def go_there(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await scene(pilot)
        await looked(pilot)
        await pilot.pause()

    assert snap_compare(recorded_app(tmp_path / "state"), terminal_size=size, run_before=go_there)


async def test_help_is_there_while_one_types(tmp_path: Path) -> None:
    app = recorded_app(tmp_path)
    async with app.run_test(size=LARGE) as pilot:
        await settled(pilot)
        await open_form(pilot)
        await fill(pilot, name="what")
        await pilot.press("f1")
        await until(pilot, lambda: "Help: submit" in screen_text(app), "the help")
        assert "list the choices" in screen_text(app)
        await pilot.press("escape")
        assert form_of(pilot).form.texts()["name"] == "what"
