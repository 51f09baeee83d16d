"""A login node through the ssh program, with a person's own ControlMaster, for what asyncssh cannot
do.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    HostKeyChanged,
    HostKeyRefused,
    HpcdashError,
    UnreachableError,
    excerpt,
    program_name,
)
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    CommandResult,
    Health,
    OnOutput,
    Stream,
)
from hpcdash.transport.local import (
    EmptyStream,
    ProcessStream,
    interact_with_process,
    run_process,
    stream_process,
    timed_out,
)
from hpcdash.transport.shell import (
    BEGIN_SECONDS,
    STDIN_COMPLETE,
    RemoteCommand,
    interactive_command,
    never_began,
    noise_failure,
    remote_command,
    shell_failure,
    ssh_argv,
)
from hpcdash.transport.shell_environment import fetch_login_environment
from hpcdash.transport.ssh import CHANNELS, STREAM_LIMIT_SECONDS

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

# ssh ends with this when it failed itself, not the command (ssh(1), EXIT STATUS).
_SSH_FAILED = 255


class OpenSshTransport:
    """A login node that `ssh` reaches without asking: a master is open, or a key in the agent is
    enough.
    """

    def __init__(
        self,
        destination: str,
        *,
        config_path: Path | None = None,
        environment: dict[str, str] | None = None,
        path: str = "",
    ) -> None:
        self.name = destination
        self.health = Health()
        self.environment = dict(environment or {})
        self.path = path
        self._config_path = config_path
        self._channels = asyncio.Semaphore(CHANNELS)

    async def connect(self, *, force: bool = False) -> None:
        """See that a command can be run; raises UnreachableError with ssh's own words."""
        if force or self.health.state != "connected":
            await self.run(("true",))

    async def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None = None,
        limit_seconds: float = DEFAULT_LIMIT_SECONDS,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> CommandResult:
        """Run one command on the login node; see Transport.run."""
        return await self._run(
            argv,
            stdin=stdin,
            limit_seconds=limit_seconds,
            cap_bytes=cap_bytes,
            environment=self.environment,
            on_output=on_output,
            on_stdout=on_stdout,
        )

    async def _run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | None,
        limit_seconds: float,
        cap_bytes: int,
        environment: dict[str, str],
        on_output: OnOutput | None = None,
        on_stdout: OnOutput | None = None,
    ) -> CommandResult:
        command = remote_command(
            argv,
            limit_seconds=limit_seconds,
            environment=environment,
            path=self.path,
            stdin_bytes=None if stdin is None else len(stdin),
        )
        program = program_name(argv)

        out = command.stdout()
        err = command.stderr()

        def expired(_stdout: bytes, stderr: bytes) -> HpcdashError:
            if not out.seen:
                waited = min(limit_seconds, BEGIN_SECONDS)
                return never_began(self.name, program, waited, err, is_sent=stdin is None)
            return timed_out(argv, limit_seconds, self.name, stderr)

        async with self._channels:
            answer = await run_process(
                self._ssh(command),
                shown_argv=argv,
                stdin=None if stdin is None else stdin + STDIN_COMPLETE,
                # Were the shell replaced by an rc file (exec zsh), its successor would run what is
                # sent.
                marked=(out, err),
                begin_seconds=BEGIN_SECONDS,
                keep_stdin_open=True,
                limit_seconds=limit_seconds,
                cap_bytes=cap_bytes,
                on_output=on_output,
                on_stdout=on_stdout,
                expired=expired,
            )
        stdout = answer.stdout + out.rest
        stderr = answer.stderr + err.rest
        if noise := noise_failure(self.name, program, out, err, is_sent=stdin is None):
            raise noise
        if (
            answer.status == _SSH_FAILED
            and out.end is None
            and (not out.seen or _line_broke(err.noise + stderr))
        ):
            raise self._failed(answer.status, out.noise + err.noise + stderr)
        self.health.last_seconds = answer.seconds
        self._connected()
        if not answer.truncated and (
            failure := shell_failure(
                self.name, program, answer.status, out, err, stderr, is_sent=stdin is None
            )
        ):
            raise failure
        return replace(answer, stdout=stdout, stderr=stderr)

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Run a command whose output is read as it comes; leaving the context ends it over
        there.
        """
        command = remote_command(
            argv, limit_seconds=STREAM_LIMIT_SECONDS, environment=self.environment, path=self.path
        )
        async with (
            self._channels,
            stream_process(self._ssh(command), keep_stdin_open=True) as stream,
        ):
            yield _CutStream(stream, command, self.name, program_name(argv))

    async def adopt_login_environment(self) -> bool:
        """Take PATH, LD_LIBRARY_PATH and SLURM_CONF from the person's login shell; True when that
        changed any.
        """
        found = await fetch_login_environment(partial(self._run, stdin=None, environment={}))
        changed = {
            name: value for name, value in found.items() if self.environment.get(name) != value
        }
        self.environment.update(changed)
        return bool(changed)

    def prepend_path(self, folder: str) -> None:
        """Have a folder go before the PATH there."""
        self.path = f"{folder}:{self.path}" if self.path else folder

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command there on a terminal, through the person's master where one is open; see
        Transport.interact.
        """
        config = () if self._config_path is None else ("-F", str(self._config_path))
        program, place = ssh_argv(self.name)
        text = interactive_command(argv, self.environment, self.path)
        # Its own escapes would stand before ours.
        options = ("-tt", "-e", "none", "-oClearAllForwardings=yes")

        def lost(status: int, tail: bytes) -> UnreachableError | None:
            if status != _SSH_FAILED or not (_line_broke(tail) or _never_logged_in(tail)):
                return None
            label = tail.strip().rsplit(b"\n", 1)[-1]
            return self._failed(status, label)

        return await interact_with_process(
            (program, *config, *options, "--", place, text), terminal, lost=lost
        )

    async def close(self) -> None:
        """Set the state to idle.

        No connection of ours is open, and a person's master is left alone.
        """
        self.health.state = "idle"

    def _ssh(self, command: RemoteCommand) -> tuple[str, ...]:
        config = () if self._config_path is None else ("-F", str(self._config_path))
        program, place = ssh_argv(self.name)
        return (
            program,
            *config,
            "-T",
            "-oBatchMode=yes",
            "-oClearAllForwardings=yes",
            "--",
            place,
            command.text,
        )

    def _connected(self) -> None:
        if self.health.state != "connected":
            self.health.state, self.health.detail, self.health.connected_at = (
                "connected",
                "",
                time.time(),
            )

    def _failed(self, status: int, text: bytes) -> UnreachableError:
        reported = text.decode("utf-8", "replace")
        message = f"ssh to {self.name} failed (status {status}): {excerpt(text) or 'no output'}"
        self.health.state, self.health.detail, self.health.connected_at = "failed", message, None
        program, place = ssh_argv(self.name)
        by_hand = shlex.join((program, place))
        if "HOST IDENTIFICATION HAS CHANGED" in reported:
            return HostKeyChanged(
                message, "Ask the site whether it changed its keys; ssh-keygen -R forgets the old."
            )
        if "Host key verification failed" in reported:
            return HostKeyRefused(message, f"Log in once by hand to accept its key: {by_hand}")
        if "Permission denied" in reported:
            return AuthenticationFailed(
                message,
                f"Open a master by hand, then retry: {program} -MNf {shlex.quote(place)}",
            )
        return ConnectionFailed(message, f"Try it by hand: {by_hand}")


