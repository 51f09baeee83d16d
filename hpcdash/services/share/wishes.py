"""Wishes of a task's owner: another priority, suspension, resumption, or an end.

They go through the scheduler: the coordinator reads them from the job's comment, which only its
owner can write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import COMMENT, ActionRequest, Verb
from hpcdash.domain.share import LEVELS, Priority, TaskMark, parse_mark, write_labels
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.share.database import StoredTask, level_columns
from hpcdash.services.share.scheduling import PoolRules, PoolTask

if TYPE_CHECKING:
    from hpcdash.services.jobs.actions import Plan
    from hpcdash.services.session import ClusterSession
    from hpcdash.services.share.state import Pool, Task


class Wish(StrEnum):
    RAISE = "raise"
    LOWER = "lower"
    SUSPEND = "suspend"
    RESUME = "resume"
    STOP = "stop"


class WishPlan(Struct, frozen=True):
    """Plan of a wish: the action, the question, its outcome as text, the interrupted tasks."""

    plan: Plan
    question: str
    outcome: tuple[str, ...]
    interrupted: tuple[Task, ...]


def apply_wishes(
    task: StoredTask, mark: TaskMark, rules: PoolRules, *, capacity: int, now: float
) -> tuple[dict[str, Any], str]:
    """The columns of a task that its owner's mark changes, and what to say of it; nothing where all
    is as it says.
    """
    changes: dict[str, Any] = {}
    text = ""
    priority = rules.allowed_priority(task.user, mark.priority)
    if priority != task.priority:
        text = rules.refusal(replace(task.pool_task, priority=priority), capacity=capacity)
        if not text:
            changes["priority"] = int(priority)
            text = f"asks for {priority.name}"
            level = replace(task.pool_task, priority=priority).level
            if task.level is not None and level not in (Priority.AUTO, task.level):
                since = now if task.state == "running" else task.since or now
                changes |= level_columns(task.running_task.moved(level, now, since=since))
        else:
            text = f"{priority.name} is rejected: {text}"
    if (labels := write_labels(mark.labels)) != task.labels:
        changes["labels"] = labels
    if mark.is_paused and task.state == "waiting":
        changes["state"], text = "paused", "suspended by its owner"
    elif not mark.is_paused and task.state == "paused":
        changes["state"], text = "waiting", "resumed by its owner"
    return changes, text


async def plan_wish(
    session: ClusterSession, pool: Pool, job_id: str, wish: Wish, priority: Priority | None = None
) -> WishPlan:
    """Plan a wish; raises HpcdashError with the reason if it is impossible.

    `priority`: for RAISE and LOWER.
    """
    task = pool.task(job_id)
    if task is None:
        raise HpcdashError(
            f"pool {pool.pool} has no task {visible(job_id)}",
            "`hpcdash share show` lists its tasks.",
        )
    user = session.store.user
    if task.user != user:
        raise HpcdashError(
            f"job {visible(job_id)} is {visible(task.user)}'s", "Only its owner can do that."
        )
    if not task.is_unfinished:
        raise HpcdashError(f"job {visible(job_id)} has ended: {visible(task.state)}")
    rows = await session.actions.fetch_rows((job_id,))
    mark = parse_mark(rows[0]["comment"]) if rows else None
    if mark is None:
        raise HpcdashError(
            f"job {visible(job_id)} is not marked as a task of a pool",
            "Its comment was changed, or it has ended.",
        )
    if wish is Wish.STOP:
        request = ActionRequest(Verb.CANCEL, (job_id,))
        plan = session.actions.plan(request, rows)
        return WishPlan(
            plan,
            f"Stop job {visible(job_id)} for good?",
            ("It ends and will not start again.",),
            (),
        )
    interrupted: Sequence[Task] = ()
    if wish in (Wish.RAISE, Wish.LOWER):
        requested = _priority(pool, task, wish, priority)
        mark = dataclasses.replace(mark, priority=requested)
        interrupted = pool.interrupted_by(job_id, priority=requested)
        question = (
            f"{wish.capitalize()} job {visible(job_id)} from {task.level or task.priority} "
            f"to {requested.name}?"
        )
        outcome: tuple[str, ...] = ()
    else:
        if mark.is_paused == (wish is Wish.SUSPEND):
            is_so = "already suspended by you" if mark.is_paused else "not suspended by you"
            raise HpcdashError(f"job {visible(job_id)} is {is_so}")
        mark = dataclasses.replace(mark, is_paused=wish is Wish.SUSPEND)
        interrupted = pool.interrupted_by(job_id, is_paused=mark.is_paused)
        question = f"{wish.capitalize()} job {visible(job_id)}?"
        runs = task.state in ("starting", "running", "suspending")
        saves = (
            f"It has {pool.grace_seconds:g} s to save, and "
            if runs
            else "It waits for its turn now; then it "
        )
        outcome = (
            (f"{saves}does not run until it is resumed.",)
            if mark.is_paused
            else ("It runs when it is its turn.",)
        )
    plan = session.actions.plan(
        ActionRequest(Verb.ALTER, (job_id,), changes={COMMENT: str(mark)}), rows
    )
    return WishPlan(plan, question, outcome, tuple(interrupted))


def _priority(pool: Pool, task: Task, wish: Wish, requested: Priority | None) -> Priority:
    """The one that was asked for, else the next one that has quota for the task."""
    rules = pool.rules
    if rules.allowed_priority(task.user, Priority.NORMAL) == Priority.AUTO:
        raise HpcdashError(
            f"{task.user} may not choose a priority in pool {pool.pool}",
            "choosers in its coordinator's configuration lists who may.",
        )

    def refusal(level: Priority) -> str:
        place = (task.submitted_at.timestamp(), 0)
        one = PoolTask(task.id, task.user, task.nodes, level, place, demoted=task.is_demoted)
        return rules.refusal(one, capacity=pool.nodes)

    present = Priority[task.level or task.priority]
    if requested is not None:
        if text := refusal(requested):
            raise HpcdashError(f"job {task.id} cannot have {requested.name}: {text}")
        if requested == Priority[task.priority]:
            raise HpcdashError(f"job {task.id} already has {requested.name}")
        return requested
    is_higher = wish is Wish.RAISE
    levels = [level for level in LEVELS if (level > present if is_higher else level < present)]
    fitting = [level for level in levels if not refusal(level)]
    if not fitting:
        way = "above" if is_higher else "below"
        raise HpcdashError(
            f"{task.user} has no quota {way} {present.name} for job {task.id} "
            f"({counted(task.nodes, 'node')})"
        )
    return fitting[-1] if is_higher else fitting[0]
