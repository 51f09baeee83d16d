"""Wishes of a task's owner: another priority, suspension, resumption, or an end.

They go through the scheduler: the coordinator reads the job's comment, which only its owner can
write.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import COMMENT, ActionRequest, Verb
from hpcdash.domain.share import LEVELS, Priority, TaskMark, format_labels, parse_mark
from hpcdash.domain.text import counted, visible
from hpcdash.errors import HpcdashError
from hpcdash.services.share.database import WITH_NODES, StoredTask, level_changes
from hpcdash.services.share.scheduling import PoolRules

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

    task: Task
    plan: Plan
    question: str
    outcome: tuple[str, ...]
    interrupted: tuple[Task, ...]


def apply_wishes(
    task: StoredTask, mark: TaskMark, rules: PoolRules, *, capacity: int, now: float
) -> tuple[dict[str, Any], str]:
    """Return the fields of a task that its owner's mark changes, and a message; '' for none."""
    changes: dict[str, Any] = {}
    text = ""
    priority = rules.allowed_priority(task.user, mark.priority)
    if priority != task.priority:
        requested = replace(task.pool_task, priority=priority)
        if refusal := rules.refusal(requested, capacity=capacity):
            text = f"{priority.name} is rejected: {refusal}"
        else:
            text = f"requests {priority.name}"
            changes["priority"] = int(priority)
            if task.level is not None and requested.level not in (Priority.AUTO, task.level):
                since = now if task.state == "running" else task.since or now
                changes |= level_changes(task.running_task.moved(requested.level, now, since=since))
    if (labels := format_labels(mark.labels)) != task.labels:
        changes["labels"] = labels
    if mark.is_paused and task.state == "waiting":
        changes["state"] = "paused"
        text = "suspended by the owner"
    elif not mark.is_paused and task.state == "paused":
        changes["state"] = "waiting"
        text = "resumed by the owner"
    return changes, text


async def plan_wish(
    session: ClusterSession, pool: Pool, job_id: str, wish: Wish, priority: Priority | None = None
) -> WishPlan:
    """Plan a wish; raises HpcdashError with the reason if it is impossible.

    `priority`: for RAISE and LOWER; None for the next one with quota.
    """
    job = f"job {visible(job_id)}"
    outcome: tuple[str, ...] = ()
    task = pool.task(job_id)
    if task is None:
        raise HpcdashError(
            f"pool {pool.pool} has no task {visible(job_id)}",
            "`hpcdash share show` lists its tasks.",
        )
    if task.user != session.store.user:
        raise HpcdashError(f"{job} belongs to {visible(task.user)}", "Only its owner can do that.")
    if not task.is_unfinished:
        raise HpcdashError(f"{job} has ended: {visible(task.state)}")
    rows = await session.actions.fetch_rows((job_id,))
    mark = parse_mark(rows[0]["comment"]) if rows else None
    if mark is None:
        raise HpcdashError(
            f"{job} is not marked as a task of a pool",
            "The job's comment was changed, or the job has ended.",
        )
    if wish is Wish.STOP:
        plan = session.actions.plan(ActionRequest(Verb.CANCEL, (job_id,)), rows)
        outcome = ("The task ends and will not start again.",)
        return WishPlan(task, plan, f"Stop {job} permanently?", outcome, ())
    if wish in (Wish.RAISE, Wish.LOWER):
        requested = _available_priority(pool, task, wish, priority)
        mark = dataclasses.replace(mark, priority=requested)
        changed = replace(task, priority=requested.name)
        present = task.level or task.priority
        question = f"{wish.capitalize()} {job} from {present} to {requested.name}?"
    else:
        if mark.is_paused == (wish is Wish.SUSPEND):
            is_so = "already suspended by you" if mark.is_paused else "not suspended by you"
            raise HpcdashError(f"{job} is {is_so}")
        mark = dataclasses.replace(mark, is_paused=wish is Wish.SUSPEND)
        changed = replace(task, state="paused" if mark.is_paused else "waiting")
        question = f"{wish.capitalize()} {job}?"
        if not mark.is_paused:
            outcome = ("The task runs at its next turn.",)
        elif task.state in WITH_NODES:
            seconds = f"{pool.grace_seconds:g} s"
            outcome = (f"The task has {seconds} to save, and will not run until resumed.",)
        else:
            outcome = ("The task is waiting for its turn; it will not run until resumed.",)
    plan = session.actions.plan(
        ActionRequest(Verb.ALTER, (job_id,), changes={COMMENT: str(mark)}), rows
    )
    return WishPlan(task, plan, question, outcome, tuple(pool.interrupted_by(changed)))


def _available_priority(pool: Pool, task: Task, wish: Wish, requested: Priority | None) -> Priority:
    """Return the requested priority, or the next one with quota for the task."""
    rules = pool.rules
    if rules.allowed_priority(task.user, Priority.NORMAL) == Priority.AUTO:
        raise HpcdashError(
            f"{task.user} may not choose a priority in pool {pool.pool}",
            "`choosers` in the coordinator's configuration lists the users who may.",
        )

    def refusal(level: Priority) -> str:
        return rules.refusal(replace(task.pool_task(), priority=level), capacity=pool.nodes)

    present = Priority[task.level or task.priority]
    if requested is not None:
        if text := refusal(requested):
            raise HpcdashError(f"job {task.id} cannot have {requested.name}: {text}")
        if requested == Priority[task.priority]:
            raise HpcdashError(f"job {task.id} already has {requested.name}")
        return requested
    is_raise = wish is Wish.RAISE
    # From the nearest to the farthest.
    for level in reversed(LEVELS) if is_raise else LEVELS:
        if (level > present if is_raise else level < present) and not refusal(level):
            return level
    direction = "above" if is_raise else "below"
    raise HpcdashError(
        f"{task.user} has no quota {direction} {present.name} for job {task.id} "
        f"({counted(task.nodes, 'node')})"
    )
