"""A node behind the login node, as a transport: commands go through the login node's own ssh."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcdash.errors import CommandTimedOut, HpcdashError, excerpt, program_name
from hpcdash.shell_files import shell_text
from hpcdash.transport.base import (
    DEFAULT_CAP_BYTES,
    DEFAULT_LIMIT_SECONDS,
    CommandResult,
    OnOutput,
    Pipe,
    Stream,
    Transport,
)
from hpcdash.transport.shell import (
    NOISE_BYTES,
    REMOTE_GRACE_SECONDS,
    SSH_FAILED,
    STDIN_COMPLETE,
    MarkedOutput,
    RemoteCommand,
    interactive_command,
    is_connection_lost,
    remote_command,
)

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

# Names come from the scheduler: they must not be an option, contain user@, or be shell syntax.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# Limit for a stream whose connection died unnoticed.
_STREAM_LIMIT_SECONDS = 24 * 3600.0
_MESSAGE_BYTES = 400
# An open master is used, but none is started, as it would stay behind.
_OPTIONS = (
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=5",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
    "-oControlMaster=no",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oForwardX11=no",
)
_INTERACT_OPTIONS = (
    "-tt",
    "-enone",
    "-oConnectTimeout=10",
    "-oControlMaster=no",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oForwardX11=no",
)


class NodeUnreached(HpcdashError):
    """ssh from the login node cannot reach a node; the login node itself answers.

    `text` is ssh's message.
    """

    def __init__(self, host: str, text: str) -> None:
        super().__init__(
            f"ssh {host} from the login node does not work ({text or 'no output'})",
            f"Try it by hand on the login node: ssh {host}",
        )
        self.host = host
        self.text = text


class ThroughNode:
    """Implements hpcdash.transport.base.Transport over the login node's transport.

    `run` and `stream` raise NodeUnreached. The connection to the login node has another owner, so
    `close` leaves it open.
    """

    def __init__(self, transport: Transport, host: str) -> None:
        self.name = f"{host} (through {transport.name})"
        self.health = transport.health
        self._transport = transport
        self._host = host

    async def connect(self, *, force: bool = False) -> None:
        """Connect to the login node; whether the node is reachable shows with the first command."""
        await self._transport.connect(force=force)

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
        """Run one command on the node; see Transport.run. The limit includes the login to it."""
        command = remote_command(
            argv, limit_seconds=limit_seconds, stdin_bytes=None if stdin is None else len(stdin)
        )
        out = command.stdout()
        err = command.stderr()
        own_stdout = None if on_stdout is None else partial(_pass_on, out, on_stdout)
        own_stderr = None if on_output is None else partial(_pass_on, command.stderr(), on_output)
        try:
            result = await self._transport.run(
                self._through(command, limit_seconds),
                stdin=None if stdin is None else stdin + STDIN_COMPLETE,
                limit_seconds=limit_seconds,
                cap_bytes=cap_bytes,
                on_output=own_stderr,
                on_stdout=own_stdout,
            )
        except CommandTimedOut as error:
            message = (
                f"{program_name(argv)} did not finish within {limit_seconds:g} s on "
                f"{self.name} and was terminated."
            )
            raise CommandTimedOut(
                message, error.next_step, argv=argv, output=error.output
            ) from error
        stdout = out.feed(result.stdout) + out.rest
        stderr = err.feed(result.stderr) + err.rest
        is_broken = (
            result.status == SSH_FAILED and out.end is None and is_connection_lost(result.stderr)
        )
        if not result.truncated and (is_broken or not out.seen):
            message = _ssh_message(result.stderr) or _ssh_message(out.noise)
            raise NodeUnreached(self._host, message)
        return replace(result, argv=argv, stdout=stdout, stderr=stderr)

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Run a command and stream its output; leaving the context ends the command.

        If ssh cannot reach the node, the stream is empty.
        """
        command = remote_command(argv, limit_seconds=_STREAM_LIMIT_SECONDS)
        async with self._transport.stream(self._through(command, _STREAM_LIMIT_SECONDS)) as stream:
            yield _own_output(stream, command.stdout(), self._host)

    @asynccontextmanager
    async def open_pipe(self, argv: tuple[str, ...]) -> AsyncIterator[Pipe]:
        """Run a command with an open stdin; see Transport.open_pipe.

        If ssh cannot reach the node, the stream is empty.
        """
        command = remote_command(argv, limit_seconds=_STREAM_LIMIT_SECONDS, is_pipe=True)
        # Without a limit the end of our stdin is at once the end of the command's.
        async with self._transport.open_pipe(self._through(command, 0)) as pipe:
            yield _NodePipe(pipe, command, self._host)

    async def adopt_login_environment(self) -> bool:
        """Return False: only POSIX programs run on nodes."""
        return False

    def prepend_path(self, folder: str) -> None:
        """Do nothing, as only POSIX programs run on nodes."""

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command on the node on a person's terminal; ssh may prompt for a password.

        See Transport.interact.
        """
        self._require_host()
        parts = (
            "sh",
            "-c",
            shell_text("transport/interact_on_node.sh"),
            "sh",
            self._host,
            interactive_command(argv),
            "ssh",
            *_INTERACT_OPTIONS,
        )
        return await self._transport.interact((*parts, "--"), terminal)

    async def close(self) -> None:
        """Do nothing, as no connection is open between commands."""

    def _through(self, command: RemoteCommand, limit_seconds: float) -> tuple[str, ...]:
        """Build the login node's command; raises NodeUnreached for an invalid name."""
        self._require_host()
        seconds = str(math.ceil(limit_seconds) + REMOTE_GRACE_SECONDS if limit_seconds else 0)
        return (
            "sh",
            "-c",
            shell_text("transport/through_node.sh"),
            "sh",
            self._host,
            seconds,
            command.text,
            "ssh",
            *_OPTIONS,
            "--",
        )

    def _require_host(self) -> None:
        if not _HOST.fullmatch(self._host):
            raise NodeUnreached(ascii(self._host), "not a valid host name")


