"""The tables that may know of one job, the newest first: lists, its details, what was asked for it. Asks nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.snapshots import Kind

_KEPT_ANSWERS = 3
_KINDS = (Kind.MINE, Kind.EVERYONE, Kind.HISTORY, Kind.HISTORY_EVERYONE)


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table of domain.schema.JOBS, when it was taken, and whether every living job of the job's owner is in it."""

    taken_at: float
    table: pa.Table
    is_complete: bool = False


class JobTables:
    """What a store's lists know, and the few answers that were kept because they were asked for one job."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._asked: list[KnownTable] = []

    def keep(self, table: pa.Table, *, is_complete: bool) -> None:
        """An answer of now; the oldest of those kept is forgotten."""
        self._asked = [*self._asked[-_KEPT_ANSWERS:], KnownTable(self._store.clock.now(), table, is_complete)]

    def newest_first(self, owner: str | None, details: KnownTable | None) -> list[KnownTable]:
        """All of them, and the job's details, where they are known; `owner` is the job's, None: not known."""
        tables = [*self._asked, *([details] if details is not None else ()), *self.of_the_store(owner)]
        return sorted(tables, key=lambda known: -known.taken_at)

    def of_the_store(self, owner: str | None) -> list[KnownTable]:
        """The lists of jobs that the store has, living and ended."""
        tables = []
        for kind in _KINDS:
            snapshot = self._store.snapshots.get(kind)
            if snapshot is None or (table := self._store.table(kind)) is None:
                continue
            is_complete = kind is Kind.EVERYONE or (kind is Kind.MINE and bool(owner) and owner == self._store.user)
            tables.append(KnownTable(snapshot.taken_at, table, is_complete))
        return tables
