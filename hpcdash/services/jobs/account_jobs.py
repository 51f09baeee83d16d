"""The jobs of some accounts, in the queue or ended lately, however they were submitted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import Capability
from hpcdash.backends.queries import JobScope, ParsedTable
from hpcdash.domain.states import ACTIVE, ENDED, WAITING
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import HISTORY_SECONDS
from hpcdash.services.jobs.rows import are_in
from hpcdash.services.session import ClusterSession
from hpcdash.services.shared_answers import SharedAnswers

STATES = {"waiting": WAITING, "running": ACTIVE, "ended": ENDED}


class FoundJobs(Struct, frozen=True):
    """Rows of domain.schema.JOBS as they were at an epoch second, and how many could not be
    read.
    """

    table: pa.Table
    taken_at: float
    rejected_rows: int


class AccountJobs:
    """Asks for each account no more often than the dashboard does, however many want to know."""

    def __init__(self, session: ClusterSession) -> None:
        self._store = session.store
        pace = session.poller.pace.seconds
        self._queued: SharedAnswers[str | None, FoundJobs] = SharedAnswers(pace[Kind.EVERYONE])
        self._ended: SharedAnswers[str | None, FoundJobs] = SharedAnswers(pace[Kind.HISTORY])

    async def fetch(self, accounts: Sequence[str], state: str | None) -> FoundJobs:
        """Their jobs in a state of STATES; None: all that wait or run.

        Raises what keeps the cluster from answering.
        """
        await self._store.open()
        # Where jobs have no owner they are everyone's.
        whose = accounts if Capability.OWNERS in self._store.backend.capabilities else (None,)
        shared, ask = (
            (self._ended, self._query_history)
            if state == "ended"
            else (self._queued, self._query_queue)
        )
        found = await asyncio.gather(
            *(shared.get(account, partial(ask, account)) for account in whose)
        )
        table = pa.concat_tables([one.table for one in found]).unify_dictionaries()
        wanted = STATES[state] if state else ACTIVE | WAITING
        table = table.filter(are_in(table, wanted))
        return FoundJobs(
            table, min(one.taken_at for one in found), sum(one.rejected_rows for one in found)
        )

    async def _query_queue(self, account: str | None) -> FoundJobs:
        return self._found(
            await self._store.poll(self._store.backend.queue.jobs(JobScope(user=account))), account
        )

    async def _query_history(self, account: str | None) -> FoundJobs:
        query = self._store.backend.history.jobs(account, HISTORY_SECONDS)
        return self._found(await self._store.poll(query), account)

    def _found(self, parsed: ParsedTable, account: str | None) -> FoundJobs:
        table = parsed.table
        if account is not None:
            # A queue of one person's asks for no user.
            table = table.filter(
                pc.fill_null(pc.equal(table["user"].cast(pa.string()), account), False)
            )
        return FoundJobs(table, self._store.clock.now(), len(parsed.rejected))
