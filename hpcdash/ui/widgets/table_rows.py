"""The rows of a virtual table: columns and where they fit, rows read from Arrow when needed,
painted a line each.
"""

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
from hpcdash.ui.themes import JOB_STYLES, STATE_STYLES
from hpcdash.ui.widgets.cells import (
    CELL_STYLES,
    MUTED,
    Cell,
    CellFunction,
    default_cell,
    signs,
)

# Cells before the first column: cursor, mark, a blank.
GUTTER = 3
GAP = 2
# Rows read from Arrow at a time.
BLOCK_ROWS = 64
_MAX_BLOCKS = 32
_ALL_CELL_STYLES = frozenset(CELL_STYLES)
_MUTED_CELL_STYLES = frozenset({MUTED})
# The names that a line's style has where the cursor is.
POINTED = frozenset({"cursor", "cursor-blurred"})


class Column(Struct, frozen=True):
    """Column of the table; `width` in cells, the least width of a flexible one.

    A column with `longest` grows from its width to that of the longest of its values, at most to
    `longest`; a flexible one with `longest` takes of the remaining width only what its values need.
    Columns of the highest `priority` are dropped first where the terminal is narrow, those of
    priority 0 never.
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
    """A column of a table with its cells: `cell`, or what its field's type has; `instant` is that
    of times.
    """
    kind = spec.fields.get(column.key, "text")
    is_number = kind in ("count", "real", "time") and not column.total
    return Column(
        column.key,
        column.title or column.name.upper().replace("_", " "),
        column.width,
        column.align or ("right" if is_number else "left"),
        column.priority,
        cell or (instant if kind == "time" else default_cell(column, kind)),
        column.flexible,
        column.longest,
    )


class PlacedColumn(Struct, frozen=True):
    """A column that is shown: `x` is its first cell, from the left of the whole line."""

    column: Column
    x: int
    width: int


def place_columns(
    columns: Sequence[Column], available: int, sorted_key: str = ""
) -> tuple[PlacedColumn, ...]:
    """The columns that fit into `available` cells, in order; flexible ones share what is left, to
    their `longest`.

    The one with `sorted_key` has room for an arrow behind its title, where that leaves no other
    out.
    """
    placed = _placed(columns, available)
    remaining = [
        _with_room(one.column) if one.column.key == sorted_key else one.column for one in placed
    ]
    return placed if _cells(remaining) > available else _placed(remaining, available)


def _with_room(column: Column) -> Column:
    """The column, as wide as its title with an arrow."""
    return replace(column, width=max(column.width, cell_width(column.title) + 1))


def _cells(columns: Sequence[Column]) -> int:
    """Return the least width of the columns, with the gutter and the gaps."""
    return GUTTER + sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _placed(columns: Sequence[Column], available: int) -> tuple[PlacedColumn, ...]:
    remaining = list(columns)
    while (spare := available - _cells(remaining)) < 0:
        index, least = max(
            enumerate(remaining), key=lambda pair: (pair[1].priority, pair[0]), default=(0, None)
        )
        if least is None or least.priority <= 0:
            break
        del remaining[index]
    grown = _shares(
        [
            max(0, column.longest - column.width) if column.longest else spare
            for column in remaining
            if column.flexible
        ],
        spare,
    )
    placed = []
    x = GUTTER
    for column in remaining:
        width = column.width + (grown.pop(0) if column.flexible else 0)
        placed.append(PlacedColumn(column, x, width))
        x += width + GAP
    return tuple(placed)


def _shares(requested: Sequence[int], spare: int) -> list[int]:
    """Split `spare` among requests: the smallest are met first, the rest gets equal parts."""
    shares = [0] * len(requested)
    order = sorted(range(len(requested)), key=lambda index: requested[index])
    for done, index in enumerate(order):
        shares[index] = max(0, min(requested[index], -(-spare // (len(order) - done))))
        spare -= shares[index]
    return shares


def fitted(column: Column, table: pa.Table, extra: int = 0) -> Column:
    """The column, as wide as the values it shows want it (and `extra` cells), within its `width`
    and `longest`.
    """
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
    letters = (pc.max(pc.utf8_length(values)).as_py() or 0) + extra
    requested = min(max(column.width, letters), column.longest)
    return (
        replace(column, longest=requested)
        if column.flexible
        else replace(column, width=requested, longest=0)
    )


class RowBlock:
    """Rows of a table, of which a column becomes Python values when first requested."""

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
    """One row, read as a mapping from column to value; an unread column costs nothing."""

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
    """One line being put together, from the left; neighbours of one style become one segment.

    Blanks join what stands before them, for fewer segments: a segment begins with a blank only at
    the line's start.
    """

    __slots__ = ("_base", "_run", "_run_style", "_segments", "_width")

    def __init__(self, base: Style) -> None:
        self._base = base
        self._segments: list[Segment] = []
        self._run: list[str] = []
        self._run_style = base
        self._width = 0

    def add(self, text: str, style: Style) -> None:
        """Text of one style right after what is there."""
        written = text.lstrip(" ")
        self.blank(len(text) - len(written))
        if written:
            if style is not self._run_style:
                self._end_run(style)
            self._run.append(written)
            self._width += cell_width(written)

    def blank(self, cells: int) -> None:
        """Blanks; of the base style where those of the last text would show."""
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
        """A cell's pieces in its column, cut to its width, with blanks up to it."""
        taken = sum([cell_width(text) for text, _ in pieces])
        if taken > placed.width:
            pieces = _cut(pieces, placed.width)
            taken = sum([cell_width(text) for text, _ in pieces])
        start = placed.x if placed.column.align == "left" else placed.x + placed.width - taken
        self.blank(start - self._width)
        if start <= GUTTER:
            # The gutter is a segment of its own, so that the first title begins with a letter.
            self._end_run(self._base)
        for text, style in pieces:
            self.add(text, style)

    def strip(self) -> Strip:
        """All of it, without blanks at the end."""
        self._end_run(self._base)
        return Strip(self._segments, self._width)

    def _end_run(self, next_style: Style) -> None:
        if self._run:
            self._segments.append(Segment("".join(self._run), self._run_style))
            self._run = []
        self._run_style = next_style


