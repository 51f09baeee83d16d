"""The one string sent to a login node for a command, and where its output begins. Knows no connection; pure."""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdash.errors import UsageError
from hpcdash.transport.base import Said

# sshd hands the string to the login shell as one argument; Linux allows 131 072 bytes for one (MAX_ARG_STRLEN).
LONGEST_COMMAND_BYTES = 120_000
# The remote limit stands behind the one kept here: it matters only when the line is dead and neither side knows.
REMOTE_GRACE_SECONDS = 5
STDIN_COMPLETE = b"go\n"

# Inside '…' for csh, fish, bash, zsh and dash, then inside "…" for /bin/sh, then for printf %b.
_LITERAL = frozenset(range(0x20, 0x7F)) - frozenset(b"'\"!$`\\")

# None of this holds a single quote, exclamation mark, backslash or newline: it stands in '…' under every login shell.
# `timeout` puts the command into a process group of its own, whose number is its pid.
# _b notes the command's pid, _w the watcher's: $! has to be written encoded.
_NOTE_PIDS = b"_b() { p=$!; }; _w() { i=$!; }; "
_START = (
    "echo {marker}; echo {marker} >&2; "
    'eval "$(printf %b "{encoded}")"; '
    'command -v "$1" >/dev/null || {{ echo "$1: command not found" >&2; exit 127; }}; '
    'if command -v timeout >/dev/null; then set -- timeout -k 1 {limit} "$@"; '
    'elif command -v setsid >/dev/null; then set -- setsid "$@"; fi; '
    "exec 3<&0 </dev/null; p=; "
    '_e() {{ trap "" TERM; [ "$p" ] || _b; kill -TERM -$p; kill -TERM $p; sleep 1; kill -KILL -$p; kill -KILL $p; }}; '
    'trap "_e 2>/dev/null; exit 143" HUP INT TERM; '
)
# Whoever reads fd 3 sees its end when the channel is closed or sshd is gone, and ends the command.
_WITHOUT_STDIN = (
    '"$@" 3<&- & _b; ( while read -r x; do :; done; _e ) <&3 >/dev/null 2>&1 & _w; '
    "exec 3<&- 2>/dev/null; wait $p; s=$?; kill -KILL -$p; kill $i; exit $s"
)
# The command's stdin is closed only once the line `go` has come after its bytes: half a script is never taken for one.
_WITH_STDIN = (
    "( exec 2>/dev/null; head -c {stdin_bytes} <&3 && "
    '{{ read -r x <&3 && [ "$x" = go ] || {{ kill -TERM $$; sleep 3; }}; }}; '
    "exec >/dev/null; ( while read -r x; do :; done; kill -TERM $$ ) <&3 & ) | "
    '"$@" 3<&- & _b; exec 3<&- 2>/dev/null; wait $p; s=$?; kill -KILL -$p; exit $s'
)


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """`text` is what the login shell gets; `marker` the line after which, on stdout and on stderr, output begins."""

    text: str
    marker: bytes


def encoded(raw: bytes) -> str:
    r"""Bytes for `printf %b` within "…" within '…': printable ASCII stays, the rest and '"!$`\ become \0ooo."""
    return "".join(chr(byte) if byte in _LITERAL else f"\\0{byte:03o}" for byte in raw)


def quoted_words(argv: tuple[str, ...]) -> bytes:
    """The words as /bin/sh reads them back, byte for byte; bytes that were no UTF-8 come back as they were.

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

    `path`, directories joined with ':', goes before the PATH there. The channel's stdin must stay open while the
    command runs: its end ends the command and its process group. With `stdin_bytes`, send that many bytes and then
    STDIN_COMPLETE. Raises UsageError for a command that cannot be sent.
    """
    marker = marker or fresh_marker()
    exports = b"".join(
        f"{name}={shlex.quote(value)}; export {name}; ".encode("utf-8", "surrogateescape")
        for name, value in (environment or {}).items()
    )
    if path:
        exports += f"PATH={shlex.quote(path)}:$PATH; export PATH; ".encode("utf-8", "surrogateescape")
    script = _START.format(
        marker=marker,
        encoded=encoded(_NOTE_PIDS + exports + b"set -- " + quoted_words(argv)),
        limit=math.ceil(limit_seconds) + REMOTE_GRACE_SECONDS,
    )
    script += (_WITHOUT_STDIN if stdin_bytes is None else _WITH_STDIN).format(stdin_bytes=stdin_bytes)
    text = f"/bin/sh -c '{script}'"
    if len(text) > LONGEST_COMMAND_BYTES:
        raise UsageError(
            f"The command line is {len(text)} bytes long; a login node takes {LONGEST_COMMAND_BYTES}.",
            "Name fewer jobs at once.",
        )
    return RemoteCommand(text, marker.encode())


class AfterMarker:
    """Drops what comes before the marker's line from a stream of chunks; `seen` says whether it has come."""

    def __init__(self, marker: bytes) -> None:
        self._end = marker + b"\n"
        self._before = b""
        self.seen = False

    def feed(self, chunk: bytes) -> bytes:
        """The part of this chunk that is the command's own output."""
        if self.seen:
            return chunk
        self._before += chunk
        noise, found, output = self._before.partition(self._end)
        if not found:
            return b""
        self.seen, self._before = True, noise
        return output

    @property
    def noise(self) -> bytes:
        """What rc files printed before the command's output."""
        return self._before


def said_after(marker: bytes, said: Said | None) -> Said | None:
    """Gives `said` what a command itself writes on stderr, without what rc files print before it."""
    if said is None:
        return None
    cut = AfterMarker(marker)

    def heard(chunk: bytes) -> None:
        if output := cut.feed(chunk):
            said(output)

    return heard
