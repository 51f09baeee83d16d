"""The alerts of one cluster in the dashboard: judged from its snapshots, and checked in full while
they are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.config.watch_settings import QuietHours, WatchSettings
from hpcdash.domain.tables import Kind
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.watch.alerts import AlertEvent, Alerts, AlertState
from hpcdash.services.watch.state import WatchFiles

if TYPE_CHECKING:
    from hpcdash.config.settings import PoolSettings
    from hpcdash.services.watch.cluster import Watching
    from hpcdash.services.watch.judge import Judgement


class WatchBoard:
    """Watch board of one run of the program.

    It starts from the state of `hpcdash watch`; new findings are only of this run, except snoozes.
    """

    def __init__(
        self,
        store: ClusterStore,
        settings: WatchSettings,
        files: WatchFiles,
        *,
        shared: Sequence[PoolSettings] = (),
        config_file: str = "",
        reread: Callable[[], WatchSettings | None] = lambda: None,
    ) -> None:
        """`shared` are the pools that are shared there.

        `config_file` is where [watch] is, or would be, written. `reread` returns it once it has
        changed, else None.
        """
        self.settings = settings
        self.alerts = Alerts()
        self.problems: tuple[str, ...] = ()
        self.config_file = config_file
        # Reason that the configuration cannot be read, '' for none.
        self.unread = ""
        # Whether there are rules that were never checked.
        self.is_check_due = False
        # When the cluster last answered a check, in epoch seconds; None: not in this run.
        self.looked_at: float | None = None
        self._store = store
        self._files = files
        self._shared = shared
        self._reread = reread
        self._watching: Watching | None = None
        self._step = asyncio.Lock()

    @property
    def states(self) -> tuple[AlertState, ...]:
        """Current alerts, the most severe first, then the newest."""
        states = self.alerts.states.values()
        return tuple(sorted(states, key=lambda state: (-state.finding.severity, -state.since)))

    @property
    def count(self) -> int:
        """Number of current alerts that are not snoozed."""
        return sum(self.snoozed_until(state) is None for state in self.alerts.states.values())

    @property
    def kinds(self) -> frozenset[Kind]:
        """The tables that the rules stand on."""
        return self._watchdogs().kinds

    def snoozed_until(self, state: AlertState) -> float | None:
        """Return until when an alert is snoozed, by its key or its rule; None where it is not."""
        finding = state.finding
        snoozed = self.alerts.snoozed
        until = max(snoozed.get(finding.key, 0.0), snoozed.get(f"{finding.rule}/", 0.0))
        return until if until > self._store.clock.now() else None

    async def reload(self) -> None:
        """Apply the configuration if it was changed; if it cannot be read, keep the old one."""
        async with self._step:
            try:
                settings = await asyncio.to_thread(self._reread)
            except HpcdashError as error:
                text = " ".join(error.message.split())
                self.unread = (
                    f"the watchdogs are unchanged: the configuration cannot be read: {text}"
                )
                return
            if settings is None:
                return
            self.unread = ""
            self.settings = settings
            self.is_check_due = True
            if self._watching is not None:
                self._watching.take_settings(settings)

    async def judge(self) -> tuple[AlertEvent, ...]:
        """Return the new events given the data known now; queries nothing."""
        async with self._step:
            watching = self._watchdogs()
            from hpcdash.services.watch.judge import judge

            return self._stepped(await asyncio.to_thread(judge, watching))

    async def check(self) -> tuple[AlertEvent, ...]:
        """Query the cluster for all data that the rules need, and return the new events."""
        async with self._step:
            check = await self._watchdogs().check()
            self.is_check_due = False
            if check.is_reached:
                self.looked_at = self._store.clock.now()
            return self._stepped(check)

    def toggle_snooze(self, key: str) -> float | None:
        """Snooze a key, here and for `hpcdash watch`, or end that; return until when, None for the
        latter.

        Raises HpcdashError if that cannot be saved.
        """
        now = self._store.clock.now()
        stored = {name: until for name, until in self._files.read_snoozed().items() if until > now}
        until = None if stored.pop(key, None) is not None else now + self.settings.snooze_seconds
        if until is not None:
            stored[key] = until
        self._files.write_snoozed(stored)
        self.alerts = self.alerts.with_snoozed(self.settings.snoozed, stored)
        return until

    def _watchdogs(self) -> Watching:
        if self._watching is None:
            # The rules are loaded once something is judged: the first screen does not wait for
            # them.
            from hpcdash.services.watch.cluster import Watching

            state, problem = self._files.read()
            self.problems = (problem,) if problem else ()
            try:
                self.alerts = state.read_alerts()
            except HpcdashError:
                self.alerts = Alerts()
            self._watching = Watching(self._store, self.settings, state, shared=self._shared)
        return self._watching

    def _stepped(self, check: Judgement) -> tuple[AlertEvent, ...]:
        self.problems = (*((self.unread,) if self.unread else ()), *check.problems)
        from hpcdash.services.watch.endings import find_ending

        # A person at the screen is awake.
        settings = replace(self.settings.alerts, quiet=QuietHours())
        alerts = self.alerts.with_snoozed(self.settings.snoozed, self._files.read_snoozed())
        now = self._store.clock.now()
        ending = partial(find_ending, self._watchdogs())
        self.alerts, events = alerts.step(check.findings, now, settings, check.unknown, ending)
        return events
