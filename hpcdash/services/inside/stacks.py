"""Stacks of the Python processes of a running job, grouped by place.

py-spy reads the processes without stopping them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpcdash.backends.inside import InsideCommand, NodeOutput
from hpcdash.domain.array_tasks import joined_tasks
from hpcdash.domain.text import visible
from hpcdash.shell_files import shell_text

LIMIT_SECONDS = 90
_MAX_PROCESSES = 4
_SCRIPT = "export LC_ALL=C\n" + shell_text("backends/job_processes.sh", "services/inside/stacks.sh")
STACKS = InsideCommand(("sh", "-c", _SCRIPT, "sh"), LIMIT_SECONDS)

_PROCESS = re.compile(r"process (\d+)(?:, rank (\d+))?: ")
_MAIN_THREAD = re.compile(r'Thread \S+ \([^)]*\): "?MainThread"?')
_FRAME = re.compile(r"^\s+(\S.* \(.+:\d+\))$")


class StackPlace(Struct, frozen=True):
    """Frame in the code, with the ranks or processes that are in it."""

    frame: str
    who: tuple[str, ...]


def read_stack_places(outputs: Iterable[NodeOutput]) -> list[StackPlace]:
    """Parse the innermost frame of each main thread; the place with most processes first."""
    places: dict[str, list[str]] = {}
    for output in outputs:
        who = ""
        is_main = False
        for line in output.output.decode("utf-8", "replace").splitlines():
            if process := _PROCESS.match(line):
                who = f"rank {process[2]}" if process[2] else f"{output.node} process {process[1]}"
                is_main = False
            elif who and line.lstrip().startswith("Thread "):
                is_main = bool(_MAIN_THREAD.search(line))
            elif who and is_main and (frame := _FRAME.match(line)):
                places.setdefault(frame[1], []).append(who)
                who = ""
    found = [StackPlace(frame, tuple(who)) for frame, who in places.items()]
    return sorted(found, key=lambda one: -len(one.who))


def format_stack_places(places: Sequence[StackPlace]) -> list[str]:
    """Format a line per place: `7 of 8 in all_reduce (…): ranks 0-6`; [] for a single process."""
    total = sum(len(one.who) for one in places)
    if total < 2:
        return []
    lines = [
        f"{len(one.who)} of {total} in {visible(one.frame)}: {_format_who(one.who)}"
        for one in places
    ]
    if len(places) > 1:
        few = places[-1].who
        lines.append(f"stacks differ: check {_format_who(few)} first")
    return lines


def _format_who(who: Sequence[str]) -> str:
    ranks = sorted({int(name.removeprefix("rank ")) for name in who if name.startswith("rank ")})
    others = [visible(name) for name in who if not name.startswith("rank ")]
    parts = []
    if ranks:
        parts.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {joined_tasks(ranks)}")
    if others:
        text = ", ".join(others[:_MAX_PROCESSES])
        if (left := len(others) - _MAX_PROCESSES) > 0:
            text += f" and {left} more"
        parts.append(text)
    return ", ".join(parts)
