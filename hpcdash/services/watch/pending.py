"""Notifications of a round: new ones and those a channel did not accept, and their delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.config.watch_settings import AlertSettings
from hpcdash.domain.alerts import Finding
from hpcdash.domain.units import DAY
from hpcdash.services.watch.alerts import (
    AlertEvent,
    AlertKind,
    Alerts,
    AlertState,
    EndingOf,
    PendingNotification,
    by_severity,
    is_over,
)
from hpcdash.services.watch.message import build_message
from hpcdash.services.watch.notifiers.base import Notifier
from hpcdash.services.watch.notifiers.delivery import MOST_ATTEMPTS, Delivery, Sleep, deliver

# What lasts is tried as long as it lasts; what is over, a moment, and what was for a channel that
# is gone so long.
LONGEST_OWED_SECONDS = 1.0 * DAY


class Lost(Struct, frozen=True):
    """Notification that a channel will never receive, and the reason."""

    channel: str
    owed: PendingNotification
    why: str


class NotificationPlan(Struct):
    """Notifications that each channel is sent now, in the order of by_severity; those that wait,
    and those that are lost.
    """

    sends: dict[str, tuple[PendingNotification, ...]] = field(default_factory=dict)
    waiting: list[PendingNotification] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)


def plan_round(
    alerts: Alerts,
    events: Iterable[AlertEvent],
    channels: Sequence[str],
    now: float,
    settings: AlertSettings,
) -> NotificationPlan:
    """`alerts` are those after the step that gave the `events`; each of `channels` is another
    one.
    """
    new = {event.key: event for event in events}
    by_channel: dict[str, dict[str, PendingNotification]] = {}
    for one in alerts.owed:
        by_channel.setdefault(one.channel, {})[one.key] = one
    for_all = {one.key: one for one in alerts.owed if one.is_for_all}
    plan = NotificationPlan()
    for channel in dict.fromkeys((*channels, *by_channel)):
        before = by_channel.get(channel, {})
        is_here = channel in channels
        keys = (
            (*before, *(key for key in (*new, *for_all) if key not in before))
            if is_here
            else tuple(before)
        )
        sends = []
        for key in dict.fromkeys(keys):
            event = new.get(key)
            owed: PendingNotification | None = before.get(key)
            if owed is None and key in for_all:
                # A new channel, if no channel accepted it so far.
                owed = replace(for_all[key], channel=channel)
                if key not in alerts.states and not owed.finding.is_moment:
                    continue
            if owed is None:
                assert event is not None
                told_to = event.before.told_to
                if event.kind.is_end and told_to is not None and channel not in told_to:
                    # A channel that is new: it never heard of that trouble.
                    continue
                sends.append(_fresh(channel, event))
                continue
            next_owed = _merged(owed, event, alerts.states.get(key), plan, now, is_here=is_here)
            if next_owed is None:
                continue
            if not is_here or alerts.keeps_back(next_owed, now, settings):
                plan.waiting.append(next_owed)
            else:
                sends.append(next_owed)
        if sends:
            plan.sends[channel] = tuple(sorted(sends, key=by_severity))
    return plan


def renamed(alerts: Alerts, names: Mapping[str, str]) -> Alerts:
    """With what was for a channel by an earlier name for it by that of now."""
    if not names:
        return alerts
    states = {
        key: state
        if state.told_to is None
        else replace(state, told_to=tuple(names.get(channel, channel) for channel in state.told_to))
        for key, state in alerts.states.items()
    }
    owed = tuple(replace(one, channel=names.get(one.channel, one.channel)) for one in alerts.owed)
    return replace(alerts, states=states, owed=owed)


def owed_after(plan: NotificationPlan, reached: Collection[str]) -> tuple[PendingNotification, ...]:
    """Return the notifications still owed once the `reached` channels have accepted theirs."""
    taken = {one.key for channel in reached for one in plan.sends[channel]}
    left = [one for channel, sends in plan.sends.items() if channel not in reached for one in sends]
    return tuple(
        replace(one, is_for_all=one.is_for_all and one.key not in taken)
        for one in (*plan.waiting, *left)
    )


def notified_after(
    states: Mapping[str, AlertState], plan: NotificationPlan, events: Iterable[AlertEvent]
) -> dict[str, AlertState]:
    """The states with the channels that are told of each, or owed it."""
    reported: dict[str, set[str]] = {event.key: set() for event in events}
    for one in (*plan.waiting, *(one for sends in plan.sends.values() for one in sends)):
        reported.setdefault(one.key, set()).add(one.channel)
    return {
        key: replace(state, told_to=tuple(sorted({*(state.told_to or ()), *reported[key]})))
        if key in reported
        else state
        for key, state in states.items()
    }


def build_event(owed: PendingNotification, now: float) -> AlertEvent:
    """Build the event for an owed notification as of now."""
    before = AlertState(owed.finding, owed.since)
    return AlertEvent(owed.kind, owed.finding, owed.since, now, before, owed.ending)


def format_lost(lost: Iterable[Lost]) -> list[str]:
    """A line for each channel and reason."""
    grouped: dict[tuple[str, str], list[PendingNotification]] = {}
    for one in lost:
        grouped.setdefault((one.channel, one.why), []).append(one.owed)
    return [
        f"{channel} was never notified: {many[0].ending or many[0].finding.words}"
        + (f" (and {len(many) - 1} more)" if len(many) > 1 else "")
        + f"; {why}"
        for (channel, why), many in grouped.items()
    ]


def parse_channels(names: Iterable[str]) -> list[str]:
    """A name for each of several notifiers, whose own may be the same: the second of a name is
    `NAME (2)`.
    """
    counts: dict[str, int] = {}
    channels = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        channels.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return channels


def new_notifications(
    plan: NotificationPlan, events: Sequence[AlertEvent], now: float
) -> tuple[AlertEvent, ...]:
    """Return the events that no channel has accepted yet: the step's, and earlier ones."""
    known = {event.key for event in events}
    earlier: Mapping[str, AlertEvent] = {
        one.key: build_event(one, now)
        for sends in plan.sends.values()
        for one in sends
        if one.is_for_all and one.key not in known
    }
    together = (*events, *earlier.values())
    return tuple(sorted(together, key=by_severity))


