"""Interface of the app and its main screen for views, key handlers and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.screen import Screen

from hpcdash.errors import HpcdashError
from hpcdash.ui.actions import Action, OfferedActions
from hpcdash.ui.terminal_app import TerminalApp
from hpcdash.ui.view import View

if TYPE_CHECKING:
    from hpcdash.services.session import ClusterSession
    from hpcdash.services.watch.alerts import AlertEvent
    from hpcdash.transport.base import Transport


class DashboardApp(TerminalApp):
    """The app that the screen is in."""

    # Writes a traceback into the log file of --debug and gives its path, None without one.
    note_error: Callable[[Exception], Path | None]

    def open_outside(self, program: str, file: Path) -> None:
        """Leave the screen to a person's 'pager' or 'editor' until they are done with a file."""
        raise NotImplementedError

    def leave_screen(self, run: Callable[[], str]) -> None:
        """Leave the screen to `run` until it is done; it gives a complaint, '' where all went
        well.
        """
        raise NotImplementedError

    async def lend_terminal(
        self, transport: Transport, argv: tuple[str, ...], parts: Sequence[str]
    ) -> int | None:
        """Leave the terminal to a command; return its status, None where it was left.

        `parts` are printed first. Raises UsageError where this terminal cannot be left, and the
        errors of Transport.interact.
        """
        raise NotImplementedError

    def notify_desktop(self, text: str) -> None:
        """Notify a person whose terminal has no focus, in the configured way."""
        raise NotImplementedError


class DashboardScreen(Screen[None], inherit_bindings=False):
    """The screen with a stack of views for each cluster."""

    sessions: list[ClusterSession]
    offered: OfferedActions

    @property
    def session(self) -> ClusterSession:
        """The cluster that is shown."""
        raise NotImplementedError

    @property
    def view(self) -> View:
        """The view that is shown, the top of its cluster's stack."""
        raise NotImplementedError

    @property
    def view_name(self) -> str:
        raise NotImplementedError

    def actions(self) -> list[Action]:
        """Return the actions available in the current view."""
        raise NotImplementedError

    async def act(self, name: str) -> None:
        """Run the action of a key, the palette or ':'."""
        raise NotImplementedError

    async def go(self, name: str, /, **arguments: object) -> None:
        """Show a root view: back to it where it is on the way here, else on top, so that one can go
        back.
        """
        raise NotImplementedError

    async def push(self, name: str, /, **arguments: object) -> None:
        """Show a view on top of this one."""
        raise NotImplementedError

    async def pop(self) -> bool:
        """Go back one step; False at the first view."""
        raise NotImplementedError

    async def push_for_job(self, name: str, /, **arguments: object) -> None:
        """Show a view of the job under the cursor."""
        job_id = self.view.pointed_job()
        if job_id is None:
            self.notify("select a job first", severity="warning", timeout=3)
        else:
            await self.push(name, job_id=job_id, **arguments)

    def open_line(self, mode: str, value: str = "", *, proposed: bool = False) -> None:
        """Have a filter ('/') or a command (':') typed, with a list of what it may be; typing
        replaces `proposed`.
        """
        raise NotImplementedError

    async def show_last(self) -> None:
        """The view that was shown before this one."""
        raise NotImplementedError

    async def switch_to_next(self) -> None:
        """Show the next cluster."""
        raise NotImplementedError

    def notice(self, text: str) -> None:
        """Show a message for a while, off the table."""
        raise NotImplementedError

    def key_label(self, name: str) -> str:
        """The key of an action, as it is shown."""
        raise NotImplementedError

    def announce_alerts(self, session: ClusterSession, events: Sequence[AlertEvent]) -> None:
        """Announce each alert once."""
        raise NotImplementedError

    def alerts_changed(self, session: ClusterSession) -> None:
        """Redraw a cluster's alerts after a check of the rules."""
        raise NotImplementedError

    def shows_alerts(self, session: ClusterSession) -> bool:
        """Whether a cluster's alerts are on the screen."""
        raise NotImplementedError


def unexpected(
    app: App[object], what: str, error: Exception, before: HpcdashError | None = None
) -> HpcdashError:
    """Return `hpcdash could not read this: …` for `what` ("read this"), and log the error.

    It is logged where the app was started with a log file. If the message is the one `before`, it
    is not logged again.
    """
    message = f"hpcdash could not {what}: {type(error).__name__}: {error}"[:300]
    if before is not None and before.message == message:
        return before
    path = app.note_error(error) if isinstance(app, DashboardApp) else None
    where = (
        f"The traceback is in {path}."
        if path
        else "With --debug the traceback is written to its log file."
    )
    return HpcdashError(message, where)
