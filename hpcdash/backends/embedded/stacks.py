"""Stacks of a running job of the embedded queue, whose processes are this machine's. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.stacks import LIMIT_SECONDS, NODE_SCRIPT, Stacks, exactly, read_stacks
from hpcdash.errors import SchedulerRefused, excerpt


def stacks_query(program: tuple[str, ...], row: Mapping[str, Any]) -> Query[Stacks]:
    """`program` ends with the queue's folder, which each job's processes have in a variable beside their job's id."""
    number, _, task = str(row["id"]).partition("_")
    # A task has a number of its own there.
    own = "[0-9]+" if task else exactly(number)
    wanted = [rf"^HPCDASH_ATTEMPT={own}\.[0-9]+:{exactly(program[-1])}$"]
    if task:
        wanted += [f"^SLURM_ARRAY_JOB_ID={exactly(number)}$", f"^SLURM_ARRAY_TASK_ID={exactly(task)}$"]
    limited = ("env", "-u", "SLURMD_NODENAME", "timeout", "-k", "5", str(LIMIT_SECONDS))
    argv = (*limited, "sh", "-c", NODE_SCRIPT, "sh", "", *wanted)
    return Query(argv, partial(read_stacks, failure=_failure), LIMIT_SECONDS + 15)


def _failure(answer: Answer) -> SchedulerRefused:
    words = excerpt(answer.stderr)
    return SchedulerRefused("the processes cannot be looked at", argv=answer.argv, status=answer.status, words=words)
