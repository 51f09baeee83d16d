"""Sends a message by all ways at once: one that fails says so and stops no other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from msgspec import Struct

from hpcdash.config.watch_settings import (
    AppriseSettings,
    CommandSettings,
    MailSettings,
    NotifierSettings,
    TerminalSettings,
    WebhookSettings,
)
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.apprise import AppriseNotifier
from hpcdash.services.watch.notifiers.base import Notifier, NotifyFailed
from hpcdash.services.watch.notifiers.command import CommandNotifier
from hpcdash.services.watch.notifiers.mail import MailNotifier
from hpcdash.services.watch.notifiers.terminal import TerminalNotifier
from hpcdash.services.watch.notifiers.webhook import WebhookNotifier

MOST_ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0

Sleep = Callable[[float], Awaitable[None]]


class Delivery(Struct, frozen=True):
    """Result of one notifier's delivery: its success, attempts and problem, if any."""

    notifier: str
    reached: bool
    attempts: int
    problem: str = ""
    next_step: str = ""

    @property
    def words(self) -> str:
        """One line for a person."""
        if self.attempts == 0:
            return (
                f"cannot be sent: {self.problem}"
                if self.problem
                else f"would be sent: {self.notifier}"
            )
        if not self.problem:
            return f"sent: {self.notifier}"
        tries = f" ({self.attempts} attempts)" if self.attempts > 1 else ""
        how = "partly sent" if self.reached else "not sent"
        return f"{how}{tries}: {self.problem}" + (f" {self.next_step}" if self.next_step else "")


def notifier_for(settings: NotifierSettings) -> Notifier:
    """Raises UsageError for settings that cannot work."""
    match settings:
        case MailSettings():
            return MailNotifier(settings)
        case WebhookSettings():
            return WebhookNotifier(settings)
        case CommandSettings():
            return CommandNotifier(settings)
        case TerminalSettings():
            return TerminalNotifier(settings)
        case AppriseSettings():
            return AppriseNotifier(settings)


async def deliver(
    notifiers: Iterable[Notifier],
    message: Message,
    *,
    dry_run: bool = False,
    most_attempts: int = MOST_ATTEMPTS,
    sleep: Sleep = asyncio.sleep,
) -> tuple[Delivery, ...]:
    """One for each notifier, in their order; never raises for what a notifier does.

    With `dry_run` nothing is sent and `attempts` is 0; one that could not be sent has its problem
    all the same.
    """
    ways = list(notifiers)
    if dry_run:
        return tuple(Delivery(way.name, False, 0, getattr(way, "problem", "")) for way in ways)
    return tuple(
        await asyncio.gather(*(_deliver(way, message, most_attempts, sleep) for way in ways))
    )


async def _deliver(way: Notifier, message: Message, most_attempts: int, sleep: Sleep) -> Delivery:
    pause = FIRST_PAUSE_SECONDS
    attempt = 0
    while True:
        attempt += 1
        try:
            await way.send(message)
            return Delivery(way.name, True, attempt)
        except NotifyFailed as error:
            if error.is_lasting or attempt >= most_attempts:
                return Delivery(way.name, error.reached, attempt, error.message, error.next_step)
            wait = error.retry_seconds if error.retry_seconds is not None else pause
        except Exception as error:  # a fault of one way's own
            # Its message may contain the channel's secret.
            return Delivery(
                way.name, False, attempt, f"{way.name}: internal error ({type(error).__name__})"
            )
        # Many that watch the same cluster do not all come back at once.
        await sleep(min(wait, LONGEST_PAUSE_SECONDS) * random.uniform(1.0, 1.25))
        pause *= 3
