"""When a log is looked at again: soon while it grows, seldom while it is still or nobody looks. Reads nothing."""

from __future__ import annotations

import asyncio

from hpcdash.services.cluster.poller import Poller

# Between two looks: while it grows, at most, and how much longer for each look that showed nothing new.
_SHORTEST_SECONDS = 0.5
_LONGEST_SECONDS = 4.0
_SLOWER = 1.25
# Looks take no more than a third of the line's time.
_LINE_SHARE = 3.0


class LogPace:
    """The pauses between looks; `poller` knows whether the terminal has the focus."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._wake = asyncio.Event()
        self._pause_seconds = _SHORTEST_SECONDS

    def hurry(self) -> None:
        """Look at once, and again soon."""
        self._pause_seconds = _SHORTEST_SECONDS
        self._wake.set()

    def begin(self) -> None:
        """A look begins: what is wanted from now on is for the next one."""
        self._wake.clear()

    async def wanted(self) -> None:
        """Wait until a look is wanted, however long that takes."""
        await self._wake.wait()

    def pause_after(self, is_new: bool, took_seconds: float, least_seconds: float) -> float:
        """How many seconds to rest after a look that took so long, and showed something new or did not."""
        self._pause_seconds = _SHORTEST_SECONDS if is_new else min(self._pause_seconds * _SLOWER, _LONGEST_SECONDS)
        return max(self._pause_seconds, least_seconds, _LINE_SHARE * took_seconds)

    async def rest(self, seconds: float) -> None:
        """Wait until something is wanted; longer without focus, but no longer than `seconds` once it is back."""
        rested = 0.0
        poller = self._poller
        while rested < seconds * (1.0 if poller.focused else poller.pace.unfocused_factor):
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                rested += seconds
            else:
                return
