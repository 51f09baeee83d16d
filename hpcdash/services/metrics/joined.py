"""Joins the attempts of a run, from one log or several, into one series a metric.

The newest attempt wins: points of an older one at and behind the newer one's first step were
repeated. They stay as series of their own. Streams that are written at the same time (stdout, stderr,
a metrics file) are seen as one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, isnan, nan, nextafter
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.metrics.attempts import Attempt, LogPiece, in_order
from hpcdash.services.metrics.batch import AXES, Floats, Integers
from hpcdash.services.metrics.series import MINUS_INF, NAN, PLUS_INF, MetricLog, Strip

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


class Series(Struct, frozen=True):
    """One metric along one axis.

    Every array is of one length, ascending by `x`; a place is a point, or a cell of several.

    A cell reaches from `x_first` to `x`. `low`, `high`, `newest` and `mean` are of its finite
    values, nan where it has none; `points` is how many those are. `odd` is made of NAN, PLUS_INF
    and MINUS_INF. `exact` says that every place is a single point.
    """

    name: str
    axis: str
    x_first: Floats
    x: Floats
    low: Floats
    high: Floats
    newest: Floats
    mean: Floats
    points: Floats
    odd: Integers
    exact: bool

    def __len__(self) -> int:
        return self.x.size

    @property
    def arrays(self) -> tuple[Floats | Integers, ...]:
        """The arrays, in the order of the fields."""
        return (
            self.x_first,
            self.x,
            self.low,
            self.high,
            self.newest,
            self.mean,
            self.points,
            self.odd,
        )

    def at(self, places: Integers) -> Series:
        """The series of these places alone."""
        return _series(
            self.name,
            self.axis,
            [array[places] for array in self.arrays],
            self.exact or not places.size,
        )

    @property
    def values(self) -> Floats:
        """The value of each place as it was logged: the mean of a cell, nan, or inf."""
        if not self.odd.any():
            return self.mean
        values = np.where(self.odd & NAN, nan, self.mean)
        values = np.where(self.odd & MINUS_INF, -inf, values)
        return np.where(self.odd & PLUS_INF, inf, values)


def _series(name: str, axis: str, arrays: Iterable[Any], exact: bool) -> Series:
    fields = (name, axis, *arrays, exact)
    return Series(*fields)


class LostTime(Struct, frozen=True):
    """Cost of restarts: repeated steps, their seconds, and seconds between attempts.

    Seconds are nan if no times are known.
    """

    restarts: int
    repeated_steps: float
    repeated_seconds: float
    gap_seconds: float


class _Part(Struct, frozen=True):
    """An attempt, or a part of one, of a log whose times are some seconds behind."""

    log: MetricLog
    piece: LogPiece
    behind_seconds: float

    @property
    def attempt(self) -> Attempt:
        attempt = self.piece.attempt
        if not self.behind_seconds:
            return attempt
        *first, began = attempt.first
        *last, ended = attempt.last
        behind = self.behind_seconds
        return replace(attempt, first=(*first, began + behind), last=(*last, ended + behind))

    def strip(self, name: str) -> Strip:
        strip = self.log.strip(name, self.piece.begin, self.piece.until)
        if not self.behind_seconds:
            return strip
        moved = np.array([[0.0], [0.0], [0.0], [self.behind_seconds]])
        return replace(strip, x_first=strip.x_first + moved, x_last=strip.x_last + moved)


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
        self._ordered: tuple[tuple[int, ...], list[_Part]] = (), []

    @property
    def names(self) -> set[str]:
        return {name for log in self.logs for name in log.names}

    def places(self, name: str) -> int:
        """Return the number of stored points and cells of a metric."""
        return sum(log.places(name) for log in self.logs)

    @property
    def parts(self) -> list[_Part]:
        """The attempts of the logs, oldest first, even if those of one lie between another's."""
        versions = tuple(log.version for log in self.logs)
        if self._ordered[0] != versions:
            pieces = in_order([log.attempts for log in self.logs], [log.jumps for log in self.logs])
            parts = [_Part(self.logs[one.log], one, self._behind_seconds) for one in pieces]
            self._ordered = versions, parts
        return self._ordered[1]

    @property
    def samples_name(self) -> str | None:
        """The metric that counts consumed samples."""
        return next(
            (
                name
                for name in sorted(self.names)
                if name.lower().replace("_", " ") in _SAMPLES_NAMES
            ),
            None,
        )

    @property
    def axes(self) -> set[str]:
        return self._with_samples({axis for log in self.logs for axis in log.axes()})

    def metric_axes(self, name: str) -> set[str]:
        metric_axes, _ = self.written(name)
        known = [not np.isnan(column).all() for column in metric_axes]
        return self._with_samples(
            {axis for axis, is_known in zip(AXES, known, strict=True) if is_known}
        )

    def _with_samples(self, axes: set[str]) -> set[str]:
        has_samples = "step" in axes and self.samples_name is not None
        return axes | {SAMPLES} if has_samples else axes

    def samples_at(self, steps: Floats) -> Floats:
        name = self.samples_name
        known = None if name is None else self.series(name, "step")
        if known is None or not len(known):
            return np.full(steps.size, nan)
        found: Floats = np.interp(steps, known.x, known.newest, left=nan, right=nan)
        return found

    def series(self, name: str, axis: str, *, is_steps: bool = False) -> Series:
        """The points that count; with `is_steps` the means are steps."""
        if axis == SAMPLES:
            return self._along_samples(self.series(name, "step"))
        pieces = [piece for piece, _ in self._pieces(name, axis, is_steps=is_steps)]
        return _one_series(name, axis, pieces)

    def overlap(self, name: str, axis: str) -> tuple[Series, ...]:
        if axis == SAMPLES:
            return tuple(self._along_samples(one) for one in self.overlap(name, "step"))
        repeated = [piece for _, piece in self._pieces(name, axis)]
        return tuple(_one_series(name, axis, [piece]) for piece in repeated if len(piece))

    def written(self, name: str) -> tuple[Floats, Floats]:
        strips = [part.strip(name) for part in self.parts if name in part.log.names]
        if not strips:
            return np.empty((len(AXES), 0)), np.empty(0)
        values = [_along(name, "point", strip, 0.0).values for strip in strips]
        return np.concatenate([strip.x_last for strip in strips], axis=1), np.concatenate(values)

    def _along_samples(self, series: Series) -> Series:
        x_first = self.samples_at(series.x_first)
        x = self.samples_at(series.x)
        x_first = np.where(np.isnan(x_first), x, x_first)
        moved = replace(series, axis=SAMPLES, x_first=x_first, x=x)
        return moved.at(np.flatnonzero(~np.isnan(x)))

    def _pieces(
        self, name: str, axis: str, *, is_steps: bool = False
    ) -> list[tuple[Series, Series]]:
        """Return the counting and the repeated points of each attempt, oldest first."""
        parts = self.parts
        cuts = _cuts([part.attempt for part in parts], axis)
        pieces = []
        samples = 0.0
        for part, cut in zip(parts, cuts, strict=True):
            if name not in part.log.names:
                continue
            strip = part.strip(name)
            if is_steps:
                strip = replace(strip, mean=strip.x_last[0])
            piece = _along(name, axis, strip, samples)
            samples += len(piece) if piece.exact else float(np.maximum(piece.points, 1).sum())
            pieces.append(_split(piece, cut))
        return pieces


