"""Detail of the row under the cursor beside its table: all columns with values, in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text
from textual.containers import VerticalScroll
from textual.content import Content

from hpcdash.domain.text import visible
from hpcdash.ui.widgets.cells import CELL_STYLES, Cell
from hpcdash.ui.widgets.lines import PlainStatic
from hpcdash.ui.widgets.table_rows import Column

# Terminals as wide as this have room for the detail beside a table.
DETAIL_COLUMNS = 160
_LABEL_CELLS = 14
_LABELS = {"cpus": "CPUs", "gpus": "GPUs", "type": "GPU type", "by": "reason by"}


class RowDetail(VerticalScroll):
    """Pane with a title and lines."""

    DEFAULT_CSS = """
    RowDetail { display: none; dock: right; width: 40%; padding: 0 1; scrollbar-size-vertical: 1; }
    RowDetail > PlainStatic { height: auto; }
    """

    def __init__(self) -> None:
        self._body = PlainStatic()
        super().__init__(self._body, classes="panel", can_focus=False)
        self._shown = ""

    @property
    def room(self) -> int:
        """Cells of a line; before the layout, the expected number."""
        return self.scrollable_content_region.width or int(0.4 * self.app.size.width) - 4

    def show(self, title: str, content: Content) -> None:
        """Show content under a title, which may be text of the cluster."""
        if (drawn := f"{title}\n{content.markup}") != self._shown:
            self._shown = drawn
            self.border_title = Content(visible(title))
            self._body.update(content)
            self.scroll_home(animate=False)


def column_lines(
    columns: Iterable[tuple[str, Column]], row: Mapping[str, Any], room: int
) -> list[Content]:
    """Return the names and cells of columns with a value in a row, in lines of `room` cells."""
    lines = []
    for name, column in columns:
        value = row.get(column.key)
        cell = cell_content(column.cell(value, row)) if value not in (None, "", []) else Content()
        if text := cell.plain.strip():
            cell = cell[cell.plain.index(text) :]
            label = Content.styled(f"{_LABELS.get(name, name):<{_LABEL_CELLS}}", "$table-dim")
            for part in cell.wrap(max(8, room - _LABEL_CELLS)):
                lines.append(label + part.rstrip())
                label = Content(" " * _LABEL_CELLS)
    return lines


def cell_content(cell: Cell) -> Content:
    """Return a table's cell as content with the theme's styles."""
    if isinstance(cell, Text):
        return Content.from_rich_text(cell)
    if isinstance(cell, str):
        return Content(visible(cell))
    pieces = [cell] if isinstance(cell, tuple) else cell
    return Content.assemble(
        *((visible(text), CELL_STYLES.get(style, "")) for text, style in pieces)
    )
