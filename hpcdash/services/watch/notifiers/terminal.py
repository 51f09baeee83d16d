"""Alerts to a terminal: its bell, and a desktop notification where it knows OSC 9."""

from __future__ import annotations

import os
from collections.abc import Callable

from hpcdash.config.watch_settings import TerminalSettings
from hpcdash.domain.text import clip
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import NotifyFailed, in_thread

BELL = "\a"
_LONGEST_CELLS = 200
_LIMIT_SECONDS = 5.0

Write = Callable[[str], None]


def write_to_terminal(text: str) -> None:
    """To the terminal this process is of; raises OSError where it has none."""
    descriptor = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class TerminalNotifier:
    """`write` takes what a terminal is sent; a terminal that is stopped (ctrl+s) is given up on."""

    def __init__(
        self, settings: TerminalSettings | None = None, write: Write = write_to_terminal
    ) -> None:
        self._settings = settings or TerminalSettings()
        self._write = write

    @property
    def name(self) -> str:
        return "this terminal"

    async def send(self, message: Message) -> None:
        """Raises NotifyFailed where there is no terminal."""
        shown = ""
        if self._settings.notification:
            # A text that began with `4;` would set the progress of ConEmu's task bar.
            shown += f"\x1b]9;hpcdash {clip(message.subject, _LONGEST_CELLS)}\x1b\\"
        if self._settings.bell:
            shown += BELL
        try:
            await in_thread(lambda: self._write(shown), _LIMIT_SECONDS)
        except (OSError, TimeoutError) as error:
            raise NotifyFailed(
                f"{self.name}: {error or 'does not accept it'}", is_lasting=True
            ) from None
