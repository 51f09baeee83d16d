"""The runs of ended jobs over any span of time: asked for in slices, and kept on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from hpcdash.domain import query
from hpcdash.domain.spans import Span
from hpcdash.errors import HpcdashError

if TYPE_CHECKING:
    from hpcdash.services.cluster.store import ClusterStore


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Which runs: of one's own jobs or of everyone's, and of these users, accounts, queues, states and names.

    Each of the lists is empty (any) or holds what one of has to match; a name may have `*` and `?`. `expression` is a
    filter over domain.schema.RUNS.
    """

    everyone: bool = False
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    expression: query.Filter | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a span is: seconds of it that are known, of all; and the runs read so far."""

    known_seconds: float
    all_seconds: float
    runs: int

    @property
    def fraction(self) -> float:
        return min(1.0, self.known_seconds / self.all_seconds) if self.all_seconds > 0 else 1.0


@dataclass(frozen=True, slots=True)
class FetchedRuns:
    """Rows of domain.schema.RUNS that overlap a span, the newest end first.

    `missing` lists the parts of the span that are not known, oldest first: they were not asked for in time, or
    `problem` says why they could not be. `rejected` lists, in words, rows that could not be read.
    """

    table: pa.Table
    span: Span
    taken_at: float
    missing: tuple[Span, ...] = ()
    problem: HpcdashError | None = None
    rejected: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.missing


class RunArchive:
    """What is known of a cluster's ended runs. `folder` keeps it between two runs of the program; None: nothing is."""

    def __init__(self, store: ClusterStore, folder: Path | None) -> None:
        self._store = store
        self._folder = folder

    async def fetch_runs(
        self,
        span: Span,
        selection: RunSelection = RunSelection(),
        progress: Callable[[Progress], None] | None = None,
        *,
        stop: asyncio.Event | None = None,
    ) -> FetchedRuns:
        """The runs that overlap `span`; only what is not known yet is asked for.

        `progress` is called after each slice. Once `stop` is set no more is asked for, and what came is returned with
        what is missing. Where the cluster cannot be asked what is known is returned with the `problem`; raises it
        where nothing at all is known of the span.
        """
        raise NotImplementedError

    def known_runs(self, *, everyone: bool = False) -> pa.Table:
        """All runs on this machine's disk: rows of domain.schema.RUNS, the newest end first. Asks nothing."""
        raise NotImplementedError
