"""A program in a pseudo-terminal, watched the way a person would: what is on the screen, and when
it changed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyte

KEYS = {
    "up": "\x1b[A",
    "down": "\x1b[B",
    "pagedown": "\x1b[6~",
    "pageup": "\x1b[5~",
    "enter": "\r",
    "escape": "\x1b",
}
_MEMORY_EVERY_SECONDS = 0.1


class Terminal:
    """`columns` by `rows` cells; every wait has an end."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        columns: int = 160,
        rows: int = 45,
    ) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.peak_bytes = 0
        self._sampled_at = 0.0
        self.started = time.perf_counter()
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            os.execvpe(
                argv[0],
                list(argv),
                {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            )
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size)

    @property
    def pid(self) -> int:
        return self._pid

    def type(self, raw: bytes) -> None:
        """Send bytes as they are."""
        os.write(self._descriptor, raw)

    def text(self) -> str:
        return "\n".join(self._screen.display)

    def _look(self) -> list[str]:
        # A cursor that moves changes colours, not letters.
        return [
            "".join(f"{cell.data}{cell.fg}{cell.bg}{cell.bold}" for _, cell in sorted(line.items()))
            for _, line in sorted(self._screen.buffer.items())
        ]

    def pump(self, seconds: float) -> bool:
        """Take in what comes within `seconds`; whether anything came."""
        self._sample_memory()
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        try:
            raw = os.read(self._descriptor, 1 << 16)
        except OSError:
            raise EOFError(f"the program ended:\n{self.text()}") from None
        for mode in re.findall(rb"\x1b\[\?(\d+)\$p", raw):
            os.write(self._descriptor, b"\x1b[?" + mode + b";0$y")
        self._stream.feed(raw)
        return True

    def memory_bytes(self) -> tuple[int, int]:
        """(resident now, the most ever), as Linux counts them."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        now, most = (
            int(re.search(rf"{key}:\s+(\d+)", status)[1]) << 10 for key in ("VmRSS", "VmHWM")
        )  # type: ignore[index]
        return now, most

    def _sample_memory(self) -> None:
        now = time.perf_counter()
        if now - self._sampled_at >= _MEMORY_EVERY_SECONDS:
            self._sampled_at = now
            try:
                self.peak_bytes = max(self.peak_bytes, psutil.Process(self._pid).memory_info().rss)
            except psutil.Error:
                pass

    def wait_for(self, pattern: str, seconds: float = 30.0) -> float:
        """When a regex first was on the screen, in seconds since the start; TimeoutError with the
        screen otherwise.
        """
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            if self.pump(0.02) and re.search(pattern, self.text()):
                return time.perf_counter() - self.started
        raise TimeoutError(f"{pattern!r} did not come within {seconds:g} s:\n{self.text()}")

    def reconcile(self, quiet_seconds: float = 0.3, most_seconds: float = 5.0) -> None:
        """Wait until nothing was written for a while."""
        end = time.perf_counter() + most_seconds
        while time.perf_counter() < end and self.pump(quiet_seconds):
            pass

    def press(self, key: str, most_seconds: float = 5.0) -> float | None:
        """Seconds from a key to the next change of the screen; None where nothing changed."""
        before = self._look()
        pressed = time.perf_counter()
        os.write(self._descriptor, KEYS.get(key, key).encode())
        while time.perf_counter() - pressed < most_seconds:
            if self.pump(0.005):
                arrived = time.perf_counter()
                if self._look() != before:
                    return arrived - pressed
        return None

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                break
            end = time.perf_counter() + 3
            while time.perf_counter() < end:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    os.close(self._descriptor)
                    return
                try:
                    self.pump(0.02)
                except EOFError:
                    time.sleep(0.01)
        os.close(self._descriptor)
