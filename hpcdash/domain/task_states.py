"""The tasks of an array by their states: in task order as signs, or as lists of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from hpcdash.domain.arrays import ArrayTasks, parse_tasks
from hpcdash.domain.columns import STATE_ORDER, digits

Piece = tuple[str, str]
_ROOM_FOR_LIST = 60


@dataclass(frozen=True, slots=True)
class TaskStates:
    """Which task is in which state, in task order, and how many may run at once (None: no limit, or not known)."""

    by_task: Mapping[int, str]
    throttle: int | None = None

    def counts(self) -> dict[str, int]:
        """How many tasks a state has, the most alive first."""
        counts: dict[str, int] = {}
        for state in self.by_task.values():
            counts[state] = counts.get(state, 0) + 1
        return dict(sorted(counts.items(), key=lambda pair: _rank(pair[0])))

    def as_signs(self, signs: Mapping[str, str]) -> list[Piece]:
        """`✓✓✓✗▸▸◦◦` in task order, a piece for each run of one state: (signs, state)."""
        runs = groupby(self.by_task.values())
        return [(signs.get(state, "?") * sum(1 for _ in run), state) for state, run in runs]

    def as_runs(self, most: int) -> list[Piece] | None:
        """`1-40`, `41-44`, … with their states, in task order; None where there are more than `most` runs."""
        runs: list[Piece] = []
        for state, run in groupby(self.by_task.items(), key=lambda pair: pair[1]):
            if len(runs) == most:
                return None
            tasks = [task for task, _ in run]
            runs.append((str(tasks[0]) if len(tasks) == 1 else f"{tasks[0]}-{tasks[-1]}", state))
        return runs

    def of_state(self, state: str, room: int = _ROOM_FOR_LIST) -> str:
        """`1-6,8-12,…`: the tasks of one state, cut at `room` letters."""
        items: list[str] = []
        start = last = -2
        numbered = [task for task, theirs in self.by_task.items() if theirs == state]
        for task in [*numbered, -1]:
            if task == last + 1 and task >= 0:
                last = task
                continue
            if last >= 0:
                items.append(str(start) if start == last else f"{start}-{last}")
            if sum(len(item) + 1 for item in items) > room:
                items[-1] = "…"
                break
            start = last = task
        return ",".join(items)


def task_states(tables: Iterable[pa.Table]) -> TaskStates:
    """Of rows of domain.schema.JOBS of one array; where several tell of a task the first does."""
    by_task: dict[int, str] = {}
    throttle = None
    for table in tables:
        for text, state in zip(table["array_task"].to_pylist(), table["state"].to_pylist(), strict=True):
            if (number := digits(text)) is not None:
                by_task.setdefault(number, state)
            elif (held := _tasks(text)) is not None:
                throttle = throttle or held.throttle
                for task in held:
                    by_task.setdefault(task, state)
    return TaskStates(dict(sorted(by_task.items())), throttle)


def _tasks(text: str | None) -> ArrayTasks | None:
    try:
        return parse_tasks(text or "")
    except ValueError:
        return None


def _rank(state: str) -> int:
    return STATE_ORDER.index(state) if state in STATE_ORDER else len(STATE_ORDER)
