"""An open connection to a login node through all its hops, and its ProxyCommand."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import tempfile
from contextlib import suppress
from typing import IO

import asyncssh
from msgspec import Struct, field

from hpcdash.child_process import ChildProcess
from hpcdash.errors import excerpt

_CLOSE_SECONDS = 2.0


class Proxy(Struct, frozen=True):
    """A running ProxyCommand; its stderr goes to an unnamed file."""

    process: ChildProcess
    stderr: IO[bytes]

    def message(self) -> str:
        self.stderr.seek(0)
        return excerpt(self.stderr.read(), 300)

    def end(self) -> None:
        if self.process.returncode is None:
            self.process.signal(signal.SIGTERM)


def start_proxy(command: str) -> tuple[Proxy, socket.socket]:
    """Run a ProxyCommand in the shell, as ssh does; the socket is its stdin and stdout."""
    stderr = tempfile.TemporaryFile()  # noqa: SIM115
    ours, theirs = socket.socketpair()
    with theirs:
        process = ChildProcess(
            ("/bin/sh", "-c", "exec " + command),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=stderr,
        )
    ours.setblocking(False)
    return Proxy(process, stderr), ours


class SshConnection(Struct):
    """Open connections to all hops, each through the one before; `labels` are the hops'."""

    hops: list[asyncssh.SSHClientConnection] = field(default_factory=list)
    proxy: Proxy | None = None
    labels: list[str] = field(default_factory=list)

    @property
    def last_hop(self) -> asyncssh.SSHClientConnection:
        return self.hops[-1]

    def add(self, hop: asyncssh.SSHClientConnection, label: str) -> None:
        """Add the connection to the next hop."""
        _discard_unsent(hop)
        self.hops.append(hop)
        self.labels.append(label)

    def abort(self) -> None:
        """Drop all connections at once, the last hop's first."""
        for hop in reversed(self.hops):
            hop.abort()
        self._end_proxy()

    async def close(self) -> None:
        """Disconnect from each hop, the last first; a silent one is dropped."""
        for hop in reversed(self.hops):
            _discard_unsent(hop, on=False)
            hop.close()
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await hop.wait_closed()
            except TimeoutError:
                hop.abort()
        self._end_proxy()

    def _end_proxy(self) -> None:
        if self.proxy is not None:
            self.proxy.end()


def _discard_unsent(connection: asyncssh.SSHClientConnection, *, on: bool = True) -> None:
    """Have the kernel discard unsent data when the connection is dropped.

    Otherwise it would retry for minutes, and might deliver a script after hpcdash searched for its
    job.
    """
    sock = connection.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # A connection that has ended meanwhile has no unsent data.
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", int(on), 0))
