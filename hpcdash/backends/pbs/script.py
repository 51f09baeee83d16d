"""A request as qsub's script: its options, and the bash that starts the command on each host with
pbs_tmrsh.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain

from msgspec.structs import replace

from hpcdash.backends.options import Directives, refuse_repeated, whole_options
from hpcdash.backends.pbs import options as qsub
from hpcdash.backends.pbs.lint import build_demand
from hpcdash.backends.pbs.options import (
    attribute_options,
    directive_word,
    extra_options,
    format_task_range,
)
from hpcdash.backends.pbs.values import format_walltime
from hpcdash.backends.script import cron
from hpcdash.backends.script.allocation import STDERR_NAME, STDOUT_NAME, waiting_part
from hpcdash.backends.script.body import (
    NOT_IN_DIRECTIVES,
    START,
    BatchScript,
    Body,
    Place,
    accounting_names,
    checked_environment,
    command_line,
    effective_name,
    export_lines,
    exports,
    format_request,
    from_now,
    in_code_folder,
    named_keys,
    node_steps,
    packages_part,
    quote_arguments,
    resume_part,
    script_body,
    script_text,
    unsupported_fields,
)
from hpcdash.backends.script.containers.words import Word
from hpcdash.backends.script.cron import CronJob
from hpcdash.backends.script.environment import JobEnvironment, NodeJobs
from hpcdash.backends.script.launchers import pass_on_trap, signal_name
from hpcdash.backends.script.plain import plain_request, plain_text
from hpcdash.domain.dependencies import format_after
from hpcdash.domain.offers import CpuShare
from hpcdash.domain.request import (
    LONE_LAUNCHERS,
    NODE_LAUNCHERS,
    EarlySignal,
    Launcher,
    Request,
    Slots,
    SlotType,
    format_slots,
    request_slot_type,
    request_slots,
)
from hpcdash.domain.units import format_clock
from hpcdash.errors import UsageError
from hpcdash.shell_files import shell_text

ENVIRONMENT = JobEnvironment(
    "PBS",
    own=("PBS_*",),
    array_task="PBS_ARRAY_INDEX",
    log_name="job",
    array_log_name="job.$PBS_ARRAY_INDEX",
    node_count="NUM_NODES",
    node_rank="NODE_RANK",
    node_slots="NODE_SLOTS",
    slots_in_all="NUM_SLOTS",
    hosts='$(sort "$PBS_NODEFILE" | uniq -c | awk \'{ print $2 ":" $1 }\' | paste -s -d , -)',
)
_FIELDS = {"A": "account", "P": "project", "N": "name", "l": "time"}


def batch_script(
    request: Request,
    place: Place,
    *,
    queue_has_gpus: bool = True,
    has_live_logs: bool = True,
    cpu_share: CpuShare | None = None,
) -> BatchScript:
    """The script, with the scheduler's options as `#PBS` lines."""
    # A task that no coordinator resumes would wait for ever once it has saved.
    plain_notes: tuple[str, ...] = ()
    if request.plain:
        request, plain_notes = plain_request(request, place)
    is_shared = request.is_task
    request = replace(in_code_folder(request, place), share="", pool="")
    slot_type = request_slot_type(request, queue_has_gpus=queue_has_gpus)
    name, warnings = effective_name(request, place.uid, PBS_NAME_LETTERS)
    if is_shared:
        warnings = ("share: not supported on PBS; submitted as an ordinary job", *warnings)
    resources = resource_directives(request, slot_type, cpu_share)
    generated = _generated(request, place, name, has_live_logs=has_live_logs)
    extra = extra_options(request.extra_args)
    _refuse_repeated(generated, extra)
    options = (*generated, *resources.options, *_limit(request, resources.options), *extra)
    messages = (*warnings, *resources.warnings, *_unasked(request))
    if request.array is not None and not request.requeue:
        # PBS refuses an array with -r n: "cannot submit non-rerunable Array Job".
        messages += (
            "PBS arrays must be rerunable: a task may start again after a node failure even "
            "though requeue is off",
        )
    # Without a folder of the request PBS's own one of the job, where there is one.
    is_private = any(option.lower() == "-w sandbox=private" for option in generated)
    if request.plain:
        home = '"$PBS_JOBDIR"' if is_private else '"$PBS_O_WORKDIR"'
        lines = (
            export_lines(request.environment),
            f"cd -- {_folder(request, home)} || exit 1",
            command_line(request, place),
        )
        return BatchScript(plain_text(options, "#PBS", lines), name, (*plain_notes, *messages))
    home = '"$PBS_JOBDIR"' if is_private else '"${PBS_O_WORKDIR:-$HOME}"'
    body = script_body(request, place, slot_type, ENVIRONMENT)
    parts = [f"cd -- {_folder(request, home)} || exit 1", *_parts(request, place, body, resources)]
    if place.waiting is not None:
        in_use = shell_text("backends/script/beside.sh", "backends/pbs/in_use.sh")
        waits = waiting_part(
            request, place.folder, place.waiting, slot_type, job="$PBS_JOBID", in_use=in_use
        )
        parts = [parts[0], exports(body.environment), waits]
    requested = format_request(request, place, slot_type, ENVIRONMENT)
    text = script_text(requested, options, "#PBS", parts)
    return BatchScript(text, name, (*messages, *body.notes))


