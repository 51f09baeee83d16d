"""Which line of its file a row of a log is, where that was counted of one that is held as well. Counts no file."""

from __future__ import annotations

from hpcdash.services.logs.window import LogWindow


class LineNumber:
    """The number of one row of a window among the lines of its file, and so of all rows held together with it."""

    def __init__(self, window: LogWindow) -> None:
        self._window = window
        # A row's offset, and its number, from 1.
        self._known: tuple[int, int] | None = None

    def learn(self, offset: int, number: int) -> None:
        """The row of an offset is the `number`th line, from 1."""
        self._known = (offset, number)

    def forget(self) -> None:
        self._known = None

    def of_row(self, row: int) -> int | None:
        """The number of a row by its place in the window's rows; None where it is not known, or no longer."""
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
