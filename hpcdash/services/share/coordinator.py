"""Coordinates one shared pool: admits its tasks, starts and suspends them as the rules say, and
notes their runs.

Each step is noted in share.db before it is done, and can be done again: a coordinator may be killed
at any moment.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from hpcdash.backends.actions import NODES, ActionRequest, Outcome, Verb
from hpcdash.backends.queries import JobScope
from hpcdash.config.settings import LaunchSettings, PoolSettings
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.nodelist import expand
from hpcdash.domain.share import Priority, TaskMark, parse_mark, write_labels
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
    in_states,
    unfinished_tasks,
)
from hpcdash.services.share.files import TaskFiles
from hpcdash.services.share.scheduling import (
    Decision,
    PoolRules,
    PoolTask,
    Quotas,
    decide,
    queue_up,
)
from hpcdash.services.share.state import Outsider, Pool, build_state
from hpcdash.services.share.wishes import apply_wishes

Row = Mapping[str, Any]
_Seen = TypeVar("_Seen")
_RESULTS = {JobState.COMPLETED: "succeeded", JobState.CANCELLED: "stopped"}
_RUNS = (JobState.RUNNING, JobState.SUSPENDED)
_TAKES_JOBS = (
    NodeState.IDLE,
    NodeState.MIXED,
    NodeState.ALLOCATED,
    NodeState.RESERVED,
    NodeState.PLANNED,
)
_NODES_EVERY_SECONDS = 15.0
# A training that is ready without a request waits this long; each check of another account's file
# is a sudo.
_READY_EVERY_SECONDS = 10.0
_LOGS_EVERY_SECONDS = 60.0
_MAX_LOOKS = 8
# Per check: each takes two commands, which delay the running tasks' checks.
_MAX_ADMITTED = 20
_HISTORY_SECONDS = 30 * 86_400
# An accounting that is busy, or was down, reports a job's end later than the queue forgets it.
_HISTORY_WAIT_SECONDS = 300.0


def pool_rules(pool: PoolSettings) -> PoolRules:
    """Build the rules of a pool from its configuration."""
    quotas = {(user, one.priority): one.nodes for one in pool.quotas for user in one.users}
    return PoolRules(
        Quotas(quotas), frozenset(pool.choosers), pool.least_gpus, pool.demote_after_seconds
    )


class Coordinator:
    """Has the lease of a pool's database. `tell` gets a line for each thing done.

    `launch` says where launches of other accounts are kept, and by which program of root's.
    """

    def __init__(
        self,
        pool: PoolSettings,
        database: ShareDatabase,
        actions: Actions,
        notify: Callable[[str], None] = lambda text: None,
        *,
        launch: LaunchSettings | None = None,
    ) -> None:
        self.pool = pool
        self.rules = pool_rules(pool)
        self.database = database
        self.actions = actions
        self.tell = notify
        # What was decided last, and for how many nodes.
        self.decision = Decision()
        self.capacity = pool.nodes
        # Dependencies of waiting tasks, as text.
        self.waits_for: dict[str, str] = {}
        self.outsiders: list[Outsider] = []
        # The last message on an owner's wish.
        self._applied_marks: dict[str, tuple[str, TaskMark]] = {}
        self._launch = launch or LaunchSettings()
        self._began_at = self._now
        self._usable: frozenset[str] | None = None
        self._usable_at = float("-inf")
        self._reported: dict[str, str] = {}
        self._task_files: dict[str, TaskFiles] = {}
        self._checks = asyncio.Semaphore(_MAX_LOOKS)
        # When each task's files were last checked.
        self._looked_at: dict[tuple[str, str], float] = {}
        self._logs: dict[str, tuple[PurePosixPath, ...]] = {}
        # When the suspend command that each task has was written.
        self._requested_at: dict[str, float] = {}
        # The jobs that the scheduler counts to the pool, and the nodes of those that run.
        self._members: frozenset[str] = frozenset()
        self._busy: frozenset[str] = frozenset()
        # The nodes of a pool of named ones that tasks are to start on.
        self._given: dict[str, tuple[str, ...]] = {}

    async def step(self, *, is_ending: bool = False) -> bool:
        """Look at the queue once and do what follows; whether a task is about to start, to give up
        its nodes, or to be admitted. With `is_ending` no task is started or suspended that was not
        before.

        Raises HpcdashError where the queue cannot be asked, and PoolHeld where another coordinator
        has taken over.
        """
        self.database.keep_lease(self._now)
        rows = await self._fetch_rows()
        known = {one.id: one for one in self.database.find_tasks(rows)}
        for task in known.values():
            if task.state in UNFINISHED:
                await self._follow(task, rows[task.id])
            else:
                await self._begin_again(task, rows[task.id])
        new = [
            (row, mark)
            for job_id, row in rows.items()
            if job_id not in known and (mark := self._task_mark(row))
        ]
        for row, mark in _in_turn(new)[:_MAX_ADMITTED]:
            await self._admit(row, mark)
        if not is_ending:
            await self._watch_running()
            await self._decide(rows)
        self._forget_ended()
        return len(new) > _MAX_ADMITTED or bool(
            self.database.tasks("state IN ('starting', 'suspending')")
        )

    def state(self) -> Pool:
        """Build the state of the pool to be published."""
        return build_state(
            self.pool,
            self.rules,
            self.database,
            self.decision,
            self._now,
            self.capacity,
            self.waits_for,
            self.outsiders,
            {
                one.id: why
                for one in unfinished_tasks(self.database)
                if (why := self._files(one).unreached)
            },
        )

    def _forget_ended(self) -> None:
        living = {one.id for one in unfinished_tasks(self.database)}
        memories: tuple[dict[str, Any], ...] = (
            self._applied_marks,
            self._reported,
            self._logs,
            self._requested_at,
            self._task_files,
        )
        for memory in memories:
            for job_id in memory.keys() - living:
                del memory[job_id]
        self._looked_at = {key: at for key, at in self._looked_at.items() if key[0] in living}

    @property
    def _now(self) -> float:
        return self.actions.store.clock.now()

    async def _fetch_rows(self) -> dict[str, Row]:
        """The pool's jobs by id: those in the queue, and of its tasks those that have left it."""
        store = self.actions.store
        pool = self.pool
        scope = JobScope(queue=pool.queue, qos=pool.qos, reservation=pool.reservation)
        parsed = await store.run_query(store.backend.queue.jobs(scope))
        rows: dict[str, Row] = {str(row["id"]): row for row in parsed.table.to_pylist()}
        self._members = frozenset(rows)
        self._busy = frozenset(
            name
            for row in rows.values()
            if row["state"] in (*_RUNS, JobState.COMPLETING)
            for name in _names(row["node_list"])
        )
        unfinished = unfinished_tasks(self.database)
        gone = [one.id for one in unfinished if one.id not in rows]
        if gone:
            rows |= {str(row["id"]): row for row in await self.actions.fetch_rows(gone)}
        self._note_gone(
            {one.id: None for one in unfinished if one.id in rows and one.gone_since is not None}
        )
        forgotten = [one for one in unfinished if one.id not in rows]
        return rows | await self._past_rows(forgotten) if forgotten else rows

    def _note_gone(self, since: Mapping[str, float | None]) -> None:
        if since:
            with self.database.writing(self._now):
                for job_id, at in since.items():
                    self.database.alter(job_id, {"gone_since": at})

    async def _past_rows(self, tasks: Sequence[StoredTask]) -> dict[str, Row]:
        """Rows of jobs that have left the queue for good: from the history, else that say no more
        than that.

        A history that is behind has none yet.
        """
        store = self.actions.store
        waits = _HISTORY_WAIT_SECONDS
        try:
            parsed = await store.run_query(
                store.backend.history.jobs(None, _HISTORY_SECONDS, [one.id for one in tasks])
            )
            past = {
                str(row["id"]): row for row in parsed.table.to_pylist() if row["state"] in ENDED
            }
        except NoSuchJob:
            past = {}
        except AccountingUnavailable:
            past = {}
            waits = 0.0
        unknown = [one for one in tasks if one.id not in past]
        self._note_gone({one.id: self._now for one in unknown if one.gone_since is None})
        lost = {"state": JobState.GONE, "ends_at": None, "started_at": None}
        return past | {
            one.id: lost for one in unknown if self._now >= (one.gone_since or self._now) + waits
        }

    def _files(self, task: StoredTask) -> TaskFiles:
        if (known := self._task_files.get(task.id)) is not None:
            return known
        store = self.actions.store
        self._task_files[task.id] = made = TaskFiles(
            store.transport,
            task.folder,
            account="" if task.user == store.user else task.user,
            program=self._launch.launch_program,
            storage_root=self._launch.site.storage_root.rstrip("/"),
        )
        return made

    # -- new tasks

    def _task_mark(self, row: Row) -> TaskMark | None:
        """Return the mark for this pool in a job's comment; None for none or an ended job."""
        mark = parse_mark(row["comment"])
        is_there = row["state"] in (JobState.HELD, JobState.PENDING, *_RUNS)
        return mark if mark is not None and is_there and self._is_own_mark(mark) else None

    async def _admit(self, row: Row, mark: TaskMark) -> None:
        user = str(row["user"])
        job_id = str(row["id"])
        priority = self.rules.allowed_priority(user, mark.priority)
        place = (
            row["submitted_at"].timestamp() if row["submitted_at"] else self._now,
            int(row["_number"] or 0),
        )
        task = PoolTask(job_id, user, self._nodes(row), priority, place)
        name = str(row["name"] or "")
        refusal = await self._refusal(task, row, name)
        state = "paused" if mark.is_paused else "waiting"
        if refusal:
            state = "refused"
        with self.database.writing(self._now):
            self.database.add(
                StoredTask(
                    job_id,
                    place[1],
                    user,
                    name,
                    task.nodes,
                    priority,
                    place[0],
                    mark.folder,
                    state,
                    refusal,
                    None,
                    None,
                    0.0,
                    0,
                    0,
                    None,
                    labels=write_labels(mark.labels),
                )
            )
        waits = f"waits at {priority.name} for {counted(task.nodes, 'node')}"
        self.tell(f"job {job_id} of {user}: {refusal or waits}")
        if not refusal and (why := self._files(self.database.tasks("id = ?", job_id)[0]).unreached):
            self.tell(f"job {job_id} cannot be warned before it is suspended: {why}")
        if refusal:
            await self._act(Verb.CANCEL, job_id, user)
        elif row["state"] not in _RUNS:
            await self._hold_firmly(job_id, user)

    def _is_own_mark(self, mark: TaskMark) -> bool:
        """Whether a marked job is of this pool: one that is a list of nodes alone sees every job of
        the cluster.
        """
        pool = self.pool
        is_apart = (
            bool(pool.queue or pool.qos or pool.reservation)
            or self.actions.store.backend.is_embedded
        )
        return mark.pool == pool.name or (is_apart and not mark.pool)

    def _nodes(self, row: Row) -> int:
        """Return the number of nodes that a job has or requests."""
        if not self.actions.store.backend.is_embedded:
            return int(row["nodes"] or 1)
        nodes = -(-int(row["cpus"] or 1) // self.pool.cpus_per_node)
        gpus = int(row["gpus"] or 0)
        return (
            max(nodes, -(-gpus // self.pool.gpus_per_node))
            if gpus and self.pool.gpus_per_node
            else nodes
        )

    async def _refusal(self, task: PoolTask, row: Row, name: str) -> str:
        """Return the reason that a job is not a task of this pool; '' if it is one."""
        if row["_tasks"] != 1 or row["array_id"] is not None:
            return "an array cannot be a task"
        for what, requested, has in (
            ("queue", self.pool.queue, row["queue"]),
            ("QoS", self.pool.qos, row["qos"]),
        ):
            if requested and has != requested:
                return f"its {what} is {has}; the pool accepts only {requested}"
        if refusal := self.rules.refusal(
            task, capacity=self.pool.nodes, gpus=int(row["gpus"] or 0)
        ):
            return refusal
        twins = self.database.tasks(
            f"user = ? AND name = ? AND id != ? AND {in_states(UNFINISHED)}",
            task.user,
            name,
            task.id,
            *UNFINISHED,
        )
        if twins:
            return f"{task.user} has a task of this name: job {twins[0].id}"
        return await self._native_refusal(task.id)

    async def _native_refusal(self, job_id: str) -> str:
        detail = self.actions.store.backend.detail
        if not detail.holds_requeued:
            return ""
        try:
            return detail.task_refusal(await self.actions.store.run_query(detail.native(job_id)))
        except NoSuchJob:
            return ""
        except UnreadableOutput as error:
            return f"the scheduler's record of it cannot be read: {error.message}"

    async def _begin_again(self, task: StoredTask, row: Row) -> None:
        """Somebody has put a task back into the queue that had ended; or another job has its number
        now.
        """
        state = row["state"]
        if state not in ENDED and row["user"] != task.user:
            # It is admitted as any other at the next check.
            with self.database.writing(self._now):
                self.database.remove(task.id)
            return
        if (
            state in ENDED
            or state == JobState.COMPLETING
            or (task.state == "refused" and state == JobState.HELD)
        ):
            return
        if task.state in ("refused", "stopped"):
            self.tell(f"job {task.id} was {task.state}, and does not start again")
            await self._act(Verb.CANCEL, task.id, task.user)
            return
        again = await self._check(replace(task, state="waiting"), row, "was requeued")
        if again.state == "waiting":
            await self._follow(again, row)

    # -- running and ended tasks

    async def _follow(self, task: StoredTask, row: Row) -> None:
        """Bring what is noted of a task up to what its job is now, and do again what was not
        done.
        """
        state = row["state"]
        now = self._now
        if state in ENDED:
            self._end(task, row)
            return
        mark = parse_mark(row["comment"])
        if mark is not None:
            task = self._heed(task, mark)
        is_paused = mark is not None and mark.is_paused
        if state in _RUNS and task.state in ("starting", "suspending", "running"):
            self._note_start(task, row)
            task = self.database.tasks("id = ?", task.id)[0]
        else:
            task = await self._with_changes(task, row)
        if state == JobState.HELD:
            if task.state == "starting":
                await self._release(task)
            elif task.state in ("running", "suspending"):
                await self._hold_firmly(task.id, task.user)
                rests = "paused" if is_paused else "waiting"
                how = "paused" if is_paused else await self._how_suspended(task)
                with self.database.writing(now):
                    self.database.end_run(task, rests, now, how)
                after = (
                    ""
                    if task.asked_at is None
                    else f", {now - task.asked_at:.1f} s after the request"
                )
                self.tell(f"job {task.id} is suspended{after}")
        elif state == JobState.PENDING:
            if task.state != "starting":
                # Whoever released or requeued it: its turn has not come.
                await self._act(Verb.HOLD, task.id, task.user)
            elif self._is_start_overdue(task):
                await self._withdraw(task, str(row["reason"] or "no reason given"))
        elif state in _RUNS:
            if task.state in ("waiting", "paused"):
                # Somebody else released it.
                await self._suspend(self._note_uncalled(task, row))
            elif task.state == "suspending" or is_paused:
                await self._suspend(task)

    def _heed(self, task: StoredTask, mark: TaskMark) -> StoredTask:
        """Take up what a task's owner wants of it; the task as it is noted then."""
        changes, text = apply_wishes(
            task, mark, self.rules, capacity=self.pool.nodes, now=self._now
        )
        if changes:
            with self.database.writing(self._now):
                self.database.alter(task.id, changes)
        if text and self._applied_marks.get(task.id) != (text, mark):
            self._applied_marks[task.id] = (text, mark)
            self.tell(f"job {task.id}: {text}")
        return replace(task, **changes)

    def _note_uncalled(self, task: StoredTask, row: Row) -> StoredTask:
        """Note that a task runs though it was not its turn; it may save as any other."""
        started = row["started_at"].timestamp() if row["started_at"] else self._now
        level = task.pool_task.level
        with self.database.writing(self._now):
            self.database.begin(
                task.id, Priority.NORMAL if level == Priority.AUTO else level, started
            )
        self._note_start(self.database.tasks("id = ?", task.id)[0], row)
        return self.database.tasks("id = ?", task.id)[0]

    async def _how_suspended(self, task: StoredTask) -> str:
        """Return how a task left its nodes.

        It had saved, was too slow to save, did not answer, or was not requested to.
        """
        files = self._files(task)
        is_ready = await files.is_ready()
        if task.asked_at is None:
            return "yielded" if is_ready else "requeued"
        if is_ready:
            return "suspended"
        return "ignored" if await files.seen_at() is None else "slow"

    def _end(self, task: StoredTask, row: Row) -> None:
        state = row["state"]
        result = _RESULTS.get(state, "unknown" if state == JobState.GONE else "failed")
        if task.words and task.state == "suspending":
            # Ended by force, or for its silence: what it was ended for says how.
            result = "failed"
        ended = row["ends_at"].timestamp() if row["ends_at"] else self._now
        self._note_start(task, row)
        with self.database.writing(self._now):
            self.database.end_run(task, result, ended, result)
        self.tell(
            f"job {task.id} "
            f"{result if result != 'unknown' else 'is gone: its exit status is unknown'}"
        )

    def _note_start(self, task: StoredTask, row: Row) -> None:
        """Note when a task that was to start did, and how many nodes it has."""
        started = row["started_at"].timestamp() if row["started_at"] else self._now
        if task.state == "starting" and row["state"] != JobState.GONE:
            with self.database.writing(self._now):
                self.database.change(
                    "UPDATE tasks SET state = 'running', words = '' WHERE id = ?", task.id
                )
                self.database.change(
                    "UPDATE runs SET started_at = ? WHERE task = ? AND ended_at IS NULL",
                    started,
                    task.id,
                )
            self.tell(f"job {task.id} runs")
        if row["state"] in _RUNS and self._nodes(row) != task.nodes:
            with self.database.writing(self._now):
                self.database.change(
                    "UPDATE tasks SET nodes = ? WHERE id = ?", self._nodes(row), task.id
                )

    async def _with_changes(self, task: StoredTask, row: Row) -> StoredTask:
        """A task that waits as its owner has changed its job since; what may not be is
        cancelled.
        """
        if task.state not in ("waiting", "paused") or row["state"] not in (
            JobState.HELD,
            JobState.PENDING,
        ):
            return task
        changed = replace(task, nodes=self._nodes(row), name=str(row["name"] or ""))
        is_moved = any(
            requested and row[column] != requested
            for column, requested in (("queue", self.pool.queue), ("qos", self.pool.qos))
        )
        if changed == task and not is_moved:
            return task if task.id in self._members else self._set_aside(task)
        return await self._check(task, row, "was changed")

    async def _check(self, task: StoredTask, row: Row, message: str) -> StoredTask:
        """Note a waiting task as its job is now; what may not run is refused, and its job
        cancelled.
        """
        noted = replace(task, nodes=self._nodes(row), name=str(row["name"] or ""))
        refusal = await self._refusal(noted.pool_task, row, noted.name)
        noted = replace(noted, words=refusal, state="refused" if refusal else noted.state)
        with self.database.writing(self._now):
            self.database.alter(
                task.id,
                {name: getattr(noted, name) for name in ("nodes", "name", "words", "state")},
            )
        waits = f"waits for {counted(noted.nodes, 'node')}"
        self.tell(f"job {task.id} {message}: {refusal or waits}")
        if refusal:
            await self._act(Verb.CANCEL, task.id, task.user)
        return noted

    def _set_aside(self, task: StoredTask) -> StoredTask:
        """Have a task wait that is in the pool no more: its reservation may have ended, and come
        again.
        """
        if task.state != "waiting" or task.retry_at > self._now:
            return task
        reservation = self.pool.reservation
        text = (
            f"it is not in reservation {reservation}"
            if reservation
            else "it is no longer in the scheduler's pool"
        )
        changes: dict[str, Any] = {"words": text, "retry_at": self._now + self.pool.retry_seconds}
        with self.database.writing(self._now):
            self.database.alter(task.id, changes)
        self._warn_once(task.id, f"job {task.id}: {text}")
        return replace(task, **changes)

    async def _watch_running(self) -> None:
        """Look at the files of tasks that run: which are ready to be ended by themselves, and which
        write no log.
        """
        running = self.database.tasks("state = 'running'")
        ready = [task for task in running if self._is_due(task, "ready", _READY_EVERY_SECONDS)]
        for task, is_ready in await self._inspect_task(
            ready, lambda task: self._files(task).is_ready()
        ):
            if is_ready:
                await self._suspend(task)
        if not self.pool.no_log_seconds:
            return
        # Tasks that suspend themselves are no longer among them.
        running = self.database.tasks("state = 'running'")
        logging = [task for task in running if self._is_due(task, "log", _LOGS_EVERY_SECONDS)]
        runs = self.database.task_runs([task.id for task in logging], 1)
        for task, written in await self._inspect_task(logging, self._written_at):
            since = max(
                [written or 0.0, *(began or 0.0 for _, _, began, _, _ in runs.get(task.id, ()))]
            )
            if written is not None and self._now - since > self.pool.no_log_seconds:
                text = f"no log output for {self.pool.no_log_seconds:g} s"
                self._note_failing(task, text)
                await self._act(Verb.CANCEL, task.id, task.user)

    async def _inspect_task(
        self, tasks: Sequence[StoredTask], check: Callable[[StoredTask], Awaitable[_Seen]]
    ) -> list[tuple[StoredTask, _Seen]]:
        """Each task with what is seen of it; a few at once, as each look at another account's is a
        sudo.
        """

        async def looked(task: StoredTask) -> tuple[StoredTask, _Seen]:
            async with self._checks:
                return task, await check(task)

        return await asyncio.gather(*map(looked, tasks))

    def _is_due(self, task: StoredTask, what: str, seconds: float) -> bool:
        is_own = task.user == self.actions.store.user
        if self._now < self._looked_at.get((task.id, what), float("-inf")) + (
            0.0 if is_own else seconds
        ):
            return False
        self._looked_at[task.id, what] = self._now
        return True

    async def _written_at(self, task: StoredTask) -> float | None:
        """Return when a task last wrote to its output or its errors, in epoch seconds.

        None if either cannot be read.
        """
        if task.id not in self._logs:
            try:
                [row] = (await self.actions.store.fetch_detail(task.id)).job.to_pylist()
            except HpcdashError:
                return None
            paths = [row[column] for column in ("stdout_path", "stderr_path")]
            self._logs[task.id] = tuple(
                PurePosixPath(path) for path in dict.fromkeys(paths) if path
            )
        times = [await self._modified_at(task, path) for path in self._logs[task.id]]
        seen = [time for time in times if time is not None]
        return max(seen) if seen and len(seen) == len(times) else None

    async def _modified_at(self, task: StoredTask, path: PurePosixPath) -> float | None:
        if task.folder and str(path.parent) == task.folder:
            seen = await self._files(task).stat(path.name)
            return None if seen is None else float(seen[1])
        return await self._files(task).modified_at(str(path)) if path.is_absolute() else None

    def _note_failing(self, task: StoredTask, text: str) -> None:
        with self.database.writing(self._now):
            self.database.change(
                "UPDATE tasks SET state = 'suspending', words = ?, asked_at = coalesce(asked_at, "
                "?) WHERE id = ?",
                text,
                self._now,
                task.id,
            )
        self.tell(f"job {task.id} cancelled: {text}")

    async def _suspend(self, task: StoredTask) -> None:
        """Ask a task to suspend; end it once it has saved, or its time is over."""
        now = self._now
        if task.words:
            await self._act(Verb.CANCEL, task.id, task.user)
            return
        files = self._files(task)
        is_ready = await files.is_ready()
        if task.state != "suspending" or (task.asked_at is None and not is_ready):
            # A task that is ready without a request leaves on its own.
            requested = None if is_ready else now
            with self.database.writing(now):
                self.database.change(
                    "UPDATE tasks SET state = 'suspending', asked_at = ? WHERE id = ?",
                    requested,
                    task.id,
                )
            self.tell(f"job {task.id} {'suspends itself' if is_ready else 'is asked to suspend'}")
        if not is_ready:
            asked_at = task.asked_at or now
            # Once it is written it stays, and each write as another account is a sudo.
            reported: bool | None = self._requested_at.get(task.id) == asked_at
            if not reported and (reported := await files.tell()):
                self._requested_at[task.id] = asked_at
            # A failed write is retried at each check.
            grace = self.pool.grace_seconds
            if reported is not None and now < suspend_deadline(asked_at, None, grace):
                return
            if reported is not None and now < suspend_deadline(
                asked_at, await files.seen_at(), grace
            ):
                return
        await self._requeue(task)

    async def _withdraw(self, task: StoredTask, reason: str) -> None:
        """Take back a start that did not come about, so that what is behind it has its turn."""
        if (await self._act(Verb.HOLD, task.id, task.user)).done is False:
            # It may have started meanwhile: the next check shows.
            return
        with self.database.writing(self._now):
            self.database.withdraw(
                task, f"did not start: {reason}", self._now + self.pool.retry_seconds
            )
        self.tell(f"job {task.id} did not start: {reason}")

    # -- decision

    async def _decide(self, rows: Mapping[str, Row]) -> None:
        now = self._now
        for task in self.database.tasks("state = 'running' AND level = ?", Priority.ABOVE_NORMAL):
            due = task.running_task.demotion_at(self.rules.demote_after_seconds)
            if due is not None and due <= now:
                with self.database.writing(now):
                    self.database.move(task.running_task.moved(Priority.NORMAL, now, since=now))
                    self.database.alter(task.id, {"demoted": 1})
                self.tell(f"job {task.id} is NORMAL from now on")
        tasks = {one.id: one for one in unfinished_tasks(self.database)}
        waits = [one.id for one in tasks.values() if one.state == "waiting" and one.id in rows]
        self.waits_for = {
            job_id: text for job_id in waits if (text := _format_dependency(rows[job_id]))
        }
        decision = self._decision(tasks, rows, await self._capacity(tasks, rows))
        if (decision.start or decision.suspend) and self._usable_at < now:
            # A node may have been drained since: a task that is to start there would only hold up
            # the others.
            self._usable_at = float("-inf")
            decision = self._decision(tasks, rows, await self._capacity(tasks, rows))
        self.decision = decision
        moved = [(tasks[name].running_task, level) for name, level in decision.levels.items()]
        if moved := [(one, level) for one, level in moved if one.level != level]:
            with self.database.writing(now):
                for one, level in moved:
                    self.database.move(one.moved(level, now, since=one.since))
        for task in (tasks[one.id] for one in decision.suspend):
            # One that only starts is asked once it runs.
            if task.state == "running":
                await self._suspend(task)
        for task, level in ((tasks[one.id], level) for one, level in decision.start):
            with self.database.writing(now):
                self.database.begin(task.id, level, now)
            self.tell(f"job {task.id} starts at {level.name}")
            await self._release(task)

    def _decision(
        self, tasks: Mapping[str, StoredTask], rows: Mapping[str, Row], capacity: int
    ) -> Decision:
        self.capacity = capacity
        return decide(
            [one.running_task for one in tasks.values() if one.state in ("starting", "running")],
            queue_up(
                one.pool_task
                for one in tasks.values()
                if one.state == "waiting"
                and one.retry_at <= self._now
                and one.id in rows
                and one.id not in self.waits_for
            ),
            self.rules.quotas,
            capacity=capacity,
            free=capacity - sum(one.nodes for one in tasks.values() if one.state in WITH_NODES),
            leaving=[one.running_task for one in tasks.values() if one.state == "suspending"],
        )

    async def _capacity(self, tasks: Mapping[str, StoredTask], rows: Mapping[str, Row]) -> int:
        """Count the nodes that the pool's tasks may have now.

        They are usable or belong to the tasks, and no other job has them.
        """
        if self.actions.store.backend.is_embedded:
            return self.pool.nodes
        ours: set[str] = set()
        others: set[str] = set()
        named = frozenset(_names(self.pool.node_list))
        self.outsiders = []
        for job_id, row in rows.items():
            if row["state"] not in (*_RUNS, JobState.COMPLETING):
                continue
            names = frozenset(_names(row["node_list"]))
            if job_id in tasks and tasks[job_id].state in WITH_NODES:
                ours |= names
            elif names := names & named if named else names:
                others |= names
                self.outsiders.append(Outsider(job_id, str(row["user"]), len(names)))
        usable = await self._usable_nodes()
        if usable is None:
            return max(0, self.pool.nodes - len(others))
        return min(self.pool.nodes, len((usable | ours) - (others - ours)))

    async def _usable_nodes(self) -> frozenset[str] | None:
        """The pool's nodes that take jobs; None where the scheduler does not tell which are the
        pool's.
        """
        pool = self.pool
        store = self.actions.store
        if not (pool.queue or pool.reservation or pool.node_list):
            return None
        if self._now < self._usable_at + _NODES_EVERY_SECONDS and self._usable is not None:
            return self._usable
        named = frozenset(_names(pool.node_list)) if pool.node_list else None
        reserved: frozenset[str] | None = None
        if pool.reservation:
            parsed = await store.run_query(store.backend.policy.reservations(store.user))
            reserved = frozenset(
                name
                for row in parsed.table.to_pylist()
                if row["name"] == pool.reservation
                for name in _names(row["node_list"])
            )
        parsed = await store.run_query(store.backend.queue.nodes())
        self._usable_at = self._now
        self._usable = frozenset(
            str(row["name"])
            for row in parsed.table.to_pylist()
            if row["state"] in _TAKES_JOBS
            and (not pool.queue or pool.queue in (row["queues"] or ()))
            and (reserved is None or row["name"] in reserved)
            and (named is None or row["name"] in named)
        )
        return self._usable

    # -- actions on jobs

    async def _release(self, task: StoredTask) -> None:
        if not await self._files(task).clear():
            text = f"the suspend files of its last run in {task.folder} cannot be removed"
            self._warn_once(task.id, f"job {task.id} cannot start: {text}")
        elif not self.pool.node_list or await self._give_nodes(task):
            await self._act(Verb.RELEASE, task.id, task.user)
        if self._is_start_overdue(task):
            await self._withdraw(task, self._reported.get(task.id, "it stays held"))

    def _is_start_overdue(self, task: StoredTask) -> bool:
        """Whether the scheduler had its time to start a task, while somebody coordinated the
        pool.
        """
        return self._now > max(task.since or self._now, self._began_at) + self.pool.start_seconds

    async def _give_nodes(self, task: StoredTask) -> bool:
        """Have a task start on nodes of the pool that are free; whether it will."""
        starting = {one.id for one in self.database.tasks("state = 'starting'")}
        self._given = {job_id: names for job_id, names in self._given.items() if job_id in starting}
        taken = {
            name for job_id, names in self._given.items() if job_id != task.id for name in names
        }
        free = sorted((await self._usable_nodes() or frozenset()) - self._busy - taken)[
            : task.nodes
        ]
        if len(free) < task.nodes:
            are_free = (
                f"{counted(len(free), 'node')} of the pool {'is' if len(free) == 1 else 'are'} free"
            )
            self._warn_once(task.id, f"job {task.id} cannot start: only {are_free}")
            return False
        self._given[task.id] = tuple(free)
        return (
            await self._act(Verb.ALTER, task.id, task.user, {NODES: ",".join(free)})
        ).done is True

    async def _hold_firmly(self, job_id: str, user: str) -> None:
        """Have a held job stay so, whatever its owner does: what they hold themselves they may
        release.
        """
        if user != self.actions.store.user and not self.pool.as_owners:
            await self._act(Verb.HOLD, job_id, user)

    async def _requeue(self, task: StoredTask) -> None:
        outcome = await self._act(Verb.REQUEUE, task.id, task.user)
        if outcome.done is False and (why := await self._native_refusal(task.id)):
            self._note_failing(task, why)
            await self._act(Verb.CANCEL, task.id, task.user)

    async def _act(
        self, verb: Verb, job_id: str, user: str, changes: Mapping[str, str] = MappingProxyType({})
    ) -> Outcome:
        # Another one may have taken over while this one waited for an answer.
        self.database.keep_lease(self._now)
        own = self.actions.store.user
        request = ActionRequest(
            verb,
            (job_id,),
            hold=verb is Verb.REQUEUE,
            at_once=verb is Verb.RELEASE,
            changes=dict(changes),
        )
        plan = self.actions.plan(
            request, run_as=user if self.pool.as_owners and user != own else ""
        )
        outcome = (await self.actions.run(plan)).outcomes[0]
        if outcome.done:
            self._reported.pop(job_id, None)
        else:
            self._warn_once(job_id, f"job {job_id}: {verb}: {outcome.text}")
        return outcome

    def _warn_once(self, job_id: str, text: str) -> None:
        if self._reported.get(job_id) != text:
            self._reported[job_id] = text
            self.tell(text)


def _in_turn(new: Sequence[tuple[Row, TaskMark]]) -> list[tuple[Row, TaskMark]]:
    """Jobs that came, one of each user after the other: nobody's thousands keep the others
    waiting.
    """
    turns: dict[str, Iterator[int]] = defaultdict(count)
    return sorted(new, key=lambda one: next(turns[one[0]["user"]]))


def _format_dependency(row: Row) -> str:
    """Format the dependency of a job as `job 12, 13`; '' for none."""
    text = row["dependency"]
    ids = parse_dependency(text).job_ids
    return f"job {', '.join(ids)}" if ids else str(text or "")


def _names(node_list: str | None) -> Iterable[str]:
    try:
        return expand(node_list) if node_list else ()
    except ValueError:
        return ()
