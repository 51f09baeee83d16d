"""The dashboard's terminal in a browser: packets of Textual's web driver on stdin and stdout."""

from __future__ import annotations

import os
from typing import Any

from textual.driver import Driver
from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """Textual's driver, which calls the app's `hung_up` once the other end is gone."""

    # As in a terminal, screenshots are saved on the machine that runs hpcdash.
    deliver_binary = Driver.deliver_binary

    def __init__(self, app: Any, **arguments: Any) -> None:
        super().__init__(app, **arguments)
        # These are for this process and not for its children.
        for name in ("TEXTUAL_DRIVER", "TEXTUAL_COLOR_SYSTEM", "COLUMNS", "ROWS"):
            os.environ.pop(name, None)
        self._app: Any = app
        self._write: Any = self._send

    def run_input_thread(self) -> None:
        super().run_input_thread()
        # Textual's driver would continue without input for ever.
        if not self.exit_event.is_set():
            self._app.hung_up()

    def open_url(self, url: str, new_tab: bool = True) -> None:
        """Show the address, as the server must not choose what a browser opens."""
        self._app.notify(f"Open this address by hand: {url}", markup=False)

    def _send(self, packet: bytes) -> None:
        """Write a complete packet, waiting for a slow browser; it is dropped without a reader."""
        try:
            while packet:
                packet = packet[os.write(self.fileno, packet) :]
        except OSError:
            pass
