"""One stream of a job on the screen: follows its file, moves in it, reports its state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

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
from hpcdash.ui.widgets.lines import Line
from hpcdash.ui.workers import start_worker

_SIDEWAYS_CELLS = 16
# Up to here lines are read within a frame, whatever is in them.
_READ_AT_ONCE_BYTES = 1 << 16
# Pause between two checks: while the log grows, at most, and the factor for each check that found
# nothing new.
_SHORTEST_SECONDS = 0.5
_LONGEST_SECONDS = 4.0
_SLOWER = 1.25
# Checks take no more than a third of the connection's time.
_LINE_SHARE = 3.0
# Rows that are held ahead of the screen; fewer than half of those held on either side, so that
# reading comes to an end.
_AHEAD_ROWS = HELD_ROWS // 8
# A log without new text for so long is reported as still; training writes a line more often than
# that.
STILL_SECONDS = 10.0
# Text, and its style.
Part = tuple[str, str]


class LogReading(Vertical):
    """Reader that follows one file while it is shown. `path` None: `note` is the reason.

    `host` is the node that has it on its own disk; `begin_at` the offset to show first, None: its
    end.
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
        # Whether keys are for it, and whether the other stream is shown as well.
        self.is_active = True
        self.is_beside = False
        self.search_text = ""
        clock = session.store.clock
        self.window = LogWindow(session.store.log_file(path or "", host), clock.now)
        self.viewport = Viewport(self.window)
        self.lines = LogLines(self.viewport)
        # State or result of a search or a jump.
        self._doing = ""
        self._found = ""
        self._found_at: int | None = None
        self._opened = False
        self._begin_at = begin_at
        self._line_number = LineNumber(self.window)
        self._pace = LogPace(session.poller)
        self._paging = False
        # Whether it is hidden, and checks nothing.
        self.is_resting = False
        self._drawing = False
        self._notes = ""

    def compose(self) -> ComposeResult:
        yield self.lines
        yield Static("", classes="notes", markup=False)
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
        """Check the file as long as the pane lives; while it is hidden, wait until it is shown."""
        looked = time.monotonic()
        while True:
            self._pace.begin()
            if not self._is_shown:
                self.is_resting = True
                await self._pace.requested()
                self.is_resting = False
                continue
            began = time.monotonic()
            try:
                is_new = await self._read_new(began - looked)
                self._error(None)
            except (UnreachableError, CommandTimedOut) as error:
                is_new = False
                self._error(error)
            looked = began
            least_seconds = self.window.file.pause_seconds
            await self._pace.rest(
                self._pace.pause_after(is_new, time.monotonic() - began, least_seconds)
            )

    @property
    def _is_shown(self) -> bool:
        return self.is_attached and all(
            node.display for node in self.ancestors_with_self if hasattr(node, "display")
        )

    async def _read_new(self, seconds: float) -> bool:
        """Read what is new where one follows, else see what became of the file."""
        size = self.window.stat.size
        identity = self.window.stat.identity
        if self.viewport.following:
            is_new = await self.window.follow(seconds)
        else:
            is_new = await self.window.glance()
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
        """The offset of the first line on the screen; None where the end is followed."""
        placed = self.viewport.placed() if self.window.rows and not self.viewport.following else []
        return self.window.rows[placed[0].row].offset if placed else None

    def move(self, lines: int) -> None:
        """Move by `lines` down, or up if negative.

        Moving down at the very end starts to follow the file.
        """
        if (
            lines > 0
            and not self.viewport.following
            and self.viewport.is_at_last
            and self.window.ends_the_file
        ):
            self.set_following(True)
            return
        self.viewport.move(lines)
        self._moved()

    def page(self, pages: int) -> None:
        """Move by `pages` screens down, or up if negative; one line of the last stays visible."""
        self.move(pages * max(1, self.viewport.height - 1))

    def sideways(self, steps: int) -> None:
        if not self.viewport.wrap:
            self.viewport.sideways(steps * _SIDEWAYS_CELLS)
            self._redraw()

    def go_first(self) -> None:
        self._jump(0)

    def go_end(self) -> None:
        """To the end, and follow it."""
        self._end_work()
        self.set_following(True)

    def set_following(self, following: bool) -> None:
        """Follow the end, or stay where one is."""
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
        """To the row of an offset, with so many lines above it; read it first where it is not
        held.
        """
        self.viewport.stay()
        if self.window.start <= offset < self.window.end or (
            offset == 0 and self.window.begins_the_file
        ):
            self._arrive(offset, above)
        else:
            self._work("reading …", self._read_and_jump, offset, above)

    async def _read_and_jump(self, offset: int, above: int) -> str:
        await self._hold(offset)
        self._arrive(offset, above)
        return ""

    async def _hold(self, offset: int) -> None:
        if not self.window.start <= offset < self.window.end:
            await self.window.open_at(offset)
            self.viewport.forget()

    def _arrive(self, offset: int, above: int = 0) -> None:
        self.viewport.to_offset(offset, above=above)
        self._moved()

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
        """Draw what is on the screen now; where its lines are very long they are read in a thread
        first.
        """
        unread = self.viewport.unread()
        if sum(len(row.content) for row in unread) <= _READ_AT_ONCE_BYTES:
            self.lines.redraw()
        elif not self._drawing:
            self._drawing = True
            start_worker(self, self._draw, unread, group="draw")

    async def _draw(self, unread: list[LogRow]) -> None:
        while unread:
            # One after the other: keys take their turns between them.
            self.viewport.keep(
                [(unread[0], await asyncio.to_thread(shown_line, unread[0].content))]
            )
            unread = self.viewport.unread()
        self._drawing = False
        self._redraw()

    # -- reading ahead

    def _read_ahead(self) -> None:
        """Load the lines that are probably requested next."""
        if not self._paging and missing_side(self.window, self.viewport) and self.path:
            self._paging = True
            start_worker(self, self._read_more, group="page")

    async def _read_more(self) -> None:
        try:
            while side := missing_side(self.window, self.viewport):
                held = (self.window.start, self.window.end)
                await (self.window.read_before() if side < 0 else self.window.read_after())
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
        """Run a slow operation in place of another; it returns its message."""
        self._doing = text
        self._found = ""
        start_worker(self, self._do, work, *arguments, group="work", exclusive=True)
        self.show_state()

    async def _do(self, work: Callable[..., Awaitable[str]], *arguments: object) -> None:
        try:
            self._found = await work(*arguments)
        except (UnreachableError, CommandTimedOut) as error:
            self._found = (
                "it took too long" if isinstance(error, CommandTimedOut) else "the line failed"
            )
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
        if ended := job_note(self.row, self._now(), self.session.zone):
            notes.append(ended)
        has_rows = bool(self.window.rows)
        parts = (
            notes
            if self._opened or not self.path or self.window.looked_at is not None
            else ["opening …"]
        )
        if not has_rows and list(self.lines.notices) != parts:
            self.lines.notices = parts
            self._redraw()
        shown = "\n".join(visible(note) for note in notes) if has_rows else ""
        if shown != self._notes:
            self._notes = shown
            below = self.query_one(".notes", Static)
            below.update(Text(shown))
            below.display = bool(shown)
        self.query_one(Line).set_text(self._bar())

    def _bar(self) -> Text:
        """Return the bar with the stream, the position and the current operation."""
        message = self._doing or self._found
        parts = (
            place_parts(self.window, self.viewport, self._log_status(message)) if self.path else []
        )
        name = (self.stream, "bold" if self.is_active else "")
        return bar_text(name, self.window.file.host, parts, message, self.size.width - 2)

    def _log_status(self, message: str) -> LogStatus:
        placed = self.viewport.placed()
        return LogStatus(
            growth=self.format_growth() if self.is_beside else "",
            line_number=self._line_number.line_at_row(placed[0].row) if placed else None,
            searched=self.search_text,
            message=message,
            has_ended=self._has_ended,
        )

    @property
    def _has_ended(self) -> bool:
        return self.row is not None and str(self.row["state"]) in ENDED

    def format_growth(self) -> str:
        """Return how the file grows, or for how long it has not."""
        return format_growth(self.window, self.session.store.clock.now(), ended=self._has_ended)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.session.store.clock.now(), UTC)


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
        self._pause_seconds = (
            _SHORTEST_SECONDS if is_new else min(self._pause_seconds * _SLOWER, _LONGEST_SECONDS)
        )
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
    """The number of one row of a window among the lines of its file, and so of all rows held
    together with it.
    """

    def __init__(self, window: LogWindow) -> None:
        self._window = window
        # A row's offset, and its number, from 1.
        self._known: tuple[int, int] | None = None

    def learn(self, offset: int, number: int) -> None:
        """The row of an offset is the `number`th line, from 1."""
        self._known = (offset, number)

    def forget(self) -> None:
        self._known = None

    def line_at_row(self, row: int) -> int | None:
        """The number of a row by its place in the window's rows; None where it is not known, or no
        longer.
        """
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
    """Before what is held (-1), after it (1), or nowhere (0)."""
    if viewport.following or not window.rows or viewport.height <= 0:
        return 0
    placed = viewport.placed()
    first = placed[0].row
    last = placed[-1].row
    # Short lines are held by their number, long ones by their bytes.
    before_bytes = window.rows[first].offset - window.start
    is_near_first = first < _AHEAD_ROWS and before_bytes < PAGE_BYTES // 2
    if (viewport.owed < 0 or (viewport.owed == 0 and is_near_first)) and not window.begins_the_file:
        return -1
    after_bytes = window.end - window.rows[last].end
    if (
        len(window.rows) - last <= _AHEAD_ROWS
        and after_bytes < PAGE_BYTES // 2
        and not window.ends_the_file
    ):
        return 1
    return 0


