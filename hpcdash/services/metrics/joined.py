"""Joins the attempts of a run, from one log or several, into one series a metric.

The newest attempt wins: points of an older one at and behind the newer one's first step were
repeated. They stay as series of their own. Streams that are written at the same time (stdout,
stderr, a metrics file) are seen as one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isnan, nan, nextafter
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.metrics.attempts import Attempt, LogPiece, in_order
from hpcdash.services.metrics.batch import AXES, Floats, Integers
from hpcdash.services.metrics.cells import CELL_ROWS, POINT_ROWS, newest_known
from hpcdash.services.metrics.series import SERIES_ARRAYS, MetricLog, Series, build_series

# Consumed samples are a metric of its own in a log: each step's are where it stands along this
# axis.
SAMPLES = "samples"
ALL_AXES = (*AXES, SAMPLES, "point")
_SAMPLES_NAMES = (
    "consumed samples",
    "consumed train samples",
    "samples consumed",
    "total samples",
    "samples seen",
)


class LostTime(Struct, frozen=True):
    """Cost of restarts: repeated steps, their seconds, and seconds between attempts.

    Seconds are nan if no times are known.
    """

    restarts: int
    repeated_steps: float
    repeated_seconds: float
    gap_seconds: float


class MetricStream:
    """The logs of one stream of a run: ordered by their first times where every log has one, else
    as given.

    `behind_seconds` is what is added to their times, which bear no zone. Reads the logs when asked,
    and holds only the order of their attempts.
    """

    def __init__(self, logs: Sequence[MetricLog], behind_seconds: float = 0.0) -> None:
        begun = [log for log in logs if log.attempts]
        # A task that went on in a later epoch counts from where the first began.
        shown = next((log.first_epoch for log in begun if log.first_epoch is not None), None)
        if shown is not None:
            begun = [log.beginning_with(shown) for log in begun]
        if not any(isnan(log.attempts[0].first[3]) for log in begun):
            begun.sort(key=lambda log: log.attempts[0].first[3])
        self.logs = tuple(begun)
        self._behind_seconds = behind_seconds
        # What was derived from the logs, and their versions then.
        self._versions: list[int] = []
        self._pieces: list[LogPiece] = []
        self._series: dict[tuple[str, str], Series] = {}

    @property
    def names(self) -> set[str]:
        return {name for log in self.logs for name in log.names}

    def place_count(self, name: str) -> int:
        """Return the number of stored points and cells of a metric."""
        return sum(sum(log.stored_counts(name)) for log in self.logs)

    @property
    def pieces(self) -> list[LogPiece]:
        """The attempts of the logs, oldest first, even if those of one lie between another's."""
        self._derive()
        return self._pieces

    def _derive(self) -> None:
        versions = [log.version for log in self.logs]
        if self._versions != versions:
            self._versions = versions
            self._series = {}
            pieces = in_order([log.attempts for log in self.logs], [log.jumps for log in self.logs])
            self._pieces = [
                replace(piece, attempt=_later(piece.attempt, self._behind_seconds))
                for piece in pieces
            ]

    @property
    def samples_name(self) -> str | None:
        """The metric that counts consumed samples."""
        for name in sorted(self.names):
            if name.lower().replace("_", " ") in _SAMPLES_NAMES:
                return name
        return None

    def axes(self, name: str | None = None) -> set[str]:
        """The x axes that some log has, or the metric `name`, but `point`."""
        axes = {axis for log in self.logs for axis in log.axes()}
        if name is not None:
            columns, _ = self.written(name)
            axes = {
                axis
                for axis, column in zip(AXES, columns, strict=True)
                if not np.isnan(column).all()
            }
        if "step" in axes and self.samples_name is not None:
            axes.add(SAMPLES)
        return axes

    def samples_at(self, steps: Floats) -> Floats:
        name = self.samples_name
        known = None if name is None else self.series(name, "step")
        if known is None or not len(known):
            return np.full(steps.size, nan)
        return np.interp(steps, known.x, known.newest, left=nan, right=nan)

    def series(self, name: str, axis: str) -> Series:
        """The points that count; made once as long as the logs are the same."""
        self._derive()
        if (series := self._series.get((name, axis))) is None:
            if axis == SAMPLES:
                series = self._along_samples(self.series(name, "step"))
            else:
                series = _join(name, axis, [counting for counting, _ in self._parts(name, axis)])
            self._series[name, axis] = series
        return series

    def steps_along(self, name: str, axis: str) -> Floats:
        """The step of each place of the metric's series; nan where it is not known."""
        if axis in ("step", SAMPLES):
            steps = self.series(name, "step").x
            return steps if axis == "step" else steps[~np.isnan(self.samples_at(steps))]
        parts = self._parts(name, axis, is_steps=True)
        return _join(name, axis, [counting for counting, _ in parts]).mean

    def overlap(self, name: str, axis: str) -> tuple[Series, ...]:
        if axis == SAMPLES:
            return tuple(self._along_samples(series) for series in self.overlap(name, "step"))
        repeated = (series for _, series in self._parts(name, axis))
        return tuple(_join(name, axis, [series]) for series in repeated if len(series))

    def written(self, name: str) -> tuple[Floats, Floats]:
        parts = [part for _, part in self._written_parts(name)]
        if not parts:
            return np.empty((len(AXES), 0)), np.empty(0)
        axes = np.concatenate([part.x for part in parts], axis=1)
        return axes, np.concatenate([part.values for part in parts])

    def _along_samples(self, series: Series) -> Series:
        x = self.samples_at(series.x)
        x_first = self.samples_at(series.x_first)
        x_first = np.where(np.isnan(x_first), x, x_first)
        moved = replace(series, axis=SAMPLES, x_first=x_first, x=x)
        return moved.at(np.flatnonzero(~np.isnan(x)))

    def _written_parts(self, name: str) -> Iterator[tuple[int, Series]]:
        """Yield the number of each attempt and its points, oldest first, along no axis yet."""
        later = np.zeros((len(AXES), 1))
        later[AXES.index("time")] = self._behind_seconds
        for number, piece in enumerate(self.pieces):
            log = self.logs[piece.log]
            if name not in log.names:
                continue
            part = log.series(name, piece.begin, piece.until)
            if self._behind_seconds:
                part = replace(part, x_first=part.x_first + later, x=part.x + later)
            yield number, part

    def _parts(
        self, name: str, axis: str, *, is_steps: bool = False
    ) -> Iterator[tuple[Series, Series]]:
        """Yield the counting and the repeated points of each attempt, oldest first."""
        cuts = _cuts([piece.attempt for piece in self.pieces], axis)
        samples = 0.0
        for number, part in self._written_parts(name):
            if is_steps:
                part = replace(part, mean=part.x[0])
            part = _along(part, axis, samples)
            samples += len(part) if part.exact else float(np.maximum(part.points, 1).sum())
            yield _split(part, cuts[number])


