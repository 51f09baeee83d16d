"""Visible lines of a log and moves from there; positions are byte offsets.

Draws nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct

from hpcdash.domain.text import cell_width
from hpcdash.services.logs.lines import ShownLine, shown_line
from hpcdash.services.logs.window import LogRow, LogWindow

_KEPT_LINES = 600


class PlacedRow(Struct, frozen=True):
    """One line of the screen: a part of a row, by letters of its text.

    `row` is its place in the window's rows.

    `last` None: to the end of the text.
    """

    row: int
    first: int = 0
    last: int | None = None


class _Folded(Struct, frozen=True):
    """A row's text, and where each of its lines on the screen begins."""

    line: ShownLine
    begins: tuple[int, ...]


class Viewport:
    """`width` by `height` cells onto a window.

    Following, it stays at the end; else at the row of `offset`.
    """

    def __init__(self, window: LogWindow) -> None:
        self.window = window
        self.width = 0
        self.height = 0
        self.wrap = False
        self.following = True
        # Cells to the left of the screen, where lines are not wrapped.
        self.left = 0
        # Requested lines beyond those that are loaded: positive down, negative up.
        self.owed = 0
        self.offset = 0
        # The row's line that is the first on the screen.
        self._part = 0
        self._folded: OrderedDict[tuple[LogRow, int], _Folded] = OrderedDict()

    # -- rows on the screen

    def placed(self) -> list[PlacedRow]:
        """The lines of the screen from its top, no more than `height`."""
        rows = self.window.rows
        if not rows or self.height <= 0:
            return []
        if self.following:
            self._set_top(*self._last_top())
        row, part = self._top()
        if not self.wrap:
            return [PlacedRow(number) for number in range(row, min(len(rows), row + self.height))]
        lines: list[PlacedRow] = []
        while row < len(rows) and len(lines) < self.height:
            folded = self._fold(row)
            for number in range(part, len(folded.begins)):
                end = folded.begins[number + 1] if number + 1 < len(folded.begins) else None
                lines.append(PlacedRow(row, folded.begins[number], end))
                if len(lines) == self.height:
                    break
            row = row + 1
            part = 0
        return lines

    def line(self, row: int) -> ShownLine:
        """The text of a row."""
        return self._fold(row).line

    @property
    def is_at_last(self) -> bool:
        """Whether the last line that is held is on the screen."""
        return not self.window.rows or self._top() >= self._last_top()

    # -- moving

    def move(self, lines: int) -> None:
        """Down so many lines, or up; what is not held yet is `owed`."""
        if not self.window.rows:
            return
        if lines < 0:
            self.stay()
        row, part = self._top()
        left = abs(lines)
        while left and lines < 0:
            step = min(left, part)
            part = part - step
            left = left - step
            if left:
                if row == 0:
                    break
                row -= 1
                part = self._parts(row)
        last = self._last_top() if lines > 0 else (0, 0)
        while left and lines > 0 and (row, part) < last:
            step = min(left, self._parts(row) - 1 - part)
            part = part + step
            left = left - step
            if left:
                row = row + 1
                part = 0
                left = left - 1
        if lines > 0:
            row, part = min((row, part), last)
        self._set_top(row, part)
        if lines < 0:
            self.owed = 0 if self.window.begins_the_file else -min(left, self.height)
        else:
            self.owed = 0 if self.window.ends_the_file else min(left, self.height)

    def pay(self) -> None:
        """Continue a move to its target, now that more lines are loaded."""
        if self.owed:
            self.move(self.owed)

    def stay(self) -> None:
        """No longer follow the end."""
        if self.following:
            self.placed()
            self.following = False

    def follow(self) -> None:
        self.following = True
        self.owed = 0

    def to_offset(self, offset: int, *, above: int = 0) -> None:
        """The row of an offset to the top of the screen, or `above` lines below it."""
        self.following = False
        self.owed = 0
        if self.window.rows:
            self._set_top(*min((self.window.index_of(offset), 0), self._last_top()))
            if above and self._top() < self._last_top():
                self.move(-above)

    def sideways(self, cells: int) -> None:
        """Left or right, as far as the longest line on the screen reaches."""
        longest = max(
            (cell_width(self.line(placed.row).text) for placed in self.placed()), default=0
        )
        self.left = max(0, min(self.left + cells, longest - self.width // 2))

    def set_size(self, width: int, height: int) -> None:
        if width != self.width:
            self._folded.clear()
        self.width = width
        self.height = height

    def set_wrap(self, wrap: bool) -> None:
        self.wrap = wrap
        self.left = 0
        self._part = 0
        self._folded.clear()

    def forget(self) -> None:
        """Another file, or another place in it, is in the window."""
        self._folded.clear()
        self.owed = 0

    # -- rows and their lines

    def _top(self) -> tuple[int, int]:
        row = self.window.index_of(self.offset)
        if self.window.rows[row].offset != self.offset:
            return row, 0
        return row, min(self._part, self._parts(row) - 1)

    def _set_top(self, row: int, part: int) -> None:
        self.offset = self.window.rows[row].offset
        self._part = part

    def _last_top(self) -> tuple[int, int]:
        """The place of the first line on the screen where the last one is at its bottom."""
        row = len(self.window.rows)
        left = self.height
        while row > 0 and left > 0:
            row -= 1
            parts = self._parts(row)
            if parts >= left:
                return row, parts - left
            left -= parts
        return 0, 0

    def unread(self) -> list[LogRow]:
        """The rows of the screen whose text is not known yet; folding lines needs it anyway."""
        if self.wrap:
            return []
        rows = (self.window.rows[placed.row] for placed in self.placed())
        return [row for row in rows if (row, 0) not in self._folded]

    def keep(self, read: Iterable[tuple[LogRow, ShownLine]]) -> None:
        """Take in the text of rows, read elsewhere."""
        for row, line in read:
            self._keep((row, 0), _Folded(line, (0,)))

    def _parts(self, row: int) -> int:
        """Return the number of screen lines that a row takes."""
        return len(self._fold(row).begins) if self.wrap else 1

    def _fold(self, row: int) -> _Folded:
        held = self.window.rows[row]
        key = (held, self.width if self.wrap else 0)
        folded = self._folded.get(key)
        if folded is None:
            line = shown_line(held.content)
            folded = _Folded(line, wrapped(line.text, self.width) if self.wrap else (0,))
            self._keep(key, folded)
        else:
            self._folded.move_to_end(key)
        return folded

    def _keep(self, key: tuple[LogRow, int], folded: _Folded) -> None:
        self._folded[key] = folded
        while len(self._folded) > _KEPT_LINES:
            self._folded.popitem(last=False)


def wrapped(text: str, width: int) -> tuple[int, ...]:
    """Return the start of each line of `width` cells, by letters; wide letters are never cut."""
    if width <= 0 or not text:
        return (0,)
    if text.isascii():
        return tuple(range(0, len(text), width))
    begins = [0]
    cells = 0
    for position, letter in enumerate(text):
        letter_cells = cell_width(letter)
        if cells + letter_cells > width and position > begins[-1]:
            begins.append(position)
            cells = 0
        cells += letter_cells
    return tuple(begins)


def letter_at(text: str, cell: int) -> int:
    """The letter that a cell of the line shows, the text's length beyond its end."""
    if text.isascii():
        return min(cell, len(text))
    ends = []
    cells = 0
    for letter in text:
        cells += cell_width(letter)
        ends.append(cells)
    return bisect_right(ends, cell)
