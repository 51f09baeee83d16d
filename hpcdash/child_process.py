"""Programs that run on this machine, each in a session and process group of its own, which is ended
as a whole.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_KILL_AFTER_SECONDS = 1.0
_Stream = int | IO[bytes]


class ChildProcess:
    """A program that runs; `returncode` is None until it has ended, and -N where signal N ended it.

    It is started before anything is awaited, so that whoever is cancelled knows the group to end.
    asyncio's own start can be cancelled after its fork: then it kills the program alone, and waits
    for whoever else holds its pipes.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: _Stream = subprocess.DEVNULL,
        stdout: _Stream = subprocess.PIPE,
        stderr: _Stream = subprocess.PIPE,
        environment: Mapping[str, str] | None = None,
        controls_terminal: bool = False,
    ) -> None:
        """`controls_terminal`: its stdin is a terminal, whose keys send it signals.

        Raises OSError for what cannot be run.
        """
        self._process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_take_terminal if controls_terminal else None,
        )
        self._transports: list[asyncio.BaseTransport] = []
        self.pid = self._process.pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(
            target=self._reap, args=(loop,), name=f"reap-{self.pid}", daemon=True
        ).start()

    async def wait(self) -> int:
        """Come back with its returncode once it has ended; whatever else holds its pipes is not
        waited for.
        """
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def terminate(self) -> None:
        """End its group: TERM, then KILL for what is left once it has ended, a second later at the
        latest.
        """
        self.signal(signal.SIGTERM)
        try:
            await self._wait_briefly()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End its group at once; its own end is waited for, but no longer than a second."""
        self.signal(signal.SIGKILL)
        await self._wait_briefly()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to what is left of the group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def connect(self, fd: int, protocol: asyncio.Protocol) -> None:
        """Have what comes from its pipe, 1 for stdout or 2 for stderr, given to `protocol`."""
        pipe = self._process.stdout if fd == 1 else self._process.stderr
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        self._transports.append(transport)

    async def read(self, fd: int, chunk_bytes: int) -> asyncio.StreamReader:
        """A reader of its pipe, which holds it back once it is some chunks ahead."""
        reader = asyncio.StreamReader(chunk_bytes)
        await self.connect(fd, asyncio.StreamReaderProtocol(reader))
        return reader

    async def write(self, stdin: bytes, *, keep_open: bool) -> None:
        """Send this to its stdin, and then the end of it unless it is kept open; what it does not
        read is dropped.
        """
        transport = await self.open_stdin()
        transport.write(stdin)
        if not keep_open:
            transport.write_eof()

    async def open_stdin(self) -> asyncio.WriteTransport:
        """Return the stream that it reads; its writer checks how much has not been read yet."""
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(
            asyncio.BaseProtocol, self._process.stdin
        )
        self._transports.append(transport)
        return transport

    async def stdin_writer(self) -> asyncio.StreamWriter:
        """Return a writer of its stdin, whose `drain` waits while it does not read."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, self._process.stdin
        )
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)

    def close(self) -> None:
        """Let go of its pipes; it is not signalled."""
        for transport in self._transports:
            # What was not read of stdin would keep its transport.
            if isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size():
                transport.abort()
            else:
                transport.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    async def _wait_briefly(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILL_AFTER_SECONDS):
                await self.wait()

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        returncode = self._process.wait()
        # A loop that has ended has nobody to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, returncode)

    def _end(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
