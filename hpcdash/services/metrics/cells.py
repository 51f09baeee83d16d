"""Points of one metric: the newest as they were logged, older ones folded into cells that keep
lowest, highest, newest, mean, nan and inf of what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np

from hpcdash.services.metrics.batch import Floats, Integers

# Rows of a table of cells; a cell is a column of it. First and last stand once for each of AXES.
OFFSET = 0
FIRST = 1
LAST = 5
LOW = 9
HIGH = 10
NEWEST = 11
TOTAL = 12
COUNT = 13
NANS = 14
PLUS_INFS = 15
MINUS_INFS = 16
CELL_ROWS = 17
# Rows of a table of points: the offset of its sample, its axes from FIRST on, and its value.
VALUE = 5
POINT_ROWS = 6
_FOLDED_AT_ONCE = 65_536
# Columns that a table has room for, beside a quarter more than it has; of one that has room for so
# many times more the room is given back.
_SPARE_COLUMNS = 256
_SPARSE = 4


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

    def between(self, first: float, until: float) -> Floats:
        """Return the columns from the offset `first` up to `until`."""
        whole = self.whole
        return whole[:, slice(*np.searchsorted(whole[OFFSET], (first, until)))]

    def add(self, columns: Floats, *, behind: bool) -> None:
        """Add columns behind all others, or before them."""
        count = columns.shape[1]
        room = count + max(_SPARE_COLUMNS, len(self) // 4)
        if behind and self._end + count > self._room.shape[1]:
            self._move(before=0, after=room)
        elif not behind and self._begin < count:
            self._move(before=room, after=0)
        if behind:
            begin = self._end
            self._end += count
        else:
            begin = self._begin = self._begin - count
        self._room[:, begin : begin + count] = columns

    def drop_first(self, count: int) -> None:
        self._begin += count
        if self._room.shape[1] > _SPARSE * len(self) + _SPARE_COLUMNS:
            self.replace(self.whole.copy())

    def drop_last(self, count: int) -> None:
        self._end -= count

    def replace(self, columns: Floats) -> None:
        self._room = columns
        self._begin = 0
        self._end = columns.shape[1]

    def _move(self, before: int, after: int) -> None:
        count = len(self)
        room = np.empty((self._room.shape[0], before + count + after))
        room[:, before : before + count] = self.whole
        self._room = room
        self._begin = before
        self._end = before + count


class StoredMetric:
    """One metric in the order of the log: its points, and before these its cells.

    Cells are as wide in bytes of the log as keeps their number within a limit. None holds points of
    two attempts: `attempts` are the offsets at which these begin.
    """

    def __init__(self) -> None:
        self.points = Table(POINT_ROWS)
        self.cells = Table(CELL_ROWS)
        self._level = 0

    def snapshot(self) -> StoredMetric:
        """The metric as it is now, sharing its memory; of the outermost cells the content may still
        change.
        """
        snapshot = copy(self)
        snapshot.points = copy(self.points)
        snapshot.cells = copy(self.cells)
        return snapshot

    def fold_points_before(self, offset: float, attempts: Integers, limit: int) -> None:
        """Fold the points before an offset of the log."""
        older = self.points.between(-np.inf, offset)
        self.points.drop_first(older.shape[1])
        self.fold(older, attempts, limit, behind=True)

    def fold(self, points: Floats, attempts: Integers, limit: int, *, behind: bool) -> None:
        """Add points to the cells, behind all others or before them."""
        begins = range(0, points.shape[1], _FOLDED_AT_ONCE)
        for begin in begins if behind else reversed(begins):
            self._add_cells(
                _cells_from_points(points[:, begin : begin + _FOLDED_AT_ONCE]),
                attempts,
                behind=behind,
            )
            self.widen_cells(attempts, limit)

    def _add_cells(self, cells: Floats, attempts: Integers, *, behind: bool) -> None:
        # The cell at the border may take some in.
        if len(self.cells) and behind:
            cells = np.concatenate((self.cells.whole[:, -1:], cells), axis=1)
            self.cells.drop_last(1)
        elif len(self.cells):
            cells = np.concatenate((cells, self.cells.whole[:, :1]), axis=1)
            self.cells.drop_first(1)
        self.cells.add(_fold(cells, self._starts(cells, attempts)), behind=behind)

    def refold(self, attempts: Integers) -> None:
        """Divide the cells at the attempts' beginnings, as far as they are known now."""
        whole = self.cells.whole
        if whole.size:
            self.cells.replace(_fold(whole, self._starts(whole, attempts)))

    def widen_cells(self, attempts: Integers, limit: int) -> None:
        """Widen the cells until there are at most `limit`, or one an attempt."""
        if len(self.cells) <= limit:
            return
        whole = self.cells.whole
        starts = self._starts(whole, attempts)
        while starts.size > limit and self._level < 62:
            self._level += 1
            starts = self._starts(whole, attempts)
        self.cells.replace(_fold(whole, starts))

    def move_steps(self, moved: Callable[[Floats, Floats], Floats]) -> None:
        """Replace the steps by what `moved` returns for steps and epochs."""
        for table, rows in ((self.points, (FIRST,)), (self.cells, (FIRST, LAST))):
            whole = table.whole.copy()
            for row in rows:
                whole[row] = moved(whole[row], whole[row + 1])
            table.replace(whole)

    def _starts(self, cells: Floats, attempts: Integers) -> Integers:
        """Return where cells of 2**level bytes of the log begin; no cell spans two attempts."""
        offsets = cells[OFFSET]
        keys = offsets.astype(np.int64) >> self._level
        is_new = np.diff(keys, prepend=keys[:1] - 1) != 0
        borders = np.searchsorted(offsets, attempts)
        is_new[borders[borders < keys.size]] = True
        return np.flatnonzero(is_new)


def _cells_from_points(points: Floats) -> Floats:
    """Each point as a cell of its own."""
    axes = points[FIRST:VALUE]
    values = points[VALUE]
    finite = np.isfinite(values)
    cells = np.empty((CELL_ROWS, values.size))
    cells[OFFSET] = points[OFFSET]
    cells[FIRST:LAST] = axes
    cells[LAST:LOW] = axes
    cells[LOW : NEWEST + 1] = np.where(finite, values, np.nan)
    cells[TOTAL] = np.where(finite, values, 0.0)
    cells[COUNT] = finite
    cells[NANS] = np.isnan(values)
    cells[PLUS_INFS] = values == np.inf
    cells[MINUS_INFS] = values == -np.inf
    return cells


def _fold(cells: Floats, starts: Integers) -> Floats:
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
    folded[NEWEST] = newest_known(cells[NEWEST], starts)
    with np.errstate(over="ignore", invalid="ignore"):
        folded[TOTAL:] = np.add.reduceat(cells[TOTAL:], starts, axis=1)
    return folded


def newest_known(values: Floats, starts: Integers) -> Floats:
    """Return the last value that is no nan from each of `starts` up to the next; nan for none."""
    known = np.where(np.isnan(values), -1, np.arange(values.size))
    newest = np.maximum.reduceat(known, starts)
    return np.where(newest < 0, np.nan, values[newest])
