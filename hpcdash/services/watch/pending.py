"""Notifications of a round: new ones and those a channel did not accept, and their delivery."""

from __future__ import annotations

import asyncio
from collections import Counter
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
from hpcdash.services.watch.notifiers.base import (
    MAX_ATTEMPTS,
    Delivery,
    Notifier,
    Sleep,
    deliver,
)

# What lasts is tried as long as it lasts; what is over, a moment, and what was for a channel that
# is gone so long.
LONGEST_OWED_SECONDS = 1.0 * DAY


class NotificationPlan(Struct):
    """Notifications that are sent now, those of a channel together and in the order of by_severity;
    those that wait; and those that are lost, with the reason.
    """

    sends: list[PendingNotification] = field(default_factory=list)
    waiting: list[PendingNotification] = field(default_factory=list)
    lost: list[tuple[PendingNotification, str]] = field(default_factory=list)

    def owed(self, reached: Collection[str]) -> tuple[PendingNotification, ...]:
        """Return the notifications still owed once the `reached` channels have accepted theirs."""
        taken = {one.key for one in self.sends if one.channel in reached}
        left = [one for one in self.sends if one.channel not in reached]
        return tuple(
            replace(one, is_for_all=one.is_for_all and one.key not in taken)
            for one in (*self.waiting, *left)
        )

    def lost_lines(self) -> tuple[str, ...]:
        """Format what is lost, a line for each channel and reason."""
        grouped: dict[tuple[str, str], list[PendingNotification]] = {}
        for one, why in self.lost:
            grouped.setdefault((one.channel, why), []).append(one)
        return tuple(
            f"{channel} was never notified: {many[0].ending or many[0].finding.text}"
            + (f" (and {len(many) - 1} more)" if len(many) > 1 else "")
            + f"; {why}"
            for (channel, why), many in grouped.items()
        )


def plan_round(
    alerts: Alerts,
    events: Iterable[AlertEvent],
    channels: Collection[str],
    now: float,
    settings: AlertSettings,
) -> NotificationPlan:
    """Plan the notifications of each channel; `alerts` are those after the step that gave the
    `events`.
    """
    new = {event.key: event for event in events}
    by_channel: dict[str, dict[str, PendingNotification]] = {channel: {} for channel in channels}
    for one in alerts.owed:
        by_channel.setdefault(one.channel, {})[one.key] = one
    for_all = {one.key: one for one in alerts.owed if one.is_for_all}
    plan = NotificationPlan()
    for channel, before in by_channel.items():
        is_here = channel in channels
        sends = []
        for key in dict.fromkeys((*before, *new, *for_all) if is_here else before):
            event = new.get(key)
            owed = before.get(key)
            if owed is None and key in for_all:
                # A new channel, if no channel accepted it so far.
                owed = replace(for_all[key], channel=channel)
                if key not in alerts.states and not owed.finding.is_moment:
                    continue
            if owed is None:
                assert event is not None
                # A channel that is new never heard of a trouble that has ended.
                known = event.told_to
                if not event.kind.is_end or known is None or channel in known:
                    sends.append(_fresh(channel, event))
                continue
            next_owed = _merged(owed, event, alerts.states.get(key), plan, now, is_here=is_here)
            if next_owed is None:
                continue
            if not is_here or alerts.keeps_back(next_owed, now, settings):
                plan.waiting.append(next_owed)
            else:
                sends.append(next_owed)
        plan.sends += sorted(sends, key=by_severity)
    return plan


def renamed(alerts: Alerts, names: Mapping[str, str]) -> Alerts:
    """With what was for a channel by an earlier name for it by that of now."""

    def channels_now(state: AlertState) -> tuple[str, ...] | None:
        if state.told_to is None:
            return None
        return tuple(names.get(channel, channel) for channel in state.told_to)

    states = {key: replace(one, told_to=channels_now(one)) for key, one in alerts.states.items()}
    owed = tuple(replace(one, channel=names.get(one.channel, one.channel)) for one in alerts.owed)
    return replace(alerts, states=states, owed=owed)


