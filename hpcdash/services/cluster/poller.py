"""Polls of one cluster at the pace that its views need and its controller can bear."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from hpcdash.domain.columns import column_text
from hpcdash.domain.tables import Kind
from hpcdash.errors import (
    AuthenticationFailed,
    CommandTimedOut,
    ConnectionFailed,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    RateLimited,
)
from hpcdash.services.cluster.queries import count_sent
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.cluster.store import ClusterStore

_LONGEST_BACK_OFF_SECONDS = 300.0
_FIRST_BACK_OFF_SECONDS = 5.0
_FIRST_AFTER_GIVING_UP_SECONDS = 60.0
# 5 s doubled as often as this is past the longest back-off, however the jitter falls.
_MAX_DOUBLINGS = 8
# Least interval of a kind that is shown in passing, and of one whose answer is large.
_PASSING_SECONDS = 120.0
_PASSING_LARGE_SECONDS = 600.0
# … and one that is known to have changed, as a job of one's own started or ended.
_PASSING_CHANGED_SECONDS = 30.0
_LARGE_ANSWER_BYTES = 1_000_000
# An answer of another window is as good as one's own until it is this part of the interval old.
_SHARED_PART = 0.75
# A problem that a person has to settle: retried only when they request it.
NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused)


class Pace(Struct, frozen=True):
    """Seconds between polls of each kind.

    `controller_share` is the largest part of the controller's time that we take.
    """

    seconds: Mapping[Kind, float]
    unfocused_factor: float = 4.0
    controller_share: float = 0.1


class _Schedule(Struct):
    """Schedule of a kind.

    `queried_at` is the time of its last poll (monotonic), `took_seconds` the scheduler's time for
    it, `failures` the number of consecutive failures. `commands` were sent for the last answer, and
    `is_quiet` if that equals the answer before, as far as a person sees. `retry_seconds` is the
    wait after a failure of the line, which has its own pace; None after other failures.
    """

    queried_at: float = float("-inf")
    took_seconds: float = 0.0
    failures: int = 0
    retry_seconds: float | None = None
    commands: int = 1
    is_quiet: bool = False
    jitter: float = field(default_factory=random.random)


class Poller:
    """Refreshes the kinds that are shown; one's own jobs always, as alerts depend on them."""

    def __init__(
        self, store: ClusterStore, pace: Pace, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.pace = pace
        self.focused = True
        self.waiting_for_person: HpcdashError | None = None
        self._interest: frozenset[Kind] = frozenset({Kind.MINE})
        self._in_passing: frozenset[Kind] = frozenset()
        self._changed: set[Kind] = set()
        self._schedules: dict[Kind, _Schedule] = {kind: _Schedule() for kind in Kind}
        self._monotonic = monotonic
        self._due_now: set[Kind] = set()
        self._in_flight: set[Kind] = set()
        # When the queries without an answer were sent.
        self._sent_at: dict[Kind, float] = {}
        self._force = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()

    def show(self, kinds: Iterable[Kind], in_passing: Iterable[Kind] = ()) -> None:
        """Set the kinds that are on the screen now, besides one's own jobs.

        Those shown `in_passing`, beside what a person works with, are polled every two minutes, and
        every ten if their answer is large.
        """
        shown = frozenset({Kind.MINE, *kinds})
        self._in_passing = frozenset(in_passing) - shown
        self._interest = shown | self._in_passing
        self._due_now &= self._interest
        self._wake.set()

    @property
    def shown(self) -> frozenset[Kind]:
        """Kinds that are polled now."""
        return self._interest

    def focus(self, focused: bool) -> None:
        """Set whether a person watches; else polls are `unfocused_factor` times less frequent."""
        self.focused = focused
        self._wake.set()

    def poll_now(self, *, with_passing: bool = False) -> None:
        """Poll what is shown at once: a person requested it, or has just acted.

        A query that is under way may have been answered before the act: it is repeated afterwards.
        Kinds shown in passing keep their pace unless `with_passing`.
        """
        due = self._interest if with_passing else self._interest - self._in_passing
        for kind in due:
            self._schedules[kind].failures = 0
        self._due_now |= due
        self.waiting_for_person = None
        self._force = True
        self._wake.set()

    def passing_changed(self) -> None:
        """Poll what is shown in passing soon: it is known to have changed."""
        self._changed |= self._in_passing
        self._wake.set()

    def interval_seconds(self, kind: Kind) -> float:
        """Return the seconds from one poll to the next in the present state.

        If a list takes several commands, an unchanged one is polled less often, by the number of
        commands that everything shown took: four commands a minute with the default intervals.
        """
        schedule = self._schedules[kind]
        seconds = self.pace.seconds[kind]
        if kind in self._in_passing:
            if self.store.answer_bytes.get(kind, 0) > _LARGE_ANSWER_BYTES:
                seconds = max(seconds, _PASSING_LARGE_SECONDS)
            elif kind in self._changed:
                seconds = _PASSING_CHANGED_SECONDS
            else:
                seconds = max(seconds, _PASSING_SECONDS)
        if not self.focused:
            seconds *= self.pace.unfocused_factor
        spared = (
            schedule.took_seconds / self.pace.controller_share
            if self.pace.controller_share > 0
            else 0.0
        )
        if not schedule.failures:
            resting = (
                self.pace.seconds[Kind.MINE] * self._shown_commands if schedule.is_quiet else 0.0
            )
            return max(seconds, resting, min(spared, _LONGEST_BACK_OFF_SECONDS))
        if schedule.retry_seconds is not None:
            return schedule.retry_seconds
        doublings = min(schedule.failures - 1, _MAX_DOUBLINGS)
        back_off = _FIRST_BACK_OFF_SECONDS * 2.0**doublings * (0.75 + 0.5 * schedule.jitter)
        # An abandoned command may have hung: that is not yet controller time.
        spared = min(spared, _FIRST_AFTER_GIVING_UP_SECONDS * 2.0**doublings)
        back_off = min(max(back_off, spared), _LONGEST_BACK_OFF_SECONDS)
        # The first failure may be momentary: retried sooner than usual.
        return back_off if schedule.failures == 1 else max(seconds, back_off)

    @property
    def _shown_commands(self) -> int:
        return sum(self._schedules[kind].commands for kind in self._interest - self._in_passing)

    def is_spared(self, kind: Kind) -> bool:
        """Whether it is polled less often than configured, as its answers take long."""
        schedule = self._schedules[kind]
        requested = self.pace.seconds[kind] * (1.0 if self.focused else self.pace.unfocused_factor)
        took = schedule.took_seconds
        return not schedule.failures and took > 1.5 * requested * self.pace.controller_share

    def next_in_seconds(self, kind: Kind) -> float:
        """Return the seconds until this kind is polled again; polls wait at the ceiling on commands."""
        if kind in self._due_now:
            return 0.0
        due_at = self._schedules[kind].queried_at + self.interval_seconds(kind)
        return max(due_at - self._monotonic(), self.store.budget.wait_seconds())

    def unanswered_seconds(self, kind: Kind | None = None) -> float:
        """Return the age of the oldest pending query, or of the one for a kind; 0 for none."""
        sent = [at for sent_kind, at in self._sent_at.items() if kind in (None, sent_kind)]
        return self._monotonic() - min(sent) if sent else 0.0

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"poll {self.store.name}")
            self._task.add_done_callback(_report)

    async def stop(self) -> None:
        tasks = [*self._polls]
        if self._task is not None:
            tasks.append(self._task)
            self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that was cancelled before its first step has not cleaned up.
        self._in_flight.clear()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if due := self._due_kinds():
                # Not awaited: a kind that takes a minute to answer does not hold up the others.
                self._in_flight.update(due)
                task = asyncio.create_task(
                    self.poll(due), name=f"poll {self.store.name} for {', '.join(due)}"
                )
                self._polls.add(task)
                task.add_done_callback(self._polls.discard)
                task.add_done_callback(_report)
            try:
                async with asyncio.timeout(self._pause_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _due_kinds(self) -> list[Kind]:
        free = self._interest - self._in_flight
        if self.waiting_for_person is not None:
            free &= self._due_now
        return [kind for kind in Kind if kind in free and self.next_in_seconds(kind) <= 0]

    def _pause_seconds(self) -> float | None:
        """Return the seconds until the next poll; None: until something happens."""
        if self.waiting_for_person is not None:
            return None
        waits = [self.next_in_seconds(kind) for kind in self._interest - self._in_flight]
        return max(0.0, min(waits)) if waits else None

    async def poll(self, kinds: Iterable[Kind]) -> None:
        """Poll some kinds at once, over parallel channels."""
        kinds = tuple(kinds)
        ages = {
            kind: 0.0 if kind in self._due_now else _SHARED_PART * self.interval_seconds(kind)
            for kind in kinds
        }
        self._in_flight.update(kinds)
        self._due_now.difference_update(kinds)
        self._changed.difference_update(kinds)
        began = self._monotonic()
        for kind in kinds:
            self._schedules[kind].queried_at = began
        force = self._force
        self._force = False
        try:
            await self.store.open(force=force)
            # The time to connect (a person may type a password) is not the controller's.
            self.waiting_for_person = None
            await asyncio.gather(*(self._poll_one(kind, ages[kind]) for kind in kinds))
        except HpcdashError as error:
            for kind in kinds:
                self._failed(kind, error, began)
        finally:
            self._in_flight.difference_update(kinds)
            self._wake.set()

    def _failed(self, kind: Kind, error: HpcdashError, began: float) -> None:
        schedule = self._schedules[kind]
        schedule.queried_at = self._monotonic()
        if isinstance(error, RateLimited):
            return
        schedule.failures += 1
        schedule.jitter = random.random()
        schedule.retry_seconds = None
        if isinstance(error, ConnectionFailed):
            retry_at = self.store.transport.health.retry_at
            if retry_at is not None:
                schedule.retry_seconds = max(0.0, retry_at - time.time())
            elif schedule.failures == 1:
                schedule.retry_seconds = 0.0
        if isinstance(error, CommandTimedOut):
            # Without an answer the controller may still be at it.
            schedule.took_seconds = (
                schedule.queried_at - began
                if error.answer_seconds is None
                else error.answer_seconds
            )
        if isinstance(error, NEEDS_A_PERSON):
            self.waiting_for_person = error

    async def _poll_one(self, kind: Kind, max_age_seconds: float) -> None:
        schedule = self._schedules[kind]
        began = self._sent_at[kind] = self._monotonic()
        known = self.store.snapshots.get(kind)
        sent = count_sent()
        try:
            await self.store.fetch(kind, max_age_seconds)
        except HpcdashError as error:
            self._failed(kind, error, began)
        else:
            schedule.failures = 0
            schedule.commands = max(1, len(sent))
            takes_several = self._shown_commands > len(self._interest - self._in_passing)
            schedule.is_quiet = takes_several and await asyncio.to_thread(
                _is_same, known, self.store.snapshots[kind]
            )
            # Windows that share an answer need the next one at the same time.
            schedule.queried_at = self._monotonic() - self.store.answer_ages.get(kind, 0.0)
            schedule.took_seconds = self.store.answer_seconds.get(kind, schedule.queried_at - began)
        finally:
            self._sent_at.pop(kind, None)
            self._in_flight.discard(kind)
            self._wake.set()


def _is_same(before: Snapshot | None, after: Snapshot) -> bool:
    """Whether two answers have the same rows in the same states, if they have states."""
    if before is None or before.table.num_rows != after.table.num_rows:
        return False
    names = [name for name in ("id", "name", "state", "reason") if name in after.table.column_names]
    return all(
        column_text(before.table[name]).equals(column_text(after.table[name])) for name in names
    )


def _report(task: asyncio.Task[None]) -> None:
    """Report a poll that ended by a fault of the program."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"{task.get_name()} ended", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
