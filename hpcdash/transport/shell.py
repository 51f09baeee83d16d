"""The string sent to a login node for a command, and the command's own output among that of rc
files.
"""

from __future__ import annotations

import math
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from hpcdash.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    NotSent,
    UnreachableError,
    UsageError,
    excerpt,
)
from hpcdash.shell_files import shell_text

if TYPE_CHECKING:
    from hpcdash.transport.base import Stream

# sshd passes the string to the login shell as one argument, and Linux limits an argument to
# 131 072 bytes (MAX_ARG_STRLEN).
LONGEST_COMMAND_BYTES = 120_000
# The remote limit is longer than the local one: it matters only if the connection died unnoticed.
REMOTE_GRACE_SECONDS = 5
STDIN_COMPLETE = b"go\n"
# A login shell whose rc files run longer than this will never start the command.
BEGIN_SECONDS = 30.0
# Limit of rc files' output around a command.
NOISE_BYTES = 64 << 10
# A status from here on is a signal's.
_SIGNALLED = 128

# Safe within '…' of csh, fish, bash, zsh and dash, then within "…" of /bin/sh, then in printf %b.
_LITERAL = frozenset(range(0x20, 0x7F)) - frozenset(b"'\"!$`\\")


class RemoteCommand(Struct, frozen=True):
    """Text for the login shell; `marker` starts the lines around the command's own output."""

    text: str
    marker: bytes

    def stdout(self) -> MarkedOutput:
        return MarkedOutput(self.marker + b"\n", self.marker)

    def stderr(self) -> MarkedOutput:
        return MarkedOutput(self.marker + b" stderr\n", self.marker)


def ssh_argv(destination: str) -> tuple[str, str]:
    """Return the ssh program and its form of a destination: it takes host:port only in a URI."""
    if re.fullmatch(r"[^/]+:\d+", destination):
        return "ssh", f"ssh://{destination}"
    return "ssh", destination


def interactive_command(
    argv: tuple[str, ...], environment: Mapping[str, str] | None = None, path: str = ""
) -> str:
    """Build the string with which any login shell replaces itself by `argv`, on a pseudo-terminal.

    `environment` and `path` are as in `remote_command`; the command ends with the terminal. Raises
    UsageError.
    """
    text = encoded(_exports(environment, path) + b"exec " + quote_arguments(argv))
    return _check_length(f'exec sh -c \'eval "$(printf %b "{text}")"\'')


def encoded(raw: bytes) -> str:
    r"""Encode bytes for `printf %b` within "…" within '…': all but plain ASCII becomes \0ooo."""
    return "".join(chr(byte) if byte in _LITERAL else f"\\0{byte:03o}" for byte in raw)


def quote_arguments(argv: tuple[str, ...]) -> bytes:
    """Quote arguments for /bin/sh, byte for byte, including bytes that are not UTF-8.

    Raises UsageError as `check_runnable` does.
    """
    check_runnable(argv)
    return " ".join(map(shlex.quote, argv)).encode("utf-8", "surrogateescape")


def check_runnable(argv: tuple[str, ...]) -> None:
    """Raise UsageError if there is no command, or a NUL byte, which no command line can carry."""
    if not argv or not argv[0]:
        raise UsageError("There is no command to run.")
    if any("\0" in word for word in argv):
        raise UsageError(
            "A command line cannot contain a NUL byte.", "Remove it from the argument."
        )


def fresh_marker() -> str:
    """Return a line that no rc file prints: it has 64 random bits."""
    return f"hpcdash-{secrets.token_hex(8)}"


def remote_command(
    argv: tuple[str, ...],
    *,
    limit_seconds: float,
    environment: Mapping[str, str] | None = None,
    path: str = "",
    stdin_bytes: int | None = None,
    is_pipe: bool = False,
    marker: str | None = None,
) -> RemoteCommand:
    """Build the string with which any login shell runs `argv` under /bin/sh.

    `path`, directories joined with ':', goes before the remote PATH. The channel's stdin must stay
    open while the command runs: closing it ends the command and its process group. With
    `stdin_bytes`, send that many bytes and then STDIN_COMPLETE. With `is_pipe`, the channel's stdin
    is the command's. Raises UsageError for a command that cannot be sent.
    """
    marker = marker or fresh_marker()
    limit = math.ceil(limit_seconds) + REMOTE_GRACE_SECONDS
    end = "without_stdin" if stdin_bytes is None else "with_stdin"
    if is_pipe:
        end = "as_stdin"
    variables = f"hpcdash_marker={marker} hpcdash_limit={limit} hpcdash_stdin={stdin_bytes}"
    script = _exports(environment, path)
    script += b"set -- " + quote_arguments(argv)
    script += f"\n{variables}\n".encode()
    script += shell_text("transport/command.sh", f"transport/{end}.sh").encode()
    # If stderr is joined to stdout, its line comes first and is not taken for output.
    start = f"exec 4>&2; echo {marker} stderr >&2; echo {marker}"
    text = f'/bin/sh -c \'{start}; eval "$(printf %b "{encoded(script)}")"\''
    return RemoteCommand(_check_length(text), marker.encode())


