"""A command that was not sent whole is told apart from one whose answer was lost, and is not sent
afterwards either.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from hpcdash.errors import ConnectionFailed, NotSent
from hpcdash.transport.ssh import SshTransport
from tests.support.cut_line import CutLine
from tests.support.person import Person
from tests.support.sshd import Sshd


async def test_a_command_whose_line_is_cut_before_its_stdin_was_sent_is_not_sent(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    line = CutLine(sshd.port)
    await line.start()
    known, config = tmp_path / "known_hosts", tmp_path / "config"
    known.write_text(f"[127.0.0.1]:{line.port} {sshd.host_key_line}\n")
    config.write_text(
        f"Host login1\n  HostName 127.0.0.1\n  Port {line.port}\n  User {user}\n"
        f"  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n"
    )
    transport = SshTransport("login1", Person(), config_path=config, known_hosts=known)
    try:
        await transport.connect()
        line.cut_after("up", 0)
        with pytest.raises(NotSent, match="lost before running cat"):
            await transport.run(("cat",), stdin=b"half")
        await transport.connect(force=True)
        line.cut_after("up", 0)
        # One that reads nothing may have begun.
        with pytest.raises(ConnectionFailed) as lost:
            await transport.run(("true",))
        assert not isinstance(lost.value, NotSent)
        line.close_door()
        with pytest.raises(NotSent, match="refused the connection"):
            await transport.connect(force=True)
    finally:
        await transport.close()
        await line.stop()


async def test_what_a_dropped_line_had_not_sent_yet_is_never_sent(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    known, config = tmp_path / "known_hosts", tmp_path / "config"
    listening = socket.create_server(("127.0.0.1", 0))
    # So that almost all that is sent waits in the sender's kernel.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    known.write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
    config.write_text(
        f"Host login1\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {user}\n"
        f"  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n"
    )
    transport = SshTransport("login1", Person(), config_path=config, known_hosts=known)
    await transport.connect()
    assert transport._connection is not None
    ours = transport._connection.last_hop.get_extra_info("socket")
    option = ours.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    sender = socket.create_connection(listening.getsockname())
    reader, _ = listening.accept()
    try:
        # What the line's own socket does when it is closed, seen on one whose other end does not
        # read.
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
        sender.setblocking(False)
        sent = 0
        try:
            while True:
                sent += sender.send(bytes(4096))
        except BlockingIOError:
            sender.close()
        arrived, was_reset = await asyncio.to_thread(read_to_the_end, reader)
        assert was_reset
        assert arrived < sent
    finally:
        for sock in (sender, reader, listening):
            sock.close()
        await transport.close()


def read_to_the_end(reader: socket.socket) -> tuple[int, bool]:
    """How many bytes came, and whether the other side broke off."""
    arrived = 0
    try:
        while chunk := reader.recv(1 << 16):
            arrived += len(chunk)
    except ConnectionResetError:
        return arrived, True
    return arrived, False
