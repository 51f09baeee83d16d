"""Runs a ProxyCommand of ~/.ssh/config and keeps what it says. Knows nothing of ssh itself."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from dataclasses import dataclass
from typing import IO

from hpcdash.errors import excerpt
from hpcdash.transport.local import signal_group


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running ProxyCommand; what it says on stderr goes into a file without a name."""

    process: asyncio.subprocess.Process
    words: IO[bytes]

    def said(self) -> str:
        self.words.seek(0)
        return excerpt(self.words.read(), 300)

    def end(self) -> None:
        if self.process.returncode is None:
            signal_group(self.process.pid, signal.SIGTERM)


async def start_proxy(command: str) -> tuple[Proxy, socket.socket]:
    """Run a ProxyCommand as ssh does, in the shell, with a socket for its stdin and stdout."""
    words = tempfile.TemporaryFile()  # noqa: SIM115
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            "exec " + command,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=words,
            start_new_session=True,
        )
    ours.setblocking(False)
    return Proxy(process, words), ours