def _parts(request: Request, place: Place, body: Body, resources: Directives) -> list[str]:
    """Return the parts of a script that starts a body on all hosts."""
    limit_seconds = request.limit_seconds
    if limit_seconds is None:
        # The walltime among the -l of a person's own options.
        given = [qsub.read_directive(text).given for text in resources.options]
        limit_seconds = build_demand([*chain.from_iterable(given)]).limit_seconds
    steps = node_steps(request, place, _AFTER_PROBE)
    if steps:
        prepare = shell_text("backends/script/node_step.sh", "backends/pbs/prepare_nodes.sh")
        steps = [prepare, *steps]
    return [
        body.definitions,
        body.library,
        packages_part(request, place),
        end_time(limit_seconds) if request.job_library else "",
        resume_part(request, "PBS_ARRAY_INDEX"),
        body.package,
        _body_fanout(request, place, body, resources),
        preamble(request.launcher),
        signal_timer(request.signal, limit_seconds) if request.signal else "",
        *steps,
        START,
    ]


def _folder(request: Request, home: str) -> str:
    """Return bash for the folder of a job; `home` is that of a request without one."""
    return shlex.quote(request.work_dir) if request.work_dir else home


def _generated(request: Request, place: Place, name: str, *, has_live_logs: bool) -> list[str]:
    """Return the options of a request's fields."""
    generated = [f"-N {name}"]
    if place.folder:
        # Without a folder PBS writes NAME.oNUMBER where it is submitted from.
        log = "job.^array_index^" if request.array else "job"
        generated += [f"-o {place.folder}/{log}.out", f"-e {place.folder}/{log}.err"]
    if queue := request.reservation or request.queue:
        generated.append(f"-q {directive_word('queue', queue)}")
    if request.account:
        generated.append(f"-A {directive_word('account', request.account)}")
    generated += project_options(accounting_names(request))
    if request.array:
        generated.append(f"-J {format_task_range(request.array)}")
    if request.after:
        generated.append(f"-W depend={format_after(request.after)}")
    if request.hold:
        generated.append("-h")
    if request.begin:
        generated.append(f"-a {_begin(request.begin)}")
    if request.requeue or not request.array:
        generated.append("-r y" if request.requeue else "-r n")
    generated += attribute_options(request.attributes, request.extra_args)
    if request.keep_files:
        generated.append(f"-k {request.keep_files}")
    elif place.folder and has_live_logs:
        # All nodes see the launch's folder; PBS copies logs at the end where one cannot reach it.
        generated.append("-k oed")
    return generated


