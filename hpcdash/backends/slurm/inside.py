"""A step of its own on each of a running job's nodes, beside those that run, with the job's GPUs
and cgroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.inside import (
    GRACE_SECONDS,
    InsideCommand,
    InsideStep,
    fresh_frame_token,
    held,
)
from hpcdash.backends.queries import Answer
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure
from hpcdash.backends.slurm.jobs import queue_id
from hpcdash.domain.nodelist import expand
from hpcdash.errors import CommandError, SchedulerRefused

# A line `COUNT NODE` for each node of job $1: its GPUs there. A job's name has no part in these
# lines.
GPUS_BY_NODE = r"""
gpus_by_node() {
  scontrol show job -d "$1" 2>/dev/null | sed -n 's/^ *Nodes=\([^ ]*\) CPU_IDs=.* GRES=\([^ ]*\)$/\1 \2/p' |
    while read -r list gres; do
      count=0
      for one in $(printf '%s\n' "$gres" | sed 's/([^)]*)//g; s/,/ /g'); do
        case $one in gpu:*[!0-9]) ;; gpu:*) count=$((count + ${one##*:})) ;; esac
      done
      scontrol show hostnames "$list" | sed "s/^/$count /"
    done
}
"""
# srun does not accept '6_1' and '25+1' as jobs: it gets the number that each task and component has
# of its own. Measured on 22.05: with --overlap and --mem=0 the step starts at once while others use
# the whole node. A killed srun takes the step with it; one whose stdin ends notifies the tasks.
# Without an option for GPUs a step has those that the job requested: of --gpus-per-task=1 one GPU
# on each node, of --gpus=4 on one node none at all ("Invalid generic resource"). On nodes with as
# many GPUs --gres=gpu:N gives each node all its own; with different numbers, on each node alone
# --gpus=N does so in 22.05, which refuses --gres there, and --gres=gpu:N in 24.11, where --gpus
# finds the second node busy.
_STEP = (
    GPUS_BY_NODE
    + """
id=$1 nodes=$2 seconds=$3 has_gpus=$4
shift 4
case $id in *[!0-9]*)
  known=$(squeue -a -h -o "%i %A" -j "$id") || exit
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
set -- --mem=0 --mpi=none --kill-on-bad-exit=0 --input=all --export=ALL --chdir=/ \\
  sh -c 'HPCDASH_NODE=$SLURMD_NODENAME; export HPCDASH_NODE; exec sh -c "$@"' sh "$@"
step() {
  exec timeout -k 5 "$seconds" srun --jobid="$id" --overlap --immediate=30 --ntasks-per-node=1 "$@"
}
known=
[ -z "$has_gpus" ] || known=$(gpus_by_node "$id")
counts=$(printf '%s\\n' "$known" | cut -d ' ' -f 1 | sort -u)
case $counts in
  '' | 0) step --nodes="$nodes" --ntasks="$nodes" "$@" ;;
  *[!0-9]*) ;;
  *) step --nodes="$nodes" --ntasks="$nodes" --gres="gpu:$counts" "$@" ;;
esac
exec 3<&0
case $(srun --version) in *' 2'[012].*) option=--gpus= ;; *) option=--gres=gpu: ;; esac
running=
while read -r count node; do
  [ "$count" -gt 0 ] && gpus=$option$count || gpus=--gres=none
  ( step --nodes=1 --ntasks=1 --nodelist="$node" "$gpus" "$@" <&3 3<&- ) &
  running="$running $!"
done <<known
$known
known
status=0
for one in $running; do wait "$one" || status=$?; done
exit "$status"
"""
)


def inside_step(row: Mapping[str, Any], command: InsideCommand) -> InsideStep:
    """srun within the job. Slurm refuses it to all but the job's owner and operators."""
    token = fresh_frame_token()
    seconds = command.seconds + GRACE_SECONDS
    parts = command.words(token, str(row["work_dir"] or ""), as_job=False)
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
    argv = held(seconds, *slurm("sh", "-c", _STEP, "sh", *job, *parts))
    return InsideStep(argv, token, seconds + 15.0, _failure, nodes, ("srun",))


def _failure(answer: Answer) -> CommandError:
    error = failure(answer)
    if type(error) is not SchedulerRefused:
        return error
    if "step aborted" in error.words:
        return SchedulerRefused("The job ended while the command ran", words=error.words)
    step = "Only its owner can, while it runs. Some sites allow no steps from the login node."
    text = error.words or "it said nothing"
    return SchedulerRefused(
        "Slurm does not start a step in this job", step, status=answer.status, words=text
    )
