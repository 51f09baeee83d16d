"""One round of telling: findings in, messages out, the alerts' next state back. Looks at nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hpcdash.watch.alerts import AlertEvent, Alerts
from hpcdash.watch.findings import Finding
from hpcdash.watch.message import message_of
from hpcdash.watch.notifiers.base import Notifier
from hpcdash.watch.notifiers.delivery import Delivery, Sleep, deliver, is_told
from hpcdash.watch.settings import AlertSettings


@dataclass(frozen=True, slots=True)
class Round:
    """The alerts' next state, what there was to tell and how it was told."""

    alerts: Alerts
    events: tuple[AlertEvent, ...]
    deliveries: tuple[Delivery, ...]


async def tell(
    alerts: Alerts,
    findings: Iterable[Finding],
    now: float,
    notifiers: Sequence[Notifier],
    *,
    cluster: str,
    settings: AlertSettings | None = None,
    unknown: Collection[str] = (),
    dry_run: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> Round:
    """What reached nobody is told again by the next round; with `dry_run` nothing is sent and the state stays."""
    after, events = alerts.step(findings, now, settings, unknown)
    if not events:
        return Round(alerts if dry_run else after, (), ())
    deliveries = await deliver(notifiers, message_of(events, cluster), dry_run=dry_run, sleep=sleep)
    if dry_run:
        return Round(alerts, events, deliveries)
    if not is_told(deliveries):
        for event in events:
            after = after.untold(event)
    return Round(after, events, deliveries)
