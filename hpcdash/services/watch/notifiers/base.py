"""Base of all notifiers: their interface, their failures, and the removal of secrets from texts.

Sends nothing itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.watch.message import Message

T = TypeVar("T")
_SHORTEST_SECRET = 4
_EXCERPT_CHARACTERS = 300


class NotifyFailed(HpcdashError):
    """A message that was not sent; `is_lasting` where trying again is of no use, `reached` where
    some have it.

    retry_seconds: how long the other side asked to be left alone, None where it did not.
    """

    def __init__(
        self,
        message: str,
        next_step: str = "",
        *,
        is_lasting: bool = False,
        reached: bool = False,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message, next_step)
        self.is_lasting = is_lasting
        self.reached = reached
        self.retry_seconds = retry_seconds


class Notifier(Protocol):
    """A way to tell someone."""

    @property
    def name(self) -> str:
        """Kind and recipient, as text that may be shown: `e-mail to a@b.org`."""
        ...

    async def send(self, message: Message) -> None:
        """Returns once it was taken over; raises NotifyFailed."""
        ...


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Words of another's as one short visible line, with `***` for each secret."""
    # The longest first: one may lie within another.
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    text = visible(" ".join(text.split()))
    return text if len(text) <= _EXCERPT_CHARACTERS else text[:_EXCERPT_CHARACTERS] + "…"


async def in_thread(work: Callable[[], T], limit_seconds: float) -> T:
    """Runs what blocks; raises TimeoutError after the limit.

    What blocks still then keeps nobody from leaving.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        raised: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # handed to who waits
            raised = error
        try:
            loop.call_soon_threadsafe(settle, result, raised)
        except RuntimeError:
            # The loop was closed: no caller waits.
            pass

    threading.Thread(target=run, name="hpcdash-notifier", daemon=True).start()
    async with asyncio.timeout(limit_seconds):
        return await future
