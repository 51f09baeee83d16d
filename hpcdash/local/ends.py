"""How an attempt at a job ended, from what its keeper noted: into the queue's store. Starts nothing."""

from __future__ import annotations

import signal
import time

from hpcdash.local import processes
from hpcdash.local.environment import mark
from hpcdash.local.job import ACTIVE, Job
from hpcdash.local.keeper import exit_of
from hpcdash.local.record import Ended, Record
from hpcdash.local.store import QueueStore

_UNKNOWN = "nobody saw its end: its exit is unknown"


def take_in(store: QueueStore, job: Job, record: Record, *, was_kept: bool) -> None:
    """Note how an attempt whose keeper is not there any more went, then drop its record.

    `was_kept`: its keeper is known to have been there, so that a record that is lost says nothing.
    """
    begun, ended = record.read()
    never_began = begun is None and ended is None and not (was_kept and not record.exists)
    if ended is None and not never_began:
        # Its keeper was killed: what it kept is nobody's now.
        processes.send(processes.marked(mark(store.folder, job)), signal.SIGKILL)
    with store.writing():
        current = store.job(job.id)
        if current is not None and current.attempt == job.attempt and current.state in ACTIVE:
            if never_began and current.wanted != "cancel":
                # The supervisor ended between the store and the script.
                store.put_back(job.id, restarted=False)
            else:
                _note_end(store, current, ended)
                store.judge_dependents(job.number)
    record.forget()


def _note_end(store: QueueStore, job: Job, ended: Ended | None) -> None:
    if job.wanted == "requeue":
        store.put_back(job.id, restarted=True)
    elif ended is None:
        state = "cancelled" if job.wanted == "cancel" else "gone"
        store.end(job.id, state, now=time.time(), reason=_UNKNOWN)
    else:
        code, number = exit_of(ended.status)
        reason = ended.problem or None
        if ended.why == "told" and job.wanted is None:
            reason = "its keeper was told to end by another program"
        if ended.left_behind:
            reason = f"{ended.left_behind} of its processes cannot be ended"
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
