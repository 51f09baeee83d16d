"""Collects the samples of one log as they come, forward and backward, in bounded memory.

The newest points are kept as they are, up to a number; older ones in cells that keep the lowest,
highest, newest and mean value and which of nan, inf and -inf stood there. Which points are exact
follows from what was read, not from its order.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import reduce
from math import inf

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.metrics.attempts import (
    MAX_ATTEMPTS,
    Attempt,
    Axes,
    Jump,
    join_attempt,
    jumps_in,
    largest_jumps,
    put_together,
    split_attempts,
    steps_before,
    stretches_in,
)
from hpcdash.services.metrics.batch import AXES, Floats, Integers, MetricBatch, Points, has_room
from hpcdash.services.metrics.cells import (
    CELL_ROWS,
    COUNT,
    FIRST,
    HIGH,
    LAST,
    LOW,
    MINUS_INFS,
    NANS,
    NEWEST,
    PLUS_INFS,
    TOTAL,
    Cells,
    Table,
    cells_from_points,
)
from hpcdash.services.metrics.epochs import EpochCount

EXACT_POINTS = 600_000
# Of an export; beyond, the oldest are folded.
EXPORTED_POINTS = 5_000_000
CELLS = 262_144
NAN, PLUS_INF, MINUS_INF = 1, 2, 4
_OFFSET, _POINTS = 0, 5  # rows of the table of samples; 1 to 4 are AXES
_AT_ONCE = 65_536
# A jump of the steps is larger than so many of the log's least strides.
_JUMP_STRIDES = 8


class Strip(Struct, frozen=True):
    """One metric of one attempt in the order of the log; every array is of one length, from
    `exact_from` on single points.

    low, high, newest and mean are nan where a cell holds no finite value; `points` counts its
    finite values, `odd` is made of NAN, PLUS_INF and MINUS_INF. Of single points low, high, newest
    and mean are one array. `x_first` and `x_last` are (4, n), in the order of AXES.
    """

    x_first: Floats
    x_last: Floats
    low: Floats
    high: Floats
    newest: Floats
    mean: Floats
    points: Floats
    odd: Integers
    exact_from: int


class MetricLog:
    """The samples of one log file. Not safe to change while another thread reads it."""

    def __init__(
        self, exact_points: int = EXACT_POINTS, cells: int = CELLS, border_bytes: int = 1 << 20
    ) -> None:
        """Keeps at most `exact_points` newest points of all metrics exact, begun at a multiple of
        `border_bytes` in the log, and about `cells` cells of the older ones.
        """
        self._most_exact = exact_points
        self._most_cells = cells
        self._border_bytes = border_bytes
        self._exact_offset = 0
        self._samples = Table(6)
        self._first_sample = 0
        self._points: dict[str, Table] = {}
        self._cells: dict[str, Cells] = {}
        self._exact = 0
        # Stretches whose steps ascend, of a log without steps their epochs.
        self._stretches: list[Attempt] = []
        self._jumps: tuple[Jump, ...] = ()
        self._leading = 1
        self._one_attempt = False
        self._attempts_known: tuple[int, tuple[Attempt, ...], list[float] | None] = 0, (), None
        self._ends: tuple[float, float] | None = None
        self._last_step: int | None = None
        self._epochs = EpochCount()
        self.version = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._points))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """In the order of the log.

        Lines of several ranks that overtake each other are no attempt, nor is the next epoch where
        steps are counted within theirs: these count on. After 1000 beginnings attempts are no
        longer told apart: one.
        """
        return self._derive()[0]

    @property
    def jumps(self) -> tuple[Jump, ...]:
        """The few largest jumps of the steps that are unusual for this log, in its order."""
        if self._one_attempt or not self._jumps or self._derive()[1] is not None:
            return ()
        return self._unusual_jumps()

    def _unusual_jumps(self) -> tuple[Jump, ...]:
        stride = min((stretch.stride for stretch in self._stretches), default=inf)
        return tuple(jump for jump in self._jumps if jump.steps > _JUMP_STRIDES * stride)

    def _derive(self) -> tuple[tuple[Attempt, ...], list[float] | None]:
        if self._attempts_known[0] != self.version:
            before = None
            if self._one_attempt:
                reported = [join_attempt(self._stretches)]
            else:
                before = (
                    steps_before(self._stretches, self._last_step) if self._leading == 0 else None
                )
                reported = split_attempts(self._stretches, before, self._leading)
            self._attempts_known = self.version, tuple(reported), before
        return self._attempts_known[1:]

    @property
    def last_step(self) -> int | None:
        """The final step that the log names; None where that is only its epoch's."""
        if self._epochs.position is not None:
            return self._epochs.last_step
        return self._last_step if self._last_step is None or self._derive()[1] is None else None

    @property
    def doubt(self) -> str:
        """Text on what the log leaves open about its steps; '' for nothing."""
        return self._epochs.doubt

    @property
    def first_epoch(self) -> float | None:
        """The number of the first epoch that its steps are counted from, None where it does not
        show that.
        """
        return self._epochs.shown_first_epoch

    def beginning_with(self, first_epoch: float) -> MetricLog:
        """The log, or a copy of it that counts its steps from that epoch where it does not show the
        first itself.
        """
        if self._epochs.position is None or self.first_epoch is not None:
            return self
        stored = self.snapshot()
        stored._epochs.begins_with = first_epoch
        stored._correct(self._epochs)
        stored.version += 1
        return stored

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the samples take."""
        cells = (cells.table for cells in self._cells.values())
        return sum(table.nbytes for table in (self._samples, *self._points.values(), *cells))

    def axes(self) -> tuple[str, ...]:
        """The x axes that this log has, of step, epoch, tokens, time; `point`, the how manieth, is
        always there.
        """
        has = [any(not np.isnan(attempt.first[i]) for attempt in self._stretches) for i in range(4)]
        return (*(name for name, known in zip(AXES, has, strict=True) if known), "point")

    def places(self, name: str) -> int:
        """Return the number of stored points and cells of a metric; 0 for an unknown metric."""
        return len(self._points[name]) + len(self._cells[name].table) if name in self._points else 0

    def append(self, batch: MetricBatch) -> None:
        """Adds what stands behind everything that was read; samples that were read before are left
        out.
        """
        if batch.last_step is not None:
            self._last_step = batch.last_step
        if self._ends is not None and batch.offsets.size and batch.offsets[0] <= self._ends[1]:
            batch = _part(
                batch,
                int(np.searchsorted(batch.offsets, self._ends[1], side="right")),
                batch.offsets.size,
            )
        self._add(batch, behind=True)

    def prepend(self, batch: MetricBatch) -> None:
        """Adds what stands before everything that was read; samples that were read before are left
        out.
        """
        if self._last_step is None:
            self._last_step = batch.last_step
        if self._ends is not None and batch.offsets.size and batch.offsets[-1] >= self._ends[0]:
            batch = _part(batch, 0, int(np.searchsorted(batch.offsets, self._ends[0])))
        self._add(batch, behind=False)

    def snapshot(self) -> MetricLog:
        """The log as it is now, to be read while this one goes on changing; shares its memory, and
        is not to be added to. The outermost cells may already hold points that came later.
        """
        stored = copy(self)
        stored._samples = copy(self._samples)
        stored._points = {name: copy(table) for name, table in self._points.items()}
        stored._cells = {name: cells.snapshot() for name, cells in self._cells.items()}
        stored._stretches = list(self._stretches)
        stored._epochs = copy(self._epochs)
        return stored

    def strip(self, name: str, first: int, until: float) -> Strip:
        """Metric `name` from the offset `first` up to `until`, inf for the end; KeyError where the
        log has no such metric.
        """
        cells = self._cells[name].table.whole
        cells = cells[:, slice(*np.searchsorted(cells[0], (first, until)))]
        samples = self._samples.whole
        begin, end = np.searchsorted(samples[_OFFSET], (first, until))
        ids, values = self._points[name].whole
        a, b = np.searchsorted(ids, (begin + self._first_sample, end + self._first_sample))
        ids = ids[a:b]
        values = values[a:b]
        if ids.size and ids[-1] - ids[0] == ids.size - 1:
            at = int(ids[0]) - self._first_sample
            axes = samples[1:_POINTS, at : at + ids.size]
        else:
            axes = samples[1:_POINTS, at := ids.astype(np.int64) - self._first_sample]
        before = self._derive()[1]
        if before is not None:
            where = samples[_OFFSET, slice(at, at + ids.size) if isinstance(at, int) else at]
            axes = self._counted_on(axes, where, before)
            cells = cells.copy()
            cells[FIRST:LAST] = self._counted_on(cells[FIRST:LAST], cells[0], before)
            cells[LAST:LOW] = self._counted_on(cells[LAST:LOW], cells[0], before)
        return _strip(cells, axes, values)

    def _counted_on(self, axes: Floats, offsets: Floats, before: list[float]) -> Floats:
        """The axes (4, n) of samples at `offsets`, their steps with those of the epochs before."""
        begins = [stretch.offset for stretch in self._stretches]
        moved = axes.copy()
        moved[0] += np.array(before)[np.searchsorted(begins, offsets, side="right") - 1]
        return moved

    def _add(self, batch: MetricBatch, behind: bool) -> None:
        if not batch.offsets.size:
            return
        batch = self._counted_over_epochs(self._bounded(batch), behind)
        self.version += 1
        self._note_attempts(batch, behind)
        first = float(batch.offsets[0])
        last = float(batch.offsets[-1])
        ends = self._ends or (first, last)
        self._ends = (min(ends[0], first), max(ends[1], last))
        for name in batch.metrics:
            if name not in self._points:
                self._points[name], self._cells[name] = Table(2), Cells()
        for begin in _chunk_begins(batch.offsets.size, behind):
            self._add_samples(
                _part(batch, begin, min(begin + _AT_ONCE, batch.offsets.size)), behind
            )
        if self._exact_offset:
            for cells in self._cells.values():
                cells.keep_within(self._most_cells_each, self._attempt_offsets())

    def _counted_over_epochs(self, batch: MetricBatch, behind: bool) -> MetricBatch:
        """The batch with its steps as all that was read shows them; what was added before is
        corrected too.
        """
        before = copy(self._epochs)
        self._epochs.note(batch, is_behind=behind)
        if self._epochs.position is None:
            return batch
        self._correct(before)
        return self._epochs.corrected(batch)

    def _correct(self, before: EpochCount) -> None:
        """Count the steps anew that were counted as it was known before."""

        def moved(steps: Floats, epochs: Floats) -> Floats:
            return steps + (self._epochs.correction(epochs) - before.correction(epochs))

        if self._ends is not None and bool(moved(np.zeros(2), np.array([1.0, 2.0])).any()):
            self._move_steps(moved)

    def _move_steps(self, moved: Callable[[Floats, Floats], Floats]) -> None:
        samples = self._samples.whole.copy()
        samples[1] = moved(samples[1], samples[2])
        self._samples.replace(samples)
        for cells in self._cells.values():
            table = cells.table.whole.copy()
            for row in (FIRST, LAST):
                table[row] = moved(table[row], table[row + 1])
            cells.table.replace(table)

        def at(place: Axes) -> Axes:
            return float(moved(np.array(place[:1]), np.array(place[1:2]))[0]), *place[1:]

        stretches = [
            replace(one, first=at(one.first), last=at(one.last)) for one in self._stretches
        ]
        self._stretches = reduce(
            lambda older, newer: put_together(older, [newer], self._leading), stretches, []
        )
        jumps = (replace(one, before=at(one.before), after=at(one.after)) for one in self._jumps)
        self._jumps = tuple(jump for jump in jumps if jump.steps > 0)
        self._refold()

    def _bounded(self, batch: MetricBatch) -> MetricBatch:
        """The batch without the metrics that are more than a log may have."""
        names = set(self._points)
        for name in batch.metrics:
            if name not in names and has_room(name, len(names)):
                names.add(name)
        if names.issuperset(batch.metrics):
            return batch
        return replace(
            batch, metrics={name: points for name, points in batch.metrics.items() if name in names}
        )

    def _add_samples(self, batch: MetricBatch, behind: bool) -> None:
        if not behind and self._exact_offset:
            cut = int(np.searchsorted(batch.offsets, self._exact_offset))
            self._fold(_part(batch, 0, cut), behind)
            batch = _part(batch, cut, batch.offsets.size)
        count = batch.offsets.size
        samples = np.zeros((6, count))
        samples[_OFFSET] = batch.offsets
        samples[1:_POINTS] = batch.axes
        origin = self._first_sample + len(self._samples) if behind else self._first_sample - count
        for name, points in batch.metrics.items():
            samples[_POINTS, points.samples] += 1
            block = np.stack((points.samples + float(origin), points.values))
            self._points[name].add(block, behind=behind)
            self._exact += points.values.size
        self._samples.add(samples, behind=behind)
        if not behind:
            self._first_sample = origin
        if self._exact > self._most_exact:
            self._fold_oldest()

    def _fold_oldest(self) -> None:
        samples = self._samples.whole
        excess = self._exact - self._most_exact
        over = int(np.searchsorted(np.cumsum(samples[_POINTS]), excess))
        border = (int(samples[_OFFSET, over]) // self._border_bytes + 1) * self._border_bytes
        self._exact_offset = border
        count = int(np.searchsorted(samples[_OFFSET], border))
        metrics = {}
        for name, table in self._points.items():
            ids, values = table.whole
            end = int(np.searchsorted(ids, self._first_sample + count))
            metrics[name] = Points(ids[:end].astype(np.int64) - self._first_sample, values[:end])
            table.drop_first(end)
            self._exact -= end
        self._samples.drop_first(count)
        self._first_sample += count
        offsets = samples[_OFFSET, :count].astype(np.int64)
        self._fold(MetricBatch(offsets, samples[1:_POINTS, :count], metrics), behind=True)

    def _fold(self, batch: MetricBatch, behind: bool) -> None:
        starts = self._attempt_offsets()
        for name, points in batch.metrics.items():
            stored = self._cells[name]
            for begin in _chunk_begins(points.values.size, behind):
                of = points.samples[begin : begin + _AT_ONCE]
                values = points.values[begin : begin + _AT_ONCE]
                cells = cells_from_points(
                    batch.offsets[of].astype(float), batch.axes[:, of], values
                )
                stored.add(cells, starts, behind=behind)
                stored.keep_within(self._most_cells_each, starts)

    def _note_attempts(self, batch: MetricBatch, behind: bool) -> None:
        if self._leading and not bool(np.isnan(batch.steps).all()):
            # Where there are steps epochs begin no attempt.
            self._leading = 0
            self._one_attempt = False
            if self._stretches:
                self._stretches = [join_attempt(self._stretches)]
                self._refold()
        found = stretches_in(batch, self._leading)
        if self._leading == 0:
            self._note_jumps(batch, behind)
        begins = {stretch.offset for stretch in self._stretches[1:]}
        older, newer = (self._stretches, found) if behind else (found, self._stretches)
        self._stretches = put_together(older, newer, self._leading)
        if not begins.issubset(stretch.offset for stretch in self._stretches):
            self._refold()
        if len(self._stretches) > MAX_ATTEMPTS and not self._one_attempt:
            self._one_attempt = True
            self._refold()
        if self._one_attempt and len(self._stretches) > 2:
            # The first and the last are enough to go on, however many there are.
            self._stretches = [join_attempt(self._stretches[:-1]), self._stretches[-1]]

    def _note_jumps(self, batch: MetricBatch, behind: bool) -> None:
        jumps = [*self._jumps, *jumps_in(batch)]
        known = np.flatnonzero(~np.isnan(batch.steps))
        if self._stretches and known.size:
            at = int(known[0] if behind else known[-1])
            axes = tuple(batch.axes[:, at].tolist())
            if behind:
                between = Jump(int(batch.offsets[at]), self._stretches[-1].last, axes)
            else:
                between = Jump(self._stretches[0].offset, axes, self._stretches[0].first)
            jumps += [between] if between.steps > 0 else []
        self._jumps = largest_jumps(jumps)

    def _refold(self) -> None:
        for cells in self._cells.values():
            cells.refold(self._attempt_offsets())

    @property
    def _most_cells_each(self) -> int:
        return max(self._most_cells // len(self._points), min(self._most_cells, 1024))

    def _attempt_offsets(self) -> Integers:
        """Return where each attempt begins, or may begin as the steps jump.

        Cells do not hold points of two attempts.
        """
        if self._one_attempt:
            return np.empty(0, dtype=np.int64)
        begins = {attempt.offset for attempt in self._stretches}
        begins.update(jump.offset for jump in self._unusual_jumps())
        return np.array(sorted(begins), dtype=np.int64)


def _chunk_begins(count: int, behind: bool) -> range | list[int]:
    begins = range(0, count, _AT_ONCE)
    return begins if behind else list(reversed(begins))


def _part(batch: MetricBatch, begin: int, end: int) -> MetricBatch:
    if begin == 0 and end >= batch.offsets.size:
        return batch
    metrics = {}
    for name, points in batch.metrics.items():
        a, b = np.searchsorted(points.samples, (begin, end))
        metrics[name] = Points(points.samples[a:b] - begin, points.values[a:b])
    of = slice(begin, end)
    return replace(batch, offsets=batch.offsets[of], axes=batch.axes[:, of], metrics=metrics)


def _strip(cells: Floats, axes: Floats, values: Floats) -> Strip:
    finite = np.isfinite(values)
    if finite.all():
        odd = np.zeros(values.size, dtype=np.int64)
        exact = values
        points = np.ones(values.size)
    else:
        odd = (
            np.isnan(values) * NAN + (values == np.inf) * PLUS_INF + (values == -np.inf) * MINUS_INF
        )
        exact = np.where(finite, values, np.nan)
        points = finite.astype(float)
    count = cells.shape[1]
    if not count:
        return Strip(axes, axes, exact, exact, exact, exact, points, odd, 0)
    assert cells.shape[0] == CELL_ROWS
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.clip(cells[TOTAL] / cells[COUNT], cells[LOW], cells[HIGH])
    odd_cells = (
        (cells[NANS] > 0) * NAN
        + (cells[PLUS_INFS] > 0) * PLUS_INF
        + (cells[MINUS_INFS] > 0) * MINUS_INF
    )
    return Strip(
        np.concatenate((cells[FIRST:LAST], axes), axis=1),
        np.concatenate((cells[LAST:LOW], axes), axis=1),
        np.concatenate((cells[LOW], exact)),
        np.concatenate((cells[HIGH], exact)),
        np.concatenate((cells[NEWEST], exact)),
        np.concatenate((means, exact)),
        np.concatenate((cells[COUNT], points)),
        np.concatenate((odd_cells.astype(np.int64), odd)),
        count,
    )
