"""The process that starts the queue's jobs and records their ends; it exits when it is idle."""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.embedded import processes
from hpcdash.embedded.database import StoreUnusable
from hpcdash.embedded.environment import job_environment, mark
from hpcdash.embedded.job import ACTIVE, HOLD, Job
from hpcdash.embedded.keeper import NOTICED, Work, keep, split_exit
from hpcdash.embedded.machine import Machine, boot_id, slots_stamp, this_machine, user_name
from hpcdash.embedded.record import TERMINATED, Begun, Ended, Record, records
from hpcdash.embedded.scheduling import free_slots, startable
from hpcdash.embedded.script import signal_number
from hpcdash.embedded.start import drain, lock, open_wake, wake
from hpcdash.embedded.store import QueueStore, output_paths, script_path
from hpcdash.errors import ConfigError, HpcdashError
from hpcdash.private_files import atomic_write

_STATES = {"suspend": "suspended", "resume": "running"}
_REQUEUE_HELD = "requeue held"
_UNKNOWN = "end not observed: exit status unknown"
# The next submission starts faster within this time.
_IDLE_SECONDS = 20.0
# Pause after a failure, such as a full disk or a locked database.
_RETRY_SECONDS = 1.0
# Interval of checks for a keeper that cannot report its end.
_POLL_SECONDS = 0.5
# Interval of calls to a job that is starting.
_STARTING_SECONDS = 0.02
# A change of the clock is noticed within this time.
_MAX_PAUSE_SECONDS = 60.0
_MAX_STARTS_PER_TURN = 16
_LOG_BYTES = 1 << 20
_RETENTION_SECONDS = 60 * 86400.0
_LOCK_SECONDS = 5.0


@dataclass(slots=True)
class RunningAttempt:
    """An attempt whose keeper existed at the last check; `pid` is the keeper's, 0 if unknown.

    Its end is reported by SIGCHLD (`is_child`) or by `pidfd`, or found by checks.
    """

    job: Job
    record: Record
    pid: int
    pidfd: int | None = None
    is_child: bool = True

    @property
    def reports_end(self) -> bool:
        return self.is_child or self.pidfd is not None

    def forget_keeper(self) -> None:
        """Note that its keeper no longer exists."""
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd = None
        self.is_child = False


def start_attempt(
    store: QueueStore, job: Job, machine: Machine, *, boot: str, shims: str
) -> RunningAttempt:
    """Start a job that the store has as running; raises OSError if there is no room for it."""
    record = Record(store.folder, job.id, job.attempt)
    work = _work(store, job, machine, boot=boot, shims=shims)
    descriptor = record.create()
    try:
        # The signals that a keeper handles must not end it.
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
    return RunningAttempt(job, record, pid)


def found_attempt(job: Job, record: Record) -> RunningAttempt:
    """Build the attempt of an earlier supervisor, whose keeper lives."""
    begun, _ = record.read()
    pid = begun.keeper if begun else 0
    pidfd = None
    if pid and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
    return RunningAttempt(job, record, pid, pidfd, is_child=False)


