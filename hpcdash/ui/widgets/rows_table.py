"""A table of any number of Arrow rows that draws only those on the screen and holds what one points at by id.

Knows no job, node or scheduler: columns say how a value looks, the identity column says which row is which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hpcdash.domain.text import visible, width_of
from hpcdash.ui.themes import STATE_STYLES
from hpcdash.ui.widgets.cells import CELL_STYLES, MUTED, Cell, signs
from hpcdash.ui.widgets.rows_layout import (
    BLOCK_ROWS,
    GAP,
    Column,
    Line,
    PlacedColumn,
    Row,
    RowBlock,
    place_columns,
    shortened,
)

__all__ = ["Column", "PlacedColumn", "RowsTable"]

HORIZONTAL_STEP = 8
ALL_CELL_STYLES = frozenset(CELL_STYLES)
MUTED_CELL_STYLES = frozenset({MUTED})


class RowsTable(ScrollView, can_focus=True):
    """Shows an Arrow table; cursor, marks and scroll belong to rows by id and survive every new table."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "rows-table--header",
        "rows-table--header-sorted",
        "rows-table--cursor",
        "rows-table--cursor-blurred",
        "rows-table--marked",
        "rows-table--dim",
        "rows-table--sign",
        "rows-table--placeholder",
        *(f"rows-table--{name}" for name in CELL_STYLES),
    }
    DEFAULT_CSS = (
        """
    RowsTable {
        background: $background;
        color: $foreground;
        scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 1;
        & > .rows-table--header { background: $table-header; color: $table-title; }
        & > .rows-table--header-sorted { color: $foreground; text-style: bold; }
        & > .rows-table--cursor { background: $table-cursor; text-style: bold; }
        & > .rows-table--cursor-blurred { background: $table-cursor-blurred; }
        & > .rows-table--marked { background: $table-marked; }
        & > .rows-table--dim { color: $table-dim; }
        & > .rows-table--sign { color: $accent; text-style: bold; }
        & > .rows-table--placeholder { color: $table-dim; }
        & > .rows-table--muted { color: $table-dim; }
        & > .rows-table--strong { text-style: bold; }
        & > .rows-table--good { color: $success; }
        & > .rows-table--warning { color: $warning; }
        & > .rows-table--bad { color: $error; }
        & > .rows-table--accent { color: $primary; }
    """
        + "\n".join(f"& > .rows-table--{name} {{ color: $state-{name}; }}" for name in STATE_STYLES)
        + "\n}"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor_up", "Up", show=False),
        Binding("down,j", "cursor_down", "Down", show=False),
        Binding("pageup", "page_up", "Page up", show=False),
        Binding("pagedown", "page_down", "Page down", show=False),
        Binding("home", "scroll_home", "First", show=False),
        Binding("end", "scroll_end", "Last", show=False),
        Binding("left", "scroll_left", "Left", show=False),
        Binding("right", "scroll_right", "Right", show=False),
        Binding("enter", "open_row", "Open", show=False),
        Binding("space", "toggle_mark", "Mark", show=False),
    ]

    placeholder: reactive[str] = reactive("")

    class _OfRow(Message):
        def __init__(self, table: RowsTable, row_id: str, row: pa.Table) -> None:
            super().__init__()
            self.table = table
            self.id = row_id
            self._row = row

        @property
        def row(self) -> dict[str, Any]:
            """All columns of the row, as it was when the message was sent."""
            return _only_row(self._row)

        @property
        def control(self) -> RowsTable:
            return self.table

    class RowHighlighted(_OfRow):
        """The cursor came to another row: its `id`, and `row`."""

    class RowOpened(_OfRow):
        """Enter or a double click: its `id`, and `row`."""

    class HeaderClicked(Message):
        """The title of the column `key` was clicked."""

        def __init__(self, table: RowsTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> RowsTable:
            return self.table

    class MarksChanged(Message):
        """The set of marked ids is another one; `count` of them."""

        def __init__(self, table: RowsTable, count: int) -> None:
            super().__init__()
            self.table = table
            self.count = count

        @property
        def control(self) -> RowsTable:
            return self.table

    def __init__(self, placeholder: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._table: pa.Table = pa.table({"_row_id": pa.array([], pa.string())})
        self._identity = "_row_id"
        self._columns: tuple[Column, ...] = ()
        self._placed: tuple[PlacedColumn, ...] = ()
        self._sort: tuple[str, bool] | None = None
        self._cursor: int | None = None
        self._cursor_in_view = True
        self._marks: set[str] = set()
        self._blocks: dict[int, RowBlock] = {}
        self._strips: LRUCache[tuple[object, ...], Strip] = LRUCache(512)
        self._styles: dict[tuple[str, ...], Style] = {}
        self._painted: dict[int, Strip] = {}
        self.set_reactive(RowsTable.placeholder, placeholder)

    # --- what is shown ---

    @property
    def table(self) -> pa.Table:
        """The table that is shown."""
        return self._table

    @property
    def row_count(self) -> int:
        return int(self._table.num_rows)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns asked for, those that do not fit too."""
        return self._columns

    @property
    def shown_columns(self) -> tuple[PlacedColumn, ...]:
        """The columns that fit, from the left."""
        return self._placed

    def show(self, table: pa.Table, columns: Sequence[Column], identity: str = "_row_id") -> None:
        """Takes a new table of any size. `identity` names a column of strings, one id a row.

        The cursor stays with its row, at the same line where that is possible. Where the row is gone it goes to the one
        now at its place. A view scrolled away from the cursor keeps its top row instead.
        """
        height = self._view_rows
        top = self.scroll_offset.y
        old_index, old_id = self._cursor, self.cursor_id
        away = not self._cursor_in_view and old_index is not None and height > 0
        top_ids = self.visible_ids() if away else []

        geometry = (self.virtual_size, self._placed, top)
        self._table, self._identity, self._columns = table, identity, tuple(columns)
        self._blocks.clear()
        self._strips.clear()
        if table.num_rows == 0:
            self._cursor = None
        elif old_index is None or old_id is None:
            self._cursor = 0
        else:
            found = self._find(old_id, old_index)
            self._cursor = min(old_index, table.num_rows - 1) if found is None else found
        self._fit_columns()

        if away:
            self._scroll_rows(self._anchored_top(top_ids, top))
        elif self._cursor is not None:
            self._scroll_rows(self._cursor - ((old_index or 0) - top))
            self._scroll_to_cursor()
        if geometry == (self.virtual_size, self._placed, self.scroll_offset.y):
            self.call_next(self._refresh_changed_lines)
        else:
            self.refresh()
        if self.cursor_id != old_id:
            self._post_highlighted()

    def repaint(self) -> None:
        """Draws again the rows whose cells depend on more than the table, such as a clock; unchanged lines stay."""
        self._strips.clear()
        self._refresh_changed_lines()

    def set_sort(self, key: str | None, descending: bool = False) -> None:
        """Puts the sort arrow on a column; the rows come in the order of the table."""
        self._sort = None if key is None else (key, descending)
        self._refresh_changed_lines()

    def visible_ids(self) -> list[str]:
        """The ids of the rows on the screen, from the top."""
        return [str(value) for value in self._ids().slice(self.scroll_offset.y, self._view_rows).to_pylist()]

    # --- cursor ---

    @property
    def cursor_index(self) -> int | None:
        """The row under the cursor, from 0; None in an empty table."""
        return self._cursor

    @property
    def cursor_id(self) -> str | None:
        """The id of the row under the cursor; None in an empty table."""
        return None if self._cursor is None else self._id_at(self._cursor)

    @property
    def cursor_row(self) -> dict[str, Any] | None:
        """All columns of the row under the cursor; None in an empty table."""
        return None if self._cursor is None else _only_row(self._table.slice(self._cursor, 1))

    def move_to(self, row_id: str) -> bool:
        """Puts the cursor on a row and scrolls to it; False where no row has this id."""
        index = self._find(row_id)
        if index is None:
            return False
        if not 0 <= index - self.scroll_offset.y < self._view_rows:
            self._scroll_rows(index - self._view_rows // 2)
        self._move_cursor(index)
        return True

    # --- marks ---

    @property
    def marked(self) -> frozenset[str]:
        """The marked ids, those no longer in the table too."""
        return frozenset(self._marks)

    @property
    def marked_missing(self) -> frozenset[str]:
        """The marked ids that no row of the table has."""
        if not self._marks:
            return frozenset()
        ids = self._ids()
        wanted = pa.array(self._marks, ids.type)
        return frozenset(self._marks.difference(ids.filter(pc.is_in(ids, value_set=wanted)).to_pylist()))

    def mark_all(self, ids: Iterable[str]) -> None:
        """Marks these rows as well."""
        self._set_marks(self._marks | set(ids))

    def clear_marks(self) -> None:
        self._set_marks(set())

    def toggle_mark(self, row_id: str) -> None:
        self._set_marks(self._marks ^ {row_id})

    def _set_marks(self, marks: set[str]) -> None:
        if marks != self._marks:
            self._marks = marks
            self._refresh_changed_lines()
            self.post_message(self.MarksChanged(self, len(marks)))

    # --- keys and mouse ---

    def action_cursor_up(self) -> None:
        self._move_by(-1)

    def action_cursor_down(self) -> None:
        self._move_by(1)

    def action_page_up(self) -> None:
        self._move_by(-max(1, self._view_rows - 1))

    def action_page_down(self) -> None:
        self._move_by(max(1, self._view_rows - 1))

    def action_scroll_home(self) -> None:
        self._move_by(-self.row_count)

    def action_scroll_end(self) -> None:
        self._move_by(self.row_count)

    def action_scroll_left(self) -> None:
        self.scroll_to(x=self.scroll_offset.x - HORIZONTAL_STEP, animate=False, immediate=True)

    def action_scroll_right(self) -> None:
        self.scroll_to(x=self.scroll_offset.x + HORIZONTAL_STEP, animate=False, immediate=True)

    def action_open_row(self) -> None:
        if self._cursor is not None:
            self.post_message(self.RowOpened(self, self._id_at(self._cursor), self._table.slice(self._cursor, 1)))

    def action_toggle_mark(self) -> None:
        if (row_id := self.cursor_id) is not None:
            self.toggle_mark(row_id)
            self._move_by(1)

    def on_click(self, event: events.Click) -> None:
        """The title line names a column, any other line a row; a double click opens it."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            x = offset.x + self.scroll_offset.x
            for placed in self._placed:
                if placed.x <= x < placed.x + placed.width + GAP:
                    self.post_message(self.HeaderClicked(self, placed.column.key))
            return
        index = self.scroll_offset.y + offset.y - 1
        if index < self.row_count:
            self._move_cursor(index)
            if event.chain == 2:
                self.action_open_row()

    def on_resize(self) -> None:
        in_view = self._cursor_in_view
        self._fit_columns()
        if in_view:
            self._scroll_to_cursor()
        self._painted.clear()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._note_cursor_in_view()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._refresh_changed_lines()

    def watch_show_horizontal_scrollbar(self) -> None:
        if self._cursor_in_view:
            self._scroll_to_cursor()

    def watch_placeholder(self) -> None:
        self._refresh_changed_lines()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        self._strips.clear()

    # --- where things are ---

    @property
    def _view_rows(self) -> int:
        return max(0, self.scrollable_size.height - 1)

    def _ids(self) -> pa.ChunkedArray:
        return self._table.column(self._identity)

    def _id_at(self, index: int) -> str:
        return str(self._ids()[index].as_py())

    def _find(self, row_id: str, likely: int | None = None) -> int | None:
        """The index of an id; looks at `likely` first, as most rows stay where they were."""
        if likely is not None and likely < self.row_count and self._id_at(likely) == row_id:
            return likely
        ids = self._ids()
        index = int(pc.index(ids, pa.scalar(row_id, ids.type)).as_py())
        return None if index < 0 else index

    def _anchored_top(self, top_ids: list[str], top: int) -> int:
        """Where to scroll to for the first of `top_ids` that is still there to keep its line."""
        if not top_ids:
            return top
        if (index := self._find(top_ids[0], top)) is not None:
            return index
        ids = self._ids()
        left = set(ids.filter(pc.is_in(ids, value_set=pa.array(top_ids, ids.type))).to_pylist())
        for line, row_id in enumerate(top_ids):
            if row_id in left:
                return (self._find(row_id, top) or 0) - line
        return top

    def _fit_columns(self) -> None:
        available = self.scrollable_size.width
        placed = place_columns(self._columns, available)
        if placed != self._placed:
            self._placed = placed
            self._strips.clear()
            self.refresh()
        needed = placed[-1].x + placed[-1].width if placed else 0
        # A line as wide as the view would bring up a horizontal scrollbar.
        self.virtual_size = Size(needed if needed > available else 0, self.row_count + 1)

    def _move_by(self, rows: int) -> None:
        if self._cursor is not None:
            self._move_cursor(min(max(self._cursor + rows, 0), self.row_count - 1))

    def _move_cursor(self, index: int) -> None:
        old, self._cursor = self._cursor, index
        self._scroll_to_cursor()
        if old != index:
            for row in (old, index):
                if row is not None and 0 <= row - self.scroll_offset.y < self._view_rows:
                    self.refresh_line(row + 1)
            self._post_highlighted()

    def _post_highlighted(self) -> None:
        if self._cursor is not None:
            self.post_message(self.RowHighlighted(self, self._id_at(self._cursor), self._table.slice(self._cursor, 1)))

    def _scroll_to_cursor(self) -> None:
        height, top = self._view_rows, self.scroll_offset.y
        if self._cursor is not None and height > 0:
            self._scroll_rows(min(max(top, self._cursor - height + 1), self._cursor))
        self._note_cursor_in_view()

    def _scroll_rows(self, top: int) -> None:
        if self._view_rows > 0 and top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False, force=True)

    def _note_cursor_in_view(self) -> None:
        if self._view_rows > 0:
            line = 0 if self._cursor is None else self._cursor - self.scroll_offset.y
            self._cursor_in_view = 0 <= line < self._view_rows

    # --- drawing ---

    def render_line(self, y: int) -> Strip:
        """One line of the screen; 0 is the titles, which stay while the rows scroll."""
        strip = self._painted[y] = self._line(y)
        return strip

    def _refresh_changed_lines(self) -> None:
        """Marks for painting the lines that look different from what was painted last: little goes over a slow line."""
        for y in range(self.size.height):
            if self._painted.get(y) != self._line(y):
                self.refresh_line(y + self.scroll_offset.y)

    def _line(self, y: int) -> Strip:
        left, width = self.scroll_offset.x, self.size.width
        row = self.scroll_offset.y + y - 1
        if y == 0:
            names: tuple[str, ...] = ("header",)
            strip = self._titles()
        elif self.row_count == 0:
            return self._placeholder_line(width) if y == 2 else Strip.blank(width, self._style())
        elif row >= self.row_count:
            return Strip.blank(width, self._style())
        else:
            names = self._row_styles(row)
            key = (row, names)
            cached = self._strips.get(key)
            if cached is None:
                cached = self._row_strip(row, names)
                self._strips.set(key, cached)
            strip = cached
        strip = strip.crop_extend(left, left + width, self._style(*names))
        return self._with_hidden_count(strip) if y == 0 else strip

    def _with_hidden_count(self, titles: Strip) -> Strip:
        """The titles with `+3` at their end, where there is room, for three columns that did not fit."""
        hidden = len(self._columns) - len(self._placed)
        mark = f" +{hidden}"
        end = min(self.size.width, self.scrollable_size.width)
        start = end - len(mark)
        if hidden == 0 or start < 0 or titles.text[start:end].strip():
            return titles
        count = Strip([Segment(mark, self._style("header"))], len(mark))
        return Strip.join([titles.crop(0, start), count, titles.crop(end)])

    def _placeholder_line(self, width: int) -> Strip:
        text = shortened(visible(self.placeholder), width)
        left = (width - width_of(text)) // 2
        style = self._style("placeholder")
        return Strip([Segment(" " * left, style), Segment(text, style)], left + width_of(text)).extend_cell_length(
            width, style
        )

    def _titles(self) -> Strip:
        line = Line(self._style("header"))
        for placed in self._placed:
            style, title = self._style("header"), visible(placed.column.title)
            if self._sort is not None and self._sort[0] == placed.column.key:
                style = self._style("header", "header-sorted")
                arrow = signs().descending if self._sort[1] else signs().ascending
                if width_of(title) + 2 <= placed.width:
                    title += " "
                title = shortened(title, placed.width - 1) + arrow
            else:
                title = shortened(title, placed.width)
            line.put(placed, [(title, style)])
        return line.strip()

    def _row_styles(self, row: int) -> tuple[str, ...]:
        """The names of the styles of a row's line, later ones on top."""
        names = []
        if "_dim" in self._table.schema.names and row != self._cursor and self._row(row)["_dim"]:
            names.append("dim")
        if self._marks and self._row(row)[self._identity] in self._marks:
            names.append("marked")
        if row == self._cursor:
            names.append("cursor" if self.has_focus else "cursor-blurred")
        return tuple(names)

    def _row(self, index: int) -> Row:
        number, offset = divmod(index, BLOCK_ROWS)
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) >= 32:
                self._blocks.clear()
            block = self._blocks[number] = RowBlock(self._table, number * BLOCK_ROWS)
        return Row(block, offset)

    def _row_strip(self, index: int, names: tuple[str, ...]) -> Strip:
        row = self._row(index)
        line = Line(self._style(*names))
        pointed = signs().cursor if index == self._cursor else " "
        line.add(f"{pointed}{signs().mark if 'marked' in names else ' '} ", self._style(*names, "sign"))
        for placed in self._placed:
            column = placed.column
            line.put(placed, self._pieces(column.cell(row.get(column.key), row), names))
        return line.strip()

    def _pieces(self, cell: Cell, names: tuple[str, ...]) -> list[tuple[str, Style]]:
        """A cell's text, with nothing in it that could move the cursor, and styles on top of its line's."""
        if isinstance(cell, Text):
            text = cell if visible(cell.plain) == cell.plain else Text(visible(cell.plain), cell.style)
            base = self._style(*names)
            drawn = text.render(self.app.console)
            return [(part, base + style if style is not None else base) for part, style, _ in drawn]
        if isinstance(cell, str):
            cell = (cell, "")
        pieces = cell if isinstance(cell, list) else [cell]
        base = self._style(*names)
        # A dimmed line is dim throughout; the muted colour is made for the plain background.
        plain = ALL_CELL_STYLES if "dim" in names else MUTED_CELL_STYLES if "cursor" in names else ()
        return [
            (visible(text), base if name in plain or name not in ALL_CELL_STYLES else self._style(*names, name))
            for text, name in pieces
        ]

    def _style(self, *names: str) -> Style:
        style = self._styles.get(names)
        if style is None:
            style = self.rich_style
            for name in names:
                style += self.get_component_rich_style(f"rows-table--{name}", partial=True)
            self._styles[names] = style
        return style


def _only_row(table: pa.Table) -> dict[str, Any]:
    row: dict[str, Any] = table.to_pylist()[0]
    return row
