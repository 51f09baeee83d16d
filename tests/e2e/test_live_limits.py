"""Shares, limits and reservations of a real Slurm, over ssh: what is told is what Slurm counts and
lets in.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.program import Program
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm_releases

_SLEEP = "#!/bin/sh\nexec sleep 600\n"
# One's own, and one that keeps everybody else out.
_MINE, _OTHERS = "hpcdash-mine", "hpcdash-others"


@pytest.fixture
def reserved(clean_slurm: SlurmLab) -> Iterator[SlurmLab]:
    """A lab with a reservation for alice and one for root alone."""
    lab = clean_slurm
    for name, users, node in ((_MINE, lab.alice, "n2"), (_OTHERS, "root", "n3")):
        words = (
            f"reservationname={name}",
            "starttime=now+1hour",
            "duration=60",
            f"nodes={node}",
            f"users={users}",
        )
        lab.admin("scontrol", "create", "reservation", *words)
    try:
        yield lab
    finally:
        # A reservation that a job is in is not deleted.
        lab.reset()
        for name in (_MINE, _OTHERS):
            lab.admin("scontrol", "delete", f"reservationname={name}")


def rows(program: Program, command: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = program(command, "--format", "json").json[command]
    return found


def test_what_is_told_is_what_slurm_counts_and_whom_it_lets_in(
    reserved: SlurmLab, over_ssh: Program
) -> None:
    lab = reserved
    # QoS limited: at most 2 running jobs of a user.
    ids = [
        lab.submit("alice", "--qos=limited", "--mem=50M", "-o", "/dev/null", script=_SLEEP)
        for _ in range(3)
    ]

    def is_held_back() -> bool:
        listed = lab.admin("squeue", "-h", "-o", "%T %r", "-j", ",".join(ids)).stdout.decode()
        return listed.count("RUNNING") == 2 and "QOSMaxJobsPerUserLimit" in listed

    wait_until("two jobs to run and the third to wait for its QoS", is_held_back)
    limits = {
        (row["name"], row["native"], row["resource"]): row for row in rows(over_ssh, "limits")
    }
    running = limits["limited", "MaxJobsPU", "jobs_running"]
    assert (running["used"], running["maximum"], running["free"]) == (2, 2, 0)
    assert limits["limited", "MaxTRESPU", "cpus"]["used"] == 2
    assert limits["tiny", "MaxWallPJ", "limit_seconds"]["maximum"] == 600
    shown = over_ssh("show", ids[2]).text
    assert f"QoS limited: 2 of 2 running jobs, for user {lab.alice}" in shown
    assert "hpcdash limits" in shown

    shares = rows(over_ssh, "shares")
    assert {(row["account"], row["user"]) for row in shares if row["own"]} == {
        ("chem", lab.alice),
        ("physics", lab.alice),
    }
    assert {row["user"] for row in shares} == {None, lab.alice}

    told = {row["name"]: row for row in rows(over_ssh, "reservations")}
    assert {name: told[name]["allowed"] for name in (_MINE, _OTHERS)} == {
        _MINE: True,
        _OTHERS: False,
    }
    assert told[_MINE]["duration_seconds"] == 3600
    refused = lab.as_user(
        "alice", "sbatch", "-H", f"--reservation={_OTHERS}", "--wrap=true", check=False
    )
    assert refused.returncode != 0
    lab.as_user("alice", "sbatch", "-H", "-o", "/dev/null", f"--reservation={_MINE}", "--wrap=true")


def test_a_user_without_an_account_reads_why_there_are_no_limits_and_shares(
    slurm_lab: SlurmLab,
) -> None:
    with TemporaryDirectory() as home:
        shutil.chown(home, "daemon")
        program = Program(Path(home), ("--local",), slurm_lab.env)
        for command, words in (
            ("limits", "daemon has no account on local"),
            ("shares", "daemon has no account on local; --all shows all accounts"),
        ):
            done = subprocess.run(
                [
                    "setpriv",
                    "--reuid=daemon",
                    "--regid=daemon",
                    "--init-groups",
                    *program.argv(command),
                ],
                env=program.environment,
                cwd="/",
                capture_output=True,
                text=True,
                check=True,
            )
            assert len(done.stdout.splitlines()) == 1
            assert done.stderr == f"hpcdash: {words}\n"
