"""The runs of ended jobs over any span of time: asked for in slices, and kept on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import Backend, HistoryScope, Probe
from hpcdash.backends.queries import JobScope, ParsedTable, Query
from hpcdash.domain import query
from hpcdash.domain.columns import as_array
from hpcdash.domain.query_conditions import All, FilterCondition, Pattern, TextIs
from hpcdash.domain.runs import overlapping, running_runs, split_runs, without_ended
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import Span
from hpcdash.domain.units import DAY, HOUR, MINUTE, WEEK, format_span
from hpcdash.errors import CommandTimedOut, HpcdashError, RateLimited
from hpcdash.services.cluster.clock import Clock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.usage.run_files import RunFiles
from hpcdash.services.usage.waits import WAITED, compute_waits
from hpcdash.services.usage.watched import WATCHED, with_watched

T = TypeVar("T")
# Length of a first slice: of one user's jobs, and of everyone's. Later ones are as long as the
# answers allow.
_FIRST_SECONDS = 4 * WEEK
_FIRST_OF_EVERYONE_SECONDS = DAY
_MIN_SECONDS = 15 * MINUTE
_MAX_SECONDS = 366 * DAY
# What a slice is to take, on the cluster and to be read.
_SLICE_SECONDS = 8.0
_SLICE_ROWS = 30_000
# Jobs that ended during the query, or were written to the accounting late, are queried again.
_OVERLAP_SECONDS = 600
_SAVE_EVERY_SECONDS = 20.0
_SAVE_EVERY_ROWS = 60_000
_WAITS_OF_SECONDS = 90 * DAY
_WAITS_SECONDS = 600.0
# A site's policy may change while the program runs.
_SCOPE_SECONDS = 3600.0
# Every server's history is longer.
_SHORT_SECONDS = 7 * DAY
OTHERS_HIDDEN = "The cluster hides others' ended jobs from you"


class QueriedCluster(Protocol):
    """Interface of the cluster of the runs: hpcdash.services.cluster.store.ClusterStore."""

    @property
    def name(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def probe(self) -> Probe | None: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def budget(self) -> CommandBudget: ...
    async def open(self) -> Probe: ...
    async def poll(self, query: Query[T]) -> T: ...


class RunSelection(Struct, frozen=True):
    """Selection of runs by scope, users, accounts, queues, states, names and filter.

    The scope is one's own jobs or everyone's. Each of the lists is empty (any) or holds values of
    which one has to match, without regard to case; each `*` is any text. `expression` is a filter
    over domain.schema.RUNS.
    """

    everyone: bool = False
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    expression: query.Filter | None = None

    def apply(self, runs: pa.Table, now_epoch: float) -> pa.Table:
        """Filter runs by the selection; ages in the filter count from `now_epoch`."""
        lists = {
            "account": self.accounts,
            "queue": self.queues,
            "state": self.states,
            "name": self.names,
        }
        # An account of the cluster has one spelling.
        if self.users:
            runs = runs.filter(
                pc.is_in(_texts(runs["user"]), value_set=pa.array(self.users, pa.string()))
            )
        conditions: list[FilterCondition] = [
            TextIs(column, tuple(Pattern(text, "*" in text) for text in requested))
            for column, requested in lists.items()
            if requested
        ]
        if conditions:
            runs = runs.filter(All(tuple(conditions)).mask(runs, now_epoch))
        return runs if self.expression is None else query.apply(runs, self.expression, now_epoch)


EVERY_RUN = RunSelection()


class ArchiveProgress(Struct, frozen=True):
    """Progress in a span: its known seconds, all its seconds, and the runs read so far."""

    known_seconds: float
    all_seconds: float
    runs: int
    # How long until the next command is allowed by our own ceiling; 0 while one runs.
    wait_seconds: float = 0.0

    @property
    def fraction(self) -> float:
        return min(1.0, self.known_seconds / self.all_seconds) if self.all_seconds > 0 else 1.0


class FetchedRuns(Struct, frozen=True):
    """Rows of domain.schema.RUNS that overlap a span, the newest end first, with the columns that
    were asked for.

    `missing` lists the parts of the span that are not known, oldest first: they were not asked for
    in time, the cluster keeps ended jobs only since `retained_since`, or `problem` says why they could
    not be. `rejected` lists, in words, unreadable rows. `hides_others`: whether the
    cluster hides others' runs from whoever asked; None: not asked, or not known. `running` are
    those that have begun and not ended, where they were asked for: `ends_at` is null.
    """

    table: pa.Table
    span: Span
    taken_at: float
    missing: tuple[Span, ...] = ()
    problem: HpcdashError | None = None
    rejected: tuple[str, ...] = ()
    hides_others: bool | None = None
    retained_since: int | None = None
    running: pa.Table | None = None

    @property
    def is_whole(self) -> bool:
        return not self.missing

    @property
    def unasked_seconds(self) -> int:
        """Seconds of the span that are unknown and may be queried."""
        return sum(part.seconds for part in self.missing) - self._forgotten_seconds

    @property
    def _forgotten_seconds(self) -> int:
        retained_since = self.span.since if self.retained_since is None else self.retained_since
        return sum(max(0, min(part.until, retained_since) - part.since) for part in self.missing)

    def format_forgotten(self) -> str:
        """Describe the part of the span that the cluster no longer stores.

        '' if it stores all that is unknown here.
        """
        if self.retained_since is None or not self._forgotten_seconds:
            return ""
        # The part that an earlier run still knew is no more than this.
        unit = (
            DAY
            if self._forgotten_seconds >= 10 * DAY
            else HOUR
            if self._forgotten_seconds >= DAY
            else MINUTE
        )
        return (
            f"The cluster keeps ended jobs for {format_span(self.taken_at - self.retained_since)}: "
            f"{format_span(-(-self._forgotten_seconds // unit) * unit)} of the span before that "
            "are missing"
        )


class RunArchive:
    """Known ended runs of a cluster.

    `folder` stores them between two runs of the program; None: not stored. Watched usage of running
    jobs is in `state_folder`; None: none.
    """

    def __init__(
        self, store: QueriedCluster, folder: Path | None, state_folder: Path | None = None
    ) -> None:
        self._store = store
        self._folder = folder
        self._state_folder = state_folder
        self._files: dict[tuple[str, str], RunFiles] = {}
        # By the querying user, with the time of the query (monotonic).
        self._history_scopes: dict[str, tuple[float, HistoryScope]] = {}
        # When they were read (monotonic), and the waits of the runs that were known then.
        self._waits: tuple[float, pa.Table] | None = None
        # One span after the other: each queries only what the one before left out.
        self._turn = asyncio.Lock()

    def _scope(self, selection: RunSelection) -> tuple[str, str | None]:
        """Return the scope to query, and the user whose runs it covers; None: everyone's."""
        if len(selection.users) == 1:
            return f"user {selection.users[0]}", selection.users[0]
        return (
            ("everyone", None)
            if selection.everyone or selection.users
            else ("mine", self._store.user)
        )

    def _new_files(self, scope: str) -> RunFiles:
        """Build the files of a scope for the querying account, if it is known."""
        asker = "" if self._store.probe is None else self._store.probe.user
        return RunFiles(self._folder, scope, asker=asker, scheduler=self._store.backend.name)

    def _scope_files(self, scope: str) -> RunFiles:
        asker = "" if self._store.probe is None else self._store.probe.user
        if (scope, asker) not in self._files:
            self._files[scope, asker] = self._new_files(scope)
        return self._files[scope, asker]

    async def fetch_runs(
        self,
        span: Span,
        selection: RunSelection = EVERY_RUN,
        progress: Callable[[ArchiveProgress], None] | None = None,
        *,
        stop: asyncio.Event | None = None,
        with_running: bool = False,
        columns: Sequence[str] = RUNS.names,
    ) -> FetchedRuns:
        """The runs that overlap `span`, with these columns of RUNS; only what is not known yet is
        asked for.

        `progress` is called after each slice. Once `stop` is set no more is asked for, and what
        came is returned with what is missing. Where the cluster cannot be asked what is known is
        returned with the `problem`; raises it where nothing at all is known of the span.
        """
        store = self._store
        problem: HpcdashError | None = None
        try:
            await store.open()
        except HpcdashError as error:
            problem = error
        scope, user = self._scope(selection)
        includes_others = selection.everyone or any(name != store.user for name in selection.users)
        async with self._turn:
            files = self._scope_files(scope)
            await asyncio.to_thread(files.load, span)
            reported = HistoryScope()
            # Queried first: a job that ends meanwhile is then in both, and counts once.
            running = (
                await self._fetch_running(user, span) if with_running and problem is None else None
            )
            if problem is None and (includes_others or self._may_be_forgotten(files, span)):
                reported = await self._fetch_scope()
            if includes_others:
                files.see(others=reported.hides_others is False)
            retained_since = (
                None
                if reported.retention_seconds is None
                else int(store.clock.now()) - reported.retention_seconds
            )
            query = _ArchiveQuery(
                store, files, span, user, progress, stop or asyncio.Event(), retained_since
            )
            if problem is None:
                try:
                    await query.run()
                except asyncio.CancelledError:
                    # The answer is stored, even if a caller gives up.
                    files.save()
                    raise
                await asyncio.to_thread(files.save)
                problem = query.problem
            self._waits = None
            now = store.clock.now()
            table, running = await asyncio.to_thread(
                self._selected, files, query.extra, running, span, selection, columns, now
            )
            missing = files.missing(span, query.asked)
            files.release()
            if problem is not None and missing == [span]:
                raise problem
        hides_others = reported.hides_others if includes_others and problem is None else None
        return FetchedRuns(
            table,
            span,
            now,
            tuple(missing),
            problem,
            tuple(query.rejected),
            hides_others,
            retained_since,
            running,
        )

    def _may_be_forgotten(self, files: RunFiles, span: Span) -> bool:
        """Whether the cluster may not keep what is missing: a database does, and a server for a
        while.
        """
        gaps = files.missing(span)
        is_old = bool(gaps) and gaps[0].since < self._store.clock.now() - _SHORT_SECONDS
        return is_old and not self._store.backend.history.is_sliced

    async def _fetch_running(self, user: str | None, span: Span) -> pa.Table | None:
        """Rows of RUNS that run now and began before the span's end; None where they could not be
        asked for.
        """
        try:
            scope = JobScope(user=user, each_task=True)
            jobs = (await self._store.poll(self._store.backend.queue.jobs(scope))).table
        except HpcdashError:
            return None
        return running_runs(jobs, span, self._store.clock.now())

    async def fetch_hides_others(self) -> bool | None:
        """Fetch whether the cluster hides others' ended jobs from the user; None if unknown."""
        return (await self._fetch_scope()).hides_others

    async def _fetch_scope(self) -> HistoryScope:
        """Fetch what the history shows to the user; queried once in a while."""
        user = "" if self._store.probe is None else self._store.probe.user
        requested = self._store.backend.history.scope(user) if user else None
        if requested is None:
            return HistoryScope()
        queried_at, reported = self._history_scopes.get(user, (-_SCOPE_SECONDS, HistoryScope()))
        if time.monotonic() - queried_at >= _SCOPE_SECONDS or user not in self._history_scopes:
            try:
                reported = await self._store.poll(requested)
            except RateLimited:
                return HistoryScope()
            except HpcdashError:
                reported = HistoryScope()
            self._history_scopes[user] = time.monotonic(), reported
        return reported

    def _selected(
        self,
        files: RunFiles,
        extra: Sequence[pa.Table],
        running: pa.Table | None,
        span: Span,
        selection: RunSelection,
        columns: Sequence[str],
        now: float,
    ) -> tuple[pa.Table, pa.Table | None]:
        """The runs of a selection that ended, and those of it that have not."""
        _release_memory()
        selected_by = (
            RUNS.names if selection.expression is not None else ("account", "queue", "state")
        )
        runs = overlapping(files.read(span, [*columns, *selected_by, *WATCHED], extra), span)
        if self._state_folder is not None:
            runs = with_watched(runs, self._state_folder, self._store.name)
        if running is not None:
            running = selection.apply(without_ended(running, runs), now).select(columns)
        runs = selection.apply(runs, now).select(columns)
        _release_memory()
        return runs, running

    def known_waits(self) -> pa.Table:
        """Return the waits of the last 90 days, a table of `waits.compute_waits`; queries nothing.

        They are of everyone's runs or else one's own, as far as they are on this machine's disk;
        read again after a while.
        """
        if self._waits is None or time.monotonic() - self._waits[0] > _WAITS_SECONDS:
            now = int(self._store.clock.now())
            span = Span(now - _WAITS_OF_SECONDS, now)
            waits = compute_waits(RUNS.empty_table())
            for scope in ("everyone", "mine"):
                # They are not kept in memory for this alone.
                files = self._new_files(scope)
                files.load(span)
                waits = compute_waits(overlapping(files.read(span, WAITED), span))
                if waits.num_rows:
                    break
            self._waits = time.monotonic(), waits
        return self._waits[1]


