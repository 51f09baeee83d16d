"""Streams of one run seen as one, stdout, stderr and a metrics file, written at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from hpcdash.services.metrics.attempts import Attempt
from hpcdash.services.metrics.batch import Floats
from hpcdash.services.metrics.cells import AXES
from hpcdash.services.metrics.joined import ALL_AXES, JoinedRun, LostTime, Series, joined
from hpcdash.services.metrics.series import MetricLog


@dataclass(frozen=True, slots=True)
class MetricStream:
    """One stream's logs, oldest first; `behind_seconds` is what is added to their times, which bear no zone."""

    logs: Sequence[MetricLog]
    behind_seconds: float = 0.0


def run_of_streams(*streams: MetricStream) -> JoinedRun:
    """One run of several streams; a metric of several is taken from the one with most of it, of those with as much from
    the first."""
    runs = [_Counted.of(stream) for stream in streams if stream.logs]
    return reduce(_both, runs).run if runs else joined(())


@dataclass(frozen=True, slots=True)
class _Counted:
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
    counts = {name: max(one.counts.get(name, 0) for one in (first, second)) for name in {*first.counts, *second.counts}}
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
            replace(one, first=(*one.first[:3], one.first[3] + by), last=(*one.last[:3], one.last[3] + by))
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
