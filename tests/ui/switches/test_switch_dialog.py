"""The keys K and S: the dialog of a job's switches, on real files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import Changed
from hpcdash.transport.base import CommandResult
from hpcdash.ui.switches.dialog import SwitchDialog
from tests.support.scripted_transport import Command, Key, ScriptedTransport, run_here
from tests.support.slurm_text import Fields, shown_job
from tests.ui.jobs.acting_stage import ENDED, EVERYDAY, acting_app, job, mark, point_at
from tests.ui.stage import notices, press, screen_text, settled, type_text, until

ENDED_JOB = {**job("101"), **ENDED}
# Pictures show the path, which is therefore the same for all.
pytestmark = pytest.mark.xdist_group("switch files")


SCRIPT, SHOWN, LOOKS = "scontrol write", "scontrol*show", "sh*changed()"


def switch_cluster(script: str, *rows: Fields) -> ScriptedTransport:
    """Every job's script is `script`; what looks at files and makes them is run here, on real
    ones.
    """
    transport = ScriptedTransport(*(rows or EVERYDAY))
    transport.recent = [*transport.mine]
    transport.answers = {
        SCRIPT: script,
        SHOWN: shown_job("101"),
        "sh*pwd -P": run_here,
        "sh*$(wc -c": run_here,
        "sh*stat -L": run_here,
    }
    return transport


def looks_at(name: str) -> Key:
    """Looks at the file of this name."""
    return lambda words: words[0] == "sh" and "changed()" in words[2] and words[6] == name


@pytest.fixture
def run() -> Iterator[Path]:
    """A folder with the same name at each run, as it is shown: one test at a time has it."""
    folder = Path("/tmp/vit-large")
    parent = os.open(folder.parent, os.O_RDONLY)
    fcntl.flock(parent, fcntl.LOCK_EX)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
    os.close(parent)


@pytest.fixture
def transport(run: Path) -> ScriptedTransport:
    return switch_cluster(
        f"#!/bin/bash\nexport HPCDASH_KILL_SWITCH='{run}/KILL'\nexport "
        f"HPCDASH_SAVE_SWITCH={run}/SAVE\n"
    )


def words(app: Any) -> str:
    """What is on the screen or in the dialog over it, lines that were too long joined."""
    lines = screen_text(app).splitlines()
    for frame in app.screen.query(".frame"):
        left, right = frame.region.x, frame.region.right
        lines = [line[left:right] for line in lines[frame.region.y : frame.region.bottom]]
    return re.sub(r"[┃│\s]+", " ", "\n".join(lines))


def names_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


async def opened(pilot: Pilot[Any], key: str, row: str = "101") -> SwitchDialog:
    """The dialog, once all that it asks for is answered."""
    await settled(pilot)
    await point_at(pilot, row)
    await press(pilot, key)
    dialog = pilot.app.screen
    assert isinstance(dialog, SwitchDialog)

    def answered() -> bool:
        is_found = dialog.tracker is not None or bool(screen_text(pilot.app).count("Which file"))
        return is_found and all(worker.is_finished for worker in pilot.app.workers)

    await until(pilot, answered)
    await settled(pilot)
    return dialog


async def test_a_kill_switch_asks_with_no_first_and_says_who_is_stopped(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "K")
        text = screen_text(app)
        assert f"{run}/KILL" in text
        assert "HPCDASH_KILL_SWITCH in line 2 of the script" in text
        assert " cannot create or clear the switch there" in text, "the group may not write"
        assert f"create the empty file {run}/KILL, group " in text
        assert "LC_ALL=C" not in text
        assert "9 jobs" in text, "all of alice's have the same script"
        assert app.focused is not None
        assert app.focused.id == "no"
        assert "v show the command" in text
        await press(pilot, "v")
        assert "LC_ALL=C; export LC_ALL" in screen_text(app)
        await press(pilot, "enter")
        assert not isinstance(app.screen, SwitchDialog)
        assert not (run / "KILL").exists()


async def test_what_is_found_while_it_closes_is_shown_nowhere(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot, "K")
        dialog.action_leave()
        # Its parts go one by one.
        while dialog.is_attached:
            dialog.action_command()
            await asyncio.sleep(0)
        await settled(pilot)
        assert app.screen is app.main


async def test_a_yes_drops_it_follows_it_and_c_clears_it(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot, "K")
        await press(pilot, "y")
        await until(pilot, lambda: re.search(r"seen +not yet", screen_text(app)))
        assert (run / "KILL").read_bytes() == b""
        assert "LC_ALL" not in screen_text(app)
        # An end between two polls; each poll is one look at the file.
        looks = transport.count(LOOKS)
        store = app.main.session.store
        transport.mine = transport.recent = [
            row for row in transport.mine if row["jobarrayid"] != "102"
        ]
        await store.fetch(Kind.MINE)
        await until(pilot, lambda: transport.count(LOOKS) > looks)
        await settled(pilot)
        await press(pilot, "c")
        await until(pilot, lambda: "the file no longer exists" in screen_text(app))
        assert "no job ended: jobs" in screen_text(app)
        assert "8 jobs" in screen_text(app), "what left the queue is not among those that it stops"
        assert "Close (q)" in screen_text(app)
        assert not (run / "KILL").exists()
        await press(pilot, "y")
        assert not (run / "KILL").exists(), "to drop it again is a step of its own"
        assert dialog.can_retry
        assert "Create it again … (a)" in screen_text(app)
        await press(pilot, "a")
        await until(pilot, lambda: dialog.can_drop)
        await press(pilot, "n")
        assert app.screen is dialog
        assert not dialog.can_drop
        await press(pilot, "escape")
        entries, _ = app.main.session.actions.journal.read()
        assert [(one.verb, one.state) for one in entries] == [
            ("clear-kill-switch", "done"),
            ("kill-switch", "done"),
        ]


async def test_a_save_switch_that_the_program_takes_is_seen_at_a_time(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        log = run / "log"
        transport.answers[SHOWN] = shown_job("101", StdErr=log, StdOut=log)
        log.write_text("saved checkpoint at iteration 1000\n")
        dialog = await opened(pilot, "S")
        assert app.focused is not None
        assert app.focused.id == "yes", "a save is harmless"
        await press(pilot, "enter")
        await until(
            pilot, lambda: (run / "SAVE").exists() and re.search(r"seen +not yet", screen_text(app))
        )
        (run / "SAVE").unlink()
        dialog.on_poll(Changed(Kind.MINE))
        await until(
            pilot,
            lambda: re.search(r"gone +\d\d:\d\d:\d\d, by the program or by", screen_text(app)),
        )
        await until(pilot, lambda: re.search(r"log +does not mention a save", screen_text(app)))
        with log.open("a") as file:
            file.write("save switch seen: checkpoint saved at step 1200\n")
        dialog.on_poll(Changed(Kind.MINE))
        await until(
            pilot, lambda: re.search(r"seen +\d\d:\d\d:\d\d, and removed", screen_text(app))
        )
        await until(
            pilot,
            lambda: re.search(
                r"log +save switch seen: checkpoint saved at step 1200", screen_text(app)
            ),
        )
        await press(pilot, "y")
        assert not (run / "SAVE").exists()
        await press(pilot, "a")
        await until(pilot, lambda: dialog.can_drop)
        await press(pilot, "y")
        await until(pilot, lambda: (run / "SAVE").exists())


async def test_a_save_that_something_speaks_against_says_so_and_has_no_as_its_answer(
    transport: ScriptedTransport, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        monkeypatch.setattr(
            app.main.view, "against_save", lambda: "nan first at 31: a save may be broken"
        )
        await opened(pilot, "S")
        assert "! nan first at 31: a save may be broken" in words(app)
        assert "Yes, create it (y)" in words(app)
        assert app.focused is not None
        assert app.focused.id == "no"
        await press(pilot, "enter")
        assert not isinstance(app.screen, SwitchDialog)
        assert not (run / "SAVE").exists()


async def test_a_program_that_is_quicker_than_the_next_look_is_told_too(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    async def taken_at_once(command: Command) -> CommandResult:
        answer = await command.run_here()
        (run / "SAVE").unlink()
        return answer

    transport.answers["sh*set -C"] = taken_at_once
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "S")
        await press(pilot, "y")
        await until(
            pilot, lambda: re.search(r"gone +\d\d:\d\d:\d\d, by the program or", screen_text(app))
        )


async def test_a_kill_switch_that_was_seen_is_told_to_the_end_and_is_not_asked_for_again(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    transport = switch_cluster(transport.answers[SCRIPT], job("101"))
    log = run / "log"
    transport.answers[SHOWN] = shown_job("101", StdErr=log, StdOut=log)
    log.write_text("saved checkpoint at iteration 1000\n")
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        dialog = await opened(pilot, "K")
        await press(pilot, "y")
        await until(pilot, lambda: (run / "KILL").exists())
        await settled(pilot)
        assert not dialog.can_drop
        # The program takes it away, says so, and ends with status 0.
        (run / "KILL").unlink()
        with log.open("a") as file:
            file.write("kill switch: saved, ending\n")
        transport.mine, transport.recent = [], [ENDED_JOB]
        store = app.main.session.store
        await store.fetch(Kind.MINE)
        await until(pilot, lambda: "job 101 ended cleanly" in screen_text(app))
        await settled(pilot)
        text = screen_text(app)
        for told in (
            r"set +\d\d:\d\d:\d\d, from here",
            r"removed +\d\d:\d\d:\d\d, by the program +",
            r"log +kill switch: saved, ending",
            r"left +no known running or pending job uses it",
        ):
            assert re.search(told, text), (told, text)
        assert "Close (q)" in text
        assert "Yes" not in text
        assert "again …" not in text
        await press(pilot, "y", "a", "y", "ctrl+r")
        assert "job 101 ended cleanly" in screen_text(app)
        assert not (run / "KILL").exists(), "nothing is left that ends what starts later"
        # Asked for anew it tells the same.
        await press(pilot, "escape")
        transport.mine = [job("101")]
        await store.fetch(Kind.MINE)
        await opened(pilot, "K")
        assert "removed since then, by the program" in " ".join(screen_text(app).split())
        assert "Yes" not in screen_text(app)


async def test_cleared_after_the_end_there_is_nothing_left_to_stop(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    transport = switch_cluster(transport.answers[SCRIPT], job("101"))
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        dialog = await opened(pilot, "K")
        await press(pilot, "y")
        await until(pilot, lambda: (run / "KILL").exists())
        transport.mine, transport.recent = [], [ENDED_JOB]
        await app.main.session.store.fetch(Kind.MINE)
        await until(pilot, lambda: "job 101 ended cleanly" in screen_text(app))
        assert "stays set until you clear it" in screen_text(app)
        await press(pilot, "c")
        await until(pilot, lambda: "the file no longer exists" in screen_text(app))
        text = screen_text(app)
        assert "job 101 ended cleanly" in text
        assert "1 running" not in text
        assert (dialog.can_drop, dialog.can_retry, dialog.can_clear) == (False, False, False)


async def test_a_path_that_nobody_knows_is_asked_for_and_remembered(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    transport.answers[SCRIPT] = "#!/bin/bash\nsrun train\n"
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot, "K")
        assert "kill switch file is known" in screen_text(app)
        await type_text(pilot, "/a/../b")
        await pilot.press("enter")
        await until(pilot, lambda: "contains . or .." in screen_text(app))
        app.screen.query_one(Input).value = f"{run}/KILL"
        await press(pilot, "enter")
        await until(pilot, lambda: dialog.can_drop)
        await press(pilot, "y")
        await until(pilot, lambda: (run / "KILL").exists())
        await settled(pilot)
        await press(pilot, "escape", "K")
        await until(pilot, lambda: "set here earlier for this job" in screen_text(app))


async def test_what_closes_the_dialog_where_a_path_is_typed_is_no_letter_of_it(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    transport.answers[SCRIPT] = "#!/bin/bash\nsrun train\n"
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot, "K")
        await press(pilot, "q", "n")
        assert (app.screen, dialog.query_one(Input).value) == (dialog, "qn")
        assert "Close (esc)" in screen_text(app)
        assert not re.search(r"\([a-z]\)", screen_text(app)), "no button promises a letter"
        await press(pilot, "escape")
        assert app.screen is app.main


async def test_another_path_is_taken_and_what_was_named_before_is_told_and_forgotten(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot, "S")
        await press(pilot, "p")
        path = app.screen.query_one(Input)
        assert path.value == f"{run}/SAVE"
        await press(pilot, "escape")
        assert app.screen is dialog
        assert "enter use this path" not in screen_text(app)
        await press(pilot, "p")
        path.value = f"{run}/ELSE"
        await press(pilot, "enter")
        await until(pilot, lambda: dialog.can_drop and "as given" in screen_text(app))
        await press(pilot, "y")
        await until(pilot, lambda: (run / "ELSE").exists() and dialog.can_name_another)
        await settled(pilot)
        await press(pilot, "escape")
        dialog = await opened(pilot, "S")
        text = words(app)
        assert f"{run}/SAVE" in text
        assert (
            f"! set here earlier: {run}/ELSE; HPCDASH_SAVE_SWITCH in line 3 of the script takes "
            "precedence (p" in text
        )
        await press(pilot, "p")
        path = app.screen.query_one(Input)
        path.value = ""
        await press(pilot, "enter")
        await until(pilot, lambda: f"forgotten: {run}/ELSE" in screen_text(app))
        await until(pilot, lambda: dialog.can_drop)
        assert "set here earlier" not in screen_text(app)


async def test_a_look_that_ends_after_another_path_was_named_drops_nothing(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot, "K")
        first, second = looks_at("KILL"), looks_at("OTHER")
        looks = transport.count(first)
        transport.hangs = {first: asyncio.Event(), second: asyncio.Event()}
        await pilot.press("ctrl+r")
        await until(pilot, lambda: transport.count(first) > looks)
        await pilot.press("p")
        app.screen.query_one(Input).value = f"{run}/OTHER"
        await pilot.press("enter")
        await until(
            pilot,
            lambda: dialog.tracker is not None and dialog.tracker.switch.path == f"{run}/OTHER",
        )
        transport.hangs[first].set()
        await until(pilot, lambda: transport.count(second))
        assert "now looking …" in words(app)
        await pilot.press("y")
        transport.hangs[second].set()
        await settled(pilot)
        assert names_in(run) == []
        assert f"create the empty file {run}/OTHER" in words(app)
        await press(pilot, "y")
        await until(pilot, lambda: names_in(run) == ["OTHER"])


@pytest.mark.slow
async def test_what_is_there_after_a_clear_from_here_is_asked_about_and_the_question_goes_with_it(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "K")
        await press(pilot, "y")
        await press(pilot, "c")
        assert "the file no longer exists" in words(app)
        switch = run / "KILL"
        switch.write_text("somebody else's notes")
        await press(pilot, "ctrl+r")
        await press(pilot, "c")
        assert names_in(run) == ["KILL"]
        assert "the file contains 21 bytes, and was not created from here" in words(app)
        # What is there is not what was asked about.
        switch.unlink()
        switch.symlink_to("/nowhere/at/all")
        await press(pilot, "ctrl+r")
        assert "again to remove it anyway" not in screen_text(app)
        await press(pilot, "c")
        assert names_in(run) == ["KILL"]
        assert "only the link is removed" in words(app)
        # The same is still asked about after another look; nothing is not.
        await press(pilot, "ctrl+r")
        assert "Press c again to remove it anyway" in words(app)
        switch.unlink()
        await press(pilot, "ctrl+r")
        assert "again to remove it anyway" not in screen_text(app)
        switch.write_text("somebody else's notes")
        await press(pilot, "ctrl+r")
        await press(pilot, "c", "c")
        await until(pilot, lambda: names_in(run) == [])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["link", "note"])
async def test_what_may_be_no_switch_is_told_not_dropped_on_and_cleared_at_the_second_time(
    transport: ScriptedTransport, tmp_path: Path, run: Path, what: str
) -> None:
    switch = run / "KILL"
    if what == "link":
        switch.symlink_to("/nowhere/at\x1b[2J/all")
    else:
        switch.write_text("my only notes")
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        dialog = await opened(pilot, "K")
        assert ("training programs treat it as the switch" in words(app)) is (what == "link")
        assert not dialog.can_drop
        await press(pilot, "y", "c")
        assert names_in(run) == ["KILL"]
        said = (
            "only the link is removed"
            if what == "link"
            else "the file contains 13 bytes, and was not created from here"
        )
        assert said in words(app)
        assert app.focused is not None
        assert app.focused.id == "no"
        await press(pilot, "n")
        assert app.screen is dialog
        assert "again to remove it anyway" not in screen_text(app)
        await press(pilot, "c", "c")
        await until(pilot, lambda: names_in(run) == [])
        await until(pilot, lambda: "the file no longer exists" in screen_text(app))


async def test_read_only_mode_has_no_such_keys(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    app = acting_app(transport, tmp_path, read_only=True)
    async with app.run_test() as pilot:
        await settled(pilot)
        await press(pilot, "K", "S")
        assert app.screen is app.main


async def test_several_marked_jobs_are_not_asked_for_at_once(
    transport: ScriptedTransport, tmp_path: Path
) -> None:
    app = acting_app(transport, tmp_path)
    async with app.run_test() as pilot:
        await settled(pilot)
        await mark(pilot, "101", "102")
        await press(pilot, "K")
        assert app.screen is app.main
        said = notices(app)
        assert said == [
            "2 are marked; a kill switch works on one job or array at a time: u clears the marks"
        ]


LINK = {
    "thing": "link",
    "file-n": "lrwxrwxrwx 1 1002 2000 19 Nov 21 08:00 ./KILL -> /home/alice/.ssh/rc",
    "file-o": "lrwxrwxrwx 1 bob 19 Nov 21 08:00 ./KILL -> /home/alice/.ssh/rc",
    "file-g": "lrwxrwxrwx 1 physics 19 Nov 21 08:00 ./KILL -> /home/alice/.ssh/rc",
}
DROPPED = {
    "thing": "file",
    "file-n": "-rw-rw-r-- 1 1002 2000 0 Nov 21 08:00 ./KILL",
    "file-o": "-rw-rw-r-- 1 bob 0 Nov 21 08:00 ./KILL",
    "file-g": "-rw-rw-r-- 1 physics 0 Nov 21 08:00 ./KILL",
    "file-at": "1795249820",
}


@pytest.mark.parametrize("scene", ["kill", "save", "unknown", "link", "dropped"])
def test_a_switch_s_dialog_looks_as_it_did(
    snap_compare: Any,
    transport: ScriptedTransport,
    scene: str,
    tmp_path: Path,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A poll that is answered before the dialog has looked brings no look more, one after it does.
    monkeypatch.setattr(CommandBudget, "per_minute", 9)
    if scene == "unknown":
        transport.answers[SCRIPT] = "#!/bin/bash\nsrun train\n"
    told = {
        "now": "1795250000",
        "me": "1001 alice",
        "groups": "2000",
        "there": str(run),
        "folder-n": "drwxr-sr-x 2 1001 2000 4096 Nov 21 08:00 .",
        "folder-o": "drwxr-sr-x 2 alice 4096 Nov 21 08:00 .",
        "folder-g": "drwxr-sr-x 2 physics 4096 Nov 21 08:00 .",
        "writable": "yes",
        "thing": "nothing",
        **(LINK if scene == "link" else DROPPED if scene == "dropped" else {}),
    }

    def look(command: Command) -> str:
        token = command.words[4]
        return "".join(f"{token}{name} {value}\n" for name, value in told.items()) + token

    transport.answers[LOOKS] = look

    async def go_there(pilot: Pilot[Any]) -> None:
        await opened(pilot, "S" if scene == "save" else "K", "101" if scene != "kill" else "200[]")
        await settled(pilot)

    assert snap_compare(
        acting_app(transport, tmp_path), terminal_size=(120, 40), run_before=go_there
    )


async def test_tasks_that_ended_before_and_left_the_queue_are_counted(
    transport: ScriptedTransport, tmp_path: Path, run: Path
) -> None:
    (run / "KILL").touch()
    os.utime(run / "KILL", (1_795_200_000, 1_795_200_000))
    end = {"end": "1795240000", "state": "COMPLETED"}
    transport.answers[SHOWN] = shown_job("200")
    transport.history = [
        {"jobid": f"200_{task}", "jobidraw": str(200 + task), "user": "alice", **end}
        for task in (6, 7)
    ]
    app = acting_app(transport, tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, "K", "200[]")
        assert "2 of 11 ended, cleanly" in words(app)
