"""Do tasks of a shared pool get on? Those that get no turn, lose what they did, or are too slow to
save.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

from hpcdash.config.watch_settings import PoolsRule
from hpcdash.domain.alerts import Finding, Severity, shown
from hpcdash.domain.units import format_span
from hpcdash.services.share.state import Pool, Task
from hpcdash.services.share.text import format_silence, format_task

SILENT = "pool-silent"
NO_TURN = "no-turn"
UNSAVED = "interrupted-unsaved"
SLOW = "slow-save"
TASK_RULES = (NO_TURN, UNSAVED, SLOW)
_SAVED = "suspended"
_SLOW = "slow"


def find_silent_pool(pool: Pool, now: datetime) -> list[Finding]:
    """Return a finding if nobody coordinates a pool any more."""
    if not (text := format_silence(pool, now)):
        return []
    name = shown(pool.pool)
    step = f"hpcdash share run {name}, as the account that coordinates it"
    return [Finding(SILENT, pool.pool, Severity.CRITICAL, f"pool {name}: {text}", step)]


def is_selected(task: Task, users: Collection[str], name: str) -> bool:
    """Whether a task is one of `users` (none: anyone's) and has the `name` ('': any)."""
    return (not users or task.user in users) and name in ("", task.name)


def find_stuck(pool: Pool, task: Task, rule: PoolsRule, now: datetime) -> Iterator[Finding]:
    """Yield the findings on an unfinished task."""
    who = format_task(task)
    job = shown(task.id)
    place = f"pool {shown(pool.pool)}"
    ended = [run.ended_at for run in task.runs if run.ended_at is not None]
    waited = (now - max(ended, default=task.submitted_at)).total_seconds()
    if task.state == "waiting" and not task.waits_for and waited >= rule.no_turn_seconds:
        text = f"{who} has waited {format_span(waited)} for its turn in {place}: {shown(task.why)}"
        step = (
            f"hpcdash share raise {job}, if its owner may choose a priority; or resubmit it with "
            "fewer nodes"
        )
        yield Finding(NO_TURN, task.id, Severity.WARNING, text, step, name=task.name)
    hows = [run.how for run in task.runs if run.is_interrupted]
    unsaved = next((index for index, how in enumerate(reversed(hows)) if how == _SAVED), len(hows))
    saved = hows.count(_SAVED)
    lost = len(hows) - saved
    often = ""
    if unsaved >= rule.unsaved_in_a_row:
        times = "" if unsaved == 1 else f" {unsaved} times in a row"
        often = f"{times} and did not save"
    elif unsaved and lost >= rule.unsaved_in_a_row and lost > saved:
        often = f" {len(hows)} times and saved {saved}"
    if often:
        text = f"{who} lost its work: it was interrupted{often}"
        step = (
            "hpcdash.job.suspend tells the program when to save; periodic checkpoints "
            "lose less work"
        )
        yield Finding(UNSAVED, task.id, Severity.CRITICAL, text, step, name=task.name)
    if hows[-1:] == [_SLOW]:
        text = f"{who} takes longer to save than the {pool.grace_seconds:g} s that {place} gives"
        step = (
            "Save less data, use a faster file system, save from all ranks, or ask for a longer "
            "grace_seconds in the pool."
        )
        yield Finding(SLOW, task.id, Severity.WARNING, text, step, name=task.name)
