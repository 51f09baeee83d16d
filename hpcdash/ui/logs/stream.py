"""Reader of one stream of a job: follows its file, moves in it, shows its state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from hpcdash.domain.job_text import format_clock_time, format_end, state_word
from hpcdash.domain.states import ENDED, WAITING
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_age, format_memory
from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError
from hpcdash.services.cluster.poller import Poller
from hpcdash.services.logs.file import FileChange
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.logs.window import HELD_ROWS, PAGE_BYTES, LogRow, LogWindow
from hpcdash.services.session import ClusterSession
from hpcdash.ui.logs.lines import LogLines
from hpcdash.ui.logs.viewport import Viewport
from hpcdash.ui.widgets.cells import short_instant
from hpcdash.ui.widgets.lines import Line, PlainStatic
from hpcdash.ui.workers import start_worker

_SIDEWAYS_CELLS = 16
# More bytes than this are converted to lines in a thread.
_READ_AT_ONCE_BYTES = 1 << 16
# Pause between two checks: while the log grows, at most, and its growth after a check without new
# text.
_SHORTEST_SECONDS = 0.5
_LONGEST_SECONDS = 4.0
_SLOWER = 1.25
# Checks take no more than a third of the connection's time.
_LINE_SHARE = 3.0
# Rows that are read ahead of the screen: less than half of the held rows on either side.
_AHEAD_ROWS = HELD_ROWS // 8
# A log without new text for this long is reported as quiet: training writes more often.
STILL_SECONDS = 10.0
# Text, and its style.
Part = tuple[str, str]


class LogReading(Vertical):
    """Reader that follows a file while it is shown.

    If `path` is None, `note` is the reason. `host` is the node with the file on its own disk;
    `begin_at` is the first offset to show, None for the end.
    """

    DEFAULT_CSS = """
    LogReading { width: 1fr; height: 1fr; }
    LogReading > .notes {
        height: auto; max-height: 6; width: 1fr; padding: 0 1; color: $table-dim; display: none;
    }
    LogReading > Line { background: $surface; color: $text-muted; }
    LogReading.-beside { border-left: solid $panel; }
    """

    class Changed(Message):
        """Posted when the state shown around the view has changed."""

    def __init__(
        self,
        session: ClusterSession,
        stream: str,
        path: str | None,
        *,
        note: str = "",
        host: str = "",
        begin_at: int | None = None,
    ) -> None:
        super().__init__()
        self.session = session
        self.stream = stream
        self.path = path
        self.note = note
        self.row: Mapping[str, Any] | None = None
        self.error: HpcdashError | None = None
        # Whether keys apply to this stream, and whether the other stream is shown as well.
        self.is_active = True
        self.is_beside = False
        self.search_text = ""
        clock = session.store.clock
        self.window = LogWindow(session.store.log_file(path or "", host), clock.now)
        self.viewport = Viewport(self.window)
        self.lines = LogLines(self.viewport)
        # Text of a running search or jump, and of its result.
        self._doing = ""
        self._found = ""
        self._found_at: int | None = None
        self._opened = False
        self._begin_at = begin_at
        self._line_number = LineNumber(self.window)
        self._pace = LogPace(session.poller)
        self._paging = False
        # Whether it is hidden, and does not check the file.
        self.is_resting = False
        self._drawing = False
        self._notes = ""

    def compose(self) -> ComposeResult:
        yield self.lines
        yield PlainStatic(classes="notes")
        yield Line()

    def on_mount(self) -> None:
        self.lines.notices = ["opening …"] if self.path else []
        if self.path:
            start_worker(self, self._watch, group="watch")
        self.show_state()

    # -- following

    def read_now(self) -> None:
        """Check the file at once, and again soon."""
        self._pace.hurry()

    async def _watch(self) -> None:
        """Check the file regularly while the pane is shown."""
        checked_at = time.monotonic()
        while True:
            self._pace.begin()
            if not self._is_shown:
                self.is_resting = True
                await self._pace.requested()
                self.is_resting = False
                continue
            began = time.monotonic()
            try:
                is_new = await self._read_new(began - checked_at)
                self._error(None)
            except (UnreachableError, CommandTimedOut) as error:
                is_new = False
                self._error(error)
            checked_at = began
            took_seconds = time.monotonic() - began
            pause = self._pace.pause_after(is_new, took_seconds, self.window.file.pause_seconds)
            await self._pace.rest(pause)

    @property
    def _is_shown(self) -> bool:
        return self.is_attached and all(
            node.display for node in self.ancestors_with_self if hasattr(node, "display")
        )

    async def _read_new(self, seconds: float) -> bool:
        """Read new text if the end is followed, else only check the file; return if it changed."""
        size = self.window.stat.size
        identity = self.window.stat.identity
        if self.viewport.following:
            is_new = await self.window.follow(seconds)
        else:
            is_new = await self.window.check()
            if is_new:
                # The current row is gone.
                self._go_end()
        if is_new:
            if not self._opened:
                self.viewport.follow()
                self.post_message(self.Changed())
            self._opened = True
            if self.viewport.following:
                self._line_number.forget()
            self._redraw()
            if (begin_at := self._begin_at) is not None:
                self._begin_at = None
                if begin_at < self.window.stat.size:
                    self._jump(begin_at)
        check = self.window.stat
        self.show_state()
        return is_new or (check.size, check.identity) != (size, identity)

    def _error(self, error: HpcdashError | None) -> None:
        if (error is None) != (self.error is None) or error is not None:
            self.error = error
            self.post_message(self.Changed())

    # -- moving

    def place_in_file(self) -> int | None:
        """Return the offset of the first line on the screen; None if the end is followed."""
        if self.viewport.following or not self.window.rows:
            return None
        placed = self.viewport.placed()
        return self.window.rows[placed[0].row].offset if placed else None

    def move(self, lines: int) -> None:
        """Move down by `lines`, or up if negative; a move beyond the end follows the file."""
        is_at_end = self.viewport.is_at_last and self.window.ends_the_file
        if lines > 0 and is_at_end and not self.viewport.following:
            self.set_following(True)
            return
        self.viewport.move(lines)
        self._moved()

    def page(self, pages: int) -> None:
        """Move down by `pages` screens, or up if negative; one line stays visible."""
        self.move(pages * max(1, self.viewport.height - 1))

    def sideways(self, steps: int) -> None:
        if not self.viewport.wrap:
            self.viewport.sideways(steps * _SIDEWAYS_CELLS)
            self._redraw()

    def go_first(self) -> None:
        self._jump(0)

    def go_end(self) -> None:
        """Go to the end, and follow it."""
        self._end_work()
        self.set_following(True)

    def set_following(self, following: bool) -> None:
        """Follow the end, or stay at the present line."""
        if following:
            self._go_end()
            self.read_now()
        else:
            self.viewport.stay()
        self._moved()

    def _go_end(self) -> None:
        self.viewport.follow()
        self._line_number.forget()

    def set_wrap(self, wrap: bool) -> None:
        self.viewport.set_wrap(wrap)
        self._moved()

    def go_percent(self, percent: float) -> None:
        self._jump(int(self.window.stat.size * percent / 100))

    def _jump(self, offset: int, *, above: int = 0) -> None:
        """Go to the row of an offset, with `above` lines above it, and read it if needed."""
        self.viewport.stay()
        is_held = self.window.start <= offset < self.window.end
        if is_held or (offset == 0 and self.window.begins_the_file):
            self.viewport.to_offset(offset, above=above)
            self._moved()
        else:
            self._work("reading …", self._read_and_jump, offset, above)

    async def _read_and_jump(self, offset: int, above: int) -> str:
        await self._hold(offset)
        self.viewport.to_offset(offset, above=above)
        return ""

    async def _hold(self, offset: int) -> None:
        if not self.window.start <= offset < self.window.end:
            await self.window.open_at(offset)
            self.viewport.forget()

    @on(LogLines.Wheel)
    def _wheel(self, event: LogLines.Wheel) -> None:
        event.stop()
        self.move(event.lines)

    @on(LogLines.Moved)
    def _lines_moved(self, event: LogLines.Moved) -> None:
        event.stop()
        self._moved()

    def _moved(self) -> None:
        self._redraw()
        self.show_state()
        self._read_ahead()

    def _redraw(self) -> None:
        """Draw the lines on the screen; very long ones are converted in a thread first."""
        unread = self.viewport.unread()
        if sum(len(row.content) for row in unread) <= _READ_AT_ONCE_BYTES:
            self.lines.redraw()
        elif not self._drawing:
            self._drawing = True
            start_worker(self, self._draw, unread, group="draw")

    async def _draw(self, unread: list[LogRow]) -> None:
        while unread:
            # One by one, so that keys are handled in between.
            row = unread[0]
            line = await asyncio.to_thread(shown_line, row.content)
            self.viewport.store(row, line)
            unread = self.viewport.unread()
        self._drawing = False
        self._redraw()

    # -- reading ahead

    def _read_ahead(self) -> None:
        """Read the rows that are probably needed next."""
        if not self._paging and missing_side(self.window, self.viewport) and self.path:
            self._paging = True
            start_worker(self, self._read_more, group="page")

    async def _read_more(self) -> None:
        try:
            while side := missing_side(self.window, self.viewport):
                held = (self.window.start, self.window.end)
                if side < 0:
                    await self.window.read_before()
                else:
                    await self.window.read_after()
                if self.viewport.following or held == (self.window.start, self.window.end):
                    break
                self.viewport.pay()
                self._redraw()
                self.show_state()
        except (UnreachableError, CommandTimedOut) as error:
            self._error(error)
        finally:
            self._paging = False
            self.viewport.owed = 0
            self.show_state()

    # -- searching and jumping, which may take a while

    @property
    def is_working(self) -> bool:
        return bool(self._doing)

    def _work(self, text: str, work: Callable[..., Awaitable[str]], *arguments: object) -> None:
        """Start a slow operation, which returns its message, and cancel the previous one."""
        self._doing = text
        self._found = ""
        start_worker(self, self._do, work, *arguments, group="work", exclusive=True)
        self.show_state()

    async def _do(self, work: Callable[..., Awaitable[str]], *arguments: object) -> None:
        try:
            self._found = await work(*arguments)
        except (UnreachableError, CommandTimedOut) as error:
            is_timeout = isinstance(error, CommandTimedOut)
            self._found = "timed out" if is_timeout else "connection failed"
            self._error(error)
        self._doing = ""
        self._moved()

    def _end_work(self) -> None:
        self.workers.cancel_group(self, "work")
        self._doing = ""
        self._found = ""
        self.show_state()

    # -- text

    def show_state(self) -> None:
        """Show the state of the file and the job, and the position."""
        if not self.is_attached or not self.children:
            return
        store = self.session.store
        hint = "" if self.row is None else store.backend.reasons.explain(self.row)
        notes = [self.note] if self.note else []
        notes += file_notes(self.window, self.row, hint, self.session.zone)
        now = datetime.fromtimestamp(store.clock.now(), UTC)
        if ended := job_note(self.row, now, self.session.zone):
            notes.append(ended)
        has_rows = bool(self.window.rows)
        is_checked = self._opened or self.window.checked_at is not None
        notices = notes if is_checked or not self.path else ["opening …"]
        if not has_rows and list(self.lines.notices) != notices:
            self.lines.notices = notices
            self._redraw()
        shown = "\n".join(visible(note) for note in notes) if has_rows else ""
        if shown != self._notes:
            self._notes = shown
            below = self.query_one(".notes", PlainStatic)
            below.update(Text(shown))
            below.display = bool(shown)
        self.query_one(Line).set_text(self._bar())

    def _bar(self) -> Text:
        """Return the bar with the stream, the position and the current operation."""
        message = self._doing or self._found
        parts: list[Part] = []
        if self.path:
            placed = self.viewport.placed()
            parts = place_parts(
                self.window,
                self.viewport,
                growth=self.format_growth() if self.is_beside else "",
                line_number=self._line_number.line_at_row(placed[0].row) if placed else None,
                searched=self.search_text,
                message=message,
                has_ended=self._has_ended,
            )
        name = (self.stream, "bold" if self.is_active else "")
        return bar_text(name, self.window.file.host, parts, message, self.size.width - 2)

    @property
    def _has_ended(self) -> bool:
        return self.row is not None and str(self.row["state"]) in ENDED

    def format_growth(self) -> str:
        """Format the growth of the file, or the time without growth."""
        return format_growth(self.window, self.session.store.clock.now(), ended=self._has_ended)


class LogPace:
    """Pauses between checks; `poller` knows whether the terminal has the focus."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._wake = asyncio.Event()
        self._pause_seconds = _SHORTEST_SECONDS

    def hurry(self) -> None:
        """Check at once, and again soon."""
        self._pause_seconds = _SHORTEST_SECONDS
        self._wake.set()

    def begin(self) -> None:
        """Begin a check: later requests are for the next one."""
        self._wake.clear()

    async def requested(self) -> None:
        """Wait until a check is requested, however long that takes."""
        await self._wake.wait()

    def pause_after(self, is_new: bool, took_seconds: float, least_seconds: float) -> float:
        """Return the pause in seconds after a check that took `took_seconds`.

        `is_new`: the check found new text.
        """
        if is_new:
            self._pause_seconds = _SHORTEST_SECONDS
        else:
            self._pause_seconds = min(self._pause_seconds * _SLOWER, _LONGEST_SECONDS)
        return max(self._pause_seconds, least_seconds, _LINE_SHARE * took_seconds)

    async def rest(self, seconds: float) -> None:
        """Wait until a check is requested.

        Longer without focus, at most `seconds` after its return.
        """
        rested = 0.0
        poller = self._poller
        while rested < seconds * (1.0 if poller.focused else poller.pace.unfocused_factor):
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                rested += seconds
            else:
                return


