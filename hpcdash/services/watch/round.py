"""One round of a cluster's watchdogs: checks it, sends notifications, and saves the state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.config.settings import PoolSettings
from hpcdash.config.watch_settings import AlertSettings, WatchSettings
from hpcdash.domain.alerts import Finding
from hpcdash.domain.units import DAY
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.watch.alerts import (
    AlertEvent,
    AlertKind,
    Alerts,
    FindEnding,
    PendingNotification,
    by_severity,
)
from hpcdash.services.watch.cluster import Watching
from hpcdash.services.watch.endings import find_ending
from hpcdash.services.watch.judge import Judgement
from hpcdash.services.watch.message import build_message
from hpcdash.services.watch.notifiers.base import (
    MAX_ATTEMPTS,
    Delivery,
    Notifier,
    Sleep,
    deliver,
)
from hpcdash.services.watch.state import WatchFiles, WatchState

# What lasts is tried as long as it lasts; what is over, a moment, and what was for a channel that
# is gone so long.
LONGEST_OWED_SECONDS = 1.0 * DAY


class NotificationPlan(Struct):
    """Notifications of each channel after a step."""

    # Those after the step, and its events.
    alerts: Alerts
    events: tuple[AlertEvent, ...]
    now: float
    # Sent now, those of a channel together and in the order of by_severity.
    sends: list[PendingNotification] = field(default_factory=list)
    # Held back.
    waiting: list[PendingNotification] = field(default_factory=list)
    # Never sent, with the reason.
    lost: list[tuple[PendingNotification, str]] = field(default_factory=list)

    @property
    def news(self) -> tuple[AlertEvent, ...]:
        """The events that no channel had accepted before."""
        events = {event.key: event for event in self.events}
        for owed in self.sends:
            if owed.is_for_all:
                events.setdefault(owed.key, owed.event(self.now))
        return tuple(sorted(events.values(), key=by_severity))

    @property
    def repeated(self) -> tuple[tuple[str, AlertEvent], ...]:
        """(channel, event) of what a channel had not accepted before, but others had."""
        news = {event.key for event in self.news}
        return tuple(
            (owed.channel, owed.event(self.now)) for owed in self.sends if owed.key not in news
        )

    @property
    def parts(self) -> list[str]:
        """Texts that are the same where the same is sent."""
        news = [f"{event.kind} {event.key}" for event in self.news]
        return news + [f"{channel} {event.kind} {event.key}" for channel, event in self.repeated]

    def delivered(self, reached: Collection[str]) -> Alerts:
        """Return the alerts once the `reached` channels have accepted theirs."""
        accepted = {owed.key for owed in self.sends if owed.channel in reached}
        left = [owed for owed in self.sends if owed.channel not in reached]
        owed = tuple(
            replace(pending, is_for_all=pending.is_for_all and pending.key not in accepted)
            for pending in (*self.waiting, *left)
        )
        # A state has the channels that are notified of it, or owed it.
        channels: dict[str, set[str]] = {event.key: set() for event in self.events}
        for pending in (*self.waiting, *self.sends):
            channels.setdefault(pending.key, set()).add(pending.channel)
        states = dict(self.alerts.states)
        for key in states.keys() & channels.keys():
            known = states[key].channels or ()
            states[key] = replace(states[key], channels=tuple(sorted(channels[key].union(known))))
        return replace(self.alerts, states=states, owed=owed)

    def lost_lines(self) -> tuple[str, ...]:
        """Format what is lost, a line for each channel and reason."""
        grouped: dict[tuple[str, str], list[PendingNotification]] = {}
        for owed, why in self.lost:
            grouped.setdefault((owed.channel, why), []).append(owed)
        lines = []
        for (channel, why), (first, *others) in grouped.items():
            more = f" (and {len(others)} more)" if others else ""
            text = first.ending or first.finding.text
            lines.append(f"{channel} was never notified: {text}{more}; {why}")
        return tuple(lines)


def plan_notifications(
    before: Alerts,
    channels: Mapping[str, Notifier],
    findings: Iterable[Finding],
    now: float,
    settings: AlertSettings,
    *,
    unknown: Collection[str] = (),
    find_ending: FindEnding = lambda finding: "",
) -> NotificationPlan:
    """Plan the notifications of each channel after a step of the alerts; see Alerts.step."""
    known_alerts = rename_channels(before, channels)
    alerts, events = known_alerts.step(findings, now, settings, unknown, find_ending)
    new = {event.key: event for event in events}
    by_channel: dict[str, dict[str, PendingNotification]] = {channel: {} for channel in channels}
    for owed in alerts.owed:
        by_channel.setdefault(owed.channel, {})[owed.key] = owed
    for_all = {owed.key: owed for owed in alerts.owed if owed.is_for_all}
    plan = NotificationPlan(alerts, events, now)
    for channel, owed_before in by_channel.items():
        is_here = channel in channels
        sends = []
        for key in dict.fromkeys((*owed_before, *new, *for_all) if is_here else owed_before):
            event = new.get(key)
            known = owed_before.get(key)
            if known is None and key in for_all:
                # A new channel, if no channel accepted it so far.
                known = replace(for_all[key], channel=channel)
                if key not in alerts.states and not known.finding.is_moment:
                    continue
            if known is None:
                assert event is not None
                # A channel that is new never heard of a trouble that has ended.
                if not event.kind.is_end or event.channels is None or channel in event.channels:
                    sends.append(_new_notification(channel, event, is_for_all=True))
                continue
            owed_now = _update_owed(known, event, plan, is_here=is_here)
            if owed_now is None:
                continue
            if not is_here or alerts.keeps_back(owed_now, now, settings):
                plan.waiting.append(owed_now)
            else:
                sends.append(owed_now)
        plan.sends += sorted(sends, key=by_severity)
    return plan


def _new_notification(channel: str, event: AlertEvent, *, is_for_all: bool) -> PendingNotification:
    return PendingNotification(
        channel,
        event.kind,
        event.finding,
        since=event.since,
        owed_at=event.happened_at,
        is_known=event.kind is not AlertKind.RAISED,
        is_for_all=is_for_all,
        ending=event.ending,
    )


def _update_owed(
    owed: PendingNotification,
    event: AlertEvent | None,
    plan: NotificationPlan,
    *,
    is_here: bool,
) -> PendingNotification | None:
    """Return an owed notification as of now, None if there is nothing to send any more."""
    if event is not None and event.kind.is_end:
        if owed.is_known:
            return _new_notification(owed.channel, event, is_for_all=owed.is_for_all)
        is_over = event.kind is AlertKind.RECOVERED
        plan.lost.append((owed, "resolved" if is_over else "no longer watched"))
        return None
    if event is not None:
        kind = event.kind
        if not owed.is_known:
            kind = AlertKind.RAISED
        elif owed.kind is AlertKind.WORSENED and kind is not AlertKind.RAISED:
            kind = AlertKind.WORSENED
        return replace(owed, kind=kind, finding=event.finding, since=event.since, ending="")
    state = plan.alerts.states.get(owed.key)
    is_lasting = not owed.kind.is_end and not owed.finding.is_moment
    if is_lasting and state is None:
        if not owed.is_known:
            plan.lost.append((owed, "resolved"))
        return None
    is_late = plan.now - owed.owed_at > LONGEST_OWED_SECONDS
    if is_late and not (is_lasting and is_here):
        plan.lost.append((owed, "delivery failed for 24 hours"))
        return None
    return replace(owed, finding=state.finding) if is_lasting and state is not None else owed


def name_channels(notifiers: Iterable[Notifier]) -> dict[str, Notifier]:
    """Return the notifiers by a name of their own: the second of a name is `NAME (2)`."""
    channels: dict[str, Notifier] = {}
    for notifier in notifiers:
        name = notifier.name
        number = 1
        while name in channels:
            number += 1
            name = f"{notifier.name} ({number})"
        channels[name] = notifier
    return channels


def rename_channels(alerts: Alerts, channels: Mapping[str, Notifier]) -> Alerts:
    """Return the alerts with the present names of channels whose secret was missing before."""
    names = {
        notifier.unready_name: channel
        for channel, notifier in channels.items()
        if notifier.unready_name not in ("", *channels)
    }
    states = dict(alerts.states)
    for key, state in states.items():
        if state.channels is not None:
            renamed = tuple(names.get(channel, channel) for channel in state.channels)
            states[key] = replace(state, channels=renamed)
    owed = tuple(
        replace(pending, channel=names.get(pending.channel, pending.channel))
        for pending in alerts.owed
    )
    return replace(alerts, states=states, owed=owed)


async def send_notifications(
    plan: NotificationPlan,
    channels: Mapping[str, Notifier],
    cluster: str,
    *,
    dry_run: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> dict[str, Delivery]:
    """Send the planned notifications; return the delivery of each channel."""
    # A channel that failed the last time has one attempt: another round follows.
    failing = {owed.channel for owed in plan.alerts.owed}

    async def send(channel: str) -> Delivery:
        events = [owed.event(plan.now) for owed in plan.sends if owed.channel == channel]
        return await deliver(
            channels[channel],
            build_message(events, cluster),
            dry_run=dry_run,
            most_attempts=1 if channel in failing else MAX_ATTEMPTS,
            sleep=sleep,
        )

    recipients = [*dict.fromkeys(owed.channel for owed in plan.sends)]
    deliveries = await asyncio.gather(*map(send, recipients))
    return dict(zip(recipients, deliveries, strict=True))


class RoundReport(Struct, frozen=True):
    """Report of a round: its check, the alerts' next state, and the notifications."""

    check: Judgement
    alerts: Alerts
    # Events that no channel had accepted before.
    events: tuple[AlertEvent, ...]
    # (channel, event) of what it did not accept before and was sent now.
    again: tuple[tuple[str, AlertEvent], ...]
    deliveries: tuple[Delivery, ...]
    # Notifications that a channel will never receive, as text.
    lost: tuple[str, ...]
    # Number of commands of the last minute, as the budget counts.
    commands: int
    problems: tuple[str, ...] = ()
    # Whether the next run of the watchdogs will know it.
    is_saved: bool = True


