"""Programs of one person that share a broker, on a real Slurm over ssh."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.program import Program
from tests.support.slurm import SlurmLab

pytestmark = [pytest.mark.system, pytest.mark.slurm]
_ROUNDS = 12
# A submission takes less, once its commands are shown.
_LONGEST_SECONDS = 0.06


@pytest.fixture
def sharing(over_ssh: Program) -> Iterator[Program]:
    """hpcdash with `broker = true`; its sockets are in a folder with a short path."""
    over_ssh.config.parent.mkdir(parents=True, exist_ok=True)
    over_ssh.config.write_text("[connection]\nbroker = true\nkeep = 60\n")
    with tempfile.TemporaryDirectory(prefix="hpcdash-run-") as folder:
        program = replace(over_ssh, variables={"XDG_RUNTIME_DIR": folder})
        yield program
        program("broker", "stop")


def logins(lab: SlurmLab) -> int:
    return (lab.run_dir / "log" / "sshd.log").read_text().count("Accepted publickey")


def test_commands_share_one_login_and_a_table_as_old_as_is_allowed(
    sharing: Program, clean_slurm: SlurmLab
) -> None:
    before = logins(clean_slurm)
    first = sharing("jobs", "--format", "json").json
    clean_slurm.submit("alice", "--hold")
    shared = sharing("jobs", "--format", "json", "--max-age", "60s").json
    anew = sharing("jobs", "--format", "json", "--max-age", "0").json
    assert (shared["jobs"], len(anew["jobs"])) == (first["jobs"], 1)
    # Without fractions of the seconds that the answers took to come.
    assert shared["taken_at"][:19] <= first["taken_at"][:19] < anew["taken_at"]
    assert logins(clean_slurm) == before + 1
    # The probe twice, and the table.
    assert "3 shared answers" in sharing("broker", "status").text
    [connection] = sharing("broker", "status", "--format", "json").json["broker"]["connections"]
    assert (connection["state"], connection["shared_answers"]) == ("connected", 3)
    [check] = [
        check
        for check in sharing("doctor", "--format", "json").json["checks"]
        if check["name"] == "broker"
    ]
    assert check["ok"]
    assert "1 connection" in check["detail"]
    assert "stopped the broker" in sharing("broker", "stop").text
    assert sharing("broker", "status").text == "no broker is running\n"


def test_no_table_is_older_than_the_last_action(sharing: Program, clean_slurm: SlurmLab) -> None:
    job = clean_slurm.submit("alice", "--hold")
    old = ("--max-age", "60s")
    assert [row["state"] for row in sharing.rows("jobs", *old)] == ["held"]
    assert sharing("release", job, "--yes").status == 0
    assert [row["id"] for row in sharing.rows("jobs", *old) if row["state"] == "held"] == []


def test_without_the_broker_each_command_logs_in(sharing: Program, clean_slurm: SlurmLab) -> None:
    before = logins(clean_slurm)
    for _ in range(2):
        assert sharing("jobs", "--no-broker").status == 0
    assert logins(clean_slurm) == before + 2
    assert sharing("broker", "status").text == "no broker is running\n"


@pytest.mark.long
def test_submissions_whose_broker_is_killed_are_made_once_or_never(
    sharing: Program, clean_slurm: SlurmLab, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --hold\ntrue\n")
    moments = random.Random(4711)
    known = set[str]()
    for _ in range(_ROUNDS):
        sharing("broker")
        [pid] = _brokers(sharing)
        submitting = subprocess.Popen(
            sharing.argv("submit", "--yes", str(script)),
            env=sharing.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert submitting.stderr is not None
        said = submitting.stderr.readline()
        time.sleep(moments.uniform(0.0, _LONGEST_SECONDS))  # the moment is the point
        os.kill(pid, signal.SIGKILL)
        said += submitting.communicate()[1]
        settled = sharing("journal", "--settle")
        assert settled.status == 0, settled
        new = {row["id"] for row in sharing.rows("jobs", "--max-age", "0")} - known
        actions = sharing("journal", "--format", "json").json["actions"]
        states = [action["state"] for action in actions]
        assert "unknown" not in states, said
        # What was done is there once, and what is there was done.
        assert states.count("done") == len(known | new), (said, states)
        assert len(new) <= 1, said
        if submitting.returncode == 0:
            assert new, said
        known |= new


def _brokers(program: Program) -> list[int]:
    broker = program("broker", "status", "--format", "json").json["broker"]
    return [] if broker is None else [broker["pid"]]
