"""Samples of metrics, column by column, and how they are gathered within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from hpcdash.services.metrics.vocabulary import Position, Reading

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_METRICS = 64
MOST_LOSSES = 96


class Points(Struct, frozen=True):
    """One metric: its values, and of which samples they are (positions in the batch, ascending).

    nan and inf are values that the log said.
    """

    samples: Integers
    values: Floats


class MetricBatch(Struct, frozen=True):
    """The samples of a stretch of a log, in its order; every array is as long as `offsets`.

    `offsets` are where in the log a sample's first line begins, in bytes. `steps`, `epochs`,
    `tokens` and `times` (epoch seconds, of a time that stands in the line) are nan where the log
    does not say them. `last_step` is the final step that the log names (`iteration 1000/ 95367`),
    None where it names none. `format` is the reader's word for the format. `position` is the newest
    of those samples whose steps other lines may correct (see EpochCount); `is_mixed` where some
    steps are none of these.
    """

    offsets: Integers
    steps: Floats
    epochs: Floats
    tokens: Floats
    times: Floats
    metrics: Mapping[str, Points] = field(default_factory=dict)
    last_step: int | None = None
    format: str = ""
    position: Position | None = None
    is_mixed: bool = False


class Block(NamedTuple):
    """Many samples of one shape: `offsets` ascending, every array as long; a missing one is
    None.
    """

    offsets: Integers
    steps: Floats | None
    epochs: Floats | None
    tokens: Floats | None
    times: Floats | None
    metrics: Mapping[str, Floats]
    last_step: int | None
    format: str
    position: Position | None = None
    is_mixed: bool = False


class SampleColumns:
    """Samples since the last `take`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)
        self._blocks: list[Block] = []
        self._offsets: list[int] = []
        self._readings: list[Reading] = []

    def add(self, offset: int, reading: Reading) -> None:
        """One sample, whose first line begins at `offset`; without a metric it is none."""
        values = {name: value for name, value in reading.values.items() if self._is_selected(name)}
        if values:
            self._offsets.append(offset)
            self._readings.append(reading._replace(values=values))

    def add_block(self, block: Block) -> None:
        """Many samples at once."""
        metrics = {
            name: values for name, values in block.metrics.items() if self._is_selected(name)
        }
        if metrics and len(block.offsets):
            self._blocks.append(block._replace(metrics=metrics))

    def take(self) -> MetricBatch:
        """The samples so far in the log's order, and begin anew."""
        blocks = self._blocks
        if self._offsets:
            blocks = [*blocks, self._build_block()]
        row_metrics = [(o, r.values) for o, r in zip(self._offsets, self._readings, strict=True)]
        first_row = sum(len(block.offsets) for block in self._blocks)
        self._blocks, self._offsets, self._readings = [], [], []
        if not blocks:
            none = np.empty(0)
            return MetricBatch(np.empty(0, np.int64), none, none, none, none)
        offsets = np.concatenate([block.offsets for block in blocks])
        order = np.argsort(offsets, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        last = max(
            (block for block in blocks if block.last_step is not None), key=_end, default=None
        )
        return MetricBatch(
            offsets[order],
            _column(blocks, "steps")[order],
            _column(blocks, "epochs")[order],
            _column(blocks, "tokens")[order],
            _column(blocks, "times")[order],
            metrics=_points(blocks, row_metrics, first_row, place),
            last_step=None if last is None else last.last_step,
            format=max(blocks, key=_end).format,
            **_position_fields(blocks),
        )

    def _build_block(self) -> Block:
        readings = self._readings
        positions = [reading.position for reading in readings if reading.step == reading.step]
        return Block(
            np.array(self._offsets, np.int64),
            np.array([r.step for r in readings]),
            np.array([r.epoch for r in readings]),
            np.array([r.tokens for r in readings]),
            np.array([r.time for r in readings]),
            {},
            next((r.last_step for r in reversed(readings) if r.last_step is not None), None),
            readings[-1].format,
            next((one for one in reversed(positions) if one is not None), None),
            len({None if one is None else one.steps for one in positions}) > 1,
        )

    def _is_selected(self, name: str) -> bool:
        if name in self._names:
            return True
        if not has_room(name, len(self._names)):
            return False
        self._names.add(name)
        return True


def has_room(name: str, count: int) -> bool:
    """Whether a new name may come to so many."""
    return count < (MOST_LOSSES if "loss" in name.lower() else MOST_METRICS)


class _PositionFields(TypedDict):
    position: Position | None
    is_mixed: bool


def _position_fields(blocks: list[Block]) -> _PositionFields:
    stepped = [
        block
        for block in blocks
        if block.steps is not None and not bool(np.isnan(block.steps).all())
    ]
    lengths = {None if block.position is None else block.position.steps for block in stepped}
    placed = [block for block in stepped if block.position is not None]
    is_mixed = len(lengths) > 1 or any(block.is_mixed for block in stepped)
    return {"position": max(placed, key=_end).position if placed else None, "is_mixed": is_mixed}


def _end(block: Block) -> int:
    return int(block.offsets[-1])


def _column(blocks: list[Block], name: str) -> Floats:
    columns = [(getattr(block, name), len(block.offsets)) for block in blocks]
    return np.concatenate(
        [np.full(length, np.nan) if column is None else column for column, length in columns]
    )


def _points(
    blocks: list[Block], rows: list[tuple[int, dict[str, float]]], first_row: int, place: Integers
) -> dict[str, Points]:
    """Each metric's points; `place` is where a sample stands in the log's order, the rows after the
    blocks.
    """
    samples: dict[str, list[Integers]] = {}
    values: dict[str, list[Floats]] = {}
    start = 0
    for block in blocks:
        here = place[start : start + len(block.offsets)]
        for name, column in block.metrics.items():
            samples.setdefault(name, []).append(here)
            values.setdefault(name, []).append(column)
        start += len(block.offsets)
    row_samples: dict[str, list[int]] = {}
    row_values: dict[str, list[float]] = {}
    for row, (_, reported) in enumerate(rows, first_row):
        for name, value in reported.items():
            row_samples.setdefault(name, []).append(row)
            row_values.setdefault(name, []).append(value)
    for name, positions in row_samples.items():
        samples.setdefault(name, []).append(place[np.array(positions, np.int64)])
        values.setdefault(name, []).append(np.array(row_values[name]))
    points: dict[str, Points] = {}
    for name, parts in samples.items():
        where, written_values = np.concatenate(parts), np.concatenate(values[name])
        order = np.argsort(where, kind="stable")
        points[name] = Points(where[order], written_values[order])
    return points
