"""A shared pool with its coordinator as a process, and trainings in it that write down each step
they take.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until


class SharedPool(ABC):
    """`folder` is for the coordinator's words; it publishes in `published`.

    A training works in `work(name)`: it writes `start` to `starts` as it begins and each step's
    number to `steps`, goes on from `saved`, and ends once there is `enough`.
    """

    published: Path

    def __init__(self, folder: Path) -> None:
        self.log = folder / "coordinator.log"
        self.coordinator: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def coordinator_call(self, *words: str) -> tuple[Sequence[str], Path, Mapping[str, str] | None]:
        """(argv, folder, environment) of `hpcdash share WORDS` as the account that coordinates."""

    @abstractmethod
    def work(self, name: str) -> Path: ...

    @abstractmethod
    def add(self, name: str, *, is_hot: bool = False) -> object:
        """Submit a task, of which two fit and a third one waits; a hot one has a higher
        priority.
        """

    # -- the coordinator

    def start(self, *words: str) -> None:
        argv, folder, environment = self.coordinator_call("run", *(words or ("lab",)))
        with self.log.open("ab") as log:
            self.coordinator = subprocess.Popen(
                argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv, folder, environment = self.coordinator_call(*words)
        return subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    def kill(self) -> None:
        if self.coordinator is not None:
            self.coordinator.kill()
            self.coordinator.wait()

    # -- its tasks

    def tasks(self) -> dict[str, dict[str, Any]]:
        """As published, by name."""
        if not self.published.exists():
            return {}
        return {one["name"]: one for one in json.loads(self.published.read_text())["tasks"]}

    def states(self) -> dict[str, str]:
        return {name: one["state"] for name, one in self.tasks().items()}

    def until(self, **wanted: str) -> dict[str, dict[str, Any]]:
        """Wait until tasks are in these states; all tasks."""
        wait_until(
            f"{wanted}",
            lambda: wanted.items() <= self.states().items(),
            lambda: f"{self.states()}\n{self.log.read_text()}\n{self.queue()}",
        )
        return self.tasks()

    def queue(self) -> str:
        """What the scheduler says, for whoever reads why a test failed."""
        return ""

    def enough(self, *names: str) -> None:
        for name in names:
            (self.work(name) / "enough").touch()

    def steps(self, name: str) -> list[int]:
        file = self.work(name) / "steps"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def assert_nothing_lost(self, *names: str) -> None:
        """Each step was taken once, however often the task was interrupted, and each run was
        noted.
        """
        tasks = self.tasks()
        for name in names:
            task, steps = tasks[name], self.steps(name)
            assert steps == list(range(1, len(steps) + 1)), task
            starts = (self.work(name) / "starts").read_text().split()
            *hows, end = [run["how"] for run in task["runs"]]
            assert len(starts) == len(hows) + 1, (task, self.log.read_text())
            assert (end, set(hows) <= {"suspended", "paused", "yielded"}) == ("succeeded", True), (
                task
            )
            assert task["suspended"] == len(hows) - hows.count("paused"), task

    def kill_often(self, kills: int, pause_seconds: tuple[float, float]) -> None:
        """A coordinator that is killed again and again, while a task of higher priority comes and
        goes.
        """
        chance = random.Random(kills)
        names = ("one", "two", "three")
        for name in names:
            self.add(name)
        self.start()
        self.until(one="running", two="running", three="waiting")
        hot = 0
        for number in range(kills):
            if number % 3 == 0:
                hot += 1
                self.add(f"hot{hot}", is_hot=True)
            if number % 3 == 2:
                self.enough(f"hot{hot}")
            time.sleep(chance.uniform(*pause_seconds))
            self.kill()
            self.start()
        hots = [f"hot{number}" for number in range(1, hot + 1)]
        self.enough(*hots)
        self.until(**dict.fromkeys(hots, "succeeded"))
        self.enough(*names)
        tasks = self.until(**dict.fromkeys(names, "succeeded"))
        self.assert_nothing_lost(*names)
        assert sum(tasks[name]["suspended"] for name in names) >= 1
