"""A node's probe and the stacks of a running job on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from hpcdash.backends.script.body import Place
from hpcdash.domain.request import EarlySignal, Launcher, Request, Site, SlotType
from hpcdash.domain.root_cause import root_cause
from tests.support.program import program_over_ssh
from tests.support.scripts import Scheduler, batch_script
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

_PY_SPY = """#!/bin/sh
echo "Process $4: python3"
echo 'Thread 0x7F (idle): "MainThread"'
echo '    all_reduce (torch/distributed/distributed_c10d.py:2050)'
"""
_SLEEPS = "python3 -c 'import time; time.sleep(100)'"


@pytest.fixture
def folder(clean_slurm: SlurmLab) -> Iterator[Path]:
    folder = clean_slurm.work_dir("alice") / f"stacks-{uuid4().hex[:8]}"
    clean_slurm.as_user("alice", "mkdir", "-p", folder / "bin")
    yield folder
    clean_slurm.as_user("alice", "rm", "-rf", folder, check=False)


def submit(lab: SlurmLab, folder: Path, command: str, probe: str = "", **fields: object) -> str:
    known: dict[str, object] = {
        "slots": 4,
        "slots_per_node": 2,
        "queue": "gpu",
        "slot_type": SlotType.CUDA,
    }
    known |= {"limit_seconds": 120, "work_dir": str(folder), "site": Site(node_probe=probe)}
    script = batch_script(
        Scheduler.SLURM,
        Request(command=command, **(known | fields)),  # type: ignore[arg-type]
        Place("test", str(folder)),
    )
    return lab.submit(
        "alice", f"--export=ALL,PATH={folder}/bin:/usr/bin:/bin,HOME={folder}", script=script.text
    )


@pytest.mark.parametrize("tres", [True, False])
def test_a_node_that_fails_its_probe_is_named_and_the_command_starts_nowhere(
    clean_slurm: SlurmLab, folder: Path, *, tres: bool
) -> None:
    probe = (
        'echo "GPUs $CUDA_VISIBLE_DEVICES"\n[ "$SLURMD_NODENAME" != g2 ] || { echo "CUDA '
        'error: lost" >&2; exit 9; }'
    )
    site = Site(node_probe=probe, tres_supported=tres)
    job = submit(clean_slurm, folder, "echo started", site=site)
    clean_slurm.wait_state(job, "FAILED")
    said = (folder / f"{job}.err").read_text().splitlines()
    assert (folder / f"{job}.out").read_text() == ""
    assert {"g1: GPUs 0,1", "g2: GPUs 0,1", "g2: CUDA error: lost"} <= set(said)
    cause = root_cause(said)
    assert cause is not None
    assert cause.text == (
        'hpcdash: node g2 failed the probe (status 9): submit with exclude_nodes = ["g2"], or '
        "--exclude=g2"
    )
    code = clean_slurm.admin("scontrol", "show", "job", "-o", job).stdout.decode()
    assert "ExitCode=1:0" in code


def test_a_signal_reaches_the_command_that_started_after_the_probe(
    clean_slurm: SlurmLab, folder: Path
) -> None:
    command = "trap 'echo warned; exit' USR1\necho up\nfor _ in $(seq 600); do sleep 0.1; done"
    signal = EarlySignal("USR1", 25, batch_only=True)
    job = submit(clean_slurm, folder, command, "true", signal=signal)
    out = folder / f"{job}.out"
    wait_until("both commands", lambda: out.exists() and out.read_text().count("up") == 2)
    clean_slurm.as_user("alice", "scancel", "--batch", "--signal=USR1", job)
    clean_slurm.wait_state(job, "COMPLETED")
    assert out.read_text().count("warned") == 2


@pytest.mark.parametrize("has_spy", [True, False])
@pytest.mark.parametrize("launcher", [Launcher.PLAIN, Launcher.SRUN])
def test_stacks_of_every_node_while_the_job_has_all_of_it(
    clean_slurm: SlurmLab, folder: Path, tmp_path: Path, launcher: Launcher, *, has_spy: bool
) -> None:
    if has_spy:
        (folder / "bin" / "py-spy").write_text(_PY_SPY)
        (folder / "bin" / "py-spy").chmod(0o755)
    job = submit(
        clean_slurm, folder, f"echo up; {_SLEEPS}", launcher=launcher, extra_args=("--exclusive",)
    )
    out, tasks = folder / f"{job}.out", 4 if launcher is Launcher.SRUN else 2
    wait_until("all tasks", lambda: out.exists() and out.read_text().count("up") == tasks)
    lines = program_over_ssh(clean_slurm, tmp_path / "home")("stacks", job).text.splitlines()
    if has_spy:
        assert lines.pop(0).startswith(
            f"{tasks} of {tasks} in all_reduce (torch/distributed/distributed_c10d.py:2050): "
        )
    assert {line.partition(":")[0] for line in lines} == {"g1", "g2"}
    processes = [line for line in lines if ": process " in line]
    assert len(processes) == tasks
    assert all("import time; time.sleep(100)" in line for line in processes)
    if has_spy:
        assert sum("all_reduce (torch" in line for line in lines) == tasks
        assert not [line for line in lines if "State:" in line]
    else:
        assert sum("State: S (sleeping)" in line for line in lines) == tasks
        assert sum("pip install --user py-spy" in line for line in lines) == 2
    assert clean_slurm.job_states(job) == {"RUNNING"}
    clean_slurm.as_user("alice", "scancel", job)