def _body_fanout(request: Request, place: Place, body: Body, resources: Directives) -> str:
    """Return the fan-out of a body."""
    arguments = body.arguments
    if place.is_run:
        # A run of an allocation has logs of its own: PBS writes into the job's.
        into = f'exec >> "$0/{STDOUT_NAME}" 2>> "$0/{STDERR_NAME}"; exec "$@"'
        arguments = ("bash", "-c", into, place.folder, *arguments)
    passed_on = named_keys(request)
    if body.package:
        passed_on = ("PY_EXEC", *passed_on)
    if body.library:
        passed_on = ("PYTHONPATH", *passed_on)
    # Each chunk's host stands in $PBS_NODEFILE once for each of its mpiprocs.
    mpiprocs = re.search(r":mpiprocs=([1-9][0-9]{0,5})\b", " ".join(resources.options))
    slots = request_slots(request)
    return fanout(
        arguments,
        body.environment,
        passed_on=passed_on,
        slots_a_chunk=slots.per_node,
        lines_a_chunk=int(mpiprocs[1]) if mpiprocs else 1,
        logs=_logs(request, place) if slots.nodes > 1 else None,
    )


def node_options(nodes: Sequence[str]) -> NodeJobs:
    """(nodes, extra_args) of each job that is needed to have just these nodes: one each, as a
    select names one host.
    """
    return tuple(((node,), (f"-l select=1:host={node}",)) for node in nodes)


def _begin(text: str) -> str:
    """`202612010800.00`."""
    if text.startswith("+"):
        raise UsageError(
            f"begin: PBS expects a time, not {text}", "Use a time such as 2026-12-01T08:00."
        )
    return datetime.fromisoformat(text).strftime("%Y%m%d%H%M.%S")


def _logs(request: Request, place: Place) -> tuple[str, str]:
    """Return bash for the files of the logs, which are those of a task in an array's."""
    if not place.folder:
        return "/dev/null", "/dev/null"
    name = '"job.$PBS_ARRAY_INDEX"' if request.array else "job"
    folder = shlex.quote(place.folder)
    return f"{folder}/{name}.out", f"{folder}/{name}.err"


def _limit(request: Request, requested: tuple[str, ...]) -> list[str]:
    if request.limit_seconds is None:
        return []
    if any("walltime=" in option for option in requested):
        refuse_repeated({"walltime": "time"}, {"walltime": "-l walltime"})
    return [f"-l walltime={format_walltime(request.limit_seconds)}"]


def _unasked(request: Request) -> list[str]:
    """Return a message for each field that PBS has no option for."""
    messages = []
    if request.qos:
        messages.append(f"PBS has no QoS: {request.qos} is ignored")
    if request.exclude_nodes:
        messages.append(
            "PBS cannot exclude nodes by name: the job may still get "
            f"{', '.join(request.exclude_nodes)}"
        )
    if request.rank_logs:
        messages.append("rank_logs: not supported on PBS; all ranks write to the job's log")
    return [*messages, *unsupported_fields(request, ("max_requeues",), "PBS")]


def _refuse_repeated(generated: list[str], extra: tuple[str, ...]) -> None:
    def letters(options: list[str] | tuple[str, ...]) -> dict[str, str]:
        given = [option for text in options for option in qsub.read_directive(text).given]
        return {
            option.name: f"-{option.name}" for option in given if option.name not in ("", "W", "l")
        }

    refuse_repeated(
        {name: _FIELDS.get(name, "the request") for name in letters(generated)}, letters(extra)
    )


# Of a host: qsub takes them in a select alone, once there is one.
_OF_A_CHUNK = frozenset(
    {"ncpus", "ngpus", "mem", "vmem", "mpiprocs", "ompthreads", "nodes", "host", "vnode", "arch"}
)


