"""A request as qsub's script: its options, and the bash that starts the command on each host with
pbs_tmrsh.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

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
from hpcdash.backends.script.allocation import (
    BESIDE,
    NVIDIA,
    STDERR_NAME,
    STDOUT_NAME,
    Waiting,
    waiting_part,
)
from hpcdash.backends.script.body import (
    NOT_IN_DIRECTIVES,
    START,
    BatchScript,
    Place,
    accounted_to,
    checked_environment,
    effective_name,
    exports,
    format_request,
    from_now,
    hook_texts,
    in_code_folder,
    named_keys,
    packages_part,
    probe_texts,
    quote_arguments,
    resume_part,
    script_body,
    script_text,
)
from hpcdash.backends.script.containers.words import Word
from hpcdash.backends.script.environment import JobEnvironment
from hpcdash.backends.script.launchers import PASS_ON_TRAP, signal_name
from hpcdash.domain.dependencies import format_after
from hpcdash.domain.offers import CpuShare
from hpcdash.domain.request import (
    LONE_LAUNCHERS,
    NODE_LAUNCHERS,
    NOT_IN_SCRIPTS,
    EarlySignal,
    Launcher,
    Request,
    Slots,
    SlotType,
    format_slots,
    request_slot_type,
    request_slots,
)
from hpcdash.errors import UsageError

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
    is_shared, request = request.is_task, replace(in_code_folder(request, place), share="", pool="")
    slot_type = request_slot_type(request, queue_has_gpus=queue_has_gpus)
    name, warnings = effective_name(request, place.uid, PBS_NAME_LETTERS)
    if is_shared:
        warnings = ("share: PBS has no shared pools yet: this is a job like any other", *warnings)
    resources = resource_directives(request, slot_type, cpu_share)
    project = accounted_to(
        request.site.job_project_source,
        project=request.project,
        workspace=request.workspace,
        labels=request.labels,
    )
    generated = [
        f"-N {name}",
        *_files(request, place),
        *(
            [f"-q {directive_word('queue', queue)}"]
            if (queue := request.reservation or request.queue)
            else []
        ),
        *([f"-A {directive_word('account', request.account)}"] if request.account else []),
        *project_options(project),
        *([f"-J {format_task_range(request.array)}"] if request.array else []),
        *([f"-W depend={format_after(request.after)}"] if request.after else []),
        *(["-h"] if request.hold else []),
        *([f"-a {_begin(request.begin)}"] if request.begin else []),
        *_rerun(request),
        *attribute_options(request.attributes, request.extra_args),
        *_keep_files(request, place, has_live_logs=has_live_logs),
    ]
    extra = extra_options(request.extra_args)
    _refuse_repeated(generated, extra)
    limit = _limit(request, resources.options)
    body = script_body(request, place, slot_type, ENVIRONMENT)
    early_name = signal_name(request.signal) if request.signal else ""
    folder = shlex.quote(request.work_dir) if request.work_dir else _start_folder(generated)
    parts = [
        f"cd -- {folder} || exit 1",
        body.definitions,
        body.library,
        packages_part(request, place),
        end_time(_limit_seconds(request, resources.options)) if request.job_library else "",
        resume_part(request, "PBS_ARRAY_INDEX"),
        body.package,
        fanout(
            _into_logs(body.words, place.folder) if place.is_run else body.words,
            body.environment,
            passed_on=(
                *(["PYTHONPATH"] if body.library else []),
                *(["PY_EXEC"] if body.package else []),
                *named_keys(request),
            ),
            slots_a_chunk=request_slots(request).per_node,
            lines_a_chunk=_lines_a_chunk(resources.options),
            logs=_logs(request, place) if request_slots(request).nodes > 1 else None,
        ),
        preamble(request.launcher),
        _timer(request, _limit_seconds(request, resources.options), has_package=bool(body.package)),
        probe_step(request.site.node_probe, body.environment, early_name),
        hook_step(request, place, body.environment, early_name),
        START,
    ]
    if place.waiting is not None:
        parts = [
            parts[0],
            exports(body.environment),
            _waiting(request, place, place.waiting, slot_type),
        ]
    messages = (
        *warnings,
        *resources.warnings,
        *_unasked(request),
        *_rerun_warnings(request),
        *body.notes,
    )
    requested = format_request(request, slot_type, ENVIRONMENT, waits=place.waiting is not None)
    return BatchScript(
        script_text(requested, (*generated, *resources.options, *limit, *extra), "#PBS", parts),
        name,
        messages,
    )


def _into_logs(parts: Sequence[Word], folder: str) -> tuple[Word, ...]:
    """What PBS starts on a host writes into the job's own logs, and a run of an allocation has
    others.
    """
    into = f'exec >> "$0/{STDOUT_NAME}" 2>> "$0/{STDERR_NAME}"; exec "$@"'
    return (*map(Word, ("bash", "-c", into, folder)), *parts)


# What runs beside a job is not PBS's to know: it is looked for among the processes, of one node
# alone.
_IN_USE = """\
in_use() {
  [ "$(sort -u "$PBS_NODEFILE" | wc -l)" -eq 1 ] || return 2
  beside "PBS_JOBID=$PBS_JOBID"
}
"""


def _waiting(request: Request, place: Place, waiting: Waiting, slot_type: SlotType) -> str:
    counts_gpus = slot_type is not SlotType.CPU and request_slots(request).slots > 0
    return waiting_part(
        place.folder,
        waiting,
        name="$PBS_JOBID",
        work_dir=request.work_dir,
        in_use=f"{BESIDE}{_IN_USE}",
        gpu_use=f"gpu_use() {{ {NVIDIA}; }}",
        counts_gpus=counts_gpus,
    )


def node_options(nodes: Sequence[str]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """(nodes, extra_args) of each job that is needed to have just these nodes: one each, as a
    select names one host.
    """
    return tuple(((node,), (f"-l select=1:host={node}",)) for node in nodes)


def _begin(text: str) -> str:
    """`202612010800.00`."""
    if text.startswith("+"):
        raise UsageError(f"begin: PBS takes a time, not {text}", "Write it as in 2026-12-01T08:00.")
    return datetime.fromisoformat(text).strftime("%Y%m%d%H%M.%S")


def _timer(request: Request, limit_seconds: int | None, *, has_package: bool) -> str:
    if request.signal is None:
        return ""
    from hpcdash.job.packaging import FINISH

    return signal_timer(request.signal, limit_seconds, finish=FINISH if has_package else "")


def _files(request: Request, place: Place) -> list[str]:
    """Of an array a file a task; without a folder PBS writes NAME.oNUMBER where it is submitted
    from.
    """
    if not place.folder:
        return []
    name = "job.^array_index^" if request.array else "job"
    return [f"-o {place.folder}/{name}.out", f"-e {place.folder}/{name}.err"]


def _logs(request: Request, place: Place) -> tuple[str, str]:
    """Bash for the files of _files(), which are those of a task in an array's."""
    if not place.folder:
        return "/dev/null", "/dev/null"
    name = '"job.$PBS_ARRAY_INDEX"' if request.array else "job"
    folder = shlex.quote(place.folder)
    return f"{folder}/{name}.out", f"{folder}/{name}.err"


