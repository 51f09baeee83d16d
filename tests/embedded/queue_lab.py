"""A real embedded queue in a folder of its own, driven by the command line; leaves no process
behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hpcdash.embedded.job import Job
from hpcdash.embedded.start import supervisor_pid
from hpcdash.embedded.store import QueueStore
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parent.parent.parent
_LOOK_SECONDS = 0.005
T = TypeVar("T")


class QueueLab:
    """`folder` is the queue's, `work` where jobs are submitted from."""

    def __init__(self, folder: Path, work: Path, **slots: float) -> None:
        self.folder = folder
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.set_slots(**{"cpus": 4, "gpus": 0, "grace_seconds": 1, **slots})
        self.environment: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "HOME": str(work),
            "PYTHONPATH": str(_ROOT),
        }
        self._store: QueueStore | None = None

    def set_slots(self, **slots: float) -> None:
        (self.folder / "slots.json").write_text(json.dumps(slots))

    # -- the command line

    @property
    def program(self) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", "hpcdash.embedded", str(self.folder))

    def run(
        self,
        *words: str | bytes,
        stdin: bytes = b"",
        cwd: Path | None = None,
        env: Mapping[str, str] | Mapping[bytes, bytes] | None = None,
        umask: int = -1,
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.program, *words],
            input=stdin,
            capture_output=True,
            cwd=cwd or self.work,
            env={**self.environment, **(env or {})},  # type: ignore[dict-item]
            umask=umask,
            check=False,
        )

    def ask(self, *words: str) -> Any:
        """The JSON a command prints."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def act(self, *words: str) -> list[dict[str, Any]]:
        """The outcomes of a command that acts, done or not."""
        done = self.run(*words)
        assert done.returncode in (0, 1), done.stderr.decode()
        return [json.loads(line) for line in done.stdout.splitlines()]

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """The rows of `jobs` or `history`."""
        columns = self.ask(*words)["columns"]
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def submit(
        self,
        body: str,
        *options: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """The id of a shell script handed in."""
        done = self.run("submit", *options, stdin=f"#!/bin/sh\n{body}\n".encode(), env=env, cwd=cwd)
        assert done.returncode == 0, done.stderr.decode()
        # Else the next command would start a second supervisor, which waits for the first one's
        # end.
        wait_until("a supervisor that listens", lambda: (self.folder / "wake").exists())
        return str(json.loads(done.stdout)["id"])

    # -- looking

    @property
    def store(self) -> QueueStore:
        if self._store is None:
            self._store = QueueStore(self.folder)
        return self._store

    def job(self, job_id: str) -> Job:
        """A job, or the task NUMBER_TASK."""
        number, _, task = job_id.partition("_")
        (job,) = self.store.find(int(number), [int(task)] if task else None)
        return job

    def wait(self, job_id: str, *states: str) -> Job:
        """The job once it is in one of some states."""

        def look() -> Job | None:
            job = self.job(job_id)
            return job if job.state in states else None

        try:
            return wait_until(f"{job_id} {states}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.job(job_id)}; {self.log()}") from None

    def ended(self, job_id: str) -> Job:
        return self.wait(job_id, "completed", "failed", "cancelled", "timeout", "gone")

    def output(self, job_id: str) -> str:
        return (self.work / f"slurm-{job_id}.out").read_text()

    def wait_for_output(self, job_id: str, words: str) -> None:
        path = self.work / f"slurm-{job_id}.out"
        wait_until(
            f"{words} in {path}",
            lambda: path.exists() and words in path.read_text(errors="replace"),
        )

    def log(self) -> str:
        path = self.folder / "supervisor.log"
        return path.read_text() if path.exists() else ""

    # -- its processes

    @property
    def supervisor(self) -> int:
        return wait_until("a supervisor", lambda: supervisor_pid(self.folder))

    def kill_supervisor(self) -> None:
        """kill -9; returns once it is gone."""
        pid = self.supervisor
        os.kill(pid, signal.SIGKILL)
        wait_until("the supervisor's end", lambda: not is_alive(pid))

    def processes(self) -> dict[int, str]:
        """pid → command line of all that belongs to this queue."""
        found = {}
        mark = os.fsencode(self.folder)
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    line = Path("/proc", name, "cmdline").read_bytes()
                    variables = Path("/proc", name, "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if mark in line or any(
                    one.startswith(b"HPCDASH_ATTEMPT=") and mark in one for one in variables
                ):
                    found[int(name)] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def end(self) -> None:
        """End all of it; fails where a process stays."""
        if self._store is not None:
            self._store.close()
        self.set_slots(cpus=1, grace_seconds=0.2)
        if not self.folder.is_dir():
            return
        numbers = sorted({str(job.number) for job in self._open_jobs()})
        if numbers:
            self.run("cancel", *numbers)
        wait_until(
            f"the jobs' ends: {self.processes()} {self.log()}",
            lambda: not any((self.folder / "attempts").glob("*")),
        )
        try:
            wait_until("an end of all processes", self._is_over)
        except AssertionError:
            left = self.processes()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"the queue left processes behind: {left}") from None

    def _is_over(self) -> bool:
        # One that was just being started may come after the one that is ended.
        if (pid := supervisor_pid(self.folder)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return not self.processes()

    def _open_jobs(self) -> Sequence[Job]:
        store = QueueStore(self.folder)
        try:
            return store.jobs("state IN ('pending', 'running', 'suspended', 'completing')")
        finally:
            store.close()


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
