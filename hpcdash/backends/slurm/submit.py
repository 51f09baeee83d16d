"""Submits a Slurm job once more: its script through sbatch's stdin, with the options it was first
given. Pure.

Each trait named here was seen on Slurm 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from hpcdash.backends.actions import CUT_OFF, ActionCommand, Outcome
from hpcdash.backends.base import SubmitPart
from hpcdash.backends.job_detail import JobDetail, Script
from hpcdash.backends.options import Option, last_value
from hpcdash.backends.output_patterns import JOB_DEFAULT, TASK_DEFAULT
from hpcdash.backends.queries import TEXT_BYTES, Answer, Native, Query, Row, decoded
from hpcdash.backends.slurm.clusters import NO_OTHERS, ClusterPart, Clusters, query_on
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure, is_answer_lost, require_success
from hpcdash.backends.slurm.log_files import find_last_value
from hpcdash.backends.slurm.options import (
    SubmitLine,
    read_command_line,
    read_directives,
    read_submit_line,
)
from hpcdash.backends.submissions import (
    AS_IT_WAS,
    MARK_START,
    REPLACES,
    Copy,
    NewLimits,
    StartEstimate,
    Submission,
    SubmitCommand,
)
from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks
from hpcdash.domain.columns import digits
from hpcdash.domain.dependencies import format_after
from hpcdash.domain.job_ids import with_cluster, with_tasks
from hpcdash.domain.switches import kill_switch_comment
from hpcdash.errors import (
    EXIT_UNREACHABLE,
    CommandMissing,
    ControllerDown,
    NoConfiguration,
    UsageError,
    excerpt,
)

# sbatch(1), INPUT ENVIRONMENT VARIABLES: each would stand for an option that the job did not have.
# What is not set here either: the job gets sbatch's whole environment, so that no LC_ALL of ours
# may be in it.
_INPUT_VARIABLES = (
    "ACCOUNT",
    "ACCTG_FREQ",
    "ARRAY_INX",
    "BATCH",
    "BURST_BUFFER",
    "CLUSTERS",
    "CLUSTER_CONSTRAINT",
    "COMMENT",
    "CONSTRAINT",
    "CONTAINER",
    "CONTAINER_ID",
    "CORE_SPEC",
    "CPUS_PER_GPU",
    "CPU_FREQ_REQ",
    "DEBUG",
    "DELAY_BOOT",
    "DISTRIBUTION",
    "ERROR",
    "EXCLUSIVE",
    "EXPORT",
    "GET_USER_ENV",
    "GPUS",
    "GPUS_PER_NODE",
    "GPUS_PER_SOCKET",
    "GPUS_PER_TASK",
    "GPU_BIND",
    "GPU_FREQ",
    "GRES",
    "GRES_FLAGS",
    "HINT",
    "IGNORE_PBS",
    "INPUT",
    "JOB_NAME",
    "MEM_BIND",
    "MEM_PER_CPU",
    "MEM_PER_GPU",
    "MEM_PER_NODE",
    "NETWORK",
    "NO_KILL",
    "NO_REQUEUE",
    "OPEN_MODE",
    "OUTPUT",
    "OVERCOMMIT",
    "PARTITION",
    "POWER",
    "PROFILE",
    "QOS",
    "REQUEUE",
    "REQ_SWITCH",
    "RESERVATION",
    "SIGNAL",
    "SPREAD_JOB",
    "THREADS_PER_CORE",
    "THREAD_SPEC",
    "TIMELIMIT",
    "USE_MIN_NODES",
    "WAIT",
    "WAIT4SWITCH",
    "WAIT_ALL_NODES",
    "WCKEY",
)
_CLEAN = (
    "env",
    *(word for name in _INPUT_VARIABLES for word in ("-u", f"SBATCH_{name}")),
    "-u",
    "SLURM_CLUSTERS",
    "-u",
    "SLURM_HOSTFILE",
)
# sbatch takes the script's arguments behind a file's name alone. What it opens as /dev/stdin has to
# be a pipe of one's own, which not every stdin is.
_WITH_ARGUMENTS = 'cat | "$@"'
_STDIN_FILE = "/dev/stdin"

# Options that do not change the job: sbatch's output, or the source of the script.
_NOT_THE_JOBS = frozenset(
    {"parsable", "quiet", "verbose", "wait", "test-only", "wrap", "help", "usage", "version"}
)
# Options intended for that submission only.
_OF_THAT_TIME = ("dependency", "begin", "deadline", "hold")
# Replacements of such directives in the script.
_NEUTRAL = {"dependency": "", "begin": "now"}
_FILES = ("export-file", "nodefile", "bbf")
# Options that we always set, whatever was given.
_SAID_ANEW = frozenset({"array", "chdir", "comment", "job-name", *_OF_THAT_TIME})
# Column of the job for an option that neither line nor script has: it was a default of the cluster,
# which may have changed, or a variable that was set then.
_PINNED = (("partition", "queue"), ("account", "account"), ("qos", "qos"))
# Whoever holds a job so, its owner may not release it.
_HELD_BY_OTHERS = frozenset({"JobHeldAdmin", "AdminHold"})

# Only one of these may be given, in the command line and the script together.
_MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")

_NUMBER = re.compile(r"[0-9]+")
_ONE_CLUSTER = "Choose one: `-- --clusters=NAME`."
_SUBMITTED = re.compile(rb"^Submitted batch job ([0-9]+)(?: on cluster (\S+))?", re.MULTILINE)
_PARSABLE = re.compile(rb"^([0-9]+)(?:;(\S+))?$", re.MULTILINE)
_TESTED = re.compile(rb"^sbatch: Job [0-9]+ to start at ", re.MULTILINE)
_PREFIX = re.compile(r"^sbatch: (?:error: )?(?:Batch job submission failed: )?")
# sbatch retries for 120 s where the controller takes no more jobs, and then fails.
_LIMIT_SECONDS = 180.0
_TRIES_AGAIN = "sleeping and retrying"
_MAY_BE_FULL = "the cluster has probably reached MaxJobCount"
# Slurm's own defaults: no cluster is queried for arrays up to here.
_TASKS_TAKEN = 1000
_LIMIT_LINE = re.compile(rb"^(MaxArraySize|MaxJobCount) *= *([0-9]{1,10})$", re.MULTILINE)


def _on_target(after: str, target: str, clusters: Clusters) -> str:
    """Return a dependency in the IDs of the target cluster.

    Raises UsageError for a job of another cluster.
    """
    kind, colon, job_id = after.rpartition(":")
    plain, cluster = clusters.split_cluster(job_id)
    if cluster != (clusters.split_cluster(f"1@{target}")[1] if target else ""):
        raise UsageError(
            f"{job_id} is on another cluster", "Jobs can depend only on jobs on the same cluster."
        )
    return f"{kind}{colon}{plain}"


def _argv(parts: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    if not arguments:
        return (*_CLEAN, "sbatch", *parts)
    return (*_CLEAN, "sh", "-c", _WITH_ARGUMENTS, "sh", "sbatch", *parts, _STDIN_FILE, *arguments)


def _repeated_options(given: Sequence[Option], row: Row, notes: list[str]) -> list[str]:
    """Return the options of a command line to repeat; a note names those that no longer apply."""
    repeated: list[str] = []
    dropped: list[str] = []
    has_folder = any(option.name == "chdir" for option in given)
    for option in given:
        name = option.name
        value = option.value
        word = f"--{name}" if value is None else f"--{name}={value}"
        if option.problem:
            # A site's plugin may take it.
            repeated += option.arguments
        elif name in _OF_THAT_TIME:
            dropped.append(word)
        elif name in _FILES and value and not value.startswith("/") and not has_folder:
            # Relative to where sbatch was called: the job's folder, as none was chosen.
            repeated.append(f"--{name}={row['work_dir']}/{value}")
        elif name not in _NOT_THE_JOBS and name not in _SAID_ANEW:
            repeated.append(word)
    if dropped:
        notes.append(f"omitted (no longer applicable): {' '.join(dropped)}")
    return repeated


def _with_limits(
    parts: Sequence[str], limits: NewLimits, row: Row, in_script: Sequence[Option]
) -> list[str]:
    """Return the options with other limits; memory by the option that requested it."""
    replaced: dict[str, str] = {}
    if limits.time_seconds is not None:
        replaced["time"] = f"--time={-(-limits.time_seconds // 60)}"
    if limits.memory_bytes is not None:
        on_line = [
            name for name in _MEMORY_OPTIONS if any(word.startswith(f"--{name}=") for word in parts)
        ]
        written = [name for name in _MEMORY_OPTIONS if last_value(in_script, name) is not None]
        name = next(iter((*on_line, *written)), "mem")
        per_node = {"mem": 1, "mem-per-cpu": row["cpus"], "mem-per-gpu": row["gpus"]}[name] or 1
        share = 1 if name == "mem" else max(1, per_node // max(1, row["nodes"] or 1))
        replaced |= dict.fromkeys(_MEMORY_OPTIONS, "")
        replaced[name] = f"--{name}={-(-limits.memory_bytes // (share << 20))}M"
    remaining = [
        word for word in parts if word.partition("=")[0].removeprefix("--") not in replaced
    ]
    return [*remaining, *filter(None, replaced.values())]


def _overriding(in_script: Sequence[Option], notes: list[str]) -> list[str]:
    """Return options that override directives made for the script's first submission.

    sbatch reads an empty dependency as none.
    """
    names = [name for name in _NEUTRAL if last_value(in_script, name) is not None]
    if names:
        notes.append(f"overridden #SBATCH lines: {', '.join(names)}")
    if any(option.name == "hold" for option in in_script):
        notes.append("its #SBATCH lines submit the job held")
    if deadline := last_value(in_script, "deadline"):
        notes.append(f"its #SBATCH lines set a deadline, which still applies: {deadline}")
    return [f"--{name}={_NEUTRAL[name]}" for name in names]


def _array(
    row: Row,
    native: Native,
    tasks: ArrayTasks | None,
    on_line: Sequence[Option],
    in_script: Sequence[Option],
) -> list[str]:
    if row["array_id"] is None:
        return []
    given = last_value(on_line, "array") or last_value(in_script, "array")
    if tasks is None:
        if given is None:
            raise UsageError(
                f"the tasks of array {row['array_id']} are unknown", "Specify the tasks."
            )
        return [f"--array={given}"]
    throttle = _throttle(given) or digits(native.get("ArrayTaskThrottle"))
    limited = f"%{throttle}" if throttle else ""
    return [f"--array={ArrayTasks(tasks.ranges)}{limited}"]


def _throttle(given: str | None) -> int | None:
    try:
        return parse_tasks(given).throttle if given else None
    except ValueError:
        return None


# -- recorded options, without a command line


def _recorded_options(row: Row, native: Native, in_script: Sequence[Option]) -> list[str]:
    """Return options for values in scontrol's record; they replace the script's equal ones."""

    def value_text(key: str) -> str:
        value = find_last_value(native, key) or ""
        return "" if value in ("N/A", "0", "*", "None") else value

    parts = []
    for name, key in (
        ("nodes", "NumNodes"),
        ("ntasks", "NumTasks"),
        ("cpus-per-task", "CPUs/Task"),
        ("mem-per-cpu", "MinMemoryCPU"),
        ("mem", "MinMemoryNode"),
        ("gres", "TresPerNode"),
        ("gpus", "TresPerJob"),
        ("constraint", "Features"),
        ("nodelist", "ReqNodeList"),
        ("exclude", "ExcNodeList"),
        ("licenses", "Licenses"),
        ("reservation", "Reservation"),
    ):
        if value := value_text(key):
            parts.append(f"--{name}={_as_option(name, value)}")
    parts += [f"--{name}={row[column]}" for name, column in _PINNED if row[column]]
    if row["limit_seconds"]:
        parts.append(f"--time={max(1, row['limit_seconds'] // 60)}")
    if "JobId" not in native:
        return parts
    stdout, stderr = (
        _as_pattern(find_last_value(native, key), row, native) for key in ("StdOut", "StdErr")
    )
    if stdout and stdout != f"{row['work_dir']}/{TASK_DEFAULT if row['array_id'] else JOB_DEFAULT}":
        parts += [f"--output={stdout}"] if last_value(in_script, "output") is None else []
    if stderr and stderr != stdout and last_value(in_script, "error") is None:
        parts.append(f"--error={stderr}")
    return parts


def _as_pattern(path: str | None, row: Row, native: Native) -> str:
    """The pattern of a path that scontrol shows filled in: the job's numbers in the file's name,
    not in its folders.
    """
    if path is None:
        return ""
    folder, slash, name = path.rpartition("/")
    fields = {native["JobId"]: "%j", str(row["array_task"]): "%a", str(row["array_id"]): "%A"}
    return f"{folder}{slash}{_NUMBER.sub(lambda number: fields.get(number[0], number[0]), name)}"


def _as_option(name: str, value: str) -> str:
    """Return the option of a recorded value: `gres:gpu:2` for `--gres=gpu:2` and `--gpus=2`.

    `1-1` nodes are one.
    """
    if name == "gres":
        return value.replace("gres:", "").replace("gres/", "")
    if name == "gpus":
        return value.rpartition("gpu:")[2] or value
    if name == "nodes":
        low, _, high = value.partition("-")
        return low if low == high else value
    return value


# -- array size limits


def _highest(tasks: ArrayTasks) -> int:
    return max((part[-1] for part in tasks.ranges), default=0)


def _read_limits(answer: Answer, tasks: ArrayTasks) -> str:
    require_success(answer)
    limits = {name: int(value) for name, value in _LIMIT_LINE.findall(answer.stdout)}
    size = limits.get(b"MaxArraySize")
    jobs = limits.get(b"MaxJobCount")
    if size is not None and _highest(tasks) >= size:
        return (
            f"task {_highest(tasks)} is over this cluster's limit: at most {size - 1} "
            f"(MaxArraySize = {size})"
        )
    # The controller keeps one place free.
    if jobs is not None and tasks.count >= jobs:
        most = f"at most {jobs - 1} jobs at a time for all users (MaxJobCount = {jobs})"
        return f"{tasks.count} tasks exceed this cluster's limit: {most}"
    return ""


# -- output of sbatch


def _explain(line: str) -> str:
    """Return a line of sbatch, with an explanation where sbatch retries."""
    if _TRIES_AGAIN not in line:
        return line
    return f"{line} ({_MAY_BE_FULL}; sbatch retries for about 2 minutes)"


def _read(answer: Answer, job_id: str, clusters: Clusters = NO_OTHERS) -> tuple[Outcome, ...]:
    """Read the outcome of sbatch; the new job is 93@lab2.

    The output is `Submitted batch job 93 on cluster lab2`, or `93;lab2` where the script requests
    that.
    """
    if answer.status == 0:
        found = _SUBMITTED.search(answer.stdout) or _PARSABLE.search(answer.stdout)
        if found is None:
            if _TESTED.search(answer.stderr):
                return (
                    Outcome(
                        job_id, False, "nothing was submitted: --test-only only estimates the start"
                    ),
                )
            return (Outcome(job_id, True, "submitted, but sbatch returned no job ID"),)
        cluster = decoded(found[2]) if found[2] else clusters.default
        if cluster == clusters.own and not clusters.named:
            cluster = ""
        return (Outcome(job_id, True, f"job {with_cluster(found[1].decode(), cluster)}"),)
    lines = [
        line.strip()
        for line in excerpt(answer.stderr or answer.stdout).splitlines()
        if line.strip()
    ]
    text = "; ".join(dict.fromkeys(_PREFIX.sub("", line) for line in lines[-2:]))
    text += f" ({_MAY_BE_FULL})" if _TRIES_AGAIN in text else ""
    may_be_done = answer.status in CUT_OFF or is_answer_lost(text)
    text = text or f"sbatch exited with status {answer.status}"
    if may_be_done:
        return (Outcome(job_id, None, text),)
    return (Outcome(job_id, False, text, failure(answer).exit_status == EXIT_UNREACHABLE),)


# 26.05 has an "a" before "using".
_TO_START = re.compile(
    r"Job [0-9]+ to start at (\S+)(?: a)? using ([0-9]{1,9}) processors"
    r" on(?: nodes)? (\S+) in partition (\S+)"
)
_START_ESTIMATE_PREFIX = re.compile(r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?")
_EPOCH_DIGITS = 11
_START_ESTIMATE_LIMIT_SECONDS = 20.0
_SHOWN_LINES = 3
_NOT_COUNTED = {"hold": "held", "dependency": "depends on other jobs"}
# sbatch(1) and slurm_strerror's messages → next step.
_NODES_MISSING = "Requested node configuration is not available"
_HINTS = {
    _NODES_MISSING: ("no node can meet the request: use fewer GPUs, CPUs or less memory"),
    "Invalid account or account/partition": (
        "you cannot charge this account, or not for this partition"
    ),
    "Invalid qos": "no such QoS, or your account cannot use it",
    "Invalid partition name": "no such partition",
    "Invalid --time": (
        "use minutes, hours:minutes:seconds or days-hours:minutes:seconds, without a unit"
    ),
    "requested time limit is invalid": "requests more time than the partition allows",
    "Node count specification invalid": "requests more nodes than the partition allows",
    "accounting/QOS policy": "exceeds a limit of the account or QoS: time, size or job count",
    "not permitted to use this partition": "this partition is not for your group or account",
    "partition configuration not available now": "requests more than the partition allows",
    "partition not available": "the partition is not accepting jobs",
    "Memory specification can not be satisfied": "no node in the partition has that much memory",
    "CPU count per node can not be satisfied": "no node in the partition has that many CPUs",
    "Invalid generic resource": "no such device: the GPU type may have another name here",
    "Invalid feature": "no node has this feature",
    "dependency problem": "a job it depends on does not exist",
    "DOS line breaks": "save it with Unix line endings",
    "does not look like a batch script": (
        "the first line must be #!/bin/bash or similar, with nothing before it"
    ),
}


def parse_start_estimate(answer: Answer, *, notes: Iterable[str] = ()) -> StartEstimate:
    """Parse the start, or the reason that the script would be refused.

    A site's wrapper of sbatch may submit it: then the job is named. Raises ControllerDown,
    NoConfiguration, CommandMissing.
    """
    text = decoded(answer.stderr)
    if submitted := _SUBMITTED.search(answer.stdout + b"\n" + answer.stderr):
        return StartEstimate(submitted_job=submitted[1].decode())
    if answer.status != 0:
        error = failure(answer)
        if isinstance(error, ControllerDown | NoConfiguration | CommandMissing):
            raise error
        refusal = _refusal(text) or f"sbatch exited with status {answer.status}"
        return StartEstimate(
            refusal=refusal, hint=_hint(refusal), is_nodes_missing=_NODES_MISSING in refusal
        )
    found = _TO_START.search(text)
    if found is None:
        return StartEstimate(hint="would be accepted; Slurm gives no start estimate")
    reported, cpus, nodes, queue = found.groups()
    is_epoch = reported.isdecimal() and len(reported) <= _EPOCH_DIGITS
    clock = () if is_epoch else (f"would start at {reported} (cluster time)",)
    return StartEstimate(
        starts_at_epoch=float(reported) if is_epoch else None,
        cpus=int(cpus),
        node_list=nodes,
        queue=queue,
        hint="; ".join((*clock, *notes)),
    )


def _not_counted(given: tuple[Option, ...], submission: Submission) -> list[str]:
    requested = {option.name for option in given}
    waits = [why for name, why in _NOT_COUNTED.items() if name in requested]
    if submission.held and "hold" not in requested:
        waits.append(_NOT_COUNTED["hold"])
    if submission.after and "dependency" not in requested:
        waits.append(_NOT_COUNTED["dependency"])
    notes = [f"estimate ignores: {' and '.join(waits)}"] if waits else []
    if submission.array or last_value(given, "array"):
        notes.append("estimate for the first array task")
    return notes


def _refusal(text: str) -> str:
    lines = (
        _START_ESTIMATE_PREFIX.sub("", line.strip()) for line in excerpt(text.encode()).splitlines()
    )
    reported = list(dict.fromkeys(line for line in lines if line and not line.startswith("Try ")))
    # A sentence goes on over several lines.
    return (
        "; ".join(reported[-_SHOWN_LINES:])
        .replace("; line must", " line must")
        .replace("; instead", " instead")
    )


def _hint(refusal: str) -> str:
    return next((hint for text, hint in _HINTS.items() if text.lower() in refusal.lower()), "")


def _given(submission: Submission) -> tuple[Option, ...]:
    """Return the options of a script, then those on its command line, which override them."""
    text = submission.script.decode("utf-8", "surrogateescape")
    on_line = read_command_line(submission.options).options
    return (*read_directives(text).options, *on_line)


def _submit_line(detail: JobDetail, past: Native, script: Script) -> SubmitLine | None:
    text = past.get("SubmitLine") or detail.native.get("SubmitLine") or ""
    shown = detail.native.get("Command") if "JobId" in detail.native else None
    return read_submit_line(text, detail.row, script, shown)


def _marked_comment(row: Row, script: Script, mark: str, copy: Copy | None) -> str:
    """Return the comment of a job that is submitted again, '' where it keeps its own."""
    comment = row["comment"] or ""
    replaced = f" {REPLACES}{copy.replaces}" if copy else ""
    if not comment or comment.startswith(MARK_START):
        return mark + replaced + kill_switch_comment(script.text, row["work_dir"] or "")
    return f"{mark}{replaced} {comment}" if copy else ""


def _placed(parts: Sequence[str], copy: Copy) -> list[str]:
    """Return a copy's options with its place in that of the job's own."""
    chosen = {"partition": copy.queue, "account": copy.account, "qos": copy.qos}
    dropped = {name for name, value in chosen.items() if value}
    if copy.is_elsewhere:
        dropped.add("clusters")
    rest = [word for word in parts if word.partition("=")[0].removeprefix("--") not in dropped]
    return [*rest, *(f"--{name}={value}" for name, value in chosen.items() if value)]


def _refuse_copy(row: Row, line: SubmitLine | None, given: Sequence[Option], copy: Copy) -> None:
    """Raise UsageError for a job whose environment, command line or hold a copy would not have."""
    job = f"job {copy.replaces}"
    if row["reason"] in _HELD_BY_OTHERS:
        raise UsageError(f"{job} is held by an administrator", "Ask the site to release it.")
    exported = (last_value(given, "export") or "").upper()
    if not copy.is_ours and exported not in ("NONE", "NIL"):
        raise UsageError(
            f"the environment of {job} is unknown: it was not submitted with hpcdash",
            "Cancel it and submit its script there yourself.",
        )
    if line is None:
        raise UsageError(
            f"the command line of {job} is unknown: Slurm has not recorded it",
            "Cancel it and submit its script there yourself.",
        )
    if copy.is_elsewhere and (name := last_value(given, "clusters")):
        raise UsageError(f"{job} was submitted with --clusters={name}", "Submit its script there.")


def _recovered_options(
    row: Row,
    native: Native,
    line: SubmitLine | None,
    in_script: Sequence[Option],
    notes: list[str],
    *,
    is_elsewhere: bool = False,
) -> list[str]:
    """Return the options of the command line, else those that Slurm's record tells; and those that
    neither line nor script has.

    `is_elsewhere`: on another cluster, which has its own default queue, account and QoS.
    """
    if line is None:
        parts = _recorded_options(row, native, in_script)
        known = {option.partition("=")[0][2:] for option in parts}
    else:
        parts = _repeated_options(line.options, row, notes)
        known = {option.name for option in (*line.options, *in_script)}
    parts += [
        f"--{name}={row[column]}"
        for name, column in _PINNED
        if name not in known and row[column] and not is_elsewhere
    ]
    if "time" not in known and row["limit_seconds"]:
        parts.append(f"--time={max(1, row['limit_seconds'] // 60)}")
    if row["name"] and (line is None or row["name"] != last_value(in_script, "job-name")):
        # The name may be from the script's file, or a variable: stdin has none.
        parts.append(f"--job-name={row['name']}")
    return parts


def _script_arguments(native: Native, line: SubmitLine | None, notes: list[str]) -> Sequence[str]:
    """Return the arguments of a job's script; `native` is scontrol's record."""
    if line is None:
        # scontrol's Command is the script with its arguments, where there was such a file.
        command = native.get("Command", "") if "JobId" in native else ""
        arguments = command.split(" ")[1:]
        rest = "so are the script arguments"
        if not arguments:
            rest = "the script's arguments are unknown"
        notes.append(
            f"the command line is unknown: options are rebuilt from Slurm's record; {rest}"
        )
        return arguments
    if not line.is_certain:
        notes.append(
            "Slurm stores the command line without quotes, so it is unclear where the "
            "script's name begins: check these options against the original ones"
        )
    elif len(line.script) > 2:
        notes.append(
            "Slurm stores the command line without quotes: arguments are assumed to contain no "
            "blanks"
        )
    return line.script[1:]


class SlurmSubmit(ClusterPart, SubmitPart):
    """Submission by sbatch."""

    program = "sbatch"
    estimates_starts = True
    copies = True
    new_limits = frozenset({"time_seconds", "memory_bytes"})

    def submission(self, submission: Submission) -> SubmitCommand:
        """sbatch for a script that is handed in for the first time; options given beat the script's
        own lines.

        Raises UsageError for an option that sbatch does not know, or a second array. Through sudo
        it has to be a file.
        """
        line = read_command_line(submission.options)
        if line.script:
            raise UsageError(
                f"{line.script[0]!r} is not an sbatch option",
                "The script's own arguments follow another --.",
            )
        text = submission.script.decode("utf-8", "surrogateescape")
        given = (*line.options, *read_directives(text).options)
        parts = list(submission.options)
        chosen = last_value(line.options, "clusters") or ""
        if not chosen and self.clusters.several:
            several = f"SLURM_CLUSTERS contains several clusters: {self.clusters.several}"
            raise UsageError(f"nothing is submitted: {several}", _ONE_CLUSTER)
        if not chosen and self.clusters.default:
            # The variable overrides the script's own line, like in sbatch.
            parts.append(f"--clusters={self.clusters.default}")
        target = chosen or self.clusters.default or last_value(given, "clusters") or ""
        if submission.array:
            parts.append(f"--array={submission.array}")
        if submission.after:
            after = tuple(_on_target(one, target, self.clusters) for one in submission.after)
            parts.append(f"--dependency={format_after(after)}")
        if submission.held:
            parts.append("--hold")
        # Through stdin the file's name is invisible, and that of a staged file has no meaning.
        job_name = last_value(given, "job-name")
        if job_name is None:
            parts.append(f"--job-name={submission.name}")
        # A job that has a comment of its own keeps it.
        mark = submission.mark if last_value(given, "comment") is None else ""
        if mark:
            parts.append(
                f"--comment={mark}{kill_switch_comment(text, last_value(given, 'chdir') or '')}"
            )
        if submission.file or submission.run_as:
            command_line = ("sbatch", *parts, submission.file, *submission.arguments)
            clean = () if submission.run_as else _CLEAN
            argv = (*clean, *submission.as_account(*command_line))
        else:
            argv = _argv(parts, submission.arguments)
        stdin = None if submission.file else submission.script
        command = self._command(argv, submission.name, stdin)
        # A lost job of another cluster is in none of the lists that are searched: it must not count as
        # never sent.
        is_own = target == self.clusters.own and not self.clusters.named
        if not is_own and target not in ("", self.clusters.default):
            return SubmitCommand(command, (), mark)
        return SubmitCommand(command, (), mark, job_name or submission.name)

    def resubmission(
        self,
        detail: JobDetail,
        past: Native,
        script: Script,
        tasks: ArrayTasks | None,
        mark: str,
        limits: NewLimits = AS_IT_WAS,
        copy: Copy | None = None,
    ) -> SubmitCommand:
        """sbatch as the job was submitted; raises UsageError for a heterogeneous job."""
        named_id = detail.job["id"][0].as_py()
        is_elsewhere = copy is not None and copy.is_elsewhere
        cluster, detail = self._target(detail, is_elsewhere=is_elsewhere)
        row = detail.row
        native = {**past, **detail.native}
        if "+" in row["id"] or find_last_value(native, "HetJobId") is not None:
            raise UsageError(
                f"job {row['id']} is heterogeneous",
                f"Only other jobs can be {'copied' if copy else 'resubmitted'} from here.",
            )
        in_script = read_directives(script.text).options
        line = _submit_line(detail, past, script)
        on_line = line.options if line else ()
        notes: list[str] = []
        if copy is not None:
            _refuse_copy(row, line, (*in_script, *on_line), copy)
        parts = _recovered_options(row, native, line, in_script, notes, is_elsewhere=is_elsewhere)
        arguments = _script_arguments(detail.native, line, notes)
        parts = _with_limits(parts, limits, row, in_script)
        if copy is not None:
            parts = [*_placed(parts, copy), "--hold"]
        parts += _overriding(in_script, notes)
        parts += _array(row, native, tasks, on_line, in_script)
        if row["work_dir"]:
            parts.append(f"--chdir={row['work_dir']}")
        comment = _marked_comment(row, script, mark, copy)
        if not comment:
            comment = row["comment"]
            mark = ""
            notes.append(
                "the job keeps its comment; if the answer is lost, hpcdash searches for the job "
                "by name and time"
            )
        parts.append(f"--comment={comment}")
        if (last_value((*on_line, *in_script), "export") or "").upper() not in ("NONE", "NIL"):
            notes.append("runs with a fresh environment")
        if any("\ufffd" in word for word in parts):
            notes.append("bytes that are not UTF-8 were lost: some options may differ")
        if cluster:
            parts.insert(0, f"--clusters={cluster}")
        job_id = row["array_id"] or row["id"]
        job_id = job_id if tasks is None else with_tasks(job_id, tasks)
        job_id = named_id if job_id == row["id"] else with_cluster(job_id, cluster)
        if copy is not None:
            job_id = copy.job_id
        text = script.text.encode("utf-8", "surrogateescape")
        command = self._command(_argv(parts, arguments), job_id, text)
        return SubmitCommand(command, tuple(notes), mark, row["name"] or "")

    def _target(self, detail: JobDetail, *, is_elsewhere: bool) -> tuple[str, JobDetail]:
        """Return the cluster to name in sbatch, and the details with a plain ID."""
        if is_elsewhere:
            return self.clusters.require_one(), NO_OTHERS.plain_detail(detail)
        _, cluster = self.clusters.split_cluster(detail.job["id"][0].as_py())
        return cluster, self.clusters.plain_detail(detail)

    def _command(self, argv: tuple[str, ...], job_id: str, stdin: bytes | None) -> ActionCommand:
        read = partial(_read, job_id=job_id, clusters=self.clusters)
        return ActionCommand(argv, (job_id,), read, stdin, _LIMIT_SECONDS, explain=_explain)

    def log_folders(self, submission: Submission) -> tuple[str, ...]:
        """The folders of --output and --error; sbatch makes none, and a job without one fails at
        once.
        """
        given = _given(submission)
        start = last_value(given, "chdir") or ""
        found = []
        for name in ("output", "error"):
            file = last_value(given, name) or ""
            folder, slash, _ = file.rpartition("/")
            if slash and file != "/dev/null":
                is_whole = folder.startswith("/") or not folder or not start
                found.append((folder or "/") if is_whole else f"{start}/{folder}")
        return tuple(dict.fromkeys(found))

    def array_refusal(self, submission: Submission) -> Query[str] | None:
        """Queries the limits only for an array over Slurm's own defaults."""
        given = _given(submission)
        written = submission.array or last_value(given, "array")
        try:
            tasks = parse_tasks(written) if written else None
        except ValueError:
            return None
        if tasks is None or max(tasks.count, _highest(tasks)) <= _TASKS_TAKEN:
            return None
        query = Query(slurm("scontrol", "show", "config"), partial(_read_limits, tasks=tasks))
        return query_on(query, self.clusters.require_one())

    def start_estimate(self, submission: Submission) -> Query[StartEstimate]:
        """The command that would submit it, with --test-only; the script goes through stdin as for
        that.
        """
        argv = self.submission(replace(submission, mark="")).command.argv
        at = argv.index("sbatch") + 1
        notes = _not_counted(_given(submission), submission)
        tested = ("env", "LC_ALL=C", "SLURM_TIME_FORMAT=%s", *argv[:at], "--test-only", *argv[at:])
        return Query(
            tested,
            partial(parse_start_estimate, notes=notes),
            _START_ESTIMATE_LIMIT_SECONDS,
            cap_bytes=TEXT_BYTES,
        )

    def start_again_estimate(
        self,
        detail: JobDetail,
        past: Native,
        script: Script,
        limits: NewLimits,
        nodes: int | None,
    ) -> Query[StartEstimate]:
        """The command of `resubmission`, with --test-only."""
        argv = self.resubmission(detail, past, script, None, "", limits).command.argv
        at = argv.index("sbatch") + 1
        end = argv.index(_STDIN_FILE, at) if _STDIN_FILE in argv[at:] else len(argv)
        # The last of several wins.
        fewer = () if nodes is None else (f"--nodes={nodes}",)
        bare = len(_CLEAN)
        parts = (*argv[bare:at], "--test-only", *argv[at:end], *fewer, *argv[end:])
        tested = (*argv[:bare], "LC_ALL=C", "SLURM_TIME_FORMAT=%s", *parts)
        return Query(
            tested, parse_start_estimate, _START_ESTIMATE_LIMIT_SECONDS, cap_bytes=TEXT_BYTES
        )
