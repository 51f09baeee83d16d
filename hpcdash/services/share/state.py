"""State of a pool as published by its coordinator: one JSON file that only the coordinator writes.

The pool's users read it.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec

from hpcdash.config.settings import PoolSettings
from hpcdash.domain.share import EVERYONE, LEVELS, Priority, read_labels
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.private_files import atomic_write
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk, FileRange, files_query
from hpcdash.services.share.database import (
    INTERRUPTED,
    UNFINISHED,
    WITH_NODES,
    ShareDatabase,
    StoredTask,
    unfinished_tasks,
)
from hpcdash.services.share.scheduling import (
    Decision,
    PoolRules,
    PoolTask,
    Quotas,
    RunningTask,
    decide,
    queue_up,
)

SCHEMA = 1
# A coordinator without news publishes this often; one that is silent for longer has ended, or
# hangs.
PUBLISH_SECONDS = 10.0
SILENT_SECONDS = 60.0
MAX_BYTES = 8 << 20
_MAX_TASKS = 5000
_MAX_ENDED = 100
_MAX_OUTSIDERS = 100
_MAX_RUNS = 50
_FEW_RUNS = 3
_LONGEST_NAME = 200

PriorityName = Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(Priority.__members__)})\Z")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class Run(msgspec.Struct, frozen=True):
    """One run of a task.

    `how` it ended: as INTERRUPTED has it; paused; yielded, when it suspended itself; requeued, when
    the scheduler put it back, as after a node's failure; succeeded, failed, stopped; '' not yet.
    """

    run: Count
    level: PriorityName
    started_at: Moment | None
    ended_at: Moment | None
    how: str

    @property
    def is_interrupted(self) -> bool:
        return self.how in INTERRUPTED


class Task(msgspec.Struct, frozen=True):
    """One task.

    `state` is as StoredTask has it, `why` says in words why it waits; `place` 1 is next.

    `level` is the priority it runs at, or would: AUTO's is the highest with quota left.
    `demotion_at`: when it becomes NORMAL. `since`: when its run began, or its owner or its demotion
    changed its level. `waits_for`: the jobs that it is to follow, in words; '' for none. Null is
    unknown, or does not hold.
    """

    id: str
    user: str
    name: str
    nodes: Count
    priority: PriorityName
    level: PriorityName | None
    state: str
    why: str
    place: Count | None
    submitted_at: Moment
    since: Moment | None
    demotion_at: Moment | None
    is_demoted: bool
    suspended: Count
    runs: tuple[Run, ...]
    labels: tuple[str, ...] = ()
    waits_for: str = ""

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED


class Quota(msgspec.Struct, frozen=True):
    """The most nodes at once of a user at a priority; `user` "*" is each one without a quota of
    their own there.
    """

    user: str
    priority: PriorityName
    total: Count
    used: Count | None


class Outsider(msgspec.Struct, frozen=True):
    """A job that runs on the pool's nodes and is no task of it: neither quotas nor the order hold
    for it.
    """

    id: str
    user: str
    nodes: Count


class Pool(msgspec.Struct, frozen=True, tag_field="schema", tag=SCHEMA):
    """A pool at one moment: its rules, quotas and tasks in the order in which they came; what ended
    is the newest.
    """

    pool: str
    coordinator: str
    taken_at: Moment
    nodes: Count
    nodes_usable: Count
    nodes_used: Count
    grace_seconds: float
    demote_after_seconds: float
    least_gpus: Count
    choosers: tuple[str, ...]
    quotas: tuple[Quota, ...]
    tasks: tuple[Task, ...]
    tasks_left_out: Count
    outsiders: tuple[Outsider, ...] = ()

    @property
    def rules(self) -> PoolRules:
        quotas = {(one.user, Priority[one.priority]): one.total for one in self.quotas}
        return PoolRules(
            Quotas(quotas), frozenset(self.choosers), self.least_gpus, self.demote_after_seconds
        )

    def task(self, job_id: str) -> Task | None:
        return next((one for one in self.tasks if one.id == job_id), None)

    def interruptions(self) -> list[tuple[Task, Run]]:
        """The runs that were interrupted for others, the newest first."""
        found = [
            (task, run)
            for task in self.tasks
            for run in task.runs
            if run.is_interrupted and run.ended_at
        ]
        return sorted(found, key=lambda one: one[1].ended_at or one[0].submitted_at, reverse=True)

    def interrupted_by(
        self, job_id: str, *, priority: Priority | None = None, is_paused: bool | None = None
    ) -> list[Task]:
        """The tasks that would be suspended as soon as one has another priority, or is paused or
        not any more.
        """
        before = self._suspended(())
        changes = {} if priority is None else {"priority": priority.name}
        changed = []
        for task in self.tasks:
            if task.id == job_id:
                state = task.state if is_paused is None else "paused" if is_paused else "waiting"
                changed.append(msgspec.structs.replace(task, state=state, **changes))
        after = self._suspended(changed)
        return [task for task in self.tasks if task.id in after - before]

    def _suspended(self, changed: Sequence[Task]) -> set[str]:
        instead = {task.id: task for task in changed}
        tasks = [(at, instead.get(task.id, task)) for at, task in enumerate(self.tasks)]
        running = [
            RunningTask(
                one := _pool_task(task, at),
                _running_level(task, one),
                (task.since or self.taken_at).timestamp(),
            )
            for at, task in tasks
            if task.state in ("starting", "running")
        ]
        waiting = [
            _pool_task(task, at)
            for at, task in tasks
            if task.state == "waiting" and not task.waits_for
        ]
        used = sum(task.nodes for _, task in tasks if task.state in WITH_NODES)
        usable = self.nodes_usable
        decision = decide(
            running,
            queue_up(waiting),
            self.rules.quotas,
            capacity=usable,
            free=max(0, usable - used),
        )
        return {one.id for one in decision.suspend}


def in_order(tasks: Sequence[Task]) -> list[Task]:
    """Sort tasks: those with nodes by level, waiting ones by their turn, then ended ones.

    Of the ended ones the newest comes first.
    """

    def rank(task: Task) -> tuple[float, ...]:
        if task.state in WITH_NODES:
            return (0, -Priority[task.level or task.priority], task.submitted_at.timestamp())
        if task.is_unfinished:
            place = float("inf") if task.place is None else task.place
            return (1 + (task.state == "paused"), place, task.submitted_at.timestamp())
        ended = max((run.ended_at for run in task.runs if run.ended_at), default=task.submitted_at)
        return (3, 0, -ended.timestamp())

    return sorted(tasks, key=rank)


def _pool_task(task: Task, at: int) -> PoolTask:
    place = (task.submitted_at.timestamp(), at)
    return PoolTask(
        task.id, task.user, task.nodes, Priority[task.priority], place, demoted=task.is_demoted
    )


def _running_level(task: Task, pooled: PoolTask) -> Priority:
    """AUTO runs at the level it was given; what has a priority runs at that."""
    if pooled.priority == Priority.AUTO and task.level is not None:
        return Priority[task.level]
    return Priority.NORMAL if pooled.level == Priority.AUTO else pooled.level


# -- writing


def build_state(
    pool: PoolSettings,
    rules: PoolRules,
    database: ShareDatabase,
    decision: Decision,
    now: float,
    capacity: int | None = None,
    waits_for: Mapping[str, str] = MappingProxyType({}),
    outsiders: Sequence[Outsider] = (),
    unwarned: Mapping[str, str] = MappingProxyType({}),
) -> Pool:
    """Build the state of a pool after its coordinator has decided.

    `capacity` nodes of it can be used now (None: all). `waits_for` are the jobs that waiting tasks
    depend on, `unwarned` the reasons that no command to suspend reaches a task.
    """
    stored = unfinished_tasks(database)
    used: dict[tuple[str, Priority], int] = defaultdict(int)
    for one in stored:
        if one.state in WITH_NODES:
            used[one.user, Priority.NORMAL if one.level is None else Priority(one.level)] += (
                one.nodes
            )
    waiting = _Waiting(stored, rules.quotas, used, decision, now, waits_for, unwarned)
    left_out = max(0, len(stored) - _MAX_TASKS)
    first = sorted(
        stored,
        key=lambda one: (one.state not in WITH_NODES, waiting.places.get(one.id, len(stored))),
    )
    shown = [*database.ended_tasks(_MAX_ENDED), *first[:_MAX_TASKS]]
    runs = database.task_runs([one.id for one in shown], _MAX_RUNS)
    tasks = [
        Task(
            id=one.id,
            user=one.user,
            name=one.name[:_LONGEST_NAME],
            nodes=one.nodes,
            priority=Priority(one.priority).name,
            level=None if (level := waiting.level(one)) is None else level.name,
            state=one.state,
            why=waiting.why(one, pool.grace_seconds),
            place=waiting.places.get(one.id),
            submitted_at=_moment(one.submitted_at),
            since=_moment_or_none(one.since),
            demotion_at=_demotion(one, rules),
            is_demoted=bool(one.demoted),
            suspended=one.suspended,
            runs=tuple(
                Run(number, level.name, _moment_or_none(start), _moment_or_none(end), how)
                for number, level, start, end, how in runs.get(one.id, ())
            ),
            labels=read_labels(one.labels),
            waits_for=waits_for.get(one.id, ""),
        )
        for one in sorted(shown, key=lambda one: (one.submitted_at, one.number))
    ]
    holder = database.holder()
    return Pool(
        pool=pool.name,
        coordinator=f"{holder[0]}" if holder else "",
        taken_at=_moment(now),
        nodes=pool.nodes,
        nodes_usable=pool.nodes if capacity is None else capacity,
        nodes_used=sum(used.values()),
        grace_seconds=pool.grace_seconds,
        demote_after_seconds=rules.demote_after_seconds,
        least_gpus=rules.least_gpus,
        choosers=tuple(sorted(rules.choosers)),
        quotas=tuple(_quotas(rules.quotas, used, {one.user for one in stored})),
        tasks=tuple(tasks),
        tasks_left_out=left_out,
        outsiders=tuple(outsiders[:_MAX_OUTSIDERS]),
    )


def publish(state: Pool, file: Path) -> None:
    """Replace a pool's published state, readable by everybody.

    No other file of one's own is replaced, even through a folder that others can write to. Raises
    HpcdashError.
    """
    content = msgspec.json.encode(state)
    if len(content) >= MAX_BYTES:
        short = tuple(
            msgspec.structs.replace(task, runs=task.runs[-_FEW_RUNS:]) for task in state.tasks
        )
        state = msgspec.structs.replace(state, tasks=short)
        content = msgspec.json.encode(state)
    while len(content) >= MAX_BYTES:
        ordered = in_order(state.tasks)
        remaining = {task.id for task in ordered[: len(ordered) // 2]}
        left_out = ordered[len(ordered) // 2 :]
        state = msgspec.structs.replace(
            state,
            tasks=tuple(task for task in state.tasks if task.id in remaining),
            tasks_left_out=state.tasks_left_out + sum(task.is_unfinished for task in left_out),
        )
        content = msgspec.json.encode(state)
    try:
        with _open_folder(file) as folder:
            there = folder / file.name
            if not _is_published(there, state.pool):
                raise HpcdashError(
                    f"pool {state.pool}: {there.resolve()} is not a pool state file, and was "
                    "not replaced",
                    "Move it aside or set a different state_file, and check who can write to its "
                    "folder.",
                )
            # What is lost with the machine is published again a moment later.
            atomic_write(there, content + b"\n", mode=0o644, sync=False)
    except OSError as error:
        raise HpcdashError(
            f"the state of pool {state.pool} cannot be published: {file}: {error.strerror}",
            "state_file of the pool needs a folder that the coordinator may write to.",
        ) from error


@contextmanager
def _open_folder(file: Path) -> Iterator[Path]:
    """The folder of a file, which stays the same inside though its name may come to lead
    elsewhere.
    """
    descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        held = Path(f"/proc/self/fd/{descriptor}")
        yield held if held.exists() else file.parent
    finally:
        os.close(descriptor)


def _is_published(file: Path, pool: str) -> bool:
    """Whether a file may be replaced: it is not there, another account's, or what this one
    published of the pool.
    """
    try:
        found = os.lstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return True
        with file.open("rb") as stream:
            return (
                re.match(
                    rb'{"schema":[0-9]+,"pool":"%b"' % re.escape(pool.encode()), stream.read(200)
                )
                is not None
            )
    except FileNotFoundError:
        return True


class _Waiting:
    """In which order tasks wait, at which level and for what."""

    def __init__(
        self,
        tasks: Sequence[StoredTask],
        quotas: Quotas,
        used: Mapping[tuple[str, Priority], int],
        decision: Decision,
        now: float,
        waits_for: Mapping[str, str],
        unwarned: Mapping[str, str],
    ) -> None:
        self._unwarned = unwarned
        self._waits_for = waits_for
        self._quotas = quotas
        self._now = now
        self._used = used
        self._next = {task.id: level for task, level in (*decision.start, *decision.next)}
        self._blocker = decision.blocker
        self._out_of_quota = decision.out_of_quota
        waits = [one for one in tasks if one.state == "waiting"]
        self._levels = {one.id: self._requested_priority(one) for one in waits}
        # In the order in which they came.
        self._ready = [one for one in waits if one.retry_at <= now and one.id not in waits_for]
        in_line = [
            one
            for one in self._ready
            if self._levels[one.id] is not None and not self._lacks_quota(one)
        ]
        in_line.sort(
            key=lambda one: (
                one.id not in self._next,
                -(self._levels[one.id] or 0),
                one.submitted_at,
                one.number,
            )
        )
        self.places = {one.id: at for at, one in enumerate(in_line, 1)}
        self._first = in_line[0] if in_line else None

    def level(self, task: StoredTask) -> Priority | None:
        if task.level is not None:
            return Priority(task.level)
        return self._levels.get(task.id)

    def _requested_priority(self, task: StoredTask) -> Priority | None:
        if task.id in self._next:
            return self._next[task.id]
        pooled = task.pool_task
        if pooled.level != Priority.AUTO:
            return pooled.level
        levels = self._quotas.levels(pooled)
        return next((one for one in levels if self._left(task.user, one) >= task.nodes), None)

    def _left(self, user: str, level: Priority) -> int:
        return self._quotas.of(user, level) - self._used.get((user, level), 0)

    def _lacks_quota(self, task: StoredTask) -> bool:
        level = self._levels[task.id]
        if level is None or task.id in self._next:
            return level is None
        return (task.user, level) in self._out_of_quota

    def why(self, task: StoredTask, grace_seconds: float) -> str:
        if task.state == "suspending" and not task.words and task.id not in self._unwarned:
            return f"is suspending, with {grace_seconds:g} s to save"
        if task.state == "starting":
            return "is being started"
        if task.state == "paused":
            return "suspended by its owner until resumed"
        if task.state == "running" and task.id in self._unwarned:
            return f"is suspended without a warning: {self._unwarned[task.id]}"
        if task.state != "waiting" or task.retry_at > self._now:
            return task.words
        if task.id in self._waits_for:
            return f"waits for {self._waits_for[task.id]}"
        if self._lacks_quota(task):
            level = self._levels[task.id]
            if level is None:
                return f"{task.user}'s quota is used up at every priority"
            ahead = next(
                one for one in self._ready if (one.user, self._levels[one.id]) == (task.user, level)
            )
            if ahead.id != task.id:
                return f"behind job {ahead.id} of {ahead.user}"
            used = self._used.get((task.user, level), 0)
            total = self._quotas.of(task.user, level)
            return f"quota: {task.user} has {used} of {counted(total, 'node')} at {level.name}"
        if task.id in self._next:
            return (
                f"next: waits until {counted(task.nodes, 'node')} "
                f"{'is' if task.nodes == 1 else 'are'} freed"
            )
        first = self._first
        if (
            first is None
            or first.id == task.id
            or (self._blocker and self._blocker[0].id == task.id)
        ):
            return f"waits for {counted(task.nodes, 'node')}"
        return f"behind job {first.id} of {first.user}"


def _quotas(
    quotas: Quotas, used: Mapping[tuple[str, Priority], int], users: Iterable[str]
) -> Iterator[Quota]:
    """Return the configured quotas, and the total and the use of each user with a task."""
    named = {user for user, _ in quotas.nodes if user != EVERYONE}
    for level in LEVELS:
        if (EVERYONE, level) in quotas.nodes:
            yield Quota(EVERYONE, level.name, quotas.nodes[EVERYONE, level], None)
        for user in sorted({*named, *users}):
            total = quotas.of(user, level)
            taken = used.get((user, level), 0)
            if total or taken or (user, level) in quotas.nodes:
                yield Quota(user, level.name, total, taken)


def _demotion(task: StoredTask, rules: PoolRules) -> datetime | None:
    is_running = task.state == "running"
    return _moment_or_none(
        task.running_task.demotion_at(rules.demote_after_seconds) if is_running else None
    )


def _moment_or_none(at: float | None) -> datetime | None:
    return None if at is None else _moment(at)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(int(at), UTC)


# -- reading


def parse_state(content: bytes) -> Pool:
    """Raises ValueError, which says what is wrong."""
    try:
        return msgspec.json.decode(content, type=Pool)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class PoolReader:
    """Reads what a pool's coordinator published, over the cluster's connection; what has not
    changed is not sent.
    """

    def __init__(self, store: ClusterStore, pool: PoolSettings) -> None:
        self.pool = pool
        self.state: Pool | None = None
        self._store = store
        self._file = pool.state_file
        self._last: Chunk | None = None

    async def read(self) -> Pool:
        """Raises HpcdashError where there is none, it is not the coordinator's, or it cannot be
        understood.
        """
        known = None if self._last is None or self.state is None else self._last.stat
        query = files_query([FileRange(self._file, 0, MAX_BYTES + 1, known)])
        [chunk] = await self._store.run_query(query)
        check = chunk.stat
        name = self.pool.name
        coordinator = self.pool.coordinator or self._store.user
        owner = check.owner or "nobody known"
        if check.is_missing:
            raise HpcdashError(
                f"pool {name} has published nothing: {self._file}: {check.problem}",
                f"`hpcdash share run {name}` coordinates it; state_file in [share.{name}] says "
                "where it publishes.",
            )
        if check.problem:
            raise HpcdashError(f"pool {name}: {self._file}: {check.problem}")
        if owner != coordinator:
            raise HpcdashError(
                f"pool {name}: {self._file} belongs to {owner}, its coordinator is {coordinator}",
                f"coordinator in [share.{name}] names the account whose file is trusted.",
            )
        if known is not None and check == known and not chunk.content and self.state is not None:
            return self.state
        if check.size > MAX_BYTES or len(chunk.content) > MAX_BYTES:
            raise HpcdashError(f"pool {name}: {self._file} is larger than {MAX_BYTES >> 20} MiB")
        try:
            self.state = parse_state(chunk.content)
        except ValueError as error:
            self.state = None
            raise HpcdashError(
                f"pool {name}: {self._file} is not a valid pool state file: {error}",
                "Does the coordinator run another version?",
            ) from None
        if self.state.pool != name:
            named = self.state.pool
            self.state = None
            raise HpcdashError(
                f"pool {name}: its coordinator calls it {visible(named)}",
                f"Add [share.{visible(named)}] to the configuration.",
            )
        self._last = chunk
        return self.state
