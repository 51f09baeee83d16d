"""Keeps a cluster's commands under a ceiling a minute, and tells how many there were and how long the last took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0
# Of the ceiling reads of files leave so much for questions, and get so much whatever is asked.
_LEFT_FOR_QUESTIONS = 2
_LEAST_READS_SHARE = 0.25


class CommandBudget:
    """Counts commands over the last minute; `per_minute` is the ceiling."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.ceiling = per_minute
        self.last_seconds: float | None = None
        self._monotonic = monotonic
        self._sent: deque[float] = deque()
        self._next_read_at = float("-inf")

    def _forget_old(self) -> None:
        oldest = self._monotonic() - WINDOW_SECONDS
        while self._sent and self._sent[0] <= oldest:
            self._sent.popleft()

    @property
    def per_minute(self) -> int:
        """Commands sent in the last minute."""
        self._forget_old()
        return len(self._sent)

    def wait_seconds(self, commands: int = 1, *, times: int = 1) -> float:
        """How long until `commands` more fit under the ceiling, or `times` the ceiling; 0 when they fit now."""
        self._forget_old()
        excess = len(self._sent) + commands - times * self.ceiling
        if excess <= 0:
            return 0.0
        frees = self._sent[min(excess, len(self._sent)) - 1] if self._sent else self._monotonic()
        return max(0.0, frees + WINDOW_SECONDS - self._monotonic())

    def spend(self) -> None:
        """Note that a command is sent now."""
        self._sent.append(self._monotonic())

    def reserve_read_seconds(self) -> float:
        """How long to wait before a file that is followed is read: each call has a turn of its own, in their order.

        Reads are no questions to the scheduler, but commands all the same: evenly apart, they take what the questions
        of the last minute leave of the ceiling.
        """
        left = self.ceiling - self.per_minute - _LEFT_FOR_QUESTIONS
        now = self._monotonic()
        turn = max(now, self._next_read_at)
        self._next_read_at = turn + WINDOW_SECONDS / max(left, _LEAST_READS_SHARE * self.ceiling)
        return turn - now

    def answered(self, seconds: float) -> None:
        """Note how long a command took to answer."""
        self.last_seconds = seconds
