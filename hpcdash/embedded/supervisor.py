"""The one process that starts the queue's jobs and takes in their ends; it ends when there is
nothing to wait for.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.embedded import processes
from hpcdash.embedded.database import StoreUnusable
from hpcdash.embedded.environment import job_environment, mark
from hpcdash.embedded.job import ACTIVE, HOLD, Job
from hpcdash.embedded.keeper import NOTICED, Work, keep, split_exit
from hpcdash.embedded.machine import Machine, boot_id, slots_stamp, this_machine, user_name
from hpcdash.embedded.record import Begun, Ended, Record, records
from hpcdash.embedded.scheduling import free_slots, startable
from hpcdash.embedded.script import signal_number
from hpcdash.embedded.start import drain, lock, open_wake, wake
from hpcdash.embedded.store import QueueStore, output_paths, script_path
from hpcdash.errors import ConfigError, HpcdashError
from hpcdash.private_files import atomic_write

_STATES = {"suspend": "suspended", "resume": "running"}
# A job that ended by itself before it was notified has ended.
_REQUEUE_HELD = "requeue held"
_UNKNOWN = "its end was not observed: exit unknown"
# A person who goes on in a moment finds it warm.
_IDLE_SECONDS = 20.0
# After a failure (no room on the disk, the store held by another) it is tried again at this pace.
_AGAIN_SECONDS = 1.0
# A keeper that cannot report its end is checked at this interval.
_LOOK_SECONDS = 0.5
# A request to a job that is starting is repeated at this interval.
_BEGINNING_SECONDS = 0.02
# A clock that is set is noticed within a minute.
_LONGEST_PAUSE_SECONDS = 60.0
_STARTED_A_TURN = 16
_LOG_BYTES = 1 << 20
_KEPT_SECONDS = 60 * 86400.0
_LOCK_SECONDS = 5.0


@dataclass(slots=True)
class RunningAttempt:
    """Attempt whose keeper existed at the last check: its record, and the keeper's pid.

    The pid is 0 where it is unknown. `is_child`: its end is reported by SIGCHLD; else by `pidfd`,
    or by checks without one.
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
        """Its keeper is not there any more."""
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd = None
        self.is_child = False


def start_attempt(
    store: QueueStore, job: Job, machine: Machine, *, boot: str, shims: str
) -> RunningAttempt:
    """Start a job that the store has as begun; raises OSError where there is no room for it, with
    nothing started.
    """
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
    return RunningAttempt(job, record, pid)


def found_attempt(job: Job, record: Record) -> RunningAttempt:
    """An attempt that an earlier supervisor started and whose keeper lives."""
    begun, _ = record.read()
    pid = begun.keeper if begun else 0
    return RunningAttempt(job, record, pid, _pidfd(pid), is_child=False)


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
        atomic_write(path, store.script(number), mode=0o700)
    return path


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if pid and hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def answer_calls(store: QueueStore, attempts: Mapping[int, RunningAttempt]) -> bool:
    """Answer all calls that can be answered; return whether some are of jobs that are starting.

    Those are repeated. An end is recorded before it is requested: a call that is still open then is
    done once more.
    """
    again = False
    for call_id, job_id, verb, argument in store.open_calls():
        attempt = attempts.get(job_id)
        if attempt is None:
            text = _finish_resting(store, job_id, verb, argument)
        else:
            begun, _ = attempt.record.read()
            if begun is None:
                again = True
                continue
            text = _answer(store, job_id, begun, verb, argument)
        with store.writing():
            if attempt is not None and not text and verb in _STATES:
                store.set_state(job_id, _STATES[verb])
            store.answer_call(call_id, not text, text)
    return again


def _finish_resting(store: QueueStore, job_id: int, verb: str, argument: str) -> str:
    """Apply a call to a job that ran then, and is pending or ended now; return a complaint."""
    job = store.job(job_id)
    if job is not None and job.state == "pending" and verb == "cancel":
        with store.writing():
            store.end(job_id, "cancelled", now=time.time(), elapsed=0.0, exit_code=0, exit_signal=0)
            store.judge_dependents(job.number)
        return ""
    if job is not None and job.state == "pending" and argument == HOLD:
        with store.writing():
            store.set_held(job_id, True)
    if job is not None and (verb, job.state) in (("cancel", "cancelled"), ("requeue", "pending")):
        return ""
    return "it is no longer running"