class LineNumber:
    """Line numbers of a window's rows, from the known number of one row."""

    def __init__(self, window: LogWindow) -> None:
        self._window = window
        # Offset and line number, from 1, of a row.
        self._known: tuple[int, int] | None = None

    def set(self, offset: int, number: int) -> None:
        """Set the line number, from 1, of the row at an offset."""
        self._known = (offset, number)

    def forget(self) -> None:
        self._known = None

    def line_at_row(self, row: int) -> int | None:
        """Return the line number of the row with an index; None if it is unknown."""
        if self._known is None:
            return None
        offset, number = self._known
        rows = self._window.rows
        if not rows[0].offset <= offset <= rows[-1].offset:
            self._known = None
            return None
        known = self._window.index_of(offset)
        if row >= known:
            number += self._window.lines_between(known, row)
        else:
            number -= self._window.lines_between(row, known)
        self._known = (rows[row].offset, number)
        return number


def missing_side(window: LogWindow, viewport: Viewport) -> int:
    """Return where rows must be read: before the window (-1), after it (1), or nowhere (0)."""
    if viewport.following or not window.rows or viewport.height <= 0:
        return 0
    placed = viewport.placed()
    first = placed[0].row
    last = placed[-1].row
    # The limits are a number of short rows, or the bytes of long rows.
    before_bytes = window.rows[first].offset - window.start
    is_near_start = first < _AHEAD_ROWS and before_bytes < PAGE_BYTES // 2
    must_read_before = viewport.owed < 0 or (viewport.owed == 0 and is_near_start)
    if must_read_before and not window.begins_the_file:
        return -1
    after_bytes = window.end - window.rows[last].end
    is_near_end = len(window.rows) - last <= _AHEAD_ROWS and after_bytes < PAGE_BYTES // 2
    return int(is_near_end and not window.ends_the_file)


