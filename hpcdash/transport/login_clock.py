"""Time limits of a login: short for network steps, the host's own for steps of a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hpcdash.transport.base import Health

T = TypeVar("T")
# A host usually ends a login after 120 s (sshd_config(5), LoginGraceTime). This limit is for a host
# that does not, or whose connection died unnoticed.
PERSON_SECONDS = 600.0
# A host that is silent for this long without a prompt probably waits for an approval elsewhere.
SILENT_SECONDS = 3.0
_CANCEL_SECONDS = 2.0


class LoginClock:
    """Limits the time of a login to one hop.

    Each step may take `seconds` before a person is needed, and `person_seconds` from
    `wait_for_person` on.
    """

    def __init__(
        self,
        seconds: float,
        health: Health,
        *,
        person_seconds: float = PERSON_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.seconds = seconds
        self.person_seconds = person_seconds
        self.awaits_person = False
        self._silent_seconds = silent_seconds
        self._health = health
        self._prompts = 0
        self._started_at = time.monotonic()
        self._step_at = self._started_at

    @property
    def elapsed_seconds(self) -> float:
        """Duration of this attempt."""
        return time.monotonic() - self._started_at

    @property
    def outlasted_network(self) -> bool:
        """Whether a step takes longer than the network's limit, so that a person must be needed."""
        return self.awaits_person and time.monotonic() - self._step_at > self.seconds

    def wait_for_person(self) -> None:
        """Start a step in which the host may wait for a person."""
        self.awaits_person = True
        self._step_at = time.monotonic()
        self._health.state = "asking"
        if self._health.waiting_since is None:
            self._health.waiting_since = self._step_at

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """Context in which a person reads and types."""
        self._prompts += 1
        self._step_at = time.monotonic()
        self._health.state = "asking"
        try:
            yield
        finally:
            self._prompts -= 1
            self._step_at = time.monotonic()
            self._health.state = "asking" if self.awaits_person else "connecting"

    async def limit(self, awaited: Awaitable[T], silent: Callable[[], None] = lambda: None) -> T:
        """Await a login; raises TimeoutError if a step takes too long.

        `silent` is called once if the host may wait for a person and has not prompted for a while.
        """
        self._started_at = time.monotonic()
        self._step_at = self._started_at
        self.awaits_person = False
        is_notified = False
        task = asyncio.ensure_future(awaited)
        try:
            while not task.done():
                waited = time.monotonic() - self._step_at
                may_await_person = self.awaits_person or self._prompts > 0
                limit = self.person_seconds if may_await_person else self.seconds
                if waited >= limit:
                    raise TimeoutError
                is_silent = self.awaits_person and not self._prompts
                if is_silent and not is_notified and waited >= self._silent_seconds:
                    is_notified = True
                    silent()
                # The limit may change meanwhile.
                await asyncio.wait({task}, timeout=min(limit - waited, self.seconds, 1.0))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
