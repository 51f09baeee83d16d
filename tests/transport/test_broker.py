"""Programs that share a connection to a real sshd through the broker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from hpcdash.errors import (
    CommandTimedOut,
    ConnectionFailed,
    RateLimited,
    UsageError,
)
from hpcdash.transport import broker_frames
from hpcdash.transport.base import BrokerUse, Sharing
from hpcdash.transport.broker import BrokerTransport, inquire
from hpcdash.transport.ssh import SshTransport
from tests.support.person import Person
from tests.support.sshd import Sshd, commands_with, until_gone, until_there
from tests.support.waiting import until
from tests.transport.test_ssh_transport import HOSTILE_WORDS

_NOBODY = 65534
# Says hello as a client, and prints how much it gets.
_GREET = """
import socket, struct, sys
path, hello = sys.argv[1], bytes.fromhex(sys.argv[2])
with socket.socket(socket.AF_UNIX) as line:
    try:
        line.connect(path)
        line.sendall(struct.pack(">I", len(hello)) + hello)
        print(len(line.recv(100)), "bytes")
    except ConnectionError:
        print("0 bytes")
    except OSError as error:
        print(type(error).__name__)
"""
by_root = pytest.mark.skipif(os.getuid() != 0, reason="root alone acts as another account")
RECENT = Sharing(60.0, outlives_actions=False, commands_per_minute=30)
Connect = Callable[..., BrokerTransport]


@pytest.fixture
async def connect(sshd: Sshd, user: str, runtime: Path) -> AsyncIterator[Connect]:
    """Builds programs that log in as `user`; their broker is ended with the test."""
    (runtime / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key_line}\n")
    (runtime / ".ssh" / "config").write_text(
        f"Host *\n  IdentityFile {sshd.key}\n  IdentitiesOnly yes\n"
    )
    async with AsyncExitStack() as stack:

        def build(
            person: Person | None = None, *, is_read_only: bool = False, keep: float = 600.0
        ) -> BrokerTransport:
            person = person or Person(is_here=False)
            login = f"{user}@127.0.0.1:{sshd.port}"
            use = BrokerUse("hpcdash jobs", is_read_only, keep)
            transport = BrokerTransport([login], person, use, lambda: SshTransport(login, person))
            stack.push_async_callback(transport.close)
            return transport

        yield build
    await inquire(stop=True)


def logins(sshd: Sshd) -> int:
    return sshd.log.count("Accepted publickey")


async def ask(transport: BrokerTransport, *words: str, sharing: Sharing = RECENT) -> str:
    argv = ("sh", "-c", "\n".join(words))
    result = await transport.query(argv, limit_seconds=30.0, cap_bytes=1 << 20, sharing=sharing)
    return result.stdout.decode().strip()


async def test_two_programs_share_one_login(sshd: Sshd, connect: Connect) -> None:
    before = logins(sshd)
    first, second = connect(), connect()
    await asyncio.gather(first.connect(), second.connect())
    answers = await asyncio.gather(first.run(("echo", "1")), second.run(("echo", "2")))
    assert [answer.stdout for answer in answers] == [b"1\n", b"2\n"]
    assert logins(sshd) == before + 1
    assert (first.health.state, second.health.state) == ("connected", "connected")
    assert not first.alone_because


async def test_words_output_stdin_and_status_pass_unchanged(connect: Connect) -> None:
    transport = connect()
    printed = await transport.run(("printf", "%s\\n", *HOSTILE_WORDS))
    expected = "".join(f"{word}\n" for word in HOSTILE_WORDS)
    assert printed.stdout == expected.encode("utf-8", "surrogateescape")
    heard: list[bytes] = []
    answer = await transport.run(
        ("sh", "-c", "cat; echo oops >&2; exit 7"), stdin=b"\0\xff", on_output=heard.append
    )
    assert (answer.stdout, answer.status, b"".join(heard)) == (b"\0\xff", 7, b"oops\n")
    pieces: list[bytes] = []
    await transport.run(("seq", "100000"), on_stdout=pieces.append)
    assert b"".join(pieces).endswith(b"\n100000\n")


async def test_a_time_limit_is_reported_as_without_a_broker(connect: Connect) -> None:
    with pytest.raises(CommandTimedOut) as caught:
        await connect().run(("sleep", "4711"), limit_seconds=0.5)
    assert caught.value.argv == ("sleep", "4711")
    assert not await until_gone("sleep 4711")


async def test_a_stream_ends_with_its_reader(connect: Connect) -> None:
    transport = connect()
    async with transport.stream(("sh", "-c", "seq 200000; sleep 4712")) as stream:
        read = b""
        async for chunk in stream:
            read += chunk
            if read.endswith(b"\n200000\n"):
                break
        await until_there("sleep 4712")
    assert not await until_gone("sleep 4712")


async def test_a_program_that_leaves_ends_its_commands(connect: Connect) -> None:
    leaving, staying = connect(), connect()
    await staying.connect()
    running = asyncio.ensure_future(leaving.run(("sleep", "4713")))
    await until_there("sleep 4713")
    await leaving.close()
    with pytest.raises(ConnectionFailed):
        await running
    assert not await until_gone("sleep 4713")
    assert (await staying.run(("echo", "on"))).stdout == b"on\n"


async def test_equal_queries_share_an_answer_with_its_age(connect: Connect) -> None:
    first, second = connect(), connect()
    command = "date +%N; echo \x1eAAAAAAAAAA"
    one = await ask(first, command)
    two = await ask(second, command.replace("A", "B"))
    assert two == one.replace("A", "B")
    state = await inquire()
    assert state is not None
    assert [(known.sent, known.shared) for known in state.connections] == [(1, 1)]


async def test_simultaneous_queries_are_one_command(connect: Connect) -> None:
    programs = [connect() for _ in range(5)]
    answers = await asyncio.gather(*(ask(one, "sleep 0.3", "date +%N") for one in programs))
    assert len(set(answers)) == 1


async def test_a_query_that_others_wait_for_outlives_its_sender(connect: Connect) -> None:
    first, second = connect(), connect()
    query = ("sleep 1", "echo 4714")
    sent = asyncio.ensure_future(ask(first, *query))
    await until_there("4714")
    waiting = asyncio.ensure_future(ask(second, *query))
    await second.run(("true",))
    sent.cancel()
    assert await waiting == "4714"


async def test_no_answer_is_older_than_an_action_or_than_allowed(connect: Connect) -> None:
    acting, looking = connect(), connect()
    one = await ask(looking, "date +%N")
    assert await ask(looking, "date +%N") == one
    await acting.act(("true",), stdin=None, limit_seconds=9, cap_bytes=9, on_output=None)
    two = await ask(looking, "date +%N")
    assert two != one
    site = Sharing(60.0, outlives_actions=True, commands_per_minute=30)
    assert await ask(looking, "date +%N", sharing=site) == two
    anew = Sharing(0.0, outlives_actions=False, commands_per_minute=30)
    assert await ask(looking, "date +%N", sharing=anew) != two


async def test_a_failed_query_is_not_shared(connect: Connect) -> None:
    first, second = connect(), connect()
    failing = "date +%N; exit 1"
    assert await ask(first, failing) != await ask(second, failing)


async def test_the_ceiling_counts_the_commands_of_all(connect: Connect) -> None:
    few = Sharing(0.0, outlives_actions=False, commands_per_minute=2)
    await ask(connect(), "echo 1", sharing=few)
    await ask(connect(), "echo 2", sharing=few)
    with pytest.raises(RateLimited, match="2 commands per minute"):
        await ask(connect(), "echo 3", sharing=few)


async def test_a_read_only_program_changes_nothing(connect: Connect) -> None:
    transport = connect(is_read_only=True)
    assert (await transport.run(("echo", "read"))).stdout == b"read\n"
    for stdin in (None, b"x"):
        with pytest.raises(UsageError, match="touch was not run"):
            await transport.act(
                ("touch", "/tmp/x"), stdin=stdin, limit_seconds=9, cap_bytes=9, on_output=None
            )
    with pytest.raises(UsageError, match="cat was not run"):
        await transport.run(("cat",), stdin=b"x")


async def test_the_broker_ends_with_its_last_program(connect: Connect) -> None:
    first, second = connect(keep=0), connect(keep=0)
    await asyncio.gather(first.connect(), second.connect())
    state = await inquire()
    assert state is not None
    assert len(state.connections[0].clients) == 2
    await first.close()
    assert (await second.run(("echo", "on"))).stdout == b"on\n"
    await second.close()
    await until(lambda: not _is_running(state.pid), "the end of the broker")


async def test_a_broker_that_is_killed_is_started_anew(connect: Connect) -> None:
    transport = connect()
    await transport.connect()
    state = await inquire()
    assert state is not None
    running = asyncio.ensure_future(transport.run(("sleep", "4715")))
    await until_there("sleep 4715")
    os.kill(state.pid, signal.SIGKILL)
    with pytest.raises(ConnectionFailed, match="ended while running sleep"):
        await running
    assert transport.health.state == "lost"
    assert (await transport.run(("echo", "on"))).stdout == b"on\n"
    assert not await until_gone("sleep 4715")


async def test_another_version_works_alone(
    connect: Connect, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connect().connect()
    before = logins(sshd)
    monkeypatch.setattr(broker_frames, "VERSION", broker_frames.VERSION + 1)
    other = connect()
    assert (await other.run(("echo", "alone"))).stdout == b"alone\n"
    assert "another version" in other.alone_because
    assert logins(sshd) == before + 1
    monkeypatch.undo()


@by_root
async def test_a_folder_that_is_not_ones_own_is_not_used(connect: Connect, runtime: Path) -> None:
    (runtime / "elsewhere").mkdir()
    os.chown(runtime / "elsewhere", 65534, 65534)
    (runtime / "hpcdash").symlink_to(runtime / "elsewhere")
    transport = connect()
    assert (await transport.run(("echo", "alone"))).stdout == b"alone\n"
    assert "belongs to" in transport.alone_because
    assert not commands_with(str(runtime / "hpcdash"))
    (runtime / "hpcdash").unlink()


async def test_the_socket_is_closed_to_others(connect: Connect, runtime: Path) -> None:
    await connect().connect()
    folder = runtime / "hpcdash"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o077 for file in folder.iterdir()} == {0}


@by_root
async def test_another_account_gets_nothing_of_the_broker(connect: Connect, runtime: Path) -> None:
    await connect().connect()
    [path] = [file for file in (runtime / "hpcdash").iterdir() if file.is_socket()]
    status = broker_frames.Hello(broker_frames.VERSION, 1, "status")
    hello = msgspec.msgpack.encode(status)
    words = (sys.executable, "-c", _GREET, str(path), hello.hex())

    async def greet() -> bytes:
        asked = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, user=_NOBODY, group=_NOBODY, extra_groups=[]
        )
        return (await asked.communicate())[0]

    assert await greet() == b"PermissionError\n"
    # Even where a person has opened all folders.
    _open_to_others(runtime, path.parent, path)
    assert await greet() == b"0 bytes\n"


async def test_other_ssh_configurations_have_other_connections(
    sshd: Sshd, connect: Connect, runtime: Path
) -> None:
    before = logins(sshd)
    await connect().connect()
    config = runtime / ".ssh" / "config"
    config.write_text(f"{config.read_text()}  ServerAliveInterval 77\n")
    await connect().connect()
    assert logins(sshd) == before + 2


def _open_to_others(*paths: Path) -> None:
    for path in paths:
        path.chmod(0o777 if path.is_socket() else 0o711)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_pipe_passes_bytes_both_ways_and_ends_with_its_program(connect: Connect) -> None:
    transport = connect()
    # Each byte, and more than the buffers on the way.
    content = bytes(range(256)) * 40_000
    received = b""
    async with transport.open_pipe(("sh", "-c", "echo up >&2; cat; echo over")) as pipe:

        async def write() -> None:
            for at in range(0, len(content), 60_000):
                await pipe.write(content[at : at + 60_000])
            pipe.write_eof()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            async for chunk in pipe:
                received += chunk
    assert received == content + b"over\n"
    assert pipe.stderr == b"up\n"
    word = "left-by-a-pipe-of-the-broker"
    async with transport.open_pipe(("sh", "-c", f"cat; : {word}")):
        await until_there(word)
    assert await until_gone(word) == []


async def test_a_pipe_whose_command_has_exited_takes_nothing_more(connect: Connect) -> None:
    async with connect().open_pipe(("true",)) as pipe:
        async for _ in pipe:
            pass
        with pytest.raises(BrokenPipeError):
            await pipe.write(b"too late")
