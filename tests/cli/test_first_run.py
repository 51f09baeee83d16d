"""A person's first start without a configuration: what is chosen and said, and the hints, once."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.assembly import build_session, connection_pool, default_cluster_note
from hpcdash.cli.options import CommonOptions
from hpcdash.config.settings import ClusterSettings, Settings
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.transport.prompter import TerminalPrompter
from tests.support.program import Program, home_with, together
from tests.support.registered import files_in
from tests.support.screen import Screen, dashboard
from tests.support.slurm import SlurmLab

_CASE = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05" / "everyday"


def put_squeue(folder: Path) -> str:
    """A PATH on which Slurm's commands are."""
    folder.mkdir()
    (folder / "squeue").write_text("#!/bin/sh\nexit 1\n")
    (folder / "squeue").chmod(0o755)
    return str(folder)


@pytest.fixture
def nobody(tmp_path: Path) -> Program:
    """hpcdash of a person with an empty home, on a machine without Slurm's commands."""
    (tmp_path / "bin").mkdir()
    nothing = {
        "PATH": str(tmp_path / "bin"),
        "SLURM_CONF": "/dev/null",
        "PBS_CONF_FILE": "/dev/null",
    }
    return Program(home_with(tmp_path / "home"), variables=nothing)


async def choose_this_machine(screen: Screen) -> None:
    """In the empty home of `nobody` it is the first."""
    await screen.until(lambda text: "Where do your jobs run?" in text and "enter connect" in text)
    screen.type("\r")


async def test_this_machine_is_chosen_once_and_the_hints_come_once(nobody: Program) -> None:
    marker = nobody.home / "state" / "hpcdash" / "toured"
    async with dashboard(nobody, columns=80, lines=24) as screen:
        await screen.until(
            lambda text: "neither Slurm nor PBS is installed here" in " ".join(text.split())
        )
        await choose_this_machine(screen)
        await screen.until(lambda text: "added local to" in text)
        # On a login node that has the same home it is that one's scheduler.
        assert nobody.config.read_text() == '[clusters.local]\ntransport = "local"\n'
        await screen.until(lambda text: "1/6 enter open job" in text and "● live" in text)
        assert not marker.exists()
        screen.type("\x05")
        await screen.until(lambda text: "/6 " not in text)
        assert marker.exists()
        screen.type("q")
        assert await screen.ended() == 0
    async with dashboard(nobody, columns=80, lines=24) as screen:
        text = await screen.until(lambda text: "● live" in text)
        assert "/6 " not in text
        assert "added local" not in text
        screen.type("q")
        assert await screen.ended() == 0


async def test_who_leaves_has_seen_the_hints(nobody: Program) -> None:
    async with dashboard(nobody, "--local") as screen:
        await screen.until("1/6 ")
        screen.type("q")
        assert await screen.ended() == 0
    assert (nobody.home / "state" / "hpcdash" / "toured").exists()


