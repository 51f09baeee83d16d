"""One round of a cluster's watchdogs: checks it, sends notifications, and saves the state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.config.settings import PoolSettings
from hpcdash.config.watch_settings import WatchSettings
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.watch.alerts import Alerts
from hpcdash.services.watch.cluster import Watching
from hpcdash.services.watch.judge import Judgement
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import Notifier, Sleep
from hpcdash.services.watch.pending import Round, tell
from hpcdash.services.watch.state import WatchFiles, WatchState, with_snoozed


class RoundReport(Struct, frozen=True):
    """Report of a round: the check, the notifications, the number of commands, other problems.

    `is_saved` is whether the next run of the watchdogs will know it.
    """

    check: Judgement
    notified: Round
    commands: int
    problems: tuple[str, ...] = ()
    is_saved: bool = True


async def watch_round(
    store: ClusterStore,
    settings: WatchSettings,
    files: WatchFiles,
    notifiers: Sequence[Notifier],
    *,
    shared: Sequence[PoolSettings] = (),
    dry_run: bool = False,
    sleep: Sleep | None = None,
) -> RoundReport:
    """Run one independent round: everything it knows of earlier ones is in `files`; `shared` are
    the pools shared there. With `dry_run`, nobody is notified and nothing is written. Raises
    HpcdashError if another process watches the cluster, or if that cannot be determined.

    If the state cannot be written, alerts are sent anyway, because the full disk may be the alert:
    once, as long as the same `files` are passed. The failed write is a problem of the first such
    round. A separate run (`--once`) finds on the lock what was sent, and sends nothing if it would
    send exactly that. If that cannot be recorded either, or something is new, everything is sent
    again.
    """
    with contextlib.nullcontext() if dry_run else files.alone():
        state, problem = files.read()
        before = state.read_alerts()
        watching = Watching(store, settings, state, shared=shared)
        spent = store.budget.per_minute
        is_remembered = not files.is_saved
        check = await watching.check()
        # Those of the last minute, as the budget counts.
        commands = max(0, store.budget.per_minute - spent)
        alerts = with_snoozed(before, settings.snoozed, files.read_snoozed())
        telling = partial(
            tell,
            alerts,
            check.findings,
            store.clock.now(),
            sleep=sleep or asyncio.sleep,
            cluster=store.title,
            settings=settings.alerts,
            unknown=check.unknown,
            find_ending=watching.find_ending,
        )
        if dry_run:
            reported = await telling(notifiers, dry_run=True)
            return RoundReport(check, reported, commands, (problem,) if problem else ())
        problems = [problem] if problem else []
        # Before anyone is notified, so that a full disk is known by then.
        _keep(files, state, before, problems)
        planned = await telling(notifiers, dry_run=True)
        parts = [f"{event.kind} {event.key}" for event in planned.events]
        parts += [f"{channel} {event.kind} {event.key}" for channel, event in planned.again]
        if parts and not is_remembered and files.was_announced(parts):
            reported = replace(
                await telling([_Knows(way.name) for way in notifiers]), deliveries=()
            )
            problems.append(
                "alerts were sent, but this could not be saved; this run will not send them again"
            )
        else:
            reported = await telling(notifiers)
        if _keep(files, state, reported.alerts, problems):
            files.clear_announced()
        elif any(delivery.reached for delivery in reported.deliveries):
            files.mark_announced(parts)
    return RoundReport(check, reported, commands, tuple(problems), files.is_saved)


def _keep(files: WatchFiles, state: WatchState, alerts: Alerts, problems: list[str]) -> bool:
    """Whether the state is written; where it is not, and was until now, that is a problem."""
    was_stored = files.is_saved
    try:
        files.write(state, alerts)
    except HpcdashError as error:
        if was_stored:
            problems.append(
                f"{error.message}; until then another run may send them again. {error.next_step}"
            )
        return False
    return True


class _Knows:
    """Stands for a recipient that was notified already."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, message: Message) -> None:
        return None
