"""Simulation of a shared pool's rules on a trace of tasks, with a simulated clock."""

from __future__ import annotations

import csv
import io
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count, pairwise
from math import isfinite
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.domain.share import EVERYONE, LEVELS, Priority, parse_priority
from hpcdash.services.share.scheduling import (
    DEMOTE_AFTER_SECONDS,
    PoolRules,
    PoolTask,
    Quotas,
    RunningTask,
    decide,
)


class _Event(Enum):
    SUBMITTED = auto()
    FINISHED = auto()
    # A suspended task has given up its nodes.
    FREED = auto()
    DEMOTED = auto()


class TracedTask(Struct, frozen=True):
    """A task of a trace, with `submitted_at` in seconds from the start of the trace.

    It works for `work_seconds` in all, saves every `checkpoint_seconds`, and takes `save_seconds`
    for a save.
    """

    submitted_at: float
    user: str
    nodes: int
    work_seconds: float
    priority: Priority = Priority.AUTO
    save_seconds: float = 2.0
    checkpoint_seconds: float = 1800.0


class PoolModel(Struct, frozen=True):
    """Model of a pool.

    A suspended task has `grace_seconds` to save; each further run takes `load_seconds` before it
    works. Tasks of `choosers` have the priorities they request, others AUTO.
    """

    nodes: int
    quotas: Quotas
    demote_after_seconds: float = DEMOTE_AFTER_SECONDS
    grace_seconds: float = 5.0
    load_seconds: float = 60.0
    choosers: frozenset[str] = frozenset({EVERYONE})


class PolicyResult(Struct):
    """Result of a trace.

    Node-seconds: `worked` are saved, `lost` were not saved, `idled` were spent on loads and saves.
    `waits` are, by the requested priority, the seconds from submission to the first start;
    `suspended_seconds` is the total wait of tasks between their runs. `busy` are steps: from a time
    on, that many nodes are in use.
    """

    name: str
    nodes: int
    tasks: int = 0
    worked: float = 0.0
    lost: float = 0.0
    idled: float = 0.0
    interruptions: int = 0
    interrupted_tasks: int = 0
    forced: int = 0
    suspended_seconds: float = 0.0
    ended_at: float = 0.0
    last_submitted_at: float = 0.0
    never_run: int = 0
    waits: dict[Priority, list[float]] = field(default_factory=lambda: defaultdict(list))
    busy: list[tuple[float, int]] = field(default_factory=list)

    def utilisation(self) -> float | None:
        """Return the fraction of the nodes in use while tasks were submitted.

        None if that took no time.
        """
        start = self.busy[0][0] if self.busy else 0.0
        end = self.last_submitted_at
        if end <= start:
            return None
        node_seconds = 0.0
        for (time, nodes), (next_time, _) in pairwise((*self.busy, (end, 0))):
            node_seconds += nodes * (min(next_time, end) - min(time, end))
        return node_seconds / (self.nodes * (end - start))


class _Progress(Struct):
    """Progress of a task: `done` seconds of saved work after `run` runs, the last since `since`."""

    task: PoolTask
    traced: TracedTask
    done: float = 0.0
    run: int = 0
    since: float = 0.0
    waits_since: float = 0.0
    is_running: bool = False
    is_interrupted: bool = False


