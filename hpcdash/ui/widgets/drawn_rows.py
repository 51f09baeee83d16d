"""Draws the rows of an Arrow table: only those on the screen, and of those only what changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa
from rich.style import Style
from textual.cache import LRUCache
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hpcdash.ui.themes import STATE_STYLES
from hpcdash.ui.widgets.cells import CELL_STYLES
from hpcdash.ui.widgets.identified_rows import IdentifiedRows
from hpcdash.ui.widgets.row_painting import RowPainter
from hpcdash.ui.widgets.rows_layout import Column, PlacedColumn, place_columns


class DrawnRows(ScrollView):
    """A line of titles, which stay, above the rows; `placeholder` where there are none."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "drawn-rows--header",
        "drawn-rows--header-sorted",
        "drawn-rows--cursor",
        "drawn-rows--cursor-blurred",
        "drawn-rows--marked",
        "drawn-rows--dim",
        "drawn-rows--sign",
        "drawn-rows--placeholder",
        *(f"drawn-rows--{name}" for name in CELL_STYLES),
    }
    DEFAULT_CSS = (
        """
    DrawnRows {
        background: $background;
        color: $foreground;
        scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 1;
        & > .drawn-rows--header { background: $table-header; color: $table-title; }
        & > .drawn-rows--header-sorted { color: $foreground; text-style: bold; }
        & > .drawn-rows--cursor { background: $table-cursor; text-style: bold; }
        & > .drawn-rows--cursor-blurred { background: $table-cursor-blurred; }
        & > .drawn-rows--marked { background: $table-marked; }
        & > .drawn-rows--dim { color: $table-dim; }
        & > .drawn-rows--sign { color: $accent; text-style: bold; }
        & > .drawn-rows--placeholder { color: $table-dim; }
        & > .drawn-rows--muted { color: $table-dim; }
        & > .drawn-rows--strong { text-style: bold; }
        & > .drawn-rows--good { color: $success; }
        & > .drawn-rows--warning { color: $warning; }
        & > .drawn-rows--bad { color: $error; }
        & > .drawn-rows--accent { color: $primary; }
    """
        + "\n".join(f"& > .drawn-rows--{name} {{ color: $state-{name}; }}" for name in STATE_STYLES)
        + "\n}"
    )
    placeholder: reactive[str] = reactive("")

    def __init__(self, placeholder: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._rows = IdentifiedRows(pa.table({"_row_id": pa.array([], pa.string())}), "_row_id")
        self._columns: tuple[Column, ...] = ()
        self._placed: tuple[PlacedColumn, ...] = ()
        self._sort: tuple[str, bool] | None = None
        self._painter = RowPainter(self._style, lambda: self.app.console)
        self._strips: LRUCache[tuple[object, ...], Strip] = LRUCache(512)
        self._styles: dict[tuple[str, ...], Style] = {}
        self._painted: dict[int, Strip] = {}
        self.set_reactive(DrawnRows.placeholder, placeholder)

    # --- what is shown ---

    @property
    def table(self) -> pa.Table:
        """The table that is shown."""
        return self._rows.table

    @property
    def row_count(self) -> int:
        return self._rows.count

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns asked for, those that do not fit too."""
        return self._columns

    @property
    def shown_columns(self) -> tuple[PlacedColumn, ...]:
        """The columns that fit, from the left."""
        return self._placed

    def _take(self, rows: IdentifiedRows, columns: Sequence[Column]) -> None:
        """Other rows from now on; what is on the screen is not drawn again by this."""
        self._rows, self._columns = rows, tuple(columns)
        self._strips.clear()

    def repaint(self) -> None:
        """Draws again the rows whose cells depend on more than the table, such as a clock; unchanged lines stay."""
        self._strips.clear()
        self._refresh_changed_lines()

    def set_sort(self, key: str | None, descending: bool = False) -> None:
        """Puts the sort arrow on a column; the rows come in the order of the table."""
        self._sort = None if key is None else (key, descending)
        self._fit_columns()
        self._refresh_changed_lines()

    def visible_ids(self) -> list[str]:
        """The ids of the rows on the screen, from the top."""
        return self._rows.ids_at(self.scroll_offset.y, self._view_rows)

    # --- where things are ---

    @property
    def _view_rows(self) -> int:
        return max(0, self.scrollable_size.height - 1)

    def _fit_columns(self) -> None:
        available = self.scrollable_size.width
        placed = place_columns(self._columns, available, self._sort[0] if self._sort else "")
        if placed != self._placed:
            self._placed = placed
            self._strips.clear()
            self.refresh()
        needed = placed[-1].x + placed[-1].width if placed else 0
        # A line as wide as the view would bring up a horizontal scrollbar.
        self.virtual_size = Size(needed if needed > available else 0, self.row_count + 1)

    def _fit_to_size(self) -> None:
        """The widget has another size: what was painted is gone."""
        self._fit_columns()
        self._painted.clear()

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
            titles = self._painter.titles(self._placed, self._sort)
            shown = titles.crop_extend(left, left + width, self._style("header"))
            hidden = len(self._columns) - len(self._placed)
            return self._painter.with_hidden_count(shown, hidden, min(width, self.scrollable_size.width))
        if self.row_count == 0 and y == 2:
            return self._painter.placeholder(self.placeholder, width)
        if row >= self.row_count:
            return Strip.blank(width, self._style())
        names = self._line_styles(row)
        key = (row, names)
        strip = self._strips.get(key)
        if strip is None:
            strip = self._painter.row(self._rows.row(row), self._placed, names)
            self._strips.set(key, strip)
        return strip.crop_extend(left, left + width, self._style(*names))

    def _line_styles(self, row: int) -> tuple[str, ...]:
        """The names of the styles of a row's line, later ones on top (see RowPainter)."""
        return ()

    def _style(self, *names: str) -> Style:
        style = self._styles.get(names)
        if style is None:
            style = self.rich_style
            for name in names:
                style += self.get_component_rich_style(f"drawn-rows--{name}", partial=True)
            self._styles[names] = style
        return style

    def watch_placeholder(self) -> None:
        self._refresh_changed_lines()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        self._strips.clear()
