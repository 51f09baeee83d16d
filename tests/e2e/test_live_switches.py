"""`hpcdash kill-switch` and `save-switch`, from a shell, over ssh, on a real Slurm."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.program import Program, home_with, program_over_ssh
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture
def program(slurm_lab: SlurmLab, tmp_path: Path) -> Program:
    return program_over_ssh(slurm_lab, tmp_path / "home")


@pytest.fixture
def run(slurm_lab: SlurmLab) -> Iterator[Path]:
    """A folder of alice's whose group may write."""
    folder = Path(tempfile.mkdtemp(prefix="hpcdash-run-"))
    shutil.chown(folder, slurm_lab.alice, slurm_lab.alice)
    folder.chmod(0o2770)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def array(slurm_lab: SlurmLab, program: Program, run: Path) -> Iterator[str]:
    """An array of five, one at a time, that looks for its switches at its start and while it
    runs.
    """
    script = program.home / "train.sh"
    script.write_text(
        f"""#!/bin/bash
#SBATCH --time=5 --array=1-5%1 --output=/dev/null
export HPCDASH_KILL_SWITCH="{run}/KILL"
export HPCDASH_SAVE_SWITCH="{run}/SAVE"
[ -e "$HPCDASH_KILL_SWITCH" ] && exit 0
touch {run}/up
while [ ! -e "$HPCDASH_KILL_SWITCH" ]; do
  sleep 0.1
  [ -e "$HPCDASH_SAVE_SWITCH" ] && rm "$HPCDASH_SAVE_SWITCH"
done
exit 0
"""
    )
    number = program("submit", str(script)).text.strip()
    wait_until("the first task to be up", (run / "up").exists)
    yield number
    slurm_lab.admin("scancel", "--quiet", number, check=False)


@pytest.mark.journey
def test_all_tasks_of_an_array_burn_through_with_status_0(
    slurm_lab: SlurmLab, program: Program, run: Path, array: str
) -> None:
    alice = slurm_lab.alice
    before = program("kill-switch", array, "--status", "--format", "json").json["switches"][0]
    assert (before["path"], before["present"], before["living"]) == (f"{run}/KILL", "nothing", 5)
    assert before["source"] == "HPCDASH_KILL_SWITCH in line 3 of the script"
    assert (before["folder_owner"], before["group_may_write"], before["warnings"]) == (
        alice,
        True,
        [],
    )
    assert "needs confirmation, but there is no terminal" in program("kill-switch", array).refused(
        2
    )
    dropped = program("kill-switch", array, "--yes")
    assert (dropped.status, dropped.text) == (0, f"{array}  created {run}/KILL\n")
    assert f"stops: 5 jobs owned by {alice}" in dropped.stderr
    assert (run / "KILL").owner() == alice

    def burnt() -> bool:
        told = program("kill-switch", array, "--status", "--format", "json").json["switches"][0]
        return (told["living"], told["ended_since"], told["ended_cleanly"]) == (0, 5, 5)

    wait_until("all to end cleanly", burnt)
    assert "seen: 5 of 5 ended, cleanly" in program("kill-switch", array, "--status").text
    again = program("kill-switch", array, "--yes").refused(1)
    assert "already set" in again
    assert f"by {alice}" in again
    cleared = program("kill-switch", array, "--clear")
    assert cleared.text == f"{array}  removed {run}/KILL, created by {alice}\n", cleared
    assert not (run / "KILL").exists()
    noted = program("journal").text.splitlines()
    assert [line.split()[3] for line in noted[1:3]] == ["clear-kill-switch", "kill-switch"]


def test_a_kill_switch_that_its_program_takes_away_is_told_to_the_end(
    slurm_lab: SlurmLab, program: Program, run: Path
) -> None:
    script = program.home / "takes.sh"
    script.write_text(
        f"""#!/bin/bash
#SBATCH --time=5 --output={run}/log
export KILL_SWITCH={run}/kill
touch {run}/up
while [ ! -e "$KILL_SWITCH" ]; do sleep 0.1; done
rm "$KILL_SWITCH"
echo "kill switch: saved, ending"
"""
    )
    job = program("submit", str(script)).text.strip()
    try:
        wait_until("it to be up", (run / "up").exists)
        run.chmod(0o755)
        dropped = program("kill-switch", job, "--yes")
        assert (
            f"create the empty file {run}/kill, group {slurm_lab.alice}; links are not followed"
            in dropped.stderr
        )
        assert "LC_ALL" not in dropped.stderr
        assert (
            f"members of the group {slurm_lab.alice} cannot create or clear the switch there"
            in dropped.stderr
        )

        def told() -> bool:
            words = program("kill-switch", job, "--status").text
            return words.endswith(f"ago, and removed since; seen: job {job} ended cleanly\n")

        wait_until("its end to be told", told)
        switch = program("kill-switch", job, "--status", "--format", "json").json["switches"][0]
        assert (switch["living"], switch["ended_since"], switch["ended_cleanly"]) == (0, 1, 1)
        assert isinstance(switch["dropped_here_seconds_ago"], int)
        assert "no known running or pending job uses it" in program(
            "kill-switch", job, "--yes"
        ).refused(1)
        assert not (run / "kill").exists()
    finally:
        slurm_lab.admin("scancel", "--quiet", job, check=False)


