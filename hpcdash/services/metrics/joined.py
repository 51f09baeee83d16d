"""Joins the attempts of a run, from one log or several, into one series a metric.

The newest attempt wins: what an older one says at and behind the newer one's first step is what was
repeated. It stays as series of its own. Streams that are written at the same time (stdout, stderr,
a metrics file) are seen as one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from math import inf, isnan, nan, nextafter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.services.metrics.attempts import Attempt, LogPiece, in_order
from hpcdash.services.metrics.batch import Floats, Integers
from hpcdash.services.metrics.cells import AXES
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
    def values(self) -> Floats:
        """The value of each place as its log said it: the mean of a cell; nan and inf where they
        stood.
        """
        if not self.odd.any():
            return self.mean
        values = np.where(self.odd & NAN, nan, self.mean)
        values = np.where(self.odd & MINUS_INF, -inf, values)
        return np.where(self.odd & PLUS_INF, inf, values)


class LostTime(Struct, frozen=True):
    """Cost of restarts: repeated steps, their seconds, and seconds between attempts.

    Seconds are nan if no times are known.
    """

    restarts: int
    repeated_steps: float
    repeated_seconds: float
    gap_seconds: float

    @property
    def seconds(self) -> float:
        """All that is known of it; nan where nothing is."""
        known = [part for part in (self.repeated_seconds, self.gap_seconds) if not isnan(part)]
        return sum(known) if known else nan


class _Part(Struct, frozen=True):
    log: MetricLog
    piece: LogPiece

    @property
    def attempt(self) -> Attempt:
        return self.piece.attempt

    def strip(self, name: str) -> Strip:
        return self.log.strip(name, self.piece.begin, self.piece.until)


class JoinedRun:
    """The attempts of several logs, oldest first, even if those of one lie between those of
    another. Reads the logs when asked, and holds only that order.
    """

    def __init__(self, logs: Sequence[MetricLog]) -> None:
        self._logs = tuple(logs)
        self._ordered: tuple[tuple[int, ...], list[_Part]] = (), []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({name for log in self._logs for name in log.names}))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(part.attempt for part in self._parts())

    @property
    def last_step(self) -> int | None:
        """The final step that the newest log names."""
        return next(
            (log.last_step for log in reversed(self._logs) if log.last_step is not None), None
        )

    @property
    def doubt(self) -> str:
        """Text on what the logs leave open about the steps; '' for nothing."""
        return next((log.doubt for log in reversed(self._logs) if log.doubt), "")

    def axes(self, name: str | None = None) -> tuple[str, ...]:
        """The x axes that some log has, or the metric `name`, of ALL_AXES; `point`, the how
        manieth, always is.
        """
        if name is not None:
            metric_streams, _ = self.written(name)
            has = {axis for row, axis in enumerate(AXES) if not np.isnan(metric_streams[row]).all()}
        else:
            has = {axis for log in self._logs for axis in log.axes()}
        if "step" in has and self._samples_name() is not None:
            has.add(SAMPLES)
        return tuple(axis for axis in ALL_AXES if axis in has or axis == "point")

    def series(self, name: str, axis: str = "step") -> Series:
        """Return the points that count: the newest attempt's at each step.

        Along time and point, all points.
        """
        if axis == SAMPLES:
            return self._along_samples(self.series(name))
        pieces = [piece for piece, _ in self._pieces(name, axis)]
        return _one_series(name, axis, pieces)

    def steps_along(self, name: str, axis: str) -> Floats:
        """The step of each place of the metric's series; nan where it is not known."""
        if axis in ("step", SAMPLES):
            steps = self.series(name).x
            return steps if axis == "step" else steps[~np.isnan(self.samples_at(steps))]
        pieces = [piece for piece, _ in self._pieces(name, axis, is_steps=True)]
        return _one_series(name, axis, pieces).mean

    def samples_at(self, steps: Floats) -> Floats:
        """Return the samples consumed at `steps` (n); nan outside the steps in the log."""
        name = self._samples_name()
        known = self.series(name) if name is not None else None
        if known is None or not len(known):
            return np.full(steps.size, nan)
        found: Floats = np.interp(steps, known.x, known.newest, left=nan, right=nan)
        return found

    def overlap(self, name: str, axis: str = "step") -> tuple[Series, ...]:
        """Return the repeated points, a series for each attempt that has any, oldest first."""
        if axis == SAMPLES:
            return tuple(self._along_samples(one) for one in self.overlap(name))
        repeated = [piece for _, piece in self._pieces(name, axis)]
        return tuple(_one_series(name, axis, [piece]) for piece in repeated if piece.x.size)

    def written(self, name: str) -> tuple[Floats, Floats]:
        """Every sample of the metric in the order it was written, repeated ones too: (4, n) in the
        order of AXES, and values (n), with nan and inf; of a cell its end and its mean.
        """
        parts = [part for part in self._parts() if name in part.log.names]
        strips = [part.strip(name) for part in parts]
        if not strips:
            return np.empty((4, 0)), np.empty(0)
        values = [_along(name, "point", strip, 0.0).values for strip in strips]
        return np.concatenate([strip.x_last for strip in strips], axis=1), np.concatenate(values)

    def lost_time(self) -> LostTime:
        parts = [part.attempt for part in self._parts()]
        steps = seconds = gaps = 0.0
        paced = timed = False
        for older, newer in pairwise(parts):
            # A step that is written again was done again.
            done_again = older.last[0] - newer.first[0] + 1.0
            if done_again > 0:
                pace = (older.last[3] - older.first[3]) / max(older.last[0] - older.first[0], 1.0)
                steps += done_again
                if not isnan(pace) and pace >= 0:
                    seconds += done_again * pace
                    paced = True
            gap = newer.first[3] - older.last[3]
            if gap >= 0:
                gaps += gap
                timed = True
        again = steps == 0 or paced
        return LostTime(
            max(len(parts) - 1, 0), steps, seconds if again else nan, gaps if timed else nan
        )

    def _parts(self) -> list[_Part]:
        versions = tuple(log.version for log in self._logs)
        if self._ordered[0] != versions:
            pieces = in_order(
                [log.attempts for log in self._logs], [log.jumps for log in self._logs]
            )
            self._ordered = versions, [_Part(self._logs[piece.log], piece) for piece in pieces]
        return self._ordered[1]

    def _samples_name(self) -> str | None:
        return next(
            (name for name in self.names if name.lower().replace("_", " ") in _SAMPLES_NAMES), None
        )

    def _along_samples(self, series: Series) -> Series:
        x_first, x = self.samples_at(series.x_first), self.samples_at(series.x)
        moved = _build_series(
            series.name,
            SAMPLES,
            [np.where(np.isnan(x_first), x, x_first), x, *_arrays(series)[2:]],
            series.exact,
        )
        return _at(moved, np.flatnonzero(~np.isnan(x)))

    def _pieces(
        self, name: str, axis: str, *, is_steps: bool = False
    ) -> list[tuple[Series, Series]]:
        """Return the counting and the repeated points of each attempt, oldest first.

        With `is_steps` the means are steps.
        """
        parts = self._parts()
        cuts = _cuts([part.attempt for part in parts], axis)
        pieces = []
        samples = 0.0
        for part, cut in zip(parts, cuts, strict=True):
            if name not in part.log.names:
                continue
            strip = part.strip(name)
            piece = _along(
                name, axis, replace(strip, mean=strip.x_last[0]) if is_steps else strip, samples
            )
            samples += (
                piece.points.size if piece.exact else float(np.maximum(piece.points, 1).sum())
            )
            pieces.append(_split(piece, cut))
        return pieces