def _answer(store: QueueStore, job_id: int, begun: Begun, verb: str, argument: str) -> str:
    """Apply a call to a running job; return the complaint where it is impossible."""
    job = store.job(job_id)
    if job is None:
        return "no such job in this queue"

    def below() -> list[int]:
        return processes.descendants(begun.keeper) or processes.group(begun.pid)

    if verb in ("cancel", "requeue"):
        if verb == "requeue" and not store.submission(job.number).request.requeue:
            return "it was submitted with --no-requeue"
        with store.writing():
            store.set_state(job.id, "completing", _REQUEUE_HELD if argument == HOLD else verb)
        processes.send([begun.keeper], signal.SIGTERM)
    elif verb == "suspend":
        # A second suspend stops processes that a signal had resumed.
        if job.state not in ("running", "suspended"):
            return f"it is {job.state}"
        processes.stop(below)
    elif verb == "resume":
        if job.state != "suspended":
            return f"it is {job.state}, not suspended"
        processes.send(below(), signal.SIGCONT)
    elif verb == "signal":
        name, _, recipient = argument.partition(" ")
        everything = below()
        steps = [pid for pid in everything if pid != begun.pid]
        whom = {"batch": [begun.pid], "full": everything}.get(recipient, steps)
        if not whom:
            return "it has no steps, only its batch shell"
        number = signal_number(name)
        if number == signal.SIGKILL and recipient == "full":
            # No process is left then: somebody ended it, it did not fail.
            with store.writing():
                store.set_state(job.id, "completing", "cancel")
        processes.send(whom, number)
    return ""


def take_in(store: QueueStore, job: Job, record: Record, *, was_stored: bool) -> None:
    """Record the end of an attempt without a keeper, then drop its record.

    `was_stored`: its keeper is known to have existed, so that a lost record has no meaning.
    """
    begun, ended = record.read()
    never_began = begun is None and ended is None and not (was_stored and not record.exists)
    if ended is None and not never_began:
        # Its keeper was killed: its remaining processes have no owner now.
        processes.send(processes.marked(mark(store.folder, job)), signal.SIGKILL)
    with store.writing():
        current = store.job(job.id)
        if current is not None and current.attempt == job.attempt and current.state in ACTIVE:
            if never_began and current.wanted != "cancel":
                # The supervisor ended between the store and the script.
                store.put_back(job.id, restarted=False, held=current.wanted == _REQUEUE_HELD)
            else:
                _note_end(store, current, ended)
                store.judge_dependents(job.number)
    record.forget()


