"""A step of its own on each of a running job's nodes, beside those that run, with the job's GPUs and cgroup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.inside import GRACE_SECONDS, InsideCommand, InsideStep, fresh_frame_token, held
from hpcdash.backends.queries import Answer
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure
from hpcdash.backends.slurm.jobs import queue_id
from hpcdash.domain.nodelist import expand
from hpcdash.errors import CommandError, SchedulerRefused

# srun takes '6_1' and '25+1' for no job: it is given the number that each task and component has of its own.
# Measured on 22.05: with --overlap and --mem=0 the step starts at once while others have all there is, and has the
# job's GPUs. srun that is killed takes the step with it; one whose stdin ends tells the tasks.
_STEP = """
id=$1 nodes=$2 seconds=$3
shift 3
case $id in *[!0-9]*)
  known=$(squeue -h -o "%i %A" -j "$id") || exit
  number=
  while read -r shown number_of; do
    [ "$shown" != "$id" ] || number=$number_of
  done <<known
$known
known
  [ -n "$number" ] || { echo "Invalid job id specified: $id" >&2; exit 1; }
  id=$number ;;
esac
unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK
export HPCDASH_JOB_CGROUP="job_$id" HPCDASH_JOB_PATTERNS="^SLURM_JOB_ID=$id\\$" HPCDASH_NODE_VARIABLE=SLURMD_NODENAME
export HPCDASH_RANK_VARIABLE=SLURM_PROCID HPCDASH_INSIDE=1 HPCDASH_JOB_SUFFIX=
export HPCDASH_JOB_SAME=SLURM_CONF
export HPCDASH_JOB_VARIABLES="SLURM_JOB_ID SLURM_ARRAY_JOB_ID SLURM_HET_JOB_ID SLURM_PACK_JOB_ID"
exec timeout -k 5 "$seconds" srun --jobid="$id" --overlap --immediate=30 --nodes="$nodes" --ntasks="$nodes" \\
  --ntasks-per-node=1 --mem=0 --mpi=none --kill-on-bad-exit=0 --input=all --export=ALL --chdir=/ \\
  sh -c 'HPCDASH_NODE=$SLURMD_NODENAME; export HPCDASH_NODE; exec sh -c "$@"' sh "$@"
"""


def inside_step(row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
    """srun within the job. Slurm refuses it to all but the job's owner and operators."""
    token = fresh_frame_token()
    seconds = command.seconds + GRACE_SECONDS
    words = command.words(token, str(row["work_dir"] or ""), as_job=False)
    job = (queue_id(str(row["id"])), str(row["nodes"] or 1), str(seconds))
    try:
        nodes = tuple(expand(row["node_list"] or ""))
    except ValueError:
        nodes = ()
    argv = held(seconds, *slurm("sh", "-c", _STEP, "sh", *job, *words))
    return InsideStep(argv, token, seconds + 15.0, _failure, nodes, ("srun",))


def _failure(answer: Answer) -> CommandError:
    error = failure(answer)
    if type(error) is not SchedulerRefused:
        return error
    if "step aborted" in error.words:
        return SchedulerRefused("The job ended while the command ran", words=error.words)
    step = "Only its owner may, while it runs; and the site may let nobody start a step from the login node."
    words = error.words or "it said nothing"
    return SchedulerRefused("Slurm starts no step in this job", step, status=answer.status, words=words)
