"""Finished jobs of the last week or any other time, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from hpcdash.domain.columns import as_array
from hpcdash.domain.job_text import format_end
from hpcdash.domain.runs import merge_runs
from hpcdash.domain.spans import LOCAL_ZONE, Span, parse_span
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import HISTORY, Kind
from hpcdash.domain.text import counted
from hpcdash.domain.units import format_span
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.services.usage.efficiency import FAIR_USE, POOR_USE, with_use
from hpcdash.ui.dialogs import Choice, ChoiceDialog, Dialog
from hpcdash.ui.jobs.table import JobsView
from hpcdash.ui.notes import with_notes
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.lines import PlainStatic, TextInput
from hpcdash.ui.widgets.table_rows import Column
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.usage.archive import ArchiveProgress, FetchedRuns

_BAR_CELLS = 24
# Spans in the picker; '' is the default.
_SPANS = {"": "7 days", "30d": "30 days", "90d": "90 days", "365d": "1 year"}
_OTHER = "other"
# The default time from the archive, which has the usage; polls do not.
_MEASURED = "7d"
_USES = frozenset({"cpu_use", "memory_use", "gpu_use", "time_use"})
_EXIT_CELLS = 10
_MAX_EXIT_CELLS = 40


def exit_cell(value: object, row: cells.RowContext) -> cells.Cell:
    """Format the exit of a job; '' if the state suffices, and for an array."""
    has_exit = row["exit_signal"] or row["exit_code"]
    is_array = row.get("_states")
    if not has_exit and (is_array or row["state"] == JobState.TIMEOUT):
        return ""
    return format_end(row)


def use_cell(value: float | None, row: cells.RowContext) -> cells.Cell:
    """Format the used percentage of the request: `71`."""
    if value is None:
        return ""
    style = cells.GOOD
    if value < FAIR_USE:
        style = cells.BAD if value < POOR_USE else cells.WARNING
    return f"{100 * value:.0f}", style


class SpanDialog(Dialog[tuple[str, str] | None]):
    """Dialog for a time: since and until."""

    def __init__(self, check: Callable[[str, str], Span], since: str, until: str) -> None:
        super().__init__("Jobs in a time range")
        self._check = check
        self._typed = (since, until)

    def compose_body(self) -> ComposeResult:
        yield PlainStatic("since: 90d, 12h, yesterday, 2026-01-01", classes="label")
        yield TextInput(self._typed[0], id="since", compact=True)
        yield PlainStatic("until: same format, or empty for now", classes="label")
        yield TextInput(self._typed[1], id="until", compact=True)
        yield PlainStatic(classes="warned", id="problem")

    def format_keys(self) -> str:
        return "enter apply · tab next field · esc cancel"

    def on_mount(self) -> None:
        self.query_one("#since", Input).focus()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        since = self.query_one("#since", Input).value.strip()
        until = self.query_one("#until", Input).value.strip()
        try:
            self._check(since, until)
        except UsageError as error:
            self.query_one("#problem", PlainStatic).update(f"{error.message}. {error.next_step}")
        else:
            self.dismiss((since, until))


class HistoryView(JobsView):
    """Jobs of the accounting database."""

    DEFAULT_CSS = """
    HistoryView > #progress {
        dock: top; height: 1; padding: 0 1; color: $table-dim; display: none;
    }
    """
    SPEC = HISTORY
    NEWEST_FIRST = True
    # The order of the answer, the newest end first.
    DEFAULT_SORT = ""

    def __init__(self, session: ClusterSession, **rest: Any) -> None:
        # Since and until, as typed; ('', ''): the last 7 days, which are polled.
        self._span = ("", "")
        self._fetched: FetchedRuns | None = None
        self._jobs: pa.Table | None = None
        self._stop = asyncio.Event()
        self._progress: ArchiveProgress | None = None
        # Whether other users' jobs are hidden; None: unknown.
        self._hides_others: bool | None = None
        super().__init__(session, **rest)

    def compose(self) -> ComposeResult:
        yield PlainStatic(id="progress")
        yield from super().compose()

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {
            **super().cell_functions(),
            "exit": exit_cell,
            "elapsed": cells.duration_cell,
            **dict.fromkeys(_USES, use_cell),
        }

    def fitted(self, column: Column, table: pa.Table) -> Column:
        """Fit the column to the table; the exit column to its longest reason."""
        if column.key != "exit_code":
            return super().fitted(column, table)
        has_code = pc.greater(pc.fill_null(as_array(table["exit_code"]), 0), 0)
        has_signal = pc.greater(pc.fill_null(as_array(table["exit_signal"]), 0), 0)
        has_no_exit = pc.invert(pc.or_(has_code, has_signal))
        reasons = as_array(table["reason"]).cast(pa.string()).filter(has_no_exit)
        longest = pc.max(pc.utf8_length(reasons)).as_py() or 0
        return replace(column, longest=max(_EXIT_CELLS, min(longest, _MAX_EXIT_CELLS)))

    def placeholder(self) -> str:
        has_owners = bool(self.whose(everyone=False))
        jobs = "None of your jobs" if has_owners and not self.everyone else "No jobs"
        if self._span != ("", ""):
            return f"{jobs} ended in this interval ({self._format_span()}). w changes it"
        text = f"{jobs} ended in the last 7 days. w shows older jobs"
        if not has_owners:
            return text
        return f"{text}, m shows only yours" if self.everyone else f"{text}, m shows everyone's"

    def scope_crumbs(self) -> Sequence[str]:
        whose = self.whose(everyone=self.everyone)
        if self.everyone and self._hides_others:
            whose = ("everyone's (other users' jobs are hidden from you)",)
        return ("history", *whose, self._format_span())

    def _format_span(self) -> str:
        since, until = self._span
        if until:
            return f"{since} to {until}"
        if since == _MEASURED:
            since = ""
        return _SPANS.get(since, f"since {since}")

    def store_changed(self, changed: Changed) -> None:
        if self._span == ("", "") and changed.kind in (None, self.kind):
            self.reload()
            if changed.kind is Kind.HISTORY_EVERYONE and self._hides_others is None:
                start_worker(self, self._check_hidden, group="hidden", exclusive=True)

    async def _check_hidden(self) -> None:
        self._show_hidden(await self.session.store.archive.fetch_hides_others())

    def _show_hidden(self, hides_others: bool | None) -> None:
        if hides_others is not None and hides_others != self._hides_others:
            self._hides_others = hides_others
            self.post_message(self.CrumbsChanged())

    # -- usage columns

    def on_mount(self) -> None:
        self._fetch_use()

    def choose_columns(self, names: Sequence[str]) -> None:
        super().choose_columns(names)
        self._fetch_use()

    def _fetch_use(self) -> None:
        """Load the last 7 days from the archive where a column of measured use is shown."""
        if self._span == ("", "") and not _USES.isdisjoint(self.column_names):
            self._take_span((_MEASURED, ""))

    # -- other time spans

    @property
    def kinds(self) -> frozenset[Kind]:
        return super().kinds if self._span == ("", "") else frozenset()

    @property
    def main_kind(self) -> Kind | None:
        return super().main_kind if self._span == ("", "") else None

    def taken_at(self) -> float | None:
        if self._span == ("", ""):
            return super().taken_at()
        return None if self._fetched is None else self._fetched.taken_at

    def source(self) -> pa.Table | None:
        if self._span == ("", ""):
            return super().source()
        return None if self._jobs is None else with_notes(self._jobs, self._notes.load())

    def _format_waiting(self) -> str:
        if self._span == ("", ""):
            return super()._format_waiting()
        if self._error is not None:
            return "No data for this interval. ! error · ctrl+r retry"
        return "loading …" if self._progress is not None else "Not loaded. ctrl+r loads it"

    def do_span(self) -> None:
        """Choose the time of the jobs that are shown."""
        choices = [Choice(since, label=label) for since, label in _SPANS.items()]
        choices.append(Choice(_OTHER, label="other …", text="from and until"))
        since, until = self._span
        present = since if since in _SPANS and not until else _OTHER
        self.app.push_screen(
            ChoiceDialog("History: time range", choices, self._take_choice, present)
        )

    def _take_choice(self, value: str) -> None:
        if value == _OTHER:
            # Called later, as the closing dialog would lose the answer.
            self.call_later(self._prompt_span)
        else:
            self._take_span((value, ""))

    def _prompt_span(self) -> None:
        self.app.push_screen(SpanDialog(self._parse, *self._span), self._take_span)

    def _parse(self, since: str, until: str) -> Span:
        zone = self.session.zone or LOCAL_ZONE
        return parse_span(since, until, now_epoch=self.session.store.clock.now(), zone=zone)

    def _take_span(self, span: tuple[str, str] | None) -> None:
        if span is None or span == self._span:
            return
        self._stop.set()
        self._span = span
        self._jobs = self._fetched = self._error = None
        if span == ("", ""):
            self._show_progress(None)
            self.session.poller.poll_now()
        else:
            self._start_span()
        self.reload()
        self.post_message(self.CrumbsChanged())

    def _start_span(self) -> None:
        self._stop.set()
        self._stop = asyncio.Event()
        start_worker(
            self,
            self._fetch_span,
            self._parse(*self._span),
            self._stop,
            group="span",
            exclusive=True,
        )

    async def _fetch_span(self, span: Span, stop: asyncio.Event) -> None:
        from hpcdash.services.usage.archive import ArchiveProgress, RunSelection

        archive = self.session.store.archive
        selection = RunSelection(everyone=self.everyone)
        self._show_progress(ArchiveProgress(0, span.seconds, 0))
        try:
            fetched = await archive.fetch_runs(span, selection, self._show_progress, stop=stop)
            jobs = await asyncio.to_thread(lambda: merge_runs(with_use(fetched.table)))
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        else:
            self._fetched = fetched
            self._jobs = jobs
            self._error = fetched.problem
            self._show_hidden(fetched.hides_others)
            if fetched.unasked_seconds and fetched.problem is None:
                left = format_span(fetched.unasked_seconds)
                text = f"stopped: {left} of the time range was not loaded. ctrl+r loads the rest"
                self.notify(text, timeout=6)
            if forgotten := fetched.format_forgotten():
                self.notify(forgotten, timeout=8)
        finally:
            if self._stop is stop:
                self._show_progress(None)
        self.reload()
        self.post_message(self.CrumbsChanged())

    def _show_progress(self, progress: ArchiveProgress | None) -> None:
        self._progress = progress
        if not self.is_live:
            return
        line = self.query_one("#progress", PlainStatic)
        line.display = progress is not None
        if progress is not None:
            bar = "".join(piece for piece, _ in cells.usage_bar(progress.fraction, _BAR_CELLS))
            text = Text(bar, no_wrap=True, overflow="ellipsis")
            text.append(
                f" {progress.fraction:.0%} of {self._format_span()}, "
                f"{counted(progress.runs, 'run')}"
            )
            if progress.wait_seconds:
                text.append(f", next command in {progress.wait_seconds:.0f} s")
            line.update(text.append(" · esc stops"))

    def do_refresh(self) -> None:
        if self._span == ("", ""):
            self.session.poller.poll_now()
        elif self._progress is None:
            self._start_span()

    def do_mine(self) -> None:
        self._jobs = None
        super().do_mine()
        if self._span != ("", ""):
            self._start_span()

    def do_escape(self) -> bool:
        if self._progress is not None and not self._stop.is_set():
            self._stop.set()
            return True
        return super().do_escape()