class _Simulation:
    """A pool under its rules; `outcome` is filled by `run`."""

    def __init__(self, model: PoolModel, outcome: PolicyResult) -> None:
        self._model = model
        self._outcome = outcome
        self._free = model.nodes
        self._tasks: dict[str, _Progress] = {}
        self._running: dict[str, RunningTask] = {}
        self._leaving: dict[str, RunningTask] = {}
        self._waiting: dict[tuple[str, Priority], list[PoolTask]] = defaultdict(list)
        # By time; then in the order in which they were planned.
        self._events: list[tuple[float, int, _Event, _Progress, int]] = []
        self._numbers = count()

    def run(self, tasks: Iterable[tuple[TracedTask, str, Priority]]) -> None:
        """Simulate tasks, each with the user and the priority that the rules apply to."""
        for number, (traced, user, priority) in enumerate(tasks):
            place = (traced.submitted_at, number)
            task = PoolTask(str(number), user, traced.nodes, priority, place)
            self._tasks[task.id] = progress = _Progress(task, traced)
            self._plan(traced.submitted_at, _Event.SUBMITTED, progress)
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, _, event, progress, run = heappop(self._events)
                self._apply(now, event, progress, run)
            self._decide(now)

    def _plan(self, time: float, event: _Event, progress: _Progress) -> None:
        heappush(self._events, (time, next(self._numbers), event, progress, progress.run))

    def _apply(self, now: float, event: _Event, progress: _Progress, run: int) -> None:
        task = progress.task
        if event is _Event.FREED:
            self._free += task.nodes
            del self._leaving[task.id]
        if event in (_Event.SUBMITTED, _Event.FREED):
            progress.waits_since = now
            insort(self._waiting[task.user, task.level], task, key=lambda other: other.place)
        elif not progress.is_running or progress.run != run:
            return
        elif event is _Event.FINISHED:
            del self._running[task.id]
            progress.is_running = False
            self._free += task.nodes
            self._outcome.worked += task.nodes * (progress.traced.work_seconds - progress.done)
            self._outcome.idled += task.nodes * self._load_seconds(progress)
            self._outcome.interrupted_tasks += progress.is_interrupted
            self._outcome.ended_at = max(self._outcome.ended_at, now)
        elif self._running[task.id].demotion_at(self._model.demote_after_seconds) == now:
            normal = self._running[task.id].moved(Priority.NORMAL, now, since=now)
            self._running[task.id] = replace(normal, task=replace(normal.task, demoted=True))

    def _load_seconds(self, progress: _Progress) -> float:
        """Return the seconds that the present run takes before it works."""
        return self._model.load_seconds if progress.run > 1 else 0.0

    def _decide(self, now: float) -> None:
        decision = decide(
            list(self._running.values()),
            self._waiting,
            self._model.quotas,
            capacity=self._model.nodes,
            free=self._free,
            leaving=list(self._leaving.values()),
        )
        for task_id, level in decision.levels.items():
            running = self._running[task_id]
            if level != running.level:
                self._running[task_id] = running.moved(level, now, since=running.since)
                self._plan_demotion(self._tasks[task_id])
        for task in decision.suspend:
            self._suspend(now, self._tasks[task.id])
        for task, level in decision.start:
            self._start(now, self._tasks[task.id], level)
        busy = self._model.nodes - self._free
        if not self._outcome.busy or self._outcome.busy[-1][1] != busy:
            self._outcome.busy.append((now, busy))

    def _start(self, now: float, progress: _Progress, level: Priority) -> None:
        task = progress.task
        line = self._waiting[task.user, task.level]
        del line[bisect_left(line, task.place, key=lambda other: other.place)]
        if not line:
            del self._waiting[task.user, task.level]
        waited = now - progress.waits_since
        if progress.run:
            self._outcome.suspended_seconds += waited
        else:
            self._outcome.waits[progress.traced.priority].append(waited)
        progress.run += 1
        progress.since = now
        progress.is_running = True
        self._free -= task.nodes
        self._running[task.id] = RunningTask(task, level, now)
        starts_at = now + self._load_seconds(progress)
        finish = starts_at + progress.traced.work_seconds - progress.done
        self._plan(finish, _Event.FINISHED, progress)
        self._plan_demotion(progress)

    def _plan_demotion(self, progress: _Progress) -> None:
        running = self._running[progress.task.id]
        due = running.demotion_at(self._model.demote_after_seconds)
        if due is not None:
            self._plan(due, _Event.DEMOTED, progress)

    def _suspend(self, now: float, progress: _Progress) -> None:
        traced = progress.traced
        running = self._running.pop(progress.task.id)
        self._leaving[progress.task.id] = running
        load = self._load_seconds(progress)
        worked = max(0.0, now - progress.since - load)
        saved = worked
        if traced.save_seconds > self._model.grace_seconds:
            saved = worked // traced.checkpoint_seconds * traced.checkpoint_seconds
            self._outcome.forced += 1
        saving = min(traced.save_seconds, self._model.grace_seconds)
        progress.done += saved
        progress.is_running = False
        progress.is_interrupted = True
        seconds = running.above_normal_seconds(now)
        progress.task = replace(running.task, above_normal_seconds=seconds)
        self._outcome.worked += traced.nodes * saved
        self._outcome.lost += traced.nodes * (worked - saved)
        self._outcome.idled += traced.nodes * (min(load, now - progress.since) + saving)
        self._outcome.interruptions += 1
        self._plan(now + saving, _Event.FREED, progress)


