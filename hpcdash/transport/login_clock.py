"""How long a login may take, without the time in which a person reads and types. Knows no network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hpcdash.transport.base import Health

T = TypeVar("T")
_CANCEL_SECONDS = 2.0


class LoginClock:
    """Limits each network phase of a login; stands still while a person is asked, then starts anew."""

    def __init__(self, seconds: float, health: Health) -> None:
        self.seconds = seconds
        self._health = health
        self._asked = 0
        self._since = time.monotonic()

    @contextmanager
    def person(self) -> Iterator[None]:
        """While a person reads and types."""
        self._asked += 1
        self._health.state = "asking"
        try:
            yield
        finally:
            self._asked -= 1
            self._since = time.monotonic()
            self._health.state = "connecting"

    async def limit(self, awaited: Awaitable[T]) -> T:
        """Await something; TimeoutError once the network alone has taken too long."""
        self._since = time.monotonic()
        task = asyncio.ensure_future(awaited)
        try:
            while not task.done():
                left = self.seconds if self._asked else self._since + self.seconds - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=left)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
