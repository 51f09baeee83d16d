"""Simulation of a shared pool's rules on a trace of tasks, with a simulated clock. Pure."""

from __future__ import annotations

import csv
import io
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
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

_ARRIVES, _ENDS, _FREED, _DEMOTED = range(4)


class TracedTask(Struct, frozen=True):
    """A task of a trace. Times in seconds, `submitted_at` from the trace's own beginning.

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
    """`grace_seconds` is what a suspended task has to save; each further run takes `load_seconds`
    before it works.

    `choosers` have the priorities that their tasks ask for, the others AUTO.
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
        """The share of the nodes in use while tasks were submitted; None where that took no
        time.
        """
        begin = self.busy[0][0] if self.busy else 0.0
        end = self.last_submitted_at
        if end <= begin:
            return None
        held, (before, nodes) = 0.0, (begin, 0)
        for at, now in (*self.busy, (end, 0)):
            held += nodes * (min(at, end) - min(before, end))
            before = at
            nodes = now
        return held / (self.nodes * (end - begin))


class _Progress(Struct):
    task: PoolTask
    traced: TracedTask
    done: float = 0.0
    run: int = 0
    since: float = 0.0
    waits_since: float = 0.0
    runs: bool = False
    interrupted: int = 0


class _Simulation:
    def __init__(self, model: PoolModel, outcome: PolicyResult) -> None:
        self.model = model
        self.outcome = outcome
        self.free = model.nodes
        self.running: dict[str, RunningTask] = {}
        self.leaving: dict[str, RunningTask] = {}
        self.waiting: dict[tuple[str, Priority], list[PoolTask]] = defaultdict(list)
        self.tasks: dict[str, _Progress] = {}
        self.events: list[tuple[float, int, int, str, int]] = []
        self.numbers = count()

    def at(self, time: float, kind: int, name: str, run: int = 0) -> None:
        heappush(self.events, (time, next(self.numbers), kind, name, run))

    def run(self, tasks: Iterable[tuple[TracedTask, str, Priority]]) -> None:
        """Tasks with the user and the priority that the rules see."""
        for number, (traced, user, priority) in enumerate(tasks):
            task = PoolTask(
                str(number), user, traced.nodes, priority, (traced.submitted_at, number)
            )
            self.tasks[task.id] = _Progress(task, traced)
            self.at(traced.submitted_at, _ARRIVES, task.id)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, kind, name, run = heappop(self.events)
                self.take(now, kind, self.tasks[name], run)
            self.decide(now)

    def take(self, now: float, kind: int, one: _Progress, run: int) -> None:
        name = one.task.id
        if kind == _ARRIVES:
            self.wait(now, one)
        elif kind == _FREED:
            self.free += one.task.nodes
            del self.leaving[name]
            self.wait(now, one)
        elif not one.runs or one.run != run:
            return
        elif kind == _ENDS:
            del self.running[name]
            one.runs = False
            self.free += one.task.nodes
            self.outcome.worked += one.task.nodes * (one.traced.work_seconds - one.done)
            self.outcome.idled += one.task.nodes * (self.model.load_seconds if one.run > 1 else 0.0)
            self.outcome.interrupted_tasks += bool(one.interrupted)
            self.outcome.ended_at = max(self.outcome.ended_at, now)
        elif self.running[name].demotion_at(self.model.demote_after_seconds) == now:
            self.running[name] = running = self.running[name].moved(Priority.NORMAL, now, since=now)
            self.running[name] = replace(running, task=replace(running.task, demoted=True))

    def wait(self, now: float, one: _Progress) -> None:
        one.waits_since = now
        insort(self.waiting[one.task.user, one.task.level], one.task, key=lambda task: task.place)

    def decide(self, now: float) -> None:
        decision = decide(
            list(self.running.values()),
            self.waiting,
            self.model.quotas,
            capacity=self.model.nodes,
            free=self.free,
            leaving=list(self.leaving.values()),
        )
        for name, level in decision.levels.items():
            if level != (running := self.running[name]).level:
                self.running[name] = running.moved(level, now, since=running.since)
                self.plan_demotion(self.tasks[name])
        for task in decision.suspend:
            self.suspend(now, self.tasks[task.id])
        for task, level in decision.start:
            self.start(now, self.tasks[task.id], level)
        busy = self.model.nodes - self.free
        if not self.outcome.busy or self.outcome.busy[-1][1] != busy:
            self.outcome.busy.append((now, busy))

    def start(self, now: float, one: _Progress, level: Priority) -> None:
        line = self.waiting[one.task.user, one.task.level]
        at = bisect_left(line, one.task.place, key=lambda task: task.place)
        del line[at]
        if not line:
            del self.waiting[one.task.user, one.task.level]
        waited = now - one.waits_since
        if one.run:
            self.outcome.suspended_seconds += waited
        else:
            self.outcome.waits[one.traced.priority].append(waited)
        one.run += 1
        one.since, one.runs = now, True
        self.free -= one.task.nodes
        self.running[one.task.id] = RunningTask(one.task, level, now)
        load = self.model.load_seconds if one.run > 1 else 0.0
        self.at(now + load + one.traced.work_seconds - one.done, _ENDS, one.task.id, one.run)
        self.plan_demotion(one)

    def plan_demotion(self, one: _Progress) -> None:
        due = self.running[one.task.id].demotion_at(self.model.demote_after_seconds)
        if due is not None:
            self.at(due, _DEMOTED, one.task.id, one.run)

    def suspend(self, now: float, one: _Progress) -> None:
        self.leaving[one.task.id] = stopped = self.running.pop(one.task.id)
        load = self.model.load_seconds if one.run > 1 else 0.0
        worked = max(0.0, now - one.since - load)
        in_time = one.traced.save_seconds <= self.model.grace_seconds
        saved = (
            worked
            if in_time
            else worked // one.traced.checkpoint_seconds * one.traced.checkpoint_seconds
        )
        saving = min(one.traced.save_seconds, self.model.grace_seconds)
        one.done += saved
        one.runs = False
        one.interrupted += 1
        one.task = replace(stopped.task, above_normal_seconds=stopped.above_normal_seconds(now))
        self.outcome.worked += one.task.nodes * saved
        self.outcome.lost += one.task.nodes * (worked - saved)
        self.outcome.idled += one.task.nodes * (min(load, now - one.since) + saving)
        self.outcome.interruptions += 1
        self.outcome.forced += not in_time
        self.at(now + saving, _FREED, one.task.id, one.run)


