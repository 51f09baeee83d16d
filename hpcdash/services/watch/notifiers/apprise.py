"""Alerts through apprise, where it is installed: Telegram, Matrix, ntfy and what else it knows.

Holds no address.
"""

from __future__ import annotations

import asyncio
import logging

from hpcdash.config.watch_settings import AppriseSettings
from hpcdash.domain.alerts import Severity
from hpcdash.errors import UsageError
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import Notifier, NotifyFailed


class AppriseNotifier(Notifier):
    """One message to all of its addresses."""

    def __init__(self, settings: AppriseSettings) -> None:
        if not settings.urls:
            raise UsageError("no Apprise URL is configured", "Add one of its URLs.")
        self._settings = settings
        services = sorted({url.partition("://")[0] for url in settings.urls if "://" in url})
        self.name = f"apprise ({', '.join(services) or 'no service'})"

    async def send(self, message: Message) -> None:
        """Raises NotifyFailed; apprise does not report which of several addresses failed."""
        try:
            import apprise
        except ImportError:
            step = "Install it: pip install 'hpcdash[apprise]'"
            raise NotifyFailed(
                f"{self.name}: apprise is not installed", step, is_lasting=True
            ) from None
        # Its log has the addresses, with their secrets.
        logging.getLogger("apprise").disabled = True
        kinds = {
            Severity.INFO: apprise.NotifyType.INFO,
            Severity.WARNING: apprise.NotifyType.WARNING,
            Severity.CRITICAL: apprise.NotifyType.FAILURE,
        }
        recipients = apprise.Apprise()
        unknown = sum(not recipients.add(url) for url in self._settings.urls)
        if unknown:
            count = len(self._settings.urls)
            text = f"{self.name}: Apprise does not recognize {unknown} of {count} URLs"
            step = "See its documentation for the URL of each service."
            raise NotifyFailed(text, step, is_lasting=True)
        try:
            async with asyncio.timeout(self._settings.limit_seconds):
                is_sent = await recipients.async_notify(
                    body=message.text, title=message.subject, notify_type=kinds[message.severity]
                )
        except TimeoutError:
            raise NotifyFailed(f"{self.name}: timed out") from None
        if not is_sent:
            # Some of several may have it: another try would send it twice.
            has_several = len(self._settings.urls) > 1
            text = f"{self.name}: some recipients were not reached"
            raise NotifyFailed(text, is_lasting=has_several, reached=has_several)
