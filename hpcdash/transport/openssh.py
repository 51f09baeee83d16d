"""A login node through the ssh program and a person's own ControlMaster, where asyncssh cannot log
in.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
    Pipe,
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
    SSH_FAILED,
    STDIN_COMPLETE,
    MarkedOutput,
    RemoteCommand,
    RemoteOutput,
    interactive_command,
    is_connection_lost,
    remote_command,
    ssh_argv,
)
from hpcdash.transport.shell_environment import RemoteEnvironment
from hpcdash.transport.ssh import CHANNELS, STREAM_LIMIT_SECONDS

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

# Last lines of an ssh that could not log in.
_LOGIN_FAILED = (b"Permission denied", b"Host key verification failed")


class OpenSshTransport:
    """A login node that `ssh` reaches without a prompt, by an open master or an agent's key."""

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
        self._environment = RemoteEnvironment(environment, path)
        self._config_path = config_path
        self._channels = asyncio.Semaphore(CHANNELS)

    async def connect(self, *, force: bool = False) -> None:
        """Check that a command can be run; raises UnreachableError with ssh's message."""
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
        environment: dict[str, str] | None = None,
    ) -> CommandResult:
        """Run one command on the login node; see Transport.run.

        `environment` replaces the transport's own variables.
        """
        command = remote_command(
            argv,
            limit_seconds=limit_seconds,
            environment=self._environment.variables if environment is None else environment,
            path=self._environment.path,
            stdin_bytes=None if stdin is None else len(stdin),
        )
        output = RemoteOutput(
            command,
            host=self.name,
            program=program_name(argv),
            reads_stdin=stdin is not None,
        )

        def expired(_stdout: bytes, stderr: bytes) -> HpcdashError:
            if not output.stdout.seen:
                return output.start_failure(min(limit_seconds, BEGIN_SECONDS))
            return timed_out(argv, limit_seconds, self.name, stderr)

        async with self._channels:
            result = await run_process(
                self._ssh(command),
                shown_argv=argv,
                stdin=None if stdin is None else stdin + STDIN_COMPLETE,
                # If an rc file replaces the shell (exec zsh), that one would run the stdin.
                marked=(output.stdout, output.stderr),
                begin_seconds=BEGIN_SECONDS,
                keep_stdin_open=True,
                limit_seconds=limit_seconds,
                cap_bytes=cap_bytes,
                on_output=on_output,
                on_stdout=on_stdout,
                expired=expired,
            )
        stdout = result.stdout + output.stdout.rest
        stderr = result.stderr + output.stderr.rest
        if noise := output.noise_failure():
            raise noise
        if result.status == SSH_FAILED and output.stdout.end is None:
            printed = output.stderr.noise + stderr
            if not output.stdout.seen or is_connection_lost(printed):
                raise self._failed(result.status, output.stdout.noise + printed)
        if self.health.state != "connected":
            self.health.set_state("connected")
        if not result.truncated and (failure := output.exit_failure(result.status, stderr)):
            raise failure
        return replace(result, stdout=stdout, stderr=stderr)

    def stream(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Stream]:
        """Run a command and stream its output; leaving the context ends the command."""
        return self._stream(argv)

    def open_pipe(self, argv: tuple[str, ...]) -> AbstractAsyncContextManager[Pipe]:
        """Run a command with an open stdin; see Transport.open_pipe."""
        return self._stream(argv, is_pipe=True)

    @asynccontextmanager
    async def _stream(
        self, argv: tuple[str, ...], *, is_pipe: bool = False
    ) -> AsyncIterator[_OwnStream]:
        command = remote_command(
            argv,
            limit_seconds=STREAM_LIMIT_SECONDS,
            environment=self._environment.variables,
            path=self._environment.path,
            is_pipe=is_pipe,
        )
        output = RemoteOutput(
            command, host=self.name, program=program_name(argv), reads_stdin=False
        )
        async with (
            self._channels,
            stream_process(self._ssh(command), keep_stdin_open=True) as stream,
        ):
            yield _OwnStream(stream, output, command.stderr)

    async def adopt_login_environment(self) -> bool:
        return await self._environment.adopt(partial(self.run, environment={}))

    def prepend_path(self, folder: str) -> None:
        self._environment.prepend_path(folder)

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command on a terminal, through the person's master if one is open.

        See Transport.interact.
        """
        text = interactive_command(argv, self._environment.variables, self._environment.path)

        def lost(status: int, tail: bytes) -> UnreachableError | None:
            if status != SSH_FAILED:
                return None
            last = tail.strip().rsplit(b"\n", 1)[-1]
            is_login_failed = last.startswith(b"ssh:") or any(x in last for x in _LOGIN_FAILED)
            if is_login_failed or is_connection_lost(tail):
                return self._failed(status, last)
            return None

        # ssh's own escapes would take precedence over ours.
        ssh = self._ssh_argv("-tt", "-enone", text=text)
        return await interact_with_process(ssh, terminal, lost=lost)

    async def close(self) -> None:
        """Set the state to idle: none of our connections is open, a person's master stays open."""
        self.health.state = "idle"

    def _ssh(self, command: RemoteCommand) -> tuple[str, ...]:
        return self._ssh_argv("-T", "-oBatchMode=yes", text=command.text)

    def _ssh_argv(self, *options: str, text: str) -> tuple[str, ...]:
        config = () if self._config_path is None else ("-F", str(self._config_path))
        program, destination = ssh_argv(self.name)
        forwards = "-oClearAllForwardings=yes"
        return (program, *config, *options, forwards, "--", destination, text)

    def _failed(self, status: int, text: bytes) -> UnreachableError:
        reported = text.decode("utf-8", "replace")
        message = f"ssh to {self.name} failed (status {status}): {excerpt(text) or 'no output'}"
        self.health.set_state("failed", message)
        program, destination = ssh_argv(self.name)
        by_hand = shlex.join((program, destination))
        if "HOST IDENTIFICATION HAS CHANGED" in reported:
            return HostKeyChanged(
                message,
                "Ask the site whether it changed its keys; ssh-keygen -R removes the old key.",
            )
        if "Host key verification failed" in reported:
            return HostKeyRefused(message, f"Log in once by hand to accept its key: {by_hand}")
        if "Permission denied" in reported:
            return AuthenticationFailed(
                message,
                f"Open a master by hand, then retry: {program} -MNf {shlex.quote(destination)}",
            )
        return ConnectionFailed(message, f"Try it by hand: {by_hand}")


class _OwnStream:
    """The command's own stdout, without the output of rc files around it."""

    def __init__(
        self,
        stream: ProcessStream | EmptyStream,
        output: RemoteOutput,
        new_stderr: Callable[[], MarkedOutput],
    ) -> None:
        self._stream = stream
        self._output = output
        self._new_stderr = new_stderr

    @property
    def status(self) -> int | None:
        return self._stream.status

    @property
    def stderr(self) -> bytes:
        return self._new_stderr().feed(self._stream.stderr)

    async def write(self, content: bytes) -> None:
        await self._stream.write(content)

    def write_eof(self) -> None:
        self._stream.write_eof()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._output.stdout.cut(self._stream):
            yield chunk
        if noise := self._output.noise_failure():
            raise noise
