"""Live log of a job: one stream, or both side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import DescendantFocus
from textual.widget import Widget
from textual.widgets import Input

from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import LogFiles, OtherLog
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, clip_path, visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import Changed
from hpcdash.services.jobs.action_text import format_error
from hpcdash.services.jobs.lookup import known_row, known_tasks
from hpcdash.services.logs.locate import LogPlace, fetch_other_logs, locate_logs
from hpcdash.services.session import ClusterSession
from hpcdash.ui.dialogs import Choice, ChoiceDialog
from hpcdash.ui.logs.pane import LogPane
from hpcdash.ui.view import CHART_RANK, FRAMED_LINES, Targets, View, row_ranks
from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.submit.allocations import Run
    from hpcdash.ui.screen import DashboardApp


SIDE_BY_SIDE_COLUMNS = 140
_TITLE_CELLS = 60
_RETRY_SECONDS = 60.0
_OTHERS_RANK = 3
_PERCENTAGE = "enter a percentage from 0 to 100"
STREAMS = ("stdout", "stderr")


class LogView(View):
    """Output of a job, which is located again when the job's state changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False, priority=True),
        Binding("down,j", "move(1)", "down", show=False, priority=True),
        Binding("pageup", "page(-1)", "page up", show=False, priority=True),
        Binding("pagedown", "page(1)", "page down", show=False, priority=True),
        Binding("space", "page(1)", "page down", show=False),
        Binding("home", "first", "first line", show=False, priority=True),
        Binding("end", "last", "end, and follow", show=False, priority=True),
        Binding("left", "sideways(-1)", "left", show=False, priority=True),
        Binding("right", "sideways(1)", "right", show=False, priority=True),
    ]

    def __init__(
        self, session: ClusterSession, *, job_id: str, stream: str = "stdout", path: str = ""
    ) -> None:
        super().__init__(session)
        self.job_id = job_id
        # Another file of the job; '': its log.
        self.path = path
        # Number of the run in an allocation; 0: the allocation's own log.
        self.run = 0
        # Log of a part of the job; None: the job's own.
        self.other: OtherLog | None = None
        self.place: LogPlace | None = None
        self._streams = LogStreams(session, stream, self._row)
        self._prompts = LogPrompts(lambda: self.screen.query_one(CommandBar), lambda: self.pane)

    def compose(self) -> ComposeResult:
        yield self._streams

    # -- files

    @property
    def pane(self) -> LogPane | None:
        """Stream that keys apply to."""
        return self._streams.pane

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset({Kind.MINE})

    def on_mount(self) -> None:
        self._start_fetch()
        self.set_interval(_RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        """Query the state of a job that is in no list, such as another user's, until it ends."""
        if not self.display or self.place is None or str(self.place.row["state"]) in ENDED:
            return
        if known_row(self.session.store, self.job_id) is None:
            self._start_fetch()

    def _start_fetch(self) -> None:
        start_worker(self, self._locate, exclusive=True, group="locate")

    async def _locate(self) -> None:
        try:
            place = await locate_logs(self.session.store, self.job_id)
            if self.run:
                runs = await self._fetch_runs(place)
                run = runs[min(self.run, len(runs)) - 1]
                place = replace(place, files=LogFiles(run.stdout, run.stderr))
            if self.other is not None:
                place = replace(place, files=self.other.files)
            if self.path:
                place = replace(place, files=LogFiles(self.path, None))
        except HpcdashError as error:
            self._error = error
            self._streams.show_unknown_stream()
            self.post_message(self.CrumbsChanged())
            return
        self._error = None
        before = self.place
        self.place = place
        if place.row["array_id"] is not None and place.row["_tasks"] == 1:
            # The log of an array is that of its only task.
            self.job_id = str(place.row["id"])
        if before is None or before.files != place.files:
            await self._show_files(place.files, before)
        for pane in self._streams.panes:
            pane.row = self._row()
            pane.read_now()
            pane.show_state()
        self.post_message(self.CrumbsChanged())

    async def _show_files(self, files: LogFiles, before: LogPlace | None) -> None:
        """Show files; a log that moved from its node stays at its position."""
        has_moved = bool(before and before.files.host and not files.host)
        await self._streams.show_files(files, keeps_places=has_moved)
        self.post_message(self.CrumbsChanged())
        if self.display and not isinstance(self.screen.focused, Input):
            self.take_focus()

    async def _show_streams(self) -> None:
        await self._streams.show_requested()
        self.post_message(self.CrumbsChanged())

    @property
    def _has_stderr(self) -> bool:
        return self.place is not None and self.place.files.stderr is not None

    def _row(self) -> Mapping[str, Any] | None:
        """Return the job's row in the lists, else as it was when the files were located."""
        row = known_row(self.session.store, self.job_id)
        if row is None and self.place is not None:
            return self.place.row
        return row

    # -- titles and status

    def take_focus(self) -> None:
        is_attached = self.pane is not None and self.pane.is_attached
        self.screen.set_focus(self.pane.lines if self.pane is not None and is_attached else None)

    def shown(self) -> None:
        self.take_focus()
        for pane in self._streams.panes:
            pane.read_now()
        if self.place is None:
            self._start_fetch()

    def store_changed(self, changed: Changed) -> None:
        if changed.kind is not Kind.MINE:
            return
        if self.place is None or any(event.job_id == self.job_id for event in changed.events):
            self._start_fetch()
            return
        row = self._row()
        for pane in self._streams.panes:
            if row is not None and pane.row is not None and row["state"] != pane.row["state"]:
                self._start_fetch()
            pane.row = row
            pane.show_state()

    def on_log_reading_changed(self, event: LogPane.Changed) -> None:
        event.stop()
        self.post_message(self.CrumbsChanged())

    def on_log_pane_pager_requested(self, event: LogPane.PagerRequested) -> None:
        event.stop()
        try:
            cast("DashboardApp", self.app).open_outside("pager", event.file)
        finally:
            if event.is_copy:
                event.file.unlink(missing_ok=True)

    async def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Apply keys to the stream that was clicked on."""
        stream = self._streams.focused_stream(event.widget)
        if stream is not None and stream != self._streams.stream:
            self._streams.stream = stream
            await self._show_streams()

    @property
    def own_error(self) -> HpcdashError | None:
        return self._error or (self.pane.error if self.pane is not None else None)

    def taken_at(self) -> float | None:
        return self.pane.window.checked_at if self.pane is not None else None

    def crumbs(self) -> Sequence[str]:
        if self.path:
            return ["file", self.job_id, clip_path(visible(self.path), _TITLE_CELLS)]
        crumbs = ["log", self.job_id]
        if self.other is not None:
            crumbs.append(clip(self.other.title, _TITLE_CELLS))
        elif self.run:
            crumbs.append(f"run {self.run}")
        is_beside = self._streams.is_beside
        crumbs.append("stdout and stderr" if is_beside else self._streams.stream)
        return crumbs

    def hint(self) -> str:
        if self.notice:
            return self.notice
        if self.place is None:
            return ""
        if self.pane is None or not self.pane.path:
            return ""
        path = self.pane.window.file.place
        if self.path:
            return visible(path)
        if not self._has_stderr:
            return f"{path}   (stdout and stderr)"
        # The app's width, as the view has none before its first layout.
        is_wide = self.app.size.width >= SIDE_BY_SIDE_COLUMNS
        return f"{path}   s shows both streams" if is_wide and not self._streams.is_beside else path

    def counts(self) -> tuple[str, str]:
        if self.pane is None or not self.pane.window.stat.is_there:
            return "", ""
        size = format_memory(self.pane.window.stat.size)
        growth = self.pane.format_growth()
        return ", ".join(part for part in (size, growth) if part), growth or size

    def pointed_job(self) -> str | None:
        return self.job_id

    def key_ranks(self) -> Mapping[str, int]:
        ranks = {"chart": CHART_RANK} if "chart" in row_ranks(self._row()) else {}
        has_others = (
            Capability.WORKERS in self.session.store.backend.capabilities or self.other is not None
        )
        return {**ranks, "other_logs": _OTHERS_RANK} if has_others else ranks

    def targets(self) -> Targets:
        row = self._row()
        return Targets((self.job_id,), (row,) if row is not None else ())

    # -- moving

    def action_move(self, lines: int) -> None:
        if self.pane is not None:
            self.pane.move(lines)

    def action_page(self, pages: int) -> None:
        if self.pane is not None:
            self.pane.page(pages)

    def action_sideways(self, steps: int) -> None:
        if self.pane is not None:
            self.pane.sideways(steps)

    def action_first(self) -> None:
        if self.pane is not None:
            self.pane.go_first()

    def action_last(self) -> None:
        if self.pane is not None:
            self.pane.go_end()

    # -- keys of the registry

    async def do_log(self) -> None:
        await self._go_stream("stdout")

    async def do_error_log(self) -> None:
        await self._go_stream("stderr")

    async def do_other_stream(self) -> None:
        await self._go_stream(STREAMS[self._streams.stream == "stdout"])

    async def _go_stream(self, stream: str) -> None:
        if self.place is None:
            self._streams.stream = stream
            self.show_notice("")
            return
        if self.path:
            # Back to the job's log.
            self.path = ""
            self._streams.stream = stream
            self._start_fetch()
            return
        if not self._has_stderr:
            self.show_notice("stdout and stderr share one file" if stream == "stderr" else "")
            return
        self.show_notice("")
        self._streams.stream = stream
        await self._show_streams()
        self.take_focus()

    async def do_side_by_side(self) -> None:
        if self.place is None:
            return
        if not self._has_stderr:
            self.show_notice("stdout and stderr share one file")
            return
        self._streams.is_beside = not self._streams.is_beside
        await self._show_streams()

    def _pane_with_lines(self) -> LogPane | None:
        """Return the stream that keys apply to; None, with a message, while it has no lines."""
        if text := format_no_lines(self.pane):
            self.show_notice(text)
            return None
        return self.pane

    def do_follow(self) -> None:
        if (pane := self._pane_with_lines()) is not None:
            pane.set_following(not pane.viewport.following)

    def do_wrap(self) -> None:
        self._streams.toggle_wrap()

    def do_search(self) -> None:
        self._prompts.prompt_text()

    def do_next_match(self) -> None:
        self._go_match()

    def do_previous_match(self) -> None:
        self._go_match(backwards=True)

    def _go_match(self, *, backwards: bool = False) -> None:
        pane = self._pane_with_lines()
        if pane is None:
            return
        if pane.search_text:
            pane.next_match(backwards=backwards)
        else:
            self.show_notice("no search yet; / searches")

    def do_to_percent(self) -> None:
        self._prompts.prompt_percent()

    def do_to_time(self) -> None:
        self._prompts.prompt_time()

    def do_line_number(self) -> None:
        if (pane := self._pane_with_lines()) is not None:
            pane.count_lines()

    def do_open_outside(self) -> None:
        if self.pane is not None:
            self.pane.open_outside()

    async def do_previous_task(self) -> None:
        await self._go_task(-1)

    async def do_next_task(self) -> None:
        await self._go_task(1)

    async def _fetch_runs(self, place: LogPlace) -> tuple[Run, ...]:
        from hpcdash.services.submit.allocations import build_allocation, fetch_runs

        allocation = build_allocation(place.detail.job.to_pylist()[0])
        return await fetch_runs(self.session.store, allocation)

    def do_other_logs(self) -> None:
        start_worker(self, self._choose_other, exclusive=True, group="others")

    async def _choose_other(self) -> None:
        """Show a list of the logs of the job's parts, its own first."""
        logs = await self._fetch_others()
        if not logs or not self.display:
            return
        by_name = {log.name: log for log in logs}
        choices = [Choice("", "the job's main log", "stdout, stderr")]
        choices += [Choice(log.name, log.title) for log in logs]
        present = self.other.name if self.other is not None else ""

        def take(name: str) -> None:
            self._go_other(by_name.get(name))

        self.app.push_screen(ChoiceDialog("Log of", choices, take, present))

    async def _fetch_others(self) -> tuple[OtherLog, ...]:
        """Fetch the logs of the job's parts; (), with a message, if there are none."""
        if self.place is None:
            return ()
        try:
            logs = await fetch_other_logs(self.session.store, self.place)
        except HpcdashError as error:
            self.show_notice(format_error(error))
            return ()
        if not logs:
            self.show_notice("this job has no separate logs")
        return logs

    def _go_other(self, log: OtherLog | None) -> None:
        self.other = log
        self.notice = ""
        self._start_fetch()

    async def _step_other(self, step: int) -> None:
        """Show the log of the next or previous part; the job's main log precedes them."""
        logs = await self._fetch_others()
        if not logs:
            if Capability.WORKERS not in self.session.store.backend.capabilities:
                await self._go_run(step)
            return
        names = ["", *(log.name for log in logs)]
        name = self.other.name if self.other is not None else ""
        at = names.index(name) + step if name in names else step
        if not 0 <= at < len(names):
            self.show_notice(
                "this is the last part of the job" if step > 0 else "the job's main log"
            )
            return
        self._go_other(logs[at - 1] if at else None)

    async def _go_run(self, step: int) -> None:
        """Show the log of the next or previous run; the allocation's main log precedes them."""
        if self.place is None:
            return
        try:
            count = len(await self._fetch_runs(self.place))
        except UsageError:
            self.show_notice("this job is not an array task or an allocation with runs")
            return
        except HpcdashError as error:
            self.show_notice(error.message)
            return
        if not 0 <= self.run + step <= count:
            text = (
                "this is the last run of the allocation"
                if step > 0
                else "the allocation's main log"
            )
            self.show_notice(text)
            return
        self.run += step
        self._start_fetch()

    async def _go_task(self, step: int) -> None:
        row = self._row()
        array_id = row["array_id"] if row is not None else None
        if row is None or array_id is None:
            if Capability.OTHER_LOGS in self.session.store.backend.capabilities:
                start_worker(self, self._step_other, step, exclusive=True, group="others")
            else:
                await self._go_run(step)
            return
        tasks = await asyncio.to_thread(known_tasks, self.session.store, str(array_id))
        tasks.setdefault(row["_task"] or 0, self.job_id)
        order = sorted(tasks)
        at = order.index(row["_task"] or 0) + step
        if not 0 <= at < len(order):
            text = (
                "this is the last known task of the array"
                if step > 0
                else "this is the first known task"
            )
            self.show_notice(text)
            return
        self.job_id = tasks[order[at]]
        self.place = None
        self._start_fetch()
        self.post_message(self.CrumbsChanged())

    def do_copy(self) -> None:
        path = self.pane.path if self.pane is not None else None
        self.app.copy_to_clipboard(path or self.job_id)
        self.notify(f"copied {visible(path or self.job_id)}")

    def do_refresh(self) -> None:
        self.notice = ""
        self.session.poller.poll_now()
        self._start_fetch()

    def do_escape(self) -> bool:
        if self.notice:
            self.show_notice("")
        return self.pane is not None and self.pane.clear()


def format_no_lines(pane: LogPane | None) -> str:
    """Format the reason that there are no lines; '' if there are."""
    if pane is not None and pane.window.rows:
        return ""
    if pane is None or not pane.path or pane.window.checked_at is None:
        return "no log is open"
    return f"no lines: {pane.window.stat.problem or 'the log is empty'}"


class LogPrompts:
    """Prompts in a bar for a text, a percentage or a time to go to in the stream."""

    def __init__(self, bar: Callable[[], CommandBar], pane: Callable[[], LogPane | None]) -> None:
        self._bar = bar
        self._pane = pane

    def prompt_text(self) -> None:
        if (pane := self._pane()) is not None:
            self._bar().prompt("search", pane.search_text, sign="/", take=self._take_text)

    def _take_text(self, typed: str) -> str:
        pane = self._pane()
        if typed and (text := format_no_lines(pane)):
            return text
        if pane is not None:
            pane.search(typed)
        return ""

    def prompt_percent(self) -> None:
        if self._pane() is not None:
            self._bar().prompt("percent", sign="%", take=self._take_percent)

    def _take_percent(self, typed: str) -> str:
        try:
            percent = float(typed.strip().removesuffix("%"))
        except ValueError:
            return _PERCENTAGE
        if not 0 <= percent <= 100:
            return _PERCENTAGE
        pane = self._pane()
        if text := format_no_lines(pane):
            return text
        if pane is not None:
            pane.go_percent(percent)
        return ""

    def prompt_time(self) -> None:
        if self._pane() is not None:
            self._bar().prompt("time", sign="@", take=self._take_time)

    def _take_time(self, typed: str) -> str:
        if not typed.strip():
            return ""
        pane = self._pane()
        if text := format_no_lines(pane):
            return text
        if pane is not None:
            pane.go_time(typed)
        return ""


class LogStreams(Horizontal):
    """Panes for stdout and stderr; a file for both is shown as stdout.

    `row` returns the job's present row, None if it is unknown.
    """

    DEFAULT_CSS = """
    LogStreams { height: 1fr; width: 1fr; }
    LogStreams > #locating { padding: 0 1; color: $table-dim; }
    """

    def __init__(
        self, session: ClusterSession, stream: str, row: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        super().__init__()
        self.stream = stream
        self.is_beside = False
        self._session = session
        self._row = row
        self._files: LogFiles | None = None
        self._panes: dict[str, LogPane] = {}
        # Offset where the next pane of a stream begins, None for the end.
        self._begin_at: dict[str, int | None] = {}
        self._wraps = False

    def compose(self) -> ComposeResult:
        yield PlainStatic("locating its output …", id="locating")

    @property
    def pane(self) -> LogPane | None:
        """The stream that keys are for."""
        return self._panes.get(self.stream)

    @property
    def panes(self) -> tuple[LogPane, ...]:
        return tuple(self._panes.values())

    def focused_stream(self, focused: Widget) -> str | None:
        """Return the stream whose lines have the focus."""
        return next((stream for stream, pane in self._panes.items() if pane.lines is focused), None)

    def show_unknown_stream(self) -> None:
        """Show that the output could not be located."""
        for text in self.query("#locating").results(PlainStatic):
            text.update("could not locate its output file")

    async def show_files(self, files: LogFiles, *, keeps_places: bool) -> None:
        """Replace the panes; `keeps_places`: the files are copies of the previous ones."""
        self._files = files
        self._begin_at.clear()
        for name, pane in list(self._panes.items()):
            if keeps_places:
                self._begin_at[name] = pane.place_in_file()
            await pane.remove()
        self._panes.clear()
        await self.query("#locating").remove()
        await self.show_requested()

    async def show_requested(self) -> None:
        """Show the current stream, and the other if both are requested."""
        assert self._files is not None
        if not self.is_attached:
            # The view was closed meanwhile.
            return
        if self._files.stderr is None:
            self.stream = "stdout"
            self.is_beside = False
        for stream in STREAMS:
            requested = self.is_beside or stream == self.stream
            pane = self._panes.get(stream)
            if pane is None and requested:
                pane = self._build_pane(stream, self._files)
                self._panes[stream] = pane
                first = next(iter(self.query(LogPane)), None)
                await self.mount(pane, before=first if stream == "stdout" else None)
            if pane is not None:
                pane.display = requested
                pane.is_active = stream == self.stream
                pane.is_beside = self.is_beside
                pane.set_class(self.is_beside and stream == "stderr", "-beside")
                pane.set_class(pane.is_active, "-active")
                pane.border_title = stream
                pane.read_now()
                pane.show_state()
        self._frame()

    def on_resize(self) -> None:
        self._frame()

    def _frame(self) -> None:
        """Draw frames around the streams if there is room."""
        for pane in self._panes.values():
            pane.set_class(self.app.size.height >= FRAMED_LINES, "panel")

    def _build_pane(self, stream: str, files: LogFiles) -> LogPane:
        path = files.stdout if stream == "stdout" else files.stderr
        note = f"path: {files.note}" if files.note else ""
        if path is None:
            note = f"the {stream} path is unknown"
            if files.note:
                note = f"{note}: {files.note}"
        begin_at = self._begin_at.pop(stream, None)
        pane = LogPane(self._session, stream, path, note=note, host=files.host, begin_at=begin_at)
        pane.row = self._row()
        pane.viewport.wrap = self._wraps
        return pane

    def toggle_wrap(self) -> None:
        self._wraps = not self._wraps
        for pane in self.panes:
            pane.set_wrap(self._wraps)