def simulate(
    tasks: Sequence[TracedTask], model: PoolModel, name: str = "time slices"
) -> PolicyResult:
    """Simulate a trace under the pool's rules; tasks that could never run are only counted."""
    rules = PoolRules(model.quotas, model.choosers, demote_after_seconds=model.demote_after_seconds)
    accepted = []
    for traced in tasks:
        priority = rules.allowed_priority(traced.user, traced.priority)
        task = PoolTask("", traced.user, traced.nodes, priority, (0.0, 0))
        if not rules.refusal(task, capacity=model.nodes):
            accepted.append((traced, traced.user, priority))
    outcome = _new_result(name, model, tasks, len(accepted))
    _Simulation(model, outcome).run(accepted)
    return outcome


def simulate_fifo(
    tasks: Sequence[TracedTask], model: PoolModel, name: str = "first come, first served"
) -> PolicyResult:
    """Simulate a trace without interruptions: tasks of one user at one priority, without quotas."""
    accepted = [traced for traced in tasks if traced.nodes <= model.nodes]
    outcome = _new_result(name, model, tasks, len(accepted))
    unlimited = replace(model, quotas=Quotas({(EVERYONE, level): model.nodes for level in LEVELS}))
    _Simulation(unlimited, outcome).run((traced, "", Priority.NORMAL) for traced in accepted)
    return outcome


def simulate_own_nodes(tasks: Sequence[TracedTask], model: PoolModel) -> PolicyResult:
    """Simulate a trace where each user has nodes of their own, in proportion to their work.

    Each user's tasks run first come, first served; those larger than the user's nodes never run.
    """
    user_tasks: dict[str, list[TracedTask]] = defaultdict(list)
    for traced in tasks:
        user_tasks[traced.user].append(traced)
    work = {
        user: sum(traced.nodes * traced.work_seconds for traced in traced_tasks)
        for user, traced_tasks in user_tasks.items()
    }
    total = sum(work.values()) or 1.0
    shares = {user: model.nodes * seconds / total for user, seconds in work.items()}
    nodes = {user: int(share) for user, share in shares.items()}
    # Nodes that rounding has left go to the users who lost most by it.
    by_remainder = sorted(work, key=lambda user: (nodes[user] - shares[user], user))
    for user in by_remainder[: model.nodes - sum(nodes.values())]:
        nodes[user] += 1
    outcome = _new_result("dedicated nodes", model, tasks, len(tasks))
    steps: list[tuple[float, int]] = []
    for user, traced_tasks in user_tasks.items():
        own = simulate_fifo(traced_tasks, replace(model, nodes=nodes[user]))
        outcome.tasks -= own.never_run
        outcome.never_run += own.never_run
        outcome.worked += own.worked
        outcome.ended_at = max(outcome.ended_at, own.ended_at)
        for priority, waits in own.waits.items():
            outcome.waits[priority] += waits
        before = 0
        for time, busy in own.busy:
            steps.append((time, busy - before))
            before = busy
    busy = 0
    for time, change in sorted(steps):
        busy += change
        outcome.busy.append((time, busy))
    return outcome


def _new_result(
    name: str, model: PoolModel, tasks: Sequence[TracedTask], accepted: int
) -> PolicyResult:
    return PolicyResult(
        name,
        model.nodes,
        accepted,
        never_run=len(tasks) - accepted,
        last_submitted_at=max((traced.submitted_at for traced in tasks), default=0.0),
    )


# -- traces


class BadTrace(ValueError):
    """A trace that cannot be read; its text names the line."""


_COLUMNS = {
    "submitted_at": ("submitted_at", float),
    "user": ("user", str),
    "nodes": ("nodes", int),
    "seconds": ("work_seconds", float),
    "priority": ("priority", str),
    "save_seconds": ("save_seconds", float),
    "checkpoint_seconds": ("checkpoint_seconds", float),
}
_REQUIRED = ("submitted_at", "user", "nodes", "seconds")


