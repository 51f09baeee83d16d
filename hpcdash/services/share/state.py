"""State of a pool: one JSON file that its coordinator publishes and its users read."""

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
from msgspec.structs import replace

from hpcdash.config.settings import PoolSettings
from hpcdash.domain.share import EVERYONE, LEVELS, Priority, parse_labels
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.private_files import atomic_write
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import FileRange, FileStat, files_query
from hpcdash.services.share.database import (
    INTERRUPTED,
    UNFINISHED,
    WITH_NODES,
    ShareDatabase,
    StoredTask,
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
# A coordinator without changes publishes this often; one that is silent for longer has ended, or
# hangs.
PUBLISH_SECONDS = 10.0
SILENT_SECONDS = 60.0
MAX_BYTES = 8 << 20
_MAX_TASKS = 5000
_MAX_FINISHED = 100
_MAX_FOREIGN_JOBS = 100
_MAX_RUNS = 50
_FEW_RUNS = 3
_MAX_NAME_LENGTH = 200

PriorityName = Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(Priority.__members__)})\Z")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class Run(msgspec.Struct, frozen=True):
    """One run of a task.

    `how` it ended: as in INTERRUPTED; paused, by its owner; yielded, if it suspended itself;
    requeued, by the scheduler, as after a node failure; succeeded, failed, stopped; '' not yet.
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
    """One task; null is unknown or not applicable.

    `state` is that of StoredTask, `why` explains it; the task with `place` 1 is next. `level` is
    the priority it runs at, or would: for AUTO, the highest with quota left. `demotion_at`: when
    it becomes NORMAL. `since`: when its run began, or its owner or its demotion changed its level.
    `waits_for`: the jobs that it is to follow, as text; '' for none.
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

    def pool_task(self, number: int = 0) -> PoolTask:
        """Return the task as an argument of the rules; `number` orders tasks of one second."""
        return PoolTask(
            self.id,
            self.user,
            self.nodes,
            Priority[self.priority],
            (self.submitted_at.timestamp(), number),
            demoted=self.is_demoted,
        )


class Quota(msgspec.Struct, frozen=True):
    """The most nodes at once of a user at a priority; `user` "*" is everyone without a quota of
    their own there.
    """

    user: str
    priority: PriorityName
    total: Count
    used: Count | None


class ForeignJob(msgspec.Struct, frozen=True):
    """A job on the pool's nodes that is not a task of it, outside quotas and order."""

    id: str
    user: str
    nodes: Count


class Pool(msgspec.Struct, frozen=True, tag_field="schema", tag=SCHEMA):
    """Snapshot of a pool: its rules, quotas, and tasks in their order of submission.

    Of finished tasks it has the newest. `outsiders` are foreign jobs.
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
    outsiders: tuple[ForeignJob, ...] = ()

    @property
    def rules(self) -> PoolRules:
        quotas = {(quota.user, Priority[quota.priority]): quota.total for quota in self.quotas}
        return PoolRules(
            Quotas(quotas), frozenset(self.choosers), self.least_gpus, self.demote_after_seconds
        )

    def task(self, job_id: str) -> Task | None:
        return next((task for task in self.tasks if task.id == job_id), None)

    def interruptions(self) -> list[tuple[Task, Run, datetime]]:
        """Return the runs that were interrupted for others and when, the newest first."""
        interruptions = [
            (task, run, run.ended_at)
            for task in self.tasks
            for run in task.runs
            if run.is_interrupted and run.ended_at
        ]
        return sorted(interruptions, key=lambda interruption: interruption[2], reverse=True)

    def interrupted_by(self, changed: Task) -> list[Task]:
        """Return the tasks that would be suspended as soon as a task is `changed`."""
        before = self._suspended_ids(self.tasks)
        after = self._suspended_ids(
            [changed if task.id == changed.id else task for task in self.tasks]
        )
        return [task for task in self.tasks if task.id in after - before]

    def _suspended_ids(self, tasks: Sequence[Task]) -> set[str]:
        running = []
        waiting = []
        used = 0
        for number, task in enumerate(tasks):
            pool_task = task.pool_task(number)
            if task.state == "waiting" and not task.waits_for:
                waiting.append(pool_task)
            elif task.state in ("starting", "running"):
                level = pool_task.level
                if level == Priority.AUTO:
                    level = Priority[task.level or "NORMAL"]
                since = (task.since or self.taken_at).timestamp()
                running.append(RunningTask(pool_task, level, since))
            if task.state in WITH_NODES:
                used += task.nodes
        decision = decide(
            running,
            queue_up(waiting),
            self.rules.quotas,
            capacity=self.nodes_usable,
            free=max(0, self.nodes_usable - used),
        )
        return {task.id for task in decision.suspend}


def sort_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Sort tasks: those with nodes by level, waiting tasks by turn, then finished tasks, the newest
    first.
    """

    def rank(task: Task) -> tuple[float, ...]:
        if task.state in WITH_NODES:
            return (0, -Priority[task.level or task.priority], task.submitted_at.timestamp())
        if task.is_unfinished:
            place = float("inf") if task.place is None else task.place
            return (1 + (task.state == "paused"), place, task.submitted_at.timestamp())
        ends = (run.ended_at for run in task.runs if run.ended_at)
        return (3, 0, -max(ends, default=task.submitted_at).timestamp())

    return sorted(tasks, key=rank)


