"""The pieces of a virtual table: its columns and where they fit, rows read from Arrow when needed, line segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from hpcdash.domain.text import ELLIPSIS, clip, width_of
from hpcdash.ui.widgets.cells import CellFunction, signs

# Cells before the first column: cursor, mark, a blank.
GUTTER = 3
GAP = 2
# Rows read from Arrow at a time.
BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of the table is drawn; `width` in cells, and the least width of a flexible one.

    A column with `longest` grows from its width to that of the longest of its values, at most to `longest`; a flexible
    one so only takes of what is left what its values need.
    Columns of the highest `priority` are dropped first where the terminal is narrow, those of priority 0 never.
    """

    key: str
    title: str
    width: int
    align: Literal["left", "right"]
    priority: int
    cell: CellFunction
    flexible: bool = False
    longest: int = 0


@dataclass(frozen=True, slots=True)
class PlacedColumn:
    """A column that is shown: `x` is its first cell, from the left of the whole line."""

    column: Column
    x: int
    width: int


def place_columns(columns: Sequence[Column], available: int, sorted_key: str = "") -> tuple[PlacedColumn, ...]:
    """The columns that fit into `available` cells, in order; flexible ones share what is left, to their `longest`.

    The one with `sorted_key` has room for an arrow behind its title, where that leaves no other out.
    """
    placed = _placed(columns, available)
    kept = [_with_room(one.column) if one.column.key == sorted_key else one.column for one in placed]
    return placed if _cells(kept) > available else _placed(kept, available)


def _with_room(column: Column) -> Column:
    """The column, as wide as its title with an arrow."""
    return replace(column, width=max(column.width, width_of(column.title) + 1))


def _cells(columns: Sequence[Column]) -> int:
    """What columns take at least, with the gutter and the gaps."""
    return GUTTER + sum(column.width for column in columns) + GAP * (len(columns) - 1)


def _placed(columns: Sequence[Column], available: int) -> tuple[PlacedColumn, ...]:
    kept = list(columns)
    while (spare := available - _cells(kept)) < 0:
        index, least = max(enumerate(kept), key=lambda pair: (pair[1].priority, pair[0]), default=(0, None))
        if least is None or least.priority <= 0:
            break
        del kept[index]
    grown = _shares(
        [max(0, column.longest - column.width) if column.longest else spare for column in kept if column.flexible],
        spare,
    )
    placed, x = [], GUTTER
    for column in kept:
        width = column.width + (grown.pop(0) if column.flexible else 0)
        placed.append(PlacedColumn(column, x, width))
        x += width + GAP
    return tuple(placed)


def _shares(wanted: Sequence[int], spare: int) -> list[int]:
    """How `spare` is split among those who want some: who wants least first, the rest in equal parts."""
    shares = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for done, index in enumerate(order):
        shares[index] = max(0, min(wanted[index], -(-spare // (len(order) - done))))
        spare -= shares[index]
    return shares


def fitted(column: Column, table: pa.Table, extra: int = 0) -> Column:
    """The column, as wide as the values it shows want it (and `extra` cells), within its `width` and `longest`."""
    if not column.longest or column.key not in table.column_names or not table.num_rows:
        return column
    values = table[column.key]
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = pc.unique(values)
        values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    if not pa.types.is_string(values.type):
        return column
    letters = (pc.max(pc.utf8_length(values)).as_py() or 0) + extra
    wanted = min(max(column.width, letters), column.longest)
    return replace(column, longest=wanted) if column.flexible else replace(column, width=wanted, longest=0)


class RowBlock:
    """Some rows of a table, of which a column becomes Python values when first asked for."""

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
    """One row, read as a mapping from column to value; a column nobody asks for costs nothing."""

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


class Line:
    """One line being put together, from the left; neighbours of one style become one segment.

    Blanks join what stands before them, for fewer segments: a segment begins with a blank only at the line's start.
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
            self._width += width_of(written)

    def blank(self, cells: int) -> None:
        """Blanks; of the base style where those of the last text would show."""
        if cells > 0:
            last, base = self._run_style, self._base
            if last is not base and (last.bgcolor != base.bgcolor or last.underline or last.strike or last.reverse):
                self._end_run(base)
            self._run.append(" " * cells)
            self._width += cells

    def put(self, placed: PlacedColumn, pieces: Sequence[tuple[str, Style]]) -> None:
        """A cell's pieces in its column, cut to its width, with blanks up to it."""
        taken = sum([width_of(text) for text, _ in pieces])
        if taken > placed.width:
            pieces = _cut(pieces, placed.width)
            taken = sum([width_of(text) for text, _ in pieces])
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
    """`clip` with the sign for what was cut off that this terminal can show."""
    short = clip(text, width)
    return short if short == text or signs().ellipsis == ELLIPSIS else short.replace(ELLIPSIS, signs().ellipsis)


def _cut(pieces: Sequence[tuple[str, Style]], width: int) -> list[tuple[str, Style]]:
    """Pieces wider than `width` cells, cut to it; the last cell says that something is missing."""
    kept: list[tuple[str, Style]] = []
    room = width
    for text, style in pieces:
        if width_of(text) >= room:
            # A piece that just fills the room hides the next one, so it loses its end too.
            kept.append((shortened(text + " ", room), style))
            break
        kept.append((text, style))
        room -= width_of(text)
    return kept
