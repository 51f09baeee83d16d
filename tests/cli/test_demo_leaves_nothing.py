"""The demonstration without its screen: what is in its queue, what its switches do, and that
nothing of it stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcdash.embedded.demo.jobs import READY, samples
from tests.support.waiting import wait_until

SECONDS = 60.0


class Demo:
    """The process that fills a demonstration's queue and takes it away; the test holds its
    stdin.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hpcdash.embedded.demo", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().decode().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def jobs(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of the queue by the jobs' names, ended ones as well."""
        argv = [
            sys.executable,
            "-P",
            "-m",
            "hpcdash.embedded",
            str(self.folder / "queue"),
            "jobs",
            "--ended=3600",
        ]
        columns = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)[
            "columns"
        ]
        found: dict[str, list[dict[str, Any]]] = {}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            found.setdefault(row["name"], []).append(row)
        return found

    def output(self, name: str) -> str:
        """What a sample job wrote; '' while it has not begun."""
        return "".join(path.read_text() for path in (self.folder / "work").glob(f"{name}-*.out"))


def processes_of(folder: Path) -> dict[psutil.Process, str]:
    """What names a folder or runs in it, with the command line."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if str(folder) in words or process.cwd().startswith(str(folder)):
                found[process] = words
    return found


def is_looking(pid: int) -> bool:
    """Whether its look at what others left goes on."""
    return any(child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process(pid).children())


def own_folder(path: Path) -> Path:
    """An empty one as a demonstration makes it."""
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    (tmp_path / "demo").mkdir()
    one = Demo(tmp_path / "demo")
    yield one
    one.end()


def test_its_jobs_show_what_the_dashboard_is_for_and_end_with_it(demo: Demo) -> None:
    assert demo.said == READY
    wait_until(
        "the job that is too slow",
        lambda: {row["state"] for row in demo.jobs().get("profile-io", [])} == {"timeout"},
    )
    wait_until("the one that hangs", lambda: "wait" in demo.output("allreduce-bench"))
    jobs = demo.jobs()
    assert set(jobs) == {sample.name for sample in samples(demo.folder)}

    def states(name: str) -> list[str]:
        return sorted(row["state"] for row in jobs[name])

    assert states("train-7b") == ["running"]
    assert states("train-chain") == ["pending"] * 9 + ["running"]
    assert states("shards") == ["completed"] * 8 + ["failed"] * 2
    assert states("ablation-lr1e-3") == ["failed"]
    assert states("sweep-next") == ["held"]
    assert states("$(rm -rf ~)") == ["completed"]
    assert jobs["evaluate"][0]["reason"] == "Dependency"
    assert jobs["weekly-report"][0]["reason"] == "BeginTime"
    assert {row["priority"] for rows in jobs.values() for row in rows} == {None}
    assert "CUDA out of memory" in demo.output("ablation-lr1e-3")
    training = demo.output("train-7b")
    losses = [
        float(line.split("lm loss: ")[1].split()[0])
        for line in training.splitlines()
        if "lm loss" in line
    ]
    assert losses[429] > losses[400] + 2, "the spike"
    assert losses[-1] < losses[0] / 2
    bars = next((demo.folder / "work").glob("finetune-lora-*.err")).read_bytes()
    assert bars.count(b"\r") > 100
    assert b"\x1b[32m" in bars

    demo.end()
    assert not demo.folder.exists()
    wait_until("its processes to be gone", lambda: not processes_of(demo.folder))


def test_the_training_obeys_its_switches(demo: Demo) -> None:
    wait_until("the training", lambda: "iteration      600" in demo.output("train-7b"))
    (demo.folder / "work" / "train-7b.save").touch()
    wait_until(
        "the save switch",
        lambda: "save switch seen: checkpoint saved at step" in demo.output("train-7b"),
    )
    assert not (demo.folder / "work" / "train-7b.save").exists()
    (demo.folder / "work" / "train-7b.kill").touch()
    wait_until("the kill switch", lambda: demo.jobs()["train-7b"][0]["state"] == "completed")
    assert re.search(
        r"kill switch seen: checkpoint saved at step \d+, ending\n$", demo.output("train-7b")
    )
    assert (demo.folder / "work" / "train-7b.kill").exists()
    # What waited for it goes on.
    wait_until("the one after it", lambda: demo.jobs()["evaluate"][0]["state"] == "completed")


def test_it_says_why_it_cannot_begin_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    (folder / "queue").mkdir(parents=True)
    one = Demo(folder)
    assert "File exists" in one.said
    one.end()
    assert not folder.exists()


def test_it_outlives_the_signals_of_a_terminal_and_still_tidies_up(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    one = Demo(tmp_path / "demo")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(one.process.pid, number)
    one.end()
    assert one.process.returncode == 0
    assert not one.folder.exists()
    wait_until("its processes to be gone", lambda: not processes_of(one.folder))


@pytest.mark.parametrize(
    "ended", ["hpcdash.embedded.demo ", "hpcdash.embedded", ""], ids=["its queue", "jobs", "files"]
)
def test_what_is_left_of_one_that_was_killed_goes_at_the_next(tmp_path: Path, ended: str) -> None:
    killed = Demo(own_folder(tmp_path / "hpcdash-demo-killed"))
    wait_until("the training", lambda: "iteration" in killed.output("train-7b"))
    # The queue starts jobs meanwhile.
    while found := [
        process for process, words in processes_of(killed.folder).items() if ended in words
    ]:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert killed.process.wait() == -signal.SIGKILL
    killed.end()
    assert bool(processes_of(killed.folder)) == bool(ended)

    following = Demo(own_folder(tmp_path / "hpcdash-demo-next"))
    try:
        assert following.said == READY
        wait_until("the folder to be gone", lambda: not killed.folder.exists())
        wait_until("its processes to be gone", lambda: not processes_of(killed.folder))
        assert following.jobs()
    finally:
        following.end()
    assert os.listdir(tmp_path) == []


def test_one_that_is_shown_and_what_is_nobody_s_demonstration_stay(tmp_path: Path) -> None:
    shown = os.open(own_folder(tmp_path / "hpcdash-demo-shown"), os.O_RDONLY)
    fcntl.flock(shown, fcntl.LOCK_EX)
    (own_folder(tmp_path / "target") / "file").touch()
    (tmp_path / "hpcdash-demo-link").symlink_to("target")
    (tmp_path / "hpcdash-demo-file").touch()
    own_folder(tmp_path / "hpcdash-demo-open").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(own_folder(tmp_path / "hpcdash-demo-other"), 65534, 65534)
    own_folder(tmp_path / "hpcdash-demo-killed")
    stays = set(os.listdir(tmp_path)) - {"hpcdash-demo-killed"}

    following = Demo(own_folder(tmp_path / "hpcdash-demo-next"))
    try:
        wait_until(
            "the one that is left to be gone",
            lambda: not (tmp_path / "hpcdash-demo-killed").exists(),
        )
        wait_until("the look at all to be over", lambda: not is_looking(following.process.pid))
    finally:
        following.end()
        os.close(shown)
    assert set(os.listdir(tmp_path)) == stays
    assert (tmp_path / "target" / "file").exists()
