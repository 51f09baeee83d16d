"""Base of all notifiers: their interface, their failures, and the delivery of a message."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from msgspec import Struct

from hpcdash.domain.text import visible
from hpcdash.errors import HpcdashError
from hpcdash.services.watch.message import Message

T = TypeVar("T")
_SHORTEST_SECRET = 4
_EXCERPT_CHARACTERS = 300
MAX_ATTEMPTS = 3
VERIFY_STEP = "Set ca_file to the CA certificates that verify it."
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0

Sleep = Callable[[float], Awaitable[None]]


class NotifyFailed(HpcdashError):
    """A message that was not sent.

    `is_lasting`: trying again is of no use. `reached`: some recipients have it. `retry_seconds` is
    the pause that the other side requested.
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


class Notifier:
    """A channel of notifications."""

    # Kind and recipient, as text that may be shown: `e-mail to a@b.org`.
    name: str
    # Name while its secret is missing; '' for the same.
    unready_name: str = ""
    # Reason that nothing can be sent, '' for none.
    problem: str = ""

    async def send(self, message: Message) -> None:
        """Return once it was taken over; raises NotifyFailed."""
        raise NotImplementedError


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return another's text as one short visible line, with `***` for each secret."""
    # The longest first: one may lie within another.
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    text = visible(" ".join(text.split()))
    return text if len(text) <= _EXCERPT_CHARACTERS else text[:_EXCERPT_CHARACTERS] + "…"


async def in_thread(work: Callable[[], T], limit_seconds: float) -> T:
    """Run what blocks; raises TimeoutError after the limit.

    What still blocks then does not keep the program from ending.
    """
    future: Future[T] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            result = work()
        except BaseException as error:  # handed to who waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="hpcdash-notifier", daemon=True).start()
    async with asyncio.timeout(limit_seconds):
        return await asyncio.wrap_future(future)


class Delivery(Struct, frozen=True):
    """Result of one notifier's delivery: its success, attempts and problem, if any."""

    notifier: str
    reached: bool
    attempts: int
    problem: str = ""
    next_step: str = ""

    @property
    def summary(self) -> str:
        """One line for a person."""
        if self.attempts == 0 and self.problem:
            return f"cannot be sent: {self.problem}"
        if not self.problem:
            return f"{'sent' if self.attempts else 'would be sent'}: {self.notifier}"
        tries = f" ({self.attempts} attempts)" if self.attempts > 1 else ""
        how = "partly sent" if self.reached else "not sent"
        return f"{how}{tries}: {self.problem}" + (f" {self.next_step}" if self.next_step else "")


async def deliver(
    notifier: Notifier,
    message: Message,
    *,
    dry_run: bool = False,
    most_attempts: int = MAX_ATTEMPTS,
    sleep: Sleep = asyncio.sleep,
) -> Delivery:
    """Send a message; never raises for what a notifier does.

    With `dry_run` nothing is sent and `attempts` is 0; one that could not be sent has its problem
    all the same.
    """
    name = notifier.name
    if dry_run:
        return Delivery(name, False, 0, notifier.problem)
    pause = FIRST_PAUSE_SECONDS
    attempt = 0
    while True:
        attempt += 1
        try:
            await notifier.send(message)
            return Delivery(name, True, attempt)
        except NotifyFailed as error:
            if error.is_lasting or attempt >= most_attempts:
                return Delivery(name, error.reached, attempt, error.message, error.next_step)
            wait = error.retry_seconds if error.retry_seconds is not None else pause
        except Exception as error:  # a fault of the notifier
            # Its message may contain the channel's secret.
            problem = f"{name}: internal error ({type(error).__name__})"
            return Delivery(name, False, attempt, problem)
        # Many that watch the same cluster do not all come back at once.
        await sleep(min(wait, LONGEST_PAUSE_SECONDS) * random.uniform(1.0, 1.25))
        pause *= 3
