"""Allocation for runs: a batch script that runs them from a spool folder, one at a time."""

from __future__ import annotations

import shlex

from msgspec import Struct

from hpcdash.domain.request import Request, SlotType, request_slots
from hpcdash.shell_files import shell_text

# The kind of its request, and what is staged with its script; runs are folders below RUNS_FOLDER of
# its launch.
KIND = "allocation"
MARKER_NAME = "allocation"
RUNS_FOLDER = "runs"
RUN_SCRIPT = "batch.sh"
STDOUT_NAME = "out"
STDERR_NAME = "err"


class Waiting(Struct, frozen=True):
    """Idle limit of an allocation, after which it ends; None: only at its time limit."""

    idle_seconds: int | None = None


def waiting_part(
    request: Request, folder: str, waiting: Waiting, slot_type: SlotType, *, job: str, in_use: str
) -> str:
    """Return bash that waits for runs in `folder`, which is the launch's, and runs them in that of
    the request.

    `job` is bash for the job's ID; `in_use` is bash that defines `in_use` and `gpu_use`, for the
    end of an idle allocation.
    """
    idle = waiting.idle_seconds
    pause = 2
    end_if_idle = ""
    if idle is not None:
        every = max(1, min(60, idle // 4))
        pause = min(pause, every)
        counts_gpus = slot_type is not SlotType.CPU and request_slots(request).slots > 0
        end_if_idle = (
            f"hpcdash_every={every} hpcdash_counts_gpus={int(counts_gpus) or ''}\n"
            f"{in_use}{shell_text('backends/script/end_if_idle.sh')}"
        )
    runs = shlex.quote(f"{folder}/{RUNS_FOLDER}")
    work = shlex.quote(request.work_dir) if request.work_dir else "$PWD"
    return (
        f"{end_if_idle}hpcdash_work={work} hpcdash_runs={runs} hpcdash_job={job}\n"
        f"hpcdash_pause={pause} hpcdash_idle={'' if idle is None else idle}\n"
        f"{shell_text('backends/script/wait_for_runs.sh')}"
    )
