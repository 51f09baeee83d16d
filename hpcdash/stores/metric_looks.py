"""When each log of a run is looked at next, and what a look does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hpcdash.errors import CommandTimedOut, UnreachableError
from hpcdash.logs.joined import JoinedRun
from hpcdash.logs.series import MetricLog
from hpcdash.stores.budget import CommandBudget
from hpcdash.stores.log_file import LONGEST_PAUSE_SECONDS, next_look_seconds
from hpcdash.stores.metric_source import MetricSource
from hpcdash.stores.metric_streams import Stream, run_of_streams
from hpcdash.stores.stamped_file import StampedFile

# A log that waits for the line to come back, or is of a job that ended, is looked at so seldom; the latter the more
# seldom the longer it is missing.
SELDOM_SECONDS, MOST_SELDOM_SECONDS = 30.0, 600.0
QUIET_SECONDS = 2.0
# Its end and its beginning.
COMMANDS_TO_OPEN = 2


@dataclass(slots=True)
class Looked:
    """When a source was looked at and had something new; `is_finished` once nothing more is to come. `missed` counts
    how often it was not to be had after its job's end."""

    moved_at: float = field(default_factory=time.monotonic)
    looked_at: float = 0.0
    is_finished: bool = False
    missed: int = 0
    tried_at: float = 0.0

    def pause_seconds(self, source: MetricSource, now: float) -> float:
        commands = COMMANDS_TO_OPEN if source.problem and not source.is_open else 1
        return max(commands * next_look_seconds(now - self.moved_at), source.file.pause_seconds)

    def tried(self, source: MetricSource) -> None:
        """It was asked for, and is there or is not."""
        self.missed = self.missed + 1 if source.problem else 0
        self.tried_at = time.monotonic()

    def is_awaited(self, place: Place, source: MetricSource) -> bool:
        """Whether it is not to be had, and its next look comes later: while its job lives at the pace of what grows."""
        if not source.problem:
            return False
        pause = max(min(SELDOM_SECONDS * 2**self.missed / 2, MOST_SELDOM_SECONDS), source.file.pause_seconds)
        return may_grow(place) or (self.missed > 0 and time.monotonic() < self.tried_at + pause)


@dataclass(slots=True)
class Place:
    """A job's or task's sources: its stdout, its stderr where that is apart, and the metrics file that it names."""

    job_id: str
    is_over: bool
    streams: tuple[MetricSource, ...]
    own: MetricSource | None = None
    looked: dict[MetricSource, Looked] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[MetricSource, ...]:
        return self.streams if self.own is None else (*self.streams, self.own)

    def looked_of(self, source: MetricSource) -> Looked:
        return self.looked.setdefault(source, Looked())


def may_grow(place: Place) -> bool:
    """Whether to look at it again: not what ended long ago, which is read backwards in its turn."""
    is_finished = all(place.looked_of(source).is_finished for source in place.sources)
    return not is_finished and (not place.is_over or any(source.is_open for source in place.sources))


def next_look(places: Iterable[Place]) -> tuple[float, Place | None, MetricSource | None]:
    """What to look at next, which waited longest for its pace, and in how many seconds it is its time."""
    now = time.monotonic()
    living = [place for place in places if may_grow(place)]
    # Many logs share the looks that one would have.
    share = max(1.0, len(living) / 4)
    longest = float("-inf")
    found: tuple[float, Place | None, MetricSource | None] = (LONGEST_PAUSE_SECONDS, None, None)
    for place in reversed(living):
        for source in place.sources:
            looked = place.looked_of(source)
            if looked.is_finished:
                continue
            pause = share * looked.pause_seconds(source, now)
            if (now - looked.looked_at) / pause > longest:
                longest = (now - looked.looked_at) / pause
                found = (looked.looked_at + pause - now, place, source)
    return found


async def look_at(place: Place, source: MetricSource, moved: Callable[[], None], budget: CommandBudget) -> bool:
    """Read what is new, telling of each piece by `moved`; whether anything else of it is another now.

    Raises UnreachableError and CommandTimedOut, and is then not looked at for a while.
    """
    # Before the look: of a job that was known to have ended, it brings the last lines.
    was_over, looked = place.is_over, place.looked_of(source)
    has_moved = False
    problem = source.problem
    try:
        if not source.is_open:
            for _ in range(COMMANDS_TO_OPEN - 1):
                budget.reserve_read_seconds()
        while await source.read_new():
            has_moved = True
            moved()
            if not source.has_more:
                break
            # It is read on at once, and what is followed besides later.
            budget.reserve_read_seconds()
    except (UnreachableError, CommandTimedOut):
        looked.looked_at = time.monotonic() + LONGEST_PAUSE_SECONDS
        raise
    is_another = source.problem != problem
    looked.looked_at = time.monotonic()
    if has_moved:
        looked.moved_at = looked.looked_at
    elif looked.looked_at - looked.moved_at >= QUIET_SECONDS:
        is_another = await source.finish(is_over=was_over) or is_another
        # A file that is copied from its node may come a little later.
        looked.is_finished = was_over and looked.looked_at - looked.moved_at >= SELDOM_SECONDS / 2
    return is_another


def run_of(places: Sequence[Place]) -> JoinedRun:
    """What is known of all of them now; the times of each stream as its newest file says how far they are behind."""
    own: list[MetricLog] = []
    logs: tuple[list[MetricLog], list[MetricLog]] = ([], [])
    behind = [0.0, 0.0, 0.0]
    for place in places:
        for number, source in enumerate(place.streams[:2]):
            logs[number].extend(source.snapshot())
            behind[number + 1] = _behind(source, behind[number + 1])
        if place.own is not None:
            own += place.own.snapshot()
            behind[0] = _behind(place.own, behind[0])
    return run_of_streams(*(Stream(one, by) for one, by in zip((own, *logs), behind, strict=True)))


def _behind(source: MetricSource, before: float) -> float:
    return source.file.behind_seconds if source.is_open and isinstance(source.file, StampedFile) else before