async def watch_round(
    store: ClusterStore,
    settings: WatchSettings,
    files: WatchFiles,
    notifiers: Sequence[Notifier],
    *,
    shared: Sequence[PoolSettings] = (),
    dry_run: bool = False,
    sleep: Sleep = asyncio.sleep,
) -> RoundReport:
    """Run one independent round: everything it knows of earlier ones is in `files`; `shared` are
    the pools shared there. With `dry_run`, nobody is notified and nothing is written. Raises
    HpcdashError if another process watches the cluster, or if that cannot be determined.
    """
    with contextlib.nullcontext() if dry_run else files.alone():
        state, problem = files.read()
        problems = [problem] if problem else []
        watching = Watching(store, settings, state, shared=shared)
        spent = store.budget.per_minute
        is_remembered = not files.is_saved
        check = await watching.check()
        commands = max(0, store.budget.per_minute - spent)
        channels = name_channels(notifiers)
        plan = plan_notifications(
            state.read_alerts().with_snoozed(settings.snoozed, files.read_snoozed()),
            channels,
            check.findings,
            store.clock.now(),
            settings.alerts,
            unknown=check.unknown,
            find_ending=partial(find_ending, watching),
        )
        send = partial(send_notifications, plan, channels, store.title, sleep=sleep)
        if dry_run:
            deliveries = await send(dry_run=True)
            alerts = plan.delivered(())
        else:
            deliveries, alerts = await _send_once(
                plan, send, files, state, problems, is_remembered=is_remembered
            )
    return RoundReport(
        check,
        alerts,
        plan.news,
        plan.repeated,
        deliveries=tuple(deliveries.values()),
        lost=plan.lost_lines(),
        commands=commands,
        problems=tuple(problems),
        is_saved=dry_run or files.is_saved,
    )


