"""Facts about the throw-away Slurm itself, on which the other tests stand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.slurm import (
    HOSTILE_NODE,
    HOSTILE_REASON,
    LabError,
    SlurmLab,
    bulk_jobs,
    free_base_port,
    hostile_jobs,
    scenario,
    why_no_bulk,
    why_no_lab,
)
from tests.support.slurm.daemons import Daemons, wait_until


def squeue(lab: SlurmLab, *words: str) -> bytes:
    return lab.admin("squeue", "-h", *words).stdout


def test_five_nodes_are_up_and_the_sixth_is_down(clean_slurm: SlurmLab) -> None:
    states = dict(
        line.split()
        for line in clean_slurm.admin("sinfo", "-hNo", "%N %t").stdout.decode().splitlines()
    )
    assert {name: states[name] for name in ("n1", "n2", "n3", "g1", "g2")} == dict.fromkeys(
        ("n1", "n2", "n3", "g1", "g2"), "idle"
    )
    assert states["x1"].startswith("down")


def test_the_gpu_nodes_have_registered_four_gpus_each(slurm_lab: SlurmLab) -> None:
    shown = slurm_lab.admin("scontrol", "show", "node", "-o", "g1").stdout.decode()
    assert "Gres=gpu:a100:4" in shown
    assert "gres/gpu=4" in shown


def test_a_job_runs_with_gpus_as_its_user_and_ends_in_the_accounting(clean_slurm: SlurmLab) -> None:
    job_id = clean_slurm.submit(
        "alice", "-p", "gpu", "--gres=gpu:2", "-o", "out", script="#!/bin/sh\nid -un\n"
    )
    clean_slurm.wait_state(job_id, "COMPLETED")
    assert (clean_slurm.work_dir("alice") / "out").read_text() == f"{clean_slurm.alice}\n"

    def accounted() -> str:
        words = ("sacct", "-nXP", "-o", "user,state,alloctres", "-j", job_id)
        return clean_slurm.as_user("alice", *words).stdout.decode()

    # The database hears of an end a moment after squeue.
    wait_until(
        "its end in the accounting",
        lambda: accounted().startswith(f"{clean_slurm.alice}|COMPLETED|"),
        accounted,
    )
    assert "gres/gpu=2" in accounted()


def test_a_user_reaches_the_scheduler_over_ssh(clean_slurm: SlurmLab) -> None:
    job_id = clean_slurm.submit("alice", "--hold")
    argv = ("ssh", "-F", clean_slurm.ssh_config, "lab-alice", "squeue --me -h -o %i,%u")
    said = subprocess.run(argv, capture_output=True, check=True).stdout.decode()
    assert said == f"{job_id},{clean_slurm.alice}\n"


def test_hostile_names_comments_and_reasons_are_kept_byte_for_byte(clean_slurm: SlurmLab) -> None:
    jobs = hostile_jobs(clean_slurm)
    for name, job_id in jobs.items():
        assert squeue(clean_slurm, "-j", job_id, "-o", "%j") == name + b"\n"
        assert squeue(clean_slurm, "-j", job_id, "-o", "%k") == name + b"\n"
    assert (
        clean_slurm.admin("sinfo", "-h", "-n", HOSTILE_NODE, "-p", "long", "-o", "%E").stdout
        == HOSTILE_REASON + b"\n"
    )
    assert not clean_slurm.tripwire.exists()


def test_a_refused_command_is_an_error_with_its_words(slurm_lab: SlurmLab) -> None:
    with pytest.raises(LabError, match="nosuchpartition"):
        slurm_lab.submit("bob", "-p", "nosuchpartition")


def test_the_controller_can_be_taken_away_and_comes_back(clean_slurm: SlurmLab) -> None:
    job_id = clean_slurm.submit("bob", "--hold")
    with clean_slurm.controller_down():
        assert clean_slurm.admin("scontrol", "ping", check=False).returncode == 1
    assert squeue(clean_slurm, "-o", "%i").decode().split() == [job_id]


def test_a_frozen_controller_answers_nothing_until_it_is_thawed(clean_slurm: SlurmLab) -> None:
    with clean_slurm.controller_hung(), pytest.raises(LabError, match="no end after"):
        clean_slurm.admin("squeue", seconds=0.5)
    assert squeue(clean_slurm) == b""


def test_without_accounting_there_is_no_history_but_a_queue(clean_slurm: SlurmLab) -> None:
    with clean_slurm.accounting_down():
        assert clean_slurm.as_user("alice", "sacct", check=False).returncode == 1
        assert clean_slurm.as_user("alice", "squeue", check=False).returncode == 0
    assert clean_slurm.as_user("alice", "sacct", check=False).returncode == 0


def test_bulk_jobs_are_distinct_and_numbered(clean_slurm: SlurmLab) -> None:
    reason = why_no_bulk()
    if reason:
        pytest.skip(reason)
    bulk_jobs(clean_slurm, "bob", 101, prefix="many")
    names = squeue(clean_slurm, "-u", clean_slurm.bob, "-o", "%j").decode().split()
    assert sorted(names) == sorted(f"many{number}" for number in range(1, 102))


def test_the_scenario_stands_as_it_is_named_and_can_be_cleaned_away(clean_slurm: SlurmLab) -> None:
    jobs = scenario(clean_slurm)
    for label, state in (
        ("completing", "COMPLETING"),
        ("suspended", "SUSPENDED"),
        ("node failed", "NODE_FAIL"),
    ):
        assert clean_slurm.job_states(jobs[label]) == {state}
    for label, reason in (
        ("license", "Licenses"),
        ("qos limit", "QOSMaxJobsPerUserLimit"),
        ("held", "JobHeldUser"),
    ):
        assert squeue(clean_slurm, "-j", jobs[label], "-o", "%r").decode().strip() == reason
    clean_slurm.reset()
    assert squeue(clean_slurm) == b""


def test_a_lab_of_another_kind_runs_beside_the_first_and_leaves_nothing(
    slurm_lab: SlurmLab,
) -> None:
    run_dir = slurm_lab.run_dir.parent / f"{slurm_lab.run_dir.name}-beside"
    lab = SlurmLab(run_dir, base_port=free_base_port(), users=slurm_lab.users, accounting=False)
    try:
        lab.start()
        job_id = lab.submit("alice")
        lab.wait_state(job_id, "RUNNING")
        assert (
            lab.as_user("alice", "sacct", check=False).stderr
            == b"Slurm accounting storage is disabled\n"
        )
        assert job_id not in squeue(slurm_lab, "-u", slurm_lab.alice, "-o", "%i").decode().split()
    finally:
        lab.stop(wipe=True)
    assert not run_dir.exists()
    assert not processes_below(run_dir)


def test_a_pid_used_again_is_not_taken_for_the_daemon_that_had_it(tmp_path: Path) -> None:
    for folder in ("pid", "log"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pid" / "slurmctld").write_text("1 1\n")
    assert Daemons(tmp_path).pid("slurmctld") is None


def processes_below(run_dir: Path) -> list[str]:
    lines = (" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
    return [line for line in lines if str(run_dir) in line]


def test_a_folder_without_a_slurm_says_how_to_make_one(tmp_path: Path) -> None:
    reason = why_no_lab(str(tmp_path))
    assert reason is not None
    assert f"python -m tests.support.slurm install SUITE {tmp_path}" in reason
