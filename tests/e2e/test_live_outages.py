"""A controller that is down or hangs, an accounting that is down or absent, a cluster with nothing
in it.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.program import Program, find_row, program_on_the_spot, program_over_ssh
from tests.support.slurm import SlurmLab


def slurm_commands(lab: SlurmLab) -> list[str]:
    """The Slurm commands that run and talk to this lab."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] not in ("squeue", "sinfo", "scontrol", "sacct", "timeout"):
            continue
        try:
            if process.environ().get("SLURM_CONF") == str(lab.conf):
                found.append(" ".join(process.info["cmdline"])[:100])
        except psutil.Error:
            continue
    return found


@pytest.fixture
def small_over_ssh(small_lab: SlurmLab, tmp_path: Path) -> Program:
    return program_over_ssh(small_lab, tmp_path / "home")


@pytest.fixture
def small_locally(small_lab: SlurmLab, tmp_path: Path) -> Program:
    return program_on_the_spot(small_lab, tmp_path / "root")


@pytest.mark.journey
def test_a_controller_that_is_down_is_status_3_with_its_words_and_the_next_step(
    small_lab: SlurmLab, small_over_ssh: Program, small_locally: Program
) -> None:
    job_id = small_lab.submit("alice", "--hold")
    with small_lab.controller_down(), ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(program, kind, "--format", "json")
            for program, kind in (
                (small_over_ssh, "jobs"),
                (small_locally, "jobs"),
                (small_over_ssh, "nodes"),
            )
        ]
        doctor = pool.submit(small_over_ssh, "doctor", "--format", "json")
        for run in asked:
            said = run.result().refused(3)
            assert "slurmctld" in said
            assert "Unable to contact slurm controller" in said
            assert "command: s" in said
            assert "scontrol ping" in said
        checked = doctor.result()
        assert (checked.stderr, checked.status in (1, 3)) == ("", True)
        failing = {
            check["name"]: check
            for check in json.loads(checked.stdout)["checks"]
            if not check["ok"]
        }
        assert {"controller", "jobs", "nodes", "queues"} <= set(failing)
        assert all(check["next_step"] for check in failing.values())
    assert [job["id"] for job in small_over_ssh.rows("jobs")] == [job_id]
    assert slurm_commands(small_lab) == []
    small_lab.reset()


def test_a_hung_controller_is_given_up_and_no_command_of_ours_is_left(
    small_lab: SlurmLab, small_over_ssh: Program, small_locally: Program
) -> None:
    with small_lab.controller_hung(), ThreadPoolExecutor() as pool:
        asked = [pool.submit(program, "jobs") for program in (small_over_ssh, small_locally)]
        for run in asked:
            said = run.result().refused(3)
            assert "does not respond" in said
            assert "timed out" in said
        assert slurm_commands(small_lab) == []
    assert small_over_ssh.rows("jobs") == []


def test_without_accounting_history_says_so_and_jobs_and_nodes_work(
    small_lab: SlurmLab, small_over_ssh: Program, small_locally: Program
) -> None:
    job_id = small_lab.submit("alice", "--hold", "-J", "still here")
    for program in (small_over_ssh, small_locally):
        said = program("history", "--format", "json").refused(1)
        assert "not keep" in said
        assert "Slurm accounting storage is disabled" in said
        job = find_row(program.rows("jobs", "--all"), job_id)
        assert (job["name"], job["account"], job["state"]) == ("still here", None, "held")
        assert len(program.rows("nodes")) == 6
        assert len(program.rows("queues")) == 6
        assert program("show", job_id, "--format", "json").json["job"]["id"] == job_id
        assert "88888" in program("show", "88888").refused(1)
    doctor = small_over_ssh("doctor", "--format", "json")
    failing = [check for check in json.loads(doctor.stdout)["checks"] if not check["ok"]]
    assert [check["name"] for check in failing] == ["history"]
    assert failing[0]["next_step"]
    small_lab.reset()


def test_a_database_that_is_down_takes_only_history(
    clean_slurm: SlurmLab, over_ssh: Program, locally: Program
) -> None:
    job_id = clean_slurm.submit("alice", "--hold")
    with clean_slurm.accounting_down():
        for program in (over_ssh, locally):
            said = program("history", "--format", "json").refused(1)
            assert "accounting database does not respond" in said
            assert "exit status: 1" in said
            assert [job["id"] for job in program.rows("jobs", "--all")] == [job_id]
            assert program("show", job_id).status == 0
            # Whether an unknown job ended is not known while its history cannot be asked.
            assert "history cannot be queried" in program("show", "99999999").refused(1)
    assert over_ssh("history").status == 0


def test_an_empty_cluster_is_empty_and_nothing_is_wrong(
    lab_without_nodes: SlurmLab, tmp_path: Path
) -> None:
    program = program_over_ssh(lab_without_nodes, tmp_path / "home")
    assert program.rows("jobs") == []
    assert program.rows("jobs", "--all") == []
    assert program.rows("nodes") == []
    (queue,) = program.rows("queues")
    assert (queue["name"], queue["nodes"], queue["cpus"], queue["default"]) == ("main", 0, 0, True)
    assert len(program("jobs", "--format", "csv").text.splitlines()) == 1
    assert len(program("nodes").text.splitlines()) == 1
