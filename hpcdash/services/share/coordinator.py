"""Coordinates one shared pool: admits its tasks, starts and suspends them by the rules, and records
their runs.

Each action is recorded in share.db before it runs, and can be repeated: a coordinator may be killed
at any moment.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import ceil
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.backends.actions import NODES, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import JobScope
from hpcdash.config.settings import LaunchSettings, PoolSettings
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.nodelist import expand
from hpcdash.domain.share import Priority, TaskMark, format_labels, parse_mark
from hpcdash.domain.states import ENDED, JobState, NodeState
from hpcdash.domain.text import counted
from hpcdash.errors import AccountingUnavailable, HpcdashError, NoSuchJob, UnreadableOutput
from hpcdash.job.suspend import suspend_deadline
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.share.database import (
    UNFINISHED,
    WITH_NODES,
    ShareDatabase,
    StoredTask,
    level_changes,
)
from hpcdash.services.share.files import TaskFiles
from hpcdash.services.share.scheduling import (
    Decision,
    PoolRules,
    Quotas,
    decide,
    queue_up,
)
from hpcdash.services.share.state import (
    PUBLISH_SECONDS,
    ForeignJob,
    Pool,
    build_state,
    publish,
)
from hpcdash.services.share.wishes import apply_wishes

Row = Mapping[str, Any]
_Result = TypeVar("_Result")
_RESULTS = {JobState.COMPLETED: "succeeded", JobState.CANCELLED: "stopped"}
_RUNNING = (JobState.RUNNING, JobState.SUSPENDED)
_WITH_NODES = (*_RUNNING, JobState.COMPLETING)
_OPEN_NODES = (
    NodeState.IDLE,
    NodeState.MIXED,
    NodeState.ALLOCATED,
    NodeState.RESERVED,
    NodeState.PLANNED,
)
_NODES_SECONDS = 15.0
# A training that is ready without a request waits this long; each check of another account's file
# is a sudo.
_READY_SECONDS = 10.0
_LOGS_SECONDS = 60.0
_MAX_CHECKS = 8
# Per step: each takes two commands, which delay the checks of running tasks.
_MAX_ADMITTED = 20
_HISTORY_SECONDS = 30 * 86_400
# Accounting that is busy, or was down, reports a job's end later than the queue forgets it.
_HISTORY_DELAY_SECONDS = 300.0


def pool_rules(pool: PoolSettings) -> PoolRules:
    """Build the rules of a pool from its configuration."""
    quotas = {(user, quota.priority): quota.nodes for quota in pool.quotas for user in quota.users}
    return PoolRules(
        Quotas(quotas), frozenset(pool.choosers), pool.least_gpus, pool.demote_after_seconds
    )


class _Memory(Struct):
    """A coordinator's memory of an unfinished task, which may be lost.

    `warning` and `applied_mark` were reported last; `log_paths` are None until read;
    `command_at` is the request to suspend whose command has been written. `checked_at`: when its
    files were checked, by what was checked. Epoch seconds.
    """

    files: TaskFiles | None = None
    warning: str = ""
    applied_mark: tuple[str, TaskMark] | None = None
    log_paths: tuple[PurePosixPath, ...] | None = None
    command_at: float | None = None
    checked_at: dict[str, float] = field(default_factory=dict)


class Coordinator:
    """Coordinator of a pool, with the lease of its database.

    `notify` gets a line for each action. `launch`: the folder of other accounts' launches, and
    root's program that writes there.
    """

    def __init__(
        self,
        pool: PoolSettings,
        database: ShareDatabase,
        actions: Actions,
        notify: Callable[[str], None],
        *,
        launch: LaunchSettings,
    ) -> None:
        self.pool = pool
        self.rules = pool_rules(pool)
        self.database = database
        self.actions = actions
        self.notify = notify
        # The last decision, and the number of nodes it was made for.
        self.decision = Decision()
        self.capacity = pool.nodes
        # Dependencies of waiting tasks, as text.
        self.waits_for: dict[str, str] = {}
        self.foreign_jobs: list[ForeignJob] = []
        self._launch = launch
        self._began_at = self._now
        self._published_at = float("-inf")
        self._published_changes = -1
        self._usable: frozenset[str] | None = None
        self._usable_at = float("-inf")
        self._memories: defaultdict[str, _Memory] = defaultdict(_Memory)
        self._checks = asyncio.Semaphore(_MAX_CHECKS)
        # The jobs in the pool's queue, QoS and reservation, and the nodes they have.
        self._members: frozenset[str] = frozenset()
        self._busy: frozenset[str] = frozenset()
        # With a node list: the nodes that starting tasks were given.
        self._given: dict[str, tuple[str, ...]] = {}

    async def step(self, *, is_ending: bool = False) -> bool:
        """Read the queue once, and act on it; with `is_ending` no further task starts or suspends.

        Return whether a task is about to start, to give up its nodes, or to be admitted. Raises
        HpcdashError if the queue cannot be read, and PoolHeld if another coordinator has taken
        over.
        """
        self.database.keep_lease(self._now)
        rows = await self._fetch_rows()
        known = {task.id: task for task in self.database.find_tasks(rows)}
        for task in known.values():
            if task.state in UNFINISHED:
                await self._follow(task, rows[task.id])
            else:
                await self._readmit(task, rows[task.id])
        new = [
            (row, mark)
            for job_id, row in rows.items()
            if job_id not in known and (mark := self._pool_mark(row))
        ]
        # The users have turns: nobody's thousands of jobs delay the others.
        turns: defaultdict[str, Iterator[int]] = defaultdict(count)
        new.sort(key=lambda job: next(turns[job[0]["user"]]))
        for row, mark in new[:_MAX_ADMITTED]:
            await self._admit(row, mark)
        if not is_ending:
            await self._watch_running()
            await self._decide(rows)
        unfinished = {task.id for task in self.database.unfinished_tasks()}
        for job_id in self._memories.keys() - unfinished:
            del self._memories[job_id]
        return len(new) > _MAX_ADMITTED or bool(
            self.database.tasks_in_states("starting", "suspending")
        )

    def state(self) -> Pool:
        """Build the state of the pool to be published."""
        return build_state(
            self.pool,
            self.rules,
            self.database,
            self.decision,
            self._now,
            capacity=self.capacity,
            waits_for=self.waits_for,
            foreign_jobs=self.foreign_jobs,
            unwarned={
                task.id: reason
                for task in self.database.unfinished_tasks()
                if (reason := self._files(task).unreached)
            },
        )

    def publish(self) -> None:
        """Publish the state if tasks have changed, or readers would soon call the pool silent.

        Raises HpcdashError, and does not retry before the next change or interval.
        """
        now = self._now
        changes = self.database.changes
        if changes == self._published_changes and 0 <= now - self._published_at < PUBLISH_SECONDS:
            return
        self._published_at = now
        self._published_changes = changes
        publish(self.state(), Path(self.pool.state_file))

    @property
    def _now(self) -> float:
        return self.actions.store.clock.now()

    async def _fetch_rows(self) -> dict[str, Row]:
        """Fetch the pool's jobs by ID: those in the queue, and unfinished tasks that have left
        it.
        """
        store = self.actions.store
        pool = self.pool
        scope = JobScope(queue=pool.queue, qos=pool.qos, reservation=pool.reservation)
        parsed = await store.run_query(store.backend.queue.jobs(scope))
        rows: dict[str, Row] = {str(row["id"]): row for row in parsed.table.to_pylist()}
        self._members = frozenset(rows)
        self._busy = frozenset(
            name
            for row in rows.values()
            if row["state"] in _WITH_NODES
            for name in _node_names(row["node_list"])
        )
        unfinished = self.database.unfinished_tasks()
        absent = [task.id for task in unfinished if task.id not in rows]
        if absent:
            rows |= {str(row["id"]): row for row in await self.actions.fetch_rows(absent)}
        back = [task for task in unfinished if task.id in rows and task.gone_since is not None]
        self._record_gone(back, None)
        gone = [task for task in unfinished if task.id not in rows]
        return rows | await self._fetch_past_rows(gone) if gone else rows

    def _record_gone(self, tasks: Sequence[StoredTask], since: float | None) -> None:
        if tasks:
            with self.database.writing(self._now):
                for task in tasks:
                    self.database.update(task.id, {"gone_since": since})

    async def _fetch_past_rows(self, tasks: Sequence[StoredTask]) -> dict[str, Row]:
        """Fetch rows of jobs that have left the queue for good from the history.

        A job that the history still lacks after a while has only the state GONE.
        """
        store = self.actions.store
        delay = _HISTORY_DELAY_SECONDS
        rows: dict[str, Row] = {}
        try:
            parsed = await store.run_query(
                store.backend.history.jobs(None, _HISTORY_SECONDS, [task.id for task in tasks])
            )
            rows = {
                str(row["id"]): row for row in parsed.table.to_pylist() if row["state"] in ENDED
            }
        except NoSuchJob:
            pass
        except AccountingUnavailable:
            delay = 0.0
        missing = [task for task in tasks if task.id not in rows]
        now = self._now
        self._record_gone([task for task in missing if task.gone_since is None], now)
        lost = {"state": JobState.GONE, "ends_at": None, "started_at": None}
        return rows | {task.id: lost for task in missing if now >= (task.gone_since or now) + delay}

    def _files(self, task: StoredTask) -> TaskFiles:
        memory = self._memories[task.id]
        if memory.files is None:
            store = self.actions.store
            memory.files = TaskFiles(
                store.transport,
                task.folder,
                account="" if task.user == store.user else task.user,
                program=self._launch.launch_program,
                storage_root=self._launch.site.storage_root.rstrip("/"),
            )
        return memory.files

    def _update(self, task: StoredTask, **changes: Any) -> StoredTask:
        """Change fields of a task in the database, and return the changed task."""
        with self.database.writing(self._now):
            self.database.update(task.id, changes)
        return replace(task, **changes)

    # -- new tasks

    def _pool_mark(self, row: Row) -> TaskMark | None:
        """Return the mark of a job that is to be a task of this pool; None for any other job.

        A pool that is a list of nodes alone reads every job of the cluster: its marks name it.
        """
        mark = parse_mark(row["comment"])
        if mark is None or row["state"] not in (JobState.HELD, JobState.PENDING, *_RUNNING):
            return None
        pool = self.pool
        has_own_jobs = (
            bool(pool.queue or pool.qos or pool.reservation)
            or self.actions.store.backend.is_embedded
        )
        return mark if mark.pool == pool.name or (has_own_jobs and not mark.pool) else None

    async def _admit(self, row: Row, mark: TaskMark) -> None:
        user = str(row["user"])
        priority = self.rules.allowed_priority(user, mark.priority)
        task = StoredTask(
            id=str(row["id"]),
            number=int(row["_number"] or 0),
            user=user,
            name=str(row["name"] or ""),
            nodes=self._node_count(row),
            priority=priority,
            submitted_at=row["submitted_at"].timestamp() if row["submitted_at"] else self._now,
            folder=mark.folder,
            state="paused" if mark.is_paused else "waiting",
            labels=format_labels(mark.labels),
        )
        refusal = await self._refusal(task, row)
        if refusal:
            task = replace(task, state="refused", reason=refusal)
        with self.database.writing(self._now):
            self.database.add(task)
        waits = f"waiting at {priority.name} for {counted(task.nodes, 'node')}"
        self.notify(f"job {task.id} of {user}: {refusal or waits}")
        if refusal:
            await self._act(Verb.CANCEL, task)
            return
        if unreached := self._files(task).unreached:
            self.notify(f"job {task.id} cannot be warned before it is suspended: {unreached}")
        if row["state"] not in _RUNNING:
            await self._hold_firmly(task)

    def _node_count(self, row: Row) -> int:
        """Return the number of nodes that a job has or requests."""
        if not self.actions.store.backend.is_embedded:
            return int(row["nodes"] or 1)
        nodes = ceil(int(row["cpus"] or 1) / self.pool.cpus_per_node)
        if self.pool.gpus_per_node:
            nodes = max(nodes, ceil(int(row["gpus"] or 0) / self.pool.gpus_per_node))
        return nodes

    async def _refusal(self, task: StoredTask, row: Row) -> str:
        """Return the reason that a job cannot be a task of this pool; '' if it can."""
        if row["_tasks"] != 1 or row["array_id"] is not None:
            return "an array cannot be a task"
        if refusal := self._place_refusal(row):
            return refusal
        if refusal := self.rules.refusal(
            task.pool_task, capacity=self.pool.nodes, gpus=int(row["gpus"] or 0)
        ):
            return refusal
        for other in self.database.tasks("user = ? AND name = ?", task.user, task.name):
            if other.id != task.id and other.state in UNFINISHED:
                return f"{task.user} already has a task with this name: job {other.id}"
        return await self._native_refusal(task.id)

    def _place_refusal(self, row: Row) -> str:
        """Return the reason that a job's queue or QoS is not the pool's; '' if it is."""
        for title, column, required in (
            ("queue", "queue", self.pool.queue),
            ("QoS", "qos", self.pool.qos),
        ):
            if required and row[column] != required:
                return f"{title} is {row[column]}; the pool accepts only {required}"
        return ""

    async def _native_refusal(self, job_id: str) -> str:
        detail = self.actions.store.backend.detail
        if not detail.holds_requeued:
            return ""
        try:
            return detail.task_refusal(await self.actions.store.run_query(detail.native(job_id)))
        except NoSuchJob:
            return ""
        except UnreadableOutput as error:
            return f"cannot read the scheduler's record of the job: {error.message}"

    async def _readmit(self, task: StoredTask, row: Row) -> None:
        """Follow a finished task that was put back into the queue, or whose ID has a new job."""
        state = row["state"]
        if state in ENDED:
            return
        if row["user"] != task.user:
            # It is admitted as any other at the next step.
            with self.database.writing(self._now):
                self.database.remove(task.id)
            return
        if state == JobState.COMPLETING or (task.state == "refused" and state == JobState.HELD):
            return
        if task.state in ("refused", "stopped"):
            self.notify(f"job {task.id} was {task.state}, and will not start again")
            await self._act(Verb.CANCEL, task)
            return
        waiting = await self._recheck(replace(task, state="waiting"), row, "was requeued")
        if waiting.state == "waiting":
            await self._follow(waiting, row)

    # -- running and finished tasks

    async def _follow(self, task: StoredTask, row: Row) -> None:
        """Record the present state of a task's job, and repeat actions that have not succeeded."""
        state = row["state"]
        if state in ENDED:
            self._record_end(task, row)
            return
        mark = parse_mark(row["comment"])
        if mark is not None:
            task = self._apply_mark(task, mark)
        is_paused = mark is not None and mark.is_paused
        if state in _RUNNING and task.state in WITH_NODES:
            task = self._record_start(task, row)
        else:
            task = await self._apply_changes(task, row)
        if state == JobState.HELD:
            if task.state == "starting":
                await self._release(task)
            elif task.state in ("running", "suspending"):
                await self._record_suspension(task, is_paused)
        elif state == JobState.PENDING:
            if task.state != "starting":
                # Whoever released or requeued it: its turn has not come.
                await self._act(Verb.HOLD, task)
            elif self._is_start_overdue(task):
                await self._withdraw(task, str(row["reason"] or "no reason given"))
        elif state in _RUNNING:
            if task.state in ("waiting", "paused"):
                # Somebody else released it.
                await self._suspend(self._record_early_start(task, row))
            elif task.state == "suspending" or is_paused:
                await self._suspend(task)

    def _apply_mark(self, task: StoredTask, mark: TaskMark) -> StoredTask:
        """Apply the wishes of a task's owner, and return the changed task."""
        changes, text = apply_wishes(
            task, mark, self.rules, capacity=self.pool.nodes, now=self._now
        )
        if changes:
            task = self._update(task, **changes)
        memory = self._memories[task.id]
        if text and memory.applied_mark != (text, mark):
            memory.applied_mark = (text, mark)
            self.notify(f"job {task.id}: {text}")
        return task

    def _record_early_start(self, task: StoredTask, row: Row) -> StoredTask:
        """Record that a task runs though it was not its turn; it may save like any other."""
        level = task.pool_task.level
        with self.database.writing(self._now):
            self.database.begin_run(
                task.id,
                Priority.NORMAL if level == Priority.AUTO else level,
                self._started_at(row),
            )
        return self._record_start(self.database.task(task.id), row)

    async def _record_suspension(self, task: StoredTask, is_paused: bool) -> None:
        """Record that a task is held again, and how it left its nodes."""
        now = self._now
        await self._hold_firmly(task)
        files = self._files(task)
        if is_paused:
            how = "paused"
        elif await files.is_ready():
            how = "yielded" if task.requested_at is None else "suspended"
        elif task.requested_at is None:
            how = "requeued"
        else:
            how = "ignored" if await files.seen_at() is None else "slow"
        with self.database.writing(now):
            self.database.end_run(task, "paused" if is_paused else "waiting", now, how)
        after = (
            ""
            if task.requested_at is None
            else f", {now - task.requested_at:.1f} s after the request"
        )
        self.notify(f"job {task.id} is suspended{after}")

    def _record_end(self, task: StoredTask, row: Row) -> None:
        state = row["state"]
        result = _RESULTS.get(state, "unknown" if state == JobState.GONE else "failed")
        if task.reason and task.state == "suspending":
            # It was cancelled for this reason.
            result = "failed"
        ended_at = row["ends_at"].timestamp() if row["ends_at"] else self._now
        self._record_start(task, row)
        with self.database.writing(self._now):
            self.database.end_run(task, result, ended_at, result)
        text = "is gone: exit status unknown" if result == "unknown" else result
        self.notify(f"job {task.id} {text}")

    def _record_start(self, task: StoredTask, row: Row) -> StoredTask:
        """Record that a starting task has started, and the number of its nodes."""
        if task.state == "starting" and row["state"] != JobState.GONE:
            with self.database.writing(self._now):
                self.database.start_run(task.id, self._started_at(row))
            self.notify(f"job {task.id} is running")
            task = replace(task, state="running", reason="")
        if row["state"] in _RUNNING and (nodes := self._node_count(row)) != task.nodes:
            task = self._update(task, nodes=nodes)
        return task

    def _started_at(self, row: Row) -> float:
        return row["started_at"].timestamp() if row["started_at"] else self._now

    async def _apply_changes(self, task: StoredTask, row: Row) -> StoredTask:
        """Apply its owner's changes of a waiting job, and return the changed task.

        A job that may no longer be a task is cancelled; one that has left the pool waits.
        """
        if task.state not in ("waiting", "paused") or row["state"] not in (
            JobState.HELD,
            JobState.PENDING,
        ):
            return task
        is_same = (task.nodes, task.name) == (self._node_count(row), str(row["name"] or ""))
        if not is_same or self._place_refusal(row):
            return await self._recheck(task, row, "was changed")
        if task.id in self._members or task.state != "waiting" or task.retry_at > self._now:
            return task
        # Its reservation may have ended, and start again.
        reservation = self.pool.reservation
        reason = (
            f"not in reservation {reservation}"
            if reservation
            else "no longer in the scheduler's pool"
        )
        task = self._update(task, reason=reason, retry_at=self._now + self.pool.retry_seconds)
        self._warn_once(task.id, f"job {task.id}: {reason}")
        return task

    async def _recheck(self, task: StoredTask, row: Row, cause: str) -> StoredTask:
        """Check a waiting task whose job has changed; cancel the job if it is refused."""
        task = replace(task, nodes=self._node_count(row), name=str(row["name"] or ""))
        refusal = await self._refusal(task, row)
        task = self._update(
            task,
            nodes=task.nodes,
            name=task.name,
            reason=refusal,
            state="refused" if refusal else task.state,
        )
        waits = f"waits for {counted(task.nodes, 'node')}"
        self.notify(f"job {task.id} {cause}: {refusal or waits}")
        if refusal:
            await self._act(Verb.CANCEL, task)
        return task

    async def _watch_running(self) -> None:
        """Suspend running tasks that have saved by themselves; cancel those that log nothing."""
        running = self.database.tasks_in_states("running")
        due = [task for task in running if self._is_due(task, "ready", _READY_SECONDS)]
        for task, is_ready in await self._check_tasks(
            due, lambda task: self._files(task).is_ready()
        ):
            if is_ready:
                await self._suspend(task)
        if not self.pool.no_log_seconds:
            return
        # Tasks that suspend themselves are no longer among them.
        running = self.database.tasks_in_states("running")
        due = [task for task in running if self._is_due(task, "log", _LOGS_SECONDS)]
        runs = self.database.task_runs([task.id for task in due], 1)
        for task, written_at in await self._check_tasks(due, self._written_at):
            if written_at is None:
                continue
            since = max([written_at, *(run.started_at or 0.0 for run in runs.get(task.id, ()))])
            if self._now - since > self.pool.no_log_seconds:
                await self._fail(task, f"no log output for {self.pool.no_log_seconds:g} s")

    async def _check_tasks(
        self, tasks: Sequence[StoredTask], check: Callable[[StoredTask], Awaitable[_Result]]
    ) -> list[tuple[StoredTask, _Result]]:
        """Return each task with the result of a check.

        A few checks run at once, as each of another account's files is a sudo.
        """

        async def run_check(task: StoredTask) -> tuple[StoredTask, _Result]:
            async with self._checks:
                return task, await check(task)

        return await asyncio.gather(*map(run_check, tasks))

    def _is_due(self, task: StoredTask, check: str, seconds: float) -> bool:
        """Whether a check is due again; another account's are made at most every `seconds`."""
        now = self._now
        checked_at = self._memories[task.id].checked_at
        is_own = task.user == self.actions.store.user
        if now < checked_at.get(check, float("-inf")) + (0.0 if is_own else seconds):
            return False
        checked_at[check] = now
        return True

    async def _written_at(self, task: StoredTask) -> float | None:
        """Return when a task last wrote to stdout or stderr, in epoch seconds.

        None if either cannot be read.
        """
        memory = self._memories[task.id]
        if memory.log_paths is None:
            try:
                [row] = (await self.actions.store.fetch_detail(task.id)).job.to_pylist()
            except HpcdashError:
                return None
            paths = dict.fromkeys((row["stdout_path"], row["stderr_path"]))
            memory.log_paths = tuple(PurePosixPath(path) for path in paths if path)
        files = self._files(task)
        written_at: float | None = None
        for path in memory.log_paths:
            modified_at: float | None = None
            if task.folder and str(path.parent) == task.folder:
                _, modified_at = await files.stat(path.name) or (0, None)
            elif path.is_absolute():
                modified_at = await files.modified_at(str(path))
            if modified_at is None:
                return None
            written_at = max(written_at or 0.0, modified_at)
        return written_at

    async def _fail(self, task: StoredTask, reason: str) -> None:
        """Cancel a running task, which is recorded as failed."""
        self._update(
            task,
            state="suspending",
            reason=reason,
            requested_at=self._now if task.requested_at is None else task.requested_at,
        )
        self.notify(f"job {task.id} cancelled: {reason}")
        await self._act(Verb.CANCEL, task)

    async def _suspend(self, task: StoredTask) -> None:
        """Request a task to suspend; requeue it once it has saved, or its grace is over."""
        now = self._now
        if task.reason:
            await self._act(Verb.CANCEL, task)
            return
        files = self._files(task)
        is_ready = await files.is_ready()
        if task.state != "suspending" or (task.requested_at is None and not is_ready):
            # A task that is ready without a request leaves on its own.
            task = self._update(task, state="suspending", requested_at=None if is_ready else now)
            text = "suspends itself" if is_ready else "has been requested to suspend"
            self.notify(f"job {task.id} {text}")
        if not is_ready:
            memory = self._memories[task.id]
            requested_at = task.requested_at or now
            # A command that was written stays, and each write as another account is a sudo; a
            # failed write is retried at each step.
            is_written: bool | None = memory.command_at == requested_at
            if not is_written and (is_written := await files.request_suspend()):
                memory.command_at = requested_at
            if is_written is not None:
                grace = self.pool.grace_seconds
                if now < suspend_deadline(requested_at, None, grace):
                    return
                if now < suspend_deadline(requested_at, await files.seen_at(), grace):
                    return
        outcome = await self._act(Verb.REQUEUE, task)
        if outcome.done is False and (refusal := await self._native_refusal(task.id)):
            await self._fail(task, refusal)

    async def _withdraw(self, task: StoredTask, reason: str) -> None:
        """Give up a start that the scheduler has not made, so that other tasks get their turn."""
        if (await self._act(Verb.HOLD, task)).done is False:
            # It may have started meanwhile, which the next step sees.
            return
        reason = f"did not start: {reason}"
        with self.database.writing(self._now):
            self.database.withdraw_run(task.id, reason, self._now + self.pool.retry_seconds)
        self.notify(f"job {task.id} {reason}")

    # -- decision

    async def _decide(self, rows: Mapping[str, Row]) -> None:
        now = self._now
        for task in self.database.tasks("state = 'running' AND level = ?", Priority.ABOVE_NORMAL):
            due = task.running_task.demotion_at(self.rules.demote_after_seconds)
            if due is not None and due <= now:
                normal = task.running_task.moved(Priority.NORMAL, now, since=now)
                self._update(task, **level_changes(normal), demoted=1)
                self.notify(f"job {task.id} now has priority NORMAL")
        tasks = {task.id: task for task in self.database.unfinished_tasks()}
        self.waits_for = {}
        for task in tasks.values():
            if task.state == "waiting" and task.id in rows:
                text = rows[task.id]["dependency"]
                job_ids = parse_dependency(text).job_ids
                if job_ids or text:
                    self.waits_for[task.id] = f"job {', '.join(job_ids)}" if job_ids else str(text)
        self.decision = await self._decision(tasks, rows)
        if (self.decision.start or self.decision.suspend) and self._usable_at < now:
            # A node may have been drained since: a task that is to start there would only hold up
            # the others.
            self._usable_at = float("-inf")
            self.decision = await self._decision(tasks, rows)
        moves = [
            running.moved(level, now, since=running.since)
            for job_id, level in self.decision.levels.items()
            if (running := tasks[job_id].running_task).level != level
        ]
        if moves:
            with self.database.writing(now):
                for running in moves:
                    self.database.update(running.task.id, level_changes(running))
        for pool_task in self.decision.suspend:
            # A starting task is suspended once it runs.
            if (task := tasks[pool_task.id]).state == "running":
                await self._suspend(task)
        for pool_task, level in self.decision.start:
            with self.database.writing(now):
                self.database.begin_run(pool_task.id, level, now)
            self.notify(f"job {pool_task.id} starts at {level.name}")
            await self._release(tasks[pool_task.id])

    async def _decision(self, tasks: Mapping[str, StoredTask], rows: Mapping[str, Row]) -> Decision:
        self.capacity = await self._usable_capacity(tasks, rows)
        used = sum(task.nodes for task in tasks.values() if task.state in WITH_NODES)
        return decide(
            [task.running_task for task in tasks.values() if task.state in ("starting", "running")],
            queue_up(
                task.pool_task
                for task in tasks.values()
                if task.state == "waiting"
                and task.retry_at <= self._now
                and task.id in rows
                and task.id not in self.waits_for
            ),
            self.rules.quotas,
            capacity=self.capacity,
            free=self.capacity - used,
            leaving=[task.running_task for task in tasks.values() if task.state == "suspending"],
        )

    async def _usable_capacity(
        self, tasks: Mapping[str, StoredTask], rows: Mapping[str, Row]
    ) -> int:
        """Return the number of nodes that tasks have or may have, and record foreign jobs."""
        if self.actions.store.backend.is_embedded:
            return self.pool.nodes
        own_nodes: set[str] = set()
        foreign_nodes: set[str] = set()
        pool_nodes = frozenset(_node_names(self.pool.node_list))
        self.foreign_jobs = []
        for job_id, row in rows.items():
            if row["state"] not in _WITH_NODES:
                continue
            names = frozenset(_node_names(row["node_list"]))
            if job_id in tasks and tasks[job_id].state in WITH_NODES:
                own_nodes |= names
            elif names := names & pool_nodes if pool_nodes else names:
                foreign_nodes |= names
                self.foreign_jobs.append(ForeignJob(job_id, str(row["user"]), len(names)))
        usable = await self._usable_nodes()
        if usable is None:
            return max(0, self.pool.nodes - len(foreign_nodes))
        return min(self.pool.nodes, len((usable | own_nodes) - (foreign_nodes - own_nodes)))

    async def _usable_nodes(self) -> frozenset[str] | None:
        """Return the pool's nodes that take jobs; None if the pool's nodes are unknown."""
        pool = self.pool
        store = self.actions.store
        if not (pool.queue or pool.reservation or pool.node_list):
            return None
        if self._now < self._usable_at + _NODES_SECONDS and self._usable is not None:
            return self._usable
        listed = frozenset(_node_names(pool.node_list)) if pool.node_list else None
        reserved: frozenset[str] | None = None
        if pool.reservation:
            parsed = await store.run_query(store.backend.policy.reservations(store.user))
            reserved = frozenset(
                name
                for row in parsed.table.to_pylist()
                if row["name"] == pool.reservation
                for name in _node_names(row["node_list"])
            )
        parsed = await store.run_query(store.backend.queue.nodes())
        self._usable_at = self._now
        self._usable = frozenset(
            str(row["name"])
            for row in parsed.table.to_pylist()
            if row["state"] in _OPEN_NODES
            and (not pool.queue or pool.queue in (row["queues"] or ()))
            and (reserved is None or row["name"] in reserved)
            and (listed is None or row["name"] in listed)
        )
        return self._usable

    # -- actions on jobs

    async def _release(self, task: StoredTask) -> None:
        if not await self._files(task).clear():
            text = f"cannot remove the suspend files of the last run in {task.folder}"
            self._warn_once(task.id, f"job {task.id} cannot start: {text}")
        elif not self.pool.node_list or await self._give_nodes(task):
            await self._act(Verb.RELEASE, task)
        if self._is_start_overdue(task):
            await self._withdraw(task, self._memories[task.id].warning or "still held")

    def _is_start_overdue(self, task: StoredTask) -> bool:
        """Whether the scheduler had its time to start a task while the pool was coordinated."""
        return self._now > max(task.since or self._now, self._began_at) + self.pool.start_seconds

    async def _give_nodes(self, task: StoredTask) -> bool:
        """Assign free nodes of the pool to a task; return whether that succeeded."""
        starting = {other.id for other in self.database.tasks_in_states("starting")}
        self._given = {job_id: names for job_id, names in self._given.items() if job_id in starting}
        others = [names for job_id, names in self._given.items() if job_id != task.id]
        usable = await self._usable_nodes() or frozenset()
        free = sorted(usable.difference(self._busy, *others))[: task.nodes]
        if len(free) < task.nodes:
            are_free = "is free" if len(free) == 1 else "are free"
            text = f"only {counted(len(free), 'node')} of the pool {are_free}"
            self._warn_once(task.id, f"job {task.id} cannot start: {text}")
            return False
        self._given[task.id] = tuple(free)
        return (await self._act(Verb.ALTER, task, {NODES: ",".join(free)})).done is True

    async def _hold_firmly(self, task: StoredTask) -> None:
        """Hold a held job of another user, who could release one that they hold themselves."""
        if task.user != self.actions.store.user and not self.pool.as_owners:
            await self._act(Verb.HOLD, task)

    async def _act(
        self, verb: Verb, task: StoredTask, changes: Mapping[str, str] = MappingProxyType({})
    ) -> Outcome:
        # Another coordinator may have taken over while this one waited for an answer.
        self.database.keep_lease(self._now)
        request = ActionRequest(
            verb,
            (task.id,),
            hold=verb is Verb.REQUEUE,
            at_once=verb is Verb.RELEASE,
            changes=dict(changes),
        )
        is_own = task.user == self.actions.store.user
        plan = self.actions.plan(
            request, run_as=task.user if self.pool.as_owners and not is_own else ""
        )
        outcome = (await self.actions.run(plan)).outcomes[0]
        if outcome.done:
            self._memories[task.id].warning = ""
        else:
            self._warn_once(task.id, f"job {task.id}: {verb}: {outcome.text}")
        return outcome

    def _warn_once(self, job_id: str, text: str) -> None:
        memory = self._memories[job_id]
        if memory.warning != text:
            memory.warning = text
            self.notify(text)


def _node_names(node_list: str | None) -> Iterable[str]:
    try:
        return expand(node_list) if node_list else ()
    except ValueError:
        return ()
