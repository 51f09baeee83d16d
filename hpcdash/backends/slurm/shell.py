"""A shell in a running Slurm job: a step of its own beside those that run, on a pseudo-terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.shell import ShellCommand, ShellRequest, in_job
from hpcdash.backends.slurm.inside import GPUS_BY_NODE
from hpcdash.backends.slurm.jobs import queue_id

# srun does not accept '6_1' and '25+1' as jobs: it gets the number that each task and component has
# of its own. --overlap shares all of the job's resources with its other steps; with --cpu-bind=none
# the step has every core of the job, and not one for its one task. The person's own environment
# variables for steps do not apply to this one.
_STEP = (
    GPUS_BY_NODE
    + """
id=$1 node=$2 has_gpus=$3 pty=$4; shift 4
case $id in *[!0-9]*)
  known=$(SLURM_BITSTR_LEN=0 LC_ALL=C squeue -a -h -o "%i %A" -j "$id") || exit
  known=$(printf "%s\\n" "$known" | sed -n "s/^$id //p")
  [ -n "$known" ] || { echo "Invalid job id specified: $id" >&2; exit 1; }
  id=$known ;;
esac
for name in $(env | sed -n "s/^\\(SLURM_[A-Z_0-9]*\\)=.*/\\1/p"); do
  case $name in SLURM_CONF) ;; *) unset "$name" ;; esac
done
gpus=
[ -z "$has_gpus" ] || gpus=$(gpus_by_node "$id" | while read -r count on; do
  [ "$on" = "${node:-$on}" ] || continue
  [ "$count" -gt 0 ] && echo "--gpus=$count" || echo --gres=none
  break
done)
exec srun --quiet --jobid="$id" --overlap ${pty:+"$pty"} --immediate=30 --nodes=1 --ntasks=1 \\
  ${node:+"--nodelist=$node"} ${gpus:+"$gpus"} --cpu-bind=none --mem=0 --mpi=none --chdir=/ "$@"
"""
)


def shell_command(row: Mapping[str, Any], request: ShellRequest) -> ShellCommand:
    """srun within the job, which has its GPUs and its cgroup."""
    inside = in_job(str(row["work_dir"] or ""), request)
    has_gpus = "" if row["gpus"] == 0 else "gpus"
    pty = "--pty" if request.has_terminal else ""
    return ShellCommand(
        ("sh", "-c", _STEP, "sh", queue_id(str(row["id"])), request.node, has_gpus, pty, *inside)
    )