def _exports(environment: Mapping[str, str] | None, path: str) -> bytes:
    exports = b"".join(
        f"{name}={shlex.quote(value)}; export {name}; ".encode("utf-8", "surrogateescape")
        for name, value in (environment or {}).items()
    )
    if path:
        exports += f"PATH={shlex.quote(path)}:$PATH; export PATH; ".encode(
            "utf-8", "surrogateescape"
        )
    return exports


def _check_length(text: str) -> str:
    if len(text) > LONGEST_COMMAND_BYTES:
        raise UsageError(
            f"The command line is {len(text)} bytes long; a login node accepts "
            f"{LONGEST_COMMAND_BYTES}.",
            "Specify fewer jobs at once.",
        )
    return text


class MarkedOutput:
    """Extracts a command's own output from chunks: output of rc files around it is dropped.

    `seen` is true once the command's output has started. `end` is None until it has ended; then it
    is b"end", or b"stdin" if the command was ended because its stdin was.
    """

    def __init__(self, begin: bytes, marker: bytes) -> None:
        self._begin = begin
        self._before = bytearray()
        self._bytes_after = 0
        self._end = b"\x1e" + marker + b" "
        self._held = b""
        self.seen = False
        self.end: bytes | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Return the command's own output in this chunk and in the bytes held back before."""
        if self.is_too_noisy:
            return b""
        if not self.seen:
            searched = max(0, len(self._before) - len(self._begin))
            self._before += chunk
            start = self._before.find(self._begin, searched)
            if start < 0:
                return b""
            self.seen = True
            chunk = bytes(self._before[start + len(self._begin) :])
            del self._before[start:]
        if self.end is not None:
            self._bytes_after += len(chunk)
            return b""
        output = self._held + chunk
        own, found, rest = output.partition(self._end)
        if found:
            word, newline, _ = rest.partition(b"\n")
            if newline or len(rest) > len(self._end):
                self.end = word
                self._held = b""
            else:
                self._held = found + rest
            return own
        # The end of the chunk may be the start of the line that ends the output.
        start = output.rfind(b"\x1e", max(0, len(output) - len(self._end)))
        if start < 0 or not self._end.startswith(output[start:]):
            start = len(output)
        self._held = output[start:]
        return output[:start]

    async def cut(self, chunks: Stream) -> AsyncIterator[bytes]:
        """Yield the command's own output of a stream, until that ends or is too noisy."""
        async for chunk in chunks:
            if output := self.feed(chunk):
                yield output
            if self.is_too_noisy:
                return
        if self._held:
            yield self._held

    @property
    def rest(self) -> bytes:
        """The bytes held back, which are output if no more follow."""
        return self._held

    @property
    def noise(self) -> bytes:
        """Output of rc files before the command's."""
        return bytes(self._before)

    @property
    def is_too_noisy(self) -> bool:
        """Whether rc files printed more than NOISE_BYTES before or after the command's output."""
        return max(len(self._before), self._bytes_after) > NOISE_BYTES


_RC_FILE = "a line of an rc file there (~/.bashrc, ~/.zshenv, ~/.tcshrc, config.fish)"
_INTERACTIVE_ONLY = "Restrict such lines to interactive shells."
_EXPIRED = re.compile(
    rb"password (?:has|is) expired|password change required|must change your password",
    re.IGNORECASE,
)
_FORK = re.compile(rb"(?:cannot|can.t) fork|fork: ", re.IGNORECASE)
_EXCERPT_BYTES = 500


