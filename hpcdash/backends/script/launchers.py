"""The line of bash that starts a training on one node or several: plain, torchrun, accelerate, a rank per srun task.

Knows no scheduler's options but srun's; the variables of rank and address are expanded on the node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcdash.backends.script.early_signal import signal_name
from hpcdash.domain.request import EarlySignal, Launcher
from hpcdash.errors import UsageError

# One rank's end ends the others: 60 s after the first that ended well, at once after one that did not.
SRUN_OPTIONS = ("--wait=60", "--kill-on-bad-exit=1")
# torch's elastic agent takes these as the end.
_ENDS_LAUNCHERS = ("TERM", "INT", "HUP", "QUIT")
# PBS's fan-out sets these variables on each host, Slurm's srun those.
_PBS_NODES, _PBS_RANK = '"$NUM_NODES"', '"$NODE_RANK"'
_SLURM_NODES, _SLURM_RANK = '"$SLURM_JOB_NUM_NODES"', '"$SLURM_PROCID"'
# Where a command of bash starts Python, or a launcher of its own: at its begin, on a line of its own, after && or ;
_PROGRAM = re.compile(
    r"(?P<before>(?:^|&&|;)[ \t]*(?:[A-Za-z_]\w*=[^\s'\"]*[ \t]+)*)"
    r"(?P<program>(?:python[0-9.]*(?:[ \t]+-u)?|torchrun|accelerate[ \t]+launch))[ \t]+(?=\S)",
    re.MULTILINE,
)
# The first word of a command that is no program of Python's: `bash`, `./run.sh`, not `train.py` or `-m`.
_NO_PYTHON = re.compile(r"(?![^\s]*\.py\b)[A-Za-z0-9_./][^\s]*")

_MPI = re.compile(r"(?:^|[;&|(])[ \t]*(?:exec[ \t]+)?(?P<program>mpirun|mpiexec(?:\.hydra)?)\b", re.MULTILINE)

_SLURM_ADDRESS = """\
# Where the ranks meet: the first node, on a port of this job's own.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
export MASTER_ADDR MASTER_PORT
"""
_COUNT = """\
if [ "$SLURM_JOB_NUM_NODES" -ne {nodes} ]; then
  echo "nodes given: $SLURM_JOB_NUM_NODES, asked for: {nodes}. Not started." >&2
  exit 1
fi
"""
# accelerate starts as many on each node.
_EVEN = """\
for count in "${slots[@]}"; do
  if [ "$count" -ne "${slots[0]}" ]; then
    echo "the hosts have slots in different numbers (${slots[*]}), which accelerate cannot use: not started" >&2
    exit 1
  fi
