"""A shared pool in words: how full it is, its quotas, and how each task stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hpcdash.domain.share import EVERYONE, LEVELS
from hpcdash.domain.text import counted, visible
from hpcdash.domain.units import format_age, format_span
from hpcdash.services.share.state import SILENT_SECONDS, Pool, Run, Task

_MAX_INTERRUPTED = 10
_MAX_OUTSIDERS = 5
HOW = {
    "suspended": "saved",
    "slow": "too slow to save",
    "ignored": "did not answer",
    "paused": "suspended by its owner",
    "yielded": "suspended itself",
    "requeued": "requeued by the scheduler",
}


def format_use(pool: Pool) -> str:
    """`3 of 4 nodes used, 2 run, 1 waits, 1 paused`."""
    runs = sum(task.state in ("starting", "running", "suspending") for task in pool.tasks)
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
    silent = (now - pool.taken_at).total_seconds()
    if silent < SILENT_SECONDS:
        return ""
    return (
        f"no update from its coordinator for {format_age(silent)}: no task is started or suspended"
    )


def format_outsiders(pool: Pool) -> str:
    """`not tasks of the pool: job 12 of bob on 2 nodes`; '' where nothing else runs on its
    nodes.
    """
    named = [
        f"job {visible(one.id)} of {visible(one.user)} on {counted(one.nodes, 'node')}"
        for one in pool.outsiders
    ]
    more = len(named) - _MAX_OUTSIDERS
    shown = [*named[:_MAX_OUTSIDERS], *((f"{more} more",) if more > 0 else ())]
    return f"not tasks of the pool: {', '.join(shown)}" if named else ""


def quota_users(pool: Pool, user: str) -> list[str]:
    """Return the users with quotas: oneself first, EVERYONE last."""
    names = {one.user for one in pool.quotas} - {user, EVERYONE}
    own = [user] if any(one.user == user for one in pool.quotas) else []
    everyone = [EVERYONE] if any(one.user == EVERYONE for one in pool.quotas) else []
    return [*own, *sorted(names), *everyone]


def quota_levels(pool: Pool) -> list[str]:
    """The priorities that anybody has quota at, the highest first."""
    named = {one.priority for one in pool.quotas}
    return [level.name for level in LEVELS if level.name in named]


def format_quota(pool: Pool, user: str, level: str) -> str:
    """`1/2`: nodes used of those that a user may have at a priority; '' where there is no quota."""
    for one in pool.quotas:
        if one.user == user and one.priority == level:
            return str(one.total) if one.used is None else f"{one.used}/{one.total}"
    return ""


def format_level(task: Task) -> str:
    """`NORMAL`; `NORMAL (AUTO)` where nobody chose it."""
    if task.priority == "AUTO":
        return f"{task.level} (AUTO)" if task.level else "AUTO"
    return task.level or task.priority


def format_turn(task: Task) -> str:
    """`next`, `3rd` …: when it is a waiting task's turn."""
    if task.place is None:
        return ""
    if task.place == 1:
        return "next"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(
        task.place % 10 if task.place % 100 not in (11, 12, 13) else 0, "th"
    )
    return f"{task.place}{ending}"


def format_demotion(task: Task, now: datetime) -> str:
    """Format the time until it becomes NORMAL."""
    if task.demotion_at is None:
        return ""
    return format_span(max(0.0, (task.demotion_at - now).total_seconds()))


def format_task(task: Task) -> str:
    """`job 12 (train) of ada`."""
    name = f" ({visible(task.name)})" if task.name else ""
    return f"job {visible(task.id)}{name} of {visible(task.user)}"


def format_interrupted(tasks: Sequence[Task]) -> tuple[str, ...]:
    """Format the interrupted tasks, a line each; one line if there are none."""
    if not tasks:
        return ("It interrupts no other task.",)
    lines = [
        f"{format_task(one)}, {one.level}, {counted(one.nodes, 'node')}"
        for one in tasks[:_MAX_INTERRUPTED]
    ]
    more = len(tasks) - len(lines)
    return (
        f"It interrupts {counted(len(tasks), 'task')}:",
        *lines,
        *((f"… and {more} more",) if more else ()),
    )


def format_interruption(task: Task, run: Run) -> str:
    """`job 12 (train) of ada at NORMAL after 2h: saved`."""
    ran = ""
    if run.started_at is not None and run.ended_at is not None:
        ran = f" after {format_span(max(0.0, (run.ended_at - run.started_at).total_seconds()))}"
    return f"{format_task(task)} at {run.level}{ran}: {HOW.get(run.how, visible(run.how))}"
