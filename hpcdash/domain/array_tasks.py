"""The tasks of a job array as schedulers write them: `3-10%1`, `1,3,5-7`, `0-15:4`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import attrgetter

# Slurm's MaxArraySize is at most 4 000 001.
MAX_TASKS = 4_000_001

_ITEM = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_THROTTLE = re.compile(r"%([0-9]{1,10})$")
# What may be left of an item where a list was cut.
_CUT_ITEM = re.compile(
    r"(?:[0-9]{1,10}(?:-(?:[0-9]{1,10}(?::[0-9]{0,10})?)?)?)?(?:%[0-9]{0,10})?(?:\.\.\.|…)?"
)
_CUT = ("...", "…")
# Overlapping ranges with steps are checked task by task.
_MAX_CHECKED = 100_000
_SHOWN_LETTERS = 60
# Up to this many tasks are divided into the fewest ranges.
_MAX_TRIED = 10
# Of more than this many tasks only runs without steps are found.
_MAX_COMPARED = 1000


@dataclass(frozen=True, slots=True)
class ArrayTasks:
    """Tasks of an array; `throttle` is how many may run at once; incomplete when the scheduler cut
    the list short.
    """

    ranges: tuple[range, ...]
    throttle: int | None = None
    is_incomplete: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.ranges))

    @property
    def first(self) -> int | None:
        return min((tasks.start for tasks in self.ranges), default=None)

    def contains(self, task: int) -> bool:
        return any(task in tasks for tasks in self.ranges)

    def overlaps(self, other: ArrayTasks) -> bool:
        """Whether any task is in both."""
        return any(_meet(ours, theirs) for ours in self.ranges for theirs in other.ranges)

    def __iter__(self) -> Iterator[int]:
        for tasks in self.ranges:
            yield from tasks

    def __str__(self) -> str:
        items = [_shown(tasks) for tasks in self.ranges] + ["..."] * self.is_incomplete
        return ",".join(items) + (f"%{self.throttle}" if self.throttle else "")


def parse_tasks(text: str) -> ArrayTasks:
    """Parse `3-10%1`, `1,3,5-7`, `0-15:4`, `[4-10%2]`, `1-3,...`; each task counts once.

    A list that ends in `...` or lost its bracket is incomplete; the last number before a lost
    bracket may have lost digits and is left out. Raises ValueError naming the text.
    """
    requested = text.strip()
    is_cut = requested.startswith("[") and not requested.endswith("]")
    requested = requested.removeprefix("[").removesuffix("]")
    throttle = _THROTTLE.search(requested)
    if throttle:
        requested = requested[: throttle.start()]
    items = [item.strip() for item in requested.split(",")]
    is_incomplete = is_cut or items[-1].endswith(_CUT)
    if is_incomplete and not _CUT_ITEM.fullmatch(items.pop()):
        raise ValueError(f"{_excerpt(text)} is not a list of array tasks")
    ranges = [_parse_item(item, text) for item in items]
    if not ranges and not is_incomplete:
        raise ValueError(f"{_excerpt(text)} contains no array tasks")
    if sum(map(len, ranges)) > MAX_TASKS:
        raise ValueError(f"{_excerpt(text)} has more than {MAX_TASKS} tasks")
    return ArrayTasks(
        _distinct(ranges, text), int(throttle[1]) or None if throttle else None, is_incomplete
    )


def read_tasks(text: str | None) -> ArrayTasks | None:
    """Parse the tasks in a job's row; None for a text that is not a list of tasks."""
    try:
        return parse_tasks(text or "")
    except ValueError:
        return None


def read_all_tasks(text: str | None) -> ArrayTasks | None:
    """Parse the tasks in a job's row; None if some or all of them are unknown."""
    tasks = read_tasks(text)
    return None if tasks is None or tasks.is_incomplete else tasks


def joined_tasks(tasks: Iterable[int]) -> ArrayTasks | None:
    """Return tasks as few ranges, in order, each once; None if there are none."""
    ranges: list[range] = []
    for task in sorted(set(tasks)):
        if ranges and ranges[-1].stop == task:
            ranges[-1] = range(ranges[-1].start, task + 1)
        else:
            ranges.append(range(task, task + 1))
    return ArrayTasks(tuple(ranges)) if ranges else None


def shared_tasks(first: ArrayTasks, second: ArrayTasks) -> ArrayTasks | None:
    """Return the tasks in both, in order, each once; None if there are none."""
    shorter, longer = sorted((first, second), key=attrgetter("count"))
    return joined_tasks(task for task in shorter if longer.contains(task))