def file_notes(
    window: LogWindow, row: Mapping[str, Any] | None, reason_hint: str, zone: tzinfo | None
) -> list[str]:
    """Return notes on the file itself: missing and why, empty, or replaced by another."""
    check = window.stat
    happened = window.happened
    notes = []
    if happened is not None:
        when = format_clock_time(happened.at, zone)
        match happened.change:
            case FileChange.DELETED if window.file.host:
                read = "; showing what was read" if window.rows else ""
                notes.append(
                    f"left {window.file.host} at {when}: the end of the job moves it to its final "
                    f"place{read}"
                )
            case FileChange.DELETED:
                read = "showing what was read; " if window.rows else ""
                notes.append(f"was deleted at {when}; {read}retrying")
            case FileChange.CLOSED:
                read = "showing what was read; " if window.rows else ""
                notes.append(f"cannot be read since {when}: {check.problem}; {read}retrying")
            case FileChange.TRUNCATED:
                notes.append(f"was truncated (to {format_memory(happened.size)}) at {when}")
            case FileChange.REPLACED:
                notes.append(f"was replaced by another file at {when}")
        if happened.change in (FileChange.DELETED, FileChange.CLOSED):
            return notes
    state = "" if row is None else str(row["state"])
    if window.looked_at is None:
        return notes
    if check.problem:
        if not check.is_there and state in WAITING:
            notes.append(f"will be at {window.file.path} once the job starts")
            notes.append(f"the job is {state_word(state)}{_why(row, reason_hint)}")
        elif not check.is_there and state not in ENDED:
            notes.append(f"{check.problem}; retrying (ctrl+r: now)")
        else:
            notes.append(check.problem)
    elif check.is_there and check.size == 0:
        notes.append(
            "is empty; q goes back"
            if state in ENDED
            else "is empty so far; new lines appear automatically"
        )
    return notes


