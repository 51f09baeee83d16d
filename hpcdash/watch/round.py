"""One round of telling: findings in, messages out, the alerts' next state back. Looks at nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from hpcdash.watch.alerts import AlertEvent, Alerts, EndingOf, is_over
from hpcdash.watch.findings import Finding
from hpcdash.watch.message import message_of
from hpcdash.watch.notifiers.base import Notifier
from hpcdash.watch.notifiers.delivery import MOST_ATTEMPTS, Delivery, Sleep, deliver
from hpcdash.watch.owed import (
    again_of,
    channels_of,
    event_of,
    lost_words,
    new_of,
    owed_after,
    plan_round,
    renamed,
    told_to_after,
)
from hpcdash.watch.settings import AlertSettings


@dataclass(frozen=True, slots=True)
class Round:
    """The alerts' next state, what there was to tell that nobody knew yet, and how it was told.

    wrong: how many troubles there are. again: (channel, what it did not take before and was sent now). lost: what a
    channel will never be told, in words.
    """

    alerts: Alerts
    events: tuple[AlertEvent, ...]
    deliveries: tuple[Delivery, ...]
    wrong: int
    again: tuple[tuple[str, AlertEvent], ...] = ()
    lost: tuple[str, ...] = ()


async def tell(
    alerts: Alerts,
    findings: Iterable[Finding],
    now: float,
    notifiers: Sequence[Notifier],
    *,
    cluster: str,
    settings: AlertSettings | None = None,
    unknown: Collection[str] = (),
    ending_of: EndingOf = is_over,
    dry_run: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> Round:
    """What a channel does not take is told to it alone by the next rounds; with `dry_run` nothing is sent and the state
    stays."""
    settings = settings or AlertSettings()
    ways = dict(zip(channels_of(way.name for way in notifiers), notifiers, strict=True))
    # One whose secret was missing had no name but its place in the configuration.
    earlier = {getattr(way, "unready_name", ""): channel for channel, way in ways.items()}
    alerts = renamed(alerts, {name: channel for name, channel in earlier.items() if name and name not in ways})
    after, events = alerts.step(findings, now, settings, unknown, ending_of)
    plan = plan_round(after, events, tuple(ways), now, settings)
    # Who did not take something the last time is not waited for: another round comes.
    deaf = {owed.channel for owed in alerts.owed}

    async def send(channel: str) -> Delivery:
        message = message_of([event_of(one, now) for one in plan.sends[channel]], cluster)
        attempts = 1 if channel in deaf else MOST_ATTEMPTS
        (delivery,) = await deliver([ways[channel]], message, dry_run=dry_run, most_attempts=attempts, sleep=sleep)
        return delivery

    deliveries = await asyncio.gather(*map(send, plan.sends))
    told = new_of(plan, events, now)
    again = again_of(plan, {event.key for event in told}, now)
    if not dry_run:
        reached = {channel for channel, delivery in zip(plan.sends, deliveries, strict=True) if delivery.reached}
        alerts = replace(after, states=told_to_after(after.states, plan, events), owed=owed_after(plan, reached))
    return Round(alerts, told, tuple(deliveries), len(after.states), again, tuple(lost_words(plan.lost)))
