"""Collects the samples of one log as they come, forward and backward, in bounded memory.

The newest points are kept as they are, up to a number; older ones in cells. Which points are exact
follows from what was read, not from its order.
"""

from __future__ import annotations

from copy import copy
from functools import reduce
from math import inf, nan

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.metrics.attempts import (
    MAX_ATTEMPTS,
    Attempt,
    Axes,
    Flags,
    Jump,
    join_attempt,
    jumps_in,
    largest_jumps,
    put_together,
    split_attempts,
    steps_before,
    stretches_in,
)
from hpcdash.services.metrics.batch import AXES, Floats, Integers, MetricBatch, Points, is_admitted
from hpcdash.services.metrics.cells import (
    COUNT,
    FIRST,
    HIGH,
    LAST,
    LOW,
    MINUS_INFS,
    NANS,
    NEWEST,
    OFFSET,
    PLUS_INFS,
    TOTAL,
    VALUE,
    StoredMetric,
)
from hpcdash.services.metrics.epochs import EpochCount

EXACT_POINTS = 600_000
# Of an export; beyond, the oldest are folded.
EXPORTED_POINTS = 5_000_000
CELLS = 262_144
_MIN_CELLS_EACH = 1024
NAN = 1
PLUS_INF = 2
MINUS_INF = 4
# A jump of the steps is larger than so many of the log's least strides.
_JUMP_STRIDES = 8
SERIES_ARRAYS = ("x_first", "x", "low", "high", "newest", "mean", "points", "odd")


