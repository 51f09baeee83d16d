"""Choice of the pending jobs that may start now: first come first served, by CPU and GPU slots.

Pure but for the store it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcdash.embedded.job import Job
from hpcdash.embedded.machine import Machine
from hpcdash.embedded.store import QueueStore

# A pass checks no more than this many submissions of a long queue.
_LOOKED_AT = 200


@dataclass(slots=True)
class FreeSlots:
    """Free slots: CPUs by number, GPUs by name."""

    cpus: int
    gpu_ids: list[str]

    def fits(self, job: Job) -> bool:
        return job.cpus <= self.cpus and job.gpus <= len(self.gpu_ids)

    def take(self, job: Job) -> tuple[str, ...]:
        """Give a job that fits its slots; returns its GPUs."""
        self.cpus -= job.cpus
        given = self.gpu_ids[: job.gpus]
        self.gpu_ids = self.gpu_ids[job.gpus :]
        return tuple(given)

    def keep_for(self, job: Job) -> None:
        """Take away what a job that does not fit yet can have already: who comes later must not
        delay it.
        """
        self.cpus -= min(self.cpus, job.cpus)
        self.gpu_ids = self.gpu_ids[min(len(self.gpu_ids), job.gpus) :]


def free_slots(store: QueueStore, machine: Machine) -> FreeSlots:
    """Return the slots that no job has; a suspended job keeps its own."""
    active = store.active_jobs()
    taken = {gpu for job in active for gpu in job.gpu_ids.split(",") if gpu}
    return FreeSlots(
        machine.cpus - sum(job.cpus for job in active),
        [gpu for gpu in machine.gpu_ids if gpu not in taken],
    )


def is_too_large(job: Job, machine: Machine) -> bool:
    """Whether it never fits, as the machine's slots may have changed since the submission."""
    return job.cpus > machine.cpus or job.gpus > len(machine.gpu_ids)


def startable(
    store: QueueStore, slots: FreeSlots, machine: Machine, now: float, most: int
) -> Iterator[tuple[Job, tuple[str, ...]]]:
    """Jobs that may start, in order, with their GPUs; at most `most`. Takes their slots."""
    number: int | None = 0
    for _ in range(_LOOKED_AT):
        if (
            most <= 0
            or slots.cpus <= 0
            or (number := store.next_waiting_number(number or 0, now)) is None
        ):
            return
        room = most
        if throttle := store.throttle(number):
            room = min(room, throttle - store.active_tasks(number))
        if room <= 0:
            continue
        for job in store.waiting_jobs(number, now, room):
            if not slots.fits(job):
                # The tasks behind it request as much.
                if not is_too_large(job, machine):
                    slots.keep_for(job)
                break
            yield job, slots.take(job)
            most -= 1
