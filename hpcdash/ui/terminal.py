"""Driver for a terminal that may disappear, or be taken back by the shell for a while.

Textual's own driver reads a lost terminal for ever, blocks if nothing reads its output, stops
itself without a shell that could continue it, and enters application mode twice.
"""

from __future__ import annotations

import os
import select
import signal
import termios
import threading
import time
from typing import IO, Any

from textual.drivers.linux_driver import LinuxDriver

from hpcdash.domain.text import clip, visible

# Ends the modes of LinuxDriver: mouse, paste, focus, window sizes, keys, alternate screen, hidden
# cursor, no line wrap.
_RESET = (
    b"\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?7h\x1b[<u"
    b"\x1b[?1049l\x1b[?25h"
)
# A process group with a shell stops within this time; without a shell it is not stopped.
_STOPS_WITHIN_SECONDS = 0.5
_NOTIFICATION_CELLS = 200


def through_tmux(sequence: str) -> str:
    """Return a control sequence that tmux passes on if its `allow-passthrough` is on."""
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"


def desktop_notification(style: str, text: str, *, in_tmux: bool = False) -> str:
    """Return the sequence of a notification: "bell", "osc9" or "osc777".

    "osc9" is for iTerm2, kitty, WezTerm, Ghostty …, "osc777" for urxvt, foot, VTE. A bell is added
    to each, for terminals that know neither; no control character of `text` reaches the terminal.
    """
    shown = clip(visible(text), _NOTIFICATION_CELLS)
    # A leading digit would be another command of ConEmu; a semicolon ends a field of OSC 777.
    sequence = {
        "osc9": f"\x1b]9;hpcdash: {shown}\x1b\\",
        "osc777": f"\x1b]777;notify;hpcdash;{shown.replace(';', ',')}\x1b\\",
    }.get(style, "")
    return (through_tmux(sequence) if in_tmux and sequence else sequence) + "\a"


class TerminalDriver(LinuxDriver):
    """Textual's driver, which calls the app's `hung_up` after the loss of the terminal.

    It calls `was_not_stopped` if ctrl+z did not stop the program.
    """

    def __init__(self, app: Any, **arguments: Any) -> None:
        super().__init__(app, **arguments)
        self._app: Any = app
        self._file: Any = _Outlet(self._file)
        self._attributes: list[Any] | None = None
        # Whether the shell has the terminal, and whether SIGCONT has arrived since.
        self._is_left = False
        self._was_continued = False
        self._watch: threading.Thread | None = None

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._attributes = self._attributes or self.attrs_before
        if self._watch is None and self.input_tty:
            self._watch = threading.Thread(
                target=self._wait_for_hangup, name="hpcdash-hangup", daemon=True
            )
            self._watch.start()

    def stop_application_mode(self) -> None:
        if not self._is_left:
            super().stop_application_mode()

    def write(self, data: str) -> None:
        # Output is dropped while another program has the screen, which is redrawn afterwards.
        if self._writer_thread is not None and self._writer_thread.is_alive():
            super().write(data)

    def restore(self) -> None:
        """Restore the terminal at once, from any state, for the end of the program."""
        if self._attributes is None or self._is_left:
            return
        try:
            os.write(self._file.fileno(), _RESET)
            termios.tcsetattr(self.fileno, termios.TCSANOW, self._attributes)
        except (OSError, termios.error):
            pass

    # -- lost terminal

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            self._app.hung_up()

    def _wait_for_hangup(self) -> None:
        poll = select.poll()
        poll.register(self.fileno, 0)
        # Where poll does not support terminals (macOS) it returns at once, and only SIGHUP is left.
        if any(event & select.POLLHUP for _, event in poll.poll()):
            self._app.hung_up()

    # -- suspension (ctrl+z) and return (fg)

    def _sigtstp_application(self, *_: object) -> None:
        """Stop the whole process group, as ctrl+z does elsewhere: a shell waits for its leader."""
        is_shown = self._auto_restart and not self._is_left
        if is_shown:
            self.suspend_application_mode()
            self._is_left = self._must_signal_resume = True
        self._was_continued = False
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
            deadline = time.monotonic() + _STOPS_WITHIN_SECONDS
            while not self._was_continued and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            signal.signal(signal.SIGTSTP, self._sigtstp_application)
        if is_shown:
            self._come_back()
            if not self._was_continued:
                self._app.was_not_stopped()

    def _sigcont_application(self, *_: object) -> None:
        self._was_continued = True
        if not self._auto_restart:
            return
        if not self._is_left:
            # After SIGSTOP another program may have changed the terminal.
            self.suspend_application_mode()
            self._is_left = self._must_signal_resume = True
        if signal.getsignal(signal.SIGTSTP) != signal.SIG_DFL:
            self._come_back()

    def _come_back(self) -> None:
        """Resume in the terminal; in the background this fails, and the next SIGCONT retries."""
        if not self._is_left or self._app.is_ending:
            return
        self.resume_application_mode()
        self._is_left = self._key_thread is None or not self._key_thread.is_alive()


class _Outlet:
    """Stream that drops output after the loss of its terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()