def file_notes(
    window: LogWindow, row: Mapping[str, Any] | None, reason_hint: str, zone: tzinfo | None
) -> list[str]:
    """Return notes on the file: missing and why, empty, or replaced."""
    check = window.stat
    happened = window.happened
    notes = []
    if happened is not None:
        when = format_clock_time(happened.at, zone)
        shown = "; showing the lines read so far" if window.rows else ""
        match happened.change:
            case FileChange.DELETED if window.file.host:
                place = "moved to the final path when the job ends"
                return [f"left {window.file.host} at {when}: {place}{shown}"]
            case FileChange.DELETED:
                return [f"was deleted at {when}{shown}; retrying"]
            case FileChange.CLOSED:
                return [f"unreadable since {when}: {check.problem}{shown}; retrying"]
            case FileChange.TRUNCATED:
                notes.append(f"was truncated (to {format_memory(happened.size)}) at {when}")
            case FileChange.REPLACED:
                notes.append(f"was replaced by another file at {when}")
    state = "" if row is None else str(row["state"])
    if window.checked_at is None:
        return notes
    if check.problem:
        if not check.is_there and state in WAITING:
            reason = "" if row is None else row["reason"]
            text = f"the job is {state_word(state)}"
            if reason:
                text += f": {reason}"
            if reason_hint:
                text += f" ({reason_hint})"
            notes += [f"will be at {window.file.path} once the job starts", text]
        elif not check.is_there and state not in ENDED:
            notes.append(f"{check.problem}; retrying (ctrl+r: now)")
        else:
            notes.append(check.problem)
    elif check.is_there and check.size == 0:
        if state in ENDED:
            notes.append("is empty; q goes back")
        else:
            notes.append("is empty so far; new lines appear automatically")
    return notes


