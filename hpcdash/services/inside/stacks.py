"""Stacks of the Python processes of a running job: the command for each node, and ranks by stack.

Nothing of the job is changed: py-spy reads the processes without stopping them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpcdash.backends.inside import InsideCommand, NodeOutput
from hpcdash.domain.text import visible
from hpcdash.shell_files import shell_text

LIMIT_SECONDS = 90
_SCRIPT = "export LC_ALL=C\n" + shell_text("backends/job_processes.sh", "services/inside/stacks.sh")
STACKS = InsideCommand(("sh", "-c", _SCRIPT, "sh"), LIMIT_SECONDS)

_PROCESS = re.compile(r"process (\d+)(?:, rank (\d+))?: ")
_MAIN_THREAD = re.compile(r'Thread \S+ \([^)]*\): "?MainThread"?')
_FRAME = re.compile(r"^\s+(\S.* \(.+:\d+\))$")


class StackPlace(Struct, frozen=True):
    """A place in the code, innermost first, and who stands there: ranks where they have such, else
    processes.
    """

    frame: str
    who: tuple[str, ...]


def read_stack_places(outputs: Iterable[NodeOutput]) -> list[StackPlace]:
    """The innermost frame of each main thread that py-spy showed; the place where most stand
    first.
    """
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
    """A line a place, where there are several processes: `7 of 8 stand in all_reduce (…): ranks
    0-6`.
    """
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
        runs: list[list[int]] = []
        for rank in ranks:
            if runs and rank == runs[-1][-1] + 1:
                runs[-1][-1:] = [runs[-1][-1], rank] if len(runs[-1]) == 1 else [rank]
            else:
                runs.append([rank])
        text = ",".join("-".join(map(str, run)) for run in runs)
        parts.append(f"rank {text}" if len(ranks) == 1 else f"ranks {text}")
    if others:
        parts.append(
            ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
        )
    return ", ".join(parts)