def shortened(text: str, width: int) -> str:
    """`clip_path` with the sign for what was cut off that this terminal can show."""
    short = clip_path(text, width)
    return (
        short
        if short == text or signs().ellipsis == ELLIPSIS
        else short.replace(ELLIPSIS, signs().ellipsis)
    )


def _cut(pieces: Sequence[tuple[str, Style]], width: int) -> list[tuple[str, Style]]:
    """Cut pieces to `width` cells; the last cell shows that something is missing."""
    remaining: list[tuple[str, Style]] = []
    room = width
    for text, style in pieces:
        if cell_width(text) >= room:
            # A piece that just fills the room hides the next one, so it loses its end too.
            remaining.append(
                (shortened(text if cell_width(text) > room else text + " ", room), style)
            )
            break
        remaining.append((text, style))
        room -= cell_width(text)
    return remaining


class IdentifiedRows:
    """A `table` of any size whose column `identity` has strings, one id a row; indices count from
    0.
    """

    def __init__(self, table: pa.Table, identity: str) -> None:
        self.table = table
        self.identity = identity
        self.column_names: frozenset[str] = frozenset(table.schema.names)
        self._blocks: dict[int, RowBlock] = {}

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def ids(self) -> pa.ChunkedArray:
        """All ids, in the order of the rows."""
        return self.table.column(self.identity)

    def id_at(self, index: int) -> str:
        return str(self.ids()[index].as_py())

    def ids_at(self, index: int, count: int) -> list[str]:
        """The ids of so many rows from one on."""
        return [str(value) for value in self.ids().slice(index, count).to_pylist()]

    def row(self, index: int) -> Row:
        """A row to be drawn; those around it are likely to be drawn too."""
        number, offset = divmod(index, BLOCK_ROWS)
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) >= _MAX_BLOCKS:
                self._blocks.clear()
            block = self._blocks[number] = RowBlock(self.table, number * BLOCK_ROWS)
        return Row(block, offset)

    def row_table(self, index: int) -> pa.Table:
        """A row alone, as a table."""
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
        """The row to show first for the first of `top_ids` that is still there to keep its line,
        else `top`.
        """
        if not top_ids:
            return top
        if (index := self.find(top_ids[0], top)) is not None:
            return index
        left = self._which(top_ids)
        for line, row_id in enumerate(top_ids):
            if row_id in left:
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
    """All columns of a row alone."""
    row: dict[str, Any] = row_table.to_pylist()[0]
    return row