def job_note(row: Mapping[str, Any] | None, now: datetime, zone: tzinfo | None) -> str:
    """Format the end of a job: `the job ended: failed, exit 3, 2 min ago`; '' before."""
    if row is None or str(row["state"]) not in ENDED:
        return ""
    parts = [state_word(str(row["state"]))]
    if ending := format_end(row):
        parts.append(ending)
    if (ended_at := row["ends_at"]) is not None:
        age = format_age((now - ended_at).total_seconds())
        parts.append(f"{age} ago ({short_instant(ended_at, now, zone)})")
    return f"the job ended: {', '.join(parts)}"


def format_growth(window: LogWindow, now: float, *, ended: bool) -> str:
    """Format the growth of a log; '' if it is unknown.

    `+3.4K/s`, `no new bytes for 12 min`, or after the job `last written 2 h ago`.
    """
    growth = window.growth
    if not window.stat.is_there or growth.last_at is None:
        return ""
    quiet_seconds = now - growth.last_at
    if ended:
        return f"last written {format_age(quiet_seconds)} ago"
    if quiet_seconds >= STILL_SECONDS:
        return f"no new bytes for {format_age(quiet_seconds)}"
    rate = growth.bytes_per_second
    return f"+{format_memory(rate)}/s" if rate >= 1 else ""


