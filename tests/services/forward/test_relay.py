"""A relay on this machine: what passes through it, to whom, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from hpcdash.services.forward.relay import Relay, relay_command
from hpcdash.shell_files import shell_text
from hpcdash.transport.local import LocalTransport
from tests.support.slurm.layout import free_port
from tests.support.sshd import login_user, until_gone
from tests.support.waiting import until, wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc/net is Linux's"),
]

# Larger than all windows and buffers on the way, with each byte.
LARGE = bytes(range(256)) * 8192
# Listens as another user would, and says so.
LISTEN = (
    "import os, socket, sys; os.setuid(int(sys.argv[1])); s = socket.socket(); "
    "s.bind(('127.0.0.1', int(sys.argv[2]))); s.listen(); print(1, flush=True); sys.stdin.read()"
)


def command(token: str, port: int, way: str = "", *, has_python: bool = True) -> tuple[str, ...]:
    found = relay_command(token, port, way)
    return found if has_python else tuple(part.replace("python", "absent") for part in found)


@asynccontextmanager
async def relay_to(port: int, *, has_python: bool = True) -> AsyncIterator[tuple[Relay, int]]:
    """A relay that has reported, and the port of this machine that it carries."""
    transport = LocalTransport()
    reported = asyncio.Event()
    async with transport.open_pipe(command("tok", port, has_python=has_python)) as pipe:
        carry = command("tok", port, "carry", has_python=has_python)
        relay = Relay(transport, pipe, "tok", carry, reported.set)
        running = asyncio.ensure_future(relay.run())

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await relay.carry(reader, writer)
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        await reported.wait()
        yield relay, server.sockets[0].getsockname()[1]
        server.close()
        running.cancel()
        await asyncio.wait({running})


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """Sends back what it gets until that ends, then `bye`."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
        writer.write(b"bye")
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def exchange(port: int, content: bytes, *, ends: bool = True) -> bytes:
    """What comes back for `content`; without `ends`, as much as it has bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        writer.write(content)
        await writer.drain()
        if ends and not reader.at_eof():
            writer.write_eof()

    sending = asyncio.ensure_future(send())
    try:
        return await (reader.read() if ends else reader.readexactly(len(content)))
    finally:
        await sending
        writer.close()


@pytest.mark.parametrize("has_python", [True, False])
async def test_all_bytes_pass_both_ways_and_each_end_is_the_other_s(has_python: bool) -> None:
    async with echo_server() as far, relay_to(far, has_python=has_python) as (relay, near):
        assert relay.listener is not None
        assert relay.listener.is_own
        answers = await asyncio.gather(
            *(exchange(near, f"{number} ".encode() * 999) for number in range(3))
        )
        assert answers == [f"{number} ".encode() * 999 + b"bye" for number in range(3)]
        # A byte that begins hpcdash's own lines does not wait for another.
        assert await exchange(near, b"a\x1e", ends=False) == b"a\x1e"
        if has_python:
            assert await exchange(near, LARGE) == LARGE + b"bye"
    assert await until_gone("tok") == []


async def test_a_client_that_does_not_read_holds_back_no_other() -> None:
    async with echo_server() as far, relay_to(far) as (_, near):
        reader, writer = await asyncio.open_connection("127.0.0.1", near, limit=1024)
        writer.write(LARGE * 4)
        assert await exchange(near, b"quick") == b"quickbye"
        assert await reader.readexactly(512) == LARGE[:512]
        writer.close()
        assert await exchange(near, b"after") == b"afterbye"


@contextmanager
def listening_as(user: str, port: int) -> Iterator[None]:
    argv = (sys.executable, "-c", LISTEN, str(pwd.getpwnam(user).pw_uid), str(port))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"1\n"
        yield
        assert program.stdin is not None
        program.stdin.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to listen as another user")
@pytest.mark.parametrize("has_python", [True, False])
async def test_another_user_s_port_is_never_connected_to(has_python: bool) -> None:
    other = login_user()
    assert other is not None
    port = free_port()
    with listening_as(other, port):
        async with relay_to(port, has_python=has_python) as (relay, near):
            assert relay.listener is not None
            assert (relay.listener.uid, relay.listener.is_own) == (
                pwd.getpwnam(other).pw_uid,
                False,
            )
            # The far end checks it as well, whatever this side believes.
            relay.listener = type(relay.listener)(0, 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", near)
            writer.write(b"secret")
            assert await reader.read() == b""
            assert relay.refusal == f"the port belongs to uid {pwd.getpwnam(other).pw_uid}"
            writer.close()


async def test_a_port_opens_and_closes_with_its_program() -> None:
    port = free_port()
    async with relay_to(port) as (relay, near):
        assert relay.listener is not None
        assert relay.listener.uid is None
        assert await exchange(near, b"", ends=False) == b""
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", port))
            listening.listen()
            await until(lambda: relay.listener.is_own, "the program")
        await until(lambda: relay.listener.uid is None, "its end")


@pytest.mark.parametrize("has_python", [True, False])
def test_the_far_end_ends_with_its_stdin(has_python: bool) -> None:
    argv = command("tok-of-a-killed-one", free_port(), has_python=has_python)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith(b"tok-of-a-killed-one carries ")
        assert program.stdout.readline().startswith(b"tok-of-a-killed-one port ")
        assert program.stdin is not None
        program.stdin.close()
        wait_until("its end", lambda: program.poll() is not None)


@pytest.mark.parametrize(
    ("bound", "reached"),
    [
        (("127.0.0.1",), "127.0.0.1"),
        (("0.0.0.0",), "127.0.0.1"),
        (("::1",), "::1"),
        (("::",), "::1"),
        (("127.0.0.2",), ""),
    ],
)
def test_the_listener_is_the_one_that_a_connection_would_reach(
    bound: tuple[str, ...], reached: str
) -> None:
    port = free_port()
    sockets = []
    for host in bound:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets.append(socket.socket(family))
        sockets[-1].bind((host, port))
        sockets[-1].listen()
    script = shell_text("services/forward/listener.sh") + '\nlistener "$1"'
    found = subprocess.run(["sh", "-c", script, "sh", str(port)], capture_output=True, text=True)
    for one in sockets:
        one.close()
    assert found.stdout.strip() == (f"{reached} {os.getuid()}" if reached else "")