class RowPainter:
    """Lines as long as their columns are; nothing in a cell can move the terminal's cursor.

    `style` combines the styles of some names, later ones on top; `console` reads the styles of rich
    texts.
    """

    def __init__(self, style: Callable[..., Style], console: Callable[[], Console]) -> None:
        self._style = style
        self._console = console

    def titles(self, columns: Sequence[PlacedColumn], sort: tuple[str, bool] | None) -> Strip:
        """The titles, with an arrow at that of the column `sort` names; True: descending."""
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
        """The titles with `+3` before the cell `end`, where there is room, for three columns that
        did not fit.
        """
        mark = f" +{hidden}"
        start = end - len(mark)
        if hidden == 0 or start < 0 or titles.text[start:end].strip():
            return titles
        count = Strip([Segment(mark, self._style("header"))], len(mark))
        return Strip.join([titles.crop(0, start), count, titles.crop(end)])

    def placeholder(self, message: str, width: int) -> Strip:
        """Return text in the middle of a line."""
        text = shortened(visible(message), width)
        left = (width - cell_width(text)) // 2
        style = self._style("placeholder")
        return Strip(
            [Segment(" " * left, style), Segment(text, style)], left + cell_width(text)
        ).extend_cell_length(width, style)

    def row(self, row: Row, columns: Sequence[PlacedColumn], names: tuple[str, ...]) -> Strip:
        """A row, in its line's styles `names`: 'dim', 'marked', and one of POINTED, each where that
        is so.
        """
        line = PaintedLine(self._style(*names))
        pointed = signs().cursor if POINTED.intersection(names) else " "
        line.add(
            f"{pointed}{signs().mark if 'marked' in names else ' '} ", self._style(*names, "sign")
        )
        for placed in columns:
            column = placed.column
            line.put(placed, self._pieces(column.cell(row.get(column.key), row), names))
        return line.strip()

    def _pieces(self, cell: Cell, names: tuple[str, ...]) -> list[tuple[str, Style]]:
        """A cell's text, with nothing in it that could move the cursor, and styles on top of its
        line's.
        """
        if isinstance(cell, Text):
            text = (
                cell if visible(cell.plain) == cell.plain else Text(visible(cell.plain), cell.style)
            )
            base = self._style(*names)
            drawn = text.render(self._console())
            return [(part, base + style if style is not None else base) for part, style, _ in drawn]
        if isinstance(cell, str):
            cell = (cell, "")
        pieces = cell if isinstance(cell, list) else [cell]
        base = self._style(*names)
        # A dimmed line is dim throughout; the muted colour is made for the plain background.
        plain = (
            _ALL_CELL_STYLES if "dim" in names else _MUTED_CELL_STYLES if "cursor" in names else ()
        )
        return [
            (
                visible(text),
                base
                if name in plain or name not in _ALL_CELL_STYLES
                else self._style(*names, name),
            )
            for text, name in pieces
        ]


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
        + "\n".join(
            f"& > .drawn-rows--{name} {{ color: ${name}; text-style: bold; }}"
            for name in JOB_STYLES
        )
        + "\n}"
    )
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
        """The table that is shown."""
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
        """The columns that fit, from the left."""
        return self._placed

    def _take(self, rows: IdentifiedRows, columns: Sequence[Column]) -> None:
        """Other rows from now on; what is on the screen is not drawn again by this."""
        self._rows, self._columns = rows, tuple(columns)
        self._strips.clear()

    def repaint(self) -> None:
        """Draws again the rows whose cells depend on more than the table, such as a clock;
        unchanged lines stay.
        """
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
        """Mark lines for painting that look different: little goes over a slow connection."""
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
