"""Do tasks of a shared pool get on? Those that get no turn, lose what they did, or are too slow to
save.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from hpcdash.config.watch_settings import PoolsWatch
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.units import format_span
from hpcdash.services.share.state import Pool, Task
from hpcdash.services.share.text import format_silence, format_task

SILENT = "pool-silent"
NO_TURN = "no-turn"
UNSAVED = "interrupted-unsaved"
SLOW = "slow-save"
OF_TASKS = (NO_TURN, UNSAVED, SLOW)
_SAVED, _SLOW = "suspended", "slow"


def silent_pool(pool: Pool, now: datetime) -> list[Finding]:
    """At most one: nobody coordinates a pool any more."""
    if not (text := format_silence(pool, now)):
        return []
    step = f"hpcdash share run {shown(pool.pool)}, as the account that coordinates it"
    return [Finding(SILENT, pool.pool, Severity.CRITICAL, f"pool {shown(pool.pool)}: {text}", step)]


def stuck_tasks(
    pool: Pool, watch: PoolsWatch, users: tuple[str, ...], now: datetime, name: str = ""
) -> list[Finding]:
    """Return findings on the unfinished tasks that `users` and `name` select."""
    return [
        finding
        for task in pool.tasks
        if task.is_unfinished and is_selected(task, users, name)
        for finding in _task_findings(pool, task, watch, now)
    ]


def is_selected(task: Task, users: tuple[str, ...], name: str) -> bool:
    """Whether a task is one of `users` (none: anyone's) and has the `name` ('': any)."""
    return (not users or task.user in users) and name in ("", task.name)


def _task_findings(pool: Pool, task: Task, watch: PoolsWatch, now: datetime) -> Iterator[Finding]:
    who = format_task(task)
    job = shown(task.id)
    ended = [run.ended_at for run in task.runs if run.ended_at is not None]
    waited = (now - max(ended, default=task.submitted_at)).total_seconds()
    if task.state == "waiting" and not task.waits_for and waited >= watch.no_turn_seconds:
        text = (
            f"{who} has waited {format_span(waited)} for its turn in pool {shown(pool.pool)}: "
            f"{shown(task.why)}"
        )
        step = (
            f"hpcdash share raise {job}, where its owner may choose; or submit it for fewer nodes"
        )
        yield Finding(NO_TURN, task.id, Severity.WARNING, text, step, name=task.name)
    hows = [run.how for run in task.runs if run.is_interrupted]
    unsaved = next((at for at, how in enumerate(reversed(hows)) if how == _SAVED), len(hows))
    lost = sum(how != _SAVED for how in hows)
    saved = len(hows) - lost
    if unsaved >= watch.unsaved_in_a_row or (
        unsaved and lost >= watch.unsaved_in_a_row and lost > saved
    ):
        if unsaved >= watch.unsaved_in_a_row:
            often = f"{'' if unsaved == 1 else f' {unsaved} times in a row'} and did not save"
        else:
            often = f" {len(hows)} times and saved {saved}"
        text = f"{who} lost its work: it was interrupted{often}"
        step = (
            "hpcdash.job.suspend tells the program when to save; checkpoints at an interval "
            "lose less"
        )
        yield Finding(UNSAVED, task.id, Severity.CRITICAL, text, step, name=task.name)
    if hows[-1:] == [_SLOW]:
        text = (
            f"{who} takes longer to save than the {pool.grace_seconds:g} s that pool "
            f"{shown(pool.pool)} gives"
        )
        step = (
            "Save less, to a faster file system or in all ranks; or have grace_seconds of the "
            "pool raised."
        )
        yield Finding(SLOW, task.id, Severity.WARNING, text, step, name=task.name)