async def test_where_nothing_can_be_kept_it_works_all_the_same(
    nobody: Program, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    barred = replace(
        nobody,
        variables={
            **nobody.variables,
            "HPCDASH_STATE": str(tmp_path / "file"),
            "HPCDASH_QUEUE": str(tmp_path / "q"),
        },
    )
    barred.config.parent.parent.mkdir()
    barred.config.parent.symlink_to("/proc/nowhere")
    async with dashboard(barred) as screen:
        await choose_this_machine(screen)
        await screen.until("was not saved")
        await screen.until(lambda text: "1/6 " in text and "● live" in text)
        screen.type("\x05")
        await screen.until(lambda text: "/6 " not in text)
        screen.type("q")
        assert await screen.ended() == 0
        assert b"Traceback" not in screen.raw


@pytest.mark.parametrize("key", ["\x1b", "\x03"])
async def test_who_leaves_without_choosing_has_written_nothing(nobody: Program, key: str) -> None:
    async with dashboard(nobody) as screen:
        await screen.until(lambda text: "enter connect" in text)
        screen.type(key)
        assert await screen.ended() == 0
        assert screen.modes_left == set()
    assert not nobody.config.exists()


async def test_a_signal_ends_the_choice_and_gives_the_terminal_back(nobody: Program) -> None:
    async with dashboard(nobody) as screen:
        before = screen.attributes
        await screen.until(lambda text: "enter connect" in text)
        os.kill(screen.process.pid, signal.SIGTERM)
        assert await screen.ended() == 128 + signal.SIGTERM
        assert screen.modes_left == set()
        assert screen.attributes == before


async def test_a_host_is_tried_kept_and_opened_over_the_same_connection(
    nobody: Program, slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    config = slurm_lab.ssh_config.read_text()
    (nobody.home / ".ssh" / "config").write_text(
        f"Host away\n HostName 127.0.0.1\n Port 1\n{config}"
    )
    async with dashboard(nobody, columns=80, lines=24) as screen:
        await screen.until(
            lambda text: "away" in text and "lab-bob" in text and "enter connect" in text
        )
        screen.type("\r")
        await screen.until("refused the connection")
        assert not nobody.config.exists()
        screen.type("\x1b")
        await screen.until("enter connect")
        screen.type("alice")
        await screen.until(lambda text: "lab-bob" not in text)
        screen.type("\r")
        text = await screen.until("enter save")
        # However long the name is, and wherever it is broken.
        assert f"loggedinas{slurm_lab.alice}" in "".join(text.replace("│", "").split())
        screen.type("\r")
        await screen.until(lambda text: "added lab-alice to" in text and "● live" in text)
        assert (
            nobody.config.read_text()
            == '[clusters.lab-alice]\nssh = "lab-alice"\nbackend = "slurm"\n'
        )
        screen.type("q")
        assert await screen.ended() == 0
    assert (
        nobody.config.read_text() == '[clusters.lab-alice]\nssh = "lab-alice"\nbackend = "slurm"\n'
    )


async def test_a_recording_and_one_shot_commands_have_no_hints(nobody: Program) -> None:
    async with dashboard(nobody, "replay", str(_CASE)) as screen:
        text = await screen.until(lambda text: "lr-sweep" in text)
        assert "/6 " not in text
        screen.type("q")
        assert await screen.ended() == 0
    assert nobody("jobs").status == 0
    assert not (nobody.home / "state" / "hpcdash" / "toured").exists()


def test_what_is_said_follows_what_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files_in(tmp_path, "slurm", ("slurm.conf", "slurm.conf"), monkeypatch)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PBS_CONF_FILE", "/dev/null")
    monkeypatch.setenv("PATH", put_squeue(tmp_path / "bin"))
    said = default_cluster_note(CommonOptions(), Settings())
    assert "embedded queue" in said
    assert "no slurm.conf" in said
    assert "--backend slurm" in said
    (tmp_path / "slurm.conf").write_text("SlurmctldHost=ctl1\n")
    assert "using this machine's Slurm." in default_cluster_note(CommonOptions(), Settings())
    for options in (
        CommonOptions(local=True),
        CommonOptions(ssh="juno"),
        CommonOptions(backend="slurm"),
    ):
        assert default_cluster_note(options, Settings()) == ""
    assert (
        default_cluster_note(
            CommonOptions(), Settings(clusters={"juno": ClusterSettings("juno", "Juno")})
        )
        == ""
    )


def test_slurm_without_a_configuration_is_asked_when_a_person_says_so(
    nobody: Program, tmp_path: Path
) -> None:
    path = put_squeue(tmp_path / "slurm")
    assert "squeue failed" in nobody(
        "--backend", "slurm", "jobs", PATH=f"{path}:/usr/bin:/bin"
    ).refused(1)


def test_two_commands_that_find_no_queue_make_one(nobody: Program) -> None:
    for number in range(3):
        queue = str(nobody.home / f"queue {number}")
        calls = together(
            replace(nobody, variables={**nobody.variables, "HPCDASH_QUEUE": queue}),
            *[("nodes",), ("jobs",)] * 2,
        )
        empty = "You have no jobs. hpcdash submit submits one; --all shows everyone's.\n"
        assert [(run.status, run.stderr) for run in calls] == [(0, ""), (0, empty)] * 2


async def test_a_queue_shows_no_last_jobs_of_another_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cache", "state"):
        monkeypatch.setenv(f"HPCDASH_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("HPCDASH_QUEUE", "queue")

    def store_in(folder: str) -> ClusterStore:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        cluster = ClusterSettings("local", "local", backend="local")
        store = build_session(cluster, connection_pool(TerminalPrompter())).store
        store.load_cached()
        return store

    first = store_in("one")
    await first.open()
    await first.fetch(Kind.QUEUES)
    assert Kind.QUEUES in store_in("one").snapshots
    assert not store_in("other").snapshots


def test_a_current_folder_that_was_removed_is_named(nobody: Program, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    words = (
        "/bin/sh",
        "-c",
        '/bin/rmdir "$PWD" && exec "$@"',
        "sh",
        *nobody.argv("--local", "submit", "../job.sh"),
    )
    ended = subprocess.run(
        words, env=nobody.environment, cwd=gone, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        1,
        "hpcdash: the current folder no longer exists\n  Change to another folder: cd\n",
    )
