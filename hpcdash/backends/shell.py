"""A shell in a running job: what a scheduler has to run for it, in the job's folder and
container.
"""

from __future__ import annotations

from msgspec import Struct

from hpcdash.shell_files import shell_text


class ShellRequest(Struct, frozen=True):
    """On which of the job's nodes ('': none is known), and what runs there: `command`, () for the
    person's own shell.

    `in_container`: the launch has its command run in a container, so the shell is to be inside of
    it. Without `has_terminal` the command's output goes to pipes.
    """

    node: str = ""
    command: tuple[str, ...] = ()
    in_container: bool = False
    has_terminal: bool = True


class ShellCommand(Struct, frozen=True):
    """Command for a person's terminal: `argv` on the login node, or on `host` through ssh from
    there.

    `notes` describe what it lacks.
    """

    argv: tuple[str, ...]
    host: str = ""
    notes: tuple[str, ...] = ()


# $1 is the folder to be in, then come the words of a command. Where the folder cannot be entered
# `cd` says so.
_IN_FOLDER = '[ -z "$1" ] || cd -- "$1"; shift; [ -x "${SHELL-}" ] || SHELL=/bin/sh; exec '


def in_folder(
    folder: str, command: tuple[str, ...] = (), *, is_login: bool = True
) -> tuple[str, ...]:
    """A command in a folder, or the person's shell, which reads what a login reads unless
    `is_login` is False.
    """
    return "sh", "-c", _start(command, is_login=is_login), "sh", folder, *command


def _start(command: tuple[str, ...], *, is_login: bool) -> str:
    shell = '"$SHELL" -l' if is_login else '"$SHELL"'
    return _IN_FOLDER + ('"$@"' if command else shell)


def in_job(folder: str, request: ShellRequest, *, is_login: bool = True) -> tuple[str, ...]:
    """Return a request's command on a job's node: in the job's folder, and in its container."""
    if not request.in_container:
        return in_folder(folder, request.command, is_login=is_login)
    # What a login reads is the machine's, not the container's.
    starts = (_start(request.command, is_login=inside) for inside in (False, is_login))
    return (
        "sh",
        "-c",
        shell_text("backends/adopt.sh", "backends/in_container.sh"),
        "sh",
        *starts,
        folder,
        *request.command,
    )
