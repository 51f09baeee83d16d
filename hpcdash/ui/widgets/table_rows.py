"""Rows of a virtual table: layout of columns, rows read from Arrow on demand, painted lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.cache import LRUCache
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hpcdash.domain.tables import ColumnSpec, TableSpec
from hpcdash.domain.text import ELLIPSIS, cell_width, clip_path, visible
from hpcdash.ui.widgets.cells import (
    CELL_STYLES,
    MUTED,
    Cell,
    CellFunction,
    default_cell,
    signs,
)

# Cells before the first column, for the cursor, the mark and a blank.
GUTTER = 3
GAP = 2
# Rows read from Arrow at a time.
BLOCK_ROWS = 64
_MAX_BLOCKS = 32
_ALL_CELL_STYLES = frozenset(CELL_STYLES)
_CURSOR_CELL_STYLES = _ALL_CELL_STYLES - {MUTED}
# Styles of the line with the cursor.
POINTED = frozenset({"cursor", "cursor-blurred"})


class Column(Struct, frozen=True):
    """Column of the table; `width` in cells is the least width of a flexible column.

    A column with `longest` is as wide as its longest value, between `width` and `longest`; if it is
    flexible it takes no more of the remaining width than its values need. Narrow terminals drop the
    columns of the highest `priority` first, columns of priority 0 never.
    """

    key: str
    title: str
    width: int
    align: Literal["left", "right"]
    priority: int
    cell: CellFunction
    flexible: bool = False
    longest: int = 0


def build_column(
    spec: TableSpec, column: ColumnSpec, cell: CellFunction | None, instant: CellFunction
) -> Column:
    """Return a column with a cell function: `cell`, else that of the field's type.

    `instant` is the cell function of times.
    """
    kind = spec.fields.get(column.key, "text")
    is_number = kind in ("count", "real", "time") and not column.total
    return Column(
        key=column.key,
        title=column.title or column.name.upper().replace("_", " "),
        width=column.width,
        align=column.align or ("right" if is_number else "left"),
        priority=column.priority,
        cell=cell or (instant if kind == "time" else default_cell(column, kind)),
        flexible=column.flexible,
        longest=column.longest,
    )


class PlacedColumn(Struct, frozen=True):
    """Shown column, which starts at the cell `x` of the whole line."""

    column: Column
    x: int
    width: int


def place_columns(
    columns: Sequence[Column], available: int, sorted_key: str = ""
) -> tuple[PlacedColumn, ...]:
    """Return the columns that fit into `available` cells; flexible columns share the spare width.

    The column with `sorted_key` gets room for an arrow behind its title, unless another column
    would have to be dropped for it.
    """
    placed = _placed(columns, available)
    with_arrow = []
    for column in (place.column for place in placed):
        if column.key == sorted_key:
            column = replace(column, width=max(column.width, cell_width(column.title) + 1))
        with_arrow.append(column)
    return placed if _cells(with_arrow) > available else _placed(with_arrow, available)


def _cells(columns: Sequence[Column]) -> int:
    """Return the least width of the columns, with the gutter and the gaps."""
    return GUTTER + sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _placed(columns: Sequence[Column], available: int) -> tuple[PlacedColumn, ...]:
    remaining = list(columns)
    while (spare := available - _cells(remaining)) < 0:
        droppable = [column for column in reversed(remaining) if column.priority > 0]
        if not droppable:
            break
        remaining.remove(max(droppable, key=lambda column: column.priority))
    flexible = [column for column in remaining if column.flexible]
    shares = _shares(
        [max(0, column.longest - column.width) if column.longest else spare for column in flexible],
        spare,
    )
    placed = []
    x = GUTTER
    for column in remaining:
        width = column.width + (shares.pop(0) if column.flexible else 0)
        placed.append(PlacedColumn(column, x, width))
        x += width + GAP
    return tuple(placed)


def _shares(requested: Sequence[int], spare: int) -> list[int]:
    """Split `spare` among requests: the smallest are met first, the others get equal parts."""
    shares = [0] * len(requested)
    order = sorted(range(len(requested)), key=lambda index: requested[index])
    for done, index in enumerate(order):
        shares[index] = max(0, min(requested[index], -(-spare // (len(order) - done))))
        spare -= shares[index]
    return shares


def fitted(column: Column, table: pa.Table, extra: int = 0) -> Column:
    """Return the column with the width that its values and `extra` cells need, up to `longest`."""
    if not column.longest or column.key not in table.column_names or not table.num_rows:
        return column
    values = table[column.key]
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = pc.unique(values)
        values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    elif pa.types.is_list(kind):
        values = pc.binary_join(values, ", ")
    if not pa.types.is_string(values.type):
        return column
    longest_value = (pc.max(pc.utf8_length(values)).as_py() or 0) + extra
    needed = min(max(column.width, longest_value), column.longest)
    if column.flexible:
        return replace(column, longest=needed)
    return replace(column, width=needed, longest=0)


class RowBlock:
    """Rows of a table; a column becomes Python values when it is first requested."""

    __slots__ = ("_columns", "_table")

    def __init__(self, table: pa.Table, start: int) -> None:
        self._table = table.slice(start, BLOCK_ROWS)
        self._columns: dict[str, list[Any]] = {}

    def column(self, key: str) -> list[Any]:
        values = self._columns.get(key)
        if values is None:
            values = self._columns[key] = self._table.column(key).to_pylist()
        return values

    def names(self) -> list[str]:
        return list(self._table.schema.names)


class Row(Mapping[str, Any]):
    """Row as a mapping from column to value; columns are converted on demand."""

    __slots__ = ("_block", "_offset")

    def __init__(self, block: RowBlock, offset: int) -> None:
        self._block = block
        self._offset = offset

    def __getitem__(self, key: str) -> Any:
        return self._block.column(key)[self._offset]

    def __iter__(self) -> Iterator[str]:
        return iter(self._block.names())

    def __len__(self) -> int:
        return len(self._block.names())


class PaintedLine:
    """Line under construction, from the left; neighbours of one style become one segment.

    Blanks join the segment before them, for fewer segments: only the first begins with a blank.
    """

    __slots__ = ("_base", "_run", "_run_style", "_segments", "_width")

    def __init__(self, base: Style) -> None:
        self._base = base
        self._segments: list[Segment] = []
        self._run: list[str] = []
        self._run_style = base
        self._width = 0

    def add(self, text: str, style: Style) -> None:
        """Append text of one style."""
        stripped = text.lstrip(" ")
        self.blank(len(text) - len(stripped))
        if stripped:
            if style is not self._run_style:
                self._end_run(style)
            self._run.append(stripped)
            self._width += cell_width(stripped)

    def blank(self, cells: int) -> None:
        """Append blanks, in the base style if the style of the last text is visible on blanks."""
        if cells > 0:
            last = self._run_style
            base = self._base
            if last is not base and (
                last.bgcolor != base.bgcolor or last.underline or last.strike or last.reverse
            ):
                self._end_run(base)
            self._run.append(" " * cells)
            self._width += cells

    def put(self, placed: PlacedColumn, pieces: Sequence[tuple[str, Style]]) -> None:
        """Append a table cell's pieces, cut to the column's width, with blanks before them."""
        taken = sum([cell_width(text) for text, _ in pieces])
        if taken > placed.width:
            pieces = _cut(pieces, placed.width)
            taken = sum([cell_width(text) for text, _ in pieces])
        start = placed.x if placed.column.align == "left" else placed.x + placed.width - taken
        self.blank(start - self._width)
        if start <= GUTTER:
            # The gutter is a separate segment, so that the first title begins with a letter.
            self._end_run(self._base)
        for text, style in pieces:
            self.add(text, style)

    def strip(self) -> Strip:
        """Return the line without blanks at its end."""
        self._end_run(self._base)
        return Strip(self._segments, self._width)

    def _end_run(self, next_style: Style) -> None:
        if self._run:
            self._segments.append(Segment("".join(self._run), self._run_style))
            self._run = []
        self._run_style = next_style


def shortened(text: str, width: int) -> str:
    """Return `clip_path` with an ellipsis that this terminal can show."""
    short = clip_path(text, width)
    return text if short == text else short.replace(ELLIPSIS, signs().ellipsis)


def _cut(pieces: Sequence[tuple[str, Style]], width: int) -> list[tuple[str, Style]]:
    """Cut pieces to `width` cells, with an ellipsis at the end."""
    remaining: list[tuple[str, Style]] = []
    room = width
    for text, style in pieces:
        if cell_width(text) >= room:
            if cell_width(text) == room:
                # An ellipsis at its end shows that the next piece is missing.
                text += " "
            remaining.append((shortened(text, room), style))
            break
        remaining.append((text, style))
        room -= cell_width(text)
    return remaining


class IdentifiedRows:
    """Arrow table whose column `identity` has a unique string in each row; indices start at 0."""

    def __init__(self, table: pa.Table, identity: str) -> None:
        self.table = table
        self.identity = identity
        self.column_names: frozenset[str] = frozenset(table.schema.names)
        self._blocks: dict[int, RowBlock] = {}

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def ids(self) -> pa.ChunkedArray:
        """Return all IDs in the order of the rows."""
        return self.table.column(self.identity)

    def id_at(self, index: int) -> str:
        return str(self.ids()[index].as_py())

    def ids_at(self, index: int, count: int) -> list[str]:
        """Return the IDs of `count` rows from `index` on."""
        return [str(value) for value in self.ids().slice(index, count).to_pylist()]

    def row(self, index: int) -> Row:
        """Return a row to draw; its neighbours are cached, as they will probably be drawn too."""
        number, offset = divmod(index, BLOCK_ROWS)
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks.clear()
            block = self._blocks[number] = RowBlock(self.table, number * BLOCK_ROWS)
        return Row(block, offset)

    def row_table(self, index: int) -> pa.Table:
        """Return a single row as a table."""
        return self.table.slice(index, 1)

    def find(self, row_id: str, likely: int | None = None) -> int | None:
        """Return the index of an ID; checks `likely` first, as most rows stay where they were."""
        if likely is not None and likely < self.count and self.id_at(likely) == row_id:
            return likely
        ids = self.ids()
        index = int(pc.index(ids, pa.scalar(row_id, ids.type)).as_py())
        return None if index < 0 else index

    def position_near(self, row_id: str | None, index: int | None) -> int | None:
        """Return the present index of a row that was at `index`, or of the row in its place.

        The first row where there was none; None in an empty table.
        """
        if self.count == 0:
            return None
        if index is None or row_id is None:
            return 0
        found = self.find(row_id, index)
        return min(index, self.count - 1) if found is None else found

    def top_that_keeps(self, top_ids: Sequence[str], top: int) -> int:
        """Return the top row for which the first remaining ID of `top_ids` keeps its line.

        `top` if none remains.
        """
        if not top_ids:
            return top
        if (index := self.find(top_ids[0], top)) is not None:
            return index
        present = self._which(top_ids)
        for line, row_id in enumerate(top_ids):
            if row_id in present:
                return (self.find(row_id, top) or 0) - line
        return top

    def missing(self, requested: Iterable[str]) -> frozenset[str]:
        """Return the requested IDs that no row has."""
        ids = frozenset(requested)
        return ids.difference(self._which(ids)) if ids else ids

    def _which(self, requested: Iterable[str]) -> set[str]:
        """Return the requested IDs that a row has."""
        ids = self.ids()
        return set(ids.filter(pc.is_in(ids, value_set=pa.array(requested, ids.type))).to_pylist())


def row_values(row_table: pa.Table) -> dict[str, Any]:
    """Return all columns of a table with a single row."""
    row: dict[str, Any] = row_table.to_pylist()[0]
    return row


class RowPainter:
    """Painter of lines in which no cell can move the terminal's cursor.

    `style` combines styles by name, later ones on top; `console` resolves the styles of rich texts.
    """

    def __init__(self, style: Callable[..., Style], console: Callable[[], Console]) -> None:
        self._style = style
        self._console = console

    def titles(self, columns: Sequence[PlacedColumn], sort: tuple[str, bool] | None) -> Strip:
        """Return the titles, with an arrow on the column of `sort` (True: descending)."""
        line = PaintedLine(self._style("header"))
        for placed in columns:
            style = self._style("header")
            title = visible(placed.column.title)
            if sort is not None and sort[0] == placed.column.key:
                style = self._style("header", "header-sorted")
                arrow = signs().descending if sort[1] else signs().ascending
                if cell_width(title) + 2 <= placed.width:
                    title += " "
                title = shortened(title, placed.width - 1) + arrow
            else:
                title = shortened(title, placed.width)
            line.put(placed, [(title, style)])
        return line.strip()

    def with_hidden_count(self, titles: Strip, hidden: int, end: int) -> Strip:
        """Return the titles with the number of hidden columns, `+3`, before the cell `end`.

        Without room there the titles are unchanged.
        """
        mark = f" +{hidden}"
        start = end - len(mark)
        if hidden == 0 or start < 0 or titles.text[start:end].strip():
            return titles
        count = Strip([Segment(mark, self._style("header"))], len(mark))
        return Strip.join([titles.crop(0, start), count, titles.crop(end)])

    def placeholder(self, message: str, width: int) -> Strip:
        """Return a line with a text in its middle."""
        text = shortened(visible(message), width)
        left = (width - cell_width(text)) // 2
        style = self._style("placeholder")
        return Strip(
            [Segment(" " * left, style), Segment(text, style)], left + cell_width(text)
        ).extend_cell_length(width, style)

    def row(self, row: Row, columns: Sequence[PlacedColumn], names: tuple[str, ...]) -> Strip:
        """Return a row in the styles `names`: 'dim', 'marked', one of POINTED."""
        line = PaintedLine(self._style(*names))
        cursor = signs().cursor if POINTED.intersection(names) else " "
        mark = signs().mark if "marked" in names else " "
        line.add(f"{cursor}{mark} ", self._style(*names, "sign"))
        for placed in columns:
            column = placed.column
            line.put(placed, self._pieces(column.cell(row.get(column.key), row), names))
        return line.strip()

    def _pieces(self, cell: Cell, names: tuple[str, ...]) -> list[tuple[str, Style]]:
        """Return a cell's visible text with styles on top of its line's."""
        base = self._style(*names)
        if isinstance(cell, Text):
            plain = visible(cell.plain)
            text = cell if plain == cell.plain else Text(plain, cell.style)
            drawn = text.render(self._console())
            return [(part, base + style if style is not None else base) for part, style, _ in drawn]
        if isinstance(cell, str):
            cell = (cell, "")
        styles = _ALL_CELL_STYLES
        if "dim" in names:
            styles = frozenset()
        elif "cursor" in names:
            # The muted colour is made for the plain background.
            styles = _CURSOR_CELL_STYLES
        return [
            (visible(text), self._style(*names, name) if name in styles else base)
            for text, name in (cell if isinstance(cell, list) else [cell])
        ]


class DrawnRows(ScrollView):
    """Fixed line of titles above scrolling rows, or `placeholder` without rows."""

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
    }
    DEFAULT_CSS = """
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
    }
    """
    placeholder: reactive[str] = reactive("")

    def __init__(
        self, placeholder: str = "", *, id: str | None = None, classes: str | None = None
    ) -> None:
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
        """The shown table."""
        return self._rows.table

    @property
    def row_count(self) -> int:
        return self._rows.count

    @property
    def columns(self) -> tuple[Column, ...]:
        """Requested columns, including those that do not fit."""
        return self._columns

    @property
    def shown_columns(self) -> tuple[PlacedColumn, ...]:
        """Columns that fit, from the left."""
        return self._placed

    def _take(self, rows: IdentifiedRows, columns: Sequence[Column]) -> None:
        """Replace rows and columns, without drawing them."""
        self._rows = rows
        self._columns = tuple(columns)
        self._strips.clear()

    def repaint(self) -> None:
        """Draw the rows again, whose cells may depend on more than the table, such as a clock."""
        self._strips.clear()
        self._refresh_changed_lines()

    def set_sort(self, key: str | None, descending: bool = False) -> None:
        """Put the sort arrow on a column; the rows keep the order of the table."""
        self._sort = None if key is None else (key, descending)
        self._fit_columns()
        self._refresh_changed_lines()

    def visible_ids(self) -> list[str]:
        """Return the IDs of the rows on the screen, from the top."""
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
        # A virtual line as wide as the view would show a horizontal scrollbar.
        self.virtual_size = Size(needed if needed > available else 0, self.row_count + 1)

    # --- drawing ---

    def render_line(self, y: int) -> Strip:
        """Return a line of the screen; line 0 has the titles."""
        strip = self._painted[y] = self._line(y)
        return strip

    def _refresh_changed_lines(self) -> None:
        """Repaint only changed lines, for slow connections."""
        for y in range(self.size.height):
            if self._painted.get(y) != self._line(y):
                self.refresh_line(y + self.scroll_offset.y)

    def _line(self, y: int) -> Strip:
        left = self.scroll_offset.x
        width = self.size.width
        row = self.scroll_offset.y + y - 1
        if y == 0:
            titles = self._painter.titles(self._placed, self._sort)
            shown = titles.crop_extend(left, left + width, self._style("header"))
            hidden = len(self._columns) - len(self._placed)
            return self._painter.with_hidden_count(
                shown, hidden, min(width, self.scrollable_size.width)
            )
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
        """Return the styles of a row's line, later ones on top (see RowPainter)."""
        return ()

    def _style(self, *names: str) -> Style:
        style = self._styles.get(names)
        if style is None:
            style = self.rich_style
            for name in names:
                style += (
                    self.app.stylesheet.parse_style(CELL_STYLES[name]).rich_style
                    if name in CELL_STYLES
                    else self.get_component_rich_style(f"drawn-rows--{name}", partial=True)
                )
            self._styles[names] = style
        return style

    def watch_placeholder(self) -> None:
        self._refresh_changed_lines()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        self._strips.clear()