def resource_directives(
    request: Request, slot_type: SlotType, cpu_share: CpuShare | None = None
) -> Directives:
    """One select of as many chunks as nodes; of -l in `extra_args` all that is not ours to say
    stays.

    `cpu_share` is for GPUs beside which no CPUs are asked for; None where nothing is known of the
    queue.

    Raises UsageError for a select of several kinds of chunks, which one of ours cannot stand for.
    """
    slots = request_slots(request)
    ours = "ncpus" if slot_type is SlotType.CPU else "ngpus"
    theirs = _requested(request.extra_args, ours)
    beside = _beside_slots(theirs, ours)
    cpus, warnings = _cpus_beside_gpus(request, slots, slot_type, beside, cpu_share)
    if request.memory_bytes is not None:
        if "mem" in beside:
            raise UsageError(
                "-l select=…:mem= in extra_args cannot be combined with memory",
                "Remove one of them.",
            )
        beside["mem"] = _memory(request.memory_bytes)
    if request.launcher in LONE_LAUNCHERS and slots.slots:
        # What mpirun takes for the slots of a host.
        beside.setdefault("mpiprocs", str(slots.per_node))
    besides = "".join(f":{name}={value}" if value else f":{name}" for name, value in beside.items())
    has_amount = slot_type is SlotType.CPU or request.site.gres_supported
    amount = f":{ours}={slots.per_node}" if has_amount else ""
    if slots.slots == 0:
        # No slot at all is one core.
        amount = ":ncpus=1"
    parts = [f"select={slots.nodes}{amount}{cpus}{besides}"]
    if place := _placement(request.place, theirs, slots):
        parts.append(f"place={place}")
    parts += [
        f"{name}={value}" if value else name
        for name, value in theirs
        if name not in ("select", "place")
    ]
    warnings += _left_out(theirs, ours, slots)
    if slots.slots and not has_amount:
        warnings.append(
            "this PBS does not count GPUs: the script must choose them (CUDA_VISIBLE_DEVICES)"
        )
    if slots.slots and slots.spare:
        warnings.append(
            f"{format_slots(slots, slot_type)}: {slots.spare} more than the {slots.slots} requested"
        )
    if request.gpu_type and slot_type is not SlotType.CPU and request.gpu_type not in besides:
        warnings.append(
            f"gpu_type ({request.gpu_type}) is ignored: PBS sites name GPU types differently. "
            "Use extra_args, such as -l select=1:gpu_model=a100"
        )
    return Directives(
        tuple(f"-l {directive_word('extra_args', word)}" for word in parts), tuple(warnings)
    )


def _cpus_beside_gpus(
    request: Request,
    slots: Slots,
    slot_type: SlotType,
    beside: Mapping[str, str],
    share: CpuShare | None,
) -> tuple[str, list[str]]:
    """Return the CPUs that a chunk of GPUs requests, and messages on them: PBS gives it one by
    default.
    """
    if slot_type is SlotType.CPU or slots.slots == 0:
        return "", []
    if "ncpus" in beside and request.cpus_per_gpu:
        raise UsageError(
            "-l select=…:ncpus= in extra_args cannot be combined with cpus_per_gpu",
            "Remove one of them.",
        )
    if "ncpus" in beside or (not request.cpus_per_gpu and not request.site.gres_supported):
        return "", []
    each = request.cpus_per_gpu
    messages = []
    if each is None:
        each = share.per_gpu if share else None
        unknown = (
            "no CPUs requested with the GPUs: each chunk gets 1 CPU; set cpus_per_gpu for more"
        )
        messages = [share.text if share else unknown]
    if each is None:
        return "", messages
    cpus = f":ncpus={each * slots.per_node}"
    if request.launcher in (NODE_LAUNCHERS | LONE_LAUNCHERS) and "ompthreads" not in beside:
        # PBS sets OMP_NUM_THREADS to all CPUs of the chunk, which each rank would take for its own.
        cpus += f":ompthreads={each}"
    return cpus, messages


def _memory(amount_bytes: int) -> str:
    """In the largest unit that is whole; kb, which is 1024 bytes, rounded up."""
    for power, unit in ((30, "gb"), (20, "mb")):
        if amount_bytes % 2**power == 0:
            return f"{amount_bytes >> power}{unit}"
    return f"{-(-amount_bytes // 1024)}kb"