# -- writing


def build_state(
    pool: PoolSettings,
    rules: PoolRules,
    database: ShareDatabase,
    decision: Decision,
    now: float,
    *,
    capacity: int | None = None,
    waits_for: Mapping[str, str] = MappingProxyType({}),
    foreign_jobs: Sequence[ForeignJob] = (),
    unwarned: Mapping[str, str] = MappingProxyType({}),
) -> Pool:
    """Build the state of a pool after its coordinator has decided.

    `capacity`: nodes of the pool that are usable now (None: all). `waits_for`: the jobs that
    waiting tasks depend on. `unwarned`: the reasons that no suspend command reaches a task.
    """
    unfinished = database.unfinished_tasks()
    used: dict[tuple[str, Priority], int] = defaultdict(int)
    for task in unfinished:
        if task.state in WITH_NODES:
            used[task.user, task.running_level] += task.nodes
    standings = _Standings(
        unfinished, rules, used, decision, now, waits_for=waits_for, unwarned=unwarned
    )
    places = standings.places
    first = sorted(
        unfinished,
        key=lambda task: (task.state not in WITH_NODES, places.get(task.id, len(unfinished))),
    )
    shown = [*database.finished_tasks(_MAX_FINISHED), *first[:_MAX_TASKS]]
    shown.sort(key=lambda task: (task.submitted_at, task.number))
    runs = database.task_runs([task.id for task in shown], _MAX_RUNS)
    tasks = []
    for task in shown:
        level = standings.level(task)
        demotion_at = None
        if task.state == "running":
            demotion_at = task.running_task.demotion_at(rules.demote_after_seconds)
        tasks.append(
            Task(
                id=task.id,
                user=task.user,
                name=task.name[:_MAX_NAME_LENGTH],
                nodes=task.nodes,
                priority=Priority(task.priority).name,
                level=None if level is None else level.name,
                state=task.state,
                why=standings.why(task, pool.grace_seconds),
                place=places.get(task.id),
                submitted_at=_utc(task.submitted_at),
                since=_utc_or_none(task.since),
                demotion_at=_utc_or_none(demotion_at),
                is_demoted=bool(task.demoted),
                suspended=task.suspended,
                runs=tuple(
                    Run(
                        run.number,
                        Priority(run.level).name,
                        _utc_or_none(run.started_at),
                        _utc_or_none(run.ended_at),
                        run.how,
                    )
                    for run in runs.get(task.id, ())
                ),
                labels=parse_labels(task.labels),
                waits_for=waits_for.get(task.id, ""),
            )
        )
    return Pool(
        pool=pool.name,
        coordinator=database.holder(),
        taken_at=_utc(now),
        nodes=pool.nodes,
        nodes_usable=pool.nodes if capacity is None else capacity,
        nodes_used=sum(used.values()),
        grace_seconds=pool.grace_seconds,
        demote_after_seconds=rules.demote_after_seconds,
        least_gpus=rules.least_gpus,
        choosers=tuple(sorted(rules.choosers)),
        quotas=tuple(_quotas(rules.quotas, used, {task.user for task in unfinished})),
        tasks=tuple(tasks),
        tasks_left_out=max(0, len(unfinished) - _MAX_TASKS),
        outsiders=tuple(foreign_jobs[:_MAX_FOREIGN_JOBS]),
    )


