"""Throw-away ssh servers on loopback: OpenSSH's, whose line can be cut, and one in this process
that asks for more.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import psutil

from tests.support.slurm.layout import free_port
from tests.support.suite import account, processes
from tests.support.waiting import deadline, until, wait_until

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
UseDNS no
MaxStartups 50
ClientAliveInterval 1
ClientAliveCountMax 2
LogLevel VERBOSE
"""


def why_no_sshd() -> str | None:
    """Why no sshd can be started here, or None when it can."""
    if sshd_program() is None:
        return "sshd is not installed"
    if shutil.which("ssh-keygen") is None:
        return "ssh-keygen is not installed"
    return None


def sshd_program() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def login_user(shell: str = "bash", label: str = "") -> str | None:
    """A user with this login shell who can log in by key, made where we may; None where that cannot
    be.

    `label` is for tests that change the account or its home; there is one of that label for each
    worker.
    """
    program = shutil.which(shell)
    if program is None:
        return None
    if os.getuid() != 0:
        own = pwd.getpwuid(os.getuid())
        return own.pw_name if Path(own.pw_shell).name == shell else None
    return account(
        label + os.environ.get("PYTEST_XDIST_WORKER", "") if label else shell, "-m", "-s", program
    )


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> None:
    """A fresh key pair, replacing what is there."""
    path.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", str(path)],
        check=True,
    )


def commands_with(word: str) -> list[str]:
    """The command lines, other than ours, of all processes of this run of the tests that hold this
    word.
    """
    found = []
    for process in processes():
        with suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            if word in line and process.pid != os.getpid():
                found.append(line)
    return found


async def until_gone(word: str) -> list[str]:
    """Poll until no process holds this word; gives what is left at the end of the time."""
    over = deadline()
    while (left := commands_with(word)) and time.monotonic() < over:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return left


async def until_there(word: str) -> None:
    """Poll until a process with this word runs."""
    await until(lambda: commands_with(word), f"a process with {word}")


def block_until_there(word: str) -> None:
    """Have the loop do nothing until a process with this word runs, as on a busy machine."""
    wait_until(f"a process with {word}", lambda: commands_with(word))


def _is_sshd(process: psutil.Process) -> bool:
    try:
        return (
            process.name().startswith(("sshd", "hpcdash-test"))
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return False


@dataclass
class Sshd:
    """One sshd in `folder`, which others may enter; `key` logs in any user."""

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        make_key(self.key)
        shutil.copy(self.key.with_suffix(".pub"), self.folder / "authorized_keys")
        self.replace_host_key()

    @property
    def key(self) -> Path:
        return self.folder / "login_key"

    @property
    def host_key_line(self) -> str:
        """Type and key, as they stand in known_hosts."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def program(self) -> str:
        """What is run."""
        program = sshd_program()
        assert program is not None
        return program

    def replace_host_key(self, kind: str = "ed25519") -> None:
        make_key(self.folder / "host_key", kind=kind)

    def authorize(self, public_key: Path) -> None:
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(public_key.read_text())

    def start(self, more_config: str = "") -> None:
        """Start and wait until it answers."""
        program = self.program()
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        # sshd takes the first of two values.
        (self.folder / "sshd_config").write_text(
            more_config + _CONFIG.format(port=self.port, folder=self.folder)
        )
        self._process = subprocess.Popen(
            [
                program,
                "-D",
                "-f",
                str(self.folder / "sshd_config"),
                "-E",
                str(self.folder / "sshd.log"),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        over = deadline()
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, self.log
                assert time.monotonic() < over, self.log
                time.sleep(0.02)

    def kill_with_sessions(self) -> None:
        """End the listener and the sshd of each session, by pid, as a crash would; their commands
        are not touched.
        """
        if self._process is None:
            return
        stopped = [psutil.Process(self._process.pid)]
        stopped[0].suspend()
        # Suspended ones fork no more: once no new one is found, these are all.
        while new := [
            p for p in stopped[0].children(recursive=True) if _is_sshd(p) and p not in stopped
        ]:
            for process in new:
                process.suspend()
            stopped += new
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        self.kill_with_sessions()


class _Questions(asyncssh.SSHServer):
    def __init__(self, owner: TwoFactorServer) -> None:
        self._owner = owner
        self._asked_code = False
        self._pushed = False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._owner.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return False

    def public_key_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(
        self, username: str, lang: str, submethods: str
    ) -> tuple[str, str, str, Sequence[tuple[str, bool]]]:
        self._asked_code = False
        self._pushed = False
        return f"Welcome to {self._owner.name}", "Two factors", "", [("Password: ", False)]

    async def validate_kbdint_response(
        self, username: str, responses: Sequence[str]
    ) -> bool | tuple[str, str, str, Sequence[tuple[str, bool]]]:
        if self._pushed:
            await self._owner.approved.wait()
            return True
        self._owner.responses.append(list(responses))
        if not self._asked_code:
            if responses[0] != self._owner.password:
                return False
            self._asked_code = True
            return "", "", "", [("Code: ", True)]
        if responses[0] != self._owner.code or self._owner.push_words is None:
            return responses[0] == self._owner.code
        self._pushed = True
        return "", self._owner.push_words, "", []

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        return True


async def _copy(source: Any, sink: Any) -> None:
    """To the end of the source; a sink that is closed before takes nothing more."""
    with suppress(OSError, asyncssh.Error):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


class TwoFactorServer:
    """`password` is asked unseen, then `code` with echo; `responses` keeps what was typed.

    With `push_words` a round without a question comes then, and an answer to it once `approved` is
    set.
    """

    def __init__(
        self, name: str, host_key: Path, password: str = "secret", code: str = "123456"
    ) -> None:
        self.name = name
        self.host_key = host_key
        self.password = password
        self.code = code
        self.responses: list[list[str]] = []
        self.push_words: str | None = None
        self.approved = asyncio.Event()
        self.port = 0
        self.connections: list[asyncssh.SSHServerConnection] = []
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._commands: dict[asyncio.Task[Any], int] = {}

    async def start(self) -> None:
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_factory=lambda: _Questions(self),
            server_host_keys=[str(self.host_key)],
            process_factory=self._run,
            encoding=None,
        )
        self.port = self._acceptor.get_port()

    async def stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        for connection in self.connections:
            connection.close()
        for running, group in self._commands.items():
            with suppress(ProcessLookupError):
                if not running.done():
                    os.killpg(group, signal.SIGKILL)
        await asyncio.gather(*self._commands)

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        task = asyncio.current_task()
        assert task is not None
        self._commands[task] = child.pid
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeding = asyncio.create_task(_copy(process.stdin, child.stdin))
        feeding.add_done_callback(lambda _, stdin=child.stdin: stdin.close())
        try:
            # As sshd does: the status comes after all output.
            await asyncio.gather(
                _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
            )
            process.exit(await child.wait())
            await process.wait_closed()
            await feeding
        finally:
            # Its pipes, which asyncio closes in no other way where they were not read to their end.
            child._transport.close()  # type: ignore[attr-defined]