def stepped_ranges(tasks: Iterable[int]) -> tuple[range, ...]:
    """Tasks as few ranges with steps, each task in one of them: 3-12:3 and 4 for 3,4,6,9,12.

    The fewest for some tasks; for many nearly so: the longest ranges first.
    """
    left = sorted(set(tasks))
    if len(left) <= _MAX_TRIED:
        return tuple(sorted(_fewest_ranges(tuple(left)), key=attrgetter("start")))
    found = _longest_first(left) if len(left) <= _MAX_COMPARED else []
    left = sorted(set(left).difference(*found))
    if not found:
        runs = joined_tasks(left)
        found = [run for run in runs.ranges if len(run) > 2] if runs else []
        left = sorted(set(left).difference(*found))
    # Any two are a range.
    pairs = [left[at : at + 2] for at in range(0, len(left), 2)]
    found += [range(pair[0], pair[-1] + 1, max(1, pair[-1] - pair[0])) for pair in pairs]
    return tuple(sorted(found, key=attrgetter("start")))


@lru_cache(maxsize=4096)
def _fewest_ranges(tasks: tuple[int, ...]) -> tuple[range, ...]:
    if len(tasks) < 3:
        return (range(tasks[0], tasks[-1] + 1, max(1, tasks[-1] - tasks[0])),) if tasks else ()
    # The first task begins a range, of whatever step and length.
    requested = frozenset(tasks)
    first = tasks[0]
    choices = [range(first, first + 1)]
    for second in tasks[1:]:
        step = second - first
        last = second
        while last in requested:
            choices.append(range(first, last + 1, step))
            last += step
    best: tuple[range, ...] = ()
    for choice in sorted(choices, key=len, reverse=True):
        if 0 < len(best) <= 2:
            break
        rest = _fewest_ranges(tuple(task for task in tasks if task not in choice))
        if not best or len(rest) + 1 < len(best):
            best = (choice, *rest)
    return best


def _longest_first(tasks: Sequence[int]) -> list[range]:
    """Find disjoint ranges of three or more tasks, always the longest of the remaining tasks."""
    left = set(tasks)
    heap = []
    for at, first in enumerate(tasks):
        for second in tasks[at + 1 :]:
            step = second - first
            if first - step in left or second + step not in left:
                continue
            last = second
            while last + step in left:
                last += step
            heap.append((-(last - first) // step - 1, first, last, step))
    heapify(heap)
    found = []
    while heap:
        size, first, last, step = heappop(heap)
        pieces = _pieces(range(first, last + 1, step), left)
        if len(pieces) == 1 and len(pieces[0]) == -size:
            found.append(pieces[0])
            left.difference_update(pieces[0])
            continue
        for piece in pieces:
            if len(piece) > 2:
                heappush(heap, (-len(piece), piece[0], piece[-1], step))
    return found


def _pieces(whole: range, left: Set[int]) -> list[range]:
    """Return the parts of a range whose tasks all remain."""
    pieces: list[range] = []
    for task in whole:
        if task not in left:
            continue
        if pieces and pieces[-1][-1] + whole.step == task:
            pieces[-1] = range(pieces[-1].start, task + 1, whole.step)
        else:
            pieces.append(range(task, task + 1, whole.step))
    return pieces


def _parse_item(item: str, text: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(
            f"{_named(item, text)} is not an array task: use 3, 1-10, 0-15:4 or 1-10%2"
        )
    low = int(match[1])
    high = int(match[2] or match[1])
    step = int(match[3] or 1)
    if high < low or step == 0:
        raise ValueError(f"{_named(item, text)} is an empty range")
    return range(low, high + 1, step)


def _named(item: str, text: str) -> str:
    return _excerpt(text) if item == text else f"{_excerpt(item)} in {_excerpt(text)}"


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 1] + "…")


def _distinct(ranges: list[range], text: str) -> tuple[range, ...]:
    """Return the ranges if no task is in two of them; else ranges that are joined, in order."""
    ordered = sorted(ranges, key=attrgetter("start"))
    if all(before[-1] < after[0] for before, after in pairwise(ordered)):
        return tuple(ranges)
    stepped = [tasks for tasks in ordered if tasks.step > 1]
    if sum(map(len, stepped)) > _MAX_CHECKED:
        raise ValueError(f"{_excerpt(text)} lists tasks more than once")
    alone = [range(task, task + 1) for tasks in stepped for task in tasks]
    result: list[range] = []
    plain = [tasks for tasks in ordered if tasks.step == 1]
    for tasks in sorted([*plain, *alone], key=attrgetter("start")):
        if result and tasks.start <= result[-1].stop:
            result[-1] = range(result[-1].start, max(result[-1].stop, tasks.stop))
        else:
            result.append(tasks)
    return tuple(result)


def _meet(first: range, second: range) -> bool:
    if first.step == second.step == 1:
        return max(first.start, second.start) < min(first.stop, second.stop)
    shorter, longer = sorted((first, second), key=len)
    return any(task in longer for task in shorter)


def _shown(tasks: range) -> str:
    if len(tasks) == 1:
        return str(tasks.start)
    return f"{tasks[0]}-{tasks[-1]}" + (f":{tasks.step}" if tasks.step > 1 else "")
