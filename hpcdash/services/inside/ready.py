"""Commands that are ready to be run in a job: those everyone has, the site's, and what a person ran before."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from hpcdash.backends.inside import OF_JOB, InsideCommand
from hpcdash.config.exec import SiteCommand
from hpcdash.domain.units import HOUR, parse_duration
from hpcdash.errors import UsageError
from hpcdash.services.inside.stacks import STACKS

_EACH_GPU, _TIMEOUT = "--each-gpu", "--timeout"
# What is there of this user and not of the job: what an earlier run left behind, or another job of theirs.
_LEFTOVERS = (
    "export LC_ALL=C\nexec 2>/dev/null\n"
    + OF_JOB
    + r"""
count=0
for of in /proc/[0-9]*; do
  pid=${of#/proc/}
  [ -O "$of" ] || continue
  grep -qz '^HPCDASH_INSIDE=' "$of/environ" 2>/dev/null && continue
  # What brings this command here, where the login node is the node.
  grep -q 'hpcdash-[0-9a-f]\{16\}' "$of/cmdline" 2>/dev/null && continue
  ! of_job "$pid" || continue
  words=$(tr '\0\n' '  ' < "$of/cmdline" 2>/dev/null | cut -c 1-200)
  [ -n "$words" ] || continue
  count=$((count + 1))
  echo "$pid: $words"
done
[ "$count" -gt 0 ] || echo "no process of yours besides the job's, as far as you may see"
"""
)


@dataclass(frozen=True, slots=True)
class ReadyCommand:
    """`name` is what it is called in a list, `words` what it tells."""

    name: str
    command: InsideCommand
    words: str = ""


BUILT_IN = (
    ReadyCommand("nvidia-smi", InsideCommand(("nvidia-smi",)), "GPUs, their memory and processes"),
    ReadyCommand("df -h /dev/shm", InsideCommand(("df", "-h", "/dev/shm")), "shared memory of data loaders"),
    ReadyCommand("stacks", STACKS, "Python stacks of all processes, by py-spy"),
    ReadyCommand(
        "leftovers", InsideCommand(("sh", "-c", _LEFTOVERS, "sh")), "processes of yours that are not the job's"
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
    """A command as a person types it: words as a shell splits them, though none reads them; options come before it.

    Raises UsageError.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()}") from None
    each_gpu, seconds = False, 60
    while words[:1] and words[0] in (_EACH_GPU, _TIMEOUT):
        if words.pop(0) == _EACH_GPU:
            each_gpu = True
            continue
        try:
            limit = parse_duration(words.pop(0)) if words else None
        except ValueError:
            limit = None
        if limit is None or not 1 <= limit <= HOUR:
            raise UsageError(f"{_TIMEOUT} takes a time from 1s to 1h")
        seconds = limit
    if words[:1] == ["--"]:
        words.pop(0)
    if not words or not words[0]:
        raise UsageError("there is no command")
    return InsideCommand(tuple(words), seconds, each_gpu)
