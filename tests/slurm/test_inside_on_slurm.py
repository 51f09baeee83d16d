"""Commands, stacks and live use in running jobs of a real Slurm with two nodes, over a real ssh."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from hpcdash.backends.slurm.inside import inside_step
from hpcdash.services.usage.sample import sampler
from tests.support.program import Program, program_over_ssh
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm_releases

# As driver 535 prints it with csv,noheader,nounits: four GPUs, of which the job sees those of
# CUDA_VISIBLE_DEVICES.
_NVIDIA_SMI = """#!/bin/sh
cat <<rows
0, GPU-6a1c, 93, 30100, 81920, 401.20, NVIDIA A100-SXM4-80GB
1, GPU-77fe, 0, 3, 81920, [N/A], NVIDIA A100-SXM4-80GB
2, GPU-9b9b, 50, 3, 81920, 60.1, NVIDIA A100-SXM4-80GB
3, GPU-1c1c, 50, 3, 81920, 60.1, NVIDIA A100-SXM4-80GB
rows
"""
_JOB = """#!/bin/sh
srun sh -c 'echo up; exec sleep 3600'
"""


@pytest.fixture
def job(clean_slurm: SlurmLab) -> Iterator[str]:
    """A job of alice's whose step has both GPUs on each of two nodes, and which runs."""
    lab = clean_slurm
    folder = lab.work_dir("alice") / f"inside-{uuid4().hex[:8]}"
    lab.as_user("alice", "mkdir", "-p", folder)
    out = folder / "out"
    job = lab.submit("alice", "-p", "gpu", "-N2", "--gres=gpu:2", "-c8", f"-o{out}", script=_JOB)
    wait_until("both tasks", lambda: out.exists() and out.read_text().count("up") == 2)
    yield job
    lab.as_user("alice", "scancel", job, check=False)
    lab.as_user("alice", "rm", "-rf", folder, check=False)


@pytest.fixture
def program(clean_slurm: SlurmLab, tmp_path: Path) -> Program:
    """hpcdash of alice's, whose nodes find the stand-in for nvidia-smi."""
    program = program_over_ssh(clean_slurm, tmp_path / "home")
    tools = clean_slurm.work_dir("alice") / "inside-tools"
    clean_slurm.as_user("alice", "mkdir", "-p", tools)
    (tools / "nvidia-smi").write_text(_NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    program.config.parent.mkdir(parents=True)
    program.config.write_text(f'[clusters.lab]\nssh = "lab-alice"\npath = "{tools}"\n')
    return Program(program.home)


def steps(lab: SlurmLab, job: str) -> int:
    """How many steps of a job run."""
    return len(lab.admin("squeue", "-h", "-s", "-j", job).stdout.split(b"\n")) - 1


def test_a_command_runs_in_the_job_on_each_node_and_what_fails_is_told(
    clean_slurm: SlurmLab, job: str, program: Program
) -> None:
    gpus = program(
        "exec", job, "--each-gpu", "--format", "json", "--", "printenv", "CUDA_VISIBLE_DEVICES"
    ).json
    assert [(one["node"], one["gpu"], one["output"]) for one in gpus["nodes"]] == [
        (node, gpu, f"{gpu}\n") for node in ("g1", "g2") for gpu in ("0", "1")
    ]
    both = program("exec", job, "--", "sh", "-c", 'echo "$SLURM_JOB_ID $CUDA_VISIBLE_DEVICES"')
    assert (both.status, both.text.splitlines()[1::2]) == (0, ["g[1-2] (2)", f"{job} 0,1"])
    part = program(
        "exec", job, "--", "sh", "-c", 'echo "it\'s $1"; [ "$SLURMD_NODENAME" = g1 ]', "sh", "$(id)"
    )
    assert (part.status, part.stderr) == (1, "hpcdash: g2: exit 1\n")
    assert part.text.count("it's $(id)\n") == 2
    assert clean_slurm.job_states(job) == {"RUNNING"}


def test_each_node_has_all_gpus_of_the_job_however_they_were_asked_for(
    clean_slurm: SlurmLab, program: Program
) -> None:
    # A step by itself would get one of two on each node here, and none at all there.
    asked = {
        "g[1-2] (2)\n0,1\n": ("--ntasks-per-node=2", "--gpus-per-task=1"),
        "g1\n0,1\ng2\n0\n": ("--gpus=3",),
    }
    for shown, options in asked.items():
        job = clean_slurm.submit(
            "alice", "-p", "gpu", "-N2", *options, "-o/dev/null", script="#!/bin/sh\nsleep 300\n"
        )
        clean_slurm.wait_state(job, "RUNNING")
        answer = program("exec", job, "--", "printenv", "CUDA_VISIBLE_DEVICES")
        assert (answer.status, answer.text.replace("-" * 15 + "\n", "")) == (0, shown), answer
        clean_slurm.reset()


def test_a_job_of_another_s_is_refused(clean_slurm: SlurmLab, program: Program) -> None:
    job = clean_slurm.submit("bob", "-o", "/dev/null", script="#!/bin/sh\nsleep 300\n")
    clean_slurm.wait_state(job, "RUNNING")
    for words in (("exec", job, "--", "id"), ("top", job, "--once")):
        assert f"job {job} belongs to {clean_slurm.bob}" in program(*words).refused(2)
    clean_slurm.as_user("bob", "scancel", job)


def test_what_a_job_uses_is_sampled_by_one_step_which_ends_with_its_reader(
    clean_slurm: SlurmLab, job: str, program: Program
) -> None:
    before = steps(clean_slurm, job)
    told = program("top", job, "--once", "--format", "json").json
    assert [one["node"] for one in told["nodes"]] == ["g1", "g2"]
    for node in told["nodes"]:
        assert [(gpu["index"], gpu["percent"], gpu["watts"]) for gpu in node["gpus"]] == [
            ("0", 93, 401.2),
            ("1", 0, None),
        ]
        assert any(one["command"] == "sleep 3600" for one in node["processes"])
    wait_until("the end of its step", lambda: steps(clean_slurm, job) == before)
    follower = subprocess.Popen(
        program.argv("top", job, "--format", "json"),
        env=program.environment,
        stdout=subprocess.PIPE,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline().startswith(b"{")
    assert steps(clean_slurm, job) == before + 1
    follower.kill()
    follower.wait()
    follower.stdout.close()
    wait_until("the end of its step", lambda: steps(clean_slurm, job) == before)


def test_a_step_ends_when_nobody_reads_it_any_more(clean_slurm: SlurmLab, job: str) -> None:
    """As where hpcdash runs on the login node itself and is killed: nothing signals srun."""
    before = steps(clean_slurm, job)
    row = {"id": job, "nodes": 2, "gpus": 4, "node_list": "g[1-2]", "work_dir": "/"}
    step = inside_step(row, sampler())
    reader = subprocess.Popen(
        clean_slurm.user_argv("alice", *step.argv),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert reader.stdout is not None
    assert any(line.startswith(step.token.encode()) for line in reader.stdout)
    assert steps(clean_slurm, job) == before + 1
    reader.stdout.close()
    wait_until("the end of its step", lambda: steps(clean_slurm, job) == before)
    reader.wait()
