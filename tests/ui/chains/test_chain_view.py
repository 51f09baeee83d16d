"""The train of a job on the screen: found whole, acted on whole or in part, appended to, its next
script edited.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from hpcdash.backends.script.stub import stub_script
from hpcdash.ui.chains.view import WHOLE, ChainView
from hpcdash.ui.jobs.action_dialogs import ConfirmDialog
from tests.ui.chains.chain_stage import SCRIPT, train_cluster
from tests.ui.jobs.acting_stage import acting_app, mark, point_at
from tests.ui.stage import ids_of, notices, press, screen_text, settled, type_text, until

SIZE = (120, 40)


async def open_train(pilot: Pilot[Any], job_id: str = "63") -> ChainView:
    await settled(pilot)
    await point_at(pilot, job_id)
    await press(pilot, "c")
    view = pilot.app.main.view
    assert isinstance(view, ChainView)
    return view


async def agreed(pilot: Pilot[Any]) -> ConfirmDialog:
    """The question, answered with yes."""
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmDialog), "the question")
    dialog = pilot.app.screen
    assert isinstance(dialog, ConfirmDialog)
    await press(pilot, "y")
    return dialog


def told(pilot: Pilot[Any]) -> list[str]:
    return notices(pilot.app)


def test_the_question_what_to_append_looks_as_it_did(snap_compare: Any, tmp_path: Path) -> None:
    async def go_there(pilot: Pilot[Any]) -> None:
        await open_train(pilot)
        await press(pilot, "plus")

    assert snap_compare(
        acting_app(train_cluster(), tmp_path), terminal_size=SIZE, run_before=go_there
    )


async def test_it_is_found_whole_what_ended_too(tmp_path: Path) -> None:
    async with acting_app(train_cluster(), tmp_path).run_test(size=(120, 40)) as pilot:
        view = await open_train(pilot)
        assert ids_of(pilot.app) == [WHOLE, "60", "61", "62", "63", "64_[1-300%1]"]
        picture = str(view.query_one(".picture", Static).render())
        assert picture == "✓1 ✗1 ▸1 ◦301  1 done, 1 failed, 1 running, 301 waiting"
        assert "exit 3" in screen_text(pilot.app)
        assert "after 62" in screen_text(pilot.app)


async def test_the_whole_row_holds_what_waits_the_last_first(tmp_path: Path) -> None:
    transport = train_cluster()
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "h")
        await agreed(pilot)
        await until(pilot, lambda: transport.acted, "the hold")
        assert transport.acted == [("scontrol", "hold", "64_[1-300],63")]


async def test_the_whole_row_cancels_all_that_lives(tmp_path: Path) -> None:
    transport = train_cluster()
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "x")
        dialog = await agreed(pilot)
        assert dialog.is_dangerous
        await until(pilot, lambda: transport.acted, "the cancel")
        assert transport.acted == [("scancel", "-v", "64_[1-300]", "63", "62")]


async def test_an_element_or_those_marked_are_acted_on_alone(tmp_path: Path) -> None:
    transport = train_cluster()
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        view = await open_train(pilot)
        await point_at(pilot, "63")
        assert view.targets().job_ids == ("63",)
        await mark(pilot, "62", "64_[1-300%1]")
        assert view.targets().job_ids == ("64_[1-300%1]", "62")


async def test_a_filter_narrows_the_whole(tmp_path: Path) -> None:
    async with acting_app(train_cluster(), tmp_path).run_test(size=(120, 40)) as pilot:
        view = await open_train(pilot)
        view.set_filter("name:last-part")
        await settled(pilot)
        assert ids_of(pilot.app) == [WHOLE, "64_[1-300%1]"]
        assert view.targets().job_ids == ("64_[1-300%1]",)


async def test_an_array_is_appended_with_the_script_and_options_of_the_last(tmp_path: Path) -> None:
    transport = train_cluster()
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "plus")
        await type_text(pilot, "7")
        await pilot.press("enter")
        await agreed(pilot)
        await until(pilot, lambda: transport.submitted, "the submission")
        [(words, stdin)] = transport.submitted
        assert words[1:3] == ("--array=1-7%1", "--dependency=afterany:64")
        assert stdin == SCRIPT
        await until(pilot, lambda: "after 64 on lab: job 91" in told(pilot), "its number")


async def test_jobs_are_appended_to_a_chain_one_after_the_other(tmp_path: Path) -> None:
    transport = train_cluster(has_array=False)
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "plus")
        assert (
            "number of jobs, or array tasks (1-10%1), then a script (default: the same)"
            in screen_text(pilot.app)
        )
        await type_text(pilot, "3")
        await pilot.press("enter")
        await until(
            pilot,
            lambda: "append 3 jobs of train after 63?" in screen_text(pilot.app),
            "a question",
        )
        await agreed(pilot)
        await until(pilot, lambda: len(transport.submitted) == 3, "three submissions")
        waits = [
            word
            for words, _ in transport.submitted
            for word in words
            if word.startswith("--dependency=a")
        ]
        assert waits == [f"--dependency=afterany:{number}" for number in (63, 91, 92)]
        await until(
            pilot,
            lambda: "after 63 on lab: 3 jobs, one after the other: 91 92 93" in told(pilot),
            "their numbers",
        )


async def test_a_script_of_one_s_own_is_appended(tmp_path: Path) -> None:
    transport = train_cluster(has_array=False)
    own = tmp_path / "next.sh"
    own.write_text("#!/bin/sh\necho own\n")
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "plus")
        pilot.app.screen.query_one(Input).value = f"1 {own}"
        await pilot.press("enter")
        await agreed(pilot)
        await until(pilot, lambda: transport.submitted, "the submission")
        [(words, stdin)] = transport.submitted
        assert stdin == own.read_bytes()
        assert "--dependency=afterany:63" in words
        assert "--job-name=next.sh" in words


@pytest.mark.parametrize("typed", ["0", "9-1", "500"])
async def test_what_is_no_number_is_complained_of_and_nothing_is_sent(
    tmp_path: Path, typed: str
) -> None:
    transport = train_cluster(has_array=False)
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "plus")
        pilot.app.screen.query_one(Input).value = typed
        await press(pilot, "enter")
        assert str(pilot.app.screen.query_one("#error", Static).render())
        assert transport.submitted == []


async def test_to_a_train_that_ended_nothing_is_appended(tmp_path: Path) -> None:
    transport = train_cluster(has_array=False)
    async with acting_app(transport, tmp_path).run_test(size=(120, 40)) as pilot:
        view = await open_train(pilot)
        transport.mine = transport.recent = []
        for number in ("62", "63"):
            transport.history.append({**transport.history[0], "jobid": number})
        view.read()
        await until(pilot, lambda: view.chain is not None and not view.chain.living, "its end")
        await press(pilot, "plus")
        assert any("has finished: no job can depend on it" in words for words in told(pilot))


async def test_a_script_that_is_no_stub_cannot_be_edited_any_more(tmp_path: Path) -> None:
    async with acting_app(train_cluster(), tmp_path).run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "E")
        await until(pilot, lambda: told(pilot), "why not")
        assert "the scheduler's copy" in told(pilot)[-1]


async def edited(tmp_path: Path, change: Any) -> tuple[Path, list[str]]:
    """E in a train whose script is a stub; the stub's file, and what was told.

    `change` is what the editor does.
    """
    real = tmp_path / "real.sh"
    real.write_bytes(SCRIPT)
    transport = train_cluster()
    transport.answers["scontrol write"] = stub_script(SCRIPT.decode(), str(real))
    app = acting_app(transport, tmp_path)

    def outside(program: str, file: Path) -> None:
        assert program == "editor"
        change(file, real)

    app.open_outside = outside  # type: ignore[method-assign, assignment]
    async with app.run_test(size=(120, 40)) as pilot:
        await open_train(pilot)
        await press(pilot, "E")
        await until(pilot, lambda: told(pilot), "how it went")
        return real, told(pilot)


async def test_what_was_edited_is_put_in_the_place_of_what_the_next_element_reads(
    tmp_path: Path,
) -> None:
    real, words = await edited(
        tmp_path, lambda file, real: file.write_bytes(b"#!/bin/bash\necho new\n")
    )
    assert real.read_bytes() == b"#!/bin/bash\necho new\n"
    assert words == [f"{real}: written; jobs that start from now on use it"]


async def test_what_was_not_changed_is_not_written(tmp_path: Path) -> None:
    real, words = await edited(tmp_path, lambda file, real: None)
    assert words == [f"{real} is unchanged"]


async def test_what_somebody_else_wrote_meanwhile_stays_and_one_s_own_is_kept(
    tmp_path: Path,
) -> None:
    def change(file: Path, real: Path) -> None:
        file.write_bytes(b"#!/bin/bash\necho mine\n")
        real.write_bytes(b"#!/bin/bash\necho theirs\n")

    real, [words] = await edited(tmp_path, change)
    assert real.read_bytes() == b"#!/bin/bash\necho theirs\n"
    assert "the file was changed meanwhile" in words
    assert taken(Path(words.partition("your version is in ")[2])) == b"#!/bin/bash\necho mine\n"


def taken(file: Path) -> bytes:
    content = file.read_bytes()
    file.unlink()
    return content
