"""`hpcdash launches list` and `prune` on the embedded queue: what is shown, what goes, and what
stays.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.services.submit.launch_records import LaunchRecords
from tests.support.program import Program, home_with
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system


def program_of(home: Path, folder: Path) -> Program:
    """hpcdash of a queue and a state of its own."""
    own = {"HPCDASH_QUEUE": str(folder / "queue"), "HPCDASH_STATE": str(folder / "state")}
    return Program(home, ("--local", "--backend", "local"), own)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return program_of(home_with(tmp_path / "home"), tmp_path)


def launch(program: Program, name: str, command: str = "true", *options: str) -> tuple[str, Path]:
    """(job, folder) of a request."""
    file = program.home / f"{name}.toml"
    file.write_text(f'name = "{name}"\ncommand = """{command}"""\nslots = 0\n')
    answer = json.loads(program("submit", str(file), "--format", "json", "--yes", *options).stdout)
    return answer["job_id"], Path(answer["folder"])


def wait_for(program: Program, *jobs: str) -> None:
    def have_ended() -> bool:
        return {row["id"] for row in program.rows("history")} >= set(jobs)

    wait_until(f"the end of {jobs}", have_ended)


def test_what_completed_goes_once_agreed_to_and_all_else_stays(
    program: Program, tmp_path: Path
) -> None:
    plain, result, changed, failed, linked, named, theirs = (
        launch(program, name, "exit 3" if name == "failed" else "true")
        for name in ("plain", "result", "changed", "failed", "linked", "named", "theirs")
    )
    wait_for(program, *(job for job, _ in (plain, result, changed, failed, linked, named, theirs)))
    (result[1] / "predictions.out").write_text("42")
    (changed[1] / "request.toml").write_text("42")
    elsewhere = tmp_path / "elsewhere"
    linked[1].rename(elsewhere)
    linked[1].symlink_to(elsewhere)
    shutil.copytree(plain[1], plain[1].with_name("in-flight"))
    if os.geteuid() == 0:
        os.chown(theirs[1], 12345, 12345)
    else:
        theirs[1].rename(theirs[1].with_name("moved"))
    # Submitted again, a job has the name of the one that it was.
    again, _ = launch(program, "named", "true", "--hold")
    assert "needs confirmation, but there is no terminal" in program("launches", "prune").refused(2)
    listed = {
        row["name"]: row for row in program("launches", "list", "--format", "json").json["launches"]
    }
    assert listed["plain"]["bytes"] > 0
    assert listed["plain"]["files"] == len(list(plain[1].iterdir())) + 1
    assert (listed["plain"]["state"], listed["failed"]["state"]) == ("completed", "ended")
    dry = program("launches", "prune", "--dry-run")
    assert str(plain[1]) in dry.text
    assert plain[1].exists()
    assert (
        program("launches", "prune", "--older-than", "1h", "--yes").text
        == "removed 0 folders: 0, 0 files\n"
    )
    pruned = program("launches", "prune", "--yes", "--format", "json").json
    assert [row["name"] for row in pruned["launches"] if row["removed"]] == ["plain"]
    assert not plain[1].exists()
    for folder in (
        result[1],
        changed[1],
        failed[1],
        elsewhere,
        named[1],
        plain[1].with_name("in-flight"),
    ):
        assert (folder / "batch.sh").exists(), folder
    assert linked[1].is_symlink()
    kept = {
        row["name"]: row["kept_because"] for row in pruned["launches"] if row["job_id"] != again
    }
    assert kept["result"] == "unstaged content:  predictions.out"
    assert kept["changed"].startswith("unstaged content:  request.toml")
    assert kept["failed"] == "the job did not complete (--failed)"
    assert kept["linked"] == "a link, or not a folder of yours"
    assert kept["named"] == f"job {again} has the same name"
    program("cancel", again, "--yes")
    assert program("launches", "prune", "--failed", "--yes").status == 0
    assert not failed[1].exists()


def test_an_unknown_job_a_dependent_and_another_cluster_of_the_same_home_keep_a_folder(
    program: Program, tmp_path: Path
) -> None:
    job, folder = launch(program, "first")
    waited, behind = launch(program, "waited", "sleep 600")
    launch(program, "waits", "true", "--after", waited)
    wait_for(program, job)
    inner = program.home / "inner.toml"
    inner.write_text(
        f'name = "inner"\ncommand = "true"\nslots = 0\nwork_dir = "{folder}"\nhold = true\n'
    )
    held = program("submit", str(inner), "--yes").text.strip()
    (tmp_path / "other").mkdir()
    other = program_of(program.home, tmp_path / "other")
    assert other("launches", "prune", "--yes").text.startswith("removed 0 folders")
    listed = program("launches", "list", "--format", "json").json["launches"]
    kept = {row["name"]: row["kept_because"] for row in listed}
    assert kept["first"] == f"job {held} is running in this folder"
    assert kept["waited"] == f"job {waited} has not ended"
    program("cancel", held, "--yes")
    # The answer to its submission was lost.
    (state,) = {file.parent for file in (tmp_path / "state").rglob("state.db")}
    records = LaunchRecords(state, "local")
    known = next(one for one in records.all() if one.folder == str(folder))
    records.removed(known)
    records.launched(replace(known, job_id=""))
    assert program("launches", "prune", "--yes").status == 0
    assert folder.exists()
    assert behind.exists()
    assert (folder.parent / ".library").is_dir()
    for row in program.rows("jobs"):
        program("cancel", row["id"], "--yes")


def test_a_person_is_asked_on_a_terminal(program: Program) -> None:
    job, folder = launch(program, "asked")
    wait_for(program, job)
    for answer, exists in (("n", True), ("y", False)):
        argv, home, environment = (
            program.argv("launches", "prune"),
            program.home,
            program.environment,
        )
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(home)
            os.execvpe(argv[0], list(argv), environment)
        shown = b""
        while b"Continue? [y/N]" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, f"{answer}\n".encode())
        _, status = os.waitpid(pid, 0)
        assert str(folder) in shown.decode()
        assert (os.waitstatus_to_exitcode(status) == 0, folder.exists()) == (not exists, exists)
        os.close(terminal)
