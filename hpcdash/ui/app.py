"""The dashboard as a Textual app: themes, keys from the registry, focus, and the one main screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import App, SuspendNotSupported, SystemCommand
from textual.command import Provider
from textual.notifications import Notification, Notify
from textual.screen import Screen

from hpcdash.ui.actions import ACTIONS, Action
from hpcdash.ui.palette import ActionProvider
from hpcdash.ui.prompter import UiPrompter
from hpcdash.ui.screens.main import main_screen_with
from hpcdash.ui.session import ClusterSession
from hpcdash.ui.themes import DEFAULT_THEME, default_variables, load_themes

# They stand at the right, below the names of the views.
MOST_TOLD = 2


class HpcdashApp(App[None]):
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
    ) -> None:
        """`notice` is said once the screen is there; `tour` begins with hints.

        `tour_ended` hears of their end, which comes at the latest when a person leaves.

        `run_outside` runs a person's 'pager' or 'editor' on a file and gives a complaint, '' where all went well.

        `note_error` writes an error that does not end the app to a log file, whose path it gives, None for none.
        """
        self._palettes = load_themes(theme_folders)
        super().__init__()
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
            with self.suspend():
                complaint = self._run_outside(program, file)
        except SuspendNotSupported:
            complaint = "this terminal cannot be left to another program"
        if complaint:
            self.notify(complaint, severity="warning", markup=False)

    def on_notify(self, event: Notify) -> None:
        """What comes makes room for itself: the oldest of what weighs least goes, an error never."""
        told = sorted((one for one in self._notifications if one.severity != "error"), key=_weight)
        for one in told[: max(0, len(self._notifications) - MOST_TOLD + 1)]:
            self._unnotify(one, refresh=False)

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
        self.main.end_tour()
        for session in self.sessions:
            await session.poller.stop()
            await session.store.close()


def _weight(told: Notification) -> tuple[bool, float]:
    return told.severity == "warning", told.timeout
