"""The tasks of a job array as schedulers write them: `3-10%1`, `1,3,5-7`, `0-15:4`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

# Slurm's MaxArraySize is at most 4 000 001.
MAX_TASKS = 4_000_001

_ITEM = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_THROTTLE = re.compile(r"%([0-9]{1,10})$")
# What may be left of an item where a list was cut.
_CUT_ITEM = re.compile(r"(?:[0-9]{1,10}(?:-(?:[0-9]{1,10}(?::[0-9]{0,10})?)?)?)?(?:%[0-9]{0,10})?(?:\.\.\.|…)?")
_CUT = ("...", "…")
# Of ranges with steps that overlap each task is looked at.
_MOST_LOOKED_AT = 100_000
_SHOWN_LETTERS = 60


@dataclass(frozen=True, slots=True)
class ArrayTasks:
    """Tasks of an array; `throttle` is how many may run at once; incomplete when the scheduler cut the list short."""

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
    """Reads `3-10%1`, `1,3,5-7`, `0-15:4`, `[4-10%2]`, `1-3,...`; each task counts once.

    A list that ends in `...` or lost its bracket is incomplete; the last number before a lost bracket may have lost
    digits and is left out. Raises ValueError naming the text.
    """
    wanted = text.strip()
    is_cut = wanted.startswith("[") and not wanted.endswith("]")
    wanted = wanted.removeprefix("[").removesuffix("]")
    throttle = _THROTTLE.search(wanted)
    if throttle:
        wanted = wanted[: throttle.start()]
    items = [item.strip() for item in wanted.split(",")]
    is_incomplete = is_cut or items[-1].endswith(_CUT)
    if is_incomplete and not _CUT_ITEM.fullmatch(items.pop()):
        raise ValueError(f"{_excerpt(text)} is not a list of array tasks")
    ranges = [_parse_item(item, text) for item in items]
    if not ranges and not is_incomplete:
        raise ValueError(f"{_excerpt(text)} names no array tasks")
    if sum(map(len, ranges)) > MAX_TASKS:
        raise ValueError(f"{_excerpt(text)} has more than {MAX_TASKS} tasks")
    return ArrayTasks(_distinct(ranges, text), int(throttle[1]) or None if throttle else None, is_incomplete)


def _parse_item(item: str, text: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(f"{_named(item, text)} is not an array task: write 3, 1-10, 0-15:4 or 1-10%2")
    low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if high < low or step == 0:
        raise ValueError(f"{_named(item, text)} is an empty range")
    return range(low, high + 1, step)


def _named(item: str, text: str) -> str:
    return _excerpt(text) if item == text else f"{_excerpt(item)} in {_excerpt(text)}"


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 1] + "…")


def _distinct(ranges: list[range], text: str) -> tuple[range, ...]:
    """The same ranges when no task is twice in them; else the tasks anew, in order."""
    ordered = sorted(ranges, key=lambda tasks: tasks.start)
    if all(before[-1] < after[0] for before, after in zip(ordered, islice(ordered, 1, None), strict=False)):
        return tuple(ranges)
    stepped = [tasks for tasks in ordered if tasks.step > 1]
    if sum(map(len, stepped)) > _MOST_LOOKED_AT:
        raise ValueError(f"{_excerpt(text)} names tasks more than once")
    alone = [range(task, task + 1) for tasks in stepped for task in tasks]
    result: list[range] = []
    for tasks in sorted([*(tasks for tasks in ordered if tasks.step == 1), *alone], key=lambda tasks: tasks.start):
        if result and tasks.start <= result[-1].stop:
            result[-1] = range(result[-1].start, max(result[-1].stop, tasks.stop))
        else:
            result.append(tasks)
    return tuple(result)


def _meet(one: range, other: range) -> bool:
    if len(other) < len(one):
        one, other = other, one
    if one.step == other.step == 1:
        return max(one.start, other.start) < min(one.stop, other.stop)
    return any(task in other for task in one)


def _shown(tasks: range) -> str:
    if len(tasks) == 1:
        return str(tasks.start)
    return f"{tasks[0]}-{tasks[-1]}" + (f":{tasks.step}" if tasks.step > 1 else "")
