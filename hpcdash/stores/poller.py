"""Asks one cluster at the pace its views need and its controller can bear; one poll serves every view."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hpcdash.errors import (
    AuthenticationFailed,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    RateLimited,
)
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.snapshots import Kind

_LONGEST_BACK_OFF_SECONDS = 300.0
_FIRST_BACK_OFF_SECONDS = 5.0
# What a person has to settle: asked again only when they say so.
NEEDS_A_PERSON = (AuthenticationFailed, HostKeyChanged, HostKeyRefused)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often each kind is asked, in seconds; `controller_share` is the most of the controller's time we take."""

    seconds: Mapping[Kind, float]
    unfocused_factor: float = 4.0
    controller_share: float = 0.1


@dataclass(slots=True)
class _Schedule:
    """When a kind was last asked (monotonic), how long it took, and how often in a row it failed."""

    asked_at: float = float("-inf")
    took_seconds: float = 0.0
    failures: int = 0
    jitter: float = field(default_factory=random.random)


class Poller:
    """Keeps the kinds of `interest` fresh. One's own jobs are always of interest: that is what alarms hang on."""

    def __init__(
        self, store: ClusterStore, pace: Pace, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.pace = pace
        self.focused = True
        self.waiting_for_person: HpcdashError | None = None
        self._interest: frozenset[Kind] = frozenset({Kind.MINE})
        self._schedules: dict[Kind, _Schedule] = {kind: _Schedule() for kind in Kind}
        self._monotonic = monotonic
        self._force = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def show(self, kinds: Iterable[Kind]) -> None:
        """Which kinds are on the screen now, besides one's own jobs."""
        self._interest = frozenset({Kind.MINE, *kinds})
        self._wake.set()

    def focus(self, focused: bool) -> None:
        """Whether a person looks; without focus each kind is asked `unfocused_factor` times less often."""
        self.focused = focused
        self._wake.set()

    def ask_now(self) -> None:
        """Ask for all that is shown at once: a person asked, or has just acted."""
        for kind in self._interest:
            schedule = self._schedules[kind]
            schedule.asked_at = float("-inf")
            schedule.failures = 0
        self.waiting_for_person = None
        self._force = True
        self._wake.set()

    def interval_seconds(self, kind: Kind) -> float:
        """How long from one question to the next, as things stand."""
        schedule = self._schedules[kind]
        seconds = self.pace.seconds[kind]
        if not self.focused:
            seconds *= self.pace.unfocused_factor
        if self.pace.controller_share > 0:
            seconds = max(seconds, schedule.took_seconds / self.pace.controller_share)
        if schedule.failures:
            back_off = _FIRST_BACK_OFF_SECONDS * 2 ** (schedule.failures - 1) * (0.75 + 0.5 * schedule.jitter)
            seconds = max(seconds, min(back_off, _LONGEST_BACK_OFF_SECONDS)) if schedule.failures > 1 else back_off
        return seconds

    def next_in_seconds(self, kind: Kind) -> float:
        """How long until this kind is asked again."""
        return self._schedules[kind].asked_at + self.interval_seconds(kind) - self._monotonic()

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"poll {self.store.name}")
            self._task.add_done_callback(_report)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if self.waiting_for_person is None:
                due = [kind for kind in Kind if kind in self._interest and self.next_in_seconds(kind) <= 0]
                if due:
                    await self.poll(due)
                    continue
                timeout = min(self.next_in_seconds(kind) for kind in self._interest)
            else:
                timeout = None
            try:
                await asyncio.wait_for(self._wake.wait(), timeout)
            except TimeoutError:
                continue

    async def poll(self, kinds: Iterable[Kind]) -> None:
        """Ask for some kinds at once, over channels in parallel."""
        kinds = list(kinds)
        try:
            force, self._force = self._force, False
            if self.store.probe is None or force:
                await self.store.open(force=force)
        except HpcdashError as error:
            self.store.connection_error = error
            if isinstance(error, NEEDS_A_PERSON):
                self.waiting_for_person = error
            for kind in kinds:
                self._failed(kind)
            self.store.tell_health()
            return
        await asyncio.gather(*(self._poll_one(kind) for kind in kinds))

    def _failed(self, kind: Kind) -> None:
        schedule = self._schedules[kind]
        schedule.asked_at = self._monotonic()
        schedule.failures += 1
        schedule.jitter = random.random()

    async def _poll_one(self, kind: Kind) -> None:
        schedule = self._schedules[kind]
        began = self._monotonic()
        try:
            await self.store.fetch(kind)
        except RateLimited:
            schedule.asked_at = self._monotonic()
            self.store.tell_health()
            return
        except HpcdashError as error:
            self._failed(kind)
            if isinstance(error, NEEDS_A_PERSON):
                self.waiting_for_person = error
            return
        schedule.failures = 0
        schedule.asked_at = self._monotonic()
        schedule.took_seconds = self._monotonic() - began


def _report(task: asyncio.Task[None]) -> None:
    """A poller that ends by an error of our own is no silent thing."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"{task.get_name()} ended", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
