"""The usage view: a report of what runs used over a span, drawn to the width of the screen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize

from hpcdash.domain.spans import LOCAL_ZONE, Span, parse_span
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_span
from hpcdash.errors import HpcdashError
from hpcdash.services.session import ClusterSession
from hpcdash.ui.dialogs import Choice, ChoiceDialog
from hpcdash.ui.jobs.history import SpanDialog
from hpcdash.ui.view import View
from hpcdash.ui.widgets import cells
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker

# They import numpy and plotext, with the first report.
if TYPE_CHECKING:
    from hpcdash.services.usage.archive import ArchiveProgress, FetchedRuns
    from hpcdash.services.usage.charts import Line
    from hpcdash.services.usage.report import UsageReport

_GROUPINGS = ("queue", "user", "account", "name", "day", "week")
_SPANS = {"7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "1 year"}
_OTHER = "other"
_BAR_CELLS = 24
_ROLES = (
    "title",
    "dim",
    "value",
    "bad",
    "warn",
    "bar",
    "bad-bar",
    "heat-1",
    "heat-2",
    "heat-3",
    "heat-4",
)


class UsageView(View):
    """One's own or everyone's usage, fetched when it is opened, and again on ctrl+r."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"usage--{role}" for role in _ROLES}
    DEFAULT_CSS = """
    UsageView VerticalScroll { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    UsageView #report { width: 1fr; height: auto; }
    UsageView > #progress { dock: top; height: 1; padding: 0 1; color: $table-dim; display: none; }
    UsageView {
        & > .usage--title { color: $foreground; text-style: bold; }
        & > .usage--dim { color: $table-dim; }
        & > .usage--value { color: $foreground; text-style: bold; }
        & > .usage--bad { color: $error; }
        & > .usage--warn { color: $warning; }
        & > .usage--bar { color: $primary; }
        & > .usage--bad-bar { color: $error; }
        & > .usage--heat-1 { color: $primary 40%; }
        & > .usage--heat-2 { color: $primary 60%; }
        & > .usage--heat-3 { color: $primary 80%; }
        & > .usage--heat-4 { color: $primary; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll(1)", "down", show=False, priority=True),
        Binding("up,k", "scroll(-1)", "up", show=False, priority=True),
    ]

    def __init__(
        self,
        session: ClusterSession,
        *,
        everyone: bool = False,
        since: str = "30d",
        grouping: str = "queue",
    ) -> None:
        super().__init__(session)
        self.everyone = everyone
        self.report: UsageReport | None = None
        self._span = (since, "")
        self._by = grouping
        self._fetched: FetchedRuns | None = None
        self._progress: ArchiveProgress | None = None
        self._stop = asyncio.Event()

    def compose(self) -> ComposeResult:
        yield PlainStatic(id="progress")
        with VerticalScroll():
            yield PlainStatic("loading …", id="report")

    # -- values for the screen

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset()

    def taken_at(self) -> float | None:
        return None if self._fetched is None else self._fetched.taken_at

    def crumbs(self) -> Sequence[str]:
        since, until = self._span
        span = f"{since} to {until}" if until else _SPANS.get(since, f"since {since}")
        return ("usage", *self.whose(everyone=self.everyone), span, f"by {self._by}")

    def hint(self) -> str:
        return "  ·  ".join(self.report.notes) if self.report is not None else ""

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False, immediate=True)

    def take_focus(self) -> None:
        self.screen.set_focus(self.query_one(VerticalScroll))

    def on_mount(self) -> None:
        self.take_focus()
        self._start_fetch()

    def shown(self) -> None:
        self.take_focus()

    # -- keys

    def do_mine(self) -> None:
        self.everyone = not self.everyone
        self._start_fetch()

    def do_grouping(self) -> None:
        """Group the table by the next of queue, user, account, name, day and week."""
        self._by = _GROUPINGS[(_GROUPINGS.index(self._by) + 1) % len(_GROUPINGS)]
        self._paint()
        self.post_message(self.CrumbsChanged())

    def do_refresh(self) -> None:
        if self._progress is None:
            self._start_fetch()

    def do_span(self) -> None:
        choices = [Choice(since, label=label) for since, label in _SPANS.items()]
        choices.append(Choice(_OTHER, label="other …", text="from and until"))
        present = self._span[0] if self._span[0] in _SPANS and not self._span[1] else _OTHER
        self.app.push_screen(ChoiceDialog("Usage: time range", choices, self._take_choice, present))

    def _take_choice(self, value: str) -> None:
        if value == _OTHER:
            self.app.push_screen(SpanDialog(self._parse, *self._span), self._take_span)
        else:
            self._take_span((value, ""))

    def _take_span(self, span: tuple[str, str] | None) -> None:
        if span is not None and span != self._span:
            self._span = span
            self._start_fetch()

    def do_save_report(self) -> None:
        """Save the report as an HTML page in the current folder."""
        if self.report is None:
            self.notify("no report yet", severity="warning", timeout=3)
            return
        from hpcdash.services.usage.html_page import report_page

        cluster = re.sub(r"[^\w-]", "_", self.session.name)
        file = Path(f"usage-{cluster}-{datetime.now():%Y%m%d-%H%M%S}.html")
        title = f"Usage on {self.session.store.title}"
        written_at = datetime.fromtimestamp(self.session.store.clock.now(), UTC)
        page = report_page(self.report, title, " · ".join(self.report.notes), written_at)
        try:
            # "x" does not overwrite an existing file.
            with file.open("x", encoding="utf-8") as out:
                out.write(page)
        except OSError as error:
            self.notify(f"{file}: {error.strerror}", severity="error")
        else:
            self.notify(f"saved {file}")

    def do_escape(self) -> bool:
        if self._progress is not None and not self._stop.is_set():
            self._stop.set()
            return True
        return False

    # -- queries

    def _parse(self, since: str, until: str) -> Span:
        zone = self.session.zone or LOCAL_ZONE
        return parse_span(since, until, now_epoch=self.session.store.clock.now(), zone=zone)

    def _start_fetch(self) -> None:
        """Fetch the span; the previous report stays until it has arrived."""
        self._stop.set()
        self._stop = asyncio.Event()
        self.post_message(self.CrumbsChanged())
        start_worker(
            self, self._fetch, self._parse(*self._span), self._stop, group="span", exclusive=True
        )

    async def _fetch(self, span: Span, stop: asyncio.Event) -> None:
        from hpcdash.services.usage.archive import ArchiveProgress, RunSelection
        from hpcdash.services.usage.report import RUN_COLUMNS

        everyone = self.everyone
        self._show_progress(ArchiveProgress(0, span.seconds, 0))
        try:
            archive = self.session.store.archive
            fetched = await archive.fetch_runs(
                span,
                RunSelection(everyone),
                self._show_progress,
                stop=stop,
                with_running=True,
                columns=RUN_COLUMNS,
            )
            report = await asyncio.to_thread(self._build, fetched, everyone)
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        else:
            self._fetched = fetched
            self.report = report
            self._error = fetched.problem
            if fetched.unasked_seconds and fetched.problem is None:
                gone = format_span(fetched.unasked_seconds)
                self.notify(
                    f"stopped: {gone} of the time range was not loaded. ctrl+r loads the rest",
                    timeout=6,
                )
        finally:
            if self._stop is stop:
                self._show_progress(None)
        self._paint()
        self.post_message(self.CrumbsChanged())

    def _build(self, fetched: FetchedRuns, everyone: bool) -> UsageReport:
        from hpcdash.services.usage.report import build_report, runs_and_notes

        runs, notes = runs_and_notes(fetched, everyone=everyone, user=self.session.store.user)
        return build_report(runs, fetched.span, self.session.zone or LOCAL_ZONE, notes)

    def _show_progress(self, progress: ArchiveProgress | None) -> None:
        self._progress = progress
        if not self.is_live:
            return
        line = self.query_one("#progress", PlainStatic)
        line.display = progress is not None
        if progress is not None:
            bar = "".join(piece for piece, _ in cells.usage_bar(progress.fraction, _BAR_CELLS))
            text = f" {progress.fraction:.0%} of the time, {counted(progress.runs, 'run')}"
            if progress.wait_seconds:
                text += f", next command in {progress.wait_seconds:.0f} s"
            line.update(Text(f"{bar}{text} · esc stops", no_wrap=True, overflow="ellipsis"))

    # -- drawing

    def on_resize(self, event: Resize) -> None:
        self._paint()

    def _paint(self) -> None:
        if not self.is_live:
            return
        page = self.query_one("#report", PlainStatic)
        if self.report is not None:
            start_worker(self, self._draw, self.report, page, group="draw", exclusive=True)
        elif self._error is not None:
            page.update("No data for this interval. ! error · ctrl+r retry")

    async def _draw(self, report: UsageReport, page: PlainStatic) -> None:
        width, height = self.query_one(VerticalScroll).scrollable_content_region.size
        if width <= 2:
            return
        lines = await asyncio.to_thread(self._lines, report, width - 2, height, self._by)
        styles = {}
        for role in _ROLES:
            style = self.get_component_rich_style(f"usage--{role}")
            styles[role] = Style(color=style.color, bold=style.bold)
        text = Text(no_wrap=True, end="")
        for line in lines:
            for piece, role in line:
                text.append(piece, styles.get(role, Style()))
            text.append("\n")
        page.update(text)

    @staticmethod
    def _lines(report: UsageReport, width: int, height: int, by: str) -> list[Line]:
        from hpcdash.services.usage.charts import draw_report, format_report_span

        title = visible(format_report_span(report))
        return [((title, "title"),), (), *draw_report(report, width, by, height)]
