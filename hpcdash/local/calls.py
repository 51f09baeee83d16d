"""Does what people ask of jobs that run: cancel, requeue, suspend, resume, signal. Starts nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from hpcdash.local import processes
from hpcdash.local.attempt import Attempt
from hpcdash.local.reading import signal_number
from hpcdash.local.record import Begun
from hpcdash.local.store import QueueStore

_STATES = {"suspend": "suspended", "resume": "running"}


def answer_calls(store: QueueStore, attempts: Mapping[int, Attempt]) -> bool:
    """Answer all that can be; returns whether some are of jobs that only just begin, and are to be asked again.

    Who is told to end is noted before it is told: a call that is still open then is done once more.
    """
    again = False
    for call_id, job_id, verb, argument in store.open_calls():
        attempt = attempts.get(job_id)
        if attempt is None:
            words = _of_resting(store, job_id, verb)
        else:
            begun, _ = attempt.record.read()
            if begun is None:
                again = True
                continue
            words = _answer(store, job_id, begun, verb, argument)
        with store.writing():
            if attempt is not None and not words and verb in _STATES:
                store.set_state(job_id, _STATES[verb])
            store.answer_call(call_id, not words, words)
    return again


def _of_resting(store: QueueStore, job_id: int, verb: str) -> str:
    """To a job that ran when it was asked, and waits again or ended since; the complaint where it cannot be done."""
    job = store.job(job_id)
    if job is not None and job.state == "pending" and verb == "cancel":
        with store.writing():
            store.end(job_id, "cancelled", now=time.time(), elapsed=0.0, exit_code=0, exit_signal=0)
            store.judge_dependents(job.number)
        return ""
    if job is not None and (verb, job.state) in (("cancel", "cancelled"), ("requeue", "pending")):
        return ""
    return "it does not run any more"


def _answer(store: QueueStore, job_id: int, begun: Begun, verb: str, argument: str) -> str:
    """Do one thing to a job that runs; the complaint in words where it cannot be done."""
    job = store.job(job_id)
    if job is None:
        return "no such job in this queue"

    def below() -> list[int]:
        return processes.descendants(begun.keeper) or processes.group(begun.pid)

    if verb in ("cancel", "requeue"):
        if verb == "requeue" and not store.submission(job.number).request.requeue:
            return "it was submitted with --no-requeue"
        with store.writing():
            store.set_state(job.id, "completing", verb)
        processes.send([begun.keeper], signal.SIGTERM)
    elif verb == "suspend":
        # Suspended once more, whoever was resumed by a signal stands still again.
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
            return "it has no step: nothing but its batch shell runs"
        number = signal_number(name)
        if number == signal.SIGKILL and recipient == "full":
            # Nothing of it is left then: somebody ended it, it did not fail.
            with store.writing():
                store.set_state(job.id, "completing", "cancel")
        processes.send(whom, number)
    return ""