def parse_trace(lines: Iterable[str]) -> list[TracedTask]:
    """Parse the lines of a CSV file with a header, and sort the tasks by submission.

    Raises BadTrace.
    """
    rows = csv.DictReader(lines)
    try:
        names = list(rows.fieldnames or ())
        if missing := [name for name in _REQUIRED if name not in names]:
            raise BadTrace(
                f"line 1: no column {', '.join(missing)}; known columns: {', '.join(_COLUMNS)}"
            )
        if unknown := [name for name in names if name not in _COLUMNS]:
            raise BadTrace(
                f"line 1: unknown column {unknown[0]!r}; known columns: {', '.join(_COLUMNS)}"
            )
        tasks = [_parse_row(row, rows.line_num) for row in rows]
    except csv.Error as error:
        raise BadTrace(f"line {rows.line_num}: {error}") from None
    return sorted(tasks, key=lambda task: task.submitted_at)


def _parse_row(row: Mapping[str | None, str | None], line: int) -> TracedTask:
    values: dict[str, Any] = {}
    for name, (field_name, kind) in _COLUMNS.items():
        text = (row.get(name) or "").strip()
        if not text:
            if name in _REQUIRED:
                raise BadTrace(f"line {line}: {name} is empty")
            continue
        try:
            value = parse_priority(text) if name == "priority" else kind(text)
        except ValueError:
            raise BadTrace(f"line {line}: {text!r} is not a valid value of {name}") from None
        if isinstance(value, float) and not (isfinite(value) and value >= 0):
            raise BadTrace(f"line {line}: {name} = {text} is not a time")
        values[field_name] = value
    if None in row:
        raise BadTrace(f"line {line}: more values than columns")
    if values["nodes"] < 1 or values["work_seconds"] <= 0 or values.get("checkpoint_seconds") == 0:
        raise BadTrace(f"line {line}: nodes, seconds and checkpoint_seconds must be above 0")
    return TracedTask(**values)


def format_trace(tasks: Iterable[TracedTask]) -> str:
    """Format tasks as a trace that `parse_trace` reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for task in tasks:
        values = [getattr(task, name) for name, _ in _COLUMNS.values()]
        writer.writerow([value.name if isinstance(value, Priority) else value for value in values])
    return out.getvalue()


def generate_trace(tasks: int, nodes: int, seed: int, users: int = 40) -> list[TracedTask]:
    """Generate the trainings of a group: most small and short, some large and long, more by day.

    Their work is nine tenths of what the nodes can do meanwhile. The same seed gives the same
    trace.
    """
    rng = np.random.default_rng(seed)
    largest = max(1, nodes // 8)
    sizes = np.minimum(2 ** rng.geometric(0.38, tasks) // 2, largest)
    work = np.clip(rng.lognormal(np.log(2 * 3600), 1.2, tasks), 120, 5 * 86_400)
    span = float((sizes * work).sum()) / (0.9 * nodes)
    # Three quarters of a day's tasks are submitted within the 12 hours around noon.
    times = rng.uniform(0, span, 4 * tasks)
    is_day = np.abs(times % 86_400 - 43_200) < 21_600
    times = times[rng.uniform(size=times.size) < np.where(is_day, 0.75, 0.25)]
    submitted = np.sort(times[:tasks] if times.size >= tasks else rng.uniform(0, span, tasks))
    task_users = np.minimum(rng.zipf(1.4, tasks) - 1, users - 1)
    levels = (
        Priority.LOW,
        Priority.NORMAL,
        Priority.ABOVE_NORMAL,
        Priority.HIGH,
        Priority.VERY_HIGH,
    )
    level = rng.choice(len(levels), tasks, p=(0.25, 0.45, 0.18, 0.09, 0.03))
    saves = np.where(
        rng.uniform(size=tasks) < 0.9, rng.uniform(0.5, 5, tasks), rng.uniform(5, 60, tasks)
    )
    return [
        TracedTask(
            round(float(submitted[index]), 1),
            f"user{task_users[index] + 1:02}",
            nodes=int(sizes[index]),
            work_seconds=round(float(work[index]), 1),
            priority=levels[level[index]],
            save_seconds=round(float(saves[index]), 1),
        )
        for index in range(tasks)
    ]
