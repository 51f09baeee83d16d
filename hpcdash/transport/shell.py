"""The one string sent to a login node for a command, where its output begins and ends, and what rc
files do to it.
"""

from __future__ import annotations

import math
import re
import secrets
import shlex
from collections.abc import Mapping

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

# sshd hands the string to the login shell as one argument; Linux allows 131 072 bytes for one
# (MAX_ARG_STRLEN).
LONGEST_COMMAND_BYTES = 120_000
# The remote limit is longer than the local one: it matters only when the connection is dead and
# neither side knows.
REMOTE_GRACE_SECONDS = 5
STDIN_COMPLETE = b"go\n"
# A login shell whose rc files take longer to come to a command will not come to it.
BEGIN_SECONDS = 30.0
# Most output of rc files around a command.
NOISE_BYTES = 64 << 10
# A status from here on is a signal's.
_SIGNALLED = 128

# Inside '…' for csh, fish, bash, zsh and dash, then inside "…" for /bin/sh, then for printf %b.
_LITERAL = frozenset(range(0x20, 0x7F)) - frozenset(b"'\"!$`\\")


class RemoteCommand(Struct, frozen=True):
    """`text` is what the login shell gets; `marker` begins the lines around the command's own
    output.
    """

    text: str
    marker: bytes

    def stdout(self) -> MarkedOutput:
        return MarkedOutput(self.marker + b"\n", self.marker)

    def stderr(self) -> MarkedOutput:
        return MarkedOutput(self.marker + b" stderr\n", self.marker)


def ssh_argv(destination: str) -> tuple[str, str]:
    """The ssh program and a destination as it takes it: host:port in its URI form only."""
    return "ssh", f"ssh://{destination}" if re.fullmatch(r"[^/]+:\d+", destination) else destination


def interactive_command(
    argv: tuple[str, ...], environment: Mapping[str, str] | None = None, path: str = ""
) -> str:
    """The string for the login shell, whichever it is, that `argv` takes the place of, on a
    pseudo-terminal.

    `environment` and `path` are as in `remote_command`; the terminal's end ends the command. Raises
    UsageError.
    """
    text = encoded(_exports(environment, path) + b"exec " + quote_arguments(argv))
    return _check_length(f'exec sh -c \'eval "$(printf %b "{text}")"\'')


def encoded(raw: bytes) -> str:
    r"""Bytes for `printf %b` within "…" within '…': printable ASCII stays, the rest and '"!$`\
    become \0ooo.
    """
    return "".join(chr(byte) if byte in _LITERAL else f"\\0{byte:03o}" for byte in raw)


def quote_arguments(argv: tuple[str, ...]) -> bytes:
    """The words as /bin/sh reads them back, byte for byte; bytes that were no UTF-8 come back as
    they were.

    Raises UsageError for a NUL byte, which no command line can carry, or where there is no command.
    """
    if not argv or not argv[0]:
        raise UsageError("There is no command to run.")
    if any("\0" in word for word in argv):
        raise UsageError("A command line cannot hold a NUL byte.", "Remove it from the argument.")
    return " ".join(map(shlex.quote, argv)).encode("utf-8", "surrogateescape")


def fresh_marker() -> str:
    """A line no rc file prints: 64 random bits."""
    return f"hpcdash-{secrets.token_hex(8)}"


def remote_command(
    argv: tuple[str, ...],
    *,
    limit_seconds: float,
    environment: Mapping[str, str] | None = None,
    path: str = "",
    stdin_bytes: int | None = None,
    marker: str | None = None,
) -> RemoteCommand:
    """The string for the login shell, whichever it is, that runs `argv` under /bin/sh.

    `path`, directories joined with ':', goes before the PATH there. The channel's stdin must stay
    open while the command runs: its end ends the command and its process group. With `stdin_bytes`,
    send that many bytes and then STDIN_COMPLETE. Raises UsageError for a command that cannot be
    sent.
    """
    marker = marker or fresh_marker()
    limit = math.ceil(limit_seconds) + REMOTE_GRACE_SECONDS
    end = "without_stdin" if stdin_bytes is None else "with_stdin"
    script = b"".join(
        (
            _exports(environment, path),
            b"set -- " + quote_arguments(argv),
            f"\nhpcdash_marker={marker} hpcdash_limit={limit} hpcdash_stdin={stdin_bytes}\n".encode(),
            shell_text("transport/command.sh", f"transport/{end}.sh").encode(),
        )
    )
    # If stderr is joined to stdout its line comes first, and is not taken for output.
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
            f"The command line is {len(text)} bytes long; a login node takes "
            f"{LONGEST_COMMAND_BYTES}.",
            "Name fewer jobs at once.",
        )
    return text


