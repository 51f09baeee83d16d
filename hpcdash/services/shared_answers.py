"""Answers that many wait for and one question gives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedAnswers(Generic[K, T]):
    """Cache of answers for `seconds`; simultaneous requests for a key share one query."""

    def __init__(self, seconds: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._answers: dict[K, tuple[float, T]] = {}
        self._running: dict[K, asyncio.Task[T]] = {}

    async def get(self, key: K, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return the answer; raises the errors of `fetch`, to everyone who waits for it."""
        known = self._answers.get(key)
        if known is not None and self._monotonic() - known[0] < self._seconds:
            return known[1]
        query = self._running.get(key)
        if query is None:
            query = self._running[key] = asyncio.ensure_future(self._share(key, fetch))
            # No caller may be waiting any more when it fails.
            query.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(query)

    def forget(self, key: K) -> None:
        """Have it asked again by whoever asks next, also where a question is on its way."""
        self._answers.pop(key, None)
        self._running.pop(key, None)

    async def _share(self, key: K, fetch: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await fetch()
            if self._running.get(key) is asyncio.current_task():
                self._answers[key] = (self._monotonic(), answer)
            return answer
        finally:
            if self._running.get(key) is asyncio.current_task():
                del self._running[key]
