"""Time limits of a login: short for the network's steps, the host's own for a person's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hpcdash.transport.base import Health

T = TypeVar("T")
# The host ends a login that takes too long, after 120 s as a rule (sshd_config(5), LoginGraceTime).
# This is for a host that never does, or whose connection has died unseen.
PERSON_SECONDS = 600.0
# A host that has not prompted and is silent for this long probably waits for an approval on another
# device.
SILENT_SECONDS = 3.0
_CANCEL_SECONDS = 2.0


class LoginClock:
    """Limits a login to one hop.

    Connecting, the key exchange and each answer before a person is needed may take `seconds`; from
    `wait_for_person` on each step may take `person_seconds`.
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
        self._began = self._since = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        """Duration of this attempt."""
        return time.monotonic() - self._began

    @property
    def outlasted_network(self) -> bool:
        """Whether the host took longer than the network may, which only waiting for a person
        explains.
        """
        return self.awaits_person and time.monotonic() - self._since > self.seconds

    def wait_for_person(self) -> None:
        """A step begins in which the host may wait for a person."""
        self.awaits_person = True
        self._since = time.monotonic()
        self._health.state = "asking"
        if self._health.waiting_since is None:
            self._health.waiting_since = self._since

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """While a person reads and types."""
        self._prompts += 1
        self._since = time.monotonic()
        self._health.state = "asking"
        try:
            yield
        finally:
            self._prompts -= 1
            self._since = time.monotonic()
            self._health.state = "asking" if self.awaits_person else "connecting"

    async def limit(self, awaited: Awaitable[T], silent: Callable[[], None] = lambda: None) -> T:
        """Await a login; TimeoutError once a step has taken too long.

        `silent` is called once when the host, which may wait for a person, has asked nothing for a
        while.
        """
        self._began = self._since = time.monotonic()
        self.awaits_person = False
        is_silent = False
        task = asyncio.ensure_future(awaited)
        try:
            while not task.done():
                waited = time.monotonic() - self._since
                is_persons = self.awaits_person or self._prompts > 0
                left = (self.person_seconds if is_persons else self.seconds) - waited
                if left <= 0:
                    raise TimeoutError
                if (
                    is_persons
                    and not self._prompts
                    and not is_silent
                    and waited >= self._silent_seconds
                ):
                    is_silent = True
                    silent()
                # The awaited side may change meanwhile.
                await asyncio.wait({task}, timeout=min(left, self.seconds, 1.0))
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