def _keep_files(request: Request, place: Place, *, has_live_logs: bool) -> list[str]:
    """Where nothing is asked for, logs that are written at once into the launch's folder, which all
    nodes see.

    PBS copies them at the end where a node cannot reach it.
    """
    if request.keep_files:
        return [f"-k {request.keep_files}"]
    return ["-k oed"] if place.folder and has_live_logs else []


def _start_folder(generated: list[str]) -> str:
    """Bash for the folder that is meant where none is named: PBS's own one of the job, where there
    is one.
    """
    is_private = any(option.lower() == "-w sandbox=private" for option in generated)
    return '"$PBS_JOBDIR"' if is_private else '"${PBS_O_WORKDIR:-$HOME}"'


def _rerun(request: Request) -> list[str]:
    """PBS refuses an array with -r n: "cannot submit non-rerunable Array Job"."""
    if request.requeue:
        return ["-r y"]
    return [] if request.array else ["-r n"]


def _rerun_warnings(request: Request) -> list[str]:
    if request.array is None or request.requeue:
        return []
    return [
        "PBS runs arrays only as rerunable: a task may start again after a node failure, though "
        "requeue is off"
    ]


def _lines_a_chunk(requested: tuple[str, ...]) -> int:
    """How often a chunk's host stands in $PBS_NODEFILE: once for each of its mpiprocs."""
    found = re.search(r":mpiprocs=([1-9][0-9]{0,5})\b", " ".join(requested))
    return int(found[1]) if found else 1


