"""`W` leaves the terminal to a shell in a job's folder, which is a stranger's text; nothing opens in read-only mode."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcdash.errors import UsageError
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.openssh import OpenSshTransport
from tests.embedded.queue_lab import QueueLab
from tests.ui.stage import dashboard, notices, press, settled, until
from tests.ui.submit.submit_stage import queue_app

ODD = "a'b $(touch x) é;\n\"!`c`\\"


@contextmanager
def suspended() -> Iterator[None]:
    yield


async def test_a_shell_of_ones_own_opens_in_the_jobs_folder(
    queue: QueueLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\npwd > "{tmp_path}/was-here"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    number = queue.submit("sleep 60", cwd=folder)
    queue.wait(number, "running")
    app = queue_app(queue, tmp_path / "state")
    async with app.run_test(size=(120, 34)) as pilot:
        await settled(pilot)
        monkeypatch.setattr(app, "suspend", suspended)
        await press(pilot, "W")
        await until(pilot, (tmp_path / "was-here").exists, "the shell")
    assert (tmp_path / "was-here").read_text() == f"{folder}\n"
    assert not (folder / "x").exists()


async def test_read_only_opens_no_shell_and_says_so() -> None:
    app = dashboard(read_only=True)
    async with app.run_test(size=(120, 34)) as pilot:
        await settled(pilot)
        await press(pilot, "W")
        assert notices(app) == ["read-only: open shell is taken away"]


async def test_a_recording_has_no_shell_and_says_so() -> None:
    app = dashboard()
    async with app.run_test(size=(120, 34)) as pilot:
        await settled(pilot)
        await press(pilot, "W")
        assert "no shell: a recording has no machine that a shell could run on" in notices(app)[0]


@pytest.mark.parametrize("login_shell", ["sh", "bash"])
def test_over_ssh_the_folder_is_one_word_whatever_is_in_its_name(tmp_path: Path, login_shell: str) -> None:
    """sshd hands the last word to the login shell with -c."""
    folder = tmp_path / ODD
    folder.mkdir()
    argv = OpenSshTransport("login1:2222").shell_argv(str(folder))
    assert argv[:-1] == ("ssh", "-t", "-oClearAllForwardings=yes", "--", "ssh://login1:2222")
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "$1"; pwd\n')
    shell.chmod(0o755)
    words = [login_shell, "-c", argv[-1]]
    done = subprocess.run(words, env={"SHELL": str(shell), "PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
    assert done.stdout.decode() == f"-l\n{folder}\n"
    assert not list(tmp_path.glob("**/x"))


def test_a_folder_that_is_gone_leaves_a_shell_all_the_same(tmp_path: Path) -> None:
    argv = LocalTransport().shell_argv(str(tmp_path / "gone"))
    done = subprocess.run(argv, env={"SHELL": "/bin/pwd"}, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode() == f"{tmp_path}\n"
    assert b"gone" in done.stderr


def test_no_command_line_holds_a_nul() -> None:
    with pytest.raises(UsageError):
        OpenSshTransport("login1").shell_argv("a\0b")
