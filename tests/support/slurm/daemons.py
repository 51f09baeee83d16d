"""Starts daemons, records their pids, and ends only what it recorded."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.waiting import wait_until

_LOG_LINES = 15
# A slurmctld that was killed leaves its slurmscriptd, which is the same program.
_LEFT_BEHIND = ("slurmstepd", "slurmctld", "slurmd")


class LabError(RuntimeError):
    """The lab could not do what was asked; the message quotes the log or the command that says
    why.
    """


def log_tail(*logs: Path) -> str:
    """The last lines of each log that has any, under its name."""
    parts = []
    for log in logs:
        if log.is_file() and (lines := log.read_text(errors="replace").splitlines()[-_LOG_LINES:]):
            parts.append("\n".join((f"--- the end of {log}", *lines)))
    return "\n".join(parts)


class Daemons:
    """Daemons by name.

    `RUN/pid/NAME` holds a pid and its start time, so a pid used again is not taken for ours.
    """

    def __init__(self, run_dir: Path) -> None:
        self._pid_dir = run_dir / "pid"
        self._log_dir = run_dir / "log"
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Run `argv` in a session of its own; it prints to `RUN/log/NAME.out`.

        Running already: nothing to do.
        """
        if self.pid(name) is not None:
            return
        with (self._log_dir / f"{name}.out").open("ab") as output:
            child = subprocess.Popen(
                argv,
                env=dict(env),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._children[name] = child
        (self._pid_dir / name).write_text(f"{child.pid} {_start_ticks(child.pid)}\n")

    def pid(self, name: str) -> int | None:
        """The pid of a daemon that is alive; None: never started, ended, or its pid belongs to
        another process now.
        """
        child = self._children.get(name)
        if child is not None and child.poll() is not None:
            return None
        try:
            pid, ticks = (int(word) for word in (self._pid_dir / name).read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _start_ticks(pid) == ticks else None

    def evidence(self, name: str) -> str:
        """The end of the daemon's own log and of what it printed."""
        return log_tail(self._log_dir / f"{name}.log", self._log_dir / f"{name}.out")

    def wait_ready(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a daemon answers; fail at once, with its log, when it has ended."""

        def ready_or_ended() -> bool:
            if self.pid(name) is None:
                raise LabError(f"{name} ended while starting\n{self.evidence(name)}")
            return ready()

        wait_until(f"{name} to answer", ready_or_ended, lambda: self.evidence(name))

    def stop(self, names: Iterable[str], seconds: float = 15) -> None:
        """TERM all, wait, KILL what is left after `seconds`."""
        running = {name: pid for name in names if (pid := self.pid(name)) is not None}
        for pid in running.values():
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
        try:
            wait_until(
                "daemons to end",
                lambda: not any(self.pid(name) for name in running),
                seconds=seconds,
            )
        except AssertionError:
            for name in running:
                self.send(name, signal.SIGKILL)
            wait_until(
                f"{', '.join(running)} to die", lambda: not any(self.pid(name) for name in running)
            )
        for name in running:
            (self._pid_dir / name).unlink(missing_ok=True)
            if name in self._children:
                self._children.pop(name).wait()

    def send(self, name: str, signal_number: signal.Signals) -> None:
        """Send a signal to a daemon that is alive."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal_number)


def kill_leftovers(run_dir: Path, conf: Path) -> list[int]:
    """Kill what the daemons of the lab in `run_dir` left behind, and answer the pids.

    To be called after stop(). They are Slurm's own processes with a file open below `run_dir`,
    processes whose environment names `conf` and a job, and the descendants of both.
    """
    ours = {pid for pid in _pids() if _is_slurm_process(pid, run_dir) or _is_job_process(pid, conf)}
    parents = {pid: _parent(pid) for pid in _pids()}
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in ours and pid not in ours}
        ours |= children
        grown = bool(children)
    for pid in sorted(ours):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_until("what was left behind to die", lambda: not any(_start_ticks(pid) for pid in ours))
    return sorted(ours)


def _pids() -> Iterator[int]:
    return (
        int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()
    )


def _stat_fields(pid: int) -> list[str]:
    # The command's name, in parentheses, may hold spaces: the fields are counted from after it.
    # Field 3 comes first.
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _start_ticks(pid: int) -> int:
    """When a live process started, in clock ticks after boot; 0 for one that is gone or a
    zombie.
    """
    fields = _stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def _parent(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else 0


def _is_slurm_process(pid: int, run_dir: Path) -> bool:
    try:
        if Path(os.readlink(f"/proc/{pid}/exe")).name not in _LEFT_BEHIND:
            return False
        links = [
            os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")
        ]
    except OSError:
        return False
    return any(link.startswith(f"{run_dir}/") for link in links)


def _is_job_process(pid: int, conf: Path) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"SLURM_CONF=" + os.fsencode(conf) in variables and any(
        v.startswith(b"SLURM_JOB_ID=") for v in variables
    )
