"""Visible lines of a log, and moves from them; positions are byte offsets. Draws nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from msgspec import Struct

from hpcdash.domain.text import cell_width
from hpcdash.services.logs.lines import ShownLine, shown_line
from hpcdash.services.logs.window import LogRow, LogWindow

_MAX_STORED_ROWS = 600


class PlacedRow(Struct, frozen=True):
    """Line of the screen: the characters `first` to `last` (None: the end) of a row.

    `row` is an index in the window's rows.
    """

    row: int
    first: int = 0
    last: int | None = None


class _Folded(Struct, frozen=True):
    """Text of a row, and the start of each of its lines on the screen."""

    line: ShownLine
    begins: tuple[int, ...]


class Viewport:
    """View of `width` by `height` cells of a window, at its end if it follows, else at `offset`."""

    def __init__(self, window: LogWindow) -> None:
        self.window = window
        self.width = 0
        self.height = 0
        self.wrap = False
        self.following = True
        # Cells to the left of the screen, where lines are not wrapped.
        self.left = 0
        # Number of lines left of a move beyond the loaded rows; negative for up.
        self.owed = 0
        self.offset = 0
        # Index of the row's line that is the first on the screen.
        self._part = 0
        self._folded: OrderedDict[tuple[LogRow, int], _Folded] = OrderedDict()

    # -- rows on the screen

    def placed(self) -> list[PlacedRow]:
        """Return the lines of the screen from its top, at most `height`."""
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
            row += 1
            part = 0
        return lines

    def line(self, row: int) -> ShownLine:
        """Return the text of a row."""
        return self._fold(row).line

    @property
    def is_at_last(self) -> bool:
        """Whether the last line of the window is on the screen."""
        return not self.window.rows or self._top() >= self._last_top()

    # -- moving

    def move(self, lines: int) -> None:
        """Move down by `lines`, or up if negative; `owed` is the rest beyond the loaded rows."""
        if self.window.rows and lines < 0:
            self.stay()
            left = self._move_up(-lines)
            self.owed = 0 if self.window.begins_the_file else -min(left, self.height)
        elif self.window.rows:
            left = self._move_down(lines)
            self.owed = 0 if self.window.ends_the_file else min(left, self.height)

    def _move_up(self, lines: int) -> int:
        """Move up, and return the number of lines that are left at the first row."""
        row, part = self._top()
        while lines > part and row > 0:
            lines -= part
            row -= 1
            part = self._parts(row)
        step = min(lines, part)
        self._set_top(row, part - step)
        return lines - step

    def _move_down(self, lines: int) -> int:
        """Move down, and return the number of lines that are left at the end."""
        row, part = self._top()
        last = self._last_top()
        while lines and (row, part) < last:
            step = min(lines, self._parts(row) - 1 - part)
            part += step
            lines -= step
            if lines:
                row += 1
                part = 0
                lines -= 1
        self._set_top(*min((row, part), last))
        return lines

    def pay(self) -> None:
        """Continue a move, now that more rows are loaded."""
        if self.owed:
            self.move(self.owed)

    def stay(self) -> None:
        """Stop following the end."""
        if self.following:
            self.placed()
            self.following = False

    def follow(self) -> None:
        self.following = True
        self.owed = 0

    def to_offset(self, offset: int, *, above: int = 0) -> None:
        """Show the row of an offset `above` lines below the top of the screen."""
        self.following = False
        self.owed = 0
        if self.window.rows:
            self._set_top(*min((self.window.index_of(offset), 0), self._last_top()))
            if above and self._top() < self._last_top():
                self.move(-above)

    def sideways(self, cells: int) -> None:
        """Move right by `cells`, or left if negative, within the longest line on the screen."""
        widths = [cell_width(self.line(placed.row).text) for placed in self.placed()]
        longest = max(widths, default=0)
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
        """Forget the texts, as other rows are in the window."""
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
        """Return the row and part at the top of the screen when the last line is at the bottom."""
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
        """Return the rows on the screen without a text; [] with wrapping, which needs all texts."""
        if self.wrap:
            return []
        rows = (self.window.rows[placed.row] for placed in self.placed())
        return [row for row in rows if (row, 0) not in self._folded]

    def store(self, row: LogRow, line: ShownLine) -> None:
        """Store the text of a row."""
        self._store((row, 0), _Folded(line, (0,)))

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
            self._store(key, folded)
        else:
            self._folded.move_to_end(key)
        return folded

    def _store(self, key: tuple[LogRow, int], folded: _Folded) -> None:
        self._folded[key] = folded
        while len(self._folded) > _MAX_STORED_ROWS:
            self._folded.popitem(last=False)


def wrapped(text: str, width: int) -> tuple[int, ...]:
    """Return the index of the first character of each line of `width` cells."""
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
    """Return the index of the character in a cell of the line; beyond its end, the length."""
    if text.isascii():
        return min(cell, len(text))
    ends = []
    cells = 0
    for letter in text:
        cells += cell_width(letter)
        ends.append(cells)
    return bisect_right(ends, cell)
