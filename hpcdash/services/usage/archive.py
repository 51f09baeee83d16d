"""Runs of finished jobs over any time span: queried in slices, and cached on this machine."""

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
# Length of the first slice for one user and for everyone; later ones depend on the answers.
_FIRST_SECONDS = 4 * WEEK
_FIRST_OF_EVERYONE_SECONDS = DAY
_MIN_SECONDS = 15 * MINUTE
_MAX_SECONDS = 366 * DAY
# Target duration and size of a slice's query.
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
OTHERS_HIDDEN = "The cluster hides other users' ended jobs from you"


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
        conditions: list[FilterCondition] = []
        for column, requested in lists.items():
            if requested:
                patterns = tuple(Pattern(text, "*" in text) for text in requested)
                conditions.append(TextIs(column, patterns))
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
    """Rows of domain.schema.RUNS that overlap a span, newest end first, with requested columns.

    `missing` lists the unknown parts of the span, oldest first: they were not queried in time, the
    cluster stores finished jobs only since `retained_since`, or `problem` prevented the query.
    `rejected` describes unreadable rows. `hides_others`: whether the cluster hides others' runs
    from the user, None if unknown. `running` are the unfinished runs, if requested: `ends_at` is
    null.
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
        # Rounded up, as this machine's cache may still have some of it.
        unit = MINUTE
        if self._forgotten_seconds >= DAY:
            unit = DAY if self._forgotten_seconds >= 10 * DAY else HOUR
        forgotten = format_span(-(-self._forgotten_seconds // unit) * unit)
        return (
            "The cluster keeps ended jobs for "
            f"{format_span(self.taken_at - self.retained_since)}: {forgotten} of the time range "
            "before that are missing"
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
        # Spans are fetched one by one: each queries only what earlier ones did not.
        self._turn = asyncio.Lock()

    def _scope(self, selection: RunSelection) -> tuple[str, str | None]:
        """Return the scope to query, and the user whose runs it covers; None: everyone's."""
        if len(selection.users) == 1:
            return f"user {selection.users[0]}", selection.users[0]
        if selection.everyone or selection.users:
            return "everyone", None
        return "mine", self._store.user

    def _new_files(self, scope: str) -> RunFiles:
        """Build the files of a scope for the querying account, if it is known."""
        account = "" if self._store.probe is None else self._store.probe.user
        return RunFiles(self._folder, scope, asker=account, scheduler=self._store.backend.name)

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
        """Fetch the runs that overlap `span`, with these columns of RUNS; known ones are cached.

        `progress` is called after each slice. Once `stop` is set, no more queries are sent, and the
        rest is reported as missing. If the cluster cannot be queried, the known runs are returned
        with the `problem`, which is raised if none of the span is known.
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
            account = "" if store.probe is None else store.probe.user
            files = self._files.get((scope, account))
            if files is None:
                files = self._files[scope, account] = self._new_files(scope)
            await asyncio.to_thread(files.load, span)
            reported = HistoryScope()
            running = None
            if problem is None:
                if with_running:
                    # Queried first: a job that ends meanwhile is then in both, and counts once.
                    running = await self._fetch_running(user, span)
                if includes_others or self._may_be_forgotten(files, span):
                    reported = await self._fetch_scope()
            if includes_others:
                files.see(others=reported.hides_others is False)
            retained_since = None
            if reported.retention_seconds is not None:
                retained_since = int(store.clock.now()) - reported.retention_seconds
            query = _ArchiveQuery(
                store,
                files,
                span,
                user,
                progress=progress,
                stop=stop or asyncio.Event(),
                retained_since=retained_since,
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
                self._select,
                files,
                query.extra,
                running,
                span=span,
                selection=selection,
                columns=columns,
                now=now,
            )
            missing = files.missing(span, query.uncertain)
            files.release()
            if problem is not None and missing == [span]:
                raise problem
        hides_others = reported.hides_others if includes_others and problem is None else None
        return FetchedRuns(
            table=table,
            span=span,
            taken_at=now,
            missing=tuple(missing),
            problem=problem,
            rejected=tuple(query.rejected),
            hides_others=hides_others,
            retained_since=retained_since,
            running=running,
        )

    def _may_be_forgotten(self, files: RunFiles, span: Span) -> bool:
        """Whether the missing runs may be too old for the cluster, if it has no database."""
        gaps = files.missing(span)
        is_old = bool(gaps) and gaps[0].since < self._store.clock.now() - _SHORT_SECONDS
        return is_old and not self._store.backend.history.is_sliced

    async def _fetch_running(self, user: str | None, span: Span) -> pa.Table | None:
        """Fetch rows of RUNS that run now and started before the span's end; None on failure."""
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

    def _select(
        self,
        files: RunFiles,
        extra: Sequence[pa.Table],
        running: pa.Table | None,
        *,
        span: Span,
        selection: RunSelection,
        columns: Sequence[str],
        now: float,
    ) -> tuple[pa.Table, pa.Table | None]:
        """Return the finished and the running runs of a selection."""
        _release_memory()
        needed = [*columns, "account", "queue", "state", *WATCHED]
        if selection.expression is not None:
            needed += RUNS.names
        runs = overlapping(files.read(span, needed, extra), span)
        if self._state_folder is not None:
            runs = with_watched(runs, self._state_folder, self._store.name)
        if running is not None:
            running = selection.apply(without_ended(running, runs), now).select(columns)
        runs = selection.apply(runs, now).select(columns)
        _release_memory()
        return runs, running

    def known_waits(self) -> pa.Table:
        """Return the waits of the last 90 days, a table of `waits.compute_waits`; queries nothing.

        They are of everyone's runs or else one's own in this machine's cache, reloaded after a
        while.
        """
        if self._waits is None or time.monotonic() - self._waits[0] > _WAITS_SECONDS:
            now = int(self._store.clock.now())
            span = Span(now - _WAITS_OF_SECONDS, now)
            waits = compute_waits(RUNS.empty_table())
            for scope in ("everyone", "mine"):
                # These files are not kept in memory.
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
    """Return free memory of Arrow's pool and of the C library's, one per thread, to the system."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        # Only glibc has it.
        ctypes.CDLL(None).malloc_trim(0)


class _ArchiveQuery:
    """Queries the unknown parts of a span, the newest first."""

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
        # Parts that were queried too early to be certain.
        self.uncertain: list[Span] = []
        self._saved_at = time.monotonic()
        self._rows = 0
        self._saved_rows = 0

    async def run(self) -> None:
        self._notify()
        try:
            if self.store.backend.history.is_sliced:
                await self._fetch_slices()
            elif gaps := self.missing():
                # One command for everything until now.
                parsed = await self._fetch(self._query(gaps[0].since, self.queried_until))
                if parsed is not None:
                    await self._add(parsed, Span(gaps[0].since, self.queried_until))
            if self.span.until < self.queried_until - MINUTE and not self.stop.is_set():
                await self._fetch_runs_at_end()
        except HpcdashError as error:
            # Its frames refer to the output of a command.
            self.problem = error.with_traceback(None)
        self._notify()

    def missing(self) -> list[Span]:
        """Return the unknown parts of the span that the cluster still stores, oldest first."""
        if self.retained_since >= self.span.until:
            return []
        return self.files.missing(Span(self.retained_since, self.span.until), self.uncertain)

    async def _fetch_slices(self) -> None:
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
                await self._add(parsed, Span(since, until))
                elapsed = max(time.monotonic() - began, 0.01)
                rows = max(1, parsed.table.num_rows)
                factor = min(_SLICE_SECONDS / elapsed, _SLICE_ROWS / rows, 4.0)
                # A short cheap slice does not predict longer ones.
                longest = (until - since) if factor < 1 else max(seconds, until - since)
                seconds = min(_MAX_SECONDS, max(_MIN_SECONDS, int(longest * factor)))
                until = since

    async def _fetch_runs_at_end(self) -> None:
        """Fetch the runs at the span's end, if later ends are unknown."""
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
        """Fetch an answer, after waiting for our own rate limit; None if stopped."""
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

    async def _add(self, parsed: ParsedTable, span: Span) -> None:
        runs = parsed.table if "run" in parsed.table.column_names else split_runs(parsed.table)
        self.rejected += parsed.rejected
        self._rows += runs.num_rows
        # Jobs that ended a moment ago may not be in the accounting yet.
        certain_until = max(span.since, min(span.until, self.queried_until - _OVERLAP_SECONDS))
        certain = Span(span.since, certain_until)
        self.uncertain.append(Span(certain_until, span.until))
        await asyncio.to_thread(self.files.add, runs, certain if certain.seconds > 0 else None)
        self._notify()
        is_late = time.monotonic() - self._saved_at > _SAVE_EVERY_SECONDS
        if is_late or self._rows - self._saved_rows >= _SAVE_EVERY_ROWS:
            self._saved_at = time.monotonic()
            self._saved_rows = self._rows
            await asyncio.to_thread(self._save)

    def _save(self) -> None:
        """Write the new runs, with little memory: parsing, joining and writing do not add up."""
        _release_memory()
        self.files.save()
        _release_memory()

    def _notify(self, wait_seconds: float = 0.0) -> None:
        if self.progress is not None:
            gone = sum(gap.seconds for gap in self.missing())
            seconds = max(0, self.span.until - self.retained_since)
            self.progress(ArchiveProgress(seconds - gone, seconds, self._rows, wait_seconds))
