"""The line of bash that starts a training on one node or several: plain, torchrun, accelerate, a rank per srun task.

Knows no scheduler's options but srun's; the variables of rank and address are expanded on the node.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from hpcdash.errors import UsageError
from hpcdash.launch.request import EarlySignal, Launcher

# One rank's end ends the others: 60 s after the first that ended well, at once after one that did not.
SRUN_OPTIONS = ("--wait=60", "--kill-on-bad-exit=1")
# PBS's fan-out sets the first of each, srun the second.
_RANK = '"${NODE_RANK:-$SLURM_PROCID}"'
_NODE_COUNT = "${NUM_NODES:-$SLURM_JOB_NUM_NODES}"
_NODES = f'"{_NODE_COUNT}"'

_SLURM_ADDRESS = """\
# Where the ranks meet: the first node, on a port of this job's own.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT
"""
_COUNT = """\
if [ "{given}" -ne {nodes} ]; then
  echo "{nodes} nodes were asked for, {given} were given: not started" >&2
  exit 1
fi
"""


@dataclass(frozen=True, slots=True)
class Start:
    """What a fan-out starts: a `line` of bash, how many on a node (None: as the tasks are spread), srun's options."""

    line: str
    tasks_per_node: int | None = 1
    srun_options: tuple[str, ...] = ()


def start_of(
    launcher: Launcher, command: str, per_node: int | None, *, ranks: int = 1, signal: EarlySignal | None = None
) -> Start:
    """`command` is bash; for torchrun and accelerate it is their arguments: `train.py --lr 1`.

    `per_node` ranks start on each node; None: Slurm spreads `ranks` GPUs as it finds them, and each node has one for
    each of its own.
    The launchers themselves ignore an early signal, which would end them; the ranks set a handler of their own.
    Raises UsageError for an empty command.
    """
    if not command.strip():
        raise UsageError("command: there is nothing to start", "Write command or script.")
    if launcher is Launcher.PLAIN:
        return Start(command)
    if launcher is Launcher.SRUN:
        return Start(command, per_node, SRUN_OPTIONS)
    if launcher is Launcher.TORCHRUN:
        program = (
            f"torchrun --nnodes={_NODES} --nproc-per-node={per_node or 'gpu'} --node-rank={_RANK} \\\n"
            '  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\\n '
        )
    else:
        count = ranks if per_node is None else f'"$(({_NODE_COUNT} * {per_node}))"'
        program = (
            f"accelerate launch --num_machines={_NODES} --num_processes={count} \\\n"
            f'  --machine_rank={_RANK} --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT" \\\n '
        )
    ignored = f"trap '' {shlex.quote(signal.name)}\n" if signal else ""
    return Start(f"{ignored}exec {program} {command}", 1, SRUN_OPTIONS)


def slurm_preamble(launcher: Launcher, nodes: int | None) -> str:
    """Bash for before the fan-out: ends the job where not `nodes` nodes were given (None: any number will do)."""
    count = "" if nodes is None else _COUNT.format(given="$SLURM_JOB_NUM_NODES", nodes=int(nodes))
    return count + ("" if launcher is Launcher.PLAIN else _SLURM_ADDRESS)


def pbs_preamble(launcher: Launcher, nodes: int | None) -> str:
    """Bash for between the fan-out's text and its start, which sets the addresses. Raises UsageError for srun."""
    if launcher is Launcher.SRUN:
        raise UsageError("launcher: srun is Slurm's, not PBS's", "Write plain, torchrun or accelerate.")
    return "" if nodes is None else _COUNT.format(given="${#hosts[@]}", nodes=int(nodes))
