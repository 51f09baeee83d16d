"""Environment of a login shell, of any kind, that other shells do not have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hpcdash.errors import UnreadableOutput
from hpcdash.transport.base import CommandResult
from hpcdash.transport.shell import fresh_marker

LOGIN_ENVIRONMENT_SECONDS = 20.0
_MAX_BYTES = 1 << 20
NAMES = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF")

# csh and tcsh take -l only when it stands alone, so they get their command on stdin.
_ASK = (
    'eval "$1"; case $SHELL in *csh) printf "%s\\n" "$2" | "$SHELL" -l;; *) "$SHELL" -lc '
    '"$2";; esac'
)
_PRINT = """/bin/sh -c 'for n in {names}; do eval "v=\\$$n"; echo "{marker} {who} $n=$v"; done'"""


async def fetch_login_environment(run: Callable[..., Awaitable[CommandResult]]) -> dict[str, str]:
    """Return the variables that a login shell sets otherwise, by name.

    `run` is as Transport.run, in the environment that a command has without us. Raises
    UnreadableOutput where the shell prints more than 1 MiB.
    """
    argv, marker = login_environment_argv()
    answer = await run(argv, limit_seconds=LOGIN_ENVIRONMENT_SECONDS, cap_bytes=_MAX_BYTES)
    if answer.truncated:
        raise UnreadableOutput(
            "the login shell printed more than 1 MiB when its environment was read",
            "A line of an rc file there (~/.profile, ~/.bash_profile, ~/.login) prints without "
            "end.",
            argv=("$SHELL", "-l"),
            status=answer.status,
        )
    return await asyncio.to_thread(login_environment, answer.stdout, marker)


def login_environment_argv() -> tuple[tuple[str, ...], bytes]:
    """Build the command that runs the shell named by $SHELL, and the marker of its lines."""
    marker = fresh_marker()
    here, login = (
        _PRINT.format(names=" ".join(NAMES), marker=marker, who=who) for who in ("here", "login")
    )
    return ("/bin/sh", "-c", _ASK, "sh", here, login), marker.encode()


def login_environment(stdout: bytes, marker: bytes) -> dict[str, str]:
    """Parse the variables that a login shell sets otherwise; rc files may have printed as well."""
    found: dict[str, dict[str, str]] = {"here": {}, "login": {}}
    for line in stdout.split(b"\n"):
        _noise, mark, answer = line.partition(marker + b" ")
        who, _, assignment = answer.decode("utf-8", "surrogateescape").partition(" ")
        name, _, value = assignment.partition("=")
        if mark and who in found and name in NAMES:
            found[who][name] = value
    return {
        name: value
        for name, value in found["login"].items()
        if value and value != found["here"].get(name)
    }
