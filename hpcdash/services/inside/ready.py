"""Commands that are ready to be run in a job: those everyone has, the site's, and what a person ran
before.
"""

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

_EACH_GPU, _TIMEOUT = "--each-gpu", "--timeout"


class ReadyCommand(Struct, frozen=True):
    """`name` is what it is called in a list, `text` what it tells."""

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
    """The site's first."""
    configured = (
        ReadyCommand(
            one.name,
            InsideCommand(one.command, int(one.limit_seconds), each_gpu=one.each == "gpu"),
            one.description or "from config.toml",
        )
        for one in site
    )
    return (*configured, *BUILT_IN)


def read_command(line: str) -> InsideCommand:
    """A command as a person types it: words as a shell splits them, though none reads them; options
    come before it.

    Raises UsageError.
    """
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
        try:
            limit = parse_duration(parts.pop(0)) if parts else None
        except ValueError:
            limit = None
        if limit is None or not 1 <= limit <= HOUR:
            raise UsageError(f"{_TIMEOUT} takes a time from 1s to 1h")
        seconds = limit
    if parts[:1] == ["--"]:
        parts.pop(0)
    if not parts or not parts[0]:
        raise UsageError("no command")
    return InsideCommand(tuple(parts), seconds, each_gpu)