def _limit(request: Request, requested: tuple[str, ...]) -> list[str]:
    if request.limit_seconds is None:
        return []
    if any("walltime=" in option for option in requested):
        refuse_repeated({"walltime": "time"}, {"walltime": "-l walltime"})
    return [f"-l walltime={format_walltime(request.limit_seconds)}"]


def _limit_seconds(request: Request, requested: tuple[str, ...]) -> int | None:
    """The request's limit, else the walltime among the -l of a person's own options."""
    if request.limit_seconds is not None:
        return request.limit_seconds
    return build_demand(
        [option for text in requested for option in qsub.read_directive(text).given]
    ).limit_seconds


def _unasked(request: Request) -> list[str]:
    """What PBS has no option for."""
    messages = []
    if request.qos:
        messages.append(f"PBS knows no QoS: {request.qos} is not asked for")
    if request.exclude_nodes:
        messages.append(
            f"PBS leaves no nodes out by name: {', '.join(request.exclude_nodes)} may be given all "
            f"the same"
        )
    if request.rank_logs:
        messages.append("rank_logs: PBS has none, all ranks write to the job's log alone")
    others = [
        name
        for name in ("max_requeues", *NOT_IN_SCRIPTS)
        if getattr(request, name) not in ("", (), None)
    ]
    messages += [f"{name}: PBS has none, it is not asked for" for name in others]
    return messages


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
    has_amount = slot_type is SlotType.CPU or request.site.gres_supported
    # No slot at all is one core.
    amount = ":ncpus=1" if slots.slots == 0 else f":{ours}={slots.per_node}" if has_amount else ""
    theirs = _requested(request.extra_args)
    beside = _beside_slots(theirs, ours)
    for name, value in theirs:
        if name in _OF_A_CHUNK:
            in_its_place = (
                "slots and slots_per_node"
                if name in (ours, "nodes")
                else f"-l select=1:{name}={value}"
            )
            raise UsageError(
                f"-l {name} is not for extra_args: PBS takes it in a select alone", in_its_place
            )
    cpus, warnings = _cpus_beside_gpus(request, slots, slot_type, beside, cpu_share)
    if request.memory_bytes is not None:
        if any(name == "mem" for name, _ in beside):
            raise UsageError(
                "-l select=…:mem= is not for extra_args beside memory", "Leave one of the two out."
            )
        beside.append(("mem", _memory(request.memory_bytes)))
    if (
        request.launcher in LONE_LAUNCHERS
        and slots.slots
        and not any(name == "mpiprocs" for name, _ in beside)
    ):
        # What mpirun takes for the slots of a host.
        beside.append(("mpiprocs", str(slots.per_node)))
    besides = "".join(f":{name}={value}" if value else f":{name}" for name, value in beside)
    parts = [f"select={slots.nodes}{amount}{cpus}{besides}"]
    if place := _placement(request.place, theirs, slots):
        parts.append(f"place={place}")
    parts += [
        f"{name}={value}" if value else name
        for name, value in theirs
        if name not in ("select", "place")
    ]
    warnings += _left_out(theirs, ours, slots)
    if not has_amount and slots.slots:
        warnings.append(
            "this PBS does not count GPUs: which ones the job uses is the script's to say "
            "(CUDA_VISIBLE_DEVICES)"
        )
    if slots.slots and slots.spare:
        warnings.append(
            f"{format_slots(slots, slot_type)}: {slots.spare} more than the {slots.slots} asked for"
        )
    if request.gpu_type and slot_type is not SlotType.CPU and request.gpu_type not in besides:
        warnings.append(
            f"the GPU's type ({request.gpu_type}) is not asked for: each site's PBS has its own "
            f"word for it, "
            "as in extra_args: -l select=1:gpu_model=a100"
        )
    return Directives(
        tuple(f"-l {directive_word('extra_args', word)}" for word in parts), tuple(warnings)
    )


