"""Streams of one run seen as one, stdout, stderr and a metrics file, written at the same time. Knows no file and no
job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from hpcdash.logs.joined import ALL_AXES, JoinedRun, LostTime, Series, joined
from hpcdash.logs.metrics import Floats
from hpcdash.logs.series import Attempt, MetricLog


def run_of_streams(*streams: Sequence[MetricLog]) -> JoinedRun:
    """One run of several streams' logs, each oldest first; a metric of several is taken from the one with most of it,
    of those with as much from the first."""
    runs = [joined(logs) for logs in streams if logs]
    return reduce(_BothStreams, runs) if runs else joined(())


class _BothStreams(JoinedRun):
    """Each metric from one stream: attempts of one are no restarts of the other."""

    def __init__(self, first: JoinedRun, second: JoinedRun) -> None:
        super().__init__(())
        counts = [{name: float(run.written(name)[1].size) for name in run.names} for run in (first, second)]
        self._by_name: dict[str, JoinedRun] = {}
        for name in {**counts[0], **counts[1]}:
            self._by_name[name] = second if counts[1].get(name, 0.0) > counts[0].get(name, 0.0) else first
        totals = [sum(of_stream.values()) for of_stream in counts]
        self._main, self._other = (second, first) if totals[1] > totals[0] else (first, second)

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
