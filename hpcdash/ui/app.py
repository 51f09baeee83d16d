"""Dashboard as a Textual app: configuration, focus, notifications, and the main screen."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from textual import events
from textual.app import SuspendNotSupported
from textual.notifications import Notify, SeverityLevel
from textual.screen import Screen

from hpcdash.config.problems import ConfigProblems
from hpcdash.config.settings import Settings
from hpcdash.domain.text import visible, visible_text, without_surrogates
from hpcdash.errors import ConfigError, HpcdashError, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.state.choices import Choices
from hpcdash.ui.actions import ACTIONS, Action, configured
from hpcdash.ui.main_screen import MainScreen
from hpcdash.ui.prompter import UiPrompter
from hpcdash.ui.screen import DashboardApp
from hpcdash.ui.table_view import TableView
from hpcdash.ui.terminal import desktop_notification, through_tmux
from hpcdash.ui.themes import DEFAULT_THEME

if TYPE_CHECKING:
    from hpcdash.transport.base import Transport

_MAX_NOTIFICATIONS = 2
_CONFIG_ERROR_SECONDS = 20.0
_T = TypeVar("_T")
_NO_OTHER_PROGRAM = "this terminal cannot run another program"
_SETTINGS_STAY = "The previous settings still apply."
# Top-level keys of the configuration that apply at once; the watchdogs read [watch] themselves.
_LIVE_SETTINGS = frozenset(
    {"file", "theme", "keys", "aliases", "filters", "plugins", "exec", "ui", "watch"}
)


class HpcdashApp(DashboardApp):
    """Dashboard of one or more clusters."""

    TITLE = "hpcdash"
    ENABLE_COMMAND_PALETTE = False
    # The registry has its key.
    COMMAND_PALETTE_BINDING = ""
    CSS = """
    MainScreen { background: $background; color: $foreground; }
    ToastRack { dock: bottom; align: right bottom; margin: 0 0 2 0; overflow: hidden; }
    Input > .input--placeholder, TextArea .text-area--placeholder { color: $table-dim; }
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
        choices: Choices | None = None,
        first_view: str = "jobs",
        aliases: Mapping[str, str] | None = None,
        filters: Mapping[str, str] | None = None,
        withheld: frozenset[str] = frozenset(),
        settings: Settings | None = None,
        reread: Callable[[], Settings | None] | None = None,
        metric_patterns: Sequence[str] = (),
        run_outside: Callable[[str, Path], str] | None = None,
        notice: str = "",
        tour: bool = False,
        tour_ended: Callable[[], None] = lambda: None,
        note_error: Callable[[Exception], Path | None] = lambda error: None,
        notify: str = "none",
    ) -> None:
        """`choices` of earlier runs have precedence over `theme`, `columns`, `sort` and
        `fold_arrays`; after the run, the attribute has the choices of this run.

        `notice` is shown at the start. `tour` starts the tour of hints; `tour_ended` is called at
        its end, at the latest when the app ends.

        `run_outside` runs the user's 'pager' or 'editor' on a file and returns an error, '' for
        none. `withheld` are environment variables that plugins do not get.

        `settings` is the first configuration. `reread` returns the configuration after a change,
        else None, and raises ConfigError if it is invalid; keys, plugins, aliases, filters,
        columns, sorting and the theme change at once.

        `notify` ("bell", "osc9", "osc777" or "none") is the way of notifying the end of jobs while
        the terminal has no focus. `note_error` logs an error that does not end the app, and returns
        the path of the log, None for none.
        """
        choices = choices or Choices()
        super().__init__(theme_folders, choices.theme, theme)
        self.choices = choices
        self.sessions = list(sessions)
        self._columns = {**(columns or {}), **choices.columns}
        self._sort = {**(sort or {}), **choices.sort}
        self._jobs: dict[str, object] = {
            "fold": fold_arrays if choices.fold_arrays is None else choices.fold_arrays
        }
        for name in ("has_overview", "overview_share"):
            if (chosen := getattr(choices, name)) is not None:
                self._jobs[name] = chosen
        # Only for the first list of jobs, as they do not apply to another cluster.
        self._first_jobs: dict[str, object] = {
            "folds": choices.folds,
            "stored_filter": choices.filter,
        }
        self._metric_patterns = tuple(metric_patterns)
        self._prompter = prompter
        self._run_outside = run_outside
        self._settings = settings
        self._reread = reread
        self.note_error = note_error
        self._desktop = notify
        self._notice = notice
        self._tour = tour
        self.main = MainScreen(
            self.sessions,
            actions,
            read_only=read_only,
            first=first_view,
            aliases=aliases,
            filters=filters,
            withheld=withheld,
            site_commands=lambda: (
                self._settings.exec.commands if self._settings is not None else ()
            ),
            view_arguments=self._view_arguments,
            tour_ended=tour_ended,
            typed=choices.typed,
        )

    def _view_arguments(self, view: str) -> dict[str, object]:
        arguments: dict[str, object] = {}
        if view in self._columns:
            arguments["columns"] = self._columns[view]
        if view in self._sort:
            arguments["sort"] = self._sort[view]
        if view in ("jobs", "history"):
            arguments |= self._jobs
        if view == "jobs":
            arguments |= self._first_jobs
            self._first_jobs = {}
        if view in ("chart", "jobs", "job") and self._metric_patterns:
            arguments["patterns"] = self._metric_patterns
        return arguments

    def open_outside(self, program: str, file: Path) -> None:
        if self._run_outside is None:
            self.notify("nothing to open here", severity="warning")
            return
        self.leave_screen(partial(self._run_outside, program, file))

    def leave_screen(self, run: Callable[[], str]) -> None:
        try:
            self.is_outside = True
            with self.suspend():
                error = run()
        except SuspendNotSupported:
            error = _NO_OTHER_PROGRAM
        finally:
            self.is_outside = False
        if error:
            self.notify(error, severity="warning")

    # -- changes of the configuration

    def _check_configuration(self) -> None:
        """Apply a changed configuration; an invalid one changes nothing."""
        if self._reread is None:
            return
        try:
            settings = self._reread()
        except ConfigError as error:
            self._remove_config_errors()
            lines = str(error).splitlines()
            if isinstance(error, ConfigProblems) and len(error.problems) > 1:
                more = len(error.problems) - 1
                lines[1:] = [f"… and {more} more: `hpcdash config check` shows them."]
            text = visible_text("\n".join([*lines, _SETTINGS_STAY]))
            self.notify(text, severity="error", timeout=_CONFIG_ERROR_SECONDS)
            return
        if settings is not None:
            self._remove_config_errors()
            self._configure(settings)

    def _remove_config_errors(self) -> None:
        for notification in list(self._notifications):
            if notification.message.endswith(_SETTINGS_STAY):
                self._unnotify(notification)

    def _configure(self, settings: Settings) -> None:
        before = self._settings or Settings()
        self._settings = settings
        self.main.configure(configured(settings), settings.aliases, settings.filters)
        columns = _changes(before.ui.columns, settings.ui.columns, ())
        sort = _changes(before.ui.sort, settings.ui.sort, "")
        # Also for views that are not open yet. Unchanged settings leave the user's choices alone.
        self._columns |= columns
        self._sort |= sort
        for view in self.main.query(TableView):
            name = view.spec.name
            if name in columns:
                view.choose_columns(columns[name])
            if name in sort:
                view.sort_by(sort[name].lstrip("-") or None, sort[name].startswith("-"))
        if settings.theme != before.theme and settings.theme in self.available_themes:
            self.theme = settings.theme
        waiting = [
            name
            for name in Settings.__struct_fields__
            if name not in _LIVE_SETTINGS and getattr(settings, name) != getattr(before, name)
        ]
        for name in ("fold_arrays", "clock"):
            if getattr(settings.ui, name) != getattr(before.ui, name):
                waiting.append(f"ui.{name}")
        text = "configuration reloaded"
        if waiting:
            text += f"; restart hpcdash to apply {', '.join(waiting)}"
        self.notify(text, severity="warning" if waiting else "information", timeout=8)

    async def lend_terminal(
        self, transport: Transport, argv: tuple[str, ...], parts: Sequence[str]
    ) -> int | None:
        """Lend the terminal to a command; connection and polls continue, as without focus."""
        from hpcdash.transport.terminal import ESCAPE_HELP, Terminal

        try:
            descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            raise UsageError(_NO_OTHER_PROGRAM) from None
        pollers = [session.poller for session in self.main.sessions]
        failure: HpcdashError | None = None
        status: int | None = None
        try:
            for poller in pollers:
                poller.focus(False)
            # `suspend` does not resume after an error.
            with self.suspend():
                for line in (*parts, f"exit returns to hpcdash; {ESCAPE_HELP}"):
                    print(visible(line), flush=True)
                try:
                    status = await transport.interact(argv, Terminal(descriptor))
                except HpcdashError as error:
                    failure = error
        except SuspendNotSupported:
            raise UsageError(_NO_OTHER_PROGRAM) from None
        finally:
            for poller in pollers:
                poller.focus(self.app_focus)
            os.close(descriptor)
        if failure is not None:
            raise failure
        return status

    def copy_to_clipboard(self, text: str) -> None:
        super().copy_to_clipboard(without_surrogates(text))
        if self._driver is not None and os.environ.get("TMUX"):
            encoded = base64.b64encode(self.clipboard.encode()).decode()
            self._driver.write(through_tmux(f"\x1b]52;c;{encoded}\a"))

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notification; it is never read as markup, as it may quote a job's name."""
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    def notify_desktop(self, text: str) -> None:
        if self._driver is not None and not self.app_focus and self._desktop != "none":
            self._driver.write(
                desktop_notification(self._desktop, text, in_tmux=bool(os.environ.get("TMUX")))
            )

    def on_notify(self, event: Notify) -> None:
        """Make room for a notification: remove the oldest of the least severe, never an error."""
        excess = max(0, len(self._notifications) - _MAX_NOTIFICATIONS + 1)
        removable = [shown for shown in self._notifications if shown.severity != "error"]
        removable.sort(key=lambda shown: (shown.severity == "warning", shown.timeout))
        for notification in removable[:excess]:
            self._unnotify(notification, refresh=False)

    # -- lost and lent terminal

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return super().check_action(action, parameters) and not (
            action == "to_shell" and self.screen is self.main
        )

    def end(self, number: int) -> None:
        """End the app because of a signal; unfinished input is stored for the next start."""
        if not self.is_ending:
            self.main.keep_typed()
        super().end(number)

    def get_default_screen(self) -> Screen[None]:
        return self.main

    async def on_mount(self) -> None:
        self.heed_signals()
        self.choose_palettes()
        if self._prompter is not None:
            self._prompter.attach(self)
        # The data of the last run is painted before the connection, which may take a while.
        self.call_after_refresh(self.sessions[0].poller.start)
        self.set_interval(1.0, self._check_configuration)
        if self._notice:
            self.call_after_refresh(self.main.notice, self._notice)
        if self._tour:
            self.main.begin_tour()

    def on_app_focus(self, event: events.AppFocus) -> None:
        for session in self.sessions:
            session.poller.focus(True)

    def on_app_blur(self, event: events.AppBlur) -> None:
        for session in self.sessions:
            session.poller.focus(False)

    async def on_unmount(self) -> None:
        self._own_loop = None
        self.choices = self.main.chosen(self.choices)
        self.main.end_tour()
        for session in self.sessions:
            await session.poller.stop()
            await session.store.close()


def _changes(before: Mapping[str, _T], after: Mapping[str, _T], removed: _T) -> dict[str, _T]:
    """Return the changed values by key; `removed` for a key that is no longer there."""
    return {
        key: after.get(key, removed)
        for key in {*before, *after}
        if before.get(key) != after.get(key)
    }
