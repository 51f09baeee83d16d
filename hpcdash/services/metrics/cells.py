"""Points folded into cells that keep lowest, highest, newest, mean, nan and inf of what is in
them.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from hpcdash.services.metrics.batch import Floats, Integers

# Rows of a table of cells; a cell is a column of it. First and last stand once for each of AXES.
OFFSET, FIRST, LAST, LOW, HIGH, NEWEST = 0, 1, 5, 9, 10, 11
TOTAL, COUNT, NANS, PLUS_INFS, MINUS_INFS = 12, 13, 14, 15, 16
CELL_ROWS = 17


class Table:
    """Columns of float64, shape (rows, columns), that grow at both ends.

    What `whole` gave out is not written over by columns that are added behind; `replace`, and
    columns that are added before after `drop_first`, do write over it.
    """

    def __init__(self, rows: int) -> None:
        self._room: Floats = np.empty((rows, 0))
        self._begin = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def nbytes(self) -> int:
        return self._room.nbytes

    @property
    def whole(self) -> Floats:
        return self._room[:, self._begin : self._end]

    def add(self, columns: Floats, *, behind: bool) -> None:
        """Add columns behind all others, or before them."""
        count = columns.shape[1]
        room = count + max(256, len(self) // 4)
        if behind and self._end + count > self._room.shape[1]:
            self._move(before=0, after=room)
        elif not behind and self._begin < count:
            self._move(before=room, after=0)
        if behind:
            begin = self._end
            self._end = self._end + count
        else:
            begin = self._begin = self._begin - count
        self._room[:, begin : begin + count] = columns

    def drop_first(self, count: int) -> None:
        self._begin += count

    def drop_last(self, count: int) -> None:
        self._end -= count

    def replace(self, columns: Floats) -> None:
        self._room = columns
        self._begin, self._end = 0, columns.shape[1]

    def _move(self, before: int, after: int) -> None:
        room = np.empty((self._room.shape[0], before + len(self) + after))
        room[:, before : before + len(self)] = self.whole
        self._room, self._begin, self._end = room, before, before + len(self)


def cells_from_points(offsets: Floats, axes: Floats, values: Floats) -> Floats:
    """Each point as a cell of its own: (CELL_ROWS, n) of offsets (n), axes (4, n) and values
    (n).
    """
    cells = np.empty((CELL_ROWS, values.size))
    finite = np.isfinite(values)
    cells[OFFSET] = offsets
    cells[FIRST:LAST] = axes
    cells[LAST:LOW] = axes
    cells[LOW : NEWEST + 1] = np.where(finite, values, np.nan)
    cells[TOTAL] = np.where(finite, values, 0.0)
    cells[COUNT] = finite
    cells[NANS] = np.isnan(values)
    cells[PLUS_INFS] = values == np.inf
    cells[MINUS_INFS] = values == -np.inf
    return cells


def fold(cells: Floats, starts: Integers) -> Floats:
    """Neighbouring cells made one: a cell of the answer holds those from one of `starts` up to the
    next.
    """
    if starts.size == cells.shape[1]:
        return cells
    folded = np.empty((CELL_ROWS, starts.size))
    folded[OFFSET] = cells[OFFSET, starts]
    folded[FIRST:LAST] = np.fmin.reduceat(cells[FIRST:LAST], starts, axis=1)
    folded[LAST:LOW] = np.fmax.reduceat(cells[LAST:LOW], starts, axis=1)
    folded[LOW] = np.fmin.reduceat(cells[LOW], starts)
    folded[HIGH] = np.fmax.reduceat(cells[HIGH], starts)
    has = np.where(np.isnan(cells[NEWEST]), -1, np.arange(cells.shape[1]))
    newest = np.maximum.reduceat(has, starts)
    folded[NEWEST] = np.where(newest < 0, np.nan, cells[NEWEST, newest])
    with np.errstate(over="ignore", invalid="ignore"):
        folded[TOTAL:] = np.add.reduceat(cells[TOTAL:], starts, axis=1)
    return folded


def group_starts(offsets: Floats, level: int, attempt_offsets: Integers) -> Integers:
    """Return the starts of cells of 2**level bytes of the log; no cell spans two attempts."""
    keys = offsets.astype(np.int64) >> level
    new = np.empty(keys.size, dtype=bool)
    new[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    borders = np.searchsorted(offsets, attempt_offsets)
    new[borders[borders < keys.size]] = True
    return np.flatnonzero(new)


class Cells:
    """The cells of one metric, in the order of the log; as wide in bytes as keeps them within a
    number.
    """

    def __init__(self) -> None:
        self.table = Table(CELL_ROWS)
        self.level = 0

    def snapshot(self) -> Cells:
        """The cells as they are now, sharing their memory; of the outermost ones the content may
        still change.
        """
        stored = copy(self)
        stored.table = copy(self.table)
        return stored

    def add(self, cells: Floats, attempts: Integers, *, behind: bool) -> None:
        """Add cells behind all others, or before them; the cell at the border may take some in."""
        if len(self.table) and behind:
            cells = np.concatenate((self.table.whole[:, -1:], cells), axis=1)
            self.table.drop_last(1)
        elif len(self.table):
            cells = np.concatenate((cells, self.table.whole[:, :1]), axis=1)
            self.table.drop_first(1)
        starts = group_starts(cells[OFFSET], self.level, attempts)
        self.table.add(fold(cells, starts), behind=behind)

    def refold(self, attempts: Integers) -> None:
        whole = self.table.whole
        if whole.shape[1]:
            self.table.replace(fold(whole, group_starts(whole[OFFSET], self.level, attempts)))

    def keep_within(self, limit: int, attempts: Integers) -> None:
        """Widens cells until there are at most `limit`, or one an attempt."""
        if len(self.table) <= limit:
            return
        whole = self.table.whole
        starts = group_starts(whole[OFFSET], self.level, attempts)
        while starts.size > limit and self.level < 62:
            self.level += 1
            starts = group_starts(whole[OFFSET], self.level, attempts)
        self.table.replace(fold(whole, starts))