class JoinedRun:
    """One run of several streams. A metric of several is taken from the one with most of it, of
    those with as much from the first: attempts of one stream are no restarts of the other.
    """

    def __init__(self, streams: Sequence[MetricStream]) -> None:
        self._streams = tuple(streams) or (MetricStream(()),)

    def _stream(self, name: str) -> MetricStream:
        return max(self._streams, key=lambda stream: stream.place_count(name))

    def _by_size(self) -> list[MetricStream]:
        if len(self._streams) == 1:
            return list(self._streams)
        return sorted(self._streams, key=lambda stream: -sum(map(stream.place_count, stream.names)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({name for stream in self._streams for name in stream.names}))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(piece.attempt for piece in self._by_size()[0].pieces)

    @property
    def last_step(self) -> int | None:
        """The final step that the newest log names."""
        logs = (log for stream in self._by_size() for log in reversed(stream.logs))
        return next((log.last_step for log in logs if log.last_step is not None), None)

    @property
    def doubt(self) -> str:
        """Text on what the logs leave open about the steps; '' for nothing."""
        logs = (log for stream in self._by_size() for log in reversed(stream.logs))
        return next((log.doubt for log in logs if log.doubt), "")

    def axes(self, name: str | None = None) -> tuple[str, ...]:
        """The x axes that some log has, or the metric `name`, of ALL_AXES; `point`, the number of
        the sample, always is.
        """
        streams = self._streams if name is None else (self._stream(name),)
        has = {"point"}.union(*(stream.axes(name) for stream in streams))
        return tuple(axis for axis in ALL_AXES if axis in has)

    def series(self, name: str, axis: str = "step") -> Series:
        """Return the points that count: the newest attempt's at each step.

        Along time and point, all points.
        """
        return self._stream(name).series(name, axis)

    def steps_along(self, name: str, axis: str) -> Floats:
        """The step of each place of the metric's series; nan where it is not known."""
        return self._stream(name).steps_along(name, axis)

    def samples_at(self, steps: Floats) -> Floats:
        """Return the samples consumed at `steps` (n); nan outside the steps in the log."""
        streams = self._by_size()
        counting = next((stream for stream in streams if SAMPLES in stream.axes()), streams[0])
        return counting.samples_at(steps)

    def overlap(self, name: str, axis: str = "step") -> tuple[Series, ...]:
        """Return the repeated points, a series for each attempt that has any, oldest first."""
        return self._stream(name).overlap(name, axis)

    def written(self, name: str) -> tuple[Floats, Floats]:
        """Every sample of the metric in the order it was written, repeated ones too: (4, n) in the
        order of AXES, and values (n), with nan and inf; of a cell its end and its mean.
        """
        return self._stream(name).written(name)

    def lost_time(self) -> LostTime:
        """Compute the cost of the restarts."""
        attempts = self.attempts
        steps = seconds = gaps = 0.0
        is_paced = is_timed = False
        for older, newer in pairwise(attempts):
            # A step that is written again was done again.
            done_again = older.last[0] - newer.first[0] + 1.0
            if done_again > 0:
                pace = (older.last[3] - older.first[3]) / max(older.last[0] - older.first[0], 1.0)
                steps += done_again
                if pace >= 0:
                    seconds += done_again * pace
                    is_paced = True
            gap = newer.first[3] - older.last[3]
            if gap >= 0:
                gaps += gap
                is_timed = True
        if steps and not is_paced:
            seconds = nan
        return LostTime(max(len(attempts) - 1, 0), steps, seconds, gaps if is_timed else nan)

    def table(self, names: Sequence[str]) -> pa.Table:
        """Return a row a step, ascending: the axis first, then a column a metric, null where it has
        no value.
        """
        axis = self.axes()[0]
        all_series = [self.series(name, axis) for name in names]
        places = np.unique(np.concatenate([np.empty(0), *(series.x for series in all_series)]))
        columns = {axis: pa.array(whole_numbers(places))}
        for series in all_series:
            values = np.zeros(places.size)
            is_missing = np.ones(places.size, dtype=bool)
            rows = np.searchsorted(places, series.x)
            values[rows] = series.values
            is_missing[rows] = False
            # A metric may bear the axis' name.
            name = series.name if series.name not in columns else f"{series.name} (metric)"
            columns[name] = pa.array(values, mask=is_missing, from_pandas=False)
        return pa.table(columns)


def whole_numbers(x: Any) -> Any:
    """Return steps as whole numbers, other x as they are."""
    is_whole = x.size and (np.abs(x) < 2**53).all() and (x == np.floor(x)).all()
    return x.astype(np.int64) if is_whole else x


def joined(logs: Sequence[MetricLog]) -> JoinedRun:
    """One run of the logs of one stream."""
    return JoinedRun((MetricStream(logs),))


def _later(attempt: Attempt, seconds: float) -> Attempt:
    """The attempt with its times so much later."""
    *first, began = attempt.first
    *last, ended = attempt.last
    return replace(attempt, first=(*first, began + seconds), last=(*last, ended + seconds))


def _cuts(attempts: Sequence[Attempt], axis: str) -> list[float]:
    """Return for each attempt where along the axis a newer one begins to count."""
    cuts = [inf] * len(attempts)
    if axis not in AXES or axis == "time":
        return cuts
    row = AXES.index(axis)
    lowest = inf
    for number in reversed(range(len(attempts))):
        cuts[number] = lowest
        if attempts[number].first[row] < lowest:
            lowest = attempts[number].first[row]
    return cuts


def _along(part: Series, axis: str, samples_before: float) -> Series:
    """Place an attempt's points along an axis."""
    if axis == "point":
        counts = np.maximum(part.points, 1.0)
        x = np.cumsum(counts) + (samples_before - 1.0)
        return replace(part, axis=axis, x_first=x - counts + 1.0, x=x)
    row = AXES.index(axis)
    x = part.x[row]
    placed = replace(part, axis=axis, x_first=part.x_first[row], x=x)
    missing = np.isnan(x)
    return placed.at(np.flatnonzero(~missing)) if missing.any() else placed


def _split(part: Series, cut: float) -> tuple[Series, Series]:
    if not len(part) or part.x.max() < cut:
        return part, part.at(np.empty(0, dtype=np.int64))
    counting = part.at(np.flatnonzero(part.x_first < cut))
    # A cell with points on both sides of the cut is shown on both.
    counting = replace(counting, x=np.minimum(counting.x, nextafter(cut, -inf)))
    return counting, part.at(np.flatnonzero(part.x >= cut))


def _join(name: str, axis: str, parts: Sequence[Series]) -> Series:
    parts = [part for part in parts if len(part)]
    if not parts:
        empty = build_series(name, np.empty((CELL_ROWS, 0)), np.empty((POINT_ROWS, 0)))
        return _along(empty, axis, 0.0)
    whole = parts[0]
    if len(parts) > 1:
        arrays = {
            field: np.concatenate([getattr(part, field) for part in parts])
            for field in SERIES_ARRAYS
        }
        whole = replace(whole, **arrays, exact=all(part.exact for part in parts))
    apart = np.diff(whole.x)
    if (apart < 0).any():
        whole = whole.at(np.argsort(whole.x, kind="stable"))
        apart = np.diff(whole.x)
    if axis == "step" and (apart == 0).any():
        whole = _merge_places(whole, np.concatenate(([0], np.flatnonzero(apart) + 1)))
    return whole


def _merge_places(series: Series, starts: Integers) -> Series:
    """Several points of the same x made one cell, so that none of them is lost to the eye."""
    points = np.add.reduceat(series.points, starts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        totals = np.where(series.points > 0, series.mean * series.points, 0.0)
        means = np.add.reduceat(totals, starts) / points
    low = np.fmin.reduceat(series.low, starts)
    high = np.fmax.reduceat(series.high, starts)
    return replace(
        series,
        x_first=np.fmin.reduceat(series.x_first, starts),
        x=series.x[starts],
        low=low,
        high=high,
        newest=newest_known(series.newest, starts),
        mean=np.clip(means, low, high),
        points=points,
        odd=np.bitwise_or.reduceat(series.odd, starts),
        exact=False,
    )
