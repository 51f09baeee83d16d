"""Alerts on the screen: checks the rules after a change, announces new alerts once, and rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcdash.domain.tables import Kind
from hpcdash.domain.text import clip, visible
from hpcdash.services.cluster.store import Changed
from hpcdash.services.session import ClusterSession
from hpcdash.ui.screen import DashboardScreen
from hpcdash.ui.workers import start_worker

if TYPE_CHECKING:
    from hpcdash.services.watch.alerts import AlertEvent
    from hpcdash.services.watch.board import WatchBoard


UNWATCHED = "no watchdogs in a recording: nothing runs there"
_WORDS_CELLS = 160
_AT_ONCE = 4
_SECONDS = 8.0


class AlertAnnouncer:
    """Check of the rules after changes, and announcement of new alerts on `screen`."""

    def __init__(self, screen: DashboardScreen) -> None:
        self.screen = screen

    def judge(self, session: ClusterSession, changed: Changed) -> None:
        """Apply the rules to a new table; where nothing is watched only the view does so."""
        if session.watching is not None and changed.kind is not None:
            group = f"alerts of {session.name}: {changed.kind}"
            start_worker(
                self.screen,
                self._judged,
                session,
                session.watching,
                changed.kind,
                exclusive=True,
                group=group,
            )

    async def _judged(self, session: ClusterSession, board: WatchBoard, kind: Kind) -> None:
        await board.reload()
        if board.settings.is_configured and kind in board.kinds:
            self.announce(session, await board.judge())
            self.screen.alerts_changed(session)
        elif board.is_check_due:
            # Changed rules apply to other tables, or nothing is watched any more.
            self.screen.alerts_changed(session)

    def announce(self, session: ClusterSession, events: Sequence[AlertEvent]) -> None:
        """Each once, the gravest first; many at once in one line."""
        if not events or session.watching is None:
            return
        where = f" on {session.store.title}" if len(self.screen.sessions) > 1 else ""
        # Present problems are in the view of alerts; resolved ones no longer are.
        reported = (
            [event for event in events if event.kind.is_end]
            if self.screen.shows_alerts(session)
            else events
        )
        shown = reported[: _AT_ONCE - 1] if len(reported) > _AT_ONCE else reported
        for event in shown:
            over = event.kind.is_end
            mark = {"recovered": "over: ", "unwatched": "no longer watched: "}.get(event.kind, "")
            text = f"{mark}{clip(visible(event.text), _WORDS_CELLS)}{where}"
            self.screen.notify(
                text, severity="information" if over else "warning", timeout=_SECONDS, markup=False
            )
        if len(shown) < len(reported):
            self.screen.notify(
                f"{len(reported) - len(shown)} more alerts{where}",
                severity="warning",
                timeout=_SECONDS,
            )
        if session.watching.settings.terminal is not None:
            start_worker(self.screen, self._ring, session, events, group="ringing")

    async def _ring(self, session: ClusterSession, events: Sequence[AlertEvent]) -> None:
        from hpcdash.services.watch.message import build_message
        from hpcdash.services.watch.notifiers.base import NotifyFailed
        from hpcdash.services.watch.notifiers.terminal import TerminalNotifier

        driver = self.screen.app._driver
        if driver is None or session.watching is None:
            return
        # Through the driver, as what is painted: a terminal takes one thing at a time.
        notifier = TerminalNotifier(session.watching.settings.terminal, driver.write)
        try:
            await notifier.send(build_message(events, session.store.title))
        except NotifyFailed as error:
            self.screen.notify(error.message, severity="warning", markup=False)
