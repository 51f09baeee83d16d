"""The keeper of a job: starts its script, enforces its limit, ends its processes, records its end.

A keeper is a fork of the supervisor in its own session: it survives the supervisor, and records the
job's end for the next one. It never opens the queue's database.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from hpcdash.embedded import processes
from hpcdash.embedded.job import JobSignal
from hpcdash.embedded.record import TERMINATED, Begun, Ended, note_begun, note_ended

_PR_SET_CHILD_SUBREAPER = 36
# Signals that a keeper waits for, or that a terminal or a person may send: none ends it.
NOTICED = frozenset(
    {signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1}
)
# Pause between attempts to record a job's end on a full disk.
_RETRY_SECONDS = 1.0
# A process that ignores SIGKILL for this time hangs in the kernel: the job's end is reported.
_KILLED_SECONDS = 5.0
# Limit of the grace time for processes that a script leaves running.
_LEFT_SECONDS = 2.0
_CANNOT_RUN = 126 << 8
_SAMPLE_SECONDS = 15.0
# Linux counts a process's peak memory in KiB, macOS in bytes.
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Work:
    """Script to run, with its files and limits.

    A `stderr` of None goes into stdout's file; `boot` identifies the start of the machine.
    """

    script: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    work_dir: str
    stdout: str
    stderr: str | None
    stdin: str
    append: bool
    limit_seconds: int | None
    early: JobSignal | None
    grace_seconds: float
    boot: str
    umask: int


def keep(work: Work, record: int) -> NoReturn:
    """Run in a fresh fork with NOTICED blocked, and exit; `record` is the locked descriptor."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        processes.close_from(3, [record])
        _Keeper(work, record, has_all=adopt_orphans()).run()
        os._exit(0)
    finally:
        # It must never continue as a second supervisor.
        os._exit(1)


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent exits; False if this is not Linux."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


