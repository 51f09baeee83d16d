"""Near end of a forward: its connections over the stdin and stdout of a relay on the job's node."""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcdash.errors import HpcdashError
from hpcdash.shell_files import shell_text
from hpcdash.transport.base import Pipe, Transport

# As in relay_node.py, which it is sent to.
WINDOW_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 14
_MAX_LINE_BYTES = 1 << 17
# Without python3 on the node, each connection is a command of its own.
_MAX_COMMANDS = 3


class Listener(Struct, frozen=True):
    """User of the program that listens on the far port (`uid`; None: nothing listens), and the
    relay's own.
    """

    own_uid: int
    uid: int | None = None

    @property
    def is_own(self) -> bool:
        return self.uid == self.own_uid


def relay_command(token: str, port: int, way: str = "") -> tuple[str, ...]:
    """Build the command of the far end; `way` is `carry` for a single connection."""
    program = Path(__file__).with_name("relay_node.py").read_text("utf-8")
    listener = shell_text("services/forward/listener.sh")
    script = shell_text("services/forward/relay.sh")
    return ("sh", "-c", script, "sh", token, str(port), program, listener, way)


class _Client:
    """Connection of a program on this machine, and its flow control."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.unconfirmed = 0
        self.may_send = asyncio.Event()
        self.may_send.set()

    def confirm(self, count: int) -> None:
        self.unconfirmed -= count
        if self.unconfirmed < WINDOW_BYTES:
            self.may_send.set()

    async def read(self) -> bytes:
        """Return what the program sent, b"" at its end; wait while too much is unconfirmed."""
        await self.may_send.wait()
        content = await self.reader.read(_CHUNK_BYTES)
        self.unconfirmed += len(content)
        if self.unconfirmed >= WINDOW_BYTES:
            self.may_send.clear()
        return content


class Relay:
    """Running relay: one pipe for all connections, or one for each if the node has no python3.

    `listener` is None until the relay has reported; `on_change` is called when it changes.
    `carry_argv` runs the command of one connection over `transport`.
    """

    def __init__(
        self,
        transport: Transport,
        pipe: Pipe,
        token: str,
        carry_argv: tuple[str, ...],
        on_change: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._pipe = pipe
        self._token = token.encode()
        self._carry_argv = carry_argv
        self._on_change = on_change
        self._carries = ""
        self._clients: dict[str, _Client] = {}
        self._numbers = itertools.count(1)
        self._commands = asyncio.Semaphore(_MAX_COMMANDS)
        self._sending = asyncio.Lock()
        self.listener: Listener | None = None
        # Reason of the last refused connection.
        self.refusal = ""

    async def run(self) -> None:
        """Read the relay's lines until it ends."""
        try:
            await self._read_lines(self._pipe, self._receive)
        finally:
            for client in self._clients.values():
                client.received.put_nowait(None)
                client.writer.transport.abort()

    async def _read_lines(self, pipe: Pipe, receive: Callable[[list[bytes]], object]) -> None:
        """Pass on the words of each line after the token; drop other lines."""
        rest = b""
        async for chunk in pipe:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _MAX_LINE_BYTES:
                rest = b""
            for line in lines:
                token, _, text = line.partition(b" ")
                if token == self._token:
                    receive(text.split(b" ", 2))

    def _receive(self, parts: list[bytes]) -> None:
        kind = parts[0]
        number = parts[1].decode("ascii", "replace") if len(parts) > 1 else ""
        content = parts[2] if len(parts) > 2 else b""
        if kind == b"port":
            self._set_listener(number, content)
            return
        if kind == b"carries":
            self._carries = number
            return
        client = self._clients.get(number)
        if client is None:
            return
        if kind == b"d":
            client.received.put_nowait(_decoded(content))
        elif kind == b"w" and content.isdigit():
            client.confirm(int(content))
        elif kind == b"e":
            client.received.put_nowait(b"")
        elif kind == b"x":
            self.refusal = content.decode("utf-8", "replace")
            client.received.put_nowait(None)

    def _set_listener(self, own: str, uid: bytes) -> None:
        if own.isascii() and own.isdigit():
            self.listener = Listener(int(own), int(uid) if uid.isdigit() else None)
            self._on_change()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection of this machine to the far port, to its end."""
        if self.listener is None or not self.listener.is_own or self._carries == "none":
            return
        if self._carries == "one":
            async with self._commands:
                await self._carry_alone(reader, writer)
            return
        number = str(next(self._numbers))
        client = self._clients[number] = _Client(reader, writer)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._send(f"o {number}")
            both = (self._send_all(number, client), self._write_received(number, client))
            tasks += map(asyncio.ensure_future, both)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            await self._send(f"x {number}")
        except OSError:
            # The relay has ended, and `run` with it.
            return
        finally:
            del self._clients[number]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_all(self, number: str, client: _Client) -> None:
        """Send what the program sends; raises OSError if its connection breaks."""
        while content := await client.read():
            await self._send(f"d {number} {base64.b64encode(content).decode()}")
        await self._send(f"e {number}")

    async def _write_received(self, number: str, client: _Client) -> None:
        """Write what the server sends; raises OSError if one of the connections breaks."""
        while content := await client.received.get():
            client.writer.write(content)
            await client.writer.drain()
            await self._send(f"w {number} {len(content)}")
        if content is None:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        client.writer.write_eof()

    async def _send(self, line: str) -> None:
        async with self._sending:
            await self._pipe.write(f"{line}\n".encode())

    async def _carry_alone(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry a connection by a command of its own."""

        def receive(parts: list[bytes]) -> None:
            if parts[0] == b"d" and len(parts) > 1:
                writer.write(_decoded(parts[1]))
            elif parts[0] == b"e":
                writer.write_eof()
            elif parts[0] == b"x":
                self.refusal = b" ".join(parts[1:]).decode("utf-8", "replace")

        async def send(pipe: Pipe) -> None:
            while content := await reader.read(_CHUNK_BYTES):
                await pipe.write(content)
            pipe.write_eof()

        async with self._transport.open_pipe(self._carry_argv) as pipe:
            sending = asyncio.ensure_future(send(pipe))
            receiving = asyncio.ensure_future(self._read_lines(pipe, receive))
            try:
                await receiving
            finally:
                for task in (sending, receiving):
                    task.cancel()
                await asyncio.gather(sending, receiving, return_exceptions=True)


class HeadPort:
    """Carries connections to a port of the host whose server runs the jobs.

    `open_port` connects to it. Its jobs have no users, so that a port has no owner to check.
    """

    def __init__(self, open_port: Callable[[int], Awaitable[tuple[Any, Any]]], port: int) -> None:
        self._open_port = open_port
        self._port = port

    async def check(self) -> None:
        """Raise ConnectionFailed if nothing listens."""
        _, writer = await self._open_port(self._port)
        writer.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection of this machine, to its end."""
        far_reader, far_writer = await self._open_port(self._port)
        pairs = ((reader, far_writer), (far_reader, writer))
        tasks = [asyncio.ensure_future(_copy(*pair)) for pair in pairs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            far_writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: Any, writer: Any) -> None:
    while content := await reader.read(_CHUNK_BYTES):
        writer.write(content)
        await writer.drain()
    writer.write_eof()


def _decoded(content: bytes) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        raise HpcdashError("the relay sent a damaged line") from None
