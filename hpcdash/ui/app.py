"""The dashboard as a Textual app: themes, keys from the registry, focus, and the one main screen."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import App, SuspendNotSupported, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.notifications import Notification, Notify
from textual.screen import Screen
from textual.widgets import TextArea

from hpcdash.domain.text import visible, without_surrogates
from hpcdash.services.session import ClusterSession
from hpcdash.ui.actions import ACTIONS, Action
from hpcdash.ui.main_screen import main_screen_with
from hpcdash.ui.palette import ActionProvider
from hpcdash.ui.prompter import UiPrompter
from hpcdash.ui.screen import DashboardApp
from hpcdash.ui.terminal import TerminalDriver, desktop_notification, through_tmux
from hpcdash.ui.themes import DEFAULT_THEME, default_variables, load_themes

# They stand at the right, below the names of the views.
MOST_TOLD = 2
# ssh(1), EXIT STATUS: of its own failures.
_SSH_FAILED = 255


class HpcdashApp(DashboardApp):
    """Shows some clusters. Everything it shows comes from their stores."""

    TITLE = "hpcdash"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {ActionProvider}
    CSS = """
    MainScreen { background: $background; color: $foreground; }
    ToastRack { dock: top; align: right top; margin: 1 0 0 0; overflow: hidden; }
    Toast { width: auto; max-width: 60; padding: 0 1; margin: 0; }
    """
    NOTIFICATION_TIMEOUT = 4.0
    # For dialogs: on the main screen it is the registry's.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+z", "to_shell", show=False, priority=True)]

    def __init__(
        self,
        sessions: Sequence[ClusterSession],
        *,
        actions: tuple[Action, ...] = ACTIONS,
        theme: str = DEFAULT_THEME,
        theme_folders: Iterable[Path] = (),
        read_only: bool = False,
        columns: Mapping[str, tuple[str, ...]] | None = None,
        sort: Mapping[str, str] | None = None,
        fold_arrays: bool = True,
        prompter: UiPrompter | None = None,
        first_view: str = "jobs",
        aliases: Mapping[str, str] | None = None,
        metric_patterns: Sequence[str] = (),
        run_outside: Callable[[str, Path], str] | None = None,
        notice: str = "",
        tour: bool = False,
        tour_ended: Callable[[], None] = lambda: None,
        note_error: Callable[[Exception], Path | None] = lambda error: None,
        notify: str = "none",
    ) -> None:
        """`notice` is said once the screen is there; `tour` begins with hints.

        `tour_ended` hears of their end, which comes at the latest when a person leaves.

        `run_outside` runs a person's 'pager' or 'editor' on a file and gives a complaint, '' where all went well.

        `notify` ("bell", "osc9", "osc777" or "none") is how it is told that jobs ended while the terminal has no focus.

        `note_error` writes an error that does not end the app to a log file, whose path it gives, None for none.
        """
        self._palettes = load_themes(theme_folders)
        # Where textual-web shows it there is no terminal.
        super().__init__(driver_class=None if os.environ.get("TEXTUAL_DRIVER") else TerminalDriver)
        # The loop and the context it runs in, while it runs; the signal that ends it, if one does.
        self._own_loop: tuple[asyncio.AbstractEventLoop, contextvars.Context] | None = None
        self.ended_by: int | None = None
        self.is_outside = False
        for palette in self._palettes.values():
            self.register_theme(palette)
        self.theme_names = tuple(self._palettes)
        self.theme = theme if theme in self.available_themes else DEFAULT_THEME
        self.sessions = list(sessions)
        self._columns = dict(columns or {})
        self._sort = dict(sort or {})
        self._fold_arrays = fold_arrays
        self._metric_patterns = tuple(metric_patterns)
        self._prompter = prompter
        self._run_outside = run_outside
        self.note_error = note_error
        self._desktop = notify
        self._notice = notice
        self._tour = tour
        self.main = main_screen_with(actions)(
            self.sessions,
            actions,
            read_only=read_only,
            first=first_view,
            aliases=aliases,
            view_arguments=self._view_arguments,
            tour_ended=tour_ended,
        )

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(default_variables(self.current_theme.dark))

    def _view_arguments(self, view: str) -> dict[str, object]:
        arguments: dict[str, object] = {}
        if view in self._columns:
            arguments["columns"] = self._columns[view]
        if view in self._sort:
            arguments["sort"] = self._sort[view]
        if view in ("jobs", "history"):
            arguments["fold"] = self._fold_arrays
        if view in ("chart", "jobs") and self._metric_patterns:
            arguments["patterns"] = self._metric_patterns
        return arguments

    def open_outside(self, program: str, file: Path) -> None:
        """Leave the screen to a person's 'pager' or 'editor' until they are done with a file."""
        if self._run_outside is None:
            self.notify("nothing can be opened from here", severity="warning")
            return
        try:
            self.is_outside = True
            with self.suspend():
                complaint = self._run_outside(program, file)
        except SuspendNotSupported:
            complaint = "this terminal cannot be left to another program"
        finally:
            self.is_outside = False
        if complaint:
            self.notify(complaint, severity="warning", markup=False)

    def open_shell(self, argv: tuple[str, ...], where: str) -> None:
        complaint = ""
        try:
            self.is_outside = True
            with self.suspend():
                print(f"{visible(where)}\nexit or ctrl+d goes back to hpcdash", flush=True)
                if subprocess.call(argv) == _SSH_FAILED and argv[0] == "ssh":
                    complaint = "ssh could not log in, or its connection broke"
        except SuspendNotSupported:
            complaint = "this terminal cannot be left to another program"
        except OSError as error:
            complaint = f"{argv[0]}: {error.strerror}"
        finally:
            self.is_outside = False
        if complaint:
            self.notify(complaint, severity="warning", markup=False)

    def copy_to_clipboard(self, text: str) -> None:
        super().copy_to_clipboard(without_surrogates(text))
        if self._driver is not None and os.environ.get("TMUX"):
            encoded = base64.b64encode(self.clipboard.encode()).decode()
            self._driver.write(through_tmux(f"\x1b]52;c;{encoded}\a"))

    def notify_desktop(self, words: str) -> None:
        if self._driver is not None and not self.app_focus and self._desktop != "none":
            self._driver.write(desktop_notification(self._desktop, words, in_tmux=bool(os.environ.get("TMUX"))))

    def on_notify(self, event: Notify) -> None:
        """What comes makes room for itself: the oldest of what weighs least goes, an error never."""
        told = sorted((one for one in self._notifications if one.severity != "error"), key=_weight)
        for one in told[: max(0, len(self._notifications) - MOST_TOLD + 1)]:
            self._unnotify(one, refresh=False)

    # -- a terminal that goes, and a shell that takes it

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return super().check_action(action, parameters) and not (action == "to_shell" and self.screen is self.main)

    def action_to_shell(self) -> None:
        """Stop, so that the shell has the terminal; in a field of several lines ctrl+z takes back what was typed."""
        if isinstance(self.focused, TextArea):
            self.focused.action_undo()
        else:
            self.action_suspend_process()

    def was_not_stopped(self) -> None:
        """There is no shell that could continue it."""
        self.notify("it was not started from a shell that one could go back to", severity="warning")

    def _continued(self, _: App[None]) -> None:
        self.refresh(layout=True)

    @property
    def is_ending(self) -> bool:
        return self.ended_by is not None

    def end(self, number: int) -> None:
        """Leave because of a signal; what was typed is kept for the next time."""
        if not self.is_ending:
            self.ended_by = number
            self.main.keep_typed()
            self.exit(return_code=128 + number)

    def end_soon(self, number: int) -> bool:
        """`end`, for threads and handlers of signals; False where the app does not run."""
        if self._own_loop is None:
            return False
        loop, context = self._own_loop
        loop.call_soon_threadsafe(self.end, number, context=context)
        return True

    def hung_up(self) -> None:
        """The terminal is gone, whether or not a signal says so."""
        self.end_soon(signal.SIGHUP)

    def restore_terminal(self) -> None:
        """At once, for a process that ends without the app."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.restore()

    @property
    def crash(self) -> Exception | None:
        """What ended the app, where that was an error of its own."""
        return self._exception

    def _fatal_error(self) -> None:
        # Textual would print a traceback with the values of all variables; whoever runs the app tells of the crash.
        self._close_messages_no_wait()

    def get_default_screen(self) -> Screen[None]:
        return self.main

    async def on_mount(self) -> None:
        self._own_loop = (asyncio.get_running_loop(), contextvars.copy_context())
        self.app_resume_signal.subscribe(self, self._continued)
        if self._prompter is not None:
            self._prompter.attach(self)
        # What the last run knew is painted before anything is asked: connecting may import and compute for a while.
        self.call_after_refresh(self.sessions[0].poller.start)
        if self._notice:
            self.call_after_refresh(self.main.notice, self._notice)
        if self._tour:
            self.main.begin_tour()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for command in super().get_system_commands(screen):
            if command.title in ("Theme", "Quit", "Screenshot"):
                yield command

    def on_app_focus(self, event: events.AppFocus) -> None:
        for session in self.sessions:
            session.poller.focus(True)

    def on_app_blur(self, event: events.AppBlur) -> None:
        for session in self.sessions:
            session.poller.focus(False)

    async def on_unmount(self) -> None:
        self._own_loop = None
        self.main.end_tour()
        for session in self.sessions:
            await session.poller.stop()
            await session.store.close()


def _weight(told: Notification) -> tuple[bool, float]:
    return told.severity == "warning", told.timeout
