"""The dashboard's terminal where that is a browser: packets of `textual.drivers.web_driver` on
stdin and stdout.
"""

from __future__ import annotations

import os
from typing import Any

from textual.driver import Driver
from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """Textual's driver; it calls the app's `hung_up` once the other end is gone."""

    # Like in a terminal, a screenshot is saved where hpcdash runs.
    deliver_binary = Driver.deliver_binary

    def __init__(self, app: Any, **arguments: Any) -> None:
        super().__init__(app, **arguments)
        # They are for this process, and not for its children.
        for name in ("TEXTUAL_DRIVER", "TEXTUAL_COLOR_SYSTEM", "COLUMNS", "ROWS"):
            os.environ.pop(name, None)
        self._app: Any = app
        self._write: Any = self._send

    def run_input_thread(self) -> None:
        super().run_input_thread()
        # Textual's driver would go on without input for ever.
        if not self.exit_event.is_set():
            self._app.hung_up()

    def open_url(self, url: str, new_tab: bool = True) -> None:
        """Show the address: its server may not choose what a browser opens."""
        self._app.notify(f"to be opened by hand: {url}", markup=False)

    def _send(self, packet: bytes) -> None:
        """Write a whole packet, and wait for a slow browser; it is dropped without a reader."""
        try:
            while packet:
                packet = packet[os.write(self.fileno, packet) :]
        except OSError:
            pass
