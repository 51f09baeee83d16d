"""One stream of a job on the screen: follows its file, goes through it, says what is to be said. Knows no search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from hpcdash.domain.states import ENDED
from hpcdash.domain.text import visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError
from hpcdash.logs.lines import shown_line
from hpcdash.stores.log_file import LogFile
from hpcdash.stores.log_window import HELD_ROWS, PAGE_BYTES, LogWindow, Row
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.widgets.lines import Line
from hpcdash.ui.widgets.log_lines import LogLines
from hpcdash.ui.widgets.log_viewport import Viewport
from hpcdash.ui.widgets.log_words import file_notes, growth_words, job_note

# Between two looks: while it grows, at most, and how much longer for each look that showed nothing new.
_SHORTEST_SECONDS = 0.5
_LONGEST_SECONDS = 4.0
_SLOWER = 1.25
# Looks take no more than a third of the line's time.
_LINE_SHARE = 3.0
_SIDEWAYS_CELLS = 16
# Rows that are held ahead of the screen; fewer than half of those held on either side, so that reading comes to an end.
_AHEAD_ROWS = HELD_ROWS // 8
# Up to here lines are read within a frame, whatever is in them.
_READ_AT_ONCE_BYTES = 1 << 16


class LogReading(Vertical):
    """Follows one file while it is shown. `path` None: `words` say why there is none.

    `host` is the node that has it on its own disk; `begin_at` the offset to show first, None: its end.
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
        """What the view's surroundings say of it is something else now."""

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
        self.window = LogWindow(LogFile(session.store.transport, path or "", host), clock.now)
        self.viewport = Viewport(self.window)
        self.lines = LogLines(self.viewport)
        # What a search or a jump is doing, or came to.
        self._doing = ""
        self._found = ""
        self._found_at: int | None = None
        self._opened = False
        self._begin_at = begin_at
        # An offset whose place among the lines is known, and that place, from 1.
        self._line_number: tuple[int, int] | None = None
        self._wake = asyncio.Event()
        self._pause_seconds = _SHORTEST_SECONDS
        self._paging = False
        # Whether it waits to be shown, and looks at nothing.
        self.is_resting = False
        self._drawing = False
        self._notes = ""

    def compose(self) -> ComposeResult:
        yield self.lines
        yield Static("", classes="notes", markup=False)
        yield Line()

    def on_mount(self) -> None:
        self.lines.words = ["opening …"] if self.path else []
        if self.path:
            self.run_worker(self._watch(), group="watch")
        self.say()

    # -- following

    def look_now(self) -> None:
        """Look at the file at once, and again soon."""
        self._pause_seconds = _SHORTEST_SECONDS
        self._wake.set()

    async def _watch(self) -> None:
        """Look at the file as long as the pane lives; while it is not shown, wait until it is."""
        looked = time.monotonic()
        while True:
            self._wake.clear()
            if not self._is_shown:
                self.is_resting = True
                await self._wake.wait()
                self.is_resting = False
                continue
            began = time.monotonic()
            try:
                is_new = await self._look(began - looked)
                self._error(None)
            except (UnreachableError, CommandTimedOut) as error:
                is_new = False
                self._error(error)
            looked = began
            self._pause_seconds = _SHORTEST_SECONDS if is_new else min(self._pause_seconds * _SLOWER, _LONGEST_SECONDS)
            least = self.window.file.pause_seconds
            await self._rest(max(self._pause_seconds, least, _LINE_SHARE * (time.monotonic() - began)))

    async def _rest(self, seconds: float) -> None:
        """Wait until something is wanted; longer without focus, but no longer than `seconds` once it is back."""
        rested = 0.0
        poller = self.session.poller
        while rested < seconds * (1.0 if poller.focused else poller.pace.unfocused_factor):
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                rested += seconds
            else:
                return

    @property
    def _is_shown(self) -> bool:
        return self.is_attached and all(node.display for node in self.ancestors_with_self if hasattr(node, "display"))

    async def _look(self, seconds: float) -> bool:
        """Read what is new where one follows, else see what became of the file."""
        size, identity = self.window.look.size, self.window.look.identity
        if self.viewport.following:
            is_new = await self.window.follow(seconds)
        else:
            is_new = await self.window.glance()
            if is_new:
                # What one was at is no more.
                self._go_end()
        if is_new:
            if not self._opened:
                self.viewport.follow()
                self.post_message(self.Changed())
            self._opened = True
            self._line_number = None if self.viewport.following else self._line_number
            self._redraw()
            if (begin_at := self._begin_at) is not None:
                self._begin_at = None
                if begin_at < self.window.look.size:
                    self._jump(begin_at)
        look = self.window.look
        self.say()
        return is_new or (look.size, look.identity) != (size, identity)

    def _error(self, error: HpcdashError | None) -> None:
        if (error is None) != (self.error is None) or error is not None:
            self.error = error
            self.post_message(self.Changed())

    # -- going somewhere

    def place_in_file(self) -> int | None:
        """The offset of the first line on the screen; None where the end is followed."""
        placed = self.viewport.placed() if self.window.rows and not self.viewport.following else []
        return self.window.rows[placed[0].row].offset if placed else None

    def move(self, lines: int) -> None:
        """So many lines down, or up; down at the very end follows it."""
        if lines > 0 and not self.viewport.following and self.viewport.is_at_last and self.window.ends_the_file:
            self.set_following(True)
            return
        self.viewport.move(lines)
        self._moved()

    def page(self, pages: int) -> None:
        """So many screens down, or up, one line of the last still shown."""
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
            self.look_now()
        else:
            self.viewport.stay()
        self._moved()

    def _go_end(self) -> None:
        self.viewport.follow()
        self._line_number = None

    def set_wrap(self, wrap: bool) -> None:
        self.viewport.set_wrap(wrap)
        self._moved()

    def go_percent(self, percent: float) -> None:
        self._jump(int(self.window.look.size * percent / 100))

    def _jump(self, offset: int, *, above: int = 0) -> None:
        """To the row of an offset, with so many lines above it; read it first where it is not held."""
        self.viewport.stay()
        if self.window.start <= offset < self.window.end or (offset == 0 and self.window.begins_the_file):
            self._arrive(offset, above)
        else:
            self._work(self._read_and_jump(offset, above), "reading …")

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
        self.say()
        self._read_ahead()

    def _redraw(self) -> None:
        """Draw what is on the screen now; where its lines are very long they are read in a thread first."""
        unread = self.viewport.unread()
        if sum(len(row.content) for row in unread) <= _READ_AT_ONCE_BYTES:
            self.lines.redraw()
        elif not self._drawing:
            self._drawing = True
            self.run_worker(self._draw(unread), group="draw")

    async def _draw(self, unread: list[Row]) -> None:
        while unread:
            # One after the other: keys take their turns between them.
            self.viewport.keep([(unread[0], await asyncio.to_thread(shown_line, unread[0].content))])
            unread = self.viewport.unread()
        self._drawing = False
        self._redraw()

    # -- reading ahead

    def _read_ahead(self) -> None:
        """Hold what one will want next, before it is wanted."""
        if not self._paging and self._wanted_side() and self.path:
            self._paging = True
            self.run_worker(self._read_more(), group="page")

    def _wanted_side(self) -> int:
        """Before what is held (-1), after it (1), or nowhere (0)."""
        window, viewport = self.window, self.viewport
        if viewport.following or not window.rows or viewport.height <= 0:
            return 0
        placed = viewport.placed()
        first, last = placed[0].row, placed[-1].row
        # Short lines are held by their number, long ones by their bytes.
        before_bytes = window.rows[first].offset - window.start
        is_near_first = first < _AHEAD_ROWS and before_bytes < PAGE_BYTES // 2
        if (viewport.owed < 0 or (viewport.owed == 0 and is_near_first)) and not window.begins_the_file:
            return -1
        after_bytes = window.end - window.rows[last].end
        if len(window.rows) - last <= _AHEAD_ROWS and after_bytes < PAGE_BYTES // 2 and not window.ends_the_file:
            return 1
        return 0

    async def _read_more(self) -> None:
        try:
            while side := self._wanted_side():
                held = (self.window.start, self.window.end)
                await (self.window.read_before() if side < 0 else self.window.read_after())
                if self.viewport.following or held == (self.window.start, self.window.end):
                    break
                self.viewport.pay()
                self._redraw()
                self.say()
        except (UnreachableError, CommandTimedOut) as error:
            self._error(error)
        finally:
            self._paging = False
            self.viewport.owed = 0
            self.say()

    # -- searching and jumping, which may take a while

    @property
    def is_working(self) -> bool:
        return bool(self._doing)

    def _work(self, work: Coroutine[Any, Any, str], words: str) -> None:
        """Do one thing that takes a while, in place of another; it answers what to say of it."""
        self._doing = words
        self._found = ""
        self.run_worker(self._do(work), group="work", exclusive=True)
        self.say()

    async def _do(self, work: Coroutine[Any, Any, str]) -> None:
        try:
            self._found = await work
        except (UnreachableError, CommandTimedOut) as error:
            self._found = "it took too long" if isinstance(error, CommandTimedOut) else "the line failed"
            self._error(error)
        self._doing = ""
        self._moved()

    def _end_work(self) -> None:
        self.workers.cancel_group(self, "work")
        self._doing = ""
        self._found = ""
        self.say()

    # -- what is said

    def say(self) -> None:
        """Say what is to be said of the file and the job, and where one is."""
        if not self.is_attached or not self.children:
            return
        store = self.session.store
        reason = "" if self.row is None else self.row["reason"]
        hint = "" if self.row is None else store.backend.reason_hint(str(self.row["state"]), reason)
        notes = [self.note] if self.note else []
        notes += file_notes(self.window, self.row, hint, self.session.zone)
        if ended := job_note(self.row, self._now(), self.session.zone):
            notes.append(ended)
        has_rows = bool(self.window.rows)
        words = notes if self._opened or not self.path or self.window.looked_at is not None else ["opening …"]
        if not has_rows and list(self.lines.words) != words:
            self.lines.words = words
            self._redraw()
        shown = "\n".join(visible(note) for note in notes) if has_rows else ""
        if shown != self._notes:
            self._notes = shown
            below = self.query_one(".notes", Static)
            below.update(Text(shown))
            below.display = bool(shown)
        self.query_one(Line).say(self._bar())

    def _bar(self) -> Text:
        """Which stream, how far, and what is going on."""
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(self.stream, "bold" if self.is_active else "")
        if host := self.window.file.host:
            text.append(f" on {visible(host)}")
        parts = [(visible(words), style) for words, style in self._position() if words]
        said = visible(self._doing or self._found)
        if said and cell_len(text.plain) + sum(2 + cell_len(words) for words, _ in parts) > self.size.width - 2:
            # What a key came to is told first where not everything can be.
            parts.sort(key=lambda part: part[0] != said)
        for words, style in parts:
            text.append("  ").append(words, style)
        return text

    def _position(self) -> list[tuple[str, str]]:
        if not self.path:
            return []
        viewport, look = self.viewport, self.window.look
        size = look.size if look.is_there else self.window.end
        placed = viewport.placed()
        end = self.window.rows[placed[-1].row].end if placed else 0
        percent = f"{100 * end // size} % of {format_memory(size)}" if size else ""
        if self._doing or self._found:
            said = self._doing or self._found
        else:
            said = "reading …" if viewport.owed else ""
        number = self._line_number_on_top(placed[0].row) if placed else None
        return [
            (percent, ""),
            (self.growth_words() if self.is_beside else "", ""),
            (f"line {number:,}".replace(",", " ") if number is not None else "", ""),
            (self._following_words() if placed else "", "" if viewport.following else "bold"),
            ("wrapped" if viewport.wrap else "", ""),
            (f"from column {viewport.left + 1}" if viewport.left else "", ""),
            (f"/{self.search_text}" if self.search_text else "", ""),
            (said, "bold"),
        ]

    @property
    def _has_ended(self) -> bool:
        return self.row is not None and str(self.row["state"]) in ENDED

    def growth_words(self) -> str:
        """How the file grows, or how long it has not."""
        return growth_words(self.window, self.session.store.clock.now(), ended=self._has_ended)

    def _following_words(self) -> str:
        if self.viewport.following:
            return "at the end" if self._has_ended else "following"
        return "end: to the end" if self._has_ended else "stopped (end follows)"

    def _line_number_on_top(self, row: int) -> int | None:
        """Which line of the file a row is, where that is known of one that is held as well."""
        if self._line_number is None:
            return None
        offset, number = self._line_number
        rows = self.window.rows
        if not rows[0].offset <= offset <= rows[-1].offset:
            self._line_number = None
            return None
        known = self.window.index_of(offset)
        if row >= known:
            number += self.window.lines_between(known, row)
        else:
            number -= self.window.lines_between(row, known)
        self._line_number = (rows[row].offset, number)
        return number

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.session.store.clock.now(), UTC)
