"""GPUs on a real Slurm whose accounting does not count them, which is Slurm's default."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import Program, program_over_ssh
from tests.support.slurm import SlurmLab, free_base_port
from tests.support.suite import people
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slurm_releases]


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    made = SlurmLab(
        tempfile.mkdtemp(prefix="hpcdash-slurm-"),
        base_port=free_base_port(),
        users=people(),
        extra_conf="AccountingStorageTRES=license/matlab",
        shards=16,
    )
    try:
        made.start()
        yield made
    finally:
        made.stop(wipe=True)


@pytest.fixture
def program(lab: SlurmLab, tmp_path: Path) -> Program:
    lab.reset()
    return program_over_ssh(lab, tmp_path / "home")


def jobs(program: Program, *arguments: str) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in program.rows("jobs", *arguments)}


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (("--gres=gpu:2",), 2),
        (("--gres=gpu:a100:1",), 1),
        (("--gres=gpu",), 1),
        (("-N2", "--gpus-per-node=3"), 6),
        (("--gpus=5", "-N2"), 5),
        (("-n3", "--gpus-per-task=1"), 3),
        (("--gres=shard:3",), 1),
        ((), 0),
        # It has all of its node's GPUs, and Slurm's list of jobs does not say how many.
        (("--exclusive",), None),
    ],
)
def test_a_job_has_the_gpus_it_asked_for(
    lab: SlurmLab, program: Program, options: tuple[str, ...], gpus: int | None
) -> None:
    job = lab.submit("alice", "-p", "gpu", *options)
    lab.wait_state(job, "RUNNING")
    assert jobs(program)[job]["gpus"] == gpus


def test_a_waiting_job_has_the_gpus_it_asks_for(lab: SlurmLab, program: Program) -> None:
    job = lab.submit("alice", "-p", "gpu", "--hold", "-N2", "--gres=gpu:a100:4")
    assert jobs(program)[job]["gpus"] == 8


def test_the_gpus_of_an_ended_job_are_not_known_once_only_the_accounting_knows_it(
    lab: SlurmLab, program: Program
) -> None:
    job = lab.submit("alice", "-p", "gpu", "--gres=gpu:2", script="#!/bin/sh\n")
    lab.wait_state(job, "COMPLETED")
    wait_until(
        "the accounting to know the job",
        lambda: job in {row["id"] for row in program.rows("history")},
    )
    assert [row["gpus"] for row in program.rows("history") if row["id"] == job] == [None]


def test_a_filter_on_gpus_says_how_many_rows_it_cannot_judge(
    lab: SlurmLab, program: Program
) -> None:
    job = lab.submit("alice", "-p", "gpu", "--exclusive")
    lab.wait_state(job, "RUNNING")
    asked = program("jobs", "--filter", "gpus>0")
    assert asked.text.split()[:1] == ["ID"]
    assert job not in asked.text.split()
    assert "GPUs of 1 row unknown" in asked.stderr


def test_gpus_that_jobs_hold_parts_of_are_in_use(lab: SlurmLab, program: Program) -> None:
    for _ in range(2):
        lab.wait_state(lab.submit("alice", "-p", "gpu", "-w", "g1", "--gres=shard:3"), "RUNNING")
    nodes = {row["name"]: row for row in program.rows("nodes")}
    assert (nodes["g1"]["gpus_used"], nodes["g1"]["gpus"]) == (2, 4)
    queues = {row["name"]: row for row in program.rows("queues")}
    assert (queues["gpu"]["gpus_used"], queues["gpu"]["gpus"]) == (2, 8)