def place_parts(
    window: LogWindow,
    viewport: Viewport,
    *,
    growth: str = "",
    line_number: int | None = None,
    searched: str = "",
    message: str = "",
    has_ended: bool = False,
) -> list[Part]:
    """Return the parts of the bar, from the left, with their styles.

    `line_number`, from 1, is that of the first line on the screen.
    """
    check = window.stat
    size = check.size if check.is_there else window.end
    placed = viewport.placed()
    parts: list[Part] = []
    if size:
        end = window.rows[placed[-1].row].end if placed else 0
        parts.append((f"{100 * end // size}% of {format_memory(size)}", ""))
    parts.append((growth, ""))
    if line_number is not None:
        parts.append((f"line {line_number:,}".replace(",", " "), ""))
    if placed and viewport.following:
        parts.append(("at the end" if has_ended else "following", ""))
    elif placed:
        parts.append(("end: jump to the end" if has_ended else "paused (end follows)", "bold"))
    if viewport.wrap:
        parts.append(("wrapped", ""))
    if viewport.left:
        parts.append((f"from column {viewport.left + 1}", ""))
    if searched:
        parts.append((f"/{searched}", ""))
    parts.append((message or ("reading …" if viewport.owed else ""), "bold"))
    return [(text, style) for text, style in parts if text]


def bar_text(name: Part, host: str, parts: list[Part], message: str, width: int) -> Text:
    """Format the bar in one line of `width` cells; if it does not fit, `message` comes first."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(*name)
    if host:
        text.append(f" on {visible(host)}")
    shown = [(visible(label), style) for label, style in parts]
    message = visible(message)
    if message and cell_len(text.plain) + sum(2 + cell_len(label) for label, _ in shown) > width:
        shown.sort(key=lambda part: part[0] != message)
    for label, style in shown:
        text.append("  ").append(label, style)
    return text
