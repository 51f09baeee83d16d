"""What one types to go somewhere in a log: a text to search for, a percentage, a time. Goes nowhere itself."""

from __future__ import annotations

from collections.abc import Callable

from hpcdash.ui.widgets.command_bar import CommandBar
from hpcdash.ui.widgets.log_pane import LogPane

_PERCENTAGE = "a percentage: 0 to 100"


def nothing_there(pane: LogPane | None) -> str:
    """Why there are no lines to go through; '' where there are some."""
    if pane is not None and pane.window.rows:
        return ""
    if pane is None or not pane.path or pane.window.looked_at is None:
        return "nothing to go through: no log is open"
    return f"nothing to go through: {pane.window.look.problem or 'the log is empty'}"


class LogPrompts:
    """Asks in a bar, and sends the stream that keys are for when it is entered to where it says."""

    def __init__(self, bar: Callable[[], CommandBar], pane: Callable[[], LogPane | None]) -> None:
        self._bar = bar
        self._pane = pane

    def ask_text(self) -> None:
        if (pane := self._pane()) is not None:
            self._bar().ask("search", pane.search_text, sign="/", take=self._take_text)

    def _take_text(self, typed: str) -> str:
        pane = self._pane()
        if typed and (words := nothing_there(pane)):
            return words
        if pane is not None:
            pane.search(typed)
        return ""

    def ask_percent(self) -> None:
        if self._pane() is not None:
            self._bar().ask("percent", sign="%", take=self._take_percent)

    def _take_percent(self, typed: str) -> str:
        try:
            percent = float(typed.strip().removesuffix("%"))
        except ValueError:
            return _PERCENTAGE
        if not 0 <= percent <= 100:
            return _PERCENTAGE
        pane = self._pane()
        if words := nothing_there(pane):
            return words
        if pane is not None:
            pane.go_percent(percent)
        return ""

    def ask_time(self) -> None:
        if self._pane() is not None:
            self._bar().ask("time", sign="@", take=self._take_time)

    def _take_time(self, typed: str) -> str:
        if not typed.strip():
            return ""
        pane = self._pane()
        if words := nothing_there(pane):
            return words
        if pane is not None:
            pane.go_time(typed)
        return ""
