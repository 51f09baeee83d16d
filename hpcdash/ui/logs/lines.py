"""Draws the lines of a log's viewport with search matches. Reads nothing."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from hpcdash.domain.text import visible
from hpcdash.services.logs.lines import ShownLine
from hpcdash.ui.logs.highlight import highlights
from hpcdash.ui.logs.viewport import PlacedRow, Viewport, letter_at, wrapped
from hpcdash.ui.widgets.cells import signs

_WHEEL_LINES = 3
HIGHLIGHTS = ("error", "warning", "note", "debug", "bad", "time", "number", "path")
# A highlighted text may begin before the screen's left edge, or extend beyond the right one.
_HIGHLIGHT_MARGIN = 32
# Start, end and style of a part of a text.
Part = tuple[int, int, Style]


class LogLines(Widget, can_focus=True):
    """Lines of a viewport; `notices` if it is empty."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log-lines--words",
        "log-lines--match",
        "log-lines--current",
        "log-lines--more",
        "log-lines--pointed",
        *(f"log-lines--{name}" for name in HIGHLIGHTS),
    }
    DEFAULT_CSS = """
    LogLines {
        height: 1fr; width: 1fr; background: $background; color: $foreground;
        & > .log-lines--words { color: $table-dim; }
        & > .log-lines--match { background: $warning-muted; color: $text-warning; text-style: underline; }
        & > .log-lines--current { background: $warning; color: $background; text-style: bold; }
        & > .log-lines--more { color: $table-dim; }
        & > .log-lines--pointed { background: $table-cursor; }
        & > .log-lines--error, & > .log-lines--bad { color: $error; text-style: bold; }
        & > .log-lines--warning { color: $warning; text-style: bold; }
        & > .log-lines--note { color: $success; }
        & > .log-lines--debug, & > .log-lines--time { color: $table-dim; }
        & > .log-lines--number { color: $text-primary; }
        & > .log-lines--path { color: $secondary; }
    }
    """

    class Moved(Message):
        """Posted when the size of the screen has changed."""

    class Wheel(Message):
        """Posted when the mouse wheel was turned by `lines`."""

        def __init__(self, lines: int) -> None:
            super().__init__()
            self.lines = lines

    def __init__(self, viewport: Viewport) -> None:
        super().__init__()
        self.viewport = viewport
        self.notices: Sequence[str] = ()
        self.pattern: re.Pattern[str] | None = None
        # Offsets of the row with the current match, and of the row that was jumped to.
        self.current: int | None = None
        self.pointed: int | None = None
        self._strips: list[Strip] = []
        self._line_styles: dict[str, Style] = {}

    def on_resize(self) -> None:
        self.viewport.set_size(self.size.width, self.size.height)
        self.redraw()
        self.post_message(self.Moved())

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._line_styles.clear()
        self._strips = []

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.post_message(self.Wheel(_WHEEL_LINES))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.post_message(self.Wheel(-_WHEEL_LINES))

    # -- drawing

    def redraw(self) -> None:
        """Draw the changed lines only, for slow connections."""
        before = self._strips
        self._strips = self._drawn()
        if len(before) != len(self._strips):
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(before, self._strips, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen."""
        if not self._strips:
            self._strips = self._drawn()
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self._style())

    def _drawn(self) -> list[Strip]:
        width = self.size.width
        height = self.size.height
        placed = self.viewport.placed()
        strips = [self._strip(one, width) for one in placed]
        if not placed:
            for notice in self.notices:
                text = visible(notice)
                for first, last in itertools.pairwise([*wrapped(text, width - 2), len(text)]):
                    line = Strip([Segment(f" {text[first:last]}", self._style("words"))])
                    strips.append(line.crop_extend(0, width, self._style()))
        blank = Strip.blank(width, self._style())
        return strips[:height] + [blank] * (height - len(strips))

    def _strip(self, placed: PlacedRow, width: int) -> Strip:
        viewport = self.viewport
        line = viewport.line(placed.row)
        text = line.text
        left = viewport.left
        first = placed.first
        last = len(text) if placed.last is None else placed.last
        if not viewport.wrap:
            # One more character on either side, as a wide one may be cut in half.
            first = max(0, letter_at(text, left) - 1) if left else 0
            last = min(len(text), letter_at(text, left + width) + 1)
        colours = self._colours(line, first, last)
        matches = self._matches(placed.row, text, first, last)
        is_pointed = viewport.window.rows[placed.row].offset == self.pointed
        base = self._style("pointed" if is_pointed else "")
        strip = Strip(_segments(text, first, last, below=colours, above=matches, base=base))
        if viewport.wrap:
            return strip.crop_extend(0, width, base)
        skipped = left - Strip([Segment(text[:first])]).cell_length if left else 0
        cut = strip.crop_extend(skipped, skipped + width, base)
        # Signs at the edges of the screen where the line continues.
        before, after = "‹›" if signs().ellipsis == "…" else "<>"
        if first > 0 or skipped > 0:
            sign = Strip([Segment(before, self._style("more"))])
            cut = Strip.join([sign, cut.crop(1)])
        if last < len(text) or strip.cell_length - skipped > width:
            sign = Strip([Segment(after, self._style("more"))])
            cut = Strip.join([cut.crop(0, width - 1), sign])
        return cut

    def _colours(self, line: ShownLine, first: int, last: int) -> list[Part]:
        """Return the colours of a line, by default those of the theme."""
        if not line.spans:
            return self._highlights(line.text, first, last)
        begin = max(0, bisect_right(line.spans, (first,)) - 1)
        end = bisect_right(line.spans, (last,))
        return [(one.start, one.end, _style_named(one.style)) for one in line.spans[begin:end]]

    def _highlights(self, text: str, first: int, last: int) -> list[Part]:
        """Return the theme's colours for a line; [] with NO_COLOR."""
        if self.app.no_color:
            return []
        begin = max(0, first - _HIGHLIGHT_MARGIN)
        found = highlights(text[begin : last + _HIGHLIGHT_MARGIN], begin == 0)
        return [
            (begin + start, begin + end, self._style(name, partial=True))
            for start, end, name in found
        ]

    def _matches(self, row: int, text: str, first: int, last: int) -> list[Part]:
        if self.pattern is None:
            return []
        is_current = self.viewport.window.rows[row].offset == self.current
        style = self._style("current" if is_current else "match")
        margin = len(self.pattern.pattern)
        found = self.pattern.finditer(text, max(0, first - margin), min(len(text), last + margin))
        return [(match.start(), match.end(), style) for match in found]

    def _style(self, name: str = "", *, partial: bool = False) -> Style:
        """Return the style of plain lines with that of a part; `partial`: only the part's."""
        key = f"{name} alone" if partial else name
        style = self._line_styles.get(key)
        if style is None:
            style = Style.null() if partial else self.rich_style
            if name:
                try:
                    style += self.get_component_rich_style(f"log-lines--{name}", partial=True)
                except KeyError:
                    # A worker may draw before the style sheet is applied, which draws again.
                    return style
            self._line_styles[key] = style
        return style


def _segments(
    text: str, first: int, last: int, *, below: Sequence[Part], above: Sequence[Part], base: Style
) -> list[Segment]:
    """Cut the characters `first` to `last` where styles change.

    The ordered parts `above` are styled over those `below`.
    """
    cuts = {first, last}
    for start, end, _ in itertools.chain(below, above):
        cuts |= {min(max(start, first), last), min(max(end, first), last)}
    segments = []
    places = [0, 0]
    for begin, stop in itertools.pairwise(sorted(cuts)):
        style = base
        for kind, parts in enumerate((below, above)):
            while places[kind] < len(parts) and parts[places[kind]][1] <= begin:
                places[kind] += 1
            if places[kind] < len(parts) and parts[places[kind]][0] <= begin:
                style += parts[places[kind]][2]
        segments.append(Segment(text[begin:stop], style))
    return segments


@lru_cache(maxsize=1024)
def _style_named(text: str) -> Style:
    return Style.parse(text)
