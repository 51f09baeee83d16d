"""Starts one attempt at a job: what its keeper needs to know, its record, the fork. Decides nothing."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from hpcdash.local.environment import job_environment
from hpcdash.local.job import Job
from hpcdash.local.keeper import NOTICED, Work, keep
from hpcdash.local.machine import Machine, user_name
from hpcdash.local.paths import output_paths, script_path
from hpcdash.local.record import Record
from hpcdash.local.store import QueueStore


@dataclass(slots=True)
class Attempt:
    """An attempt whose keeper was there when last looked: its record, and the keeper's pid (0: not known yet).

    `is_child`: its end is told by SIGCHLD; else by `pidfd`, or where there is none by looking.
    """

    job: Job
    record: Record
    pid: int
    pidfd: int | None = None
    is_child: bool = True

    @property
    def tells_its_end(self) -> bool:
        return self.is_child or self.pidfd is not None

    def forget_keeper(self) -> None:
        """Its keeper is not there any more."""
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd, self.is_child = None, False


def start_attempt(store: QueueStore, job: Job, machine: Machine, *, boot: str, shims: str) -> Attempt:
    """Start a job that the store has as begun; raises OSError where there is no room for it, with nothing started."""
    record = Record(store.folder, job.id, job.attempt)
    work = _work(store, job, machine, boot=boot, shims=shims)
    descriptor = record.create()
    try:
        # The keeper must not be ended by what it is to take note of.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICED)
        try:
            pid = os.fork()
            if pid == 0:
                keep(work, descriptor)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except OSError:
        record.forget()
        raise
    finally:
        os.close(descriptor)
    return Attempt(job, record, pid)


def found_attempt(job: Job, record: Record) -> Attempt:
    """An attempt that an earlier supervisor started and whose keeper lives."""
    begun, _ = record.read()
    pid = begun.keeper if begun else 0
    return Attempt(job, record, pid, _pidfd(pid), is_child=False)


def _work(store: QueueStore, job: Job, machine: Machine, *, boot: str, shims: str) -> Work:
    submission = store.submission(job.number)
    request = submission.request
    user = user_name()
    stdout, stderr = output_paths(job, submission, machine.node, user)
    return Work(
        script=str(_script_file(store, job.number)),
        arguments=submission.arguments,
        environment=job_environment(
            job,
            submission,
            machine,
            inherited=store.environment(job.number),
            user=user,
            uid=os.getuid(),
            gid=os.getgid(),
            folder=store.folder,
            path_first=shims,
        ),
        work_dir=submission.work_dir,
        stdout=stdout,
        stderr=stderr,
        stdin=request.stdin,
        append=request.append,
        limit_seconds=job.limit_seconds,
        early=request.early_signal,
        grace_seconds=machine.grace_seconds,
        boot=boot,
        umask=submission.umask,
    )


def _script_file(store: QueueStore, number: int) -> Path:
    """The copy of a submission's script that its jobs run, whole on the disk."""
    path = script_path(store.folder, number)
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        unfinished = path.with_suffix(".new")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(store.script(number))
            stream.flush()
            os.fsync(descriptor)
        unfinished.replace(path)
    return path


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if pid and hasattr(os, "pidfd_open") else None
    except OSError:
        return None
