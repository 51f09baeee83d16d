"""Bash that tries each node of a job before its command starts, and names those that fail. Knows no request.

What is tried is a text of bash that ends with 0 on a node that is well. It runs outside of any container.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

# A broken GPU's driver hangs more often than it fails.
LIMIT_SECONDS = 300

_ON_EACH = """\
# $1 is the node, $2 the text; what it prints is shown with the node's name before it.
IFS= read -r -d '' on_probed << 'END_OF_ON_PROBED'
{kept}timeout -k 10 {limit} bash -c "$2" 2>&1 < /dev/null | timeout {longest} sed -u "s/^/$1: /" >&2
status=${{PIPESTATUS[0]}}
step="{step}"
[ "$status" -eq 0 ] || echo "hpcdash: node $1 failed the probe (status $status): $step" >&2
exit "$status"
END_OF_ON_PROBED
"""
_SLURM_STEP = 'submit with exclude_nodes = [\\"$1\\"], or --exclude=$1'
_PBS_STEP = "PBS leaves no node out by name: choose others with host= in select, or tell the site"

_SLURM = """\
# A step of its own, with all of the job's GPUs. On all nodes, whichever fails first.
env -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK srun \\
  --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none \\
  --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \\
  bash -c 'exec bash -c "$0" on_probed "${SLURMD_NODENAME:-$HOSTNAME}" "$1"' "$on_probed" "$probe" || exit 1
"""
_PBS = """\
probes=() failed=
for host in "${{hosts[@]}}"; do
  on_host "$host" \\
{variables}    bash -c "$on_probed" on_probed "$host" "$probe" &
  probes+=("$!")
done
# A signal cuts wait short while the probe still runs.
for pid in "${{probes[@]}}"; do
  while :; do
    interrupted=
    status=0
    wait "$pid" || status=$?
    [ -n "$interrupted" ] || break
  done
  [ "$status" -eq 0 ] || failed=1
done
[ -z "$failed" ] || exit 1
"""


def slurm_probe(probe: str, signal: str = "") -> str:
    """Bash for before the fan-out of sbatch's script, which is then its second step; '' without a probe.

    `signal` is the early signal, which neither ends a probe nor is taken for its failure.
    """
    if not probe.strip():
        return ""
    text = _texts(probe, _SLURM_STEP, signal)
    if not signal:
        return text + _SLURM
    kept = f"# {signal} is for the command, which has not started.\ntrap '' {signal}\n"
    return f"{text}{kept}{_SLURM}trap - {signal}\n"


def pbs_probe(probe: str, environment: Mapping[str, str], signal: str = "") -> str:
    """Bash for between the text of pbs_fanout(), whose `hosts` and `on_host` it uses, and its start; '' for no probe.

    The names of `environment` are those that pbs_fanout() took.
    """
    if not probe.strip():
        return ""
    variables = "".join(f"    {shlex.quote(f'{name}={value}')} \\\n" for name, value in environment.items())
    return _texts(probe, _PBS_STEP, signal) + _PBS.format(variables=variables)


def _texts(probe: str, step: str, signal: str) -> str:
    probe = probe.strip("\n")
    end = "END_OF_PROBE"
    while end in probe.split("\n"):
        end += "_"
    kept = f"trap '' {signal}\n" if signal else ""
    each = _ON_EACH.format(kept=kept, limit=LIMIT_SECONDS, longest=LIMIT_SECONDS + 20, step=step)
    said = "# On each node before the command starts anywhere; where it fails on any the job ends with 1."
    return f"{said}\nIFS= read -r -d '' probe << '{end}'\n{probe}\n{end}\n{each}"
