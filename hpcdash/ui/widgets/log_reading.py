"""One stream of a job on the screen: follows its file, goes through it, says what is to be said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from hpcdash.domain.states import ENDED
from hpcdash.domain.text import visible
from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError
from hpcdash.services.logs.lines import shown_line
from hpcdash.services.logs.window import LogWindow, Row
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.widgets.lines import Line
from hpcdash.ui.widgets.log_ahead import wanted_side
from hpcdash.ui.widgets.log_bar import Standing, bar_text, place_parts
from hpcdash.ui.widgets.log_line_number import LineNumber
from hpcdash.ui.widgets.log_lines import LogLines
from hpcdash.ui.widgets.log_pace import LogPace
from hpcdash.ui.widgets.log_viewport import Viewport
from hpcdash.ui.widgets.log_words import file_notes, growth_words, job_note

_SIDEWAYS_CELLS = 16
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
        self.window = LogWindow(session.store.log_file(path or "", host), clock.now)
        self.viewport = Viewport(self.window)
        self.lines = LogLines(self.viewport)
        # What a search or a jump is doing, or came to.
        self._doing = ""
        self._found = ""
        self._found_at: int | None = None
        self._opened = False
        self._begin_at = begin_at
        self._line_number = LineNumber(self.window)
        self._pace = LogPace(session.poller)
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
        self._pace.hurry()

    async def _watch(self) -> None:
        """Look at the file as long as the pane lives; while it is not shown, wait until it is."""
        looked = time.monotonic()
        while True:
            self._pace.begin()
            if not self._is_shown:
                self.is_resting = True
                await self._pace.wanted()
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
            least_seconds = self.window.file.pause_seconds
            await self._pace.rest(self._pace.pause_after(is_new, time.monotonic() - began, least_seconds))

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
            if self.viewport.following:
                self._line_number.forget()
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
        self._line_number.forget()

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
        if not self._paging and wanted_side(self.window, self.viewport) and self.path:
            self._paging = True
            self.run_worker(self._read_more(), group="page")

    async def _read_more(self) -> None:
        try:
            while side := wanted_side(self.window, self.viewport):
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
        said = self._doing or self._found
        parts = place_parts(self.window, self.viewport, self._standing(said)) if self.path else []
        name = (self.stream, "bold" if self.is_active else "")
        return bar_text(name, self.window.file.host, parts, said, self.size.width - 2)

    def _standing(self, said: str) -> Standing:
        placed = self.viewport.placed()
        return Standing(
            growth=self.growth_words() if self.is_beside else "",
            line_number=self._line_number.of_row(placed[0].row) if placed else None,
            searched=self.search_text,
            said=said,
            has_ended=self._has_ended,
        )

    @property
    def _has_ended(self) -> bool:
        return self.row is not None and str(self.row["state"]) in ENDED

    def growth_words(self) -> str:
        """How the file grows, or how long it has not."""
        return growth_words(self.window, self.session.store.clock.now(), ended=self._has_ended)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.session.store.clock.now(), UTC)
