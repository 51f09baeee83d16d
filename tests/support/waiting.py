"""Waits without a limit of their own: shortly before its hang guard a test fails with what it waits
for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
GUARD_SECONDS = 300.0
# Before the guard ends the test: a wait still says what it waited for, and fixtures clean up.
_REPORT_SECONDS = 10.0
_POLL_SECONDS = 0.02
_test_deadline: float | None = None


def begin_test(guard_seconds: float) -> None:
    global _test_deadline
    _test_deadline = time.monotonic() + guard_seconds - _REPORT_SECONDS


def end_test() -> None:
    global _test_deadline
    _test_deadline = None


def deadline() -> float:
    """Return the time.monotonic() at which a wait that begins now fails."""
    return (
        time.monotonic() + GUARD_SECONDS - _REPORT_SECONDS
        if _test_deadline is None
        else _test_deadline
    )


def wait_until(
    what: str,
    ready: Callable[[], T | None],
    evidence: Callable[[], str] = str,
    seconds: float | None = None,
) -> T:
    """Return the first true answer of `ready`.

    Raises AssertionError with `what` and the evidence at the deadline, or after `seconds`.
    """
    over = deadline() if seconds is None else time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < over, f"waited in vain for {what}\n{evidence()}".rstrip()
        time.sleep(_POLL_SECONDS)
    return found


async def until(holds: Callable[[], object], what: str = "") -> None:
    """Let the loop run until something holds. Raises AssertionError at the deadline."""
    over = deadline()
    while not holds():
        assert time.monotonic() < over, f"waited in vain for {what or holds}"
        await asyncio.sleep(0.002)
