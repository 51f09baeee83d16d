"""Alerts to a terminal: its bell, and a desktop notification where it knows OSC 9."""

from __future__ import annotations

import os
from collections.abc import Callable

from hpcdash.config.watch_settings import TerminalSettings
from hpcdash.domain.text import clip
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import Notifier, NotifyFailed, in_thread

BELL = "\a"
_LONGEST_CELLS = 200
_LIMIT_SECONDS = 5.0


def write_to_terminal(text: str) -> None:
    """Write to the terminal of this process; raises OSError if there is none."""
    descriptor = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class TerminalNotifier(Notifier):
    """`write` takes what a terminal is sent; a terminal that is stopped (ctrl+s) is given up on."""

    name = "this terminal"

    def __init__(
        self,
        settings: TerminalSettings | None = None,
        write: Callable[[str], object] = write_to_terminal,
    ) -> None:
        self._settings = settings or TerminalSettings()
        self._write = write

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
            text = f"{self.name}: {error or 'does not accept it'}"
            raise NotifyFailed(text, is_lasting=True) from None
