"""One round of a cluster's watchdogs: looks, tells, keeps what is to be remembered. Knows no screen."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.watch_judge import Look
from hpcdash.stores.watch_state import WatchFiles, with_snoozed
from hpcdash.stores.watching import Watching
from hpcdash.watch.configured import WatchSettings
from hpcdash.watch.notifiers.base import Notifier
from hpcdash.watch.notifiers.delivery import Sleep
from hpcdash.watch.round import Round, tell


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a look found, what was told and how, how many commands it took, and what went wrong besides."""

    look: Look
    told: Round
    commands: int
    problems: tuple[str, ...] = ()


async def watch_round(
    store: ClusterStore,
    settings: WatchSettings,
    files: WatchFiles,
    notifiers: Sequence[Notifier],
    *,
    dry_run: bool = False,
    sleep: Sleep | None = None,
) -> RoundReport:
    """One round, by itself: all it knows of earlier ones is in `files`. With `dry_run` nobody is told and nothing is
    written; raises HpcdashError where another looks after the cluster or the state cannot be kept.
    """
    with contextlib.nullcontext() if dry_run else files.alone():
        state, problem = files.read()
        before = state.kept_alerts()
        watching = Watching(store, settings, state)
        spent = _Spent(store)
        look = await watching.look()
        alerts = with_snoozed(before, settings.snoozed, files.read_snoozed())
        told = await tell(
            alerts,
            look.findings,
            store.clock.now(),
            notifiers,
            cluster=store.title,
            settings=settings.alerts,
            unknown=look.unknown,
            ending_of=watching.ending_of,
            dry_run=dry_run,
            **({} if sleep is None else {"sleep": sleep}),
        )
        if not dry_run:
            files.write(state, told.alerts)
    return RoundReport(look, told, spent.commands, (problem,) if problem else ())


class _Spent:
    """Counts the commands from here on; those of the last minute, as the budget does."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._before = store.budget.per_minute

    @property
    def commands(self) -> int:
        return max(0, self._store.budget.per_minute - self._before)