def _requested(extra_args: Iterable[str], ours: str) -> qsub.Pairs:
    """(resource, amount) of every -l; the other options are not looked at.

    Raises UsageError for a resource of a host outside of a select.
    """
    found: qsub.Pairs = []
    for text in whole_options(extra_args, qsub.read_directive, directive_word):
        for option in qsub.read_directive(text).given:
            if option.name == "l":
                found += qsub.resources(option.value or "")
    for name, value in found:
        if name in _OF_A_CHUNK:
            is_slots = name in (ours, "nodes")
            raise UsageError(
                f"-l {name} is not allowed in extra_args: PBS accepts it only in a select",
                "slots and slots_per_node" if is_slots else f"-l select=1:{name}={value}",
            )
    return found


def _beside_slots(requested: qsub.Pairs, ours: str) -> dict[str, str]:
    """Return the resources of a chunk in a person's own select, besides those of the slots."""
    stored: dict[str, str] = {}
    for name, value in requested:
        if name != "select":
            continue
        parts = qsub.chunks(value)
        if len(parts) != 1:
            raise UsageError(
                f"-l select={value}: different chunks cannot be combined with slots",
                "Write your own script for them, or use one kind of chunk.",
            )
        stored |= {resource: amount for resource, amount in parts[0][1] if resource != ours}
    return stored


def _left_out(requested: qsub.Pairs, ours: str, slots: Slots) -> list[str]:
    """Return a message for each difference between the slots and a person's own select; one chunk
    stands for any number.
    """
    messages = []
    for name, value in requested:
        if name != "select":
            continue
        count, parts = qsub.chunks(value)[0]
        each = str(slots.per_node)
        if count not in ("", "1", str(slots.nodes)) or dict(parts).get(ours, each) != each:
            messages.append(
                f"-l select={value} in extra_args: slots and slots_per_node set the chunk count "
                f"and {ours}"
            )
    return messages


def _placement(field: str, theirs: qsub.Pairs, slots: Slots) -> str:
    """Return the place of the chunks: each on a host of its own if so many are requested on each
    node, else as it is given.

    Without scatter PBS puts several chunks on a host that has room for them.
    """
    given = [value for name, value in theirs if name == "place"]
    if len(given) > 1 or (given and field):
        other = "place sets it" if field else "place is set twice"
        raise UsageError(
            f"-l place={given[0]} is not allowed in extra_args: {other}", "Remove one of them."
        )
    if not slots.is_per_node or slots.nodes == 1:
        return field or "".join(given)
    requested = qsub.Placement()
    written = f"place: {field}"
    if given:
        written = f"-l place={given[0]} in extra_args"
    try:
        if field or given:
            requested = qsub.read_placement(field or given[0])
    except ValueError as error:
        raise UsageError(f"{written}: {error}") from error
    if requested.arrangement not in ("", "scatter"):
        raise UsageError(
            f"{written}: slots_per_node requests {slots.nodes} nodes, which "
            f"{requested.arrangement} may not provide",
            f"Remove {requested.arrangement} or slots_per_node.",
        )
    return str(dataclasses.replace(requested, arrangement="scatter"))


def fanout(
    parts: Sequence[str | Word],
    environment: Mapping[str, str],
    *,
    passed_on: Sequence[str] = (),
    slots_a_chunk: int = 1,
    lines_a_chunk: int = 1,
    logs: tuple[str, str] | None = None,
) -> str:
    """Return bash for qsub's script: a command once on each host of $PBS_NODEFILE, in the script's
    own folder and a login shell.

    The hosts are in the order of that file; on the first, which is the script's own, the variable
    names it. Besides `environment` and the script's PATH there are NODE_RANK (from 0), NUM_NODES,
    NODE_SLOTS and NUM_SLOTS (of the host, and in all), MASTER_ADDR and MASTER_PORT, the same on all
    hosts, and of the script's own variables those `passed_on`. A chunk of `mpiprocs` has so many
    `lines_a_chunk` in the file. The first that fails ends all and the script, with its status.
    `logs` are bash words for the files of stdout and stderr of a job of several hosts: where PBS
    ends it, output goes there, and each host ends its own command. Raises UsageError for what bash
    cannot hold.
    """
    lines = [
        "# For the command, on every host:",
        _array(
            "environment",
            (shlex.quote(f"{name}={value}") for name, value in checked_environment(environment)),
        ),
        _array("passed_on", (f'"{name}=${name}"' for name in passed_on)),
        f"arguments=({quote_arguments(parts)})",
        f"chunk_slots={slots_a_chunk} chunk_lines={lines_a_chunk}",
        shell_text("backends/pbs/hosts.sh"),
    ]
    if logs:
        lines.append(f"out={logs[0]} err={logs[1]}\n{shell_text('backends/pbs/on_node.sh')}")
    return "\n".join((*lines, shell_text("backends/pbs/wait_for_hosts.sh")))