def joined(logs: Sequence[MetricLog], by_time: bool = True) -> JoinedRun:
    """One run of several logs: ordered by their first times where every log has one, else as
    given.
    """
    begun = [log for log in logs if log.attempts]
    # A task that went on in a later epoch counts from where the first began.
    shown = next((log.first_epoch for log in begun if log.first_epoch is not None), None)
    if shown is not None:
        begun = [log.beginning_with(shown) for log in begun]
    firsts = [log.attempts[0].first[3] for log in begun]
    if by_time and not any(isnan(first) for first in firsts):
        begun = [
            log for _, log in sorted(zip(firsts, begun, strict=True), key=lambda pair: pair[0])
        ]
    return JoinedRun(begun)


def _cuts(attempts: Sequence[Attempt], axis: str) -> list[float]:
    """Return for each attempt where along the axis a newer one begins to count."""
    cuts = [inf] * len(attempts)
    if axis not in AXES or axis == "time":
        return cuts
    row = AXES.index(axis)
    lowest = inf
    for k in range(len(attempts) - 1, -1, -1):
        cuts[k] = lowest
        if attempts[k].first[row] < lowest:
            lowest = attempts[k].first[row]
    return cuts


def _along(name: str, axis: str, strip: Strip, samples_before: float) -> Series:
    exact = strip.exact_from == 0
    if axis == "point":
        counts = np.ones(strip.points.size) if exact else np.maximum(strip.points, 1.0)
        x = np.cumsum(counts) + (samples_before - 1.0)
        x_first = x - counts + 1.0
    else:
        row = AXES.index(axis)
        x_first, x = strip.x_first[row], strip.x_last[row]
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
    return _at(series, np.flatnonzero(~missing)) if missing.any() else series