class Series(Struct, frozen=True):
    """One metric along one axis.

    Every array is of one length, ascending by `x`; a place is a point, or a cell of several, which
    reaches from `x_first` to `x`. As a log gives it, in the log's order and along no axis yet,
    these two are (4, n) in the order of AXES.
    """

    name: str
    # '' for none yet.
    axis: str
    x_first: Floats
    x: Floats
    # Of the finite values of a place, nan where it has none. Of single points these are one array.
    low: Floats
    high: Floats
    newest: Floats
    mean: Floats
    # Number of finite values.
    points: Floats
    # Made of NAN, PLUS_INF and MINUS_INF.
    odd: Integers
    # Whether every place is a single point.
    exact: bool

    def __len__(self) -> int:
        return self.low.size

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last x; (0, 1) without points."""
        return (float(self.x_first[0]), float(self.x[-1])) if len(self) else (0.0, 1.0)

    def at(self, places: Integers) -> Series:
        """The series of these places alone."""
        arrays = {name: getattr(self, name)[places] for name in SERIES_ARRAYS}
        return replace(self, **arrays, exact=self.exact or not places.size)

    @property
    def values(self) -> Floats:
        """The value of each place as it was logged: the mean of a cell, nan, or inf."""
        if not self.odd.any():
            return self.mean
        values = np.where(self.odd & NAN, nan, self.mean)
        values = np.where(self.odd & MINUS_INF, -inf, values)
        return np.where(self.odd & PLUS_INF, inf, values)


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
        self._metrics: dict[str, StoredMetric] = {}
        self._first_offset = inf
        self._last_offset = -inf
        # Stretches whose steps ascend, of a log without steps their epochs.
        self._stretches: list[Attempt] = []
        self._jumps: tuple[Jump, ...] = ()
        self._leading = 1
        self._one_attempt = False
        # Derived from the stretches, and the version of which they are.
        self._attempts: tuple[Attempt, ...] = ()
        self._steps_before: list[float] | None = None
        self._derived_version = 0
        self._last_step: int | None = None
        self._epochs = EpochCount()
        self.version = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._metrics))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """In the order of the log.

        Lines of several ranks that overtake each other are no attempt, nor is the next epoch where
        steps are counted within theirs: these count on. After 1000 beginnings attempts are no
        longer told apart: one.
        """
        self._derive()
        return self._attempts

    @property
    def jumps(self) -> tuple[Jump, ...]:
        """The few largest jumps of the steps that are unusual for this log, in its order."""
        self._derive()
        if self._one_attempt or self._steps_before is not None:
            return ()
        return self._unusual_jumps()

    def _unusual_jumps(self) -> tuple[Jump, ...]:
        stride = min((stretch.stride for stretch in self._stretches), default=inf)
        return tuple(jump for jump in self._jumps if jump.steps > _JUMP_STRIDES * stride)

    def _derive(self) -> None:
        if self._derived_version == self.version:
            return
        self._derived_version = self.version
        self._steps_before = None
        if self._one_attempt:
            self._attempts = (join_attempt(self._stretches),)
            return
        if self._leading == 0:
            self._steps_before = steps_before(self._stretches, self._last_step)
        self._attempts = tuple(split_attempts(self._stretches, self._steps_before, self._leading))

    @property
    def last_step(self) -> int | None:
        """The final step that the log names; None where that is only its epoch's."""
        if self._epochs.position is not None:
            return self._epochs.last_step
        self._derive()
        return self._last_step if self._steps_before is None else None

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
        corrected = self.snapshot()
        corrected._epochs.begins_with = first_epoch
        corrected._correct_steps(self._epochs)
        corrected.version += 1
        return corrected

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the samples take."""
        stored = self._metrics.values()
        return sum(metric.points.nbytes + metric.cells.nbytes for metric in stored)

    def axes(self) -> tuple[str, ...]:
        """The x axes that this log has, of step, epoch, tokens, time; `point`, the how manieth, is
        always there.
        """
        has = [any(not np.isnan(attempt.first[i]) for attempt in self._stretches) for i in range(4)]
        return (*(name for name, known in zip(AXES, has, strict=True) if known), "point")

    def stored_counts(self, name: str) -> tuple[int, int]:
        """Return the numbers of points and of cells of a metric; 0 for an unknown metric."""
        metric = self._metrics.get(name)
        return (0, 0) if metric is None else (len(metric.points), len(metric.cells))

    def append(self, batch: MetricBatch) -> None:
        """Adds what stands behind everything that was read; samples that were read before are left
        out.
        """
        if batch.last_step is not None:
            self._last_step = batch.last_step
        begin = int(np.searchsorted(batch.offsets, self._last_offset, side="right"))
        self._add(_part(batch, begin, batch.offsets.size), behind=True)

    def prepend(self, batch: MetricBatch) -> None:
        """Adds what stands before everything that was read; samples that were read before are left
        out.
        """
        if self._last_step is None:
            self._last_step = batch.last_step
        end = int(np.searchsorted(batch.offsets, self._first_offset))
        self._add(_part(batch, 0, end), behind=False)

    def snapshot(self) -> MetricLog:
        """The log as it is now, to be read while this one goes on changing; shares its memory, and
        is not to be added to. The outermost cells may already hold points that came later.
        """
        snapshot = copy(self)
        snapshot._metrics = {name: metric.snapshot() for name, metric in self._metrics.items()}
        snapshot._stretches = list(self._stretches)
        snapshot._epochs = copy(self._epochs)
        return snapshot

    def series(self, name: str, first: int, until: float) -> Series:
        """Metric `name` from the offset `first` up to `until`, inf for the end, in the log's order
        and along no axis yet; KeyError where the log has no such metric.
        """
        metric = self._metrics[name]
        cells = metric.cells.between(first, until)
        points = metric.points.between(first, until)
        self._derive()
        if self._steps_before is not None:
            begins = [stretch.offset for stretch in self._stretches]
            before = np.array(self._steps_before)
            cells = cells.copy()
            points = points.copy()
            for table, rows in ((cells, (FIRST, LAST)), (points, (FIRST,))):
                stretches = np.searchsorted(begins, table[OFFSET], side="right") - 1
                for row in rows:
                    table[row] += before[stretches]
        return build_series(name, cells, points)

    def _add(self, batch: MetricBatch, behind: bool) -> None:
        if not batch.offsets.size:
            return
        names = set(self._metrics)
        metrics = {
            name: points for name, points in batch.metrics.items() if is_admitted(name, names)
        }
        batch = self._count_over_epochs(replace(batch, metrics=metrics), behind)
        self.version += 1
        self._note_attempts(batch, behind)
        self._first_offset = min(self._first_offset, float(batch.offsets[0]))
        self._last_offset = max(self._last_offset, float(batch.offsets[-1]))
        for name in metrics:
            self._metrics.setdefault(name, StoredMetric())
        for name, points in metrics.items():
            columns = (
                batch.offsets[None, points.samples],
                batch.axes[:, points.samples],
                points.values[None],
            )
            metric = self._metrics[name]
            block: Floats = np.concatenate(columns)
            if not behind and self._exact_offset:
                cut = int(np.searchsorted(block[OFFSET], self._exact_offset))
                older = block[:, :cut]
                metric.fold(older, self._attempt_offsets(), self._most_cells_each, behind=False)
                block = block[:, cut:]
            metric.points.add(block, behind=behind)
        self._fold_oldest()

    def _fold_oldest(self) -> None:
        """Fold the oldest points that are too many, and widen cells that are."""
        metrics = self._metrics.values()
        excess = sum(len(metric.points) for metric in metrics) - self._most_exact
        if excess > 0:
            offsets = np.concatenate([metric.points.whole[OFFSET] for metric in metrics])
            last = int(np.partition(offsets, excess - 1)[excess - 1])
            self._exact_offset = (last // self._border_bytes + 1) * self._border_bytes
        if not self._exact_offset:
            return
        attempts = self._attempt_offsets()
        for metric in metrics:
            if excess > 0:
                metric.fold_points_before(self._exact_offset, attempts, self._most_cells_each)
            metric.widen_cells(attempts, self._most_cells_each)

    def _count_over_epochs(self, batch: MetricBatch, behind: bool) -> MetricBatch:
        """Return the batch with its steps as all that was read shows them; what was added before is
        corrected too.
        """
        before = copy(self._epochs)
        self._epochs.note(batch, is_behind=behind)
        if self._epochs.position is None:
            return batch
        self._correct_steps(before)
        return self._epochs.corrected(batch)

    def _correct_steps(self, before: EpochCount) -> None:
        """Count the steps again that were counted as it was known before."""

        def moved(steps: Floats, epochs: Floats) -> Floats:
            return steps + (self._epochs.correction(epochs) - before.correction(epochs))

        def moved_axes(axes: Axes) -> Axes:
            return float(moved(np.array(axes[:1]), np.array(axes[1:2]))[0]), *axes[1:]

        if not self._stretches or not moved(np.zeros(2), np.array([1.0, 2.0])).any():
            return
        for metric in self._metrics.values():
            metric.move_steps(moved)
        stretches = [
            replace(stretch, first=moved_axes(stretch.first), last=moved_axes(stretch.last))
            for stretch in self._stretches
        ]
        self._stretches = reduce(
            lambda older, newer: put_together(older, [newer], self._leading), stretches, []
        )
        jumps = (
            replace(jump, before=moved_axes(jump.before), after=moved_axes(jump.after))
            for jump in self._jumps
        )
        self._jumps = tuple(jump for jump in jumps if jump.steps > 0)
        self._refold()

    def _note_attempts(self, batch: MetricBatch, behind: bool) -> None:
        if self._leading and not np.isnan(batch.steps).all():
            # Where there are steps epochs begin no attempt.
            self._leading = 0
            self._one_attempt = False
            if self._stretches:
                self._stretches = [join_attempt(self._stretches)]
                self._refold()
        added = stretches_in(batch, self._leading)
        if self._leading == 0:
            self._note_jumps(batch, behind)
        begins = {stretch.offset for stretch in self._stretches[1:]}
        older, newer = (self._stretches, added) if behind else (added, self._stretches)
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
            # Between what was read and the batch.
            nearest = int(known[0] if behind else known[-1])
            axes = tuple(batch.axes[:, nearest].tolist())
            if behind:
                jump = Jump(int(batch.offsets[nearest]), self._stretches[-1].last, axes)
            else:
                jump = Jump(self._stretches[0].offset, axes, self._stretches[0].first)
            if jump.steps > 0:
                jumps.append(jump)
        self._jumps = largest_jumps(jumps)

    def _refold(self) -> None:
        attempts = self._attempt_offsets()
        for metric in self._metrics.values():
            metric.refold(attempts)

    @property
    def _most_cells_each(self) -> int:
        return max(self._most_cells // len(self._metrics), min(self._most_cells, _MIN_CELLS_EACH))

    def _attempt_offsets(self) -> Integers:
        """Return where each attempt begins, or may begin as the steps jump."""
        if self._one_attempt:
            return np.empty(0, dtype=np.int64)
        begins = {stretch.offset for stretch in self._stretches}
        begins.update(jump.offset for jump in self._unusual_jumps())
        return np.array(sorted(begins), dtype=np.int64)


def _part(batch: MetricBatch, begin: int, end: int) -> MetricBatch:
    if begin == 0 and end == batch.offsets.size:
        return batch
    metrics = {}
    for name, points in batch.metrics.items():
        inside = slice(*np.searchsorted(points.samples, (begin, end)))
        metrics[name] = Points(points.samples[inside] - begin, points.values[inside])
    samples = slice(begin, end)
    return replace(
        batch, offsets=batch.offsets[samples], axes=batch.axes[:, samples], metrics=metrics
    )


def build_series(name: str, cells: Floats, points: Floats) -> Series:
    """Join a metric's cells and the points behind them, along no axis yet."""
    axes = points[FIRST:VALUE]
    values = points[VALUE]
    counts = np.ones(values.size)
    odd = np.zeros(values.size, dtype=np.int64)
    finite = np.isfinite(values)
    if not finite.all():
        odd = _flag_odd(np.isnan(values), values == inf, values == -inf)
        values = np.where(finite, values, nan)
        counts = finite.astype(float)
    exact = Series(
        name=name,
        axis="",
        x_first=axes,
        x=axes,
        low=values,
        high=values,
        newest=values,
        mean=values,
        points=counts,
        odd=odd,
        exact=True,
    )
    if not cells.size:
        return exact
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.clip(cells[TOTAL] / cells[COUNT], cells[LOW], cells[HIGH])
    folded = {
        "x_first": cells[FIRST:LAST],
        "x": cells[LAST:LOW],
        "low": cells[LOW],
        "high": cells[HIGH],
        "newest": cells[NEWEST],
        "mean": means,
        "points": cells[COUNT],
        "odd": _flag_odd(cells[NANS] > 0, cells[PLUS_INFS] > 0, cells[MINUS_INFS] > 0),
    }
    arrays = {
        field: np.concatenate((array, getattr(exact, field)), axis=-1)
        for field, array in folded.items()
    }
    return replace(exact, **arrays, exact=False)


def _flag_odd(is_nan: Flags, is_plus: Flags, is_minus: Flags) -> Integers:
    flags: Integers = is_nan * NAN + is_plus * PLUS_INF + is_minus * MINUS_INF
    return flags
