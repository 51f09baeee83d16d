"""Clocks of the cluster, of this machine, and of a recording, in which ages do not move."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.backends.queries import Answer, Query
from hpcdash.domain.columns import has_state
from hpcdash.domain.states import JobState
from hpcdash.errors import UnreadableOutput, excerpt

# Clocks that are no further apart are taken for equal.
_TOLERATED_SECONDS = 2.0


class Clock(Protocol):
    """Source of the time in seconds since the epoch, for ages and times on the screen."""

    def now(self) -> float: ...


class SystemClock:
    """This machine's clock, with all that sets it."""

    def now(self) -> float:
        return time.time()


def _steady_seconds() -> float:
    """Return the seconds of a clock that nobody sets, and that runs on while the machine sleeps."""
    # Linux's CLOCK_MONOTONIC stands still in a sleep; macOS's does not.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClusterClock:
    """The cluster's clock as last measured, or this machine's clock as it was at the start.

    It runs steadily: setting this machine's clock does not move it.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = _steady_seconds
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._zero = wall() - steady()

    def now(self) -> float:
        return self._zero + self._steady()

    @property
    def ahead_seconds(self) -> float:
        """Seconds by which it is ahead of this machine's clock; negative if it is behind."""
        return self.now() - self._wall()

    def adjust(self, whole_seconds: float, queried_at: float, answered_at: float) -> None:
        """Adjust to the whole seconds of the cluster's clock between two times of `now`."""
        least_ahead = whole_seconds - answered_at
        most_ahead = whole_seconds + 1 - queried_at
        if least_ahead > _TOLERATED_SECONDS or most_ahead < -_TOLERATED_SECONDS:
            self._zero += (least_ahead + most_ahead) / 2


class FrozenClock:
    """Clock that stands still at the moment a case was recorded."""

    def __init__(self, epoch_seconds: float) -> None:
        self._epoch_seconds = epoch_seconds

    def now(self) -> float:
        return self._epoch_seconds


def latest_time(jobs: pa.Table) -> float | None:
    """Return the latest time, in epoch seconds, that running jobs show: start plus elapsed time.

    The cluster's time is no earlier. None if no job runs.
    """
    running = jobs.filter(has_state(jobs, {JobState.RUNNING}))
    started_at = pc.cast(running["started_at"], pa.int64())
    latest = pc.max(pc.add(started_at, running["elapsed_seconds"])).as_py()
    return None if latest is None else float(latest)


def _parse_clock(answer: Answer) -> float:
    text = answer.stdout.strip()
    if answer.status != 0 or not text.isdigit():
        raise UnreadableOutput(
            "date printed no time",
            argv=answer.argv,
            status=answer.status,
            output=excerpt(answer.stderr or text),
        )
    return float(text)


CLOCK_QUERY: Query[float] = Query(("date", "+%s"), _parse_clock)
