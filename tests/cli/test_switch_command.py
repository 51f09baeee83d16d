"""`hpcdash kill-switch` and `save-switch` on the embedded queue: what is cleared, remembered and
said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, home_with
from tests.support.waiting import wait_until


@pytest.fixture
def queue(tmp_path: Path) -> QueueLab:
    return QueueLab(tmp_path / "queue", tmp_path / "run", cpus=4)


@pytest.fixture
def program(tmp_path: Path, queue: QueueLab) -> Program:
    variables = {"HPCDASH_QUEUE": str(queue.folder), "HPCDASH_STATE": str(tmp_path / "state")}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)


@pytest.fixture
def job(queue: QueueLab) -> str:
    """One that never looks at the switches its script names."""
    script = "export HPCDASH_KILL_SWITCH=KILL HPCDASH_SAVE_SWITCH=SAVE\necho up\nsleep 300"
    number = queue.submit(script, "--job-name=train")
    log = queue.work / f"slurm-{number}.out"
    wait_until("it to be up", lambda: log.exists() and "up" in log.read_text())
    return number


def test_a_file_that_may_be_no_switch_is_cleared_with_a_yes_alone(
    program: Program, queue: QueueLab, job: str
) -> None:
    notes = queue.work / "notes.txt"
    notes.write_text("my only notes")
    said = program("kill-switch", job, "--clear", "--path", str(notes)).refused(1)
    assert (
        "the file contains 13 bytes, and was not created from here: it may not be a switch" in said
    )
    assert "--yes" in said
    assert notes.read_text() == "my only notes"
    link = queue.work / "KILL"
    link.symlink_to("/nowhere/x")
    assert "only the link is removed" in program("kill-switch", job, "--clear").refused(1)
    assert program("kill-switch", job, "--clear", "--yes").text.startswith(
        f"{job}  removed {link}, created by "
    )
    assert not link.is_symlink()
    link.touch()
    cleared = program("kill-switch", job, "--clear")
    assert cleared.text.endswith("; no job ended: jobs that have not seen it continue\n"), cleared
    queue.run("cancel", job)


def test_a_path_is_remembered_only_where_the_drop_was_done(
    program: Program, queue: QueueLab
) -> None:
    job = queue.submit("sleep 300", "--job-name=plain")
    assert "the folder does not exist" in program(
        "save-switch", job, "--path", f"{queue.work}/none/SAVE"
    ).refused(1)
    unknown = "no save switch file is known"
    assert unknown in program("save-switch", job, "--status").refused(2)
    assert program("save-switch", job, "--path", f"{queue.work}/SAVE").status == 0
    assert program("save-switch", job, "--forget").text == f"{job}  forgotten: {queue.work}/SAVE\n"
    assert unknown in program("save-switch", job, "--status").refused(2)
    assert "--forget cannot be combined" in program(
        "save-switch", job, "--forget", "--clear"
    ).refused(2)
    queue.run("cancel", job)


def test_of_several_jobs_those_whose_switch_is_known_are_served(
    program: Program, queue: QueueLab, job: str
) -> None:
    plain = queue.submit("sleep 300", "--job-name=plain")
    done = program("save-switch", plain, job)
    assert done.status == 1
    refused = f"{plain}  refused: no save switch file is known for job {plain}\n"
    assert done.text == f"{refused}{job}  created {queue.work}/SAVE\n"
    # Taken away by a person: the program never looked.
    (queue.work / "SAVE").unlink()
    gone = program("save-switch", job, "--status").text
    assert "ago, and removed since; the log does not mention a save" in gone, gone
    assert "cannot create or clear the switch there" in gone
    queue.run("cancel", job, plain)


def test_a_kill_switch_that_is_there_still_is_told_before_a_request_is_submitted(
    program: Program, queue: QueueLab
) -> None:
    switch = queue.work / "KILL"
    file = program.home / "a.toml"
    file.write_text(
        f'command = "true"\nname = "x"\nwork_dir = "{queue.work}"\nkill_switch = "KILL"\n'
    )
    assert "is still set" not in program("submit", str(file), "--dry-run").stderr
    switch.touch()
    said = (
        f"hpcdash: the kill switch {switch} is still set: the job would stop at once. Clear it "
        "first: rm "
    )
    for words in (("--dry-run",), ("--chain", "2")):
        told = program("submit", str(file), *words)
        assert told.status == 0
        assert told.stderr.count(said) == 1, told