async def _send_once(
    plan: NotificationPlan,
    send: Callable[[], Awaitable[dict[str, Delivery]]],
    files: WatchFiles,
    state: WatchState,
    problems: list[str],
    *,
    is_remembered: bool,
) -> tuple[dict[str, Delivery], Alerts]:
    """Send what is planned, and save the state; return the deliveries and the next alerts.

    If the state cannot be written, alerts are sent anyway, because the full disk may be the alert:
    once, as long as the same `files` are used (`is_remembered`). A separate run finds on the lock
    what was sent, and sends nothing if it would send exactly that. If that cannot be recorded
    either, or something is new, everything is sent again.
    """
    # Before anyone is notified, so that a full disk is known by then.
    _save(files, state, state.read_alerts(), problems)
    parts = plan.parts
    if parts and not is_remembered and files.was_announced(parts):
        problems.append(
            "alerts were sent, but this could not be saved; this run will not send them again"
        )
        deliveries: dict[str, Delivery] = {}
        alerts = plan.delivered({pending.channel for pending in plan.sends})
    else:
        deliveries = await send()
        reached = {channel for channel, delivery in deliveries.items() if delivery.reached}
        alerts = plan.delivered(reached)
    if _save(files, state, alerts, problems):
        files.clear_announced()
    elif any(delivery.reached for delivery in deliveries.values()):
        files.mark_announced(parts)
    return deliveries, alerts


def _save(files: WatchFiles, state: WatchState, alerts: Alerts, problems: list[str]) -> bool:
    """Write the state; where that fails, and did not until now, that is a problem."""
    was_saved = files.is_saved
    try:
        files.write(state, alerts)
    except HpcdashError as error:
        if was_saved:
            problems.append(
                f"{error.message}; until then another run may send them again. {error.next_step}"
            )
        return False
    return True