def due_again(
    plan: NotificationPlan, reported: Collection[str], now: float
) -> tuple[tuple[str, AlertEvent], ...]:
    """Return (channel, event) for channels that did not accept what another one has accepted.

    `reported` are the keys that no channel has accepted yet.
    """
    return tuple(
        (channel, build_event(one, now))
        for channel, sends in plan.sends.items()
        for one in sends
        if one.key not in reported
    )


def _fresh(channel: str, event: AlertEvent) -> PendingNotification:
    is_first = event.kind is AlertKind.RAISED
    return PendingNotification(
        channel,
        event.kind,
        event.finding,
        event.since,
        event.at,
        is_known=not is_first,
        is_for_all=True,
        ending=event.ending,
    )


def _merged(
    owed: PendingNotification,
    event: AlertEvent | None,
    state: AlertState | None,
    plan: NotificationPlan,
    now: float,
    *,
    is_here: bool,
) -> PendingNotification | None:
    """Merge an owed notification with a new event, or none.

    None if there is nothing to send any more.
    """
    if event is not None and event.kind.is_end:
        if owed.is_known:
            return replace(_fresh(owed.channel, event), is_for_all=owed.is_for_all)
        why = "it is resolved" if event.kind is AlertKind.RECOVERED else "it is no longer watched"
        plan.lost.append(Lost(owed.channel, owed, why))
        return None
    if event is not None:
        if not owed.is_known or event.kind is AlertKind.RAISED:
            kind = AlertKind.RAISED
        else:
            kind = (
                AlertKind.WORSENED if AlertKind.WORSENED in (owed.kind, event.kind) else event.kind
            )
        return replace(owed, kind=kind, finding=event.finding, since=event.since, ending="")
    is_late = now - owed.owed_at > LONGEST_OWED_SECONDS
    is_lasting = not owed.kind.is_end and not owed.finding.is_moment
    if is_lasting and state is None:
        if not owed.is_known:
            plan.lost.append(Lost(owed.channel, owed, "it is resolved"))
        return None
    if is_late and not (is_lasting and is_here):
        plan.lost.append(Lost(owed.channel, owed, "it could not be delivered for a day"))
        return None
    return replace(owed, finding=state.finding) if is_lasting and state is not None else owed


class Round(Struct, frozen=True):
    """The alerts' next state, what there was to tell that nobody knew yet, and how it was told.

    wrong: how many troubles there are. again: (channel, what it did not take before and was sent
    now). lost: what a channel will never be told, in words.
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
    find_ending: EndingOf = is_over,
    dry_run: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> Round:
    """Send the notifications of a round.

    Later rounds repeat a notification only to the channels that did not accept it. With `dry_run`
    nothing is sent and the state stays.
    """
    settings = settings or AlertSettings()
    ways = dict(zip(parse_channels(way.name for way in notifiers), notifiers, strict=True))
    # One whose secret was missing had no name but its place in the configuration.
    earlier = {getattr(way, "unready_name", ""): channel for channel, way in ways.items()}
    alerts = renamed(
        alerts, {name: channel for name, channel in earlier.items() if name and name not in ways}
    )
    after, events = alerts.step(findings, now, settings, unknown, find_ending)
    plan = plan_round(after, events, tuple(ways), now, settings)
    # Who did not take something the last time is not waited for: another round comes.
    deaf = {owed.channel for owed in alerts.owed}

    async def send(channel: str) -> Delivery:
        message = build_message([build_event(one, now) for one in plan.sends[channel]], cluster)
        attempts = 1 if channel in deaf else MOST_ATTEMPTS
        (delivery,) = await deliver(
            [ways[channel]], message, dry_run=dry_run, most_attempts=attempts, sleep=sleep
        )
        return delivery

    deliveries = await asyncio.gather(*map(send, plan.sends))
    reported = new_notifications(plan, events, now)
    again = due_again(plan, {event.key for event in reported}, now)
    if not dry_run:
        reached = {
            channel
            for channel, delivery in zip(plan.sends, deliveries, strict=True)
            if delivery.reached
        }
        alerts = replace(
            after, states=notified_after(after.states, plan, events), owed=owed_after(plan, reached)
        )
    return Round(
        alerts, reported, tuple(deliveries), len(after.states), again, tuple(format_lost(plan.lost))
    )