class _CutStream:
    """A process's stdout without what rc files printed around the command's own."""

    def __init__(
        self, stream: ProcessStream | EmptyStream, command: RemoteCommand, where: str, program: str
    ) -> None:
        self._stream = stream
        self._command = command
        self._where = where
        self._program = program

    @property
    def status(self) -> int | None:
        return self._stream.status

    @property
    def stderr(self) -> bytes:
        return self._command.stderr().feed(self._stream.stderr)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        stdout = self._command.stdout()
        async for chunk in self._stream:
            if output := stdout.feed(chunk):
                yield output
            if noise := noise_failure(
                self._where, self._program, stdout, self._command.stderr(), is_sent=True
            ):
                raise noise
        if stdout.rest:
            yield stdout.rest


def _line_broke(stderr: bytes) -> bool:
    """Whether a status of 255 is ssh's own: it says so, whereas a command that ends with 255 need
    not.
    """
    last = stderr.strip().rsplit(b"\n", 1)[-1]
    return any(
        text in last
        for text in (b"closed by remote host", b"Broken pipe", b"Connection to ", b"client_loop:")
    )


def _never_logged_in(output: bytes) -> bool:
    """Whether ssh itself said last why it did not log in."""
    last = output.strip().rsplit(b"\n", 1)[-1]
    return (
        last.startswith(b"ssh:")
        or b"Permission denied" in last
        or b"Host key verification failed" in last
    )
