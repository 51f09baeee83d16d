"""A shell inside a running job, in a terminal: on the embedded queue, and on a real Slurm over
ssh.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from tests.embedded.queue_lab import QueueLab
from tests.support.cut_line import CutLine, ssh_config_through
from tests.support.process_lists import seen_command_lines
from tests.support.program import Program, home_with
from tests.support.screen import Screen, dashboard
from tests.support.slurm import SlurmLab
from tests.support.sshd import commands_with, until_gone
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.slurm_releases

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60.0
SECRET = "hunter2"
# Writes to both streams, with a byte that is no UTF-8, and has no terminal.
IN_PIPES = ("sh", "-c", r"printf 'out\377\n'; echo err >&2; test -t 0 || test -t 1 || exit 3")
# It is no option, no word of a shell's and no markup.
ODD = "-a'b $(touch x) [red]\"!`c`\\"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work", cpus=2)
    yield lab
    lab.end()


@pytest.fixture
def on_queue(queue: QueueLab, tmp_path: Path) -> Program:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "toured").touch()
    # What a login reads may set another prompt.
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\nPS1='shell> ' exec /bin/sh\n")
    shell.chmod(0o755)
    variables = {
        "HPCDASH_QUEUE": str(queue.folder),
        "HPCDASH_STATE": str(tmp_path / "state"),
        "SHELL": str(shell),
    }
    return Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)


async def ended(screen: Screen, status: int) -> str:
    """All that was shown, once it has ended so, and left the terminal as it was."""
    assert await screen.ended() == status, screen.text
    await screen.all_output()
    assert screen.modes_left == set()
    return screen.text


async def is_back(screen: Screen) -> str:
    """The dashboard, once it has its own screen again and has drawn it."""
    return await screen.until(
        lambda text: "?1049h" in screen.modes_left and "second" in text and "shell>" not in text
    )


@asynccontextmanager
async def connected(program: Program, *words: str) -> AsyncIterator[Screen]:
    async with dashboard(program, "connect", *words) as screen:
        before = screen.attributes
        yield screen
        assert screen.attributes == before


async def said_by(program: Program, *words: str) -> str:
    """What it refuses with."""
    async with connected(program, *words) as screen:
        return " ".join((await ended(screen, 2)).split())


# -- the embedded queue


async def test_it_has_the_job_s_variables_and_folder_and_ends_with_its_status(
    queue: QueueLab, on_queue: Program
) -> None:
    folder = queue.work / ODD
    folder.mkdir()
    job = queue.submit(
        "sleep 600", "--cpus-per-task=2", env={"SEED": "a  b\n\x1bc", "TOKEN": SECRET}, cwd=folder
    )
    queue.wait(job, "running")
    with seen_command_lines(SECRET, "sleep 0.55") as seen:
        async with connected(on_queue, job) as screen:
            await screen.until("shell>")
            screen.type(
                '[ "$SEED" = "$(printf "a  b\\n\\033c")" ] && echo seed of job $SLURM_JOB_ID; ls '
                "-N ..\r"
            )
            screen.type("echo secret of ${#TOKEN}; sleep 0.55; exit 3\r")
            text = await ended(screen, 3)
        answer = await asyncio.to_thread(
            on_queue, "exec", job, "--", "sh", "-c", "echo ${#TOKEN}; sleep 0.55"
        )
    assert f"seed of job {job}" in text
    assert f"secret of {len(SECRET)}" in text
    assert answer.text == f"{len(SECRET)}\n"
    # The job's environment comes along, and is nowhere to be seen.
    assert [line for line in seen if "sleep 0.55" in line]
    assert not [line for line in seen if SECRET in line]
    assert not [
        path
        for path in on_queue.home.parent.glob("state/*")
        if SECRET.encode() in path.read_bytes()
    ]
    assert ODD in text
    assert not (folder / "x").exists()

    waiting = queue.submit("true")
    over = queue.submit("true")
    queue.act("cancel", over)
    assert f"job {waiting} is not running yet (pending)" in await said_by(on_queue, waiting)
    assert f"job {over} has ended (cancelled)" in await said_by(on_queue, over)
    said = await said_by(on_queue, job, "--node", "1")
    assert f"job {job} has no node 1 Its nodes: 0 " in said
    # Without a terminal nothing is asked, and a command has pipes.
    refused = on_queue("connect", job).refused(2)
    assert "connect needs a terminal" in refused
    assert "hpcdash connect JOB -- COMMAND" in refused
    run = await asyncio.to_thread(on_queue, "connect", job, "--", *IN_PIPES)
    assert (run.status, run.stdout, run.stderr) == (3, b"out\xff\n", "err\n")


def test_without_a_terminal_a_command_s_output_comes_as_it_is_written(
    queue: QueueLab, on_queue: Program
) -> None:
    job = queue.submit("sleep 600")
    queue.wait(job, "running")
    go_on = queue.work / "go-on"
    waits = f'cat; echo out; echo err >&2; while [ ! -e "{go_on}" ]; do sleep 0.02; done; exit 5'

    @contextmanager
    def started(command: str) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(
            on_queue.argv("connect", job, "--", "sh", "-c", command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": str(ROOT), **on_queue.environment},
            cwd=on_queue.home,
            bufsize=0,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    with started(waits) as running:
        assert running.stdin
        assert running.stdout
        assert running.stderr
        # What is typed ahead is not for the job.
        running.stdin.write(b"typed\n")
        assert running.stdout.readline() == b"out\n"
        assert running.stderr.readline() == b"err\n"
        go_on.touch()
        assert running.communicate() == (b"", b"")
        assert running.returncode == 5
    # It ends where nobody reads on, and nothing of it is left.
    with started("yes 0.4321") as endless:
        assert endless.stdout
        assert endless.stderr
        assert endless.stdout.readline() == b"0.4321\n"
        endless.stdout.close()
        assert endless.stderr.read() == b""
        assert endless.wait() == 0
    wait_until("its end", lambda: not commands_with("0.4321"))


# As a runtime without a setuid program makes one: namespaces of its own for users and mounts, and
# another root. The shell that starts it has the namespaces, and the root of the machine.
MOUNTED = (
    "set -e; mkdir root; mount -t tmpfs none root; cd root; mkdir usr proc bin mnt; mount "
    "--rbind /proc proc\n"
)
WHOLE = (
    f"{MOUNTED}mount --rbind /usr usr; rmdir bin; for one in bin lib lib64; do ln -s usr/$one "
    "$one; done\n"
    'touch mnt/inside; export IN_IMAGE="it\'s in"; chroot . sleep 600.5; true\n'
)
# As of an image from scratch: a shell, and what the command needs.
BARE = (
    f"{MOUNTED}mkdir usr/lib usr/lib64; mount --rbind /usr/lib usr/lib; mount --rbind /usr/lib64 "
    "usr/lib64\n"
    "for one in lib lib64; do ln -s usr/$one $one; done\n"
    "for one in sleep sh; do touch bin/$one; mount --bind /usr/bin/$one bin/$one; done\n"
    "export IN_IMAGE=bare PATH=/bin; /usr/sbin/chroot . sleep 600.25; true\n"
)


async def test_a_launch_in_a_container_has_its_shell_inside_and_none_outside_unasked(
    queue: QueueLab, on_queue: Program, tmp_path: Path
) -> None:
    queue.set_slots(cpus=3, gpus=0, grace_seconds=1)
    records = LaunchRecords(tmp_path / "state", "local")

    def launched(
        name: str, script: str, how: str = "exec unshare --user --map-root-user --mount sh"
    ) -> str:
        folder = queue.work / name
        folder.mkdir()
        (folder / "inside").write_text(script)
        job = queue.submit(
            f"{how} {folder}/inside", f"--job-name={name}", env={"TOKEN": SECRET}, cwd=folder
        )
        request = 'command = "true"\n[container]\nimage = "/image.sif"\n'
        records.launched(
            LaunchRecord(f"/launch/{name}", "", job, name, "always", "", 1, 1.0, request)
        )
        queue.wait(job, "running")
        return job

    contained, bare, absent = (
        launched("a", WHOLE),
        launched("b", BARE),
        launched("c", "sleep 600", "sh"),
    )
    for seconds in ("600.5", "600.25"):
        await until(
            lambda seconds=seconds: f"sleep {seconds} " in queue.processes().values(),
            "the container",
        )

    async def said(status: int, *words: str) -> str:
        async with connected(on_queue, *words) as screen:
            return " ".join((await ended(screen, status)).split())

    async def shell_outside() -> None:
        async with connected(on_queue, absent) as screen:
            await screen.until("outside the container? [y/N]")
            screen.type("y\r")
            await screen.until("shell>")
            screen.type("exit 5\r")
            await ended(screen, 5)

    with seen_command_lines(SECRET) as seen:
        within = await said(
            3, contained, "--", "sh", "-c", "ls /mnt; echo $IN_IMAGE ${#TOKEN}; sleep 0.5; exit 3"
        )
    program, refused, outside, _ = await asyncio.gather(
        said(0, bare, "--", "sh", "-c", "type true cat; echo image $IN_IMAGE"),
        said(126, absent, "--", "sh", "-c", "echo r''an"),
        said(4, absent, "--outside", "--", "sh", "-c", "echo r''an; exit 4"),
        shell_outside(),
    )
    assert f"inside it's in {len(SECRET)}" in within
    assert not seen
    assert "cat: not found image bare" in program
    assert "cannot enter the job's container: no process in it is visible" in refused
    assert ("ran" in refused.split(), "ran" in outside.split()) == (False, True)


async def test_the_dashboard_comes_back_as_it_was_and_says_that_the_job_has_ended(
    queue: QueueLab, on_queue: Program
) -> None:
    folder = queue.work / ODD
    folder.mkdir()
    first = queue.submit("sleep 600", "--job-name=first")
    job = queue.submit("sleep 600", "--job-name=second", cwd=folder)
    queue.wait(job, "running")
    async with dashboard(on_queue) as screen:
        await screen.until(lambda text: "first" in text and "second" in text)
        screen.type("/second\r")
        await screen.until(lambda text: "first" not in text)
        screen.type("C")
        await screen.until("shell>")
        screen.type("echo in $SLURM_JOB_NAME\r")
        await screen.until("in second")
        screen.resize(100, 30)
        # What ends meanwhile is drawn when the screen is back, in its new size.
        queue.act("cancel", first)
        screen.type("exit\r")
        assert "first" not in await is_back(screen)
        screen.type("W")
        await screen.until("shell>")
        screen.type("ls -N ..\r")
        await screen.until(ODD)
        screen.type("exit\r")
        await is_back(screen)
        screen.type("C")
        await screen.until("shell>")
        queue.act("cancel", job)
        await is_back(screen)
        await screen.until("the job has ended")
        screen.type("\x11")
        await ended(screen, 0)
    assert not (folder / "x").exists()


async def test_read_only_opens_no_shell(queue: QueueLab, on_queue: Program) -> None:
    job = queue.submit("sleep 600")
    queue.wait(job, "running")
    async with dashboard(on_queue, "--read-only") as screen:
        await screen.until("running")
        screen.type("C")
        await screen.until("read-only: connect is disabled")
        screen.type("W")
        await screen.until("read-only: open shell is disabled")
        screen.type("\x11")
        await ended(screen, 0)
    assert "read-only" in await said_by(on_queue, job, "--read-only")


# -- a real Slurm


@pytest.fixture
def gpu_job(slurm_lab: SlurmLab) -> Iterator[str]:
    """On two nodes, with both GPUs of each, as a request asks for them."""
    asked = ("-N2", "--gpus=4", "--tasks-per-node=1", "--gpus-per-task=2")
    job = slurm_lab.submit(
        "alice", "-J", ODD, "-p", "gpu", *asked, script="#!/bin/sh\nsrun sleep 3600\n"
    )
    slurm_lab.wait_state(job, "RUNNING")
    yield job
    slurm_lab.admin("scancel", "--quiet", job, check=False)


async def test_it_is_a_step_of_the_job_with_its_gpus_on_the_node_that_is_asked_for(
    slurm_lab: SlurmLab, over_ssh: Program, gpu_job: str, tmp_path: Path
) -> None:
    async with connected(over_ssh, gpu_job, "--node", "1") as screen:
        await screen.until("$")
        screen.type(
            "echo at=$SLURMD_NODENAME job=$SLURM_JOB_ID gpus=$CUDA_VISIBLE_DEVICES; stty size\r"
        )
        await screen.until(f"at=g2 job={gpu_job} gpus=0,1")
        await screen.until("36 130")
        screen.resize(100, 30)
        screen.type(
            "clear; until [ \"$(stty size)\" = '30 100' ]; do sleep 0.1; done; echo re''sized\r"
        )
        await screen.until("resized")
        screen.type("(echo beg''un; exec sleep 3599); echo went''on\r")
        await screen.until("begun")
        screen.type("\x03")
        screen.type("echo inter''rupted\r")
        text = await screen.until("interrupted")
        assert "wenton" not in text
        screen.type("exit 3\r")
        await ended(screen, 3)
    assert await until_gone("sleep 3599") == []

    bob = Program(
        home_with(tmp_path / "bob", slurm_lab.ssh_config.read_text()), ("--ssh", "lab-bob")
    )
    said = await said_by(bob, gpu_job)
    assert (
        f"job {gpu_job} belongs to {slurm_lab.alice}, and only its owner can run commands in it"
        in said
    )
    assert f"job {gpu_job} has no node 2 Its nodes: 0 g1, 1 g2." in await said_by(
        over_ssh, gpu_job, "--node", "2"
    )

    run = await asyncio.to_thread(over_ssh, "connect", gpu_job, "--node", "1", "--", *IN_PIPES)
    assert (run.status, run.stdout) == (3, b"out\xff\n"), run
    assert "err\n" in run.stderr


async def test_a_job_that_ends_under_it_and_a_line_that_is_cut_give_the_terminal_back(
    slurm_lab: SlurmLab, over_ssh: Program, gpu_job: str, tmp_path: Path
) -> None:
    line = CutLine(slurm_lab.ssh_port)
    await line.start()
    try:
        config = ssh_config_through(
            slurm_lab.ssh_config.read_text(), slurm_lab.ssh_port, line.port, tmp_path / "cut"
        )
        program = Program(
            home_with(tmp_path / "through", config.read_text()), ("--ssh", "lab-alice")
        )
        async with connected(
            program, gpu_job, "--", "sh", "-c", "printf '\\033[?1049hready'; exec sleep 3598"
        ) as screen:
            await screen.until("ready")
            line.cut()
            text = await ended(screen, 3)
        assert "was lost while sh ran on your terminal" in " ".join(text.split())
    finally:
        await line.stop()
    assert await until_gone("sleep 3598") == []

    async with connected(
        over_ssh, gpu_job, "--", "sh", "-c", "printf '\\033[?1049hready'; exec sleep 3597"
    ) as screen:
        await screen.until("ready")
        slurm_lab.admin("scancel", gpu_job)
        assert await screen.ended() > 128
        await screen.all_output()
        assert screen.modes_left == set()
        assert f"job {gpu_job} on g1: the job has ended (" in " ".join(screen.text.split())
    assert await until_gone("sleep 3597") == []
