"""Coordinates one shared pool: admits its tasks, starts and suspends them as the rules say, and notes their runs.

Each step is noted in share.db before it is done, and can be done again: a coordinator may be killed at any moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpcdash.backends.actions import ActionRequest, Verb
from hpcdash.backends.queries import JobScope
from hpcdash.config.settings import PoolSettings
from hpcdash.domain.share import SUSPEND_NAME, Priority, TaskMark, parse_mark
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.text import counted
from hpcdash.job.suspend import READY_SUFFIX, SEEN_SUFFIX
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.share.database import (
    UNFINISHED,
    WITH_NODES,
    ShareDatabase,
    StoredTask,
    in_states,
    unfinished_tasks,
)
from hpcdash.services.share.scheduling import Decision, PoolRules, PoolTask, Quotas, decide, queue_up
from hpcdash.services.share.wishes import heeded

Row = Mapping[str, Any]
_RESULTS = {JobState.COMPLETED: "succeeded", JobState.CANCELLED: "stopped"}
_RUNS = (JobState.RUNNING, JobState.SUSPENDED)


def rules_of(pool: PoolSettings) -> PoolRules:
    """What the configuration of a pool allows."""
    quotas = {(user, one.priority): one.nodes for one in pool.quotas for user in one.users}
    return PoolRules(Quotas(quotas), frozenset(pool.choosers), pool.least_gpus, pool.demote_after_seconds)


class Coordinator:
    """Has the lease of a pool's database. `tell` gets a line for each thing done."""

    def __init__(
        self,
        pool: PoolSettings,
        database: ShareDatabase,
        actions: Actions,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.pool = pool
        self.rules = rules_of(pool)
        self.database = database
        self.actions = actions
        self.tell = tell
        self.decision = Decision()
        # What was last said of what an owner wants.
        self._heeded: dict[str, tuple[str, TaskMark]] = {}

    async def step(self) -> bool:
        """Look at the queue once and do what follows; whether a task is about to start or to give up its nodes.

        Raises HpcdashError where the queue cannot be asked, and PoolHeld where another coordinator has taken over.
        """
        rows = await self._fetch_rows()
        for task in unfinished_tasks(self.database):
            row = rows.pop(task.id, None)
            if row is not None:
                await self._follow(task, row)
        for row in rows.values():
            await self._admit(row)
        await self._decide()
        return bool(self.database.tasks("state IN ('starting', 'suspending')"))

    @property
    def _now(self) -> float:
        return self.actions.store.clock.now()

    async def _fetch_rows(self) -> dict[str, Row]:
        """The jobs that may be tasks, by id: what is in the queue, and what has left it and was not finished."""
        store = self.actions.store
        parsed = await store.ask(store.backend.queue.jobs(JobScope(user=store.user)))
        rows: dict[str, Row] = {str(row["id"]): row for row in parsed.table.to_pylist()}
        gone = [one.id for one in unfinished_tasks(self.database) if one.id not in rows]
        if gone:
            rows |= {str(row["id"]): row for row in await self.actions.rows_of(gone)}
        known = {one.id for one in self.database.tasks(f"NOT {in_states(UNFINISHED)}", *UNFINISHED)}
        return {job_id: row for job_id, row in rows.items() if job_id not in known}

    # -- what came

    async def _admit(self, row: Row) -> None:
        mark = parse_mark(row["comment"])
        if mark is None or row["state"] != JobState.HELD:
            return
        user, job_id = str(row["user"]), str(row["id"])
        gpus = int(row["gpus"] or 0)
        nodes = -(-int(row["cpus"] or 1) // self.pool.cpus_per_node)
        if gpus and self.pool.gpus_per_node:
            nodes = max(nodes, -(-gpus // self.pool.gpus_per_node))
        priority = self.rules.allowed_priority(user, mark.priority)
        place = (row["submitted_at"].timestamp(), int(row["_number"]))
        refusal = self.rules.refusal(
            PoolTask(job_id, user, nodes, priority, place), capacity=self.pool.nodes, gpus=gpus
        )
        name = str(row["name"] or "")
        if not refusal and (
            twin := self.database.tasks(f"user = ? AND name = ? AND {in_states(UNFINISHED)}", user, name, *UNFINISHED)
        ):
            refusal = f"{user} has a task of this name: job {twin[0].id}"
        state = "refused" if refusal else "waiting"
        with self.database.writing(self._now):
            self.database.add(
                StoredTask(
                    job_id,
                    place[1],
                    user,
                    name,
                    nodes,
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
                )
            )
        waits = f"waits at {priority.name} for {counted(nodes, 'node')}"
        self.tell(f"job {job_id} of {user}: {refusal or waits}")
        if refusal:
            await self._act(Verb.CANCEL, job_id)

    # -- what became of a task

    async def _follow(self, task: StoredTask, row: Row) -> None:
        """Bring what is noted of a task up to what its job is now, and do again what was not done."""
        state, now = row["state"], self._now
        mark = parse_mark(row["comment"])
        if state not in ENDED and mark is not None:
            task = self._heed(task, mark)
        is_paused = mark is not None and mark.is_paused
        if state in ENDED:
            result = _RESULTS.get(state, "failed")
            ended = row["ends_at"].timestamp() if row["ends_at"] else now
            with self.database.writing(now):
                self.database.end_run(task, result, ended, result)
            self.tell(f"job {task.id} {result}")
        elif state == JobState.HELD:
            if task.state == "starting":
                await self._release(task)
            elif task.state in ("running", "suspending"):
                rests, how = ("paused", "paused") if is_paused else ("waiting", self._how_suspended(task))
                with self.database.writing(now):
                    self.database.end_run(task, rests, now, how)
                self.tell(f"job {task.id} is suspended")
        elif state == JobState.PENDING:
            # Whoever released or requeued it: its turn has not come.
            if task.state != "starting":
                await self._act(Verb.HOLD, task.id)
        elif state in _RUNS:
            if task.state == "starting":
                started = row["started_at"].timestamp() if row["started_at"] else now
                with self.database.writing(now):
                    self.database.change("UPDATE tasks SET state = 'running' WHERE id = ?", task.id)
                    self.database.change(
                        "UPDATE runs SET started_at = ? WHERE task = ? AND ended_at IS NULL", started, task.id
                    )
                self.tell(f"job {task.id} runs")
            elif task.state in ("waiting", "paused"):
                # Somebody else released it.
                await self._requeue(task)
            elif task.state == "suspending" or is_paused or self._is_ready(task):
                await self._suspend(task)

    def _heed(self, task: StoredTask, mark: TaskMark) -> StoredTask:
        """Take up what a task's owner wants of it; the task as it is noted then."""
        changes, words = heeded(task, mark, self.rules, capacity=self.pool.nodes, now=self._now)
        if changes:
            with self.database.writing(self._now):
                self.database.alter(task.id, changes)
        if words and self._heeded.get(task.id) != (words, mark):
            self._heeded[task.id] = (words, mark)
            self.tell(f"job {task.id}: {words}")
        return replace(task, **changes)

    async def _suspend(self, task: StoredTask) -> None:
        """Ask a task to suspend; end it once it has saved, or its time is over."""
        now = self._now
        if task.asked_at is None:
            with self.database.writing(now):
                self.database.change("UPDATE tasks SET state = 'suspending', asked_at = ? WHERE id = ?", now, task.id)
            self.tell(f"job {task.id} is asked to suspend")
        if not self._is_ready(task):
            is_told = bool(task.folder) and self._write_command(task, b"suspend\n")
            if is_told and now < (task.asked_at or now) + self.pool.grace_seconds:
                return
        await self._requeue(task)

    # -- who is next

    async def _decide(self) -> None:
        now = self._now
        for task in self.database.tasks("state = 'running' AND level = ?", Priority.ABOVE_NORMAL):
            due = task.running_task.demotion_at(self.rules.demote_after_seconds)
            if due is not None and due <= now:
                with self.database.writing(now):
                    self.database.change(
                        "UPDATE tasks SET demoted = 1, level = ?, since = ? WHERE id = ?", Priority.NORMAL, now, task.id
                    )
                self.tell(f"job {task.id} is NORMAL from now on")
        tasks = {one.id: one for one in unfinished_tasks(self.database)}
        held = sum(one.nodes for one in tasks.values() if one.state in WITH_NODES)
        decision = self.decision = decide(
            [one.running_task for one in tasks.values() if one.state in ("starting", "running")],
            queue_up(one.pool_task for one in tasks.values() if one.state == "waiting"),
            self.rules.quotas,
            capacity=self.pool.nodes,
            free=self.pool.nodes - held,
        )
        if any(tasks[name].level != level for name, level in decision.levels.items()):
            with self.database.writing(now):
                for name, level in decision.levels.items():
                    self.database.change("UPDATE tasks SET level = ? WHERE id = ?", level, name)
        for one in decision.suspend:
            # One that only starts is asked once it runs.
            if tasks[one.id].state == "running":
                await self._suspend(tasks[one.id])
        for one, level in decision.start:
            with self.database.writing(now):
                self.database.begin(one.id, level, now)
            self.tell(f"job {one.id} starts at {level.name}")
            await self._release(tasks[one.id])

    # -- done to the queue and to the task's files

    async def _release(self, task: StoredTask) -> None:
        if task.folder:
            self._write_command(task, b"")
            for suffix in (READY_SUFFIX, SEEN_SUFFIX):
                with suppress(OSError):
                    os.unlink(f"{task.folder}/{SUSPEND_NAME}{suffix}")
        await self._act(Verb.RELEASE, task.id)

    async def _requeue(self, task: StoredTask) -> None:
        plan = self.actions.plan(ActionRequest(Verb.REQUEUE, (task.id,), hold=True))
        await self.actions.run(plan)

    async def _act(self, verb: Verb, job_id: str) -> None:
        await self.actions.run(self.actions.plan(ActionRequest(verb, (job_id,))))

    def _is_ready(self, task: StoredTask) -> bool:
        return bool(task.folder) and os.path.lexists(f"{task.folder}/{SUSPEND_NAME}{READY_SUFFIX}")

    def _how_suspended(self, task: StoredTask) -> str:
        """Whether a task that has left its nodes had saved, was too slow to, or did not answer."""
        if self._is_ready(task):
            return "suspended"
        has_seen = bool(task.folder) and os.path.lexists(f"{task.folder}/{SUSPEND_NAME}{SEEN_SUFFIX}")
        return "slow" if has_seen else "ignored"

    def _write_command(self, task: StoredTask, content: bytes) -> bool:
        """Write a task's command file, if it is the account's own: the comment that names it may be anybody's."""
        try:
            file = os.open(f"{task.folder}/{SUSPEND_NAME}", os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
                return False
            os.ftruncate(file, 0)
            os.write(file, content)
        except OSError:
            return False
        finally:
            os.close(file)
        return True