def _cpus_beside_gpus(
    request: Request,
    slots: Slots,
    slot_type: SlotType,
    beside: Iterable[tuple[str, str]],
    share: CpuShare | None,
) -> tuple[str, list[str]]:
    """What a chunk of GPUs asks for in CPUs, and what is to be said of that: PBS gives it one by
    default.
    """
    if slot_type is SlotType.CPU or slots.slots == 0:
        return "", []
    given = {name for name, _ in beside}
    if "ncpus" in given and request.cpus_per_gpu:
        raise UsageError(
            "-l select=…:ncpus= is not for extra_args beside cpus_per_gpu",
            "Leave one of the two out.",
        )
    if "ncpus" in given or (not request.cpus_per_gpu and not request.site.gres_supported):
        return "", []
    each, messages = request.cpus_per_gpu, []
    if each is None:
        each = share.per_gpu if share else None
        unknown = (
            "no CPUs are asked for with the GPUs, and PBS gives each chunk 1; cpus_per_gpu "
            "asks for more"
        )
        messages = [share.words if share else unknown]
    if each is None:
        return "", messages
    # PBS sets OMP_NUM_THREADS to all CPUs of the chunk, which each rank would take for its own.
    has_ranks = request.launcher in (NODE_LAUNCHERS | LONE_LAUNCHERS) and "ompthreads" not in given
    return f":ncpus={each * slots.per_node}" + (
        f":ompthreads={each}" if has_ranks else ""
    ), messages


def _memory(amount_bytes: int) -> str:
    """In the largest unit that is whole; kb, which is 1024 bytes, rounded up."""
    for power, unit in ((30, "gb"), (20, "mb")):
        if amount_bytes % 2**power == 0:
            return f"{amount_bytes >> power}{unit}"
    return f"{-(-amount_bytes // 1024)}kb"


def _requested(extra_args: Iterable[str]) -> list[tuple[str, str]]:
    """(resource, amount) of every -l; the other options are not looked at."""
    found: list[tuple[str, str]] = []
    for text in whole_options(extra_args, qsub.read_directive, directive_word):
        for option in qsub.read_directive(text).given:
            if option.name == "l":
                found += qsub.resources(option.value or "")
    return found


def _beside_slots(requested: Iterable[tuple[str, str]], ours: str) -> list[tuple[str, str]]:
    """What a person's own select asks for in each chunk, besides what the slots say."""
    stored: dict[str, str] = {}
    for name, value in requested:
        if name != "select":
            continue
        parts = qsub.chunks(value)
        if len(parts) != 1:
            raise UsageError(
                f"-l select={value}: chunks of several kinds cannot be joined with slots",
                "Write a script of your own for them, or one kind of chunk.",
            )
        stored |= {resource: amount for resource, amount in parts[0][1] if resource != ours}
    return list(stored.items())


def _left_out(requested: Iterable[tuple[str, str]], ours: str, slots: Slots) -> list[str]:
    """What the slots say otherwise than a person's own select; one chunk stands for any number."""
    messages = []
    for name, value in requested:
        if name != "select":
            continue
        (count, parts), each = qsub.chunks(value)[0], str(slots.per_node)
        if count not in ("", "1", str(slots.nodes)) or dict(parts).get(ours, each) != each:
            messages.append(
                f"-l select={value} in extra_args: slots and slots_per_node decide its count and "
                f"{ours}"
            )
    return messages


def _placement(field: str, theirs: Iterable[tuple[str, str]], slots: Slots) -> str:
    """Where the chunks lie: each on a host of its own where so many are asked for on each node,
    else as it is given.

    Without scatter PBS puts several chunks on a host that has room for them.
    """
    given = [value for name, value in theirs if name == "place"]
    if len(given) > 1 or (given and field):
        other = "place says it" if field else "it is there twice"
        raise UsageError(
            f"-l place={given[0]} is not for extra_args: {other}", "Leave one of the two out."
        )
    if not slots.is_per_node or slots.nodes == 1:
        return field or "".join(given)
    written = (
        f"place: {field}"
        if field
        else "".join(f"-l place={value} in extra_args" for value in given)
    )
    try:
        requested = qsub.read_placement(field or given[0]) if written else qsub.Placement()
    except ValueError as error:
        raise UsageError(f"{written}: {error}") from error
    if requested.arrangement not in ("", "scatter"):
        raise UsageError(
            f"{written}: slots_per_node asks for {slots.nodes} nodes, which {requested.arrangement} "
            f"may not give",
            f"Leave {requested.arrangement} out, or slots_per_node.",
        )
    return str(dataclasses.replace(requested, arrangement="scatter"))


