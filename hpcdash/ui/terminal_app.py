"""Terminal handling of each app: themes, few colours, signals, suspension to the shell."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.color import ColorSystem
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import DimFilter, LineFilter
from textual.widgets import TextArea

from hpcdash.ui.terminal import TerminalDriver
from hpcdash.ui.themes import (
    DEFAULT_THEME,
    DIM_FACTOR,
    ReadableColors,
    default_variables,
    load_themes,
)


class TerminalApp(App[None]):
    """App in a terminal, or in a browser."""

    # For dialogs; on the main screen the registry has the key.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+z", "to_shell", show=False, priority=True)
    ]

    def __init__(self, theme_folders: Iterable[Path], *themes: str) -> None:
        """Apply the first of `themes` that exists."""
        self._theme_folders = tuple(theme_folders)
        palettes = load_themes(self._theme_folders)
        # A browser has no terminal.
        super().__init__(driver_class=None if os.environ.get("TEXTUAL_DRIVER") else TerminalDriver)
        self._dim = DimFilter(DIM_FACTOR)
        system = {"16": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT}.get(self._depth)
        self._few_colors = ReadableColors(system) if system else None
        # Loop and context while the app runs; the signal that ends it, if any.
        self._own_loop: tuple[asyncio.AbstractEventLoop, contextvars.Context] | None = None
        self.ended_by: int | None = None
        self.is_outside = False
        for palette in palettes.values():
            self.register_theme(palette)
        self.theme_names = tuple(palettes)
        self.theme = next((name for name in themes if name in self.available_themes), DEFAULT_THEME)

    @property
    def _depth(self) -> str:
        """Number of the terminal's colours: '256' or '16'; '' for more, or none."""
        return {"standard": "16", "256": "256"}.get(self.console.color_system or "", "")

    def choose_palettes(self) -> None:
        """Use the themes' colours for the terminal's depth, after the start of its driver."""
        if self._depth and not self.is_headless:
            for palette in load_themes(self._theme_folders, self._depth).values():
                self.register_theme(palette)
            self.refresh_css(animate=False)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, changed so that dim text and few colours are readable."""
        filters = [
            self._dim if isinstance(line_filter, DimFilter) else line_filter
            for line_filter in super().get_line_filters()
        ]
        if self._few_colors and not self.is_headless:
            filters.append(self._few_colors)
        return filters

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(default_variables(self.current_theme.dark))

    def heed_signals(self) -> None:
        """Let `end_soon` end the app; called by the app, in its own context."""
        self._own_loop = (asyncio.get_running_loop(), contextvars.copy_context())
        self.app_resume_signal.subscribe(self, self._continued)

    def action_to_shell(self) -> None:
        """Suspend to the shell; in a field of several lines ctrl+z is undo."""
        if isinstance(self.focused, TextArea):
            self.focused.action_undo()
        else:
            self.action_suspend_process()

    def was_not_stopped(self) -> None:
        """Warn that no shell could continue the program."""
        self.notify("not started from a shell with job control", severity="warning")

    def _continued(self, _: App[None]) -> None:
        self.refresh(layout=True)

    @property
    def is_ending(self) -> bool:
        return self.ended_by is not None

    def end(self, number: int) -> None:
        """End the app because of a signal."""
        if not self.is_ending:
            self.ended_by = number
            self.exit(return_code=128 + number)

    def end_soon(self, number: int) -> bool:
        """Call `end` from a thread or signal handler; return False if the app does not run."""
        if self._own_loop is None:
            return False
        loop, context = self._own_loop
        loop.call_soon_threadsafe(self.end, number, context=context)
        return True

    def hung_up(self) -> None:
        """Handle the loss of the terminal, with or without a signal."""
        self.end_soon(signal.SIGHUP)

    def restore_terminal(self) -> None:
        """Restore the terminal at once, for a process that ends without the app."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.restore()

    @property
    def crash(self) -> Exception | None:
        """Internal error that ended the app, if any."""
        return self._exception

    def _fatal_error(self) -> None:
        # The caller reports the crash; Textual's traceback has the values of all variables.
        self._close_messages_no_wait()