def publish(state: Pool, file: Path) -> None:
    """Replace a pool's published state, readable by everyone.

    No other file of this account is replaced, even through a folder that others can write to.
    Raises HpcdashError.
    """
    content = msgspec.json.encode(state)
    if len(content) >= MAX_BYTES:
        shortened = [replace(task, runs=task.runs[-_FEW_RUNS:]) for task in state.tasks]
        state = replace(state, tasks=tuple(shortened))
        content = msgspec.json.encode(state)
    while len(content) >= MAX_BYTES:
        ordered = sort_tasks(state.tasks)
        removed = ordered[len(ordered) // 2 :]
        removed_ids = {task.id for task in removed}
        state = replace(
            state,
            tasks=tuple(task for task in state.tasks if task.id not in removed_ids),
            tasks_left_out=state.tasks_left_out + sum(task.is_unfinished for task in removed),
        )
        content = msgspec.json.encode(state)
    try:
        with _open_folder(file) as folder:
            target = folder / file.name
            if not _is_replaceable(target, state.pool):
                raise HpcdashError(
                    f"pool {state.pool}: {target.resolve()} is not a pool state file, and was "
                    "not replaced",
                    "Move it aside or set a different state_file, and check who can write to its "
                    "folder.",
                )
            # A state lost in a crash of the machine is published again a moment later.
            atomic_write(target, content + b"\n", mode=0o644, sync=False)
    except OSError as error:
        raise HpcdashError(
            f"cannot publish the state of pool {state.pool}: {file}: {error.strerror}",
            "state_file of the pool needs a folder that the coordinator may write to.",
        ) from error


@contextmanager
def _open_folder(file: Path) -> Iterator[Path]:
    """Open the folder of a file, whose path inside stays valid wherever its name may lead later."""
    descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = Path(f"/proc/self/fd/{descriptor}")
        yield folder if folder.exists() else file.parent
    finally:
        os.close(descriptor)


def _is_replaceable(file: Path, pool: str) -> bool:
    """Whether a file is missing, not a regular file of this account, or the pool's published
    state.
    """
    try:
        status = os.lstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return True
        with file.open("rb") as stream:
            start = rb'{"schema":[0-9]+,"pool":"%b"' % re.escape(pool.encode())
            return re.match(start, stream.read(200)) is not None
    except FileNotFoundError:
        return True


class _Standings:
    """Levels of unfinished tasks, places of waiting tasks, and explanations of all."""

    def __init__(
        self,
        tasks: Sequence[StoredTask],
        rules: PoolRules,
        used: Mapping[tuple[str, Priority], int],
        decision: Decision,
        now: float,
        *,
        waits_for: Mapping[str, str],
        unwarned: Mapping[str, str],
    ) -> None:
        self._quotas = rules.quotas
        self._used = used
        self._now = now
        self._waits_for = waits_for
        self._unwarned = unwarned
        self._next = {task.id: level for task, level in (*decision.start, *decision.next)}
        self._blocker_id = decision.blocker[0].id if decision.blocker else None
        self._out_of_quota = decision.out_of_quota
        waiting = [task for task in tasks if task.state == "waiting"]
        self._levels = {task.id: self._waiting_level(task) for task in waiting}
        # In their order of submission.
        self._ready = [
            task for task in waiting if task.retry_at <= now and task.id not in waits_for
        ]
        line = [task for task in self._ready if not self._lacks_quota(task)]
        line.sort(
            key=lambda task: (
                task.id not in self._next,
                -(self._levels[task.id] or 0),
                task.submitted_at,
                task.number,
            )
        )
        self.places = {task.id: place for place, task in enumerate(line, 1)}
        self._first = line[0] if line else None

    def level(self, task: StoredTask) -> Priority | None:
        return self._levels.get(task.id) if task.level is None else Priority(task.level)

    def _waiting_level(self, task: StoredTask) -> Priority | None:
        """Return the level that a waiting task would start at; None if no AUTO quota is left."""
        if task.id in self._next:
            return self._next[task.id]
        pool_task = task.pool_task
        if pool_task.level != Priority.AUTO:
            return pool_task.level
        for level in self._quotas.levels(pool_task):
            used = self._used.get((task.user, level), 0)
            if used + task.nodes <= self._quotas.limit(task.user, level):
                return level
        return None

    def _lacks_quota(self, task: StoredTask) -> bool:
        level = self._levels[task.id]
        if level is None:
            return True
        return task.id not in self._next and (task.user, level) in self._out_of_quota

    def why(self, task: StoredTask, grace_seconds: float) -> str:
        """Return the reason that a task is in its state; '' if that needs none."""
        if task.state == "suspending" and not task.reason and task.id not in self._unwarned:
            return f"is suspending, with {grace_seconds:g} s to save"
        if task.state == "starting":
            return "starting"
        if task.state == "paused":
            return "suspended by the owner until resumed"
        if task.state == "running" and task.id in self._unwarned:
            return f"suspended without warning: {self._unwarned[task.id]}"
        if task.state != "waiting" or task.retry_at > self._now:
            return task.reason
        if task.id in self._waits_for:
            return f"waits for {self._waits_for[task.id]}"
        if self._lacks_quota(task):
            return self._explain_quota(task, self._levels[task.id])
        if task.id in self._next:
            are_freed = "is freed" if task.nodes == 1 else "are freed"
            return f"next: waits until {counted(task.nodes, 'node')} {are_freed}"
        if self._first is None or task.id in (self._first.id, self._blocker_id):
            return f"waits for {counted(task.nodes, 'node')}"
        return f"behind job {self._first.id} of {self._first.user}"

    def _explain_quota(self, task: StoredTask, level: Priority | None) -> str:
        if level is None:
            return f"{task.user}'s quota is used up at every priority"
        ahead = next(
            other
            for other in self._ready
            if (other.user, self._levels[other.id]) == (task.user, level)
        )
        if ahead.id != task.id:
            return f"behind job {ahead.id} of {ahead.user}"
        used = self._used.get((task.user, level), 0)
        limit = counted(self._quotas.limit(task.user, level), "node")
        return f"quota: {task.user} has {used} of {limit} at {level.name}"


def _quotas(
    quotas: Quotas, used: Mapping[tuple[str, Priority], int], users: Iterable[str]
) -> Iterator[Quota]:
    """Yield the configured quotas, and the quotas and their use of each user with a task."""
    named = {user for user, _ in quotas.nodes if user != EVERYONE}
    for level in LEVELS:
        if (EVERYONE, level) in quotas.nodes:
            yield Quota(EVERYONE, level.name, quotas.nodes[EVERYONE, level], None)
        for user in sorted({*named, *users}):
            total = quotas.limit(user, level)
            user_used = used.get((user, level), 0)
            if total or user_used or (user, level) in quotas.nodes:
                yield Quota(user, level.name, total, user_used)


def _utc_or_none(epoch_seconds: float | None) -> datetime | None:
    return None if epoch_seconds is None else _utc(epoch_seconds)


def _utc(epoch_seconds: float) -> datetime:
    return datetime.fromtimestamp(int(epoch_seconds), UTC)


# -- reading


def parse_state(content: bytes) -> Pool:
    """Parse a published state; raises ValueError with the problem."""
    try:
        return msgspec.json.decode(content, type=Pool)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class PoolReader:
    """Reads a pool's published state over the cluster's connection, if it has changed.

    `state` is the last state; None before the first read, and after an invalid file.
    """

    def __init__(self, store: ClusterStore, pool: PoolSettings) -> None:
        self.pool = pool
        self.state: Pool | None = None
        self._store = store
        self._stat: FileStat | None = None

    async def read(self) -> Pool:
        """Read the state; raises HpcdashError if there is none, it is not its coordinator's, or it
        is invalid.
        """
        name = self.pool.name
        file = self.pool.state_file
        known = None if self.state is None else self._stat
        query = files_query([FileRange(file, 0, MAX_BYTES + 1, known)])
        [chunk] = await self._store.run_query(query)
        coordinator = self.pool.coordinator or self._store.user
        owner = chunk.stat.owner or "nobody known"
        if chunk.stat.is_missing:
            raise HpcdashError(
                f"pool {name} has no published state: {file}: {chunk.stat.problem}",
                f"`hpcdash share run {name}` coordinates it; state_file in [share.{name}] sets "
                "the location of the published state.",
            )
        if chunk.stat.problem:
            raise HpcdashError(f"pool {name}: {file}: {chunk.stat.problem}")
        if owner != coordinator:
            raise HpcdashError(
                f"pool {name}: {file} belongs to {owner}, its coordinator is {coordinator}",
                f"coordinator in [share.{name}] sets the only account whose state file is trusted.",
            )
        if self.state is not None and chunk.stat == known and not chunk.content:
            return self.state
        if chunk.stat.size > MAX_BYTES or len(chunk.content) > MAX_BYTES:
            raise HpcdashError(f"pool {name}: {file} is larger than {MAX_BYTES >> 20} MiB")
        self.state = None
        try:
            state = parse_state(chunk.content)
        except ValueError as error:
            raise HpcdashError(
                f"pool {name}: {file} is not a valid pool state file: {error}",
                "Does the coordinator run another version?",
            ) from None
        if state.pool != name:
            raise HpcdashError(
                f"pool {name}: the coordinator calls this pool {visible(state.pool)}",
                f"Add [share.{visible(state.pool)}] to the configuration.",
            )
        self.state = state
        self._stat = chunk.stat
        return state
