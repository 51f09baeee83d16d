"""`hpcdash history` over any time: from the archive of runs, which queries only what is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from msgspec import Struct

from hpcdash.cli.jobs import (
    format_empty,
    parse_filter,
    print_table,
    warn_rejected,
    warn_unknown_gpus,
    with_session,
)
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_notes
from hpcdash.config.problems import did_you_mean
from hpcdash.domain import query
from hpcdash.domain.runs import merge_runs
from hpcdash.domain.schema import RUNS
from hpcdash.domain.spans import LOCAL_ZONE, parse_span
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import HISTORY, Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_span
from hpcdash.errors import UsageError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.archive import OTHERS_HIDDEN, ArchiveProgress, FetchedRuns, RunSelection

DEFAULT_SINCE = "7d"


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
