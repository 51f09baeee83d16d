"""Terminal handling of each app: themes, few colours, signals, a shell that takes it back."""

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
    """An app in a terminal, or in a browser, where there is none."""

    # For dialogs: on the main screen it is the registry's.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+z", "to_shell", show=False, priority=True)
    ]

    def __init__(self, theme_folders: Iterable[Path], *themes: str) -> None:
        """The first of `themes` that is there counts."""
        self._theme_folders = tuple(theme_folders)
        palettes = load_themes(self._theme_folders)
        # In a browser there is no terminal.
        super().__init__(driver_class=None if os.environ.get("TEXTUAL_DRIVER") else TerminalDriver)
        self._dim = DimFilter(DIM_FACTOR)
        system = {"16": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT}.get(self._depth)
        self._few_colors = ReadableColors(system) if system else None
        # The loop and the context it runs in, while it runs; the signal that ends it, if one does.
        self._own_loop: tuple[asyncio.AbstractEventLoop, contextvars.Context] | None = None
        self.ended_by: int | None = None
        self.is_outside = False
        for palette in palettes.values():
            self.register_theme(palette)
        self.theme_names = tuple(palettes)
        self.theme = next((name for name in themes if name in self.available_themes), DEFAULT_THEME)

    @property
    def _depth(self) -> str:
        """ "256" or "16" where the terminal has so many colours, '' where it has more or none."""
        return {"standard": "16", "256": "256"}.get(self.console.color_system or "", "")

    def choose_palettes(self) -> None:
        """Have the themes' colours for the terminal's depth, once its driver is there."""
        if self._depth and not self.is_headless:
            for palette in load_themes(self._theme_folders, self._depth).values():
                self.register_theme(palette)
            self.refresh_css(animate=False)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, with dimmed text that stays readable, and colours that do on terminals with
        few of them.
        """
        filters = [
            self._dim if isinstance(one, DimFilter) else one for one in super().get_line_filters()
        ]
        return (
            [*filters, self._few_colors] if self._few_colors and not self.is_headless else filters
        )

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(default_variables(self.current_theme.dark))

    def heed_signals(self) -> None:
        """Let `end_soon` end the app from now on; called by the app, in its own context."""
        self._own_loop = (asyncio.get_running_loop(), contextvars.copy_context())
        self.app_resume_signal.subscribe(self, self._continued)

    def action_to_shell(self) -> None:
        """Stop, so that the shell has the terminal; in a field of several lines ctrl+z takes back
        what was typed.
        """
        if isinstance(self.focused, TextArea):
            self.focused.action_undo()
        else:
            self.action_suspend_process()

    def was_not_stopped(self) -> None:
        """There is no shell that could continue it."""
        self.notify("not started from a shell with job control", severity="warning")

    def _continued(self, _: App[None]) -> None:
        self.refresh(layout=True)

    @property
    def is_ending(self) -> bool:
        return self.ended_by is not None

    def end(self, number: int) -> None:
        """Leave because of a signal."""
        if not self.is_ending:
            self.ended_by = number
            self.exit(return_code=128 + number)

    def end_soon(self, number: int) -> bool:
        """`end`, for threads and handlers of signals; False where the app does not run."""
        if self._own_loop is None:
            return False
        loop, context = self._own_loop
        loop.call_soon_threadsafe(self.end, number, context=context)
        return True

    def hung_up(self) -> None:
        """Handle the loss of the terminal, with or without a signal."""
        self.end_soon(signal.SIGHUP)

    def restore_terminal(self) -> None:
        """At once, for a process that ends without the app."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.restore()

    @property
    def crash(self) -> Exception | None:
        """Error of the app itself that ended it; None for none."""
        return self._exception

    def _fatal_error(self) -> None:
        # Textual would print a traceback with the values of all variables; the caller of the app
        # reports the crash.
        self._close_messages_no_wait()
