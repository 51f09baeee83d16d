"""Stacks of a running Slurm job: one task of a step of its own on each of the job's nodes, beside those that run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hpcdash.backends.queries import Answer, Query
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure
from hpcdash.backends.slurm.jobs import queue_id
from hpcdash.backends.stacks import LIMIT_SECONDS, NODE_SCRIPT, Stacks, read_stacks
from hpcdash.errors import CommandError, SchedulerRefused

# srun takes '6_1' and '25+1' for no job: it is given the number that each task and component has of its own.
# Measured on 22.05: with --overlap, --mem=0 and --gres=none the step starts at once while others have all there is.
_STEP = """
id=$1
case $id in *[!0-9]*)
  known=$(squeue -h -o "%i %A" -j "$1") || exit
  id=$(printf "%s\\n" "$known" | sed -n "s/^$1 //p")
  [ -n "$id" ] || { echo "Invalid job id specified: $1" >&2; exit 1; } ;;
esac
unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK
exec timeout -k 5 "$3" srun --jobid="$id" --overlap --immediate=30 --nodes="$2" --ntasks="$2" --ntasks-per-node=1 \\
  --gres=none --mem=0 --mpi=none --kill-on-bad-exit=0 --input=none --chdir=/ \\
  sh -c "$4" sh "$id" "^SLURM_JOB_ID=$id\\$"
"""


def stacks_query(row: Mapping[str, Any]) -> Query[Stacks]:
    """srun within the job; parse raises SchedulerRefused where Slurm starts no step in it."""
    words = (queue_id(str(row["id"])), str(row["nodes"] or 1), str(LIMIT_SECONDS), NODE_SCRIPT)
    return Query(
        slurm("sh", "-c", _STEP, "sh", *words), partial(read_stacks, failure=_failure), LIMIT_SECONDS + 15, ("srun",)
    )


def _failure(answer: Answer) -> CommandError:
    error = failure(answer)
    if type(error) is not SchedulerRefused:
        return error
    step = "Only its owner can, while it runs, and some sites allow no steps from the login node."
    words = error.words or f"no answer within {LIMIT_SECONDS} s"
    return SchedulerRefused("Slurm cannot start a step in this job", step, status=answer.status, words=words)
