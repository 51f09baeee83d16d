"""The one process that starts the queue's jobs and takes in their ends; it ends when there is nothing to wait for.

What is true is in the store and in the records of the keepers: a supervisor may be killed at any moment, and the next
one goes on from there.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hpcdash.errors import ConfigError, HpcdashError
from hpcdash.local.attempt import Attempt, found_attempt, start_attempt
from hpcdash.local.calls import answer_calls
from hpcdash.local.database import StoreUnusable
from hpcdash.local.ends import take_in
from hpcdash.local.job import Job
from hpcdash.local.machine import Machine, boot_id, slots_stamp, this_machine
from hpcdash.local.paths import script_path
from hpcdash.local.record import Record, records
from hpcdash.local.scheduling import free_slots, startable
from hpcdash.local.shims import make_shims
from hpcdash.local.store import QueueStore
from hpcdash.local.wake import drain, lock, open_wake, wake

# A person who goes on in a moment finds it warm.
_IDLE_SECONDS = 20.0
# After a failure (no room on the disk, the store held by another) it is tried again at this pace.
_AGAIN_SECONDS = 1.0
# A keeper that cannot tell its end is looked after at this pace.
_LOOK_SECONDS = 0.5
# A job that is asked something while it begins is asked again at this pace.
_BEGINNING_SECONDS = 0.02
# A clock that is set is noticed within a minute.
_LONGEST_PAUSE_SECONDS = 60.0
_STARTED_A_TURN = 16
_LOG_BYTES = 1 << 20
_KEPT_SECONDS = 60 * 86400.0
_LOCK_SECONDS = 5.0


@dataclass(slots=True)
class Supervisor:
    """Owns the queue in a folder while it holds the lock."""

    folder: Path
    store: QueueStore
    machine: Machine
    shims: str = ""
    boot: str = field(default_factory=boot_id)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    # The store may have jobs as running that have no attempt here: at first, and after a failure.
    is_unsure: bool = True
    stamp: tuple[int, ...] = ()
    last_words: str = ""

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
                self.last_words = ""
                is_idle = not self.is_unsure and not self.attempts and not self.store.has_work()
                pidfds = [one.pidfd for one in self.attempts.values() if one.pidfd is not None]
            except (StoreUnusable, OSError) as error:
                self.say(str(error))
                if not self.store.path.exists():
                    return
                self.is_unsure = True
                pause, is_idle = _AGAIN_SECONDS, False
            if is_idle:
                now = time.monotonic()
                idle_since = idle_since or now
                pause = idle_since + _IDLE_SECONDS - now
                if pause <= 0:
                    # Who wrote before this end was closed is in the store already; who comes later starts another.
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

    def say(self, words: str) -> None:
        """A line in the supervisor's own log, once; without room for it, none."""
        if words != self.last_words:
            self.last_words = words
            try:
                print(time.strftime("%Y-%m-%dT%H:%M:%S"), words, file=sys.stderr, flush=True)
            except OSError:
                return

    def turn(self) -> float | None:
        """All that is to be done now; returns for how long nothing is to be done by itself (None: until woken).

        Raises StoreUnusable and OSError where something could not be done: it is to be called again.
        """
        if self.is_unsure:
            self.is_unsure = not self.recover()
        self.reap()
        asked_again = answer_calls(self.store, self.attempts)
        self.start()
        pauses = [_BEGINNING_SECONDS] if asked_again else []
        if self.is_unsure or any(not one.tells_its_end for one in self.attempts.values()):
            pauses.append(_LOOK_SECONDS)
        now = time.time()
        if (begins := self.store.next_begin(now)) is not None:
            pauses.append(min(_LONGEST_PAUSE_SECONDS, begins - now))
        return min(pauses, default=None)

    # -- what an earlier supervisor, or a failure, left

    def recover(self) -> bool:
        """Take over the jobs that the store has as running: kept ones, ended ones, and those that never began.

        Returns whether no record of an ended job is left: one is, while a process that dies has its lock still.
        """
        for job in self.store.active_jobs():
            if job.id not in self.attempts:
                record = Record(self.folder, job.id, job.attempt)
                if record.is_kept():
                    self.attempts[job.id] = found_attempt(job, record)
                else:
                    take_in(self.store, job, record, was_kept=False)
        known = {one.record.path for one in self.attempts.values()}
        left = [record for record in records(self.folder) if record.path not in known]
        held = [record for record in left if record.is_kept()]
        for record in left:
            if record not in held:
                record.forget()
        for number in self.store.forget_before(time.time() - _KEPT_SECONDS):
            script_path(self.folder, number).unlink(missing_ok=True)
        return not held

    # -- ends

    def reap(self) -> None:
        """Take in what ended."""
        ended = set()
        while (pid := _ended_child()) != 0:
            ended.add(pid)
        for job_id, one in list(self.attempts.items()):
            if one.record.is_kept():
                if one.pid in ended:
                    # It was killed, and the child it had just forked has the lock still.
                    one.forget_keeper()
                continue
            take_in(self.store, one.job, one.record, was_kept=True)
            one.forget_keeper()
            del self.attempts[job_id]

    # -- starting

    def start(self) -> None:
        """Start what fits."""
        self.look_at_machine()
        now = time.time()
        chosen = list(startable(self.store, free_slots(self.store, self.machine), self.machine, now, _STARTED_A_TURN))
        if not chosen:
            return
        begun: list[Job] = []
        clock = time.monotonic()
        with self.store.writing():
            for job, gpu_ids in chosen:
                started = self.store.begin(job, gpu_ids=gpu_ids, now=now, clock=clock, boot=self.boot)
                if started is not None:
                    begun.append(started)
            for number in {job.number for job in begun}:
                self.store.judge_dependents(number)
        failure: OSError | None = None
        for job in begun:
            try:
                self.attempts[job.id] = start_attempt(self.store, job, self.machine, boot=self.boot, shims=self.shims)
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure
        if len(chosen) == _STARTED_A_TURN:
            wake(self.folder)

    def look_at_machine(self) -> None:
        """What it gives may be set anew while jobs run; what cannot be read leaves it as it was."""
        stamp = slots_stamp(self.folder)
        if stamp == self.stamp:
            return
        self.stamp = stamp
        try:
            self.machine = this_machine(self.folder)
        except ConfigError as error:
            self.say(str(error))


def _ended_child() -> int:
    """The pid of a child that ended; 0 where none did."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def supervise(folder: Path, words: list[str]) -> int:
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
