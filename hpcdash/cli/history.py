"""`hpcdash history` over any time: from the archive of runs, which queries only what is missing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.cli.jobs import (
    cluster_entry,
    exit_if_none_answered,
    format_empty,
    on_all_clusters,
    parse_filter,
    print_everywhere,
    print_table,
    warn_rejected,
    warn_unknown_gpus,
    with_session,
)
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_notes
from hpcdash.config.problems import did_you_mean
from hpcdash.domain import query
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.runs import merge_runs
from hpcdash.domain.schema import ALL_JOBS, RUNS
from hpcdash.domain.spans import LOCAL_ZONE, parse_span
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import ALL_HISTORY, HISTORY, Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_span
from hpcdash.errors import UsageError
from hpcdash.services.cluster.everywhere import ClusterAnswer, join_jobs, query_clusters
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.archive import OTHERS_HIDDEN, ArchiveProgress, FetchedRuns, RunSelection

DEFAULT_SINCE = "7d"
# Of several clusters, each has at most so long for a span that is not known yet.
_CLUSTER_SECONDS = 60.0


class HistoryOptions(Struct, frozen=True):
    """Values of --since, --until and the options that select jobs; '' by default."""

    since: str = ""
    until: str = ""
    user: str = ""
    account: str = ""
    queue: str = ""
    state: str = ""
    name: str = ""

    @property
    def is_plain(self) -> bool:
        """Return whether all are defaults: the last 7 days, as in the dashboard."""
        return self == HistoryOptions()

    def selection(self, *, everyone: bool) -> RunSelection:
        """Return the selection. Raises UsageError for an invalid state."""
        states = _split(self.state.lower())
        if unknown := [state for state in states if state not in ENDED]:
            raise UsageError(
                f"--state: {visible(unknown[0])} is not an end "
                f"state{did_you_mean(unknown[0], sorted(ENDED))}",
                f"One or more of: {', '.join(sorted(ENDED))}.",
            )
        return RunSelection(
            everyone,
            users=_split(self.user),
            accounts=_split(self.account),
            queues=_split(self.queue),
            states=states,
            names=(self.name,) if self.name else (),
        )

    def format_empty(self, all_rows: int, *, mine: bool) -> str:
        """Format the reason that no job is listed, of `all_rows` before the filter."""
        span = "this interval" if self.since or self.until else "the last 7 days"
        return format_empty(HISTORY, mine=mine and not self.user, all_rows=all_rows, span=span)


def _split(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


async def fetch_runs(
    session: ClusterSession,
    options: HistoryOptions,
    *,
    everyone: bool,
    with_running: bool = False,
    columns: Sequence[str] = RUNS.names,
) -> FetchedRuns:
    """Fetch the selected runs, with a progress line on a terminal's stderr.

    Raises UsageError for an invalid time.
    """
    zone = session.zone or LOCAL_ZONE
    selection = options.selection(everyone=everyone)
    await session.store.open()
    now = session.store.clock.now()
    span = parse_span(options.since or DEFAULT_SINCE, options.until, now_epoch=now, zone=zone)
    bar = _ProgressLine()
    try:
        return await session.store.archive.fetch_runs(
            span, selection, bar.show, with_running=with_running, columns=columns
        )
    finally:
        bar.clear()


def warn_gaps(fetched: FetchedRuns) -> None:
    """Print to stderr the unreadable rows, the times without data, and that jobs are hidden."""
    warn_rejected(fetched.rejected)
    if seconds := fetched.unasked_seconds:
        print_notes(f"{format_span(seconds)} could not be fetched")
    for note in (fetched.format_forgotten(), OTHERS_HIDDEN if fetched.hides_others else ""):
        if note:
            print_notes(f"{note[0].lower()}{note[1:]}")


def run_history(
    common: CommonOptions, options: HistoryOptions, *, expression: str, mine: bool, form: str
) -> None:
    """Print the finished jobs of a time as a table, JSON or CSV.

    If the cluster stops answering, prints the known jobs and raises the error.
    """
    requested = parse_filter(expression, Kind.HISTORY)
    options.selection(everyone=not mine)

    async def work(session: ClusterSession) -> tuple[FetchedRuns, ClusterSession]:
        return await fetch_runs(session, options, everyone=not mine), session

    fetched, session = with_session(common, work)
    jobs = merge_runs(fetched.table)
    table = query.apply(jobs, requested, fetched.taken_at)
    warn_unknown_gpus(jobs, requested, fetched.taken_at)
    warn_gaps(fetched)
    snapshot = Snapshot(Kind.HISTORY, table, fetched.taken_at, fetched.rejected)
    print_table(HISTORY, snapshot, form, session)
    if form == "table" and not table.num_rows:
        print(options.format_empty(jobs.num_rows, mine=mine), file=sys.stderr)
    if fetched.problem is not None:
        raise fetched.problem


def run_history_everywhere(
    common: CommonOptions, options: HistoryOptions, *, expression: str, mine: bool, form: str
) -> None:
    """Print the finished jobs of a time on all configured clusters.

    Exits with the status of an unreachable cluster if none answered.
    """
    requested = query.parse(expression, ALL_JOBS, LOCAL_ZONE)
    answers = fetch_runs_everywhere(common, options, everyone=not mine)
    now = max(answer.session.store.clock.now() for answer in answers)
    tables = []
    entries = []
    for answer in answers:
        fetched = answer.value
        error = answer.error if fetched is None else fetched.problem
        entry = cluster_entry(answer.session, error)
        if fetched is not None:
            tables.append((answer.session.name, merge_runs(fetched.table)))
            entry["taken_at"] = format_utc(fetched.taken_at)
            entry["rejected_rows"] = len(fetched.rejected)
        entries.append(entry)
    table = query.apply(join_jobs(tables), requested, now)
    if table.num_rows:
        newest_first = [("ends_at", "descending"), ("_number", "descending")]
        table = table.take(pc.sort_indices(table, sort_keys=newest_first))
    print_everywhere(ALL_HISTORY, table, entries, form, now)
    exit_if_none_answered([answer.error for answer in answers])


def fetch_runs_everywhere(
    common: CommonOptions,
    options: HistoryOptions,
    *,
    everyone: bool,
    with_running: bool = False,
    columns: Sequence[str] = RUNS.names,
) -> list[ClusterAnswer[FetchedRuns]]:
    """Fetch the selected runs of all configured clusters; problems go to stderr, by cluster.

    Raises UsageError for an invalid time or state.
    """
    selection = options.selection(everyone=everyone)
    zone = LOCAL_ZONE
    parse_span(options.since or DEFAULT_SINCE, options.until, now_epoch=time.time(), zone=zone)

    async def fetch(session: ClusterSession) -> FetchedRuns:
        await session.store.open()
        now = session.store.clock.now()
        since = options.since or DEFAULT_SINCE
        span = parse_span(since, options.until, now_epoch=now, zone=zone)
        return await session.store.archive.fetch_runs(
            span, selection, with_running=with_running, columns=columns
        )

    async def work(sessions: Sequence[ClusterSession]) -> list[ClusterAnswer[FetchedRuns]]:
        return await query_clusters(sessions, fetch, limit_seconds=_CLUSTER_SECONDS)

    answers = on_all_clusters(common, work)
    for answer in answers:
        name = answer.session.name
        error = answer.error
        if answer.value is not None:
            error = answer.value.problem
            warn_rejected([f"{name}: {row}" for row in answer.value.rejected])
            if seconds := answer.value.unasked_seconds:
                print_notes(f"{name}: {format_span(seconds)} could not be fetched")
        if error is not None:
            print_notes(f"{name}: {error.message}")
    return answers


class _ProgressLine:
    """Progress in one line of a terminal's stderr."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
        self._has_written = False

    def show(self, progress: ArchiveProgress) -> None:
        if not self._is_shown or progress.fraction >= 1:
            return
        text = (
            f"history: {progress.fraction:.0%}, {counted(progress.runs, 'run')}; ctrl+c stops "
            "and keeps the rows so far"
        )
        if progress.wait_seconds:
            text = f"{text} (next command in {progress.wait_seconds:.0f} s)"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        self._has_written = True

    def clear(self) -> None:
        if self._has_written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
