"""A shell beside a running PBS job: on its node, with its variables where they can be read, outside
of its limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.shell import ADOPT, ShellCommand, ShellRequest, in_job

# $1 is the job's id, then come the words to run. The variables are those of a process of the job.
_BESIDE = (
    ADOPT
    + r"""
id=$1; shift
found=
for of in /proc/[0-9]*; do
  [ -O "$of" ] || continue
  grep -qszFx -e "PBS_JOBID=$id" "$of/environ" || continue
  found=$of
  break
done
if [ -n "$found" ]; then
  devices='CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES'
  adopt "$found" "PBS_[A-Za-z0-9_]*|TMPDIR|NCPUS|OMP_NUM_THREADS|$devices"
else
  echo "hpcdash: no process of the job can be read here: its variables (PBS_*, TMPDIR) are not set" >&2
  export PBS_JOBID="$id"
fi
exec "$@"
"""
)
_NOTES = (
    "It is an ssh session on the job's node, not part of the job: the job's limits on memory and "
    "cores do not hold,"
    " and what you leave running goes on after the job's end.",
    "No GPU is shut off: CUDA_VISIBLE_DEVICES is the job's, where it could be read.",
)


def shell_command(row: Mapping[str, Any], request: ShellRequest) -> ShellCommand | None:
    """ssh from the login node; None where the job's nodes are not known."""
    if not request.node:
        return None
    inside = in_job(str(row["work_dir"] or ""), request)
    return ShellCommand(("sh", "-c", _BESIDE, "sh", str(row["id"]), *inside), request.node, _NOTES)