def _array(name: str, items: Iterable[str]) -> str:
    """Return bash that sets an array to quoted items, each on a line of its own."""
    lines = "".join(f"  {item}\n" for item in items)
    return f"{name}=(\n{lines})" if lines else f"{name}=()"


def signal_timer(signal: EarlySignal, limit_seconds: int | None) -> str:
    """Return bash whose timer sends the signal `limit_seconds - seconds_before` after the script's
    start, to all nodes.

    The timer ends with the script. Raises UsageError where there is no limit, or one that is over
    before.
    """
    name = signal_name(signal)
    if name == "TERM":
        raise UsageError("signal: PBS ends jobs with TERM", "Use USR1 as an early signal.")
    if limit_seconds is None:
        raise UsageError("signal: needs a time limit", "Set time.")
    delay = limit_seconds - signal.seconds_before
    if delay <= 0:
        raise UsageError(
            f"signal: {signal.seconds_before} s before a limit of {limit_seconds} s is before "
            "the job starts",
            "Use fewer seconds or a longer time limit.",
        )
    timer = shell_text("backends/pbs/timer.sh")
    return f"{pass_on_trap(signal)}{timer}start_timer {name} {delay}\n"


def preamble(launcher: Launcher) -> str:
    """Return bash for between the fan-out's text, which sets the addresses, and its start.

    Raises UsageError for srun.
    """
    if launcher is Launcher.SRUN:
        raise UsageError("launcher: srun is only for Slurm", "Use plain, torchrun or accelerate.")
    if launcher not in (Launcher.ACCELERATE, Launcher.DEEPSPEED):
        return ""
    return f"{shell_text('backends/pbs/even_slots.sh')}require_even_slots {launcher}\n"


_AFTER_PROBE = (
    "PBS cannot exclude nodes by name: choose other nodes with host= in select, or notify the site"
)


_END_TIME = """\
# When this job's time limit ends it, for hpcdash.job: PBS does not report it.
export HPCDASH_END_TIME={else_at} HPCDASH_END_TIME_OF="$PBS_JOBID"
"""


def end_time(limit_seconds: int | None) -> str:
    """Bash for qsub's script: the start and the limit; empty without one."""
    return _END_TIME.format(else_at=from_now(limit_seconds) or "")


# What qsub takes in no project's name.
_NOT_IN_PROJECTS = re.compile(r"[/\[\]\";:|<>+,?*]")


# PBS_MAXJOBNAME of pbs_ifl.h since 19.1; before it was 236, and 15 in PBS before 13 and in Torque.
PBS_NAME_LETTERS = 230


def project_options(parts: Iterable[str]) -> tuple[str, ...]:
    """`-P "a_b"`, or nothing; what PBS takes in no project's name is `_`."""
    joined = NOT_IN_DIRECTIVES.sub("_", _NOT_IN_PROJECTS.sub("_", "_".join(parts)))
    return (f'-P "{joined}"',) if joined else ()


def cron_script(job: CronJob) -> str:
    """Return the script of a job that is submitted again at its start, with the time it may run
    from (-a).
    """
    directives = (
        f"-N {job.name}",
        "-l select=1:ncpus=1",
        f"-l walltime={format_clock(cron.LIMIT_SECONDS)}",
        "-j oe",
        f"-o {job.output_folder}/",
        *job.options,
    )
    functions = shell_text("backends/pbs/cron.sh")
    return cron.cron_script(job, (f"#PBS {option}" for option in directives), functions)
