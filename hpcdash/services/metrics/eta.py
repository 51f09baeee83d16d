"""Estimated end of a training, its fit in the time limit, and the cost of its restarts."""

from __future__ import annotations

from math import ceil, isfinite, isnan, nan

from msgspec import Struct

from hpcdash.domain.units import format_span
from hpcdash.services.metrics.findings import format_step
from hpcdash.services.metrics.joined import LostTime


class Eta(Struct, frozen=True):
    """Seconds until the final step, restarts included; how many more array tasks, or jobs, that
    takes, None where no limit is known.

    `tasks_needed` is -1 where no number of them gets there: each would end before it got further.
    """

    steps_left: float
    seconds: float
    limit_seconds_left: float
    tasks_needed: int | None
    words: str


def estimate_eta(
    step: float,
    last_step: float,
    seconds_per_step: float,
    limit_seconds_left: float | None = None,
    task_limit_seconds: float | None = None,
    repeated_seconds: float = 0.0,
    gap_seconds: float = 0.0,
    *,
    is_array: bool = True,
) -> Eta | None:
    """Estimate when `last_step` is reached from `step`, given the seconds that the job has left.

    `task_limit_seconds` is the limit of each following array task, or job unless it `is_array`
    (None: unknown, then their number is unknown too). Each of them spends `repeated_seconds` of its
    limit on steps that were done before; `gap_seconds` before it, in the queue, do not count
    towards its limit. None if the pace or the final step is unknown.
    """
    if not (
        isfinite(step)
        and isfinite(last_step)
        and isfinite(seconds_per_step)
        and seconds_per_step > 0
    ):
        return None
    steps_left = max(last_step - step, 0.0)
    work = steps_left * seconds_per_step
    if not steps_left:
        return Eta(
            0.0,
            0.0,
            nan if limit_seconds_left is None else limit_seconds_left,
            0,
            "at its final step",
        )
    ends = f"ends in {format_span(work)}"
    if limit_seconds_left is None or not isfinite(limit_seconds_left):
        return Eta(steps_left, work, nan, None, ends)
    left = max(limit_seconds_left, 0.0)
    against = f"{ends}, limit in {format_span(left)}"
    if work <= left:
        return Eta(steps_left, work, left, 0, against)
    if task_limit_seconds is None or not isfinite(task_limit_seconds):
        return Eta(
            steps_left,
            work,
            left,
            None,
            f"{against}: needs {'more array tasks' if is_array else 'more jobs'}",
        )
    useful = task_limit_seconds - repeated_seconds
    if useful <= 0:
        cost, limit = format_span(repeated_seconds), format_span(task_limit_seconds)
        unit = "task" if is_array else "job"
        text = f"{against}: no further {unit} gets there: repeated steps take {cost} of its {limit}"
        return Eta(steps_left, nan, left, -1, text)
    tasks = ceil((work - left) / useful)
    plural = "s" if tasks > 1 else ""
    more = f"{against}: needs {tasks} more " + (
        f"array task{plural}" if is_array else f"job{plural} of this length"
    )
    return Eta(steps_left, work + tasks * (repeated_seconds + gap_seconds), left, tasks, more)


def format_lost_time(lost: LostTime) -> str:
    """`3 restarts: 1 200 steps again (40 min), 12 min between attempts`; "" without a restart."""
    if not lost.restarts:
        return ""
    message = f"{lost.restarts} restart" + ("s" if lost.restarts > 1 else "")
    parts = []
    if lost.repeated_steps:
        again = f"{format_step(lost.repeated_steps)} steps again"
        parts.append(
            again
            if isnan(lost.repeated_seconds)
            else f"{again} ({format_span(lost.repeated_seconds)})"
        )
    if lost.gap_seconds > 0:
        parts.append(f"{format_span(lost.gap_seconds)} between attempts")
    return f"{message}: {', '.join(parts)}" if parts else message


def repeated_seconds(lost: LostTime) -> float:
    """Return the mean seconds per restart for repeated steps.

    0 if none were repeated or no times are known.
    """
    return _each(lost, lost.repeated_seconds)


def gap_seconds(lost: LostTime) -> float:
    """Return the mean wait in seconds for a restart, mostly in the queue; 0 if unknown."""
    return _each(lost, lost.gap_seconds)


def _each(lost: LostTime, seconds: float) -> float:
    return 0.0 if not lost.restarts or isnan(seconds) else seconds / lost.restarts
