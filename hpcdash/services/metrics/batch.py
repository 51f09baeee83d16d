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
    """The samples of a stretch of a log, in its order."""

    # (n): where in the log a sample's first line begins, in bytes.
    offsets: Integers
    # (4, n) in the order of AXES, times in epoch seconds; nan where they are not logged.
    axes: Floats
    metrics: Mapping[str, Points] = field(default_factory=dict)
    # The final step that the log names (`iteration 1000/ 95367`), None where it names none.
    last_step: int | None = None
    # The reader's word for the format.
    format: str = ""
    # The newest of those samples whose steps other lines may correct (see EpochCount).
    position: Position | None = None
    # Whether some steps are none of these.
    is_mixed: bool = False

    @property
    def steps(self) -> Floats:
        steps: Floats = self.axes[0]
        return steps

    @property
    def epochs(self) -> Floats:
        epochs: Floats = self.axes[1]
        return epochs

    @property
    def has_step(self) -> bool:
        return not bool(np.isnan(self.steps).all())


def is_admitted(name: str, names: set[str]) -> bool:
    """Whether a metric is one of `names`, or may come to them: then it is added."""
    if name not in names:
        if len(names) >= (MAX_LOSSES if "loss" in name.lower() else MAX_METRICS):
            return False
        names.add(name)
    return True


class SampleColumns:
    """Samples since the last `take`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)
        self._batches: list[MetricBatch] = []
        self._readings: list[tuple[int, Reading]] = []

    def add(self, offset: int, reading: Reading) -> None:
        """One sample, whose first line begins at `offset`; without a metric it is none."""
        values = {
            name: value for name, value in reading.values.items() if is_admitted(name, self._names)
        }
        if values:
            self._readings.append((offset, reading._replace(values=values)))

    def add_batch(self, batch: MetricBatch) -> None:
        """Many samples at once, their offsets ascending."""
        metrics = {
            name: points for name, points in batch.metrics.items() if is_admitted(name, self._names)
        }
        if metrics and batch.offsets.size:
            self._batches.append(replace(batch, metrics=metrics))

    def take(self) -> MetricBatch:
        """Return the samples so far in the log's order, and forget them."""
        batches = self._batches
        if self._readings:
            batches.append(_build_batch(self._readings))
        self._batches = []
        self._readings = []
        if not batches:
            return MetricBatch(np.empty(0, np.int64), np.empty((4, 0)))
        return batches[0] if len(batches) == 1 else _merge(batches)


def _build_batch(readings: list[tuple[int, Reading]]) -> MetricBatch:
    samples: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for sample, (_, reading) in enumerate(readings):
        for name, value in reading.values.items():
            samples.setdefault(name, []).append(sample)
            values.setdefault(name, []).append(value)
    batch = MetricBatch(
        np.array([offset for offset, _ in readings], np.int64),
        np.array(
            [(reading.step, reading.epoch, reading.tokens, reading.time) for _, reading in readings]
        ).T,
        {name: Points(np.array(rows), np.array(values[name])) for name, rows in samples.items()},
        format=readings[-1][1].format,
    )
    return _with_newest(batch, [reading for _, reading in readings])


def _merge(batches: list[MetricBatch]) -> MetricBatch:
    """Merge batches of one stretch, whose samples may lie between each other's."""
    offsets = np.concatenate([batch.offsets for batch in batches])
    order = np.argsort(offsets, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    parts: dict[str, list[Points]] = {}
    start = 0
    for batch in batches:
        for name, points in batch.metrics.items():
            moved = Points(place[start + points.samples], points.values)
            parts.setdefault(name, []).append(moved)
        start += batch.offsets.size
    metrics = {}
    for name, some in parts.items():
        samples = np.concatenate([points.samples for points in some])
        values = np.concatenate([points.values for points in some])
        ascending = np.argsort(samples, kind="stable")
        metrics[name] = Points(samples[ascending], values[ascending])
    newest_last = sorted(batches, key=lambda batch: int(batch.offsets[-1]))
    axes = np.concatenate([batch.axes for batch in batches], axis=1)[:, order]
    merged = MetricBatch(offsets[order], axes, metrics, format=newest_last[-1].format)
    return _with_newest(merged, newest_last)


def _with_newest(batch: MetricBatch, parts: Iterable[Reading | MetricBatch]) -> MetricBatch:
    """Give a batch the last step and the position that the newest of its parts has."""
    last_step = position = None
    step_lengths = set()
    is_mixed = False
    for part in parts:
        if part.last_step is not None:
            last_step = part.last_step
        if part.has_step:
            step_lengths.add(None if part.position is None else part.position.steps)
            position = part.position or position
            is_mixed |= isinstance(part, MetricBatch) and part.is_mixed
    is_mixed |= len(step_lengths) > 1
    return replace(batch, last_step=last_step, position=position, is_mixed=is_mixed)