class JoinedRun:
    """One run of several streams. A metric of several is taken from the one with most of it, of
    those with as much from the first: attempts of one stream are no restarts of the other.
    """

    def __init__(self, streams: Sequence[MetricStream]) -> None:
        self._streams = tuple(streams) or (MetricStream(()),)

    def _stream(self, name: str) -> MetricStream:
        return max(self._streams, key=lambda stream: stream.places(name))

    def _by_size(self) -> list[MetricStream]:
        if len(self._streams) == 1:
            return list(self._streams)
        return sorted(self._streams, key=lambda stream: -sum(map(stream.places, stream.names)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({name for stream in self._streams for name in stream.names}))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(part.attempt for part in self._by_size()[0].parts)

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
        if name is not None:
            has = self._stream(name).metric_axes(name)
        else:
            has = {axis for stream in self._streams for axis in stream.axes}
        return tuple(axis for axis in ALL_AXES if axis in has or axis == "point")

    def series(self, name: str, axis: str = "step") -> Series:
        """Return the points that count: the newest attempt's at each step.

        Along time and point, all points.
        """
        return self._stream(name).series(name, axis)

    def steps_along(self, name: str, axis: str) -> Floats:
        """The step of each place of the metric's series; nan where it is not known."""
        stream = self._stream(name)
        if axis not in ("step", SAMPLES):
            return stream.series(name, axis, is_steps=True).mean
        steps = stream.series(name, "step").x
        return steps if axis == "step" else steps[~np.isnan(stream.samples_at(steps))]

    def samples_at(self, steps: Floats) -> Floats:
        """Return the samples consumed at `steps` (n); nan outside the steps in the log."""
        streams = self._by_size()
        counting = next((stream for stream in streams if SAMPLES in stream.axes), streams[0])
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
        found = [self.series(name, axis) for name in names]
        places = np.unique(np.concatenate([series.x for series in found])) if found else np.empty(0)
        columns = {axis: pa.array(whole_numbers(places))}
        for series in found:
            values = np.zeros(places.size)
            is_missing = np.ones(places.size, dtype=bool)
            at = np.searchsorted(places, series.x)
            values[at], is_missing[at] = series.values, False
            # A metric may bear the axis' name.
            name = series.name if series.name not in columns else f"{series.name} (metric)"
            columns[name] = pa.array(values, mask=is_missing, from_pandas=False)
        return pa.table(columns)


def whole_numbers(x: Any) -> Any:
    """Return steps as whole numbers, other x as they are."""
    return (
        x.astype(np.int64)
        if x.size and (np.abs(x) < 2**53).all() and (x == np.floor(x)).all()
        else x
    )


def joined(logs: Sequence[MetricLog]) -> JoinedRun:
    """One run of the logs of one stream."""
    return JoinedRun((MetricStream(logs),))


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


def _along(name: str, axis: str, strip: Strip, samples_before: float) -> Series:
    exact = strip.exact_from == 0
    if axis == "point":
        counts = np.ones(strip.points.size) if exact else np.maximum(strip.points, 1.0)
        x = np.cumsum(counts) + (samples_before - 1.0)
        x_first = x - counts + 1.0
    else:
        row = AXES.index(axis)
        x_first = strip.x_first[row]
        x = strip.x_last[row]
    series = Series(
        name,
        axis,
        x_first,
        x,
        strip.low,
        strip.high,
        strip.newest,
        strip.mean,
        strip.points,
        strip.odd,
        exact,
    )
    missing = np.isnan(x)
    return series.at(np.flatnonzero(~missing)) if missing.any() else series


def _split(piece: Series, cut: float) -> tuple[Series, Series]:
    if not len(piece) or piece.x.max() < cut:
        return piece, piece.at(np.empty(0, dtype=np.int64))
    stored = piece.at(np.flatnonzero(piece.x_first < cut))
    # A cell with points on both sides of the cut is shown on both.
    stored = replace(stored, x=np.minimum(stored.x, nextafter(cut, -inf)))
    return stored, piece.at(np.flatnonzero(piece.x >= cut))


def _one_series(name: str, axis: str, pieces: Sequence[Series]) -> Series:
    pieces = [piece for piece in pieces if len(piece)]
    if not pieces:
        return _series(name, axis, [np.empty(0)] * 7 + [np.empty(0, dtype=np.int64)], True)
    whole = pieces[0]
    if len(pieces) > 1:
        parts = zip(*(piece.arrays for piece in pieces), strict=True)
        is_exact = all(piece.exact for piece in pieces)
        whole = _series(name, axis, map(np.concatenate, parts), is_exact)
    apart = np.diff(whole.x)
    if (apart < 0).any():
        whole = whole.at(np.argsort(whole.x, kind="stable"))
        apart = np.diff(whole.x)
    if axis == "step" and (apart == 0).any():
        whole = _one_a_place(whole, np.concatenate(([0], np.flatnonzero(apart) + 1)))
    return whole


def _one_a_place(series: Series, starts: Integers) -> Series:
    """Several points of the same x made one cell, so that none of them is lost to the eye."""
    has = np.where(np.isnan(series.newest), -1, np.arange(series.x.size))
    newest = np.maximum.reduceat(has, starts)
    points = np.add.reduceat(series.points, starts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        totals = np.add.reduceat(
            np.where(series.points > 0, series.mean * series.points, 0.0), starts
        )
        means = totals / points
    low = np.fmin.reduceat(series.low, starts)
    high = np.fmax.reduceat(series.high, starts)
    return Series(
        series.name,
        series.axis,
        x_first=np.fmin.reduceat(series.x_first, starts),
        x=series.x[starts],
        low=low,
        high=high,
        newest=np.where(newest < 0, nan, series.newest[newest]),
        mean=np.clip(means, low, high),
        points=points,
        odd=np.bitwise_or.reduceat(series.odd, starts),
        exact=False,
    )
