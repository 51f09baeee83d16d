"""The whole app in a terminal, on a real Slurm over a real sshd: what is seen, typed and asked."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from hpcdash.transport.known_hosts import fingerprint
from tests.e2e.scene import Scene
from tests.support.program import Program, home_with
from tests.support.screen import dashboard
from tests.support.slurm import SlurmLab
from tests.support.sshd import TwoFactorServer, make_key


@pytest.mark.journey
async def test_a_person_starts_it_finds_a_job_reads_it_and_quits(
    over_ssh: Program, scene: Scene
) -> None:
    async with dashboard(over_ssh) as screen:
        text = await screen.until("held by an ad")
        lines = text.splitlines()
        assert "lab-alice" in lines[0]
        (training,) = [line for line in lines if "train lr=1e-3" in line and "running" in line]
        assert scene.training in training
        assert " g1" in training
        assert "mpi" not in text, "bob's job is not alice's"
        await screen.until(
            lambda text: (
                f"{scene.lab.alice}@lab-alice" in text
                and "● live" in text
                and "commands/min" in text
            )
        )
        screen.type("m")
        await screen.until(lambda text: "mpi" in text and scene.bobs in text)
        screen.type("m")
        await screen.until(lambda text: "mpi" not in text)
        screen.type("/")
        await screen.until(lambda text: any(line.startswith(" /") for line in text.splitlines()))
        screen.type("gpus>1 state:running")
        await screen.until(lambda text: "train lr=1e-3" in text and "held by its user" not in text)
        screen.type("\r")
        await screen.until(lambda text: "gpus>1 state:running" in text.splitlines()[0])
        screen.type("d")
        # What the list knew is there at once, the rest when it is answered.
        text = await screen.until(f"train.{scene.training}.out")
        assert "best so far" in text
        screen.type("q")
        await screen.until(lambda text: "scheduler's words" not in text and "train lr=1e-3" in text)
        screen.type("2")
        await screen.until(lambda text: "kernel update, back at 6" in text and "drained" in text)
        screen.type("3")
        await screen.until(lambda text: "closed" in text and "debug" in text)
        screen.type("4")
        await screen.until(lambda text: "broken import" in text and "failed" in text)
        screen.type(":")
        await screen.until(lambda text: any(line.startswith(" :") for line in text.splitlines()))
        screen.type("quit\r")
        assert await screen.ended() == 0
        assert b"Traceback" not in screen.raw


async def test_it_says_what_is_wrong_while_the_controller_is_away_and_recovers(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    small_lab.reset()
    job_id = small_lab.submit("alice", "--hold", "-J", "patient")
    home = home_with(tmp_path / "home", small_lab.ssh_config.read_text())
    async with dashboard(Program(home, ("--ssh", "lab-alice"))) as screen:
        await screen.until("patient")
        with small_lab.controller_down():
            screen.type("\x12")
            text = await screen.until("slurmctld")
            # What was known stays to be read.
            assert "patient" in text
            assert job_id in text
        screen.type("\x12")
        await screen.until(lambda text: "slurmctld" not in text and "patient" in text)
        screen.type("q")
        assert await screen.ended() == 0
    small_lab.reset()


async def test_what_the_last_run_knew_is_shown_before_anything_answers(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    small_lab.submit("alice", "--hold", "-J", "remembered")
    program = Program(
        home_with(tmp_path / "home", small_lab.ssh_config.read_text()), ("--ssh", "lab-alice")
    )
    async with dashboard(program) as screen:
        await screen.until("remembered")
        screen.type("q")
        assert await screen.ended() == 0
    (program.home / ".ssh" / "config").write_text("Host lab-alice\n HostName 127.0.0.1\n Port 1\n")
    async with dashboard(program) as screen:
        text = await screen.until(lambda text: "remembered" in text and "from the last run" in text)
        await screen.until("refused")
        assert "remembered" in text
        screen.type("q")
        assert await screen.ended() == 0
    small_lab.reset()


def asking_config(lab: SlurmLab, known_hosts: Path) -> str:
    """The lab's ssh configuration, which asks for unknown keys and remembers them in a file of the
    test's.
    """
    config = lab.ssh_config.read_text().replace(str(lab.ssh_known_hosts), str(known_hosts))
    return config.replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask")


async def test_an_unknown_host_key_is_asked_for_remembered_and_not_asked_again(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    small_lab.submit("alice", "--hold", "-J", "behind the key")
    known = tmp_path / "known_hosts"
    program = Program(
        home_with(tmp_path / "home", asking_config(small_lab, known)), ("--ssh", "lab-alice")
    )
    shown = key_fingerprint(small_lab.run_dir / "ssh" / "host_ed25519.pub")
    async with dashboard(program) as screen:
        text = await screen.until(lambda text: "Unknown host" in text and shown in text)
        assert "behind the key" not in text
        screen.type("n")
        await screen.until(lambda text: "was not accepted" in text and "Unknown host" not in text)
        assert not known.exists()
        screen.type("\x12")
        await screen.until("Unknown host")
        screen.type("y")
        await screen.until("behind the key")
        assert known.read_text() == small_lab.ssh_known_hosts.read_text().replace(" lab\n", "\n")
        screen.type("q")
        assert await screen.ended() == 0
    async with dashboard(program) as screen:
        await screen.until(lambda text: "behind the key" in text and "● live" in text)
        assert "Unknown host" not in screen.text
        screen.type("q")
        assert await screen.ended() == 0
    small_lab.reset()


async def test_a_changed_host_key_is_refused_without_a_question(
    small_lab: SlurmLab, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    other = " ".join((small_lab.run_dir / "ssh" / "id_ed25519.pub").read_text().split()[:2])
    known.write_text(f"[127.0.0.1]:{small_lab.ssh_port} {other}\n")
    before = known.read_bytes()
    program = Program(
        home_with(tmp_path / "home", asking_config(small_lab, known)), ("--ssh", "lab-alice")
    )
    async with dashboard(program) as screen:
        text = await screen.until("has changed")
        assert "Unknown host" not in text
        screen.type("!")
        text = await screen.until(lambda text: "the error" in text and "ssh-keygen -R" in text)
        assert key_fingerprint(small_lab.run_dir / "ssh" / "host_ed25519.pub") in text.replace(
            "\n", ""
        )
        screen.type("\x1b")
        await screen.until(lambda text: "the error" not in text)
        screen.type("q")
        assert await screen.ended() == 0
    assert known.read_bytes() == before


def has_all(*words_and_text: str) -> bool:
    """Whether the text, which comes last, holds all the words before it."""
    *words, text = words_and_text
    return all(word in text for word in words)


def key_fingerprint(public_key: Path) -> str:
    return fingerprint(base64.b64decode(public_key.read_text().split()[1]))


@asynccontextmanager
async def two_hops(
    lab: SlurmLab, folder: Path
) -> AsyncIterator[tuple[TwoFactorServer, TwoFactorServer, str]]:
    """A jump host and a login node behind it that both ask for a password and a code, and the way
    there.
    """
    servers = []
    for name in ("gate", "cluster"):
        make_key(folder / f"{name}_key")
        server = TwoFactorServer(
            name, folder / f"{name}_key", password=f"{name} secret", code=f"{name} 123456"
        )
        await server.start()
        servers.append(server)
    gate, cluster = servers
    (folder / "known_hosts").write_text(
        "".join(
            f"[127.0.0.1]:{one.port} {one.host_key.with_suffix('.pub').read_text()}"
            for one in servers
        )
    )
    config = (
        f"Host gate\n HostName 127.0.0.1\n Port {gate.port}\n User alice\n"
        f"Host cluster\n HostName 127.0.0.1\n Port {cluster.port}\n User root\n ProxyJump gate\n"
        "Host *\n IdentityFile none\n IdentityAgent none\n UserKnownHostsFile "
        f"{folder / 'known_hosts'}\n"
    )
    try:
        yield gate, cluster, config
    finally:
        await gate.stop()
        await cluster.stop()


@pytest.mark.journey
async def test_two_factors_at_a_jump_host_and_behind_it_are_typed_into_the_app(
    scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "servers"
    folder.mkdir()
    wrapper = folder / "slurm"
    wrapper.mkdir()
    for name in ("squeue", "sinfo", "sacct", "scontrol", "sbatch", "scancel"):
        (wrapper / name).write_text(
            f'#!/bin/sh\nSLURM_CONF={scene.lab.conf} exec /usr/bin/{name} "$@"\n'
        )
        (wrapper / name).chmod(0o755)
    async with two_hops(scene.lab, folder) as (gate, cluster, config):
        program = Program(home_with(tmp_path / "home", config))
        program.config.parent.mkdir(parents=True)
        program.config.write_text(
            f'[clusters.juno]\nssh = "cluster"\npath = "{wrapper}"\nuser = "{scene.lab.alice}"\n'
        )
        async with dashboard(program) as screen:
            for hop, who in ((gate, "alice"), (cluster, "root")):
                welcome = partial(has_all, f"Welcome to {hop.name}", "Password")
                text = await screen.until(welcome)
                assert f"{who}@127.0.0.1:{hop.port} asks" in text
                screen.type(f"{hop.name} secret")
                await screen.until("•" * len(f"{hop.name} secret"))
                assert f"{hop.name} secret" not in screen.text
                screen.type("\r")
                await screen.until(lambda text: "Code:" in text)
                screen.type(f"{hop.name} 123456")
                await screen.until(f"{hop.name} 123456")
                screen.type("\r")
            await screen.until(lambda text: "train lr=1e-3" in text and "● live" in text)
            assert gate.responses == [["gate secret"], ["gate 123456"]]
            assert cluster.responses == [["cluster secret"], ["cluster 123456"]]
            assert b"secret" not in screen.raw
            screen.type("q")
            assert await screen.ended() == 0


async def test_who_gives_a_prompt_up_is_told_so_and_may_try_again(
    scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "servers"
    folder.mkdir()
    async with two_hops(scene.lab, folder) as (gate, _cluster, config):
        program = Program(home_with(tmp_path / "home", config), ("--ssh", "cluster"))
        async with dashboard(program) as screen:
            await screen.until("Password")
            screen.type("\x1b")
            await screen.until(lambda text: "Password" not in text and "ctrl+r retries" in text)
            assert gate.responses == []
            screen.type("\x12")
            await screen.until("Welcome to gate")
            screen.type("\x1b")
            await screen.until(lambda text: "Welcome to gate" not in text)
            screen.type("q")
            assert await screen.ended() == 0
