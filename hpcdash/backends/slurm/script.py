"""A request as sbatch's script: its options, and the bash that starts the command on each node with
srun.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hpcdash.backends.options import Directives, refuse_repeated
from hpcdash.backends.script import cron
from hpcdash.backends.script.allocation import waiting_part
from hpcdash.backends.script.body import (
    NOT_IN_DIRECTIVES,
    START,
    BatchScript,
    Body,
    Place,
    accounting_names,
    command_line,
    effective_name,
    export_lines,
    exports,
    format_request,
    in_code_folder,
    is_spread,
    node_steps,
    packages_part,
    path_line,
    quote_arguments,
    resume_part,
    script_body,
    script_text,
    share_mark,
    unsupported_fields,
    watches_preemption,
)
from hpcdash.backends.script.containers.words import Word
from hpcdash.backends.script.cron import CronJob
from hpcdash.backends.script.environment import JobEnvironment, NodeJobs
from hpcdash.backends.script.launchers import pass_on_trap, signal_name
from hpcdash.backends.script.plain import plain_request, plain_text
from hpcdash.backends.slurm import options as sbatch
from hpcdash.backends.slurm.options import directive_word, extra_options
from hpcdash.domain.dependencies import format_after
from hpcdash.domain.offers import CpuShare
from hpcdash.domain.request import (
    INTERACTIVE_KINDS,
    LONE_LAUNCHERS,
    EarlySignal,
    Launcher,
    Request,
    Slots,
    SlotType,
    format_slots,
    request_slot_type,
    request_slots,
)
from hpcdash.domain.units import format_clock, parse_duration
from hpcdash.errors import UsageError
from hpcdash.job.preemption import STOPPED_EARLY
from hpcdash.job.switches import KILL_SWITCH
from hpcdash.shell_files import shell_text

# Field of a request that an option in extra_args duplicates.
_FIELDS = {
    "job-name": "name",
    "account": "account",
    "qos": "qos",
    "time": "time",
    "mem": "memory",
    "array": "array",
    "dependency": "after",
    "hold": "hold",
    "signal": "signal",
    "exclude": "exclude_nodes",
    "wckey": "project",
    "cpus-per-task": "slots_per_node",
    "gpus-per-task": "slots_per_node",
}
_BETTER_AS_FIELDS = {
    "signal": "the script passes on only known signals; set signal",
    "array": "all tasks write to one log; set array",
}
# Fields of a request that only qsub has.
_PBS_FIELDS = ("place", "attributes", "keep_files")
_LONGEST_NAME = 200
_MAX_REQUEUES = 20
# A task is a rank.
_OF_RANKS = LONE_LAUNCHERS | {Launcher.SRUN}
ENVIRONMENT = JobEnvironment(
    "Slurm",
    own=("SLURM_*",),
    array_task="SLURM_ARRAY_TASK_ID",
    log_name="$SLURM_JOB_ID",
    array_log_name="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
    node_count="SLURM_JOB_NUM_NODES",
    node_rank="SLURM_PROCID",
    is_inherited=True,
    finds_nodes=True,
    hosts=r'$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/:@EACH/" | paste -s -d '
    r", -)",
    has_pyxis=True,
    node_name="${SLURMD_NODENAME:-$HOSTNAME}",
)


def batch_script(
    request: Request,
    place: Place,
    *,
    queue_has_gpus: bool = True,
    has_live_logs: bool = True,
    cpu_share: CpuShare | None = None,
) -> BatchScript:
    """The script, with the scheduler's options as `#SBATCH` lines.

    Slurm writes logs where they belong, and its sites set the CPUs of a GPU (DefCpuPerGPU).
    """
    request = in_code_folder(request, place)
    plain_notes: tuple[str, ...] = ()
    if request.plain:
        request, plain_notes = plain_request(request, place)
    slot_type = request_slot_type(request, queue_has_gpus=queue_has_gpus)
    name, warnings = effective_name(request, place.uid, _LONGEST_NAME)
    resources = resource_directives(request, slot_type)
    extra = extra_options(request.extra_args)
    generated, extra = _one_gres(_generated(request, place, name, resources, _given(extra)), extra)
    warnings += _refuse_repeated(generated, extra, request)
    options = (*generated, *extra, *extra_options((), request.exclude_nodes))
    messages = (*warnings, *unsupported_fields(request, _PBS_FIELDS, "Slurm"))
    if request.plain:
        lines = (export_lines(request.environment), command_line(request, place))
        text = plain_text(options, "#SBATCH", lines)
        return BatchScript(text, name, (*plain_notes, *messages, *resources.warnings))
    body = script_body(request, place, slot_type, ENVIRONMENT)
    watch = preemption_watch(request, place)
    if request.max_requeues and not watch:
        messages += ("max_requeues: works only with requeue and checkpoints",)
    nodes = None
    if not is_spread(request, slot_type) and "--nodes=1-" in " ".join(resources.options):
        # Slurm is given a range of nodes for GPUs; where each has its own number, but one fits.
        nodes = request_slots(request).nodes
    # Slurm reads no directive of a run in an allocation.
    folder = shlex.quote(request.work_dir) if place.is_run and request.work_dir else ""
    parts = [
        folder and f"cd -- {folder} || exit 1",
        exports(body.environment),
        body.definitions,
        body.library,
        packages_part(request, place),
        end_time(request.limit_seconds) if request.job_library else "",
        resume_part(request, "SLURM_ARRAY_TASK_ID"),
        watch,
        preamble(request.launcher, nodes, has_ranks=request.rank_variables == "nodes"),
        body.package,
        *_start_parts(request, place, body, requeue=requeue_line(request) if watch else ""),
    ]
    if place.waiting is not None:
        in_use = shell_text("backends/script/beside.sh", "backends/slurm/in_use.sh")
        waits = waiting_part(
            request, place.folder, place.waiting, slot_type, job="$SLURM_JOB_ID", in_use=in_use
        )
        parts = [exports(body.environment), body.path, waits]
    requested = format_request(request, place, slot_type, ENVIRONMENT)
    text = script_text(requested, options, "#SBATCH", parts)
    return BatchScript(text, name, (*messages, *resources.warnings, *body.notes))


def _generated(
    request: Request, place: Place, name: str, resources: Directives, given: Mapping[str, str]
) -> list[str]:
    """Return the options of a request's fields; `given` are those of a person's own."""

    def option(name: str, field: str = "") -> list[str]:
        value = getattr(request, field or name)
        return [f"--{name}={directive_word(field or name, value)}"] if value else []

    is_requeued = request.requeue or request.is_task
    generated = [
        f"--job-name={name}",
        *_files(request, place),
        *option("partition", "queue"),
        *resources.options,
        *_amounts(request),
        *option("account"),
        *option("qos"),
        *option("reservation"),
        *project_options(accounting_names(request)),
        *option("chdir", "work_dir"),
    ]
    if request.array:
        generated.append(f"--array={request.array}")
    if request.after:
        generated.append(f"--dependency={format_after(request.after)}")
    if request.hold or request.is_task:
        generated.append("--hold")
    if request.is_task:
        generated.append(f"--comment={share_mark(request, place)}")
    if request.begin:
        generated.append(f"--begin={_begin(request.begin)}")
    if request.signal:
        generated.append(signal_option(request.signal))
    generated.append("--requeue" if is_requeued else "--no-requeue")
    if request.is_task and "exclusive" not in given:
        # The pool counts nodes, whatever its partition lets jobs share.
        generated.append("--exclusive")
    if is_requeued and "open-mode" not in given:
        # Slurm truncates a requeued job's logs, and a training's curve would start over.
        generated.append("--open-mode=append")
    return generated


def _start_parts(request: Request, place: Place, body: Body, *, requeue: str) -> list[str]:
    """Return bash for the steps before the command and for its start; `requeue` is for its end, ''
    where it is not watched.
    """
    early_name = signal_name(request.signal) if request.signal else ""
    # A PATH of the request is for its hook too.
    hook = f"{path_line(request)}{request.startup_hook}" if request.startup_hook.strip() else ""
    steps = node_steps(replace(request, startup_hook=hook), place, _AFTER_PROBE)
    prepare = shell_text("backends/script/node_step.sh", "backends/slurm/prepare_nodes.sh")
    parts = [prepare, *steps] if steps else []
    is_lone = request.launcher in LONE_LAUNCHERS
    tasks = body.tasks_per_node
    is_alone = request_slots(request).nodes == 1 and tasks == 1
    log = _rank_log(request, place)
    arguments = body.arguments
    if not is_lone and (log or not is_alone):
        around, arguments = keep_status(arguments, early_name, log=log, is_alone=is_alone)
        parts.append(around)
    plain = request.launcher is Launcher.PLAIN
    options = (*(() if plain else SRUN_OPTIONS), *body.srun_options)
    if request.signal is None or not request.signal.batch_only:
        start = srun_line(arguments, tasks_per_node=tasks, srun_options=options, is_lone=is_lone)
        return [*parts, start + (f'status=$?\n{requeue}\nexit "$status"\n' if requeue else "")]
    # scancel ends this shell with TERM; any other early signal no longer means anything.
    no_trap = "-" if early_name == "TERM" else "''"
    end = f"trap {no_trap} {early_name}\n{requeue}\nexit" if requeue else "exit"
    start = fanout(
        arguments,
        {},
        step=len(steps),
        tasks_per_node=tasks,
        srun_options=options,
        is_lone=is_lone,
    )
    return [*parts, start, signal_trap(request.signal), START.replace("exit", end)]


def node_options(nodes: Sequence[str]) -> NodeJobs:
    """(nodes, extra_args) of each job that is needed to have just these nodes."""
    return ((tuple(nodes), (f"--nodelist={','.join(nodes)}",)),)


def _begin(text: str) -> str:
    return f"now+{parse_duration(text[1:])}" if text.startswith("+") else text


def _files(request: Request, place: Place) -> list[str]:
    number = "%A_%a" if request.array else "%j"
    folder = f"{place.folder}/" if place.folder else ""
    return [f"--output={folder}{number}.out", f"--error={folder}{number}.err"]


def _amounts(request: Request) -> list[str]:
    """Time to the second, memory of a node in GiB or MiB, rounded up."""
    parts = []
    if request.limit_seconds is not None:
        parts.append(f"--time={format_clock(request.limit_seconds)}")
    if request.memory_bytes is not None:
        gib, rest = divmod(request.memory_bytes, 2**30)
        parts.append(f"--mem={-(-request.memory_bytes // 2**20)}M" if rest else f"--mem={gib}G")
    return parts


def _one_gres(generated: list[str], extra: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Merge a person's `--gres=tmp:10` with the slots' own: sbatch takes only the last.

    `--gres=none` requests nothing more; within a list sbatch would take it for a resource's name.
    """
    ours = next((option for option in generated if option.startswith("--gres=")), None)
    if ours is None:
        return generated, extra
    joined = [ours]
    remaining = []
    for text in extra:
        read = sbatch.read_command_line(sbatch.split_arguments(text)).given
        if [option.name for option in read] == ["gres"]:
            joined += [value] if (value := read[0].value or "") and value.lower() != "none" else []
        else:
            remaining.append(text)
    merged = [",".join(joined) if option == ours else option for option in generated]
    return merged, tuple(remaining)


