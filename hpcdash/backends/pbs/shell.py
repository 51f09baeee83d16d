"""A shell beside a running PBS job: on its node, with its variables where they can be read, outside of its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdash.backends.shell import ShellCommand, ShellRequest, in_folder

# $1 is the job's id, then come the words to run. The variables are those of a process of the job, on a node of which
# none can be read they are not set. A value is taken as it is: of several lines too, and no shell reads it.
_BESIDE = r"""
id=$1; shift
found=
for of in /proc/[0-9]*; do
  [ -O "$of" ] || continue
  [ "$(tr '\0' '\n' < "$of/environ" 2>/dev/null | sed -n 's/^PBS_JOBID=//p' | head -n 1)" = "$id" ] || continue
  found=$of
  break
done
if [ -n "$found" ]; then
  for name in $(tr '\n\0' '\001\n' < "$found/environ" \
      | sed -n -E 's/^(PBS_[A-Za-z0-9_]*|TMPDIR|NCPUS|OMP_NUM_THREADS|(CUDA|NVIDIA|ROCR|HIP)_VISIBLE_DEVICES)=.*/\1/p'); do
    value=$(tr '\n\0' '\001\n' < "$found/environ" | sed -n "s/^$name=//p" | head -n 1 | tr '\001' '\n'; echo .)
    value=${value%??}
    export "$name=$value"
  done
else
  echo "hpcdash: no process of the job can be read here: its variables (PBS_*, TMPDIR) are not set" >&2
  export PBS_JOBID="$id"
fi
exec "$@"
"""
_NOTES = (
    "It is an ssh session on the job's node, not part of the job: the job's limits on memory and cores do not hold,"
    " and what you start goes on after the job's end.",
    "GPUs are not shut off: CUDA_VISIBLE_DEVICES is the job's where it could be read.",
)


def shell_command(row: Mapping[str, Any], request: ShellRequest) -> ShellCommand | None:
    """ssh from the login node; None where the job's nodes are not known."""
    if not request.node:
        return None
    inside = in_folder(str(row["work_dir"] or ""), request.command)
    return ShellCommand(("sh", "-c", _BESIDE, "sh", str(row["id"]), *inside), request.node, _NOTES)
