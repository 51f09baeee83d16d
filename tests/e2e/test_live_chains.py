"""`hpcdash train` and what acts on whole trains, from a shell, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.program import Program, program_over_ssh
from tests.support.slurm import SlurmLab
from tests.support.slurm.daemons import wait_until

pytestmark = pytest.mark.slurm
SLEEPS = "#!/bin/sh\n#SBATCH --time=5\nsleep 60\n"


@pytest.fixture
def program(slurm_lab: SlurmLab, tmp_path: Path) -> Program:
    return program_over_ssh(slurm_lab, tmp_path / "home")


@pytest.fixture
def train(slurm_lab: SlurmLab, program: Program) -> Iterator[tuple[str, str]]:
    """An array of which one task runs, and a job after it; both are gone afterwards."""
    script = program.home / "train.sh"
    script.write_text(SLEEPS)
    array = program("submit", str(script), "--array", "1-4%1").text.strip()
    last = program("submit", str(script), "--after", array).text.strip()
    wait_until("a task to run", lambda: b"R" in states(slurm_lab, f"{array}_1"), 20)
    yield array, last
    slurm_lab.admin("scancel", "--quiet", last, array, check=False)


def states(lab: SlurmLab, *job_ids: str) -> bytes:
    """What squeue says of some jobs: id, state, reason."""
    return lab.admin("squeue", "-h", "-o", "%i %t %r", "-j", ",".join(job_ids), check=False).stdout


def test_a_train_is_told_from_any_of_its_jobs(slurm_lab: SlurmLab, program: Program, train: tuple[str, str]) -> None:
    array, last = train
    raw = slurm_lab.admin("squeue", "-h", "-o", "%A", "-j", f"{array}_1").stdout.decode().strip()
    assert raw not in (array, last)
    for job in (array, last, f"{array}_1", raw):
        answer = program("chain", job, "--format", "json").json
        assert answer["counts"] == {"running": 1, "waiting": 4}
        assert answer["order"] == [
            {"job_id": array, "after": [], "by_name": False},
            {"job_id": last, "after": [array], "by_name": False},
        ]
        assert [row["id"] for row in answer["jobs"]] == [f"{array}_1", f"{array}_[2-4%1]", last]
        assert answer["ends_by"] is not None


def test_a_train_is_shown_in_a_line_and_a_table(program: Program, train: tuple[str, str]) -> None:
    array, last = train
    lines = program("chain", last).text.splitlines()
    assert lines[0].endswith("  1 running, 4 waiting")
    assert lines[1].startswith("if each takes its limit, it ends by ")
    assert [line.split()[0] for line in lines[3:]] == [f"{array}_1", f"{array}_[2-4%1]", last]
    assert lines[-1].split()[-2:] == ["after", array]


def test_all_that_waits_is_held_and_released_and_what_runs_stays(
    slurm_lab: SlurmLab, program: Program, train: tuple[str, str]
) -> None:
    array, last = train
    held = program("hold", "--train", last)
    assert held.status == 0, held
    told = states(slurm_lab, array, last).decode()
    assert sorted(told.splitlines()) == sorted(
        [f"{array}_1 R None", f"{array}_[2-4%1] PD JobHeldUser", f"{last} PD JobHeldUser"]
    )
    assert "nothing to hold in the chain" in program("hold", "--train", array).refused(2)
    assert program("release", "--train", array).status == 0
    assert b"JobHeldUser" not in states(slurm_lab, array, last)


def test_a_train_is_cancelled_whole_once_it_is_agreed(
    slurm_lab: SlurmLab, program: Program, train: tuple[str, str]
) -> None:
    _, last = train
    assert "there is no terminal to ask on" in program("cancel", "--train", last).refused(2)
    assert program("cancel", "--train", last, "--yes").status == 0
    wait_until("its end", lambda: program("train", last, "--format", "json").json["counts"].keys() <= {"cancelled"}, 30)


def test_a_job_that_nobody_knows_has_no_train(program: Program, slurm_lab: SlurmLab) -> None:
    assert "job 99999999 was not found" in program("train", "99999999").refused(1)


def test_a_stub_reads_its_script_and_refuses_what_is_none(program: Program) -> None:
    script = program.home / "real.sh"
    script.write_text(SLEEPS)
    stub = program("stub", str(script)).text
    assert stub.startswith("#!/bin/sh\n#SBATCH --time=5\n")
    assert f". {script}\n" in stub
    assert ". /project/next.sh\n" in program("stub", str(script), "--at", "/project/next.sh").text
    script.write_text("echo no\n")
    program("stub", str(script)).refused(2)
