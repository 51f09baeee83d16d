"""The parts of a broken-off submission of an array's tasks that were sent, as the journal has
them.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from hpcdash.backends.actions import Outcome, Verb
from hpcdash.backends.queries import JobScope
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import joined_tasks, parse_array_id, parse_job_id
from hpcdash.domain.states import ENDED
from hpcdash.errors import NoSuchJob, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.journal import Journal, JournalEntry
from hpcdash.services.submit.recovery import reconcile_noted


class SentParts(Struct, frozen=True):
    """Parts of a broken-off submission: their ids in the journal, their tasks, and the job of the
    last one.
    """

    names: tuple[str, ...] = ()
    tasks: ArrayTasks | None = None
    last_job: str = ""


async def find_sent_parts(
    store: ClusterStore, journal: Journal, array_id: str, requested: ArrayTasks
) -> SentParts:
    """Find the sent parts of the newest, incomplete submission of some of the `requested` tasks.

    A part without a known outcome is searched by its mark. Raises UsageError if it is unknown
    whether it was sent, JournalUnreadable, and the errors of an unreachable cluster.
    """
    entries = [
        one
        for one in (await asyncio.to_thread(journal.read))[0]
        if one.cluster == store.name
        and one.verb == Verb.SUBMIT
        and one.parts
        and parse_array_id(one.parts[0]) == array_id
    ]
    if not entries:
        return SentParts()
    parts = entries[0].parts
    if not all(requested.contains(task) for name in parts for task in _tasks_in(name)):
        return SentParts()
    places = {name: place for place, name in enumerate(parts)}
    newest: dict[str, JournalEntry] = {}
    before = len(parts)
    for entry in entries:
        name = entry.job_ids[0]
        # They are sent in order: a later one belongs to an earlier submission.
        if places.get(name, len(parts)) > before:
            break
        before = places[name]
        newest.setdefault(name, entry)
    sent: dict[str, str] = {}
    for name in sorted(newest, key=places.__getitem__):
        if job := await _submitted_job(store, journal, newest[name]):
            sent[name] = job
    if len(sent) == len(parts) or not sent:
        return SentParts()
    return SentParts(
        tuple(sent),
        joined_tasks(task for name in sent for task in _tasks_in(name)),
        [*sent.values()][-1],
    )


async def _submitted_job(store: ClusterStore, journal: Journal, entry: JournalEntry) -> str:
    """The new job of a part; '' where it was surely not submitted."""
    (name,) = entry.job_ids
    if entry.state == "running":
        raise UsageError(
            f"{name} is being submitted again already", "Wait for it: J shows how it ends."
        )
    (outcome,) = entry.outcomes or (Outcome(name, None),)
    if outcome.done is None:
        (outcome,) = await reconcile_noted(store, journal, entry)
    if outcome.done is None:
        raise UsageError(
            f"{name} may have been submitted again: {outcome.words}",
            "hpcdash journal --settle looks for it.",
        )
    return outcome.new_job if outcome.done else ""


def _tasks_in(job_id: str) -> ArrayTasks:
    """The tasks in an id such as 12[3-12:3].server."""
    return parse_job_id(job_id).tasks or ArrayTasks(())


async def job_to_wait_for(store: ClusterStore, sent: SentParts) -> str:
    """The job of the last part that was sent, where it has not ended."""
    if not sent.last_job:
        return ""
    try:
        table = (
            await store.ask(store.backend.queue.jobs(JobScope(job_ids=(sent.last_job,))))
        ).table
    except NoSuchJob:
        return ""
    return sent.last_job if any(state not in ENDED for state in table["state"].to_pylist()) else ""
