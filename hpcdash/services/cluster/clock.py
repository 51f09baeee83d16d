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

# Two clocks that are as close are taken for one.
_TOLERATED_SECONDS = 2.0


class Clock(Protocol):
    """Seconds since the epoch, for ages and times on the screen."""

    def now(self) -> float: ...


class SystemClock:
    """This machine's clock, whatever is done to it."""

    def now(self) -> float:
        return time.time()


def _steady_seconds() -> float:
    """A clock that nobody sets, and that goes on while the machine sleeps."""
    # Linux's CLOCK_MONOTONIC stands still in a sleep; macOS's does not.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClusterClock:
    """The cluster's clock as it was last measured, else this machine's as it was at first.

    It goes on steadily: what is done to this machine's clock meanwhile does not move it.
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
        """Seconds that it is ahead of this machine's clock; negative if it is behind."""
        return self.now() - self._wall()

    def measured(self, whole_seconds: float, queried_at: float, answered_at: float) -> None:
        """Take what the cluster's clock said at some moment between two of `now`, without its part
        of a second.
        """
        least = whole_seconds - answered_at
        most = whole_seconds + 1 - queried_at
        if least > _TOLERATED_SECONDS or most < -_TOLERATED_SECONDS:
            self._zero += (least + most) / 2


class FrozenClock:
    """Stands still at the moment a case was recorded."""

    def __init__(self, epoch_seconds: float) -> None:
        self._epoch_seconds = epoch_seconds

    def now(self) -> float:
        return self._epoch_seconds


def latest_time(jobs: pa.Table) -> float | None:
    """The time of the cluster, in epoch seconds, that running jobs tell: when one began, and how
    long it has run.

    It is no later than that; None where none runs.
    """
    running = jobs.filter(has_state(jobs, {JobState.RUNNING}))
    begun = pc.cast(running["started_at"], pa.int64())
    found = pc.max(pc.add(begun, running["elapsed_seconds"])).as_py()
    return None if found is None else float(found)


def _read_clock(answer: Answer) -> float:
    text = answer.stdout.strip()
    if answer.status != 0 or not text.isdigit():
        raise UnreadableOutput(
            "date printed no time",
            argv=answer.argv,
            status=answer.status,
            output=excerpt(answer.stderr or text),
        )
    return float(text)


CLOCK_QUERY: Query[float] = Query(("date", "+%s"), _read_clock)