done
"""


@dataclass(frozen=True, slots=True)
class Start:
    """What a fan-out starts: a `line` of bash, how many on a node (None: as the tasks are spread), srun's options.

    `notes` are sentences for the person who asks.
    """

    line: str
    tasks_per_node: int | None = 1
    srun_options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def start_of(
    launcher: Launcher,
    command: str,
    per_node: int | None,
    *,
    ranks: int = 1,
    signal: EarlySignal | None = None,
    is_pbs: bool = False,
) -> Start:
    """`command` is bash; for torchrun and accelerate it is their arguments: `train.py --lr 1`.

    `per_node` ranks start on each node; None: Slurm spreads `ranks` GPUs as it finds them, and each node has one for
    each of its own. PBS's fan-out says how many each host has. The launchers themselves ignore an early signal, which
    would end them; the ranks set a handler of their own. Raises UsageError for an empty command.
    """
    command = command.strip("\n")
    if not command.strip():
        raise UsageError("command: there is nothing to start", "Write command or script.")
    if launcher in (Launcher.PLAIN, Launcher.SRUN):
        kept = "# {0} is for the programs: this shell goes on.\ntrap : {0}\n"
        line = (kept.format(signal_name(signal)) if signal else "") + command
        return Start(line) if launcher is Launcher.PLAIN else Start(line, per_node, SRUN_OPTIONS)
    notes = []
    if launcher is Launcher.ACCELERATE and per_node is None and ranks > 1:
        notes.append("accelerate needs as many GPUs on each node, which only slots_per_node asks for")
    before, command, said = _program_of(launcher, command)
    notes += said
    if signal and signal_name(signal) in _ENDS_LAUNCHERS:
        notes.append(f"signal: {signal_name(signal)} ends {launcher} and with it the training; USR1 and USR2 do not")
    nodes, rank = (_PBS_NODES, _PBS_RANK) if is_pbs else (_SLURM_NODES, _SLURM_RANK)
    if launcher is Launcher.TORCHRUN:
        each = '"$NODE_SLOTS"' if is_pbs else per_node or "gpu"
        program = (
            "torchrun \\\n"
            f"  --nnodes={nodes} --nproc-per-node={each} --node-rank={rank} \\\n"
            '  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\\n'
        )
    else:
        count = '"$NUM_SLOTS"' if is_pbs else ranks if per_node is None else f'"$((SLURM_JOB_NUM_NODES * {per_node}))"'
        program = (
            "accelerate launch \\\n"
            f"  --num_machines={nodes} --num_processes={count} --machine_rank={rank} \\\n"
            '  --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT" \\\n'
        )
    ignored = f"# {launcher} would end at {{0}}; the ranks set handlers of their own.\ntrap '' {{0}}\n"
    line = (ignored.format(signal_name(signal)) if signal else "") + f"{before}{program}  {command}"
    return Start(line, 1, SRUN_OPTIONS, tuple(notes))


def _program_of(launcher: Launcher, command: str) -> tuple[str, str, list[str]]:
    """(bash for before the launcher, its arguments, what is to be said of that)."""
    first = _NO_PYTHON.match(command)
    found = list(_PROGRAM.finditer(command))
    if found and (found[0].start("program") == 0 or (first and len(found) == 1)):
        program, before = found[0]["program"], command[: found[0].start("program")]
        is_python = program.startswith("python")
        why = f"{launcher} starts Python itself" if is_python else f"hpcdash writes {program}'s options"
        said = f"{launcher} stands in the place of {program}" if before else f"{program} is left out of the command"
        return before, command[found[0].end() :], [f"{why}: {said}"]
    if first and found:
        words = f"command: {launcher} starts one program of Python's, and there are {len(found)} after {first.group()}"
        raise UsageError(words, "Put what comes before it into a script of its own, or write the command out: plain.")
    if first:
        return "", command, [f"{launcher} takes {first.group()} for a program of Python's: it starts nothing else"]
    return "", command, []


def lone_launcher(command: str) -> Launcher | None:
    """The launcher that a command starts by itself without telling it of other nodes."""
    programs = {one["program"].split()[0] for one in _PROGRAM.finditer(command)}
    tells = re.search(r"--(?:nnodes|num[-_]machines|rdzv|machine[-_]rank|node[-_]rank)", command)
    return next((one for one in (Launcher.TORCHRUN, Launcher.ACCELERATE) if one in programs and not tells), None)


def lone_mpi_launcher(command: str) -> str:
    """The word with which a command starts MPI ranks on all hosts, wherever it starts itself; '' for none."""
    found = None if "NODE_RANK" in command else _MPI.search(command)
    return found["program"] if found else ""


def slurm_preamble(launcher: Launcher, nodes: int | None) -> str:
    """Bash for before the fan-out: ends the job where not `nodes` nodes were given (None: any number will do)."""
    count = "" if nodes is None else _COUNT.format(nodes=int(nodes))
    address = "" if launcher is Launcher.PLAIN else _SLURM_ADDRESS
    return "\n".join(part for part in (count, address) if part)


def pbs_preamble(launcher: Launcher) -> str:
    """Bash for between the fan-out's text, which sets the addresses, and its start. Raises UsageError for srun."""
    if launcher is Launcher.SRUN:
        raise UsageError("launcher: srun is Slurm's, not PBS's", "Write plain, torchrun or accelerate.")
    return _EVEN if launcher is Launcher.ACCELERATE else ""