def _split(piece: Series, cut: float) -> tuple[Series, Series]:
    if not piece.x.size or piece.x.max() < cut:
        return piece, _at(piece, np.empty(0, dtype=np.int64))
    counts = piece.x_first < cut
    stored = _at(piece, np.flatnonzero(counts))
    # A cell with points on both sides of the cut is shown on both.
    stored = _with_x(stored, np.minimum(stored.x, nextafter(cut, -inf)))
    return stored, _at(piece, np.flatnonzero(piece.x >= cut))


def _one_series(name: str, axis: str, pieces: Sequence[Series]) -> Series:
    pieces = [piece for piece in pieces if piece.x.size]
    if len(pieces) == 1:
        whole = pieces[0]
    elif pieces:
        fields = zip(*(_arrays(piece) for piece in pieces), strict=True)
        whole = _build_series(
            name, axis, [np.concatenate(field) for field in fields], all(p.exact for p in pieces)
        )
    else:
        return _build_series(name, axis, [np.empty(0)] * 7 + [np.empty(0, dtype=np.int64)], True)
    apart = np.diff(whole.x)
    if (apart < 0).any():
        whole = _at(whole, np.argsort(whole.x, kind="stable"))
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
    arrays = [
        np.fmin.reduceat(series.x_first, starts),
        series.x[starts],
        low,
        high,
        np.where(newest < 0, nan, series.newest[newest]),
        np.clip(means, low, high),
        points,
        np.bitwise_or.reduceat(series.odd, starts),
    ]
    return _build_series(series.name, series.axis, arrays, False)


def _arrays(series: Series) -> list[Floats]:
    s = series
    return [s.x_first, s.x, s.low, s.high, s.newest, s.mean, s.points, s.odd]  # type: ignore[list-item]


def _build_series(name: str, axis: str, arrays: Sequence[Floats], exact: bool) -> Series:
    x_first, x, low, high, newest, mean, points, odd = arrays
    return Series(
        name,
        axis,
        x_first,
        x,
        low,
        high,
        newest,
        mean,
        points,
        odd.astype(np.int64, copy=False),
        exact,
    )


def _with_x(series: Series, x: Floats) -> Series:
    return _build_series(
        series.name, series.axis, [series.x_first, x, *_arrays(series)[2:]], series.exact
    )


def _at(series: Series, places: Integers) -> Series:
    exact = series.exact or not places.size
    return _build_series(
        series.name, series.axis, [array[places] for array in _arrays(series)], exact
    )


class MetricStream(Struct, frozen=True):
    """One stream's logs, oldest first; `behind_seconds` is what is added to their times, which bear
    no zone.
    """

    logs: Sequence[MetricLog]
    behind_seconds: float = 0.0


