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


UNWATCHED = "no watchdogs in a recording"
_MARKS = {"recovered": "over: ", "unwatched": "no longer watched: "}
_TEXT_CELLS = 160
_MAX_AT_ONCE = 4
_SECONDS = 8.0


class AlertAnnouncer:
    """Check of the rules after changes, and announcement of new alerts on `screen`."""

    def __init__(self, screen: DashboardScreen) -> None:
        self.screen = screen

    def judge(self, session: ClusterSession, changed: Changed) -> None:
        """Apply the rules to a new table; where nothing is watched only the view does so."""
        if session.watching is not None and changed.kind is not None:
            group = f"alerts on {session.name}: {changed.kind}"
            watched = (session, session.watching, changed.kind)
            start_worker(self.screen, self._judge, *watched, exclusive=True, group=group)

    async def _judge(self, session: ClusterSession, board: WatchBoard, kind: Kind) -> None:
        await board.reload()
        if board.settings.is_configured and kind in board.kinds:
            self.announce(session, await board.judge())
            self.screen.alerts_changed(session)
        elif board.is_check_due:
            # Changed rules apply to other tables, or nothing is watched any more.
            self.screen.alerts_changed(session)

    def announce(self, session: ClusterSession, events: Sequence[AlertEvent]) -> None:
        """Announce each event once, the most severe first; many at once in one line."""
        if not events or session.watching is None:
            return
        where = f" on {session.store.title}" if len(self.screen.sessions) > 1 else ""
        # Present problems are in the view of alerts; resolved ones no longer are.
        reported = list(events)
        if self.screen.shows_alerts(session):
            reported = [event for event in events if event.kind.is_end]
        shown = reported[: _MAX_AT_ONCE - 1] if len(reported) > _MAX_AT_ONCE else reported
        for event in shown:
            text = f"{_MARKS.get(event.kind, '')}{clip(visible(event.text), _TEXT_CELLS)}{where}"
            self.screen.notify(
                text,
                severity="information" if event.kind.is_end else "warning",
                timeout=_SECONDS,
            )
        if more := len(reported) - len(shown):
            text = f"{more} more alerts{where}"
            self.screen.notify(text, severity="warning", timeout=_SECONDS)
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
            self.screen.notify(error.message, severity="warning")
