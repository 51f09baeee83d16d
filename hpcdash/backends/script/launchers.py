"""The line of bash that starts a training on a node (plain, torchrun, accelerate, ranks) and its
early signal.
"""

from __future__ import annotations

import re

from msgspec import Struct

from hpcdash.backends.script.environment import JobEnvironment
from hpcdash.domain.request import LONE_LAUNCHERS, EarlySignal, Launcher
from hpcdash.errors import UsageError
from hpcdash.shell_files import shell_text

# Signals that a program can act on; TERM is the end itself on PBS.
SIGNALS = ("USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "CONT")


def signal_name(signal: EarlySignal) -> str:
    """`USR1`, however it was written. Raises UsageError for none that a command can act on."""
    name = signal.name.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise UsageError(
            f"signal: {signal.name!r} is not a signal that a command can handle", ", ".join(SIGNALS)
        )
    if signal.seconds_before < 0:
        raise UsageError(
            f"signal: {signal.seconds_before} s before the limit is negative", "Use 0 or more."
        )
    return name


def pass_on_trap(signal: EarlySignal, recipient: str = "") -> str:
    """Return bash that passes the batch shell's early signal on to all nodes."""
    name = signal_name(signal)
    return (
        f"# {name} is sent {signal.seconds_before} s before the time limit{recipient}.\n"
        "# It is passed on to the command on all nodes.\n"
        f"{shell_text('backends/script/pass_on.sh')}trap 'pass_on {name}' {name}\n"
    )


# torch's elastic agent takes these as the end.
_ENDS_LAUNCHERS = ("TERM", "INT", "HUP", "QUIT")
# Places where a command of bash starts Python, or a launcher of its own: at its begin, on a line of
# its own, after && or ;
_PROGRAM = re.compile(
    r"(?P<before>(?:^|&&|;)[ \t]*(?:[A-Za-z_]\w*=[^\s'\"]*[ \t]+)*)"
    r"(?P<program>(?:python[0-9.]*(?:[ \t]+-u)?|torchrun|deepspeed|accelerate[ \t]+launch))[ "
    r"\t]+(?=\S)",
    re.MULTILINE,
)
# The first word of a command that is no program of Python's: `bash`, `./run.sh`, not `train.py` or
# `-m`.
_NO_PYTHON = re.compile(r"(?![^\s]*\.py\b)[A-Za-z0-9_./][^\s]*")

# What a shell does at the early signal where programs act on it, and where a launcher would end.
GOES_ON = "# {0} is meant for the programs: this shell keeps running.\ntrap : {0}\n"
IGNORED = "# {0} would end {launcher}; the ranks install their own handlers.\ntrap '' {0}\n"

_MPI = re.compile(
    r"(?:^|[;&|(])[ \t]*(?:exec[ \t]+)?(?P<program>mpirun|mpiexec(?:\.hydra)?)\b", re.MULTILINE
)


class Start(Struct, frozen=True):
    """Start of a fan-out: a `line` of bash, and the tasks per node (None: spread by the scheduler).

    `notes` are sentences for the person who submits.
    """

    line: str
    tasks_per_node: int | None = 1
    notes: tuple[str, ...] = ()


def start_commands(
    launcher: Launcher,
    command: str,
    per_node: int | None,
    *,
    ranks: int = 1,
    signal: EarlySignal | None = None,
    environment: JobEnvironment,
    python: str = "",
    path: str = "",
) -> Start:
    """`command` is bash; for torchrun, accelerate and deepspeed it is their arguments: `train.py
    --lr 1`.

    With `python`, bash for an interpreter, these are its modules, and `command` names a module too.

    `per_node` ranks start on each node; None: the scheduler spreads `ranks` GPUs as it finds them,
    and each node has one for each of its own. Where the script counts a node's slots, so many start
    there. The launchers themselves ignore an early signal, which would end them; the ranks set a
    handler of their own. `path` is bash that sets a PATH for the command. Raises UsageError for an
    empty command.
    """
    command = command.strip("\n")
    if not command.strip():
        raise UsageError("command: nothing to run", "Set command or script.")
    if launcher in (Launcher.PLAIN, Launcher.SRUN) or launcher in LONE_LAUNCHERS:
        line = GOES_ON.format(signal_name(signal)) if signal else ""
        if launcher in LONE_LAUNCHERS:
            return _lone_start(launcher, line, command, per_node, ranks, environment, path)
        line += path + command
        return Start(line) if launcher is Launcher.PLAIN else Start(line, per_node)
    notes = []
    if launcher is not Launcher.TORCHRUN and per_node is None and ranks > 1:
        notes.append(f"{launcher} needs the same number of GPUs on each node: set slots_per_node")
    before = ""
    setup = ""
    if not python:
        before, command, messages = _split_program(launcher, command)
        notes += messages
    if signal and signal_name(signal) in _ENDS_LAUNCHERS:
        notes.append(
            f"signal: {signal_name(signal)} ends {launcher} and with it the training; USR1 and "
            "USR2 do not"
        )
    ignored = IGNORED.format(signal_name(signal), launcher=launcher) if signal else ""
    program = _launcher_text(launcher, per_node, ranks, environment, python=python)
    if launcher is Launcher.DEEPSPEED:
        each = f'"${environment.node_slots}"' if environment.node_slots else per_node or ranks
        setup = _WORLD.format(nodes=f'"${environment.node_count}"', each=each)
    line = ignored + f"{setup}{path}{before}{program}  {command}"
    return Start(line, 1, tuple(notes))


def _launcher_text(
    launcher: Launcher,
    per_node: int | None,
    ranks: int,
    environment: JobEnvironment,
    *,
    python: str,
) -> str:
    """Return bash for torchrun, accelerate or deepspeed on a node, up to its own arguments."""
    nodes = f'"${environment.node_count}"'
    rank = f'"${environment.node_rank}"'
    if launcher is Launcher.TORCHRUN:
        each = f'"${environment.node_slots}"' if environment.node_slots else per_node or "gpu"
        return (
            f"{f'{python} -m torch.distributed.run' if python else 'torchrun'} \\\n"
            f"  --nnodes={nodes} --nproc-per-node={each} --node-rank={rank} \\\n"
            '  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\\n'
        )
    if launcher is Launcher.DEEPSPEED:
        return (
            f"{python or 'python'} -m deepspeed.launcher.launch \\\n"
            f'  --world_info="$world" --node_rank={rank} \\\n'
            '  --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \\\n'
        )
    count = str(ranks)
    if environment.slots_in_all:
        count = f'"${environment.slots_in_all}"'
    elif per_node is not None:
        count = f'"$(({environment.node_count} * {per_node}))"'
    return (
        f"{f'{python} -m accelerate.commands.launch' if python else 'accelerate launch'} \\\n"
        f"  --num_machines={nodes} --num_processes={count} --machine_rank={rank} \\\n"
        '  --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT" \\\n'
    )


# Arguments that deepspeed's own command passes to its launcher on each node by ssh; the nodes'
# names do not matter.
_WORLD = """\
ranks=$(seq -s , 0 "$(({each} - 1))")
world=$(for node in $(seq {nodes}); do printf ',"n%s":[%s]' "$node" "$ranks"; done)
world=$(printf '{{%s}}' "${{world#,}}" | base64 | tr -d '\\n' | tr '+/' '-_')
"""


def _lone_start(
    launcher: Launcher,
    before: str,
    command: str,
    per_node: int | None,
    ranks: int,
    environment: JobEnvironment,
    path: str,
) -> Start:
    """Return the start of a launcher that runs once, on the first node, with ranks on all nodes."""
    notes = []
    if per_node is None and ranks > 1 and launcher is Launcher.HOROVODRUN:
        raise UsageError(
            "launcher: horovodrun needs the number of ranks per node", "Set slots_per_node."
        )
    if environment.node_slots:
        before += f'[ "${environment.node_rank}" = 0 ] || exit 0\n'
    if found := re.match(rf"{launcher}[ \t]+", command):
        command = command[found.end() :]
        notes.append(f"hpcdash sets {launcher}'s options: {launcher} is removed from the command")
    hosts = ""
    if launcher is Launcher.HOROVODRUN:
        hosts = environment.hosts.replace("@EACH", str(per_node or 1))
        if path:
            before = f'{before}hosts="{hosts}"\n'
            hosts = "$hosts"
        hosts = f' -H "{hosts}"'
    # Slurm's own mpirun knows no -np, horovodrun no -n.
    count = "-np" if launcher is Launcher.HOROVODRUN else "-n"
    return Start(
        f"{before}{path}{launcher} {count} {ranks}{hosts} \\\n  {command}", None, tuple(notes)
    )


def _split_program(launcher: Launcher, command: str) -> tuple[str, str, list[str]]:
    """Return (bash before the launcher, its arguments, a note on them)."""
    first = _NO_PYTHON.match(command)
    found = list(_PROGRAM.finditer(command))
    if found and (found[0].start("program") == 0 or (first and len(found) == 1)):
        program = found[0]["program"]
        before = command[: found[0].start("program")]
        is_python = program.startswith("python")
        why = (
            f"{launcher} starts Python itself" if is_python else f"hpcdash sets {program}'s options"
        )
        message = (
            f"{launcher} replaces {program}" if before else f"{program} is removed from the command"
        )
        return before, command[found[0].end() :], [f"{why}: {message}"]
    if first and found:
        text = (
            f"command: {launcher} starts one Python program, and {first.group()} is followed by "
            f"{len(found)}"
        )
        raise UsageError(
            text,
            'Move the part before it into a script, or use launcher = "plain" with the whole '
            "command.",
        )
    if first:
        return (
            "",
            command,
            [f"{launcher} starts only Python programs: it treats {first.group()} as one"],
        )
    return "", command, []


def lone_launcher(command: str) -> Launcher | None:
    """The launcher that a command starts by itself without telling it of other nodes."""
    programs = {one["program"].split()[0] for one in _PROGRAM.finditer(command)}
    message_lines = re.search(
        r"--(?:nnodes|hostfile|no_ssh|num[-_]machines|rdzv|machine[-_]rank|node[-_]rank)", command
    )
    return next(
        (
            one
            for one in (Launcher.TORCHRUN, Launcher.ACCELERATE, Launcher.DEEPSPEED)
            if one in programs and not message_lines
        ),
        None,
    )


def lone_mpi_launcher(command: str) -> str:
    """The word with which a command starts MPI ranks on all hosts, wherever it starts itself; ''
    for none.
    """
    found = None if "NODE_RANK" in command else _MPI.search(command)
    return found["program"] if found else ""