def _note_end(store: QueueStore, job: Job, ended: Ended | None) -> None:
    if job.wanted == _REQUEUE_HELD and (ended is None or ended.why == "told"):
        store.put_back(job.id, restarted=True, held=True)
    elif job.wanted == "requeue":
        store.put_back(job.id, restarted=True)
    elif ended is None:
        state = "cancelled" if job.wanted == "cancel" else "gone"
        store.end(job.id, state, now=time.time(), reason=_UNKNOWN)
    else:
        code, number = split_exit(ended.status)
        reason = ended.problem or None
        if ended.why == "told" and job.wanted is None:
            reason = "another program stopped its keeper"
        if ended.left_behind:
            reason = f"{ended.left_behind} of its processes cannot be killed"
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
    if job.wanted == "cancel" or ended.why == "told":
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
    # The store may have jobs as running that have no attempt here: at first, and after a failure.
    is_unsure: bool = True
    stamp: tuple[int, ...] = ()
    last_error: str = ""

    def run(self) -> None:
        """Until idle. SIGTERM ends it at once; the jobs go on."""
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
                is_idle = not self.is_unsure and not self.attempts and not self.store.has_work()
                pidfds = [one.pidfd for one in self.attempts.values() if one.pidfd is not None]
            except (StoreUnusable, OSError) as error:
                self.log(str(error))
                if not self.store.path.exists():
                    return
                self.is_unsure = True
                pause = _AGAIN_SECONDS
                is_idle = False
            if is_idle:
                now = time.monotonic()
                idle_since = idle_since or now
                pause = idle_since + _IDLE_SECONDS - now
                if pause <= 0:
                    # Requests written before this end was closed are in the store already; a later
                    # one starts another supervisor.
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
        """A line in the supervisor's own log, once; without room for it, none."""
        if text != self.last_error:
            self.last_error = text
            try:
                print(time.strftime("%Y-%m-%dT%H:%M:%S"), text, file=sys.stderr, flush=True)
            except OSError:
                return

    def turn(self) -> float | None:
        """All that is to be done now; returns for how long nothing is to be done by itself (None:
        until woken).

        Raises StoreUnusable and OSError where something could not be done: it is to be called
        again.
        """
        if self.is_unsure:
            self.is_unsure = not self.recover()
        self.reap()
        resubmitted = answer_calls(self.store, self.attempts)
        self.start()
        pauses = [_BEGINNING_SECONDS] if resubmitted else []
        if self.is_unsure or any(not one.reports_end for one in self.attempts.values()):
            pauses.append(_LOOK_SECONDS)
        now = time.time()
        if (begins := self.store.next_begin(now)) is not None:
            pauses.append(min(_LONGEST_PAUSE_SECONDS, begins - now))
        return min(pauses, default=None)

    # -- recovery

    def recover(self) -> bool:
        """Take over the jobs that the store has as running: kept ones, ended ones, and those that
        never began.

        Returns whether no record of an ended job is left: one is, while a process that dies has its
        lock still.
        """
        for job in self.store.active_jobs():
            if job.id not in self.attempts:
                record = Record(self.folder, job.id, job.attempt)
                if record.has_keeper():
                    self.attempts[job.id] = found_attempt(job, record)
                else:
                    take_in(self.store, job, record, was_stored=False)
        known = {one.record.path for one in self.attempts.values()}
        left = [record for record in records(self.folder) if record.path not in known]
        held = [record for record in left if record.has_keeper()]
        for record in left:
            if record not in held:
                record.forget()
        for number in self.store.forget_before(time.time() - _KEPT_SECONDS):
            script_path(self.folder, number).unlink(missing_ok=True)
        return not held

    # -- ended jobs

    def reap(self) -> None:
        """Take in what ended."""
        ended = set()
        while (pid := _ended_child()) != 0:
            ended.add(pid)
        for job_id, one in list(self.attempts.items()):
            if one.record.has_keeper():
                if one.pid in ended:
                    # It was killed, and the child it had just forked still has the lock.
                    one.forget_keeper()
                continue
            take_in(self.store, one.job, one.record, was_stored=True)
            one.forget_keeper()
            del self.attempts[job_id]

    # -- starting

    def start(self) -> None:
        """Start what fits."""
        self.reread_slots()
        now = time.time()
        chosen = list(
            startable(
                self.store, free_slots(self.store, self.machine), self.machine, now, _STARTED_A_TURN
            )
        )
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
                self.store.judge_dependents(number)
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
        if len(chosen) == _STARTED_A_TURN:
            wake(self.folder)

    def reread_slots(self) -> None:
        """Reread the machine's slots, which may change while jobs run.

        An unreadable file changes nothing.
        """
        stamp = slots_stamp(self.folder)
        if stamp == self.stamp:
            return
        self.stamp = stamp
        try:
            self.machine = this_machine(self.folder)
        except ConfigError as error:
            self.log(str(error))


def _ended_child() -> int:
    """The pid of a child that ended; 0 where none did."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def supervise(folder: Path, parts: list[str]) -> int:
    """Be the supervisor, where there is none; returns when idle."""
    os.umask(0o077)
    over = time.monotonic() + _LOCK_SECONDS
    while (held := lock(folder)) is None:
        # The other may be about to end: it takes no more calls then.
        if wake(folder) or time.monotonic() > over:
            return 0
        time.sleep(0.02)
    _log_to(folder / "supervisor.log")
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


def _log_to(path: Path) -> None:
    """stderr into a file, where it can be written."""
    try:
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    except OSError:
        return


COMMANDS = {"supervise": supervise}


_NAMES = ("srun", "scontrol", "scancel")


def make_shims(folder: Path) -> str:
    """Recreate the folder of shims, and return it: real programs would query another scheduler."""
    shims = folder / "bin"
    shims.mkdir(mode=0o700, exist_ok=True)
    # The package may not be installed: it is found where this one is.
    root = Path(__file__).resolve().parent.parent.parent
    for name in _NAMES:
        program = (
            f"import sys; sys.path.insert(0, {str(root)!r}); from hpcdash.embedded.{name} "
            "import main; main()"
        )
        text = f"exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(program)}"
        atomic_write(shims / name, f'#!/bin/sh\n{text} "$@"\n'.encode(), mode=0o700, sync=False)
    return str(shims)
