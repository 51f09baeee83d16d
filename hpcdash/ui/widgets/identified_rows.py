"""An Arrow table whose rows are known by id: where an id is now, a row's values as they are needed. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.ui.widgets.rows_layout import BLOCK_ROWS, Row, RowBlock

_MOST_BLOCKS = 32


class IdentifiedRows:
    """A `table` of any size whose column `identity` has strings, one id a row; indices count from 0."""

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
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.clear()
            block = self._blocks[number] = RowBlock(self.table, number * BLOCK_ROWS)
        return Row(block, offset)

    def row_table(self, index: int) -> pa.Table:
        """A row alone, as a table."""
        return self.table.slice(index, 1)

    def find(self, row_id: str, likely: int | None = None) -> int | None:
        """The index of an id; looks at `likely` first, as most rows stay where they were."""
        if likely is not None and likely < self.count and self.id_at(likely) == row_id:
            return likely
        ids = self.ids()
        index = int(pc.index(ids, pa.scalar(row_id, ids.type)).as_py())
        return None if index < 0 else index

    def place_of(self, row_id: str | None, index: int | None) -> int | None:
        """Where a row that was at `index` is now, or what stands in its place; the first row where there was none.

        None in an empty table.
        """
        if self.count == 0:
            return None
        if index is None or row_id is None:
            return 0
        found = self.find(row_id, index)
        return min(index, self.count - 1) if found is None else found

    def top_that_keeps(self, top_ids: Sequence[str], top: int) -> int:
        """The row to show first for the first of `top_ids` that is still there to keep its line, else `top`."""
        if not top_ids:
            return top
        if (index := self.find(top_ids[0], top)) is not None:
            return index
        left = self._which(top_ids)
        for line, row_id in enumerate(top_ids):
            if row_id in left:
                return (self.find(row_id, top) or 0) - line
        return top

    def missing(self, wanted: Iterable[str]) -> frozenset[str]:
        """Those of some ids that no row has."""
        ids = frozenset(wanted)
        return ids.difference(self._which(ids)) if ids else ids

    def _which(self, wanted: Iterable[str]) -> set[str]:
        """Those of some ids that a row has."""
        ids = self.ids()
        return set(ids.filter(pc.is_in(ids, value_set=pa.array(wanted, ids.type))).to_pylist())


def row_values(row_table: pa.Table) -> dict[str, Any]:
    """All columns of a row alone."""
    row: dict[str, Any] = row_table.to_pylist()[0]
    return row