def _why(row: Mapping[str, Any] | None, reason_hint: str) -> str:
    reason = "" if row is None else row["reason"] or ""
    return "".join((f": {reason}" if reason else "", f" ({reason_hint})" if reason_hint else ""))


def job_note(row: Mapping[str, Any] | None, now: datetime, zone: tzinfo | None) -> str:
    """`the job ended: failed, exit 3, 2 min ago`; '' while it has not."""
    if row is None or str(row["state"]) not in ENDED:
        return ""
    parts = [state_word(str(row["state"]))]
    if how := format_end(row):
        parts.append(how)
    if row["ends_at"] is not None:
        parts.append(
            f"{format_age((now - row['ends_at']).total_seconds())} ago "
            f"({short_instant(row['ends_at'], now, zone)})"
        )
    return f"the job ended: {', '.join(parts)}"


def format_growth(window: LogWindow, now: float, *, ended: bool) -> str:
    """`+3.4K/s`, `no new bytes for 12 min`, for a job that ended `last written 2 h ago`; '' where
    it is not known.
    """
    growth = window.growth
    still = None if growth.last_at is None else now - growth.last_at
    if not window.stat.is_there or still is None:
        return ""
    if ended:
        return f"last written {format_age(still)} ago"
    if still >= STILL_SECONDS:
        return f"no new bytes for {format_age(still)}"
    rate = growth.bytes_per_second
    return f"+{format_memory(rate)}/s" if rate >= 1 else ""


class LogStatus(Struct, frozen=True):
    """State to show besides that of window and viewport; '' and None where there is none.

    `growth` is how the file grows, `line_number` that of the first line on the screen, from 1,
    `searched` a search text, `said` the state or result of a search or a jump; a file that
    `has_ended` grows no more.
    """

    growth: str = ""
    line_number: int | None = None
    searched: str = ""
    message: str = ""
    has_ended: bool = False


def place_parts(window: LogWindow, viewport: Viewport, status: LogStatus) -> list[Part]:
    """Return the parts of the position in the log, the first from the left."""
    check = window.stat
    size = check.size if check.is_there else window.end
    placed = viewport.placed()
    end = window.rows[placed[-1].row].end if placed else 0
    number = status.line_number
    return [
        (f"{100 * end // size}% of {format_memory(size)}" if size else "", ""),
        (status.growth, ""),
        (f"line {number:,}".replace(",", " ") if number is not None else "", ""),
        (
            _format_following(viewport, status.has_ended) if placed else "",
            "" if viewport.following else "bold",
        ),
        ("wrapped" if viewport.wrap else "", ""),
        (f"from column {viewport.left + 1}" if viewport.left else "", ""),
        (f"/{status.searched}" if status.searched else "", ""),
        (status.message or ("reading …" if viewport.owed else ""), "bold"),
    ]


def _format_following(viewport: Viewport, has_ended: bool) -> str:
    if viewport.following:
        return "at the end" if has_ended else "following"
    return "end: to the end" if has_ended else "paused (end follows)"


def bar_text(name: Part, host: str, parts: list[Part], message: str, width: int) -> Text:
    """Return everything in one line of `width` cells; if it does not fit, `message` comes first."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(*name)
    if host:
        text.append(f" on {visible(host)}")
    shown = [(visible(label), style) for label, style in parts if label]
    message = visible(message)
    if message and cell_len(text.plain) + sum(2 + cell_len(label) for label, _ in shown) > width:
        shown.sort(key=lambda part: part[0] != message)
    for label, style in shown:
        text.append("  ").append(label, style)
    return text