def test_a_save_switch_is_dropped_unasked_and_seen(program: Program, run: Path, array: str) -> None:
    dropped = program("--debug", "save-switch", array)
    assert dropped.text == f"{array}  created {run}/SAVE\n"
    assert "LC_ALL=C; export LC_ALL" in dropped.stderr, "the command itself, where it is wanted"
    wait_until("the program to remove it", lambda: not (run / "SAVE").exists())
    assert "ago, and removed since; " in program("save-switch", array, "--status").text


def test_the_line_of_a_log_that_tells_of_a_save_is_quoted_after_the_job_s_end_too(
    slurm_lab: SlurmLab, program: Program, run: Path
) -> None:
    script = program.home / "saves.sh"
    script.write_text(
        f"""#!/bin/bash
#SBATCH --time=5 --output={run}/log
export SAVE_SWITCH={run}/SAVE
echo up; touch {run}/up
while [ ! -e "$SAVE_SWITCH" ]; do sleep 0.1; done
rm "$SAVE_SWITCH"
echo "save switch: checkpoint written at step 7"
"""
    )
    job = program("submit", str(script)).text.strip()
    wait_until("it to be up", (run / "up").exists)
    assert program("save-switch", job).status == 0
    slurm_lab.wait_state(job, "COMPLETED")
    assert (
        "log: save switch: checkpoint written at step 7"
        in program("save-switch", job, "--status").text
    )


def test_read_only_takes_all_but_looking_away(program: Program, run: Path, array: str) -> None:
    assert "switch is disabled: hpcdash is read-only" in program(
        "--read-only", "save-switch", array
    ).refused(2)
    assert "switch is disabled: hpcdash is read-only" in program(
        "--read-only", "kill-switch", array, "--clear"
    ).refused(2)
    assert program("--read-only", "kill-switch", array, "--status").status == 0
    assert not (run / "SAVE").exists()


def test_a_link_that_a_colleague_planted_is_refused_and_said(
    slurm_lab: SlurmLab, program: Program, run: Path, array: str
) -> None:
    (run / "KILL").symlink_to("/home/alice/.ssh/rc")
    subprocess.run(["chown", "-h", slurm_lab.bob, run / "KILL"], check=True)
    assert f"a link of {slurm_lab.bob}'s to /home/alice/.ssh/rc" in program(
        "kill-switch", array, "--yes"
    ).refused(1)
    assert (
        "training programs treat it as the switch" in program("kill-switch", array, "--status").text
    )
    assert "only the link is removed" in program("kill-switch", array, "--clear").refused(1)
    assert (run / "KILL").is_symlink()
    cleared = program("kill-switch", array, "--clear", "--yes")
    assert f"removed {run}/KILL, created by {slurm_lab.bob}; no job ended" in cleared.text
    assert not (run / "KILL").is_symlink()


def test_a_path_that_is_named_is_remembered(program: Program, run: Path, array: str) -> None:
    assert program("save-switch", array, "--path", f"{run}/ELSE").status == 0
    told = program("save-switch", array, "--status", "--format", "json").json["switches"][0]
    # Its script takes precedence.
    assert (told["path"], told["overridden_path"]) == (f"{run}/SAVE", f"{run}/ELSE")
    assert program("save-switch", array, "--path", f"{run}/../ELSE").refused(2)


def test_a_colleague_finds_the_kill_switch_and_is_told_whom_to_ask_where_none_is_named(
    slurm_lab: SlurmLab, program: Program, run: Path, array: str, tmp_path: Path
) -> None:
    colleague = Program(
        home_with(tmp_path / "bob", slurm_lab.ssh_config.read_text()), ("--ssh", "lab-bob")
    )
    told = colleague("kill-switch", array, "--status", "--format", "json").json["switches"][0]
    assert (told["path"], told["source"], told["living"]) == (f"{run}/KILL", "the job's comment", 5)
    script = program.home / "plain.sh"
    script.write_text("#!/bin/bash\n#SBATCH --time=5 --output=/dev/null --hold\nsleep 60\n")
    job = program("submit", str(script)).text.strip()
    try:
        unknown = colleague("kill-switch", job, "--status").refused(2)
    finally:
        slurm_lab.admin("scancel", "--quiet", job, check=False)
    assert f"Ask {slurm_lab.alice} which file it watches" in unknown