class RemoteOutput:
    """Both streams of a remote command, and the errors that its login shell causes.

    A command that `reads_stdin` does nothing before its stdin is complete, so its errors are
    NotSent.
    """

    def __init__(
        self, command: RemoteCommand, *, host: str, program: str, reads_stdin: bool
    ) -> None:
        self.stdout = command.stdout()
        self.stderr = command.stderr()
        self._host = host
        self._program = program
        self._reads_stdin = reads_stdin

    def noise_failure(self) -> ConnectionFailed | None:
        """Return the error if rc files print endlessly around the command; None if they do not."""
        noisy = next((one for one in (self.stdout, self.stderr) if one.is_too_noisy), None)
        if noisy is None:
            return None
        has_begun = self.stdout.seen or self.stderr.seen
        error = ConnectionFailed if has_begun else self._error
        return error(
            f"The login shell on {self._host} printed more than {NOISE_BYTES >> 10} KiB of "
            f"unrelated output {'after' if has_begun else 'before'} it ran {self._program}, so "
            f"it was terminated.{_quoted(noisy.noise)}",
            f"The likely cause is {_RC_FILE}. {_INTERACTIVE_ONLY}",
        )

    def start_failure(self, limit_seconds: float) -> ConnectionFailed:
        """Return the error if the login shell has not run the command within its time limit."""
        if self.stderr.seen:
            return self._no_output()
        return self._error(
            f"The login shell on {self._host} had not started {self._program} after "
            f"{limit_seconds:g} s.",
            f"The likely cause is {_RC_FILE} that starts another shell (exec zsh) or waits for "
            f"input. {_INTERACTIVE_ONLY}",
        )

    def exit_failure(self, status: int, reported: bytes) -> UnreachableError | None:
        """Return the error if a shell that exited with `status` did not run the command properly.

        `reported` is the command's own stderr.
        """
        if not self.stdout.seen:
            return self._exit_before_start(status, self.stdout.noise + self.stderr.noise + reported)
        if self.stderr.end == b"stdin" and status:
            return self._error(
                f"The stdin of {self._program} on {self._host} was closed from the start, so it "
                "was terminated.",
                f"The likely cause is {_RC_FILE} that redirects stdin (exec 0</dev/null). "
                f"{_INTERACTIVE_ONLY}",
            )
        has_ended = self.stdout.end is not None or self.stderr.end is not None
        if has_ended or not 0 < status < _SIGNALLED:
            return None
        if _FORK.search(reported):
            cause = (
                f"The likely cause is {_RC_FILE} that limits processes (ulimit -u), or too many "
                "processes of yours on that machine."
            )
        else:
            cause = f"The likely cause is {_RC_FILE}. {_INTERACTIVE_ONLY}"
        return self._error(
            f"The shell on {self._host} could not run {self._program} (status {status})."
            f"{_quoted(reported)}",
            cause,
        )

    def _exit_before_start(self, status: int, text: bytes) -> UnreachableError:
        login = shlex.join(ssh_argv(self._host))
        if _EXPIRED.search(text):
            return AuthenticationFailed(
                f"Your password on {self._host} has expired. No commands run there until you "
                "change it.",
                f"Change it: {login} prompts for a new one. Then connect again.",
            )
        if self.stderr.seen:
            return self._no_output()
        return self._error(
            f"The login shell on {self._host} exited (status {status}) before it ran "
            f"{self._program}.{_quoted(text)}",
            f"Try it by hand: {login} true. {_RC_FILE.capitalize()} may exit or replace the shell "
            "(exit, exec).",
        )

    def _no_output(self) -> ConnectionFailed:
        return self._error(
            f"No output of {self._program} arrived from {self._host}.",
            f"The likely cause is {_RC_FILE} that redirects stdout (exec >file). "
            f"{_INTERACTIVE_ONLY}",
        )

    @property
    def _error(self) -> type[ConnectionFailed]:
        return NotSent if self._reads_stdin else ConnectionFailed


def _quoted(label: bytes) -> str:
    text = excerpt(label, _EXCERPT_BYTES)
    return f" Its output: {text}" if text else ""


# ssh exits with this status if it failed itself, and not the command (ssh(1), EXIT STATUS).
SSH_FAILED = 255
_LINE_BROKE = (
    b"closed by remote host",
    b"Broken pipe",
    b"Connection to ",
    b"client_loop:",
    b"not responding",
)


def is_connection_lost(stderr: bytes) -> bool:
    """Whether ssh itself reports a lost connection: a command may exit with SSH_FAILED as well."""
    last = stderr.strip().rsplit(b"\n", 1)[-1]
    return any(text in last for text in _LINE_BROKE)