MARK = "HPCDASH_COMMAND_OF"


_FANOUT = """\
# PBS_NODEFILE names a host once for each of its chunks, and PBS may put several on one. This host is its first.
hosts=() slots=() all_slots=0
while read -r count host; do
  hosts+=("$host")
  slots+=("$((count * {slots_a_chunk}{lines_a_chunk}))")
  all_slots=$((all_slots + count * {slots_a_chunk}{lines_a_chunk}))
done < <(awk '!count[$1]++ {{ order[++n] = $1 }} END {{ for (i = 1; i <= n; i++) print count[order[i]], order[i] }}' \\
  "$PBS_NODEFILE")

type -P pbs_tmrsh > /dev/null || PATH=$PATH:$(sed -n 's/^PBS_EXEC=//p' "${{PBS_CONF_FILE:-/etc/pbs.conf}}")/bin

{on_node}# Starts its words on host $1 in a login shell, as PBS starts this script. Nothing else of its environment goes
# along: each variable is written out. PBS's TERM to this script is not for what waits for the host.
on_host() {{
  local host=$1
  shift
  trap '' TERM
  exec pbs_tmrsh "$host" env "{mark}=$PBS_JOBID@$host" "USER=$USER" "LOGNAME=$LOGNAME" \\
    bash -l -c {words_on_node} env "PATH=$PATH" "PBS_JOBID=$PBS_JOBID" \\
    ${{PBS_ARRAY_INDEX:+"PBS_ARRAY_INDEX=$PBS_ARRAY_INDEX" "PBS_ARRAY_ID=$PBS_ARRAY_ID"}} "$@"
}}

# One command on each host. The file of PBS_NODEFILE is this host's own; PBS may have put one on others too.
running=()
start_nodes() {{
  local rank port=${{PBS_JOBID%%[^0-9]*}} here=("PBS_NODEFILE=$PBS_NODEFILE")
  port=$((20000 + (port + ${{PBS_ARRAY_INDEX:-0}}) % 12000))
  for rank in "${{!hosts[@]}}"; do
    on_host "${{hosts[rank]}}" "${{here[@]}}" \\
      "NODE_RANK=$rank" "NUM_NODES=${{#hosts[@]}}" \\
      "NODE_SLOTS=${{slots[rank]}}" "NUM_SLOTS=$all_slots" \\
      "MASTER_ADDR=${{hosts[0]}}" "MASTER_PORT=$port" \\
{variables}      {words} &
    running+=("$!")
    here=()
  done
}}

# Every process of the command on every host, found by the variable that it was started with.
signal_nodes() {{
  local host senders=()
  for host in "${{hosts[@]}}"; do
    pbs_tmrsh "$host" bash -c '
      grep -lszFx "{mark}=$1" /proc/[0-9]*/environ | cut -d/ -f3 |
        while read -r pid; do kill -s "$0" "$pid" 2>/dev/null; done' "$1" "$PBS_JOBID@$host" &
    senders+=("$!")
  done
  wait "${{senders[@]}}"
}}

# A look each second: `wait -n` is not in every bash, and misses those that ended before it.
wait_nodes() {{
  local pid left
  status=0
  while [ "${{#running[@]}}" -gt 0 ]; do
    left=()
    for pid in "${{running[@]}}"; do
      if kill -0 "$pid" 2>/dev/null; then
        left+=("$pid")
        continue
      fi
      while :; do
        interrupted=
        status=0
        wait "$pid" || status=$?
        [ -n "$interrupted" ] || break
      done
      if [ "$status" -ne 0 ]; then
        echo "a command on a host ended with $status: all are ended" >&2
        end_nodes "$status" 30
      fi
    done
    running=(${{left[@]+"${{left[@]}}"}})
    [ "${{#running[@]}}" -eq 0 ] || sleep 1
  done
}}

# Asks all commands to end, and kills after $2 s those that did not; without it PBS has asked, and kills: some save yet.
end_nodes() {{
  trap '' TERM
  [ -z "${{2:-}}" ] || signal_nodes TERM
  local pid left seconds=0
  while :; do
    left=
    for pid in "${{running[@]}}"; do
      kill -0 "$pid" 2>/dev/null && left=1
    done
    [ -n "$left" ] || exit "$1"
    [ "$seconds" != "${{2:-}}" ] || break
    seconds=$((seconds + 1))
    sleep 1
  done
  signal_nodes KILL
  exit "$1"
}}
trap 'end_nodes 143' TERM
"""


