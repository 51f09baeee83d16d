"""The rules of a shared pool: which tasks run, which are suspended for them, and which are refused.

A pool's tasks are ordered by priority, then first come first served. Quotas limit how many nodes a
user has at once at each priority. No task starts before one that is ahead of it and waits only for
nodes. A running task is suspended when one ahead of it can start on its nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace, merge
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.domain.share import EVERYONE, LEVELS, Priority
from hpcdash.domain.text import counted

DEMOTE_AFTER_SECONDS = 1800.0
# Submission of a task in epoch seconds, and its number among those of the same time.
Place = tuple[float, int]


class PoolTask(Struct, frozen=True):
    """One task of a pool, for `nodes` whole nodes.

    `above_normal_seconds`: its time at ABOVE_NORMAL in earlier runs; `demoted`: long enough to be
    NORMAL now.
    """

    id: str
    user: str
    nodes: int
    priority: Priority
    place: Place
    above_normal_seconds: float = 0.0
    demoted: bool = False

    @property
    def level(self) -> Priority:
        """Priority it is ordered by; AUTO if that depends on the quota left."""
        is_lowered = self.demoted and self.priority == Priority.ABOVE_NORMAL
        return Priority.NORMAL if is_lowered else self.priority


class RunningTask(Struct, frozen=True):
    """A task with nodes: the level it runs at, and since when (epoch seconds).

    If its owner or its demotion changed its level, it has its place among the tasks of that level
    since then.
    """

    task: PoolTask
    level: Priority
    since: float

    def demotion_at(self, after_seconds: float) -> float | None:
        """Return when it becomes NORMAL (epoch seconds); None if it does not."""
        if self.level != Priority.ABOVE_NORMAL:
            return None
        return self.since + after_seconds - self.task.above_normal_seconds

    def above_normal_seconds(self, now: float) -> float:
        """Return the seconds that it has run at ABOVE_NORMAL, in all its runs."""
        is_counting = self.level == Priority.ABOVE_NORMAL
        return self.task.above_normal_seconds + (max(0.0, now - self.since) if is_counting else 0.0)

    def moved(self, level: Priority, now: float, *, since: float) -> RunningTask:
        """Return the task at another level from `now` on.

        Of the time since `since` only that at ABOVE_NORMAL counts.
        """
        seconds = self.above_normal_seconds(now)
        if level == Priority.ABOVE_NORMAL:
            seconds -= now - since
        return RunningTask(replace(self.task, above_normal_seconds=seconds), level, since)


class Quotas(Struct, frozen=True):
    """The most nodes at once by (user, level); EVERYONE's are for each user without a quota of
    their own at that level.
    """

    nodes: Mapping[tuple[str, Priority], int]

    def limit(self, user: str, level: Priority) -> int:
        limit = self.nodes.get((user, level))
        return self.nodes.get((EVERYONE, level), 0) if limit is None else limit

    def levels(self, task: PoolTask) -> Iterator[Priority]:
        """Yield the levels at which a task could ever run, the highest first."""
        for level in LEVELS if task.level == Priority.AUTO else (task.level,):
            if task.nodes <= self.limit(task.user, level) and not (
                task.demoted and level == Priority.ABOVE_NORMAL
            ):
                yield level


# Waiting tasks by user and level, each list in the order of their places.
Waiting = Mapping[tuple[str, Priority], Sequence[PoolTask]]


class Decision(Struct, frozen=True):
    """Decision on the tasks of a pool.

    Tasks in `suspend` have to give up their nodes. Tasks in `start` may start at once, each at its
    level; tasks in `next`, in this order, when the nodes and the quota being freed are free.
    `levels`: of the running tasks that continue, by task. `blocker`: the first task that waits for
    nodes which no task behind it could free. `out_of_quota`: users and levels whose quota is used
    up.
    """

    suspend: tuple[PoolTask, ...] = ()
    start: tuple[tuple[PoolTask, Priority], ...] = ()
    next: tuple[tuple[PoolTask, Priority], ...] = ()
    levels: Mapping[str, Priority] = field(default_factory=dict)
    blocker: tuple[PoolTask, Priority] | None = None
    out_of_quota: frozenset[tuple[str, Priority]] = frozenset()


def queue_up(tasks: Iterable[PoolTask]) -> dict[tuple[str, Priority], list[PoolTask]]:
    """Group waiting tasks for `decide`."""
    lines: dict[tuple[str, Priority], list[PoolTask]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: task.place):
        lines[task.user, task.level].append(task)
    return dict(lines)


def decide(
    running: Sequence[RunningTask],
    waiting: Waiting,
    quotas: Quotas,
    *,
    capacity: int,
    free: int,
    leaving: Sequence[RunningTask] = (),
) -> Decision:
    """Decide which tasks to suspend and to start.

    `capacity`: all usable nodes of the pool, including those being freed. `free`: idle nodes.
    `leaving`: tasks being suspended, in neither `running` nor `waiting`; their quota is available
    again once they have left.
    """
    lines = _lines(running, waiting, quotas)
    heap = [
        (first, number)
        for number, line in enumerate(lines)
        if (first := next(line, None)) is not None
    ]
    heapify(heap)
    used: dict[tuple[str, Priority], int] = defaultdict(int)
    suspend: list[PoolTask] = []
    chosen: list[tuple[PoolTask, Priority]] = []
    levels: dict[str, Priority] = {}
    out_of_quota: set[tuple[str, Priority]] = set()
    blocker: tuple[PoolTask, Priority] | None = None
    is_blocked = False
    while heap:
        (_, _, task, level, is_running), number = heap[0]
        key = (task.user, level)
        has_quota = used[key] + task.nodes <= quotas.limit(*key)
        if not has_quota:
            out_of_quota.add(key)
        if has_quota and task.nodes <= capacity and (is_running or not is_blocked):
            capacity -= task.nodes
            used[key] += task.nodes
            if is_running:
                levels[task.id] = level
            else:
                chosen.append((task, level))
        elif is_running:
            suspend.append(task)
            is_blocked = is_blocked or has_quota
        elif has_quota and not is_blocked:
            is_blocked = True
            blocker = (task, level)
        following = next(lines[number], None)
        # In a line, waiting tasks come last, and none starts before the one ahead of it.
        if following is None or not (following[-1] or (not is_blocked and key not in out_of_quota)):
            heappop(heap)
        else:
            heapreplace(heap, (following, number))
    # Present use of quota: no task starts or moves up on quota that is still being freed.
    held: dict[tuple[str, Priority], int] = defaultdict(int)
    for member in chain(running, leaving):
        held[member.task.user, member.level] += member.task.nodes
    moving = [
        member for member in running if levels.get(member.task.id, member.level) != member.level
    ]
    for member in sorted(moving, key=lambda member: levels[member.task.id] - member.level):
        task = member.task
        key = (task.user, levels[task.id])
        if levels[task.id] > member.level and held[key] + task.nodes > quotas.limit(*key):
            levels[task.id] = member.level
            continue
        held[key] += task.nodes
        held[task.user, member.level] -= task.nodes
    ready = 0
    for task, level in chosen:
        key = (task.user, level)
        if task.nodes > free or held[key] + task.nodes > quotas.limit(*key):
            break
        free -= task.nodes
        held[key] += task.nodes
        ready += 1
    return Decision(
        suspend=tuple(suspend),
        start=tuple(chosen[:ready]),
        next=tuple(chosen[ready:]),
        levels=levels,
        blocker=blocker,
        out_of_quota=frozenset(out_of_quota),
    )


# The negative level and the place, by which members are sorted; the task, its level, and whether
# it runs.
_Member = tuple[int, Place, PoolTask, Priority, bool]
_Placed = tuple[PoolTask, Place]


def _lines(
    running: Sequence[RunningTask], waiting: Waiting, quotas: Quotas
) -> list[Iterator[_Member]]:
    """Return lines of tasks by user and level, each in the order in which they get nodes.

    Running tasks come first, at the first places of their line: none is interrupted for another
    task of the line, and none loses a place when it is suspended for someone else. All lines
    without waiting tasks are one.
    """
    runs: dict[tuple[str, Priority], list[_Placed]] = {}
    waits: dict[tuple[str, Priority], list[_Placed]] = {
        key: [] for key in waiting if key[1] != Priority.AUTO
    }
    automatic: dict[str, list[RunningTask]] = {
        user: [] for user, level in waiting if level == Priority.AUTO
    }
    for member in running:
        if member.task.priority == Priority.AUTO:
            automatic.setdefault(member.task.user, [])
    for member in sorted(running, key=lambda member: (member.since, member.task.place)):
        task = member.task
        if task.user in automatic:
            automatic[task.user].append(member)
        else:
            runs.setdefault((task.user, task.level), []).append((task, task.place))
    for user, user_runs in automatic.items():
        for task, level, place, is_running in _with_levels(
            user_runs, waiting.get((user, Priority.AUTO), ()), quotas
        ):
            (runs if is_running else waits).setdefault((user, level), []).append((task, place))
    alone: list[_Member] = []
    for key, members in runs.items():
        if key not in waits:
            places = sorted(place for _, place in members)
            level = key[1]
            alone += [
                (-level, place, task, level, True)
                for (task, _), place in zip(members, places, strict=True)
            ]
    # No two places are alike: what follows them is never compared.
    alone.sort()
    return [
        iter(alone),
        *(
            _line(key[1], runs.get(key, ()), placed, waiting.get(key, ()))
            for key, placed in waits.items()
        ),
    ]


def _with_levels(
    runs: Sequence[RunningTask], automatic: Sequence[PoolTask], quotas: Quotas
) -> Iterator[tuple[PoolTask, Priority, Place, bool]]:
    """Yield (task, level, place, whether it runs) of a user's running tasks, then of waiting AUTO
    tasks with quota.

    The places of AUTO tasks are as those of a line: the running ones have the first.
    """
    places = merge(
        sorted(member.task.place for member in runs if member.task.level == Priority.AUTO),
        (task.place for task in automatic),
    )
    used: dict[Priority, int] = defaultdict(int)

    def level_with_quota(task: PoolTask) -> Priority | None:
        for level in quotas.levels(task):
            if used[level] + task.nodes <= quotas.limit(task.user, level):
                return level
        return None

    for member in runs:
        level = member.task.level
        place = member.task.place
        if level == Priority.AUTO:
            free_level = level_with_quota(member.task)
            level = member.level if free_level is None else free_level
            place = next(places)
        used[level] += member.task.nodes
        yield member.task, level, place, True
    for task in automatic:
        free_level = level_with_quota(task)
        if free_level is None:
            return
        used[free_level] += task.nodes
        yield task, free_level, next(places), False


def _line(
    level: Priority, runs: Sequence[_Placed], automatic: Sequence[_Placed], rest: Sequence[PoolTask]
) -> Iterator[_Member]:
    """Return one line lazily, as it may be very long."""

    def waits() -> Iterator[_Placed]:
        placed = ((task, task.place) for task in rest)
        return merge(automatic, placed, key=lambda waiting: waiting[1]) if automatic else placed

    if not runs:
        return ((-level, place, task, level, False) for task, place in waits())
    # The places are read ahead of the waiting tasks.
    places = merge(sorted(place for _, place in runs), (place for _, place in waits()))
    tagged = chain(((task, True) for task, _ in runs), ((task, False) for task, _ in waits()))
    return (
        (-level, place, task, level, is_running)
        for (task, is_running), place in zip(tagged, places, strict=True)
    )


class PoolRules(Struct, frozen=True):
    """Rules of a pool: quotas, the users who may choose a priority, and the fewest GPUs of a task.

    `choosers` with EVERYONE: all users.
    """

    quotas: Quotas
    choosers: frozenset[str] = frozenset()
    least_gpus: int = 0
    demote_after_seconds: float = DEMOTE_AFTER_SECONDS

    def allowed_priority(self, user: str, requested: Priority) -> Priority:
        """Return the requested priority; AUTO for a user who may not choose."""
        return requested if {user, EVERYONE} & self.choosers else Priority.AUTO

    def refusal(self, task: PoolTask, *, capacity: int, gpus: int | None = None) -> str:
        """Return the reason that a task could never run here; '' if it could.

        `gpus`: of all its nodes together.
        """
        if task.nodes > capacity:
            return f"requests {counted(task.nodes, 'node')}, but the pool has {capacity}"
        if gpus is not None and gpus < self.least_gpus:
            return f"requests {gpus} GPUs, but a task in this pool needs at least {self.least_gpus}"
        levels = list(self.quotas.levels(task))
        if not levels:
            named = LEVELS if task.level == Priority.AUTO else (task.level,)
            most = max(self.quotas.limit(task.user, level) for level in named)
            at = "at any priority" if task.level == Priority.AUTO else f"at {task.level.name}"
            return f"requests {counted(task.nodes, 'node')}, but {task.user}'s quota {at} is {most}"
        # A task that becomes NORMAL without quota there would be suspended for good.
        normal = self.quotas.limit(task.user, Priority.NORMAL)
        if levels == [Priority.ABOVE_NORMAL] and task.nodes > normal:
            return (
                f"requests {counted(task.nodes, 'node')}: ABOVE_NORMAL becomes NORMAL after "
                f"{self.demote_after_seconds / 60:g} min, where {task.user}'s quota is {normal}"
            )
        return ""