def join_streams(*streams: MetricStream) -> JoinedRun:
    """One run of several streams; a metric of several is taken from the one with most of it, of
    those with as much from the first.
    """
    runs = [_Counted.of(stream) for stream in streams if stream.logs]
    return reduce(_both, runs).run if runs else joined(())


class _Counted(Struct, frozen=True):
    """A run, and how many places it has of each metric."""

    run: JoinedRun
    counts: Mapping[str, int]

    @classmethod
    def of(cls, stream: MetricStream) -> _Counted:
        names = {name for log in stream.logs for name in log.names}
        counts = {name: sum(log.places(name) for log in stream.logs) for name in names}
        behind = stream.behind_seconds
        run = joined(stream.logs)
        return cls(_Moved(run, behind) if behind else run, counts)


def _both(first: _Counted, second: _Counted) -> _Counted:
    counts = {
        name: max(one.counts.get(name, 0) for one in (first, second))
        for name in {*first.counts, *second.counts}
    }
    return _Counted(_BothStreams(first, second), counts)


class _Moved(JoinedRun):
    """A run whose times are some seconds behind."""

    def __init__(self, run: JoinedRun, seconds: float) -> None:
        super().__init__(run._logs)
        self._seconds = seconds

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        by = self._seconds
        return tuple(
            replace(
                one,
                first=(*one.first[:3], one.first[3] + by),
                last=(*one.last[:3], one.last[3] + by),
            )
            for one in super().attempts
        )

    def series(self, name: str, axis: str = "step") -> Series:
        return self._moved(super().series(name, axis))

    def overlap(self, name: str, axis: str = "step") -> tuple[Series, ...]:
        return tuple(self._moved(one) for one in super().overlap(name, axis))

    def written(self, name: str) -> tuple[Floats, Floats]:
        axes, values = super().written(name)
        axes = axes.copy()
        axes[AXES.index("time")] += self._seconds
        return axes, values

    def _moved(self, series: Series) -> Series:
        if series.axis != "time":
            return series
        return replace(series, x_first=series.x_first + self._seconds, x=series.x + self._seconds)


class _BothStreams(JoinedRun):
    """Each metric from one stream: attempts of one are no restarts of the other."""

    def __init__(self, first: _Counted, second: _Counted) -> None:
        super().__init__(())
        self._by_name: dict[str, JoinedRun] = {}
        for name in {**first.counts, **second.counts}:
            is_second = second.counts.get(name, 0) > first.counts.get(name, 0)
            self._by_name[name] = second.run if is_second else first.run
        totals = [sum(one.counts.values()) for one in (first, second)]
        mains = (second, first) if totals[1] > totals[0] else (first, second)
        self._main, self._other = mains[0].run, mains[1].run

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_name))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self._main.attempts

    @property
    def last_step(self) -> int | None:
        return self._main.last_step if self._main.last_step is not None else self._other.last_step

    @property
    def doubt(self) -> str:
        return self._main.doubt or self._other.doubt

    def axes(self, name: str | None = None) -> tuple[str, ...]:
        if name is not None:
            return self._by_name.get(name, self._main).axes(name)
        has = {*self._main.axes(), *self._other.axes()}
        return tuple(axis for axis in ALL_AXES if axis in has)

    def series(self, name: str, axis: str = "step") -> Series:
        return self._by_name.get(name, self._main).series(name, axis)

    def steps_along(self, name: str, axis: str) -> Floats:
        return self._by_name.get(name, self._main).steps_along(name, axis)

    def samples_at(self, steps: Floats) -> Floats:
        return (self._main if "samples" in self._main.axes() else self._other).samples_at(steps)

    def overlap(self, name: str, axis: str = "step") -> tuple[Series, ...]:
        return self._by_name.get(name, self._main).overlap(name, axis)

    def written(self, name: str) -> tuple[Floats, Floats]:
        return self._by_name.get(name, self._main).written(name)

    def lost_time(self) -> LostTime:
        return self._main.lost_time()
