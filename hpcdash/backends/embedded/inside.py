"""Runs a command in the environment of a running job of the embedded queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.inside import (
    GRACE_SECONDS,
    InsideCommand,
    InsideStep,
    exactly,
    fresh_frame_token,
    held,
)
from hpcdash.backends.queries import Answer
from hpcdash.errors import SchedulerRefused, excerpt


def inside_step(
    program: tuple[str, ...], row: Mapping[str, Any], command: InsideCommand
) -> InsideStep:
    """Return the step; `program` ends with the queue's folder, by which processes are found."""
    number, _, task = str(row["id"]).partition("_")
    # HPCDASH_ATTEMPT has a task's own number.
    own = "[0-9]+" if task else exactly(number)
    requested = [rf"^HPCDASH_ATTEMPT={own}\.[0-9]+:{exactly(program[-1])}$"]
    if task:
        requested += [
            f"^SLURM_ARRAY_JOB_ID={exactly(number)}$",
            f"^SLURM_ARRAY_TASK_ID={exactly(task)}$",
        ]
    patterns = "\n".join(requested)
    token = fresh_frame_token()
    seconds = command.seconds + GRACE_SECONDS
    unset = (
        "env",
        "-u",
        "HPCDASH_NODE",
        "-u",
        "HPCDASH_NODE_VARIABLE",
        "-u",
        "CUDA_VISIBLE_DEVICES",
        "HPCDASH_INSIDE=1",
        "HPCDASH_JOB_CGROUP=",
        "HPCDASH_RANK_VARIABLE=SLURM_PROCID",
        "HPCDASH_JOB_VARIABLES=HPCDASH_ATTEMPT SLURM_ARRAY_JOB_ID",
        f"HPCDASH_JOB_SUFFIX=:{program[-1]}",
        "HPCDASH_JOB_SAME=",
    )
    parts = command.arguments(token, str(row["work_dir"] or ""), as_job=True)
    argv = held(seconds, *unset, f"HPCDASH_JOB_PATTERNS={patterns}", "LC_ALL=C", "sh", "-c", *parts)
    return InsideStep(argv, token, seconds + 15.0, _failure)


def _failure(answer: Answer) -> SchedulerRefused:
    text = excerpt(answer.stderr)
    return SchedulerRefused(
        "the command could not run in this job", argv=("sh",), status=answer.status, output=text
    )