_ON_ONE = """'cd -- "$0" && exec "$@"' "$PWD\""""


_ON_NODE = """\
# With several hosts PBS's TERM ends what takes their output too, and reaches the commands of the first host alone.
# $1 is the folder, $2 and $3 the logs, $4 the first host, the rest what is started.
IFS= read -r -d '' on_node << 'END_OF_ON_NODE'
cd -- "$1" || exit
out=$2 err=$3 first=$4 watch=
shift 4
if ! [ -S /dev/fd/1 ] || ! pipes=$(mktemp -d) || ! mkfifo "$pipes/out" "$pipes/err" "$pipes/moved"; then
  exec "$@"
fi
exec 3>&1 4>&2 7<> "$pipes/moved"
# Passes a stream on; once nobody takes it any more, into the log itself. TERM has it look for a second: PBS may end
# what takes the output after the commands.
relay() {
  trap : TERM
  trap '' HUP INT QUIT USR1 USR2
  until cat <&0 & wait "$!"; do
    kill "$!"
    read -r -t 1 <&3
    if [ "$?" -le 128 ]; then
      trap '' TERM
      echo >&7
      cat >> "$1"
      return
    fi
  done
}
relay "$out" < "$pipes/out" 2> /dev/null &
relays=("$!")
relay "$err" < "$pipes/err" >&4 2> /dev/null &
relays+=("$!")
exec 5> "$pipes/out" 6> "$pipes/err"
rm -r "$pipes"
if [ "${MARK#*@}" != "$first" ]; then
  (
    trap '' TERM HUP INT QUIT USR1 USR2
    while read -r <&3; do :; done
    # Both write to the logs before a command says that it was asked to end.
    kill "${relays[@]}" && read -r -t 2 <&7 && read -r -t 2 <&7
    grep -lszFx "MARK=$MARK" /proc/[0-9]*/environ | cut -d/ -f3 |
      while read -r pid; do kill -s TERM "$pid"; done
  ) 2> /dev/null 5>&- 6>&- &
  watch=$!
  disown
fi
# Signals are for the command; this shell may have nowhere to write to.
trap : TERM HUP INT QUIT USR1 USR2 PIPE
"$@" >&5 2>&6 3>&- 4>&- 5>&- 6>&- 7>&-
status=$?
exec 5>&- 6>&-
for ((left = 50; left > 0; left--)); do
  kill -0 "${relays[@]}" 2> /dev/null || break
  sleep 0.1
done
[ -z "$watch" ] || kill -s KILL "$watch"
exit "$status"
END_OF_ON_NODE

""".replace("MARK", MARK)


# A login shell that ends by itself would run .bash_logout.
_ON_SEVERAL = """'exec bash -c "$@"' bash \\
    "$on_node" on_node "$PWD" "$out" "$err" "${hosts[0]}" \\
   """


def fanout(
    parts: Sequence[str | Word],
    environment: Mapping[str, str],
    *,
    passed_on: Sequence[str] = (),
    slots_a_chunk: int = 1,
    lines_a_chunk: int = 1,
    logs: tuple[str, str] | None = None,
) -> str:
    """Bash for qsub's script: `words` once on each host of $PBS_NODEFILE, in the script's own
    folder and a login shell.

    The hosts are in the order of that file; on the first, which is the script's own, the variable
    names it. Besides `environment` and the script's PATH there are NODE_RANK (from 0), NUM_NODES,
    NODE_SLOTS and NUM_SLOTS (of the host, and in all), MASTER_ADDR and MASTER_PORT, the same on all
    hosts, and of the script's own variables those `passed_on`. A chunk of `mpiprocs` has so many
    `lines_a_chunk` in the file. The first that fails ends all and the script, with its status.
    `logs` are bash words for the files of stdout and stderr of a job of several hosts: where PBS
    ends it, output goes there, and each host ends its own command. Raises UsageError for what bash
    cannot hold.
    """
    variables = "".join(
        f"      {shlex.quote(f'{name}={value}')} \\\n"
        for name, value in checked_environment(environment)
    )
    variables += "".join(f'      "{name}=${name}" \\\n' for name in passed_on)
    lines = f" / {int(lines_a_chunk)}" if lines_a_chunk > 1 else ""
    return _FANOUT.format(
        words=quote_arguments(parts),
        variables=variables,
        mark=MARK,
        slots_a_chunk=int(slots_a_chunk),
        lines_a_chunk=lines,
        on_node=f"out={logs[0]} err={logs[1]}\n{_ON_NODE}" if logs else "",
        words_on_node=_ON_SEVERAL if logs else _ON_ONE,
    )