class MarkedOutput:
    """A command's own output out of a stream of chunks: what rc files print before it and after it
    is dropped.

    `seen` says whether it has begun. `end` is None until it has ended; then it is b"end", or
    b"stdin" where the command was ended because its stdin was.
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
        """Return the part of this chunk, and of what was held back before, that is the command's
        own output.
        """
        if self.is_too_noisy:
            return b""
        if not self.seen:
            searched = max(0, len(self._before) - len(self._begin))
            self._before += chunk
            start = self._before.find(self._begin, searched)
            if start < 0:
                return b""
            self.seen, chunk = True, bytes(self._before[start + len(self._begin) :])
            del self._before[start:]
        if self.end is not None:
            self._bytes_after += len(chunk)
            return b""
        output = self._held + chunk
        own, found, rest = output.partition(self._end)
        if found:
            word, newline, _ = rest.partition(b"\n")
            is_whole = newline or len(rest) > len(self._end)
            self.end, self._held = (word, b"") if is_whole else (None, found + rest)
            return own
        # A line that ends the output may have begun.
        start = output.rfind(b"\x1e", max(0, len(output) - len(self._end)))
        if start >= 0 and self._end.startswith(output[start:]):
            output, self._held = output[:start], output[start:]
        else:
            self._held = b""
        return output

    @property
    def rest(self) -> bytes:
        """Rest of the held-back bytes, which are output once no more comes."""
        return self._held

    @property
    def noise(self) -> bytes:
        """Return what rc files printed before the command's output."""
        return bytes(self._before)

    @property
    def is_too_noisy(self) -> bool:
        """Whether rc files printed more than NOISE_BYTES before the command's output, or after
        it.
        """
        return max(len(self._before), self._bytes_after) > NOISE_BYTES


# -- output of rc files, expired passwords

_RC_FILE = "a line of an rc file there (~/.bashrc, ~/.zshenv, ~/.tcshrc, config.fish)"
_INTERACTIVE_ONLY = "Let such a line act in interactive shells only."
_EXPIRED = re.compile(
    rb"password (?:has|is) expired|password change required|must change your password",
    re.IGNORECASE,
)
_FORK = re.compile(rb"(?:cannot|can.t) fork|fork: ", re.IGNORECASE)
_SAID_BYTES = 500


def never_began(
    where: str, program: str, limit_seconds: float, stderr: MarkedOutput, *, is_sent: bool
) -> ConnectionFailed:
    """The error where the login shell has not run a command within its time limit; `is_sent`: it
    reads no stdin.
    """
    if stderr.seen:
        return _no_output(where, program, is_sent)
    return (ConnectionFailed if is_sent else NotSent)(
        f"The login shell on {where} had not begun to run {program} after {limit_seconds:g} s.",
        f"The likely cause is {_RC_FILE} that starts another shell (exec zsh) or waits for input. "
        f"{_INTERACTIVE_ONLY}",
    )


def noise_failure(
    where: str, program: str, stdout: MarkedOutput, stderr: MarkedOutput, *, is_sent: bool
) -> ConnectionFailed | None:
    """Return the error where rc files print without end around a command; None where they do
    not.
    """
    if not (stdout.is_too_noisy or stderr.is_too_noisy):
        return None
    has_begun = stdout.seen or stderr.seen
    return (ConnectionFailed if is_sent or has_begun else NotSent)(
        f"The login shell on {where} printed more than {NOISE_BYTES >> 10} KiB of its own "
        f"{'after' if has_begun else 'before'} it ran {program}, so it was ended."
        f"{_quoted((stdout if stdout.is_too_noisy else stderr).noise)}",
        f"The likely cause is {_RC_FILE}. {_INTERACTIVE_ONLY}",
    )


def shell_failure(
    where: str,
    program: str,
    status: int,
    stdout: MarkedOutput,
    stderr: MarkedOutput,
    reported: bytes,
    *,
    is_sent: bool,
) -> UnreachableError | None:
    """Return why a shell that exited with `status` did not run a command properly.

    None where it did.

    `reported` is the command's own stderr; `is_sent`: it reads no stdin, without which it does
    nothing.
    """
    if failure := noise_failure(where, program, stdout, stderr, is_sent=is_sent):
        return failure
    if not stdout.seen:
        text = stdout.noise + stderr.noise + reported
        if _EXPIRED.search(text):
            return AuthenticationFailed(
                f"Your password on {where} has expired, and nothing is run there until it is "
                "changed.",
                f"Change it: {shlex.join(ssh_argv(where))} asks for a new one. Then connect again.",
            )
        if stderr.seen:
            return _no_output(where, program, is_sent)
        by_hand = shlex.join((*ssh_argv(where), "true"))
        return (ConnectionFailed if is_sent else NotSent)(
            f"The login shell on {where} ended (status {status}) before it ran "
            f"{program}.{_quoted(text)}",
            f"Try it by hand: {by_hand}. {_RC_FILE.capitalize()} may end or replace the shell "
            "(exit, exec).",
        )
    if stderr.end == b"stdin" and status:
        return (ConnectionFailed if is_sent else NotSent)(
            f"On {where} the input of {program} was at its end from the start, so it was ended.",
            f"The likely cause is {_RC_FILE} that leads stdin elsewhere (exec 0</dev/null). "
            f"{_INTERACTIVE_ONLY}",
        )
    if stdout.end is None and stderr.end is None and 0 < status < _SIGNALLED:
        cause = f"The likely cause is {_RC_FILE}. {_INTERACTIVE_ONLY}"
        if _FORK.search(reported):
            cause = (
                f"The likely cause is {_RC_FILE} that limits processes (ulimit -u), or too many "
                "processes of yours on that machine."
            )
        return (ConnectionFailed if is_sent else NotSent)(
            f"The shell on {where} could not run {program} (status {status}).{_quoted(reported)}",
            cause,
        )
    return None


def _no_output(where: str, program: str, is_sent: bool) -> ConnectionFailed:
    return (ConnectionFailed if is_sent else NotSent)(
        f"The output of {program} on {where} does not come here.",
        f"The likely cause is {_RC_FILE} that leads stdout elsewhere (exec >file). "
        f"{_INTERACTIVE_ONLY}",
    )


def _quoted(label: bytes) -> str:
    text = excerpt(label, _SAID_BYTES)
    return f" It said: {text}" if text else ""
