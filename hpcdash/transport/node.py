"""A node behind the login node, as a transport: each command goes through the person's own ssh
there.
"""

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
    Stream,
    Transport,
)
from hpcdash.transport.shell import (
    NOISE_BYTES,
    REMOTE_GRACE_SECONDS,
    STDIN_COMPLETE,
    MarkedOutput,
    RemoteCommand,
    interactive_command,
    remote_command,
)

if TYPE_CHECKING:
    from hpcdash.transport.terminal import Terminal

# A node's name comes from the scheduler: no option, no user@, no shell's letters.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# A stream is ended by us; this is how long its command may live should neither side know.
_STREAM_LIMIT_SECONDS = 24 * 3600.0
# ssh ends with this when it failed itself, not the command (ssh(1), EXIT STATUS).
_SSH_FAILED = 255
_WORDS_BYTES = 400
# No master is made: it would stay behind. One that is open is used.
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
    """ssh from the login node does not get to a node; the login node itself answers.

    `text` is ssh's own.
    """

    def __init__(self, host: str, text: str) -> None:
        super().__init__(
            f"ssh {host} from the login node does not work ({text or 'no output'})",
            f"Try it by hand, on the login node: ssh {host}",
        )
        self.host = host
        self.text = text


class ThroughNode:
    """Implements hpcdash.transport.base.Transport over that of the login node; run and stream raise
    NodeUnreached.

    The line to the login node is not ours: close leaves it open.
    """

    def __init__(self, transport: Transport, host: str) -> None:
        self.name = f"{host} (through {transport.name})"
        self.health = transport.health
        self._transport = transport
        self._host = host

    async def connect(self, *, force: bool = False) -> None:
        """Open the line to the login node; a node is found out about by the first command."""
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
        """Run one command on the node; see Transport.run. Getting there counts to the limit."""
        command = remote_command(
            argv, limit_seconds=limit_seconds, stdin_bytes=None if stdin is None else len(stdin)
        )
        out = command.stdout()
        err = command.stderr()
        own_stdout = None if on_stdout is None else partial(_pass_on, out, on_stdout)
        own_stderr = None if on_output is None else partial(_pass_on, command.stderr(), on_output)
        try:
            answer = await self._transport.run(
                self._through(command, limit_seconds),
                stdin=None if stdin is None else stdin + STDIN_COMPLETE,
                limit_seconds=limit_seconds,
                cap_bytes=cap_bytes,
                on_output=own_stderr,
                on_stdout=own_stdout,
            )
        except CommandTimedOut as error:
            message = (
                f"{program_name(argv)} had not finished after {limit_seconds:g} s on "
                f"{self.name} and was ended."
            )
            raise CommandTimedOut(
                message, error.next_step, argv=argv, output=error.output
            ) from error
        stdout = out.feed(answer.stdout) + out.rest
        stderr = err.feed(answer.stderr) + err.rest
        if not answer.truncated and (
            not out.seen
            or (answer.status == _SSH_FAILED and out.end is None and _line_broke(answer.stderr))
        ):
            raise NodeUnreached(self._host, _own_message(answer.stderr) or _own_message(out.noise))
        return replace(answer, argv=argv, stdout=stdout, stderr=stderr)

    @asynccontextmanager
    async def stream(self, argv: tuple[str, ...]) -> AsyncIterator[Stream]:
        """Run a command whose output is read as it comes; leaving the context ends it over there.

        Where ssh does not get there the stream is empty.
        """
        command = remote_command(argv, limit_seconds=_STREAM_LIMIT_SECONDS)
        async with self._transport.stream(self._through(command, _STREAM_LIMIT_SECONDS)) as stream:
            yield _CutStream(stream, command, self._host)

    async def adopt_login_environment(self) -> bool:
        """False: what is run there is POSIX's own."""
        return False

    def prepend_path(self, folder: str) -> None:
        """Do nothing, as only POSIX programs run there."""

    async def interact(self, argv: tuple[str, ...], terminal: Terminal) -> int | None:
        """Run a command on the node on a person's terminal, who may be asked for a password; see
        Transport.interact.
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
        """The command for the login node; raises NodeUnreached for a name that no command is
        given.
        """
        self._require_host()
        seconds = str(math.ceil(limit_seconds) + REMOTE_GRACE_SECONDS)
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
            raise NodeUnreached(ascii(self._host), "it is not a host name")


class _CutStream:
    """stdout without what rc files printed around the command's own."""

    def __init__(self, stream: Stream, command: RemoteCommand, host: str) -> None:
        self._stream = stream
        self._command = command
        self._host = host

    async def __aiter__(self) -> AsyncIterator[bytes]:
        stdout = self._command.stdout()
        async for chunk in self._stream:
            if output := stdout.feed(chunk):
                yield output
            if stdout.is_too_noisy:
                raise NodeUnreached(
                    self._host,
                    f"its login shell printed more than {NOISE_BYTES >> 10} KiB of its own",
                )
        if stdout.rest:
            yield stdout.rest


def _pass_on(marked: MarkedOutput, on_output: OnOutput, chunk: bytes) -> None:
    """Pass on the command's own output of a chunk, without the output of rc files before it."""
    if output := marked.feed(chunk):
        on_output(output)


def _own_message(stderr: bytes) -> str:
    """The last line, and the one before where that only says that the line was closed; banners come
    earlier.
    """
    lines = [line.strip() for line in excerpt(stderr, _WORDS_BYTES).splitlines() if line.strip()]
    closed = bool(lines) and lines[-1].startswith(
        ("Connection closed", "Connection reset", "Connection to")
    )
    return ": ".join(lines[-2:] if closed else lines[-1:])


def _line_broke(stderr: bytes) -> bool:
    """Whether a status of 255 is ssh's own: it says so, whereas a command that ends with 255 need
    not.
    """
    last = stderr.strip().rsplit(b"\n", 1)[-1]
    return any(
        text in last
        for text in (
            b"closed by remote host",
            b"Broken pipe",
            b"Connection to ",
            b"client_loop:",
            b"not responding",
        )
    )
