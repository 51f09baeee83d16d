"""Variables of a login node's commands, and those that only a login shell sets there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hpcdash.errors import UnreadableOutput
from hpcdash.transport.base import CommandResult
from hpcdash.transport.shell import fresh_marker

LOGIN_ENVIRONMENT_SECONDS = 20.0
_MAX_BYTES = 1 << 20
NAMES = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF")

# csh and tcsh accept -l only without other options, so they get their command on stdin.
_RUN_SHELLS = (
    'eval "$1"; case $SHELL in *csh) printf "%s\\n" "$2" | "$SHELL" -l;; *) "$SHELL" -lc '
    '"$2";; esac'
)
_PRINT = """/bin/sh -c 'for n in {names}; do eval "v=\\$$n"; echo "{marker} {shell} $n=$v"; done'"""


class RemoteEnvironment:
    """Variables and directories of PATH that a transport sets for each command."""

    def __init__(self, environment: dict[str, str] | None, path: str) -> None:
        self.variables = dict(environment or {})
        self.path = path

    def prepend_path(self, folder: str) -> None:
        """Search `folder` before the remote PATH."""
        self.path = f"{folder}:{self.path}" if self.path else folder

    async def adopt(self, run: Callable[..., Awaitable[CommandResult]]) -> bool:
        """Set PATH, LD_LIBRARY_PATH and SLURM_CONF as in a login shell; True if any changed.

        Many sites set the scheduler's PATH only in login shells. `run` is a Transport.run that sets
        no variables. Raises UnreadableOutput if the shell prints more than 1 MiB.
        """
        marker = fresh_marker()
        argv = login_environment_argv(marker)
        result = await run(argv, limit_seconds=LOGIN_ENVIRONMENT_SECONDS, cap_bytes=_MAX_BYTES)
        if result.truncated:
            raise UnreadableOutput(
                "the login shell printed more than 1 MiB when its environment was read",
                "A line of an rc file there (~/.profile, ~/.bash_profile, ~/.login) prints "
                "endlessly.",
                argv=("$SHELL", "-l"),
                status=result.status,
            )
        found = await asyncio.to_thread(parse_login_environment, result.stdout, marker.encode())
        is_changed = any(self.variables.get(name) != value for name, value in found.items())
        self.variables.update(found)
        return is_changed


def login_environment_argv(marker: str) -> tuple[str, ...]:
    """Build the command that prints the variables of this shell and of a login shell ($SHELL)."""
    names = " ".join(NAMES)
    here = _PRINT.format(names=names, marker=marker, shell="here")
    login = _PRINT.format(names=names, marker=marker, shell="login")
    return ("/bin/sh", "-c", _RUN_SHELLS, "sh", here, login)


def parse_login_environment(stdout: bytes, marker: bytes) -> dict[str, str]:
    """Parse the variables that a login shell sets differently, among output of rc files."""
    found: dict[str, dict[str, str]] = {"here": {}, "login": {}}
    for line in stdout.split(b"\n"):
        _noise, mark, answer = line.partition(marker + b" ")
        shell, _, assignment = answer.decode("utf-8", "surrogateescape").partition(" ")
        name, _, value = assignment.partition("=")
        if mark and shell in found and name in NAMES:
            found[shell][name] = value
    return {
        name: value
        for name, value in found["login"].items()
        if value and value != found["here"].get(name)
    }
