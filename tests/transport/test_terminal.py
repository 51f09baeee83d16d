"""A person's terminal is lent to a command here and behind ssh: keys, size, status, and how it is
given back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from hpcdash.backends.shell import in_folder
from hpcdash.errors import ConnectionFailed, UsageError
from hpcdash.transport import ssh
from hpcdash.transport.base import Transport
from hpcdash.transport.local import LocalTransport
from hpcdash.transport.node import NodeUnreached, ThroughNode
from hpcdash.transport.openssh import OpenSshTransport
from hpcdash.transport.replay import ReplayTransport
from hpcdash.transport.shell import interactive_command
from hpcdash.transport.ssh import SshTransport
from hpcdash.transport.terminal import Terminal
from tests.support.cut_line import CutLine
from tests.support.person import Person
from tests.support.sshd import Sshd, until_gone, until_there
from tests.support.waiting import deadline

ODD = "a'b $(touch x) é;\n\"!`c`\\"
EVERYDAY = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05" / "everyday"
KINDS = ["local", "ssh", "openssh"]


class Hands:
    """A person at a pseudo-terminal: types, reads, changes its size."""

    def __init__(self) -> None:
        self._ours, self._theirs = os.openpty()
        os.set_blocking(self._ours, False)
        termios.tcsetwinsize(self._theirs, (24, 80))
        self.terminal = Terminal(self._theirs)
        self.before = self.attributes
        self.shown = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    @property
    def attributes(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def _read(self) -> None:
        self.shown += os.read(self._ours, 1 << 16)
        self._changed.set()

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._ours, (lines, columns))
        # The terminal is not the one that the tests run on, whose changes the kernel tells of.
        os.kill(os.getpid(), signal.SIGWINCH)

    async def until(self, words: bytes) -> None:
        over = deadline()
        while words not in self.shown:
            assert time.monotonic() < over, f"waited in vain for {words!r} in {self.shown!r}"
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 1.0)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def hands() -> Iterator[Hands]:
    person = Hands()
    try:
        yield person
    finally:
        person.close()


def ssh_config(sshd: Sshd, user: str, folder: Path, port: int | None = None) -> Path:
    known, config = folder / "known_hosts", folder / "config"
    known.write_text(f"[127.0.0.1]:{port or sshd.port} {sshd.host_key_line}\n")
    config.write_text(
        f"Host login\n  HostName 127.0.0.1\n  Port {port or sshd.port}\n  User {user}\n  "
        f"IdentityFile {sshd.key}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
    )
    return config


@asynccontextmanager
async def transport_of(kind: str, sshd: Sshd, user: str, folder: Path) -> AsyncIterator[Transport]:
    config = ssh_config(sshd, user, folder)
    made: dict[str, Transport] = {
        "local": LocalTransport(),
        "ssh": SshTransport(
            "login", Person(), config_path=config, known_hosts=folder / "known_hosts"
        ),
        "openssh": OpenSshTransport("login", config_path=config),
    }
    try:
        yield made[kind]
    finally:
        await made[kind].close()


@pytest.mark.parametrize("kind", KINDS)
async def test_keys_sizes_interrupts_and_the_status_go_through(
    kind: str, sshd: Sshd, user: str, tmp_path: Path
) -> None:
    script = (
        'trap "echo winch" WINCH; trap "echo interrupted" INT; stty size; while read -r '
        'line; do eval "$line"; done'
    )
    async with transport_of(kind, sshd, user, tmp_path) as transport:
        with hands() as person:
            running = asyncio.create_task(
                transport.interact(("bash", "-c", script), person.terminal)
            )
            await person.until(b"24 80\r\n")
            assert person.attributes != person.before
            person.resize(100, 30)
            # Keys may come before the size does.
            while b"30 100\r\n" not in person.shown:
                person.type(b"stty size\r")
                await asyncio.sleep(0.2)
            person.type(b"\x03")
            await person.until(b"interrupted\r\n")
            # In the middle of a line it is no escape; two at its start are one.
            person.type(b"echo x~.\r~~. || exit 3\r")
            await person.until(b"x~.\r\n")
            assert await running == 3
            assert person.attributes == person.before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tilde_and_a_dot_leave_it_and_nothing_stays_behind(
    kind: str, sshd: Sshd, user: str, tmp_path: Path
) -> None:
    script = 'printf "\\033[?1049h\\033[?1000h\\033[?25lready"; sleep 86399.25'
    async with transport_of(kind, sshd, user, tmp_path) as transport:
        with hands() as person:
            running = asyncio.create_task(transport.interact(("sh", "-c", script), person.terminal))
            await person.until(b"ready")
            person.type(b"\r~.")
            assert await running is None
            await person.until(b"\x1b[?25h\x1b[?1000l\x1b[?1049l\x1b[m")
            assert person.attributes == person.before
    assert await until_gone("86399.25") == []


async def test_a_line_that_is_cut_gives_the_terminal_back_and_says_so(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    line = CutLine(own_sshd.port)
    await line.start()
    config = ssh_config(own_sshd, user, tmp_path, line.port)
    transport = SshTransport(
        "login", Person(), config_path=config, known_hosts=tmp_path / "known_hosts"
    )
    try:
        with hands() as person:
            argv = ("sh", "-c", 'printf "\\033[?1049hready"; sleep 86399.5')
            running = asyncio.create_task(transport.interact(argv, person.terminal))
            await person.until(b"ready")
            line.cut()
            with pytest.raises(ConnectionFailed, match="was lost while sh ran on your terminal"):
                await running
            await person.until(b"\x1b[?1049l")
            assert person.attributes == person.before
        assert await until_gone("86399.5") == []
    finally:
        await transport.close()
        await line.stop()


async def test_where_one_session_is_allowed_it_waits_for_the_other_or_says_what_holds_it(
    own_sshd: Sshd, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_sshd.stop()
    own_sshd.start("MaxSessions 1\n")
    async with transport_of("ssh", own_sshd, user, tmp_path) as transport:
        with hands() as person:
            other = asyncio.create_task(transport.run(("sleep", "2.125")))
            await until_there("2.125")
            assert await transport.interact(("true",), person.terminal) == 0
            assert (await other).status == 0
            monkeypatch.setattr(ssh, "_TERMINAL_PAUSES", ())
            async with transport.stream(("sleep", "86399.75")):
                await until_there("86399.75")
                with pytest.raises(ConnectionFailed) as refused:
                    await transport.interact(("true",), person.terminal)
            assert "MaxSessions" in str(refused.value)
            assert person.attributes == person.before


async def test_a_login_node_that_gives_no_terminals_says_so(
    own_sshd: Sshd, user: str, tmp_path: Path
) -> None:
    own_sshd.stop()
    own_sshd.start("PermitTTY no\n")
    async with transport_of("ssh", own_sshd, user, tmp_path) as transport:
        with hands() as person, pytest.raises(ConnectionFailed) as refused:
            await transport.interact(("true",), person.terminal)
    assert "does not provide a terminal" in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_folder_is_one_word_whatever_is_in_its_name(
    kind: str, sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_of(kind, sshd, user, tmp_path) as transport:
        with hands() as person:
            # A folder that is not there leaves a shell all the same.
            assert (
                await transport.interact(
                    in_folder(f"/gone/{ODD}", ("sh", "-c", "echo in=$PWD; exit 4")), person.terminal
                )
                == 4
            )
            await person.until(b"in=/")
            assert b"gone/a'b $(touch x)" in person.shown
            assert await transport.interact(("no-such-program",), person.terminal) == 127


async def test_a_node_that_is_no_name_of_a_machine_is_given_no_command(
    sshd: Sshd, user: str, tmp_path: Path
) -> None:
    async with transport_of("local", sshd, user, tmp_path) as transport:
        with hands() as person:
            with pytest.raises(NodeUnreached):
                await ThroughNode(transport, "-oProxyCommand=touch x").interact(
                    ("true",), person.terminal
                )
            here = os.uname().nodename
            assert (
                await ThroughNode(transport, here).interact(("sh", "-c", "exit 5"), person.terminal)
                == 5
            )


async def test_a_recording_has_no_machine() -> None:
    with hands() as person, pytest.raises(UsageError, match="no machine to run a shell on"):
        await ReplayTransport(EVERYDAY).interact(("true",), person.terminal)


def test_no_command_line_holds_a_nul() -> None:
    with pytest.raises(UsageError):
        interactive_command(("sh", "a\0b"))
