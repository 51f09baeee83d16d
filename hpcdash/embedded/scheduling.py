"""Chooses the pending jobs that may start now: first come, first served, by CPU and GPU slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcdash.embedded.job import Job
from hpcdash.embedded.machine import Machine
from hpcdash.embedded.store import QueueStore

# Limit of the submissions that one pass checks.
_MAX_SUBMISSIONS = 200


@dataclass(slots=True)
class FreeSlots:
    """Free slots: CPUs by number, GPUs by name."""

    cpus: int
    gpu_ids: list[str]

    def fits(self, job: Job) -> bool:
        return job.cpus <= self.cpus and job.gpus <= len(self.gpu_ids)

    def take(self, job: Job) -> tuple[str, ...]:
        """Remove the slots of a job that fits; return its GPUs."""
        gpu_ids = tuple(self.gpu_ids[: job.gpus])
        self.reserve(job)
        return gpu_ids

    def reserve(self, job: Job) -> None:
        """Remove up to as many slots as a job needs, so that later jobs do not delay it."""
        self.cpus -= min(self.cpus, job.cpus)
        self.gpu_ids = self.gpu_ids[job.gpus :]


def free_slots(store: QueueStore, machine: Machine) -> FreeSlots:
    """Return the slots without an active job; suspended jobs keep theirs."""
    active = store.active_jobs()
    taken = {gpu for job in active for gpu in job.gpu_ids.split(",") if gpu}
    return FreeSlots(
        machine.cpus - sum(job.cpus for job in active),
        [gpu for gpu in machine.gpu_ids if gpu not in taken],
    )


def is_too_large(job: Job, machine: Machine) -> bool:
    """Whether a job can never fit, as the machine's slots have changed since its submission."""
    return job.cpus > machine.cpus or job.gpus > len(machine.gpu_ids)


def startable(
    store: QueueStore, slots: FreeSlots, machine: Machine, now: float, limit: int
) -> Iterator[tuple[Job, tuple[str, ...]]]:
    """Yield up to `limit` jobs that may start, in order, with their GPUs; takes their slots."""
    number = 0
    for _ in range(_MAX_SUBMISSIONS):
        if limit <= 0 or slots.cpus <= 0:
            return
        next_number = store.next_waiting_number(number, now)
        if next_number is None:
            return
        number = next_number
        room = limit
        if throttle := store.throttle(number):
            room = min(room, throttle - store.active_tasks(number))
        if room <= 0:
            continue
        for job in store.waiting_jobs(number, now, room):
            if not slots.fits(job):
                # The array's other tasks request as much.
                if not is_too_large(job, machine):
                    slots.reserve(job)
                break
            yield job, slots.take(job)
            limit -= 1