def _refuse_repeated(
    generated: list[str], extra: tuple[str, ...], request: Request
) -> tuple[str, ...]:
    """Raises UsageError for an option of both; warnings for those that a script is to know of."""

    ours = _given([*generated, *extra_options((), request.exclude_nodes)])
    fields = {name: _FIELDS.get(name, "the request") for name in ours}
    if request.cpus_per_gpu:
        fields |= dict.fromkeys(("cpus-per-gpu", "cpus-per-task"), "cpus_per_gpu")
    # sbatch takes one of the three alone.
    fields |= dict.fromkeys(("mem-per-cpu", "mem-per-gpu") if "mem" in ours else (), "memory")
    given = _given(extra)
    refuse_repeated(fields, given)
    return tuple(
        f"{given[name]} in extra_args: {text}"
        for name, text in _BETTER_AS_FIELDS.items()
        if name in given
    )


def _given(options: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Options by their long names, as they are written."""
    parts = [word for text in options for word in sbatch.split_arguments(text)]
    return {
        option.name: option.written
        for option in sbatch.read_command_line(parts).given
        if option.name
    }


_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_UNCOUNTED = "this Slurm does not count GPUs: the script must choose them (CUDA_VISIBLE_DEVICES)"


def resource_directives(request: Request, slot_type: SlotType) -> Directives:
    """Options for the nodes and their slots, by what the site's Slurm counts: GPUs as TRES, as
    GRES, or not at all.
    """
    slots = request_slots(request)
    requested = _slots(request, slots, slot_type)
    if slot_type is SlotType.CPU or not slots.slots or not request.cpus_per_gpu:
        return requested
    return requested + Directives((_cpus_beside_gpus(request, slots, requested),))


def _cpus_beside_gpus(request: Request, slots: Slots, requested: Directives) -> str:
    """Return the option for CPUs per GPU, or per task where a task has one GPU or all of a node's.

    --cpus-per-gpu is only used for GPUs that Slurm itself spreads.
    """
    if (
        any(option.startswith("--gpus=") for option in requested.options)
        and request.launcher not in _OF_RANKS
    ):
        return f"--cpus-per-gpu={request.cpus_per_gpu}"
    gpus = 1 if request.launcher in _OF_RANKS else slots.per_node
    return f"--cpus-per-task={gpus * (request.cpus_per_gpu or 1)}"


def _slots(request: Request, slots: Slots, slot_type: SlotType) -> Directives:
    if slots.slots == 0:
        return Directives(("--nodes=1", "--ntasks=1"))
    if request.launcher in _OF_RANKS:
        return _task_a_rank(request, slots, slot_type)
    if slot_type is SlotType.CPU:
        each = (f"--cpus-per-task={slots.per_node}",) if slots.is_per_node else ()
        return Directives((*_tasks(slots), *each), _spare(slots, slot_type))
    site = request.site
    if not site.gres_supported:
        return Directives(_tasks(slots), (_UNCOUNTED,))
    if site.tres_supported and slots.slots % (slots.per_node if slots.is_per_node else 1) == 0:
        return Directives(_by_tres(request, slots))
    warnings = _spare(slots, slot_type)
    if site.tres_supported:
        refused = (
            f"Slurm cannot split {slots.slots} GPUs into tasks of {slots.per_node}: whole nodes "
            "are requested"
        )
        warnings = (refused, *warnings)
    return Directives((*_tasks(slots), f"--gres=gpu:{_typed(request)}{slots.per_node}"), warnings)


def _by_tres(request: Request, slots: Slots) -> tuple[str, ...]:
    """Slurm finds the nodes for so many GPUs; with `slots_per_node` each task has that many."""
    kind = _typed(request)
    each = (f"--gpus-per-task={kind}{slots.per_node}",) if slots.is_per_node else ()
    return (
        f"--gpus={kind}{slots.slots}",
        f"--nodes={_any_nodes(request)}",
        "--tasks-per-node=1",
        *each,
    )


def _task_a_rank(request: Request, slots: Slots, slot_type: SlotType) -> Directives:
    """Return directives where srun starts each rank: a task is a slot and sees its node's GPUs."""
    kind = _typed(request)
    if is_spread(request, slot_type):
        # Without --gpus-per-task Slurm spreads the tasks by CPUs: 7 on a node of 4 GPUs, one on the
        # next.
        return Directives(
            (
                f"--gpus={kind}{slots.slots}",
                f"--nodes={_any_nodes(request)}",
                f"--ntasks={slots.slots}",
                f"--gpus-per-task={kind}1",
            )
        )
    nodes = slots.nodes
    each = slots.per_node
    tasks = (f"--nodes={nodes}", f"--ntasks={nodes * each}", f"--ntasks-per-node={each}")
    if slot_type is SlotType.CPU:
        return Directives(tasks, _spare(slots, slot_type))
    if not request.site.gres_supported:
        return Directives(tasks, (_UNCOUNTED,))
    return Directives((*tasks, f"--gres=gpu:{kind}{each}"), _spare(slots, slot_type))


def _any_nodes(request: Request) -> str:
    return "1" if request.kind in INTERACTIVE_KINDS else f"1-{request.slots}"


def _tasks(slots: Slots) -> tuple[str, ...]:
    return (f"--nodes={slots.nodes}", f"--ntasks={slots.nodes}")


def _typed(request: Request) -> str:
    if request.gpu_type and not _GPU_TYPE.fullmatch(request.gpu_type):
        raise UsageError(
            f"gpu_type: {request.gpu_type!r} is not a Slurm GPU type",
            "Use letters, digits and ._+-, as in a100",
        )
    return f"{request.gpu_type}:" if request.gpu_type else ""


def _spare(slots: Slots, slot_type: SlotType) -> tuple[str, ...]:
    if slots.spare <= 0:
        return ()
    return (
        f"{format_slots(slots, slot_type)}: {slots.spare} more than the {slots.slots} requested",
    )


# Each task would see the one GPU that its place was found by, and srun's tasks of a node find
# theirs by SLURM_LOCALID.
_ALL_GPUS = """\
# Each task sees all of its node's GPUs, of which SLURM_LOCALID is its own.
unset SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK
"""


# srun answers 143 where it had to end any, and else the highest status: one that it ended is to
# have the lowest.
_ON_NODE = """\
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
@BEFOREtrap : @SIGNALS
"$@"
status=$?
@AFTERexit "$status"
END_OF_ON_NODE
"""
_STATUS_SAID = (
    "# Report the status of the task that failed, not 143 from the ones srun then terminates.\n"
)
_STATUS_AFTER = '[ "$status" -ne 143 ] || status=1\n'
_RANK_LOGS_SAID = (
    "# Each rank's output is also copied to its own log, except what runs before the command.\n"
)


_FANOUT = """\
# In the background, so that this shell can handle signals meanwhile; $! is set as soon as it starts.
start_nodes() {{
  {srun} &
}}

"""


def keep_status(
    parts: Sequence[str | Word], signal: str = "", *, log: str = "", is_alone: bool = False
) -> tuple[str, tuple[str | Word, ...]]:
    """Return bash and arguments for the tasks of an srun with the status of the failed task.

    `signal` is for the processes of the arguments: the shell around them continues. With `log`,
    bash for a path without its ending, each task's output is in `LOG.rank-N.out` and `.err` too.
    `is_alone`: there is only one task.
    """
    around = ("bash", "-c", Word('"$on_node"', is_shell=True), "on_node")
    message, before, after = ("", "", "") if is_alone else (_STATUS_SAID, "", _STATUS_AFTER)
    if log:
        message = f"{_RANK_LOGS_SAID}{message}"
        before = f"log={log}.rank-$SLURM_PROCID\n" + shell_text("backends/slurm/rank_logs.sh")
        after = shell_text("backends/slurm/rank_logs_end.sh") + after
    text = _ON_NODE.replace("@BEFORE", before).replace("@AFTER", after)
    return message + text.replace("@SIGNALS", f"TERM {signal}".strip()), (*around, *parts)


def _rank_log(request: Request, place: Place) -> str:
    """Return bash for the logs of ranks without their endings; '' where none are requested.

    Raises UsageError.
    """
    if not request.rank_logs:
        return ""
    if request.launcher in LONE_LAUNCHERS:
        raise UsageError(
            f"rank_logs: {request.launcher} starts the ranks itself", 'Set launcher = "srun".'
        )
    if place.is_run or place.waiting is not None:
        raise UsageError(
            "rank_logs: an allocation and its runs have one log each", "Remove rank_logs."
        )
    if not place.folder:
        raise UsageError(
            "rank_logs: no launch folder is set",
            "Set the launch folder: --storage-root PATH, or storage_root in [launch].",
        )
    return _log_name(request, place)


def _log_name(request: Request, place: Place) -> str:
    return f"{shlex.quote(place.folder)}/{ENVIRONMENT.array_log_name if request.array else ENVIRONMENT.log_name}"


def preemption_watch(request: Request, place: Place) -> str:
    """Return bash that defines `requeue_preempted`; '' where a start would start over, or the
    request has no requeue.

    Slurm warns a preempted job with TERM and later requeues it. A training that saves and ends
    within the GraceTime is COMPLETED.
    """
    if not watches_preemption(request, place):
        return ""
    return (
        f"export {STOPPED_EARLY}={_log_name(request, place)}.stopped\n"
        f"{shell_text('backends/slurm/requeue.sh')}"
    )


def requeue_line(request: Request) -> str:
    """Return the call of `requeue_preempted`, for the end of the command."""
    most = _MAX_REQUEUES if request.max_requeues is None else request.max_requeues
    kill_switch = request.environment.get(KILL_SWITCH, request.kill_switch)
    return f"requeue_preempted {most} {shlex.quote(kill_switch)}"


def srun_line(
    parts: Sequence[str | Word],
    *,
    tasks_per_node: int | None = 1,
    srun_options: Sequence[str] = (),
    is_lone: bool = False,
) -> str:
    """Return bash for sbatch's script: `parts` on each node by one srun, with its exit status.

    `tasks_per_node` None: as many tasks as the job has, as they are spread. Texts among `parts` are
    passed unchanged: text to be expanded on a node is in a `bash -c` among them. A container that
    does not inherit the environment has its variables among `parts`. A command that `is_lone`
    starts once, without srun, and starts ranks on all nodes by itself. Raises UsageError for text
    that bash cannot contain.
    """
    started = quote_arguments(parts) if is_lone else _srun(parts, tasks_per_node, srun_options, "")
    return f"{_settings(None if is_lone else tasks_per_node)}\n{started}\n"


def fanout(
    parts: Sequence[str | Word],
    environment: Mapping[str, str],
    *,
    step: int = 0,
    tasks_per_node: int | None = 1,
    srun_options: Sequence[str] = (),
    is_lone: bool = False,
) -> str:
    """Return the fan-out by srun for a script that handles signals meanwhile.

    Its srun is the `step`th of the script.
    """
    srun = quote_arguments(parts) if is_lone else _srun(parts, tasks_per_node, srun_options, "  ")
    settings = _settings(None if is_lone else tasks_per_node)
    if is_lone:
        signals = shell_text("backends/slurm/signal_lone.sh")
    else:
        signals = f"hpcdash_step={step}\n{shell_text('backends/slurm/signal_step.sh')}"
    wait = shell_text("backends/slurm/wait_nodes.sh")
    return f"{exports(environment)}{settings}\n{_FANOUT.format(srun=srun)}{signals}{wait}"


def _settings(tasks_per_node: int | None) -> str:
    return shell_text("backends/slurm/srun_settings.sh") + (
        _ALL_GPUS if tasks_per_node is None else ""
    )


def _srun(
    parts: Sequence[str | Word], tasks_per_node: int | None, options: Sequence[str], indent: str
) -> str:
    if tasks_per_node is None:
        tasks = '--ntasks="$SLURM_NTASKS"'
    elif tasks_per_node == 1:
        tasks = '--ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
    else:
        count = f"$((SLURM_JOB_NUM_NODES * {int(tasks_per_node)}))"
        tasks = f'--ntasks="{count}" --ntasks-per-node={int(tasks_per_node)}'
    lines = [
        f'srun --nodes="$SLURM_JOB_NUM_NODES" {tasks}',
        " ".join(shlex.quote(one) for one in options if not one.startswith("--container-")),
        *(shlex.quote(one) for one in options if one.startswith("--container-")),
        quote_arguments(parts),
    ]
    return f" \\\n{indent}  ".join(line for line in lines if line)


# sbatch: an integer between 0 and 65535.
_MAX_SIGNAL_SECONDS = 65535


def signal_option(signal: EarlySignal) -> str:
    """`--signal=USR1@600`, to all processes of the steps; `--signal=B:USR1@600`, to the batch shell
    alone.

    Raises UsageError for a signal that is none, or a time that sbatch refuses.
    """
    name = signal_name(signal)
    if signal.seconds_before > _MAX_SIGNAL_SECONDS:
        raise UsageError(
            f"signal: {signal.seconds_before} s before the limit exceeds Slurm's maximum",
            f"At most {_MAX_SIGNAL_SECONDS}.",
        )
    return f"--signal={'B:' if signal.batch_only else ''}{name}@{signal.seconds_before}"


def signal_trap(signal: EarlySignal) -> str:
    """Return bash that passes the batch shell's signal on to all nodes; '' where Slurm signals the
    steps itself.
    """
    recipient = " (Slurm: up to 60 s earlier), only to the batch shell"
    return pass_on_trap(signal, recipient) if signal.batch_only else ""


# One rank's end ends the others: 60 s after the first that succeeded, at once after one that did
# not.
SRUN_OPTIONS = ("--wait=60", "--kill-on-bad-exit=1")


def preamble(launcher: Launcher, nodes: int | None, *, has_ranks: bool = False) -> str:
    """Return bash before the fan-out: it ends a job without `nodes` nodes (None: any number).

    `has_ranks`: the command gets the address of the first node, though no launcher starts it.
    """
    parts = []
    if nodes is not None:
        parts.append(f"{shell_text('backends/slurm/require_nodes.sh')}require_nodes {nodes}\n")
    if has_ranks or launcher is not Launcher.PLAIN:
        parts.append(shell_text("backends/slurm/address.sh"))
    return "".join(parts)


_AFTER_PROBE = 'submit with exclude_nodes = ["NODE"], or --exclude=NODE'


def end_time(limit_seconds: int | None) -> str:
    """Return bash that sets HPCDASH_END_TIME to epoch seconds at each start of a requeued job.

    If Slurm does not respond it is the start plus the limit; without a limit it is empty, which
    means unknown.
    """
    call = "set_end_time" if limit_seconds is None else f"set_end_time {limit_seconds}"
    return f"{shell_text('backends/slurm/end_time.sh')}{call}\n"


def project_options(parts: Iterable[str]) -> tuple[str, ...]:
    """`--wckey="a,b"`, or nothing."""
    joined = NOT_IN_DIRECTIVES.sub("_", ",".join(parts))
    return (f'--wckey="{joined}"',) if joined else ()


def cron_script(job: CronJob, functions: str) -> str:
    """Return the script of a job that is submitted again at its start; `singleton` lets no two run
    at once.
    """
    directives = (
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        f"--time={format_clock(cron.LIMIT_SECONDS)}",
        f"--output={job.output_folder}/%j.out",
        "--dependency=singleton",
        *job.options,
    )
    return cron.cron_script(job, (f"#SBATCH {option}" for option in directives), functions)