def _texts(column: pa.ChunkedArray) -> pa.Array:
    array = as_array(column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _release_memory() -> None:
    """Give memory that is free back to the system: Arrow's pool, and the C library's, which has one
    a thread.
    """
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        # glibc alone has it.
        ctypes.CDLL(None).malloc_trim(0)


class _ArchiveQuery:
    """Asks for what is not known of a span, the newest first."""

    def __init__(
        self,
        store: QueriedCluster,
        files: RunFiles,
        span: Span,
        user: str | None,
        progress: Callable[[ArchiveProgress], None] | None,
        stop: asyncio.Event,
        retained_since: int | None,
    ) -> None:
        self.store = store
        self.files = files
        self.span = span
        self.user = user
        self.progress = progress
        self.stop = stop
        self.problem: HpcdashError | None = None
        self.rejected: list[str] = []
        # Runs that ended after the span.
        self.extra: list[pa.Table] = []
        # The cluster's clock at the query of the last of it.
        self.queried_until = math.ceil(store.clock.now())
        # Before that the cluster has forgotten all.
        self.retained_since = (
            span.since if retained_since is None else max(retained_since, span.since)
        )
        # The part that was queried too early to be certain.
        self.asked: list[Span] = []
        self._saved_at = time.monotonic()
        self._rows = self._saved_rows = 0

    async def run(self) -> None:
        self._notify()
        try:
            if self.store.backend.history.is_sliced:
                await self._in_slices()
            else:
                await self._at_once()
            if self.span.until < self.queried_until - MINUTE and not self.stop.is_set():
                await self._after_the_span()
        except HpcdashError as error:
            # The frames below hold all that a command printed.
            self.problem = error.with_traceback(None)
        self._notify()

    def missing(self) -> list[Span]:
        """Return the unknown parts of the span that the cluster still stores, oldest first."""
        if self.retained_since >= self.span.until:
            return []
        return self.files.missing(Span(self.retained_since, self.span.until), self.asked)

    async def _in_slices(self) -> None:
        seconds = _FIRST_OF_EVERYONE_SECONDS if self.user is None else _FIRST_SECONDS
        for gap in reversed(self.missing()):
            until = gap.until
            while until > gap.since and not self.stop.is_set():
                since = max(gap.since, until - seconds)
                began = time.monotonic()
                try:
                    parsed = await self._fetch(self._query(since, until))
                except CommandTimedOut:
                    if until - since <= _MIN_SECONDS:
                        raise
                    seconds = max(_MIN_SECONDS, (until - since) // 4)
                    continue
                if parsed is None:
                    return
                if parsed.is_cut and until - since > _MIN_SECONDS:
                    seconds = max(_MIN_SECONDS, (until - since) // 4)
                    continue
                if parsed.is_cut:
                    self.rejected.append(
                        "more jobs ended within 15 minutes than one query can return"
                    )
                await self._keep(parsed, Span(since, until))
                took = max(time.monotonic() - began, 0.01)
                room = min(_SLICE_SECONDS / took, _SLICE_ROWS / max(1, parsed.table.num_rows), 4.0)
                # A short cheap slice does not predict longer ones.
                longest = (until - since) if room < 1 else max(seconds, until - since)
                seconds = min(_MAX_SECONDS, max(_MIN_SECONDS, int(longest * room)))
                until = since

    async def _at_once(self) -> None:
        """All that is missing with one command, to this day."""
        if gaps := self.missing():
            parsed = await self._fetch(self._query(gaps[0].since, self.queried_until))
            if parsed is not None:
                await self._keep(parsed, Span(gaps[0].since, self.queried_until))

    async def _after_the_span(self) -> None:
        """The runs that were there at its end, where what ended since is not known."""
        query = self.store.backend.history.runs_at(self.user, self.span.until)
        if query is None:
            return
        since_then = Span(self.span.until, self.queried_until - _OVERLAP_SECONDS)
        if since_then.seconds > 0 and not self.files.missing(since_then):
            return
        if (parsed := await self._fetch(query)) is not None:
            self.rejected += parsed.rejected
            self.extra.append(parsed.table)

    def _query(self, since: int, until: int) -> Query[ParsedTable]:
        return self.store.backend.history.runs(self.user, since, until, self.queried_until)

    async def _fetch(self, requested: Query[ParsedTable]) -> ParsedTable | None:
        """The answer; None where it was stopped. Waits where our own ceiling has no room."""
        while not self.stop.is_set():
            query = asyncio.ensure_future(self.store.poll(requested))
            stopping = asyncio.ensure_future(self.stop.wait())
            try:
                await asyncio.wait({query, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not query.done():
                    return None
                return query.result()
            except RateLimited:
                wait_seconds = self.store.budget.wait_seconds()
                self._notify(wait_seconds)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), min(max(wait_seconds, 0.1), 1.0))
            finally:
                for task in (query, stopping):
                    task.cancel()
                await asyncio.gather(query, stopping, return_exceptions=True)
        return None

    async def _keep(self, parsed: ParsedTable, span: Span) -> None:
        runs = parsed.table if "run" in parsed.table.column_names else split_runs(parsed.table)
        self.rejected += parsed.rejected
        self._rows += runs.num_rows
        # What ended a moment ago may not be in the accounting yet.
        sure = Span(
            span.since, max(span.since, min(span.until, self.queried_until - _OVERLAP_SECONDS))
        )
        self.asked.append(Span(sure.until, span.until))
        await asyncio.to_thread(self.files.add, runs, sure if sure.seconds > 0 else None)
        self._notify()
        is_late = time.monotonic() - self._saved_at > _SAVE_EVERY_SECONDS
        if is_late or self._rows - self._saved_rows >= _SAVE_EVERY_ROWS:
            self._saved_at, self._saved_rows = time.monotonic(), self._rows
            await asyncio.to_thread(self._save)

    def _save(self) -> None:
        """Write what came.

        What parsing took is not kept beside the week that is joined, nor that beside the rest.
        """
        _release_memory()
        self.files.save()
        _release_memory()

    def _notify(self, wait_seconds: float = 0.0) -> None:
        if self.progress is not None:
            gone = sum(gap.seconds for gap in self.missing())
            seconds = max(0, self.span.until - self.retained_since)
            self.progress(ArchiveProgress(seconds - gone, seconds, self._rows, wait_seconds))
