"""Keeps one job: starts its script, signals it early, ends it at its limit, ends what it leaves,
notes how it ended.

A keeper is a fork of the supervisor in a session of its own: it lives on when the supervisor is
killed, and notes the job's end where the next supervisor finds it. It never opens the queue's file.
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
from hpcdash.embedded.record import Begun, Ended, note_begun, note_ended

_PR_SET_CHILD_SUBREAPER = 36
# Signals that a keeper waits for, and that a terminal or a person may send it; handled one after
# the other, none ends it.
NOTICED = frozenset(
    {signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1}
)
# A script whose keeper cannot note its end (the disk is full) is noted as soon as that goes again.
_AGAIN_SECONDS = 1.0
# A process that ignores SIGKILL sits in the kernel: nothing more can be done, and the job's end is
# reported.
_KILLED_SECONDS = 5.0
# Longest time for processes that a script leaves running.
_LEFT_SECONDS = 2.0
_CANNOT_RUN = 126 << 8
_SAMPLE_SECONDS = 15.0
# Linux counts a process's most memory in KiB, macOS in bytes.
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Work:
    """Script to run, with its files and limits.

    `stderr` None goes into stdout's file; `boot` identifies the start of the machine.
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
    """Run in a fresh fork with NOTICED blocked, and end it: `record` is the locked record's
    descriptor.
    """
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
        # Whatever happens, it must not continue as a second supervisor.
        os._exit(1)


