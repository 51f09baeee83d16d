"""Which jobs a person means by `17`, `17_3` or `17_[3-5,9]`. Changes nothing."""

from __future__ import annotations

import re

from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.errors import UsageError
from hpcdash.local.job import Job
from hpcdash.local.store import QueueStore


def find_jobs(store: QueueStore, text: str) -> list[Job]:
    """The jobs of an id, in order; raises UsageError for what is no id."""
    match = re.fullmatch(r"([0-9]{1,15})(?:_(.+))?", text)
    if match is None:
        raise UsageError(f"{text!r} is no job: write 17, 17_3 or 17_[3-5]")
    number, tasks = int(match[1]), match[2]
    if tasks is None:
        found = store.find(number)
        # A task's own number means that task.
        return [job for job in found if number in (job.number, job.id)]
    try:
        return store.find(number, parse_tasks(tasks))
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}") from error