class _Keeper:
    def __init__(self, work: Work, record: int, *, has_all: bool) -> None:
        self.work = work
        # Whether all processes of the script stay below this process.
        self.has_all = has_all
        self.record = record
        self.started_at = time.monotonic()
        self.why = ""
        self.pid = 0
        self.status: int | None = None
        self.peak_bytes = 0
        # Processes that were sent TERM, each only once.
        self.terminated: set[int] = set()
        # End of the grace time of terminated processes.
        self.grace_ends_at = 0.0
        # Next steps, with their monotonic time, in order.
        self.due: list[tuple[float, str]] = []

    def run(self) -> None:
        problem = self._start()
        if problem:
            self._record(Ended(_CANNOT_RUN, time.time(), 0.0, problem=problem))
            return
        if self.work.limit_seconds is not None:
            self._at(self.work.limit_seconds, "limit")
            if self.work.early is not None:
                self._at(max(0.0, self.work.limit_seconds - self.work.early.seconds), "early")
        self._at(1.0, "sample")
        while self.status is None:
            self._wait()
        elapsed = time.monotonic() - self.started_at
        left_behind = self._end_remaining()
        times = os.times()
        self._record(
            Ended(
                status=self.status,
                at=time.time(),
                elapsed=elapsed,
                why=self.why,
                cpu_seconds=times.children_user + times.children_system,
                peak_bytes=self.peak_bytes,
                left_behind=left_behind,
            )
        )

    def _at(self, seconds: float, step: str) -> None:
        self.due = sorted([*self.due, (self.started_at + seconds, step)])

    # -- starting

    def _start(self) -> str:
        """Start the script; return the problem or ''."""
        work = self.work
        try:
            os.umask(work.umask)
            os.chdir(work.work_dir)
        except OSError as error:
            return f"cannot change to {work.work_dir}: {error.strerror}"
        try:
            stdin = _open_without_waiting(work.stdin or os.devnull, os.O_RDONLY)
        except OSError as error:
            return f"cannot read {work.stdin}: {error.strerror}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if not work.append:
            flags |= os.O_TRUNC
        path = work.stdout
        try:
            stdout = _open_without_waiting(path, flags)
            path = work.stderr or path
            stderr = os.dup(stdout) if work.stderr is None else _open_without_waiting(path, flags)
        except OSError as error:
            return f"cannot write {path}: {error.strerror}"
        # The script waits until its pid is on the disk, so that it is never started again.
        gate_read, gate_write = os.pipe()
        # The exec closes this pipe, or else the child sends its errno through it.
        failed_read, failed_write = os.pipe()
        try:
            self.pid = os.fork()
        except OSError as error:
            return f"cannot start a process: {error.strerror}"
        if self.pid == 0:
            _become_script(work, (stdin, stdout, stderr), gate_read, gate_write, failed_write)
        for descriptor in (stdin, stdout, stderr, gate_read, failed_write):
            os.close(descriptor)
        try:
            note_begun(self.record, Begun(self.pid, os.getpid(), work.boot))
        except OSError as error:
            os.close(gate_write)
            os.waitpid(self.pid, 0)
            return f"cannot record the start in the queue: {error.strerror}"
        # The status of a child that was killed already reports that.
        with suppress(BrokenPipeError):
            os.write(gate_write, b"go")
        os.close(gate_write)
        number = os.read(failed_read, 16)
        os.close(failed_read)
        if number:
            os.waitpid(self.pid, 0)
            return _why_not_run(work.script, int(number))
        return ""

    # -- running

    def _wait(self) -> None:
        """Do the steps that are due, and handle the next signal."""
        now = time.monotonic()
        while self.due and self.due[0][0] <= now:
            _, step = self.due.pop(0)
            self._do(step)
        if self.due:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, self.due[0][0] - time.monotonic()))
        number = signal.sigwait(NOTICED)
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGTERM:
            self._end(TERMINATED)

    def _do(self, step: str) -> None:
        if step == "early" and self.work.early is not None:
            recipients = [self.pid]
            if not self.work.early.to_batch:
                recipients = [pid for pid in self._all() if pid != self.pid]
            processes.send(recipients, self.work.early.number)
        elif step == "limit":
            self._end("limit")
        elif step == "kill":
            processes.send(self._all(), signal.SIGKILL)
        elif step == "sample":
            _, resident = processes.usage(self._all())
            self.peak_bytes = max(self.peak_bytes, resident)
            self._at(time.monotonic() - self.started_at + _SAMPLE_SECONDS, "sample")

    def _end(self, why: str) -> None:
        """Terminate all processes, and kill them after the grace time."""
        self.why = self.why or why
        self._terminate(self._all())
        self.grace_ends_at = self.grace_ends_at or time.monotonic() + self.work.grace_seconds
        self._at(self.grace_ends_at - self.started_at, "kill")

    def _terminate(self, pids: list[int]) -> None:
        processes.send(pids, signal.SIGTERM)
        # A stopped process receives TERM only once it continues.
        processes.send(pids, signal.SIGCONT)
        self.terminated.update(pids)

    def _all(self) -> list[int]:
        return processes.descendants(os.getpid()) or processes.group(self.pid)

    def _reap(self) -> bool:
        """Reap the children that exited; return whether there are others."""
        while True:
            try:
                pid, status, used = os.wait3(os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * _MAXRSS_BYTES)
            if pid == self.pid:
                self.status = status

    def _end_remaining(self) -> int:
        """End the processes that the script left running; return how many cannot be killed."""
        grace_seconds = min(self.work.grace_seconds, _LEFT_SECONDS)
        grace_ends_at = self.grace_ends_at or time.monotonic() + grace_seconds
        while True:
            has_children = self._reap()
            if self.has_all and not has_children:
                return 0
            remaining = self._all()
            now = time.monotonic()
            if not remaining or now > grace_ends_at + _KILLED_SECONDS:
                return len(remaining)
            if now > grace_ends_at:
                processes.send(remaining, signal.SIGKILL)
            else:
                self._terminate([pid for pid in remaining if pid not in self.terminated])
            # The exit of a process that is not a child does not send a signal.
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            signal.sigwait(NOTICED)

    def _record(self, ended: Ended) -> None:
        while True:
            try:
                note_ended(self.record, ended)
            except OSError:
                time.sleep(_RETRY_SECONDS)
            else:
                return


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a job's file; raises OSError for a FIFO whose other end is not open."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _become_script(
    work: Work, standard: tuple[int, int, int], gate_read: int, gate_write: int, failed_write: int
) -> NoReturn:
    """Replace the child by the script."""
    try:
        os.setsid()
        os.close(gate_write)
        if os.read(gate_read, 2) != b"go":
            os._exit(1)
        for target, descriptor in enumerate(standard):
            os.dup2(descriptor, target)
        processes.default_signals()
        environment = {**work.environment, "SLURM_TASK_PID": str(os.getpid())}
        os.execve(work.script, [work.script, *work.arguments], environment)
    except OSError as error:
        os.write(failed_write, str(error.errno).encode())
    finally:
        os._exit(126)


def _why_not_run(script: str, number: int) -> str:
    """Return the reason why the system does not run a script, with its interpreter."""
    if number == errno.E2BIG:
        return "the arguments and environment are too large for this system"
    with open(script, "rb") as stream:
        first_line = stream.readline(1000)
    interpreter = first_line.removeprefix(b"#!").strip().split(None, 1)[:1] or [b"#!"]
    return f"cannot run {os.fsdecode(interpreter[0])}: {os.strerror(number)}"


def split_exit(status: int) -> tuple[int, int]:
    """Return the (exit code, signal) of a wait status."""
    if os.WIFSIGNALED(status):
        return 0, os.WTERMSIG(status)
    return os.waitstatus_to_exitcode(status), 0