class _NodePipe:
    """Implements hpcdash.transport.base.Pipe: a command's own stdout, without that of rc files."""

    def __init__(self, pipe: Pipe, command: RemoteCommand, host: str) -> None:
        self._pipe = pipe
        self._command = command
        self._host = host

    @property
    def stderr(self) -> bytes:
        """Its own error output, or ssh's if it was not reached."""
        marked = self._command.stderr()
        own = marked.feed(self._pipe.stderr)
        return own if marked.seen else self._pipe.stderr

    async def write(self, content: bytes) -> None:
        await self._pipe.write(content)

    def write_eof(self) -> None:
        self._pipe.write_eof()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _own_output(self._pipe, self._command.stdout(), self._host)


async def _own_output(stream: Stream, stdout: MarkedOutput, host: str) -> AsyncIterator[bytes]:
    """Yield the command's own output; raises NodeUnreached if rc files print endlessly."""
    async for chunk in stdout.cut(stream):
        yield chunk
    if stdout.is_too_noisy:
        noise = f"its login shell printed more than {NOISE_BYTES >> 10} KiB of unrelated output"
        raise NodeUnreached(host, noise)


def _pass_on(marked: MarkedOutput, on_output: OnOutput, chunk: bytes) -> None:
    """Pass on the command's own output of a chunk, without the output of rc files before it."""
    if output := marked.feed(chunk):
        on_output(output)


def _ssh_message(stderr: bytes) -> str:
    """Return ssh's last line, with the one before if that only reports a closed connection."""
    lines = [line.strip() for line in excerpt(stderr, _MESSAGE_BYTES).splitlines() if line.strip()]
    closed = ("Connection closed", "Connection reset", "Connection to")
    if lines and lines[-1].startswith(closed):
        return ": ".join(lines[-2:])
    return "".join(lines[-1:])
