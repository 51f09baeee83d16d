"""Runs a ProxyCommand of ~/.ssh/config and keeps what it says."""

from __future__ import annotations

import signal
import socket
import tempfile
from typing import IO

from msgspec import Struct

from hpcdash.child_process import ChildProcess
from hpcdash.errors import excerpt


class Proxy(Struct, frozen=True):
    """A running ProxyCommand; what it says on stderr goes into a file without a name."""

    process: ChildProcess
    stderr: IO[bytes]

    def message(self) -> str:
        self.stderr.seek(0)
        return excerpt(self.stderr.read(), 300)

    def end(self) -> None:
        if self.process.returncode is None:
            self.process.signal(signal.SIGTERM)


def start_proxy(command: str) -> tuple[Proxy, socket.socket]:
    """Run a ProxyCommand as ssh does, in the shell, with a socket for its stdin and stdout."""
    text = tempfile.TemporaryFile()  # noqa: SIM115
    ours, theirs = socket.socketpair()
    with theirs:
        process = ChildProcess(
            ("/bin/sh", "-c", "exec " + command),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=text,
        )
    ours.setblocking(False)
    return Proxy(process, text), ours
