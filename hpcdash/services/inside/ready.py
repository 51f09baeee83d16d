"""Predefined commands to run in a job, and the parser of a typed command."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from msgspec import Struct

from hpcdash.backends.inside import InsideCommand
from hpcdash.config.plugins import SiteCommand
from hpcdash.domain.units import HOUR, parse_duration
from hpcdash.errors import UsageError
from hpcdash.services.inside.leftovers import LIST_LEFTOVERS
from hpcdash.services.inside.stacks import STACKS

_EACH_GPU = "--each-gpu"
_TIMEOUT = "--timeout"


class ReadyCommand(Struct, frozen=True):
    """Predefined command with its name in a list and its description."""

    name: str
    command: InsideCommand
    text: str = ""


BUILT_IN = (
    ReadyCommand("nvidia-smi", InsideCommand(("nvidia-smi",)), "GPUs, their memory and processes"),
    ReadyCommand(
        "df -h /dev/shm", InsideCommand(("df", "-h", "/dev/shm")), "shared memory of data loaders"
    ),
    ReadyCommand("stacks", STACKS, "Python stacks of all processes, by py-spy"),
    ReadyCommand(
        "leftovers",
        LIST_LEFTOVERS,
        "processes left by your finished jobs; offers to end them",
    ),
)


def ready_commands(site: Iterable[SiteCommand]) -> tuple[ReadyCommand, ...]:
    """Return the site's commands, then the built-in ones."""
    configured = []
    for one in site:
        command = InsideCommand(one.command, int(one.limit_seconds), each_gpu=one.each == "gpu")
        description = one.description or "from config.toml"
        configured.append(ReadyCommand(one.name, command, description))
    return (*configured, *BUILT_IN)


def parse_timeout(text: str) -> int | None:
    """Parse a time limit from 1 s to 1 h, in seconds; None for any other text."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        return None
    return seconds if seconds is not None and 1 <= seconds <= HOUR else None


def read_command(line: str) -> InsideCommand:
    """Parse a typed command, split as a shell does, after its options. Raises UsageError."""
    try:
        parts = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()}") from None
    each_gpu = False
    seconds = 60
    while parts[:1] and parts[0] in (_EACH_GPU, _TIMEOUT):
        if parts.pop(0) == _EACH_GPU:
            each_gpu = True
            continue
        limit = parse_timeout(parts.pop(0)) if parts else None
        if limit is None:
            raise UsageError(f"{_TIMEOUT} needs a time from 1s to 1h")
        seconds = limit
    if parts[:1] == ["--"]:
        parts.pop(0)
    if not parts or not parts[0]:
        raise UsageError("no command")
    return InsideCommand(tuple(parts), seconds, each_gpu)
