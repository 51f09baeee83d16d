"""Paints the titles and rows of a table, a line each; knows columns and styles by name, no cursor and no scrolling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from hpcdash.domain.text import visible, width_of
from hpcdash.ui.widgets.cells import CELL_STYLES, MUTED, Cell, signs
from hpcdash.ui.widgets.rows_layout import Line, PlacedColumn, Row, shortened

_ALL_CELL_STYLES = frozenset(CELL_STYLES)
_MUTED_CELL_STYLES = frozenset({MUTED})
# The names that a line's style has where the cursor is.
POINTED = frozenset({"cursor", "cursor-blurred"})


class RowPainter:
    """Lines as long as their columns are; nothing in a cell can move the terminal's cursor.

    `style` combines the styles of some names, later ones on top; `console` reads the styles of rich texts.
    """

    def __init__(self, style: Callable[..., Style], console: Callable[[], Console]) -> None:
        self._style = style
        self._console = console

    def titles(self, columns: Sequence[PlacedColumn], sort: tuple[str, bool] | None) -> Strip:
        """The titles, with an arrow at that of the column `sort` names; True: descending."""
        line = Line(self._style("header"))
        for placed in columns:
            style, title = self._style("header"), visible(placed.column.title)
            if sort is not None and sort[0] == placed.column.key:
                style = self._style("header", "header-sorted")
                arrow = signs().descending if sort[1] else signs().ascending
                if width_of(title) + 2 <= placed.width:
                    title += " "
                title = shortened(title, placed.width - 1) + arrow
            else:
                title = shortened(title, placed.width)
            line.put(placed, [(title, style)])
        return line.strip()

    def with_hidden_count(self, titles: Strip, hidden: int, end: int) -> Strip:
        """The titles with `+3` before the cell `end`, where there is room, for three columns that did not fit."""
        mark = f" +{hidden}"
        start = end - len(mark)
        if hidden == 0 or start < 0 or titles.text[start:end].strip():
            return titles
        count = Strip([Segment(mark, self._style("header"))], len(mark))
        return Strip.join([titles.crop(0, start), count, titles.crop(end)])

    def placeholder(self, words: str, width: int) -> Strip:
        """Words in the middle of a line."""
        text = shortened(visible(words), width)
        left = (width - width_of(text)) // 2
        style = self._style("placeholder")
        return Strip([Segment(" " * left, style), Segment(text, style)], left + width_of(text)).extend_cell_length(
            width, style
        )

    def row(self, row: Row, columns: Sequence[PlacedColumn], names: tuple[str, ...]) -> Strip:
        """A row, in its line's styles `names`: 'dim', 'marked', and one of POINTED, each where that is so."""
        line = Line(self._style(*names))
        pointed = signs().cursor if POINTED.intersection(names) else " "
        line.add(f"{pointed}{signs().mark if 'marked' in names else ' '} ", self._style(*names, "sign"))
        for placed in columns:
            column = placed.column
            line.put(placed, self._pieces(column.cell(row.get(column.key), row), names))
        return line.strip()

    def _pieces(self, cell: Cell, names: tuple[str, ...]) -> list[tuple[str, Style]]:
        """A cell's text, with nothing in it that could move the cursor, and styles on top of its line's."""
        if isinstance(cell, Text):
            text = cell if visible(cell.plain) == cell.plain else Text(visible(cell.plain), cell.style)
            base = self._style(*names)
            drawn = text.render(self._console())
            return [(part, base + style if style is not None else base) for part, style, _ in drawn]
        if isinstance(cell, str):
            cell = (cell, "")
        pieces = cell if isinstance(cell, list) else [cell]
        base = self._style(*names)
        # A dimmed line is dim throughout; the muted colour is made for the plain background.
        plain = _ALL_CELL_STYLES if "dim" in names else _MUTED_CELL_STYLES if "cursor" in names else ()
        return [
            (visible(text), base if name in plain or name not in _ALL_CELL_STYLES else self._style(*names, name))
            for text, name in pieces
        ]