def simulate(
    tasks: Sequence[TracedTask], model: PoolModel, name: str = "time slices"
) -> PolicyResult:
    """The trace under the pool's rules; a task that could never run is counted, and left out."""
    rules = PoolRules(model.quotas, model.choosers, demote_after_seconds=model.demote_after_seconds)
    allowed = [(one, one.user, rules.allowed_priority(one.user, one.priority)) for one in tasks]
    fit = [
        (one, user, priority)
        for one, user, priority in allowed
        if not rules.refusal(
            PoolTask("", user, one.nodes, priority, (0.0, 0)), capacity=model.nodes
        )
    ]
    outcome = PolicyResult(name, model.nodes, len(fit), never_run=len(tasks) - len(fit))
    outcome.last_submitted_at = max((one.submitted_at for one in tasks), default=0.0)
    _Simulation(model, outcome).run(fit)
    return outcome


def simulate_fifo(
    tasks: Sequence[TracedTask], model: PoolModel, name: str = "first come, first served"
) -> PolicyResult:
    """The same trace as tasks of one user at one priority: without quotas, and without
    interruptions.
    """
    fit = [one for one in tasks if one.nodes <= model.nodes]
    outcome = PolicyResult(name, model.nodes, len(fit), never_run=len(tasks) - len(fit))
    outcome.last_submitted_at = max((one.submitted_at for one in tasks), default=0.0)
    alike = replace(model, quotas=Quotas({(EVERYONE, level): model.nodes for level in LEVELS}))
    _Simulation(alike, outcome).run((one, "", Priority.NORMAL) for one in fit)
    return outcome


def simulate_own_nodes(tasks: Sequence[TracedTask], model: PoolModel) -> PolicyResult:
    """The same trace where each user has nodes of their own: as many as their share of all work.

    Each user's tasks run first come, first served; those larger than the user's nodes never run.
    """
    by_user: dict[str, list[TracedTask]] = defaultdict(list)
    for one in tasks:
        by_user[one.user].append(one)
    work = {
        user: sum(one.nodes * one.work_seconds for one in some) for user, some in by_user.items()
    }
    total = sum(work.values()) or 1.0
    shares = {user: int(model.nodes * done / total) for user, done in work.items()}
    by_remainder = sorted(
        work, key=lambda user: (shares[user] - model.nodes * work[user] / total, user)
    )
    for user in by_remainder[: model.nodes - sum(shares.values())]:
        shares[user] += 1
    outcome = PolicyResult("dedicated nodes", model.nodes)
    outcome.last_submitted_at = max((one.submitted_at for one in tasks), default=0.0)
    steps: list[tuple[float, int]] = []
    for user, some in by_user.items():
        own = simulate_fifo(some, replace(model, nodes=shares[user]))
        outcome.tasks += own.tasks
        outcome.never_run += own.never_run
        outcome.worked += own.worked
        outcome.ended_at = max(outcome.ended_at, own.ended_at)
        for priority, waits in own.waits.items():
            outcome.waits[priority] += waits
        before = 0
        for at, busy in own.busy:
            steps.append((at, busy - before))
            before = busy
    busy = 0
    for at, change in sorted(steps):
        busy += change
        outcome.busy.append((at, busy))
    return outcome


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
    """Tasks of a CSV file with a line of names, by when they were submitted; raises BadTrace."""
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
    return sorted(tasks, key=lambda one: one.submitted_at)


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
    for one in tasks:
        values = [getattr(one, name) for name, _ in _COLUMNS.values()]
        writer.writerow([value.name if isinstance(value, Priority) else value for value in values])
    return out.getvalue()


def generate_trace(tasks: int, nodes: int, seed: int, users: int = 40) -> list[TracedTask]:
    """Tasks as a group's trainings: most small and short, some large and long; more by day than by
    night.

    They come as fast as the nodes could do nine tenths of their work. The same seed gives the same
    trace.
    """
    rng = np.random.default_rng(seed)
    largest = max(1, nodes // 8)
    sizes = np.minimum(2 ** rng.geometric(0.38, tasks) // 2, largest)
    work = np.clip(rng.lognormal(np.log(2 * 3600), 1.2, tasks), 120, 5 * 86_400)
    span = float((sizes * work).sum()) / (0.9 * nodes)
    # Of a day's tasks three quarters come within its half around noon.
    moments = rng.uniform(0, span, 4 * tasks)
    by_day = np.abs(moments % 86_400 - 43_200) < 21_600
    stored = moments[rng.uniform(size=moments.size) < np.where(by_day, 0.75, 0.25)]
    submitted = np.sort(stored[:tasks] if stored.size >= tasks else rng.uniform(0, span, tasks))
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
            round(float(submitted[at]), 1),
            f"user{task_users[at] + 1:02}",
            int(sizes[at]),
            round(float(work[at]), 1),
            levels[level[at]],
            round(float(saves[at]), 1),
        )
        for at in range(tasks)
    ]
