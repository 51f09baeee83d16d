"""A training's processes on one node: numbered, bound to NUMA nodes, and all gone once one
fails.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hpcdash.job import multiprocessing
from tests.job.oldest_python import oldest_python

ROOT = str(Path(__file__).resolve().parent.parent.parent)
PROGRAM = """
import os, signal, sys, time
from hpcdash.job.multiprocessing import spawn
def main(number, word):
    if word == "saves":
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(open(f"saved.{number}", "w").close()))
    open(f"{word}.{number}", "w").write(str(os.getpid()))
    while word == "saves" or word == "waits" or (word == "fails" and number):
        time.sleep(0.05)
    if word == "fails":
        while not os.path.exists("fails.1"): time.sleep(0.05)
        raise ValueError("out of numbers")
if __name__ == "__main__":
    spawn(main, args=(sys.argv[1],), nprocs=2, bind_numa=True)
    print("all ended")
"""


def start(folder: Path, word: str, python: str = sys.executable) -> "subprocess.Popen[str]":
    (folder / "train.py").write_text(PROGRAM)
    given = {**os.environ, "PYTHONPATH": ROOT}
    words = [python, "train.py", word]
    return subprocess.Popen(
        words, cwd=folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until_begun(folder: Path, word: str) -> None:
    files = [folder / f"{word}.{number}" for number in range(2)]
    while not all(one.exists() and one.stat().st_size for one in files):
        time.sleep(0.05)


def until_gone(folder: Path) -> None:
    for number in range(2):
        process = (folder / f"waits.{number}").read_text()
        with suppress(psutil.NoSuchProcess):
            running = psutil.Process(int(process))
            while running.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)


@pytest.mark.system
@pytest.mark.parametrize("python", ["this", "oldest"])
def test_each_process_has_its_number_and_all_are_waited_for(tmp_path: Path, python: str) -> None:
    with start(
        tmp_path, "ends", sys.executable if python == "this" else oldest_python()
    ) as training:
        said = training.communicate()
    assert (said[0], training.returncode) == ("all ended\n", 0), said
    assert sorted(one.name for one in tmp_path.glob("ends.*")) == ["ends.0", "ends.1"]


@pytest.mark.system
def test_one_that_fails_ends_the_others_and_is_named(tmp_path: Path) -> None:
    with start(tmp_path, "fails") as training:
        said = training.communicate()[1]
    assert training.returncode == 1
    assert "ValueError: out of numbers" in said
    assert "RuntimeError: process 0 of 2 failed with exit status 1" in said
    assert not os.path.exists(f"/proc/{(tmp_path / 'fails.1').read_text()}")


@pytest.mark.system
def test_they_end_with_the_program_that_started_them_even_if_it_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, "waits") as training:
        until_begun(tmp_path, "waits")
        training.send_signal(signal.SIGKILL)
    until_gone(tmp_path)


@pytest.mark.system
def test_a_signal_goes_on_to_all_of_them_and_they_are_waited_for_while_they_save(
    tmp_path: Path,
) -> None:
    with start(tmp_path, "saves") as training:
        until_begun(tmp_path, "saves")
        # As Slurm warns a step; both go on.
        training.send_signal(signal.SIGUSR1)
        training.send_signal(signal.SIGTERM)
        assert training.communicate()[0] == "all ended\n"
    assert sorted(one.name for one in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]


@pytest.mark.system
def test_a_signal_that_ends_them_ends_the_program_without_a_traceback(tmp_path: Path) -> None:
    with start(tmp_path, "waits") as training:
        until_begun(tmp_path, "waits")
        training.send_signal(signal.SIGTERM)
        assert training.communicate() == ("", "")
    assert training.returncode == -signal.SIGTERM
    until_gone(tmp_path)


# The program receives TERM while it starts its second process.
TERMINATED_AT_START = """
import os, signal, sys, time
from hpcdash.job.multiprocessing import spawn
class Argument:
    copies = 0
    def __reduce__(self):
        Argument.copies += 1
        if Argument.copies == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return str, ()
def main(number, argument):
    while True:
        time.sleep(0.05)
if __name__ == "__main__":
    spawn(main, args=(Argument(),), nprocs=3)
"""


@pytest.mark.system
def test_a_signal_while_they_are_started_goes_on_to_all_of_them(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TERMINATED_AT_START)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


def note_cpus(number: int, folder: str) -> None:
    (Path(folder) / str(number)).write_text(repr(sorted(os.sched_getaffinity(0))))


@pytest.mark.system
@pytest.mark.parametrize("nodes", [1, 2])
def test_each_process_has_the_cpus_of_one_numa_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < nodes:
        pytest.skip("there is one CPU here")
    # Of the second node, only what this process may use counts.
    lists = (
        [f"{allowed[0]}", f"{allowed[-1]},4000-4003"]
        if nodes == 2
        else [f"{allowed[0]}-{allowed[-1]}"]
    )
    for number, text in enumerate(lists):
        (tmp_path / "sys" / f"node{number}").mkdir(parents=True)
        (tmp_path / "sys" / f"node{number}" / "cpulist").write_text(text + "\n")
    (tmp_path / "sys" / "possible").write_text("0-1\n")
    monkeypatch.setattr(multiprocessing, "_NUMA_NODES", str(tmp_path / "sys"))
    multiprocessing.spawn(note_cpus, (str(tmp_path),), nprocs=2, bind_numa=True)
    found = [(tmp_path / str(number)).read_text() for number in range(2)]
    assert found == [repr([allowed[0]]), repr([allowed[-1]])] if nodes == 2 else [repr(allowed)] * 2
