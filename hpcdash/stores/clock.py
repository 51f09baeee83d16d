"""What time it is: the machine's, or a recording's, where ages do not move."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, for ages and times on the screen."""

    def now(self) -> float: ...


class SystemClock:
    def now(self) -> float:
        return time.time()


class FrozenClock:
    """Stands still at the moment a case was recorded."""

    def __init__(self, epoch_seconds: float) -> None:
        self._epoch_seconds = epoch_seconds

    def now(self) -> float:
        return self._epoch_seconds
