"""The rules of a shared pool: which tasks run, which are suspended for them, and which are refused.

Pure.

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
# When a task came, and its number among those that came then.
Place = tuple[float, int]


class PoolTask(Struct, frozen=True):
    """One task of a pool, for `nodes` whole nodes.

    `above_normal_seconds` is how long it ran at ABOVE_NORMAL in earlier runs; `demoted`: long
    enough to be NORMAL now.
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
        """The priority it is ordered by; AUTO where that depends on the quota left."""
        is_lowered = self.demoted and self.priority == Priority.ABOVE_NORMAL
        return Priority.NORMAL if is_lowered else self.priority


class RunningTask(Struct, frozen=True):
    """A task that has nodes and keeps them: the level it runs at, and since when (epoch seconds) it
    has them.

    One that its owner, or its demotion, gave another level has its place among those of that level
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
        counted = self.above_normal_seconds(now)
        if level == Priority.ABOVE_NORMAL:
            counted -= now - since
        return RunningTask(replace(self.task, above_normal_seconds=counted), level, since)


class Quotas(Struct, frozen=True):
    """The most nodes at once by (user, level); EVERYONE's are for each user without one at that
    level.
    """

    nodes: Mapping[tuple[str, Priority], int]

    def of(self, user: str, level: Priority) -> int:
        found = self.nodes.get((user, level))
        return self.nodes.get((EVERYONE, level), 0) if found is None else found

    def levels(self, task: PoolTask) -> Iterator[Priority]:
        """The levels at which a task could ever run, the highest first."""
        for level in LEVELS if task.level == Priority.AUTO else (task.level,):
            if task.nodes <= self.of(task.user, level) and not (
                task.demoted and level == Priority.ABOVE_NORMAL
            ):
                yield level


# What waits, by user and level; each in the order of its places.
Waiting = Mapping[tuple[str, Priority], Sequence[PoolTask]]


class Decision(Struct, frozen=True):
    """Decision on the tasks of a pool now.

    `suspend` has to give up its nodes. `start` may start at once, each at its level; `next` starts,
    in this order, when the nodes and the quota that are being freed are free. `levels` are those of
    the running tasks that continue. `blocker` is the first task that waits for nodes nobody behind
    it could free; those in `out_of_quota` wait for nodes of the same user and level.
    """

    suspend: tuple[PoolTask, ...] = ()
    start: tuple[tuple[PoolTask, Priority], ...] = ()
    next: tuple[tuple[PoolTask, Priority], ...] = ()
    levels: Mapping[str, Priority] = field(default_factory=dict)
    blocker: tuple[PoolTask, Priority] | None = None
    out_of_quota: frozenset[tuple[str, Priority]] = frozenset()


def queue_up(tasks: Iterable[PoolTask]) -> dict[tuple[str, Priority], list[PoolTask]]:
    """Waiting tasks as `decide` takes them."""
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

    `capacity` counts every usable node of the pool, including those being freed; `free` are idle
    now. Tasks being suspended are `leaving`, in neither `running` nor `waiting`: their quota is
    available again once they have left.
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
        has_quota = used[key] + task.nodes <= quotas.of(*key)
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
        # Of a line those that wait come last, and none of them starts before the one in front of
        # it.
        if following is None or not (following[-1] or (not is_blocked and key not in out_of_quota)):
            heappop(heap)
        else:
            heapreplace(heap, (following, number))
    # What each has at once by now: nothing starts or moves up on quota that is still being freed.
    held: dict[tuple[str, Priority], int] = defaultdict(int)
    for one in chain(running, leaving):
        held[one.task.user, one.level] += one.task.nodes
    moving = [one for one in running if levels.get(one.task.id, one.level) != one.level]
    for one in sorted(moving, key=lambda one: levels[one.task.id] - one.level):
        key = (one.task.user, levels[one.task.id])
        if key[1] > one.level and held[key] + one.task.nodes > quotas.of(*key):
            levels[one.task.id] = one.level
            continue
        held[key] += one.task.nodes
        held[one.task.user, one.level] -= one.task.nodes
    ready = 0
    for task, level in chosen:
        key = (task.user, level)
        if task.nodes > free or held[key] + task.nodes > quotas.of(*key):
            break
        free -= task.nodes
        held[key] += task.nodes
        ready += 1
    return Decision(
        tuple(suspend),
        tuple(chosen[:ready]),
        tuple(chosen[ready:]),
        levels,
        blocker,
        frozenset(out_of_quota),
    )


# The rank, level below level and then place by place; the task, its level, and whether it runs.
_Member = tuple[int, Place, PoolTask, Priority, bool]
_Placed = tuple[PoolTask, Place]


def _lines(
    running: Sequence[RunningTask], waiting: Waiting, quotas: Quotas
) -> list[Iterator[_Member]]:
    """The tasks by user and level, each line in the order in which it gets nodes.

    Those that run are in front, at the first places of their line: none of them is interrupted for
    another of it, and none loses a place when it is suspended for someone else. All lines in which
    nothing waits are one.
    """
    runs: dict[tuple[str, Priority], list[_Placed]] = {}
    waits: dict[tuple[str, Priority], list[_Placed]] = {
        key: [] for key in waiting if key[1] != Priority.AUTO
    }
    automatic: dict[str, list[RunningTask]] = {
        user: [] for user, level in waiting if level == Priority.AUTO
    }
    in_order = sorted(running, key=_since)
    for one in in_order:
        if one.task.priority == Priority.AUTO:
            automatic.setdefault(one.task.user, [])
    for one in in_order:
        if one.task.user in automatic:
            automatic[one.task.user].append(one)
        else:
            runs.setdefault((one.task.user, one.task.level), []).append((one.task, one.task.place))
    for user, theirs in automatic.items():
        for task, level, place, is_running in _with_levels(
            theirs, waiting.get((user, Priority.AUTO), ()), quotas
        ):
            (runs if is_running else waits).setdefault((user, level), []).append((task, place))
    alone: list[_Member] = []
    for key, members in runs.items():
        if key not in waits:
            places = sorted(place for _, place in members) if len(members) > 1 else [members[0][1]]
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
            _line(key[1], runs.get(key, ()), some, waiting.get(key, ()))
            for key, some in waits.items()
        ),
    ]


def _since(one: RunningTask) -> tuple[float, Place]:
    return one.since, one.task.place


def _with_levels(
    runs: Sequence[RunningTask], automatic: Sequence[PoolTask], quotas: Quotas
) -> Iterator[tuple[PoolTask, Priority, Place, bool]]:
    """(task, its level, its place, whether it runs) of what runs of a user, and of what waits with
    AUTO and has quota.

    The places of AUTO tasks are as those of a line: whichever of them runs has the first.
    """
    places = merge(
        sorted(one.task.place for one in runs if one.task.level == Priority.AUTO),
        (task.place for task in automatic),
    )
    used: dict[Priority, int] = defaultdict(int)
    for one in runs:
        level = one.task.level
        place = one.task.place
        if level == Priority.AUTO:
            found = _level_with_quota(one.task, used, quotas)
            level = one.level if found is None else found
            place = next(places)
        used[level] += one.task.nodes
        yield one.task, level, place, True
    for task in automatic:
        with_quota = _level_with_quota(task, used, quotas)
        if with_quota is None:
            return
        used[with_quota] += task.nodes
        yield task, with_quota, next(places), False


def _level_with_quota(
    task: PoolTask, used: Mapping[Priority, int], quotas: Quotas
) -> Priority | None:
    return next(
        (
            one
            for one in quotas.levels(task)
            if used.get(one, 0) + task.nodes <= quotas.of(task.user, one)
        ),
        None,
    )


def _line(
    level: Priority, runs: Sequence[_Placed], automatic: Sequence[_Placed], rest: Sequence[PoolTask]
) -> Iterator[_Member]:
    """One line; lazy, as it may be very long."""

    def waits() -> Iterator[_Placed]:
        placed = ((task, task.place) for task in rest)
        return merge(automatic, placed, key=lambda one: one[1]) if automatic else placed

    if not runs:
        return ((-level, place, task, level, False) for task, place in waits())
    # The places are read ahead of those that wait.
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
            return f"it asks for {counted(task.nodes, 'node')}, but the pool has {capacity}"
        if gpus is not None and gpus < self.least_gpus:
            return (
                f"it asks for {gpus} GPUs, but a task in this pool needs at least {self.least_gpus}"
            )
        levels = list(self.quotas.levels(task))
        if not levels:
            named = LEVELS if task.level == Priority.AUTO else (task.level,)
            most = max(self.quotas.of(task.user, level) for level in named)
            at = "at any priority" if task.level == Priority.AUTO else f"at {task.level.name}"
            return (
                f"it asks for {counted(task.nodes, 'node')}, but {task.user}'s quota {at} is {most}"
            )
        # What becomes NORMAL needs quota there: it would be suspended for good.
        lasting = [level for level in levels if level != Priority.ABOVE_NORMAL]
        if not lasting and task.nodes > (normal := self.quotas.of(task.user, Priority.NORMAL)):
            return (
                f"it asks for {counted(task.nodes, 'node')}: ABOVE_NORMAL becomes NORMAL after"
                f" {self.demote_after_seconds / 60:g} min, where {task.user}'s quota is "
                f"{normal}"
            )
        return ""
