"""A port of a running job on this machine: of a real Slurm over ssh and on the spot, of PBS and the
embedded queue.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.embedded.queue_lab import QueueLab
from tests.support.cut_line import CutLine, ssh_config_through
from tests.support.forwarding import fetch, forwarding, server
from tests.support.program import Program, home_with, program_over_ssh
from tests.support.slurm import SlurmLab
from tests.support.slurm.layout import free_port
from tests.support.sshd import Sshd, commands_with, why_no_sshd
from tests.support.waiting import until, wait_until


def submitted(lab: SlurmLab, port: int) -> str:
    """A job of alice's with a web server, which runs."""
    log = lab.work_dir("alice") / f"forward-{port}.log"
    job = lab.submit("alice", f"-o{log}", script=server(port))
    wait_until("its address", lambda: log.exists() and "token" in log.read_text())
    return job


def far_ends(port: int) -> list[str]:
    return [line for line in commands_with("Far end of a forward") if f" {port} " in line]


def test_a_port_of_a_job_is_a_port_here_until_the_job_ends(
    clean_slurm: SlurmLab, tmp_path: Path
) -> None:
    port = free_port()
    job = submitted(clean_slurm, port)
    program = program_over_ssh(clean_slurm, tmp_path / "home")
    with forwarding(program, tmp_path, job) as first:
        # Port and token are the log's, host and local port are ours.
        url = first.line()
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/lab?token=0123456789abcdef")
        base = url.partition("/lab")[0]
        assert fetch(f"{base}/") == f"hello from {job}\n"
        listed = program("forward", "--list", "--format", "json").json["forwards"]
        assert [(one["job"], one["port"], one["status"]) for one in listed] == [(job, port, "open")]
        assert listed[0]["local"] == base.removeprefix("http://")
        assert "0123456789abcdef" not in str(listed)
        assert not commands_with("0123456789abcdef")
        clean_slurm.as_user("alice", "scancel", job)
        assert first.ended() == 0
        assert f"job {job} has ended (cancelled)" in first.stderr
    assert program("forward", "--list").stderr == "Nothing is forwarded on this machine.\n"
    wait_until("the far end's end", lambda: not far_ends(port))


def test_a_killed_forward_leaves_nothing_on_either_side(
    clean_slurm: SlurmLab, tmp_path: Path
) -> None:
    port = free_port()
    job = submitted(clean_slurm, port)
    program = program_over_ssh(clean_slurm, tmp_path / "home")
    with forwarding(program, tmp_path, job, f"{port}:{free_port()}") as killed:
        killed.line()
        assert far_ends(port)
        killed.process.kill()
        killed.process.wait()
    wait_until("the far end's end", lambda: not far_ends(port))
    assert program("forward", "--list").stderr == "Nothing is forwarded on this machine.\n"
    assert not list((tmp_path / "home/state").rglob("forwards/*/*"))


async def test_it_comes_back_with_the_connection(clean_slurm: SlurmLab, tmp_path: Path) -> None:
    port = free_port()
    job = await asyncio.to_thread(submitted, clean_slurm, port)
    line = CutLine(clean_slurm.ssh_port)
    await line.start()
    config = ssh_config_through(
        clean_slurm.ssh_config.read_text(), clean_slurm.ssh_port, line.port, tmp_path / "ssh"
    )
    home = home_with(tmp_path / "home", config.read_text())
    program = Program(home, ("--ssh", "lab-alice"))
    with forwarding(program, tmp_path, job) as one:
        url = (await asyncio.to_thread(one.line)).partition("/lab")[0]
        assert await asyncio.to_thread(fetch, url) == f"hello from {job}\n"
        line.cut()
        await until(lambda: "reconnecting" in one.stderr, "the loss")
        await until(lambda: one.stderr.rstrip().endswith("hpcdash: open"), "the return")
        assert await asyncio.to_thread(fetch, url) == f"hello from {job}\n"
        assert line.connections > 1
    await line.stop()


def test_another_user_s_port_is_refused_and_no_one_else_s_job_is_forwarded(
    clean_slurm: SlurmLab, tmp_path: Path
) -> None:
    port = free_port()
    program = program_over_ssh(clean_slurm, tmp_path / "home")
    job = clean_slurm.submit("alice")
    others = clean_slurm.submit("bob")
    for one in (job, others):
        clean_slurm.wait_state(one, "RUNNING")
    argv = clean_slurm.user_argv(
        "bob", "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", str(port)
    )
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        assert "Serving" in squatter.stdout.readline()
        text = program("forward", job, str(port)).refused(2)
        squatter.terminate()
    assert f"port {port} on " in text
    assert "belongs to uid " in text
    assert "not to you" in text
    assert "only its owner" in program("forward", others, str(port)).refused(2)
    wait_until("the far end's end", lambda: not far_ends(port))


