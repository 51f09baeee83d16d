"""Samples of metrics, column by column, and how they are gathered within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from hpcdash.services.metrics.vocabulary import Position, Reading

# Places of a sample, in the order of the rows of `MetricBatch.axes`.
AXES = ("step", "epoch", "tokens", "time")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
MAX_METRICS = 64
MAX_LOSSES = 96


class Points(Struct, frozen=True):
    """One metric: its values, and of which samples they are (positions in the batch, ascending).

    nan and inf are logged values.
    """

    samples: Integers
    values: Floats


class MetricBatch(Struct, frozen=True):
    """The samples of a stretch of a log, in its order.

    `offsets` (n) are where in the log a sample's first line begins, in bytes. `axes` (4, n) are
    their places in the order of AXES, times in epoch seconds; nan where they are not logged.
    `last_step` is the final step that the log names (`iteration 1000/ 95367`), None where it names
    none. `format` is the reader's word for the format. `position` is the newest of those samples
    whose steps other lines may correct (see EpochCount); `is_mixed` where some steps are none of
    these.
    """

    offsets: Integers
    axes: Floats
    metrics: Mapping[str, Points] = field(default_factory=dict)
    last_step: int | None = None
    format: str = ""
    position: Position | None = None
    is_mixed: bool = False

    @property
    def steps(self) -> Floats:
        steps: Floats = self.axes[0]
        return steps

    @property
    def epochs(self) -> Floats:
        epochs: Floats = self.axes[1]
        return epochs


class SampleColumns:
    """Samples since the last `take`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)
        self._batches: list[MetricBatch] = []
        self._readings: list[tuple[int, Reading]] = []

    def add(self, offset: int, reading: Reading) -> None:
        """One sample, whose first line begins at `offset`; without a metric it is none."""
        values = {name: value for name, value in reading.values.items() if self._is_selected(name)}
        if values:
            self._readings.append((offset, reading._replace(values=values)))

    def add_batch(self, batch: MetricBatch) -> None:
        """Many samples at once, their offsets ascending."""
        metrics = {
            name: points for name, points in batch.metrics.items() if self._is_selected(name)
        }
        if metrics and batch.offsets.size:
            self._batches.append(replace(batch, metrics=metrics))

    def take(self) -> MetricBatch:
        """Return the samples so far in the log's order, and forget them."""
        batches = self._batches
        readings = self._readings
        self._batches = []
        self._readings = []
        if readings:
            batches.append(_build_batch(readings))
        elif len(batches) == 1:
            return batches[0]
        elif not batches:
            return MetricBatch(np.empty(0, np.int64), np.empty((4, 0)))
        return _merged(batches)

    def _is_selected(self, name: str) -> bool:
        if name in self._names:
            return True
        if not has_room(name, len(self._names)):
            return False
        self._names.add(name)
        return True


def has_room(name: str, count: int) -> bool:
    """Whether a new name may come to so many."""
    return count < (MAX_LOSSES if "loss" in name.lower() else MAX_METRICS)


def _build_batch(readings: list[tuple[int, Reading]]) -> MetricBatch:
    samples: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    last_step = position = None
    step_lengths = set()
    for row, (_, reading) in enumerate(readings):
        for name, value in reading.values.items():
            samples.setdefault(name, []).append(row)
            values.setdefault(name, []).append(value)
        if reading.last_step is not None:
            last_step = reading.last_step
        if reading.has_step:
            step_lengths.add(None if reading.position is None else reading.position.steps)
            position = reading.position or position
    return MetricBatch(
        np.array([offset for offset, _ in readings], np.int64),
        np.array([(one.step, one.epoch, one.tokens, one.time) for _, one in readings]).T,
        {name: Points(np.array(rows), np.array(values[name])) for name, rows in samples.items()},
        last_step,
        readings[-1][1].format,
        position,
        len(step_lengths) > 1,
    )


def _merged(batches: list[MetricBatch]) -> MetricBatch:
    """Batches of one stretch, whose samples may lie between each other's, as one."""
    offsets = np.concatenate([batch.offsets for batch in batches])
    order = np.argsort(offsets, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    samples: dict[str, list[Integers]] = {}
    values: dict[str, list[Floats]] = {}
    start = 0
    for batch in batches:
        for name, points in batch.metrics.items():
            samples.setdefault(name, []).append(place[start + points.samples])
            values.setdefault(name, []).append(points.values)
        start += batch.offsets.size
    metrics = {}
    for name, parts in samples.items():
        where = np.concatenate(parts)
        ascending = np.argsort(where, kind="stable")
        metrics[name] = Points(where[ascending], np.concatenate(values[name])[ascending])
    # What the newest of them says counts.
    newest_last = sorted(batches, key=lambda batch: int(batch.offsets[-1]))
    last_step = position = None
    step_lengths = set()
    is_mixed = False
    for batch in newest_last:
        if batch.last_step is not None:
            last_step = batch.last_step
        if not np.isnan(batch.steps).all():
            step_lengths.add(None if batch.position is None else batch.position.steps)
            position = batch.position or position
            is_mixed |= batch.is_mixed
    return MetricBatch(
        offsets[order],
        np.concatenate([batch.axes for batch in batches], axis=1)[:, order],
        metrics,
        last_step,
        newest_last[-1].format,
        position,
        is_mixed or len(step_lengths) > 1,
    )