_TIMER = """\
# This scheduler sends no early signal: a timer does, {delay} s after the start. It ends with this script.
(
  trap 'kill "$!"; wait "$!"; exit' TERM
  sleep "$(({delay} > SECONDS ? {delay} - SECONDS : 0))" &
  wait "$!" && kill -s {name} "$$"
) 2>/dev/null &
timer=$!
trap 'jobs -pr | grep -qx "$timer" && kill "$timer" && wait "$timer" 2>/dev/null{finish}' EXIT
"""


def signal_timer(signal: EarlySignal, limit_seconds: int | None, *, finish: str = "") -> str:
    """Bash whose timer sends the signal `limit_seconds - seconds_before` after the script's start,
    to all nodes.

    The timer ends with the script, which then calls `finish` too, a function of its own. Raises
    UsageError where there is no limit, or one that is over before.
    """
    name = signal_name(signal)
    if name == "TERM":
        raise UsageError("signal: TERM is how PBS ends a job", "USR1 says that the end is near.")
    if limit_seconds is None:
        raise UsageError("signal: without a time limit there is no time before it", "Write time.")
    delay = limit_seconds - signal.seconds_before
    if delay <= 0:
        raise UsageError(
            f"signal: {signal.seconds_before} s before a limit of {limit_seconds} s is before the "
            f"start",
            "Write less seconds, or more time.",
        )
    return PASS_ON_TRAP.format(name=name, seconds=signal.seconds_before, to="") + _TIMER.format(
        name=name, delay=delay, finish=f"; {finish}" if finish else ""
    )


# accelerate and deepspeed start as many on each node.
_EVEN = """\
for count in "${slots[@]}"; do
  if [ "$count" -ne "${slots[0]}" ]; then
    echo "the hosts have slots in different numbers (${slots[*]}), which LAUNCHER cannot use: not started" >&2
    exit 1
  fi
done
"""


def preamble(launcher: Launcher) -> str:
    """Bash for between the fan-out's text, which sets the addresses, and its start.

    Raises UsageError for srun.
    """
    if launcher is Launcher.SRUN:
        raise UsageError(
            "launcher: srun is Slurm's, not PBS's", "Write plain, torchrun or accelerate."
        )
    return (
        _EVEN.replace("LAUNCHER", launcher)
        if launcher in (Launcher.ACCELERATE, Launcher.DEEPSPEED)
        else ""
    )


_AFTER_PROBE = (
    "PBS leaves no node out by name: choose others with host= in select, or tell the site"
)


_PROBE = """\
probes=() failed=
for host in "${{hosts[@]}}"; do
  on_host "$host" \\
{variables}    bash -c "${name}" {name} "$host" "${text}" &
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


def probe_step(probe: str, environment: Mapping[str, str], signal: str = "") -> str:
    """Bash for between the text of fanout(), whose `hosts` and `on_host` it uses, and its start; ''
    for no probe.

    The names of `environment` are those that fanout() took.
    """
    if not probe.strip():
        return ""
    return probe_texts(probe, _AFTER_PROBE, signal) + _node_step("on_probed", "probe", environment)


def hook_step(
    request: Request, place: Place, environment: Mapping[str, str], signal: str = ""
) -> str:
    """As probe_step(), of the startup hook."""
    if not request.startup_hook.strip():
        return ""
    return hook_texts(request, place, signal) + _node_step("on_hooked", "hook", environment)


def _node_step(name: str, text: str, environment: Mapping[str, str]) -> str:
    variables = "".join(
        f"    {shlex.quote(f'{one}={value}')} \\\n" for one, value in environment.items()
    )
    return _PROBE.format(variables=variables, name=name, text=text)


_END_TIME = """\
# When this job's time is over, for hpcdash.job: PBS says it nowhere.
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
