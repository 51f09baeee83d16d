"""Text about a shared pool: its use, its quotas and its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hpcdash.domain.share import EVERYONE, LEVELS
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age, format_span
from hpcdash.services.share.database import WITH_NODES
from hpcdash.services.share.state import SILENT_SECONDS, Pool, Run, Task

_MAX_INTERRUPTED = 10
_MAX_FOREIGN_JOBS = 5
HOW = {
    "suspended": "saved",
    "slow": "too slow to save",
    "ignored": "did not respond",
    "paused": "suspended by the owner",
    "yielded": "suspended itself",
    "requeued": "requeued by the scheduler",
}


def format_use(pool: Pool) -> str:
    """Format `3 of 4 nodes used, 2 run, 1 waits, 1 paused`."""
    runs = sum(task.state in WITH_NODES for task in pool.tasks)
    waits = sum(task.state == "waiting" for task in pool.tasks) + pool.tasks_left_out
    paused = sum(task.state == "paused" for task in pool.tasks)
    parts = [f"{pool.nodes_used} of {counted(pool.nodes, 'node')} used"]
    if missing := pool.nodes - pool.nodes_usable:
        parts.append(f"{missing} out of service")
    parts.append(f"{runs} {'runs' if runs == 1 else 'run'}")
    parts.append(f"{waits} {'waits' if waits == 1 else 'wait'}")
    if paused:
        parts.append(f"{paused} paused")
    return ", ".join(parts)


def format_silence(pool: Pool, now: datetime) -> str:
    """Format a warning that the coordinator is silent; '' while it works."""
    seconds = (now - pool.taken_at).total_seconds()
    if seconds < SILENT_SECONDS:
        return ""
    return (
        f"no update from the coordinator for {format_age(seconds)}: no tasks are started or "
        "suspended"
    )


def format_foreign_jobs(pool: Pool) -> str:
    """Format `not tasks of the pool: job 12 of bob on 2 nodes`; '' for none."""
    jobs = [
        f"job {visible(job.id)} of {visible(job.user)} on {counted(job.nodes, 'node')}"
        for job in pool.outsiders
    ]
    if len(jobs) > _MAX_FOREIGN_JOBS:
        jobs[_MAX_FOREIGN_JOBS:] = [f"{len(jobs) - _MAX_FOREIGN_JOBS} more"]
    return f"not tasks of the pool: {', '.join(jobs)}" if jobs else ""


def quota_users(pool: Pool, user: str) -> list[str]:
    """Return the users with quotas: `user` first, EVERYONE last."""
    users = {quota.user for quota in pool.quotas}
    return sorted(users, key=lambda name: (name != user, name == EVERYONE, name))


def quota_levels(pool: Pool) -> list[str]:
    """Return the priorities with a quota, the highest first."""
    named = {quota.priority for quota in pool.quotas}
    return [level.name for level in LEVELS if level.name in named]


def format_quota(pool: Pool, user: str, level: str) -> str:
    """Format `1/2`, the used nodes of a user's quota at a priority; '' for no quota."""
    for quota in pool.quotas:
        if quota.user == user and quota.priority == level:
            return str(quota.total) if quota.used is None else f"{quota.used}/{quota.total}"
    return ""


def format_level(task: Task) -> str:
    """Format a task's level: `NORMAL`; `NORMAL (AUTO)` if nobody chose it."""
    if task.priority == "AUTO":
        return f"{task.level} (AUTO)" if task.level else "AUTO"
    return task.level or task.priority


def format_turn(task: Task) -> str:
    """Format a waiting task's turn: `next`, `3rd` …"""
    if task.place is None:
        return ""
    if task.place == 1:
        return "next"
    ending = "th"
    if task.place % 100 not in (11, 12, 13):
        ending = {1: "st", 2: "nd", 3: "rd"}.get(task.place % 10, "th")
    return f"{task.place}{ending}"


def format_demotion(task: Task, now: datetime) -> str:
    """Format the time until a task becomes NORMAL; '' if it does not."""
    if task.demotion_at is None:
        return ""
    return format_span(max(0.0, (task.demotion_at - now).total_seconds()))


def format_task(task: Task) -> str:
    """Format `job 12 (train) of ada`."""
    name = f" ({visible(task.name)})" if task.name else ""
    return f"job {visible(task.id)}{name} of {visible(task.user)}"


def format_interrupted(tasks: Sequence[Task]) -> tuple[str, ...]:
    """Format the interrupted tasks, a line each; one line if there are none."""
    if not tasks:
        return ("No other task is interrupted.",)
    lines = [
        f"{format_task(task)}, {task.level}, {counted(task.nodes, 'node')}"
        for task in tasks[:_MAX_INTERRUPTED]
    ]
    if len(tasks) > len(lines):
        lines.append(f"… and {len(tasks) - len(lines)} more")
    return (f"Interrupts {counted(len(tasks), 'task')}:", *lines)


def format_interruption(task: Task, run: Run) -> str:
    """Format `job 12 (train) of ada at NORMAL after 2h: saved`."""
    after = ""
    if run.started_at is not None and run.ended_at is not None:
        seconds = (run.ended_at - run.started_at).total_seconds()
        after = f" after {format_span(max(0.0, seconds))}"
    return f"{format_task(task)} at {run.level}{after}: {HOW.get(run.how, visible(run.how))}"
