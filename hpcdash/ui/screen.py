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

    # Writes a traceback to the log file of --debug; returns its path, None without one.
    note_error: Callable[[Exception], Path | None]

    def open_outside(self, program: str, file: Path) -> None:
        """Leave the screen to the user's 'pager' or 'editor' of a file until it ends."""
        raise NotImplementedError

    def leave_screen(self, run: Callable[[], str]) -> None:
        """Leave the screen to `run` until it returns an error, '' for none."""
        raise NotImplementedError

    async def lend_terminal(
        self, transport: Transport, argv: tuple[str, ...], parts: Sequence[str]
    ) -> int | None:
        """Lend the terminal to a command; return its status, None if the user left it.

        The lines `parts` are printed first. Raises UsageError if this terminal cannot be lent, and
        the errors of Transport.interact.
        """
        raise NotImplementedError

    def notify_desktop(self, text: str) -> None:
        """Send a desktop notification in the configured way, unless the terminal has the focus."""
        raise NotImplementedError


class DashboardScreen(Screen[None], inherit_bindings=False):
    """Main screen, with a stack of views for each cluster."""

    sessions: list[ClusterSession]
    offered: OfferedActions

    @property
    def session(self) -> ClusterSession:
        """Shown cluster."""
        raise NotImplementedError

    @property
    def view(self) -> View:
        """Shown view, the top of its cluster's stack."""
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
        """Show a root view: go back to it if it is on the stack, else put it on top."""
        raise NotImplementedError

    async def push(self, name: str, /, **arguments: object) -> None:
        """Show a view on top of the present one."""
        raise NotImplementedError

    async def pop(self) -> bool:
        """Go back one step; return False at the first view."""
        raise NotImplementedError

    async def push_for_job(self, name: str, /, **arguments: object) -> None:
        """Show a view of the job under the cursor."""
        job_id = self.view.pointed_job()
        if job_id is None:
            self.notify("select a job first", severity="warning", timeout=3)
        else:
            await self.push(name, job_id=job_id, **arguments)

    def open_line(self, mode: str, value: str = "", *, proposed: bool = False) -> None:
        """Prompt for a filter ('/') or a command (':'), with completions; typing replaces a
        `proposed` text.
        """
        raise NotImplementedError

    async def show_last(self) -> None:
        """Show the previous view."""
        raise NotImplementedError

    async def switch(self, position: int) -> None:
        """Show another cluster, by its position in `sessions`, and its last view."""
        raise NotImplementedError

    async def switch_to_next(self) -> None:
        """Show the next cluster."""
        raise NotImplementedError

    def notice(self, text: str) -> None:
        """Show a message for a while, off the table."""
        raise NotImplementedError

    def key_label(self, name: str) -> str:
        """Return the displayed keys of an action."""
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