def _work(store: QueueStore, job: Job, machine: Machine, *, boot: str, shims: str) -> Work:
    submission = store.submission(job.number)
    request = submission.request
    user = user_name()
    stdout, stderr = output_paths(job, submission, machine.node, user)
    script = script_path(store.folder, job.number)
    if not script.exists():
        script.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_write(script, store.script(job.number), mode=0o700)
    return Work(
        script=str(script),
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


def answer_calls(store: QueueStore, attempts: Mapping[int, RunningAttempt]) -> bool:
    """Answer the open calls; return whether some must wait, as their jobs are starting.

    A job's end is recorded before its keeper is signalled, so a call that stays open is applied
    again.
    """
    must_wait = False
    for call_id, job_id, verb, argument in store.open_calls():
        attempt = attempts.get(job_id)
        if attempt is None:
            problem = _apply_to_inactive(store, job_id, verb, argument)
        else:
            begun, _ = attempt.record.read()
            if begun is None:
                must_wait = True
                continue
            problem = _apply_to_running(store, job_id, begun, verb, argument)
        with store.writing():
            if attempt is not None and not problem and verb in _STATES:
                store.set_state(job_id, _STATES[verb])
            store.answer_call(call_id, not problem, problem)
    return must_wait


def _apply_to_inactive(store: QueueStore, job_id: int, verb: str, argument: str) -> str:
    """Apply a call to a job that no longer runs; return the problem or ''."""
    job = store.job(job_id)
    if job is not None and job.state == "pending":
        if verb == "cancel":
            with store.writing():
                now = time.time()
                store.end(job_id, "cancelled", now=now, elapsed=0.0, exit_code=0, exit_signal=0)
                store.update_dependents(job.number)
            return ""
        if argument == HOLD:
            with store.writing():
                store.set_held(job_id, True)
        if verb == "requeue":
            return ""
    if job is not None and job.state == "cancelled" and verb == "cancel":
        return ""
    return "no longer running"


def _apply_to_running(
    store: QueueStore, job_id: int, begun: Begun, verb: str, argument: str
) -> str:
    """Apply a call to a running job; return the problem or ''."""
    job = store.job(job_id)
    if job is None:
        return "no such job in this queue"

    def job_processes() -> list[int]:
        return processes.descendants(begun.keeper) or processes.group(begun.pid)

    if verb in ("cancel", "requeue"):
        if verb == "requeue" and not store.submission(job.number).request.requeue:
            return "submitted with --no-requeue"
        with store.writing():
            store.set_state(job.id, "completing", _REQUEUE_HELD if argument == HOLD else verb)
        processes.send([begun.keeper], signal.SIGTERM)
    elif verb == "suspend":
        # A second suspend stops processes that a signal has resumed.
        if job.state not in ("running", "suspended"):
            return f"it is {job.state}"
        processes.stop(job_processes)
    elif verb == "resume":
        if job.state != "suspended":
            return f"it is {job.state}, not suspended"
        processes.send(job_processes(), signal.SIGCONT)
    elif verb == "signal":
        name, _, recipient = argument.partition(" ")
        recipients = job_processes()
        if recipient == "batch":
            recipients = [begun.pid]
        elif recipient != "full":
            recipients = [pid for pid in recipients if pid != begun.pid]
        if not recipients:
            return "no steps, only the batch shell"
        number = signal_number(name)
        if number == signal.SIGKILL and recipient == "full":
            # This ends the whole job, which did not fail.
            with store.writing():
                store.set_state(job.id, "completing", "cancel")
        processes.send(recipients, number)
    return ""


def record_end(store: QueueStore, job: Job, record: Record, *, had_keeper: bool) -> None:
    """Record the end of an attempt without a keeper, then remove its record.

    `had_keeper`: its keeper is known to have existed, even if its record was lost.
    """
    begun, ended = record.read()
    was_started = begun is not None or ended is not None or (had_keeper and not record.exists)
    if ended is None and was_started:
        # Its keeper was killed, so its remaining processes have no owner.
        processes.send(processes.marked(mark(store.folder, job)), signal.SIGKILL)
    with store.writing():
        current = store.job(job.id)
        if current is not None and current.attempt == job.attempt and current.state in ACTIVE:
            if was_started or current.wanted == "cancel":
                _store_end(store, current, ended)
                store.update_dependents(job.number)
            else:
                # The supervisor ended before it started the script.
                store.put_back(job.id, restarted=False, held=current.wanted == _REQUEUE_HELD)
    record.forget()


def _store_end(store: QueueStore, job: Job, ended: Ended | None) -> None:
    # A job that exited before its keeper was signalled is not requeued held.
    if job.wanted == _REQUEUE_HELD and (ended is None or ended.why == TERMINATED):
        store.put_back(job.id, restarted=True, held=True)
    elif job.wanted == "requeue":
        store.put_back(job.id, restarted=True)
    elif ended is None:
        state = "cancelled" if job.wanted == "cancel" else "gone"
        store.end(job.id, state, now=time.time(), reason=_UNKNOWN)
    else:
        code, number = split_exit(ended.status)
        reason = ended.problem or None
        if ended.why == TERMINATED and job.wanted is None:
            reason = "another program stopped its keeper"
        if ended.left_behind:
            reason = f"{ended.left_behind} of the job's processes cannot be killed"
        store.end(
            job.id,
            _state(job, ended),
            now=ended.at,
            elapsed=ended.elapsed,
            exit_code=code,
            exit_signal=number,
            reason=reason,
            cpu_seconds=ended.cpu_seconds,
            peak_bytes=ended.peak_bytes,
        )


def _state(job: Job, ended: Ended) -> str:
    if job.wanted == "cancel" or ended.why == TERMINATED:
        return "cancelled"
    if ended.why == "limit":
        return "timeout"
    return "completed" if ended.status == 0 else "failed"


@dataclass(slots=True)
class Supervisor:
    """Owns the queue in a folder while it holds the lock."""

    folder: Path
    store: QueueStore
    machine: Machine
    shims: str = ""
    boot: str = field(default_factory=boot_id)
    attempts: dict[int, RunningAttempt] = field(default_factory=dict)
    # Whether jobs that run in the store may lack an attempt: at the start, and after a failure.
    needs_recovery: bool = True
    stamp: tuple[int, ...] = ()
    last_error: str = ""

    def run(self) -> None:
        """Run until idle. SIGTERM ends it at once; the jobs continue."""
        signal_read, signal_write = os.pipe()
        os.set_blocking(signal_read, False)
        os.set_blocking(signal_write, False)
        signal.set_wakeup_fd(signal_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        woken = open_wake(self.folder)
        idle_since: float | None = None
        while True:
            pidfds = []
            try:
                pause = self.turn()
                self.last_error = ""
                has_attempts = self.needs_recovery or self.attempts
                is_idle = not has_attempts and not self.store.has_work()
                pidfds = [one.pidfd for one in self.attempts.values() if one.pidfd is not None]
            except (StoreUnusable, OSError) as error:
                self.log(str(error))
                if not self.store.path.exists():
                    return
                self.needs_recovery = True
                pause = _RETRY_SECONDS
                is_idle = False
            if is_idle:
                now = time.monotonic()
                idle_since = idle_since or now
                pause = idle_since + _IDLE_SECONDS - now
                if pause <= 0:
                    # Calls before this point are in the store, and later ones start another
                    # supervisor.
                    os.close(woken)
                    if not self.store.has_work():
                        return
                    woken = open_wake(self.folder)
                    continue
            else:
                idle_since = None
            select.select([woken, signal_read, *pidfds], [], [], pause)
            drain(woken)
            drain(signal_read)

    def log(self, text: str) -> None:
        """Log a text, unless it was the last one or the disk is full."""
        if text != self.last_error:
            self.last_error = text
            try:
                print(time.strftime("%Y-%m-%dT%H:%M:%S"), text, file=sys.stderr, flush=True)
            except OSError:
                return

    def turn(self) -> float | None:
        """Do everything due now; return the seconds until the next turn (None: until woken).

        Raises StoreUnusable and OSError; another turn then does the rest.
        """
        if self.needs_recovery:
            self.needs_recovery = not self.recover()
        self.reap()
        pauses = []
        if answer_calls(self.store, self.attempts):
            pauses.append(_STARTING_SECONDS)
        self.start()
        if self.needs_recovery or not all(one.reports_end for one in self.attempts.values()):
            pauses.append(_POLL_SECONDS)
        now = time.time()
        if (next_begin := self.store.next_begin(now)) is not None:
            pauses.append(min(_MAX_PAUSE_SECONDS, next_begin - now))
        return min(pauses, default=None)

    # -- recovery

    def recover(self) -> bool:
        """Take over the jobs that run in the store, whether or not their keepers live.

        Returns False while a dying process still holds the lock of a finished job's record.
        """
        for job in self.store.active_jobs():
            if job.id not in self.attempts:
                record = Record(self.folder, job.id, job.attempt)
                if record.has_keeper():
                    self.attempts[job.id] = found_attempt(job, record)
                else:
                    record_end(self.store, job, record, had_keeper=False)
        known = {one.record.path for one in self.attempts.values()}
        is_complete = True
        for record in records(self.folder):
            if record.path in known:
                continue
            if record.has_keeper():
                is_complete = False
            else:
                record.forget()
        for number in self.store.forget_before(time.time() - _RETENTION_SECONDS):
            script_path(self.folder, number).unlink(missing_ok=True)
        return is_complete

    # -- finished jobs

    def reap(self) -> None:
        """Record the ends of attempts."""
        ended = set()
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                ended.add(pid)
        for job_id, attempt in list(self.attempts.items()):
            if attempt.record.has_keeper():
                if attempt.pid in ended:
                    # It was killed, and the child that it had just forked still has the lock.
                    attempt.forget_keeper()
                continue
            record_end(self.store, attempt.job, attempt.record, had_keeper=True)
            attempt.forget_keeper()
            del self.attempts[job_id]

    # -- starting

    def start(self) -> None:
        """Start the jobs that fit."""
        self.reread_slots()
        now = time.time()
        slots = free_slots(self.store, self.machine)
        chosen = list(startable(self.store, slots, self.machine, now, _MAX_STARTS_PER_TURN))
        if not chosen:
            return
        begun: list[Job] = []
        clock = time.monotonic()
        with self.store.writing():
            for job, gpu_ids in chosen:
                started = self.store.begin(
                    job, gpu_ids=gpu_ids, now=now, clock=clock, boot=self.boot
                )
                if started is not None:
                    begun.append(started)
            for number in {job.number for job in begun}:
                self.store.update_dependents(number)
        failure: OSError | None = None
        for job in begun:
            try:
                self.attempts[job.id] = start_attempt(
                    self.store, job, self.machine, boot=self.boot, shims=self.shims
                )
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure
        if len(chosen) == _MAX_STARTS_PER_TURN:
            wake(self.folder)

    def reread_slots(self) -> None:
        """Read the machine's slots again if they changed; an unreadable file is ignored."""
        stamp = slots_stamp(self.folder)
        if stamp == self.stamp:
            return
        self.stamp = stamp
        try:
            self.machine = this_machine(self.folder)
        except ConfigError as error:
            self.log(str(error))


def supervise(folder: Path, parts: list[str]) -> int:
    """Run the supervisor until it is idle, unless there is one already."""
    os.umask(0o077)
    deadline = time.monotonic() + _LOCK_SECONDS
    while (held := lock(folder)) is None:
        # If the other supervisor cannot be woken, it is about to exit.
        if wake(folder) or time.monotonic() > deadline:
            return 0
        time.sleep(0.02)
    log = folder / "supervisor.log"
    with suppress(OSError):
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    try:
        store = QueueStore(folder)
        Supervisor(folder, store, this_machine(folder), shims=make_shims(folder)).run()
        store.close()
    except HpcdashError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    finally:
        os.close(held)
    return 0


COMMANDS = {"supervise": supervise}


def make_shims(folder: Path) -> str:
    """Create the folder of shims: a real srun would query another scheduler. Returns its path."""
    shims = folder / "bin"
    shims.mkdir(mode=0o700, exist_ok=True)
    # The package may not be installed.
    root = Path(__file__).resolve().parent.parent.parent
    for name in ("srun", "scontrol", "scancel"):
        program = (
            f"import sys; sys.path.insert(0, {str(root)!r}); from hpcdash.embedded.{name} "
            "import main; main()"
        )
        text = f"exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(program)}"
        atomic_write(shims / name, f'#!/bin/sh\n{text} "$@"\n'.encode(), mode=0o700, sync=False)
    return str(shims)
