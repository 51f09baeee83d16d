"""Table of Arrow rows with a cursor, marks, keys and mouse, which it keeps by row ID."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from hpcdash.ui.widgets.table_rows import GAP, Column, DrawnRows, IdentifiedRows, row_values

HORIZONTAL_STEP = 8


class RowsTable(DrawnRows, can_focus=True):
    """Arrow table whose cursor, marks and scroll belong to row IDs and survive new tables."""

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
        Binding("shift+up", "mark_up", "Mark up", show=False),
        Binding("shift+down", "mark_down", "Mark down", show=False),
    ]

    class _RowMessage(Message):
        def __init__(self, row_id: str, row: pa.Table) -> None:
            super().__init__()
            self.id = row_id
            self._row = row

        @property
        def row(self) -> dict[str, Any]:
            """All columns of the row, as it was when the message was sent."""
            return row_values(self._row)

    class RowHighlighted(_RowMessage):
        """The cursor moved to the row with this `id`."""

    class RowOpened(_RowMessage):
        """The row with this `id` was opened by enter or a double click."""

    class HeaderClicked(Message):
        """The title of the column `key` was clicked."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class MarksChanged(Message):
        """The set of marked IDs changed."""

    def __init__(
        self, placeholder: str = "", *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(placeholder, id=id, classes=classes)
        self._cursor: int | None = None
        self._cursor_in_view = True
        self.cursor_moves = 0
        """Number of moves of the cursor by the user or a view; 0 in an untouched table."""
        self.follows_top = False
        """Whether the cursor stays at the top until the user moves it, scrolls or marks."""
        # Row to which the cursor returns, and its line on the screen.
        self._held: tuple[str, int] | None = None
        self._marks: set[str] = set()
        # First row of a range of marks, and the marks before it.
        self._range: tuple[str, set[str]] | None = None

    def show(self, table: pa.Table, columns: Sequence[Column], identity: str = "_row_id") -> None:
        """Show a table of any size; its column `identity` has a unique string in each row.

        The cursor stays on its row, if possible at the same line; if the row is gone it goes to the
        row in its place. A table scrolled away from the cursor keeps its top row instead. The row
        of `hold_cursor` gets the cursor back as soon as it is listed.
        """
        top = self.scroll_offset.y
        old_index = self._cursor
        old_id = self.cursor_id
        line = (old_index or 0) - top
        is_away = not self._cursor_in_view and old_index is not None and self._view_rows > 0
        top_ids = self.visible_ids() if is_away else []
        geometry = (self.virtual_size, self._placed, top)
        self._take(IdentifiedRows(table, identity), columns)
        held_id, held_line = self._held or ("", 0)
        held_index = self._rows.find(held_id, old_index) if held_id not in ("", old_id) else None
        if held_index is not None:
            self._cursor = held_index
            line = held_line
            is_away = False
        elif self.follows_top and not (self.cursor_moves or self._marks or is_away):
            self._cursor = 0 if self.row_count else None
            line = 0
        else:
            self._cursor = self._rows.position_near(old_id, old_index)
        self._fit_columns()

        if is_away:
            self._scroll_rows(self._rows.top_that_keeps(top_ids, top))
        elif self._cursor is not None:
            self._scroll_rows(self._cursor - line)
            self._scroll_to_cursor()
        if geometry == (self.virtual_size, self._placed, self.scroll_offset.y):
            self.call_next(self._refresh_changed_lines)
        else:
            self.refresh()
        if self.cursor_id != old_id:
            self._post_highlighted()

    # --- cursor ---

    @property
    def cursor_index(self) -> int | None:
        """Index of the row under the cursor, from 0; None in an empty table."""
        return self._cursor

    @property
    def cursor_id(self) -> str | None:
        """ID of the row under the cursor; None in an empty table."""
        return None if self._cursor is None else self._rows.id_at(self._cursor)

    @property
    def cursor_row(self) -> dict[str, Any] | None:
        """All columns of the row under the cursor; None in an empty table."""
        return None if self._cursor is None else row_values(self._rows.row_table(self._cursor))

    def hold_cursor(self) -> None:
        """Return the cursor to its row whenever that is shown, until it is moved or released."""
        self._held = (
            None
            if self._cursor is None
            else (self._rows.id_at(self._cursor), self._cursor - self.scroll_offset.y)
        )

    def let_cursor_go(self) -> None:
        """Leave the cursor where it is."""
        self._held = None

    def move_to(self, row_id: str) -> bool:
        """Move the cursor to a row and scroll to it; return False if no row has this ID."""
        index = self._rows.find(row_id)
        if index is None:
            return False
        if not 0 <= index - self.scroll_offset.y < self._view_rows:
            self._scroll_rows(index - self._view_rows // 2)
        self._move_cursor(index)
        return True

    # --- marks ---

    @property
    def marked(self) -> frozenset[str]:
        """Marked IDs, including IDs no longer in the table."""
        return frozenset(self._marks)

    @property
    def marked_missing(self) -> frozenset[str]:
        """Marked IDs that are no longer in the table."""
        return self._rows.missing(self._marks)

    def mark_all(self, ids: Iterable[str]) -> None:
        """Mark these rows as well."""
        self._set_marks(self._marks | set(ids))

    def clear_marks(self) -> None:
        self._set_marks(set())

    def unmark(self, ids: Iterable[str]) -> None:
        """Clear the marks of these rows."""
        self._set_marks(self._marks.difference(ids))

    def toggle_mark(self, row_id: str) -> None:
        self._set_marks(self._marks ^ {row_id})

    def toggle_all_marks(self) -> None:
        """Mark every row of the table; if all are marked, clear their marks."""
        shown = set(self._rows.ids().to_pylist())
        self._set_marks(self._marks - shown if shown <= self._marks else self._marks | shown)

    def invert_marks(self) -> None:
        """Mark the unmarked rows of the table and unmark the others; other marks stay."""
        self._set_marks(self._marks ^ set(self._rows.ids().to_pylist()))

    def _set_marks(self, marks: set[str]) -> None:
        self._range = None
        if marks != self._marks:
            self._marks = marks
            self._refresh_changed_lines()
            self.post_message(self.MarksChanged())

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
            row_id = self._rows.id_at(self._cursor)
            row = self._rows.row_table(self._cursor)
            self.post_message(self.RowOpened(row_id, row))

    def action_toggle_mark(self) -> None:
        if (row_id := self.cursor_id) is not None:
            self.toggle_mark(row_id)
            self._move_by(1)

    def action_mark_up(self) -> None:
        self._extend_range(-1)

    def action_mark_down(self) -> None:
        self._extend_range(1)

    def _extend_range(self, rows: int) -> None:
        """Move the cursor, and mark the rows between the start of such moves and the cursor."""
        if self._cursor is None:
            return
        start, before = self._range or (self._rows.id_at(self._cursor), self._marks)
        first = self._rows.find(start)
        if first is None:
            first = self._cursor
            start = self._rows.id_at(self._cursor)
        self._move_by(rows)
        low, high = sorted((first, self._cursor))
        self._set_marks(before | set(self._rows.ids_at(low, high - low + 1)))
        self._range = start, before

    def on_click(self, event: events.Click) -> None:
        """Post the clicked title, or move the cursor; a double click opens a row."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            x = offset.x + self.scroll_offset.x
            for placed in self._placed:
                if placed.x <= x < placed.x + placed.width + GAP:
                    self.post_message(self.HeaderClicked(placed.column.key))
            return
        index = self.scroll_offset.y + offset.y - 1
        if index < self.row_count:
            self._move_cursor(index)
            if event.chain == 2:
                self.action_open_row()

    def on_resize(self) -> None:
        in_view = self._cursor_in_view
        self._fit_columns()
        # Nothing is left on the screen at another size.
        self._painted.clear()
        if in_view:
            self._scroll_to_cursor()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._note_cursor_in_view()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._refresh_changed_lines()

    def watch_show_horizontal_scrollbar(self) -> None:
        if self._cursor_in_view:
            self._scroll_to_cursor()

    # --- where things are ---

    def _move_by(self, rows: int) -> None:
        if self._cursor is not None:
            self._move_cursor(min(max(self._cursor + rows, 0), self.row_count - 1))

    def _move_cursor(self, index: int) -> None:
        old = self._cursor
        self._cursor = index
        self.cursor_moves += 1
        self._held = None
        self._range = None
        self._scroll_to_cursor()
        if old != index:
            for row in (old, index):
                if row is not None and 0 <= row - self.scroll_offset.y < self._view_rows:
                    self.refresh_line(row + 1)
            self._post_highlighted()

    def _post_highlighted(self) -> None:
        if self._cursor is not None:
            row_id = self._rows.id_at(self._cursor)
            row = self._rows.row_table(self._cursor)
            self.post_message(self.RowHighlighted(row_id, row))

    def _scroll_to_cursor(self) -> None:
        height = self._view_rows
        top = self.scroll_offset.y
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

    def _line_styles(self, row: int) -> tuple[str, ...]:
        names = []
        if (
            "_dim" in self._rows.column_names
            and row != self._cursor
            and self._rows.row(row)["_dim"]
        ):
            names.append("dim")
        if self._marks and self._rows.row(row)[self._rows.identity] in self._marks:
            names.append("marked")
        if row == self._cursor:
            names.append("cursor" if self.has_focus else "cursor-blurred")
        return tuple(names)
