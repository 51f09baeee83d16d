"""Allocations that are kept for runs: on the embedded queue, and on a real Slurm over ssh."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.embedded.queue_lab import QueueLab
from tests.support.program import Program, Run, home_with
from tests.support.screen import dashboard
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

SECONDS = 60.0


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work", cpus=2)
    yield lab
    lab.end()


@pytest.fixture
def on_queue(queue: QueueLab, tmp_path: Path) -> Program:
    (tmp_path / "state").mkdir(mode=0o700)
    variables = {"HPCDASH_QUEUE": str(queue.folder), "HPCDASH_STATE": str(tmp_path / "state")}
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)


def done(run: Run) -> str:
    assert run.status == 0, run
    return run.text.strip()


def refused(run: Run, status: int) -> str:
    """What it said, after the command that it showed."""
    assert (run.status, run.stdout) == (status, b""), run
    return run.stderr


def count_runs(program: Program, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = program("alloc", "--runs", job, "--format", "json").json["runs"]
    return found


def ended_runs(program: Program, job: str, count: int) -> list[dict[str, Any]]:
    """Its runs, once that many have ended."""

    def look() -> list[dict[str, Any]] | None:
        runs = count_runs(program, job)
        return runs if sum(run["ended_at"] is not None for run in runs) >= count else None

    found: list[dict[str, Any]] = wait_until(f"{count} runs of {job}", look)
    return found


def job_state(program: Program, job: str) -> str:
    return str(program("show", job, "--format", "json").json["job"]["state"])


def two_runs(program: Program, job: str, folder: Path) -> None:
    """A script that fails and a request that goes well, one after another; each has its log and its
    row.
    """
    script, request = folder / "first.sh", folder / "second.toml"
    script.write_text(
        "#!/bin/bash\necho first in $SLURM_JOB_ID; echo its error >&2; sleep 1; exit 3\n"
    )
    (folder / "part").mkdir()
    (folder / "part" / "said").write_text("as sent\n")
    command = "echo second in $SLURM_JOB_ID $(cat part/said)"
    request.write_text(f'command = "{command}"\nfiles = ["part"]\nslots = 1\nslot_type = "cpu"\n')
    assert done(program("submit", str(script), "--in", job)) == "1"
    assert done(program("submit", str(request), "--in", job)) == "2"
    first, second = ended_runs(program, job, 2)
    assert (first["title"], first["state"], first["exit_code"]) == ("first.sh", "failed", 3)
    assert (second["title"], second["state"], second["exit_code"]) == (
        "second.toml",
        "completed",
        0,
    )
    # One after another.
    assert second["started_at"] >= first["ended_at"]
    assert done(program("log", job, "--run", "1")) == f"first in {job}"
    assert done(program("log", job, "--run", "1", "--err")) == "its error"
    assert f"second in {job} as sent" in done(program("log", job, "--run", "2"))
    assert f"job {job} has no run 3" in program("log", job, "--run", "3").refused(2)
    assert "run 000" not in program("log", job).text.replace(
        first["stdout_path"].split("/")[-2], ""
    )


async def test_runs_follow_one_another_in_an_allocation_that_is_kept(
    queue: QueueLab, on_queue: Program, tmp_path: Path
) -> None:
    job = done(on_queue("alloc", "--cpus", "1", "--time", "1h", "--keep"))
    queue.wait(job, "running")
    two_runs(on_queue, job, tmp_path)
    listed = on_queue("alloc", "--list", "--format", "json").json["allocations"]
    assert [(one["id"], one["state"]) for one in listed] == [(job, "running")]
    assert 3000 < listed[0]["left_seconds"] <= 3600
    page = on_queue("show", job).text
    assert "Runs" in page
    assert "first.sh" in page
    assert "second.toml" in page

    (tmp_path / "state" / "toured").touch()
    async with dashboard(on_queue) as screen:
        await screen.until("hpcdash_alloc")
        screen.type("l")
        await screen.until("waiting for runs")
        screen.type("]")
        await screen.until(lambda text: f"first in {job}" in text and "run 1" in text)
        screen.type("]")
        await screen.until(f"second in {job}")
        screen.type("]")
        await screen.until("this is the last run of the allocation")
        screen.type("\x11")
        assert await screen.ended() == 0

    # What is no allocation, and what a run cannot have.
    other = queue.submit("sleep 600")
    request = tmp_path / "array.toml"
    request.write_text('command = "true"\narray = "1-3"\n')
    assert "is not an allocation that accepts runs" in refused(
        on_queue("submit", str(tmp_path / "first.sh"), "--in", other), 1
    )
    assert "do not apply to a run" in on_queue("submit", str(request), "--in", job).refused(2)

    # Where others could plant runs none is taken, and none is handed over.
    spool = Path(count_runs(on_queue, job)[0]["stdout_path"]).parent.parent
    assert spool.stat().st_mode & 0o777 == 0o700
    spool.chmod(0o777)
    said = refused(on_queue("submit", str(tmp_path / "first.sh"), "--in", job), 1)
    assert "others can write to" in said
    spool.chmod(0o700)

    assert on_queue("cancel", job, "--yes").status == 0
    queue.wait(job, "cancelled")
    assert "has ended (cancelled)" in on_queue(
        "submit", str(tmp_path / "first.sh"), "--in", job
    ).refused(2)
    assert on_queue("alloc", "--list", "--format", "json").json["allocations"] == []


def test_a_link_in_the_spool_is_not_run(queue: QueueLab, on_queue: Program, tmp_path: Path) -> None:
    job = done(on_queue("alloc", "--cpus", "1", "--time", "1h", "--keep"))
    queue.wait(job, "running")
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "batch.sh").write_text(f"touch {tmp_path}/ran\n")
    launch = Path(on_queue("show", job, "--format", "json").json["job"]["stdout_path"]).parent
    wait_until("the spool", (launch / "runs").is_dir)
    (launch / "runs" / "00000000000001.link").symlink_to(planted)
    script = tmp_path / "own.sh"
    script.write_text("#!/bin/bash\necho own\n")
    assert done(on_queue("submit", str(script), "--in", job)) == "1"
    assert [run["title"] for run in ended_runs(on_queue, job, 1)] == ["own.sh"]
    assert not (tmp_path / "ran").exists()


def holding(folder: Path) -> tuple[Path, Path]:
    """A script that runs until a file is there, and the file."""
    script, go = folder / "hold.sh", folder / "go"
    script.write_text(f"#!/bin/bash\necho held; until [ -e {go} ]; do sleep 0.2; done\n")
    return script, go


async def test_an_idle_allocation_ends_and_one_with_a_shell_in_it_does_not(
    queue: QueueLab, on_queue: Program, tmp_path: Path
) -> None:
    job = done(
        on_queue("alloc", "--cpus", "1", "--time", "1h", "--keep", "--idle-limit", "4s", "--hold")
    )
    script, go = holding(tmp_path)
    handed = on_queue("submit", str(script), "--in", job)
    assert done(handed) == "1"
    assert f"run 1 of job {job} waiting for job {job} to start (held)" in handed.stderr
    following = asyncio.ensure_future(asyncio.to_thread(on_queue, "log", job, "--run", "1", "-f"))
    queue.act("release", job)
    queue.wait(job, "running")
    # The run keeps it in use until the shell is there; that stays for longer than the limit.
    words = ("connect", job, "--", "sh", "-c", "echo here; sleep 12; exit 5")
    async with dashboard(on_queue, *words) as screen:
        await screen.until("here")
        go.touch()
        assert await screen.ended() == 5
    followed = await following
    assert (followed.status, followed.text) == (0, "held\n"), followed
    assert "run 1 completed" in followed.stderr
    assert queue.ended(job).state == "completed"
    assert "no run for 4 s" in on_queue("log", job).text


def test_it_is_idle_only_once_its_gpus_are_measured_as_idle(
    queue: QueueLab, on_queue: Program, tmp_path: Path
) -> None:
    tool, use = tmp_path / "bin" / "nvidia-smi", tmp_path / "use"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ncat {use}; echo asked >> {tmp_path}/asked\n")
    tool.chmod(0o755)
    queue.set_slots(cpus=2, gpus=1, grace_seconds=1)
    path = f"{tool.parent}:{on_queue.environment['PATH']}"
    job = done(
        on_queue("alloc", "--gpus", "1", "--time", "1h", "--keep", "--idle-limit", "2s", PATH=path)
    )
    queue.wait(job, "running")
    asked = tmp_path / "asked"

    def asks_more(times: int) -> None:
        before = len(asked.read_text().splitlines()) if asked.exists() else 0
        wait_until(
            "its GPUs to be asked",
            lambda: asked.exists() and len(asked.read_text().splitlines()) >= before + times,
        )
        assert queue.job(job).state == "running"

    asks_more(2)
    assert "GPU activity unavailable" in on_queue("log", job, "--err").text
    use.write_text("[N/A]\n")
    asks_more(2)
    use.write_text("0\n37\n")
    asks_more(2)
    use.write_text("0\n0\n")
    assert queue.ended(job).state == "completed"


async def test_without_keep_it_ends_with_the_command_that_made_it(
    queue: QueueLab, on_queue: Program
) -> None:
    async with dashboard(on_queue, "alloc", "--cpus", "1", "--time", "1h") as screen:
        before = screen.attributes
        await screen.until("is running on")
        screen.type("\x03")
        await screen.until("[y/N]")
        screen.type("n\r")
        await screen.until("continues")
        assert queue.job("1").state == "running"
        screen.type("\x03")
        await screen.until(lambda text: text.count("[y/N]") == 2)
        screen.type("y\r")
        assert await screen.ended() == 130
        assert screen.attributes == before
    assert queue.ended("1").state == "cancelled"
    async with dashboard(on_queue, "alloc", "--cpus", "1", "--time", "1h") as screen:
        await screen.until("is running on")
        screen.process.send_signal(signal.SIGTERM)
        assert await screen.ended() == 143
    assert queue.ended("2").state == "cancelled"
    async with dashboard(on_queue, "alloc", "--cpus", "1", "--time", "1h") as screen:
        await screen.until("is running on")
        screen.type("\x03")
        await screen.until("[y/N]")
        screen.hang_up()
        assert await screen.ended() == 129
    assert queue.ended("3").state == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_during_the_submission_ends_what_it_made(
    queue: QueueLab, on_queue: Program, tmp_path: Path, number: signal.Signals
) -> None:
    began, go, waits = tmp_path / "began", tmp_path / "go", tmp_path / "bin" / "mkdir"
    waits.parent.mkdir()
    waits.write_text(
        f"#!/bin/sh\n: > {began}; until [ -e {go} ]; do sleep 0.1; done; exec "
        f'{shutil.which("mkdir")} "$@"\n'
    )
    waits.chmod(0o755)
    path = f"{waits.parent}:{on_queue.environment['PATH']}"
    slow = replace(on_queue, variables={**on_queue.variables, "PATH": path})
    async with dashboard(slow, "alloc", "--cpus", "1", "--time", "1h") as screen:
        await asyncio.to_thread(wait_until, "the submission", began.exists)
        screen.process.send_signal(number)
        if number != signal.SIGHUP:
            await screen.until("once the scheduler answers")
        go.touch()
        assert await screen.ended() == 128 + number
    assert queue.ended("1").state == "cancelled"


def test_an_allocation_of_a_real_slurm(
    slurm_lab: SlurmLab, over_ssh: Program, tmp_path: Path
) -> None:
    job = done(over_ssh("alloc", "--cpus", "2", "--nodes", "2", "--time", "1h", "--keep"))
    folder = slurm_lab.work_dir("alice")
    script, go = holding(folder)
    local = tmp_path / "hold.sh"
    local.write_text(script.read_text())
    idle = done(
        over_ssh("alloc", "--cpus", "1", "--time", "1h", "--keep", "--idle-limit", "4s", "--hold")
    )
    assert done(over_ssh("submit", str(local), "--in", idle)) == "1"
    slurm_lab.admin("scontrol", "release", idle)
    try:
        slurm_lab.wait_state(job, "RUNNING")
        slurm_lab.wait_state(idle, "RUNNING")
        # A step in it, as connect and exec make one, is use.
        step = [
            "srun",
            f"--jobid={idle}",
            "--overlap",
            "--ntasks=1",
            "--nodes=1",
            "sh",
            "-c",
            "sleep 12; exit 0",
        ]
        with ThreadPoolExecutor() as pool:
            used = pool.submit(slurm_lab.as_user, "alice", *step)
            steps = ["squeue", "-h", "-s", "-j", idle, "-o", "%i"]
            wait_until("the step", lambda: f"{idle}.0".encode() in slurm_lab.admin(*steps).stdout)
            go.touch()
            two_runs(over_ssh, job, tmp_path)
            bob = Program(
                home_with(tmp_path / "bob", slurm_lab.ssh_config.read_text()), ("--ssh", "lab-bob")
            )
            assert f"belongs to {slurm_lab.alice}" in bob(
                "submit", str(tmp_path / "first.sh"), "--in", job
            ).refused(2)
            used.result()
        slurm_lab.wait_state(idle, "COMPLETED")
        assert "no run for 4 s" in over_ssh("log", idle).text
    finally:
        go.unlink(missing_ok=True)
        script.unlink()
        slurm_lab.admin("scancel", "--quiet", job, idle, check=False)
