"""A step of its own on each of a running job's nodes, beside those that run, with the job's GPUs
and cgroup.
"""

from __future__ import annotations

from hpcdash.backends.inside import (
    GRACE_SECONDS,
    InsideCommand,
    InsideStep,
    fresh_frame_token,
    held,
)
from hpcdash.backends.queries import Answer, Row
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure
from hpcdash.backends.slurm.jobs import queue_id
from hpcdash.domain.nodelist import expand
from hpcdash.errors import CommandError, SchedulerRefused
from hpcdash.shell_files import shell_text


def inside_step(row: Row, command: InsideCommand) -> InsideStep:
    """srun within the job. Slurm refuses it to all but the job's owner and operators."""
    token = fresh_frame_token()
    seconds = command.seconds + GRACE_SECONDS
    parts = command.arguments(token, str(row["work_dir"] or ""), as_job=False)
    job = (
        queue_id(str(row["id"])),
        str(row["nodes"] or 1),
        str(seconds),
        "" if row["gpus"] == 0 else "gpus",
    )
    try:
        nodes = tuple(expand(row["node_list"] or ""))
    except ValueError:
        nodes = ()
    script = shell_text("backends/slurm/gpus_by_node.sh", "backends/slurm/inside.sh")
    argv = held(seconds, *slurm("sh", "-c", script, "sh", *job, *parts))
    return InsideStep(argv, token, seconds + 15.0, _failure, nodes=nodes, command=("srun",))


def _failure(answer: Answer) -> CommandError:
    error = failure(answer)
    if type(error) is not SchedulerRefused:
        return error
    if "step aborted" in error.output:
        return SchedulerRefused("The job ended while the command ran", output=error.output)
    step = "Only its owner can, while it runs. Some sites do not allow steps from the login node."
    text = error.output or "no output"
    return SchedulerRefused(
        "Slurm cannot start a step in this job", step, status=answer.status, output=text
    )
