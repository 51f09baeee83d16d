"""Jobs of several accounts, in the queue or recently finished."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.backends.queries import JobScope, ParsedTable, Query
from hpcdash.domain.columns import has_state
from hpcdash.domain.states import ACTIVE, ENDED, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import HISTORY_SECONDS
from hpcdash.services.session import ClusterSession
from hpcdash.services.shared_answers import SharedAnswers

STATES = {"waiting": WAITING, "running": ACTIVE, "ended": ENDED}


class FoundJobs(Struct, frozen=True):
    """Rows of domain.schema.JOBS at an epoch second, and the number of unreadable rows."""

    table: pa.Table
    taken_at: float
    rejected_rows: int


class AccountJobs:
    """Fetches each account's jobs no more often than the dashboard polls, for all callers."""

    def __init__(self, session: ClusterSession) -> None:
        self._store = session.store
        pace = session.poller.pace.seconds
        self._queued: SharedAnswers[str | None, FoundJobs] = SharedAnswers(pace[Kind.EVERYONE])
        self._ended: SharedAnswers[str | None, FoundJobs] = SharedAnswers(pace[Kind.HISTORY])

    async def fetch(self, accounts: Sequence[str], state: str | None) -> FoundJobs:
        """Fetch the accounts' jobs in a state of STATES; None: unfinished jobs.

        Raises the errors of an unreachable cluster.
        """
        await self._store.open()
        backend = self._store.backend
        # A scheduler without owners has only one queue for everyone.
        users = accounts if Capability.OWNERS in backend.capabilities else (None,)
        answers = self._ended if state == "ended" else self._queued
        requests = []
        for user in users:
            if state == "ended":
                query = backend.history.jobs(user, HISTORY_SECONDS)
            else:
                query = backend.queue.jobs(JobScope(user=user))
            requests.append(answers.get(user, partial(self._fetch, query, user)))
        found = await asyncio.gather(*requests)
        table = pa.concat_tables([one.table for one in found]).unify_dictionaries()
        requested = STATES[state] if state else ACTIVE | WAITING
        taken_at = min(one.taken_at for one in found)
        rejected_rows = sum(one.rejected_rows for one in found)
        return FoundJobs(table.filter(has_state(table, requested)), taken_at, rejected_rows)

    async def _fetch(self, query: Query[ParsedTable], user: str | None) -> FoundJobs:
        parsed = await self._store.poll(query)
        table = parsed.table
        if user is not None:
            # The query of a queue with a single user selects no user.
            is_own = pc.fill_null(pc.equal(table["user"].cast(pa.string()), user), False)
            table = table.filter(is_own)
        return FoundJobs(table, self._store.clock.now(), len(parsed.rejected))