def build_event(owed: PendingNotification, now: float) -> AlertEvent:
    """Build the event for an owed notification as of now."""
    return AlertEvent(owed.kind, owed.finding, owed.since, now, owed.ending)


def _fresh(channel: str, event: AlertEvent) -> PendingNotification:
    is_known = event.kind is not AlertKind.RAISED
    return PendingNotification(
        channel,
        event.kind,
        event.finding,
        event.since,
        event.at,
        is_known,
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
        plan.lost.append((owed, why))
        return None
    if event is not None:
        kind = event.kind
        if not owed.is_known:
            kind = AlertKind.RAISED
        elif owed.kind is AlertKind.WORSENED and kind is not AlertKind.RAISED:
            kind = AlertKind.WORSENED
        return replace(owed, kind=kind, finding=event.finding, since=event.since, ending="")
    is_late = now - owed.owed_at > LONGEST_OWED_SECONDS
    is_lasting = not owed.kind.is_end and not owed.finding.is_moment
    if is_lasting and state is None:
        if not owed.is_known:
            plan.lost.append((owed, "it is resolved"))
        return None
    if is_late and not (is_lasting and is_here):
        plan.lost.append((owed, "it could not be delivered for a day"))
        return None
    return replace(owed, finding=state.finding) if is_lasting and state is not None else owed


class Round(Struct, frozen=True):
    """Result of a round: the alerts' next state, the events that no channel had accepted before,
    and the deliveries.

    wrong: number of problems. again: (channel, event) of what it did not accept before and was sent
    now. lost: notifications that a channel will never receive, as text.
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
    # By a name of its own: the second of a name is `NAME (2)`.
    ways: dict[str, Notifier] = {}
    counts: Counter[str] = Counter()
    for way in notifiers:
        counts[way.name] += 1
        count = counts[way.name]
        ways[way.name if count == 1 else f"{way.name} ({count})"] = way
    # A notifier without its secret is named by its place in the configuration.
    earlier = {getattr(way, "unready_name", ""): channel for channel, way in ways.items()}
    alerts = renamed(
        alerts, {name: channel for name, channel in earlier.items() if name and name not in ways}
    )
    after, events = alerts.step(findings, now, settings, unknown, find_ending)
    plan = plan_round(after, events, ways.keys(), now, settings)
    # A channel that failed the last time has one attempt: another round follows.
    deaf = {owed.channel for owed in alerts.owed}

    async def send(channel: str) -> Delivery:
        sends = [build_event(one, now) for one in plan.sends if one.channel == channel]
        (delivery,) = await deliver(
            [ways[channel]],
            build_message(sends, cluster),
            dry_run=dry_run,
            most_attempts=1 if channel in deaf else MAX_ATTEMPTS,
            sleep=sleep,
        )
        return delivery

    recipients = [*dict.fromkeys(one.channel for one in plan.sends)]
    deliveries = await asyncio.gather(*map(send, recipients))
    reported = {event.key: event for event in events}
    for one in plan.sends:
        if one.is_for_all:
            reported.setdefault(one.key, build_event(one, now))
    again = tuple(
        (one.channel, build_event(one, now)) for one in plan.sends if one.key not in reported
    )
    if not dry_run:
        reached = {
            channel
            for channel, delivery in zip(recipients, deliveries, strict=True)
            if delivery.reached
        }
        # A state has the channels that are notified of it, or owed it.
        notified: dict[str, set[str]] = {event.key: set() for event in events}
        for one in (*plan.waiting, *plan.sends):
            notified.setdefault(one.key, set()).add(one.channel)
        states = {
            key: replace(state, told_to=tuple(sorted({*(state.told_to or ()), *notified[key]})))
            if key in notified
            else state
            for key, state in after.states.items()
        }
        alerts = replace(after, states=states, owed=plan.owed(reached))
    return Round(
        alerts,
        tuple(sorted(reported.values(), key=by_severity)),
        tuple(deliveries),
        len(after.states),
        again,
        plan.lost_lines(),
    )
