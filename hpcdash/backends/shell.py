"""A shell in a running job: what a scheduler has to run for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShellRequest:
    """On which of the job's nodes ('': none is known), and what runs there: `command`, () for the person's own shell."""

    node: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """What runs on a person's terminal: `argv` on the login node, or where `host` is said on that one through ssh there.

    `notes` say what it does not give, in words.
    """

    argv: tuple[str, ...]
    host: str = ""
    notes: tuple[str, ...] = ()


# $1 is the folder to be in, then come the words of a command; without any the person's shell runs, as at a login.
# Where the folder cannot be entered `cd` says so.
_IN_FOLDER = 'if [ -n "$1" ]; then cd -- "$1"; fi; shift; [ "$#" -gt 0 ] || set -- "${SHELL:-/bin/sh}" -l; exec "$@"'


def in_folder(folder: str, command: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A command, or the person's shell, in a folder."""
    return "sh", "-c", _IN_FOLDER, "sh", folder, *command
