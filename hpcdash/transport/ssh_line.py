"""An open chain of ssh connections to a login node, and how it ends.

Opens none, and runs nothing in it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

import asyncssh
from msgspec import Struct, field

from hpcdash.transport.proxy_command import Proxy

_CLOSE_SECONDS = 2.0


class SshLine(Struct):
    """An open chain; `connection` is the last hop's."""

    connections: list[asyncssh.SSHClientConnection] = field(default_factory=list)
    proxy: Proxy | None = None
    labels: list[str] = field(default_factory=list)

    @property
    def connection(self) -> asyncssh.SSHClientConnection:
        return self.connections[-1]

    def add(self, connection: asyncssh.SSHClientConnection, label: str) -> None:
        """The next hop; its connection goes through the one before."""
        _forget_unsent(connection)
        self.connections.append(connection)
        self.labels.append(label)

    def abort(self) -> None:
        """Drop everything at once, the last hop first."""
        for connection in reversed(self.connections):
            connection.abort()
        self._end_proxy()

    async def close(self) -> None:
        """Disconnect from each hop, the last first; a silent one is dropped."""
        for connection in reversed(self.connections):
            _forget_unsent(connection, on=False)
            connection.close()
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()
        self._end_proxy()

    def _end_proxy(self) -> None:
        if self.proxy is not None:
            self.proxy.end()


def _forget_unsent(connection: asyncssh.SSHClientConnection, *, on: bool = True) -> None:
    """Discard data that a dropped connection has not sent yet.

    Else the kernel would continue for minutes, and deliver a script after it was searched.
    """
    sock = connection.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # A connection that has ended meanwhile has nothing left to send.
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", int(on), 0))