def adopt_orphans() -> bool:
    """Become the parent of all descendants whose own parent ends; False if this is not Linux."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


class _Keeper:
    def __init__(self, work: Work, record: int, *, has_all: bool) -> None:
        self.work = work
        # All that the script starts stays below this process, whatever it does.
        self.has_all = has_all
        self.record = record
        self.began = time.monotonic()
        self.why = ""
        self.pid = 0
        self.status: int | None = None
        self.peak_bytes = 0
        # Processes that had TERM: each ends in its own time, and is not signalled twice.
        self.told: set[int] = set()
        # End of the grace time of signalled processes.
        self.grace_over = 0.0
        # Next steps, with their monotonic time, in order.
        self.due: list[tuple[float, str]] = []

    def run(self) -> None:
        problem = self._start()
        if problem:
            self._note(Ended(_CANNOT_RUN, time.time(), 0.0, problem=problem))
            return
        if self.work.limit_seconds is not None:
            self._at(self.work.limit_seconds, "limit")
            if self.work.early is not None:
                self._at(max(0.0, self.work.limit_seconds - self.work.early.seconds), "early")
        self._at(1.0, "sample")
        while self.status is None:
            self._wait()
        elapsed = time.monotonic() - self.began
        left = self._end_rest()
        times = os.times()
        cpu_seconds = times.children_user + times.children_system
        self._note(
            Ended(
                self.status,
                time.time(),
                elapsed,
                self.why,
                "",
                cpu_seconds,
                self.peak_bytes,
                left_behind=left,
            )
        )

    def _at(self, seconds: float, what: str) -> None:
        self.due = sorted([*self.due, (self.began + seconds, what)])

    # -- starting

    def _start(self) -> str:
        """Start the script; return the problem where it cannot be started."""
        work = self.work
        try:
            os.umask(work.umask)
            os.chdir(work.work_dir)
        except OSError as error:
            return f"cannot go to {work.work_dir}: {error.strerror}"
        try:
            stdin = _opened(work.stdin or os.devnull, os.O_RDONLY)
        except OSError as error:
            return f"cannot read {work.stdin}: {error.strerror}"
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if work.append else os.O_TRUNC)
        path = work.stdout
        try:
            stdout = _opened(path, how)
            path = work.stderr or path
            stderr = os.dup(stdout) if work.stderr is None else _opened(path, how)
        except OSError as error:
            return f"cannot write {path}: {error.strerror}"
        # The script waits until its pid is on the disk: what was begun is never begun again.
        gate_read, gate_write = os.pipe()
        # It closes as the script takes the child's place; an error's number comes through it where
        # that fails.
        failed_read, failed_write = os.pipe()
        try:
            self.pid = os.fork()
        except OSError as error:
            return f"no process can be started: {error.strerror}"
        if self.pid == 0:
            _become_script(work, (stdin, stdout, stderr), gate_read, gate_write, failed_write)
        for descriptor in (stdin, stdout, stderr, gate_read, failed_write):
            os.close(descriptor)
        try:
            note_begun(self.record, Begun(self.pid, os.getpid(), work.boot))
        except OSError as error:
            os.close(gate_write)
            os.waitpid(self.pid, 0)
            return f"the queue cannot note that it began: {error.strerror}"
        # If the child was killed already, its status reports so.
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
        """Wait for the next thing to happen, and see to it."""
        now = time.monotonic()
        while self.due and self.due[0][0] <= now:
            _, what = self.due.pop(0)
            self._do(what)
        if self.due:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, self.due[0][0] - time.monotonic()))
        number = signal.sigwait(NOTICED)
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGTERM:
            self._end("told")

    def _do(self, what: str) -> None:
        if what == "early" and self.work.early is not None:
            early = self.work.early
            below = (
                [self.pid] if early.to_batch else [pid for pid in self._all() if pid != self.pid]
            )
            processes.send(below, early.number)
        elif what == "limit":
            self._end("limit")
        elif what == "kill":
            processes.send(self._all(), signal.SIGKILL)
        elif what == "sample":
            _, resident = processes.usage(self._all())
            self.peak_bytes = max(self.peak_bytes, resident)
            self._at(time.monotonic() - self.began + _SAMPLE_SECONDS, "sample")

    def _end(self, why: str) -> None:
        """TERM to all of it, and KILL after the grace."""
        self.why = self.why or why
        everything = self._all()
        processes.send(everything, signal.SIGTERM)
        # A stopped process sees no signal but KILL until it continues.
        processes.send(everything, signal.SIGCONT)
        self.told.update(everything)
        self.grace_over = self.grace_over or time.monotonic() + self.work.grace_seconds
        self._at(self.grace_over - self.began, "kill")

    def _all(self) -> list[int]:
        return processes.descendants(os.getpid()) or processes.group(self.pid)

    def _reap(self) -> bool:
        """Take in the children that ended; returns whether there are others."""
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

    def _end_rest(self) -> int:
        """End what the script left running; returns how many cannot be ended."""
        grace_over = self.grace_over or time.monotonic() + min(
            self.work.grace_seconds, _LEFT_SECONDS
        )
        while rest := self._left():
            now = time.monotonic()
            if now > grace_over + _KILLED_SECONDS:
                return len(rest)
            if now > grace_over:
                processes.send(rest, signal.SIGKILL)
            else:
                new = [pid for pid in rest if pid not in self.told]
                processes.send(new, signal.SIGTERM)
                processes.send(new, signal.SIGCONT)
                self.told.update(new)
            # A child's end wakes the wait; the end of another process does not.
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            signal.sigwait(NOTICED)
        return 0

    def _left(self) -> list[int]:
        has_children = self._reap()
        return self._all() if has_children or not self.has_all else []

    def _note(self, ended: Ended) -> None:
        while True:
            try:
                note_ended(self.record, ended)
            except OSError:
                time.sleep(_AGAIN_SECONDS)
            else:
                return


def _opened(path: str, how: int) -> int:
    """Open a job's file; a FIFO without an open other end is refused, and not waited for."""
    descriptor = os.open(path, how | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _become_script(
    work: Work, standard: tuple[int, int, int], gate_read: int, gate_write: int, failed_write: int
) -> NoReturn:
    """In the child: the script in place of this program."""
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
    """Return why the system does not run a script, with the interpreter of its first line."""
    if number == errno.E2BIG:
        return "its arguments and environment are more than this system takes"
    with open(script, "rb") as stream:
        first = stream.readline(1000)
    interpreter = first.removeprefix(b"#!").strip().split(None, 1)[:1]
    return (
        f"cannot run {os.fsdecode(interpreter[0]) if interpreter else '#!'}: {os.strerror(number)}"
    )


def split_exit(status: int) -> tuple[int, int]:
    """(exit code, signal) of a wait status."""
    if os.WIFSIGNALED(status):
        return 0, os.WTERMSIG(status)
    return os.waitstatus_to_exitcode(status), 0
