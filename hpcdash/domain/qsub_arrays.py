"""Which tasks qsub's -J can ask for, and how it is written. Pure."""

from __future__ import annotations

from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.job_ids import joined_tasks
from hpcdash.errors import UsageError


def range_of_tasks(tasks: ArrayTasks) -> str:
    """X-Y[:Z][%N]: a range of two numbers and a step is all that PBS knows.

    Raises UsageError for tasks that are no one range, naming the ranges they are.
    """
    whole = _one_range(tasks)
    if whole is None:
        parts = [str(ArrayTasks((part,))) for part in (joined_tasks(tasks) or tasks).ranges]
        shown = f"{', '.join(parts[:8])}{', …' if len(parts) > 8 else ''}"
        raise UsageError(
            f"PBS submits a range of tasks at a time, which {ArrayTasks(tasks.ranges)} is not",
            f"Submit these one after the other: {shown}.",
        )
    # A range goes up. One of a single task has its end where the step does not reach it.
    first, last = whole[0], whole[-1]
    step = whole.step if last > first else 2
    spoken = f"{first}-{max(last, first + 1)}" + (f":{step}" if step > 1 else "")
    return spoken + (f"%{tasks.throttle}" if tasks.throttle else "")


def _one_range(tasks: ArrayTasks) -> range | None:
    """The range with a step that holds just these tasks: 3-7:4 for 3,7."""
    if len(tasks.ranges) == 1:
        return tasks.ranges[0]
    ordered = sorted(set(tasks))
    step = ordered[1] - ordered[0]
    whole = range(ordered[0], ordered[-1] + 1, step)
    return whole if len(whole) == len(ordered) and list(whole) == ordered else None
