"""A person's terminal, lent to a local or remote command until that ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import termios
import tty
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol

ESCAPE_HELP = "enter ~ . disconnects, enter ~ ~ types a ~"
_READ_BYTES = 1 << 16
_NEWLINES = b"\r\n"
# Modes that are on by default: lines wrap, the cursor shows.
_MODES_ON = frozenset((b"7", b"25"))
_MODE = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
_KEYS = re.compile(rb"\x1b\[(>[0-9]*u|<[0-9]*u)")
_MAX_SEQUENCE_BYTES = 48


class FarEnd(Protocol):
    """A command on a pseudo-terminal: its output until it ends, and its input."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def write(self, keys: bytes) -> None: ...

    def resize(self, columns: int, lines: int) -> None: ...


class Terminal:
    """The terminal behind a descriptor, which stays open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def kind(self) -> str:
        """The terminal's name in terminfo."""
        return os.environ.get("TERM") or "dumb"

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        # A terminal on a serial line may not report its size.
        return columns or 80, lines or 24

    async def lend(self, far: FarEnd) -> bool:
        """Connect the terminal to `far` until that ends; False if the person left it with `~.`.

        The terminal is always restored: line editing, signals, screen, mouse, cursor.
        """
        loop = asyncio.get_running_loop()
        before = termios.tcgetattr(self._descriptor)
        left = asyncio.Event()
        escape = _Escape()
        modes = _Modes()

        def typed() -> None:
            try:
                raw = os.read(self._descriptor, _READ_BYTES)
            except OSError:
                raw = b""
            keys = escape.feed(raw)
            if keys:
                far.write(keys)
            # The terminal is gone if there are no bytes.
            if escape.is_over or not raw:
                loop.remove_reader(self._descriptor)
                left.set()

        tty.setraw(self._descriptor, termios.TCSANOW)
        loop.add_reader(self._descriptor, typed)
        loop.add_signal_handler(signal.SIGWINCH, lambda: far.resize(*self.size))
        # The size may have changed since the command was started.
        far.resize(*self.size)
        showing = asyncio.ensure_future(self._show(far, modes))
        leaving = asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait({showing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()
        finally:
            loop.remove_reader(self._descriptor)
            loop.remove_signal_handler(signal.SIGWINCH)
            for task in (showing, leaving):
                task.cancel()
            # A terminal that is gone cannot be restored.
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, before)
                if sequences := modes.reset_sequences():
                    os.write(self._descriptor, sequences)
        return not left.is_set()

    async def _show(self, far: FarEnd, modes: _Modes) -> None:
        async for chunk in far:
            modes.feed(chunk)
            # Writing blocks while the person has stopped the terminal (ctrl+s).
            await asyncio.to_thread(self._write, chunk)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[os.write(self._descriptor, view) :]


class _Escape:
    """Finds `~.` at the start of a typed line and removes it, as ssh does."""

    def __init__(self) -> None:
        self.is_over = False
        self._is_line_start = True
        self._is_pending = False

    def feed(self, raw: bytes) -> bytes:
        """Return the keys for the command."""
        keys = bytearray()
        for key in raw:
            if self._is_pending:
                self._is_pending = False
                if key == ord("."):
                    self.is_over = True
                    break
                keys += b"~" if key == ord("~") else bytes((ord("~"), key))
            elif key == ord("~") and self._is_line_start:
                self._is_pending = True
                continue
            else:
                keys.append(key)
            self._is_line_start = key in _NEWLINES
        return bytes(keys)


class _Modes:
    """Terminal modes that a program has changed and not reset, from its output sequences."""

    def __init__(self) -> None:
        self._changed: dict[bytes, bytes] = {}
        self._key_protocols = 0
        self._end = b""

    def feed(self, chunk: bytes) -> None:
        # A sequence may be cut between two chunks.
        text = self._end + chunk
        start = text.rfind(b"\x1b", max(0, len(text) - _MAX_SEQUENCE_BYTES))
        if start < 0 or re.match(rb"\x1b(\[[^@-~]*[@-~]|[^\[])", text[start:]):
            start = len(text)
        self._end = text[start:]
        text = text[:start]
        for found in _MODE.finditer(text):
            for mode in found[1].split(b";"):
                self._changed.pop(mode, None)
                if (found[2] == b"h") != (mode in _MODES_ON):
                    self._changed[mode] = found[2]
        for found in _KEYS.finditer(text):
            if found[1].startswith(b">"):
                self._key_protocols += 1
            elif self._key_protocols:
                self._key_protocols -= 1

    def reset_sequences(self) -> bytes:
        """Return the sequences that reset the modes, and colours if any mode is changed."""
        if not self._changed and not self._key_protocols:
            return b""
        sequences = b"\x1b[<u" * self._key_protocols
        for mode, letter in reversed(self._changed.items()):
            opposite = b"l" if letter == b"h" else b"h"
            sequences += b"\x1b[?%b%b" % (mode, opposite)
        return sequences + b"\x1b[m"
