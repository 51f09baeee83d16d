"""The dashboard in a terminal of its own: keys go in, the screen is read as text."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pyte

from tests.support.program import Program
from tests.support.waiting import deadline
from tests.support.warm_start import WarmProcess, is_warm, warm_start

_CHUNK_BYTES = 1 << 16
_MODES = re.compile(rb"\x1b\[\?([0-9]+)([hl])")
# A terminal shows its cursor and wraps lines.
_MODES_ON = (7, 25)
_KEYS_PUSHED = re.compile(rb"\x1b\[>[0-9]+u")
# What pyte would print as text: private sequences of newer terminals (keyboard protocols, queries,
# cursor shapes).
UNKNOWN_SEQUENCES = re.compile(
    rb"\x1b\[[<=>][0-9;:]*[A-Za-z]|\x1b\[\?[0-9;]*\$p|\x1b[_P^][^\x1b]*\x1b\\"
)


class Screen:
    """A pseudo-terminal with the dashboard on it; `text` is what a person sees."""

    def __init__(
        self,
        process: subprocess.Popen[bytes] | WarmProcess,
        descriptor: int,
        columns: int,
        lines: int,
    ) -> None:
        self.process = process
        self._descriptor = descriptor
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._unfinished = b""
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()
        self.raw = b""

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def attributes(self) -> list[Any]:
        """What the terminal does with what is typed: echo, lines, signals."""
        return termios.tcgetattr(self._descriptor)

    @property
    def modes_left(self) -> set[str]:
        """What of the terminal's modes is not as it was: mouse, paste, focus, keys, other screen,
        cursor, wrapping.
        """
        switched = {int(mode): letter for mode, letter in _MODES.findall(self.raw)}
        left = {
            f"?{mode}h"
            for mode, letter in switched.items()
            if letter == b"h" and mode not in _MODES_ON
        }
        left |= {
            f"?{mode}l" for mode, letter in switched.items() if letter == b"l" and mode in _MODES_ON
        }
        keys = len(_KEYS_PUSHED.findall(self.raw)) - self.raw.count(b"\x1b[<u")
        return left | ({f"keys {keys}"} if keys else set())

    def hang_up(self) -> None:
        """The terminal is closed: what is at its other end goes."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, self._descriptor)
        os.close(nowhere)

    def read(self) -> None:
        """Take what the program has written."""
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except OSError:
            chunk = b""
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._closed.set()
        self.raw += chunk
        whole = self._unfinished + chunk
        # A sequence may be cut between two reads.
        start = whole.rfind(b"\x1b")
        is_cut = (
            start >= 0
            and len(whole) - start < 40
            and not re.match(rb"\x1b(\[[^@-~]*[@-~]|[^\[_P^])", whole[start:])
        )
        whole, self._unfinished = (
            (whole[:start], whole[start:]) if is_cut and chunk else (whole, b"")
        )
        self._stream.feed(UNKNOWN_SEQUENCES.sub(b"", whole))
        self._changed.set()

    def type(self, keys: str) -> None:
        """Press keys; '\\r' is enter, '\\x1b' escape."""
        os.write(self._descriptor, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """The window has another size; whoever has the terminal hears of it."""
        termios.tcsetwinsize(self._descriptor, (lines, columns))
        self._screen.resize(lines, columns)

    async def until(self, what: Callable[[str], bool] | str) -> str:
        """Wait until the screen holds a text, or something is true of it; fails with the screen."""
        holds = what if callable(what) else lambda text: what in text
        over = deadline()
        while not holds(self.text):
            assert self.process.poll() is None, (
                f"it ended before {what!r}; the screen:\n{self.text}"
            )
            assert time.monotonic() < over, f"waited in vain for {what!r}; the screen:\n{self.text}"
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), 1.0)
            except TimeoutError:
                continue
        return self.text

    async def ended(self) -> int:
        """The exit status, once the program has ended by itself."""
        return await asyncio.to_thread(self.process.wait)

    async def all_output(self) -> bytes:
        """All that was written, once the program and whatever else had the terminal have left
        it.
        """
        await self._closed.wait()
        return self.raw


@asynccontextmanager
async def dashboard(
    program: Program, *words: str, columns: int = 130, lines: int = 36, is_cold: bool = False
) -> AsyncIterator[Screen]:
    """Start the program on a terminal of this size; whatever happens it is ended afterwards.

    `is_cold`: from nothing, where how it starts is what is looked at.
    """
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process: subprocess.Popen[bytes] | WarmProcess
    if is_warm(program.environment) and type(program).argv is Program.argv and not is_cold:
        streams = (theirs, theirs, theirs)
        process = warm_start().start(
            (*program.before, *words), program.environment, program.home, streams
        )
    else:
        process = subprocess.Popen(  # noqa: ASYNC220
            program.argv(*words),
            env=program.environment,
            cwd=program.home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    os.close(theirs)
    os.set_blocking(ours, False)
    screen = Screen(process, ours, columns, lines)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, screen.read)
    try:
        yield screen
    finally:
        loop.remove_reader(ours)
        if process.poll() is None:
            # Between its end and its status there is nothing to kill.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        os.close(ours)
