"""Stream of a job with searches by text and time, line numbers and a pager."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from textual.message import Message

from hpcdash.domain.units import format_memory
from hpcdash.errors import CommandTimedOut
from hpcdash.services.logs.copy import copy_end, same_file_here
from hpcdash.services.logs.search import NoTimes, find_text, find_time, local_wall_time
from hpcdash.ui.logs.stream import LogReading


class LogPane(LogReading):
    """Reader with searches and jumps in the background; a new one cancels the previous."""

    class PagerRequested(Message):
        """Posted to open a file on this machine in a pager, and delete it afterwards if a copy."""

        def __init__(self, file: Path, *, is_copy: bool = False) -> None:
            super().__init__()
            self.file = file
            self.is_copy = is_copy

    def _share(self, text: str) -> Callable[[float], None]:
        def on_output(share: float) -> None:
            self._doing = f"{text} {100 * share:.0f}%, esc stops"
            self.show_state()

        return on_output

    def clear(self) -> bool:
        """Cancel a running search, else clear the search; return False without either."""
        if self._doing:
            self._end_work()
            return True
        if self.search_text or self._found or self.lines.pointed is not None:
            self.search("")
            return True
        return False

    def search(self, text: str) -> None:
        """Mark a text, and go to a match on the screen, else to the next; at the end, the last."""
        self.search_text = text
        self._found = ""
        self._found_at = None
        lines = self.lines
        lines.pointed = None
        flags = re.IGNORECASE if text == text.lower() else re.NOFLAG
        lines.pattern = re.compile(re.escape(text), flags) if text else None
        lines.current = None
        if lines.pattern is not None:
            matches = []
            for row in dict.fromkeys(placed.row for placed in self.viewport.placed()):
                if lines.pattern.search(self.viewport.line(row).text):
                    matches.append(self.window.rows[row].offset)
            if matches:
                self._mark_match(matches[-1] if self.viewport.following else matches[0])
            else:
                self.next_match(backwards=self.viewport.following or self.viewport.is_at_last)
        self._moved()

    def _mark_match(self, offset: int) -> None:
        self._found_at = offset
        if self.window.rows:
            self.lines.current = self.window.rows[self.window.index_of(offset)].offset

    def next_match(self, *, backwards: bool = False) -> None:
        """Go to the next match after the last one or the top of the screen; or backwards."""
        window = self.window
        if not self.search_text or not window.rows:
            return
        rows = window.rows
        placed = self.viewport.placed()
        on_screen = {rows[one.row].offset for one in placed}
        if self.lines.current in on_screen and self._found_at is not None:
            row = window.index_of(self._found_at)
            start = min(self._found_at, rows[row].offset) if backwards else rows[row].end
        else:
            start = rows[placed[-1].row].end if backwards else rows[placed[0].row].offset
        self.viewport.stay()
        held = window.find(self.search_text, start, backwards=backwards)
        if held is not None:
            self._end_work()
            self._show_match(held)
        else:
            begin = window.start if backwards else window.end
            self._work("searching …, esc stops", self._search, begin, backwards)

    def _show_match(self, offset: int) -> None:
        """Mark a match, and scroll to it if it is not on the screen."""
        self._mark_match(offset)
        on_screen = {self.window.rows[one.row].offset for one in self.viewport.placed()}
        if self.lines.current not in on_screen:
            self.viewport.to_offset(offset, above=self.viewport.height // 3)
        self._moved()

    async def _search(self, start: int, backwards: bool) -> str:
        requested = self.search_text
        size = max(self.window.stat.size, self.window.end)
        found = await find_text(
            self.window.file,
            requested,
            start,
            size,
            backwards=backwards,
            on_output=self._share("searching …"),
        )
        if found is None:
            return "not found"
        await self._hold(found.offset)
        self._show_match(found.offset)
        if found.has_wrapped:
            return "search wrapped to the end" if backwards else "search wrapped to the top"
        return ""

    def go_time(self, typed: str) -> None:
        """Go to the first line at or after a typed time."""
        self._work(f"searching for {typed} …, esc stops", self._to_time, typed)

    async def _to_time(self, typed: str) -> str:
        store = self.session.store
        try:
            found = await find_time(
                self.window.file, typed, self.window.stat.size, store.clock.now(), self.session.zone
            )
        except NoTimes:
            return "the log has no timestamps"
        except ValueError as error:
            return str(error)
        when = local_wall_time(found.seconds)
        if found.offset is None:
            self._go_end()
            return f"no lines after {when}"
        await self._hold(found.offset)
        self.viewport.to_offset(found.offset, above=1)
        self.lines.pointed = found.offset
        return f"from {when}"

    def count_lines(self) -> None:
        """Determine the line number of the first line on the screen."""
        if self.window.rows:
            first = self.viewport.placed()[0].row
            offset = self.window.rows[first].offset
            self._work("counting lines …, esc stops", self._count, offset)

    async def _count(self, offset: int) -> str:
        if self.window.begins_the_file:
            before = self.window.lines_between(0, self.window.index_of(offset))
        else:
            try:
                before = await self.window.file.count_lines(offset)
            except CommandTimedOut:
                return "too many lines to count"
        self._line_number.set(offset, before + 1)
        return ""

    def open_outside(self) -> None:
        """Open the file in the person's pager: itself where it is on this machine, else a copy of
        its end.
        """
        if self.path:
            self._work("fetching …, esc stops", self._open_outside)

    async def _open_outside(self) -> str:
        file = self.window.file
        if not self.window.stat.is_there:
            return self.window.stat.problem
        here = await same_file_here(file)
        if here is not None:
            self.post_message(self.PagerRequested(here))
            return ""

        def on_output(copied: int, of: int) -> None:
            self._doing = f"fetching {format_memory(copied)} of {format_memory(of)}, esc stops"
            self.show_state()

        try:
            self.post_message(self.PagerRequested(await copy_end(file, on_output), is_copy=True))
        except OSError as error:
            return f"cannot save a copy here: {error.strerror}"
        return ""
