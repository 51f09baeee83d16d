"""A task of a shared pool as its coordinator, which writes a file, suspends it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdash.job import suspend
from tests.job.oldest_python import oldest_python

ROOT = str(Path(__file__).resolve().parent.parent.parent)
# A loop in a child of the first process, as torchrun's workers are.
TASK = """
import os, sys, time
from hpcdash.job.suspend import go_suspend, receive_suspend_command
if os.fork() == 0:
    print("training", flush=True)
    while not receive_suspend_command():
        time.sleep(0.01)
    print("saving", flush=True)
    go_suspend()
    print("it returned", flush=True)
os.wait()
"""


def test_outside_a_shared_pool_nothing_is_asked_and_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(suspend.SUSPEND, raising=False)
    monkeypatch.delenv(suspend.SUSPEND_READY, raising=False)
    assert suspend.receive_suspend_command() is False
    assert suspend.go_suspend() is None


def test_the_command_is_seen_once_it_is_written_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspend, "_EVERY_SECONDS", 0.0)
    file, seen = tmp_path / "suspend", tmp_path / "suspend.seen"
    monkeypatch.setenv(suspend.SUSPEND, str(file))
    # A file that cannot be read is no command: the training goes on.
    assert not suspend.receive_suspend_command()
    file.write_bytes(b"")
    assert not suspend.receive_suspend_command()
    assert not seen.exists()
    file.write_bytes(b"suspend\n")
    assert suspend.receive_suspend_command()
    assert seen.exists()
    # The file of the next run is empty; this one has still to go.
    file.write_bytes(b"")
    assert suspend.receive_suspend_command()


@pytest.mark.system
@pytest.mark.parametrize("python", ["this", "oldest"])
def test_a_child_process_answers_and_go_suspend_ends_with_the_task_alone(
    tmp_path: Path, python: str
) -> None:
    program = sys.executable if python == "this" else oldest_python()
    file, ready = tmp_path / "suspend", tmp_path / "suspend.ready"
    file.write_bytes(b"")
    given = {
        **os.environ,
        "PYTHONPATH": ROOT,
        suspend.SUSPEND: str(file),
        suspend.SUSPEND_READY: str(ready),
    }
    with subprocess.Popen(
        [program, "-c", TASK],
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as task:
        assert task.stdout is not None
        assert task.stderr is not None
        try:
            assert task.stdout.readline() == "training\n"
            file.write_bytes(b"suspend\n")
            assert task.stdout.readline() == "saving\n"
            assert "waiting for the pool's coordinator" in task.stderr.readline()
            assert ready.exists()
            assert (tmp_path / "suspend.seen").exists()
        finally:
            os.killpg(task.pid, signal.SIGTERM)
        assert task.stdout.read() == ""