def test_sshd_may_forbid_forwarding_and_more_than_one_session(
    clean_slurm: SlurmLab, tmp_path: Path
) -> None:
    if reason := why_no_sshd():
        pytest.skip(reason)
    port = free_port()
    job = submitted(clean_slurm, port)
    folder = clean_slurm.work_dir("alice").parent / f"sshd-{port}"
    strict = Sshd(folder)
    strict.start(
        f"AllowTcpForwarding no\nMaxSessions 1\nSetEnv SLURM_CONF={clean_slurm.env['SLURM_CONF']}\n"
    )
    try:
        config = (
            f"Host strict\n HostName 127.0.0.1\n Port {strict.port}\n User {clean_slurm.alice}\n"
            f" IdentityFile {strict.key}\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {tmp_path}/known\n"
        )
        (tmp_path / "known").write_text(f"[127.0.0.1]:{strict.port} {strict.host_key_line}\n")
        program = Program(home_with(tmp_path / "home", config), ("--ssh", "strict"))
        with forwarding(program, tmp_path, job) as one:
            assert fetch(one.line().partition("/lab")[0]) == f"hello from {job}\n"
    finally:
        strict.stop()


def test_on_the_cluster_itself_it_is_a_socket_that_only_its_owner_opens(
    clean_slurm: SlurmLab, locally: Program, tmp_path: Path
) -> None:
    port = free_port()
    log = clean_slurm.work_dir("alice") / f"forward-{port}.log"
    job = (
        clean_slurm.admin("sbatch", "--parsable", f"-o{log}", "-D/", stdin=server(port).encode())
        .stdout.decode()
        .strip()
    )
    wait_until("its address", lambda: log.exists() and "token" in log.read_text())
    # Bob may enter the folders above.
    state = Path(tempfile.mkdtemp(prefix="hpcdash-", dir="/tmp"))
    state.chmod(0o755)
    locally = Program(
        locally.home, locally.before, {**locally.variables, "HPCDASH_STATE": str(state)}
    )
    assert "needs confirmation" in locally("forward", job, str(port), "--tcp").refused(2)
    assert "a browser cannot open" in locally("forward", job, str(port), "--open").refused(2)
    with forwarding(locally, tmp_path, job) as one:
        path = Path(one.line())
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        get = ("curl", "-s", "--max-time", "20", "--unix-socket", str(path), "http://localhost/")
        answer = subprocess.run(get, capture_output=True, text=True)
        assert answer.stdout == f"hello from {job}\n"
        refused = clean_slurm.as_user("bob", *get, check=False)
        assert (refused.returncode, refused.stdout) == (7, b"")
        assert f"ssh -N -L {port}:{path} " in one.stderr
    assert not path.exists()
    with forwarding(locally, tmp_path, job, str(port), "--tcp", "--yes") as one:
        assert fetch(one.line().partition("/lab")[0]) == f"hello from {job}\n"
    clean_slurm.admin("scancel", job)
    shutil.rmtree(state)


# -- the embedded queue


def test_a_job_of_this_machine_needs_no_forward_but_has_another_port_if_asked_for(
    tmp_path: Path,
) -> None:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work")
    (tmp_path / "state").mkdir(mode=0o700)
    variables = {"HPCDASH_QUEUE": str(lab.folder), "HPCDASH_STATE": str(tmp_path / "state")}
    program = Program(home_with(tmp_path / "home"), ("--local", "--backend", "local"), variables)
    port = free_port()
    try:
        job = lab.submit(server(port).replace("#!/bin/sh\n", ""))
        lab.wait(job, "running")
        run = program("forward", job, str(port))
        assert run.status == 0, run
        assert run.text == f"http://127.0.0.1:{port}/lab?token=0123456789abcdef\n"
        assert "needs no forward" in run.stderr
        # The browser gets a page that only its owner reads, and no token in its arguments.
        browser = tmp_path / "browser"
        opened = tmp_path / "opened"
        browser.write_text(
            f'#!/bin/sh\necho "$1" >{opened}\nstat -c %a "${{1#file://}}" >>{opened}\n'
            f'cat "${{1#file://}}" >>{opened}\n'
        )
        browser.chmod(0o755)
        run = program("forward", job, str(port), "--open", BROWSER=str(browser))
        assert run.status == 0, run
        address, mode, *page = opened.read_text().splitlines()
        assert "0123456789abcdef" not in address
        assert mode == "600"
        assert f"http://127.0.0.1:{port}/lab?token=0123456789abcdef" in "".join(page)
        with forwarding(program, tmp_path, job, f"{port}:{free_port()}", "--tcp", "--yes") as one:
            url = one.line().partition("/lab")[0]
            assert url != f"http://127.0.0.1:{port}"
            assert fetch(url) == f"hello from {job}\n"
    finally:
        lab.end()
