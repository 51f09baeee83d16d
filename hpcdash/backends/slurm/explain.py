"""Explanations of #SBATCH lines, in a few words each: `time limit 2 h; 8 GPUs per node`."""

from __future__ import annotations

import re

from hpcdash.backends.script.explain import (
    DEPENDENCIES,
    Formatter,
    array,
    counted,
    explain_option,
    jobs,
    one_of,
    span,
)
from hpcdash.backends.slurm.options import MAGIC, read_command_line, split_arguments
from hpcdash.domain.units import MINUTE

_CLOCK = re.compile(r"[0-9][0-9:-]*")
_UNLIMITED = frozenset({"0", "-1", "infinite", "unlimited"})
_ZERO = re.compile(r"0+[KMGT]?", re.IGNORECASE)
_SIGNAL_NAMES = {
    "1": "HUP",
    "2": "INT",
    "3": "QUIT",
    "9": "KILL",
    "10": "USR1",
    "12": "USR2",
    "15": "TERM",
    "18": "CONT",
}
_SIGNAL = re.compile(r"(?:([RrBb]{1,2}):)?(?:SIG)?([A-Za-z0-9]+)(?:@([0-9]+))?", re.IGNORECASE)
# sbatch(1): where no time is given.
_SIGNAL_SECONDS = "60"
_DEPENDENCY_WORDS = {
    **DEPENDENCIES,
    "afterburstbuffer": "{} and its burst buffer ended",
}
_MAIL_WORDS = {
    "begin": "it begins",
    "end": "it ends",
    "fail": "it fails",
    "requeue": "it is requeued",
    "invalid_depend": "its dependency can never be met",
    "stage_out": "its files are staged out",
    "time_limit": "its time limit is reached",
    "time_limit_90": "90% of its time is used",
    "time_limit_80": "80% of its time is used",
    "time_limit_50": "half of its time is used",
    "array_tasks": "for each array task",
}


def duration(value: str) -> str:
    """`2:00:00` as `2 h`; '' for no limit; what cannot be read as it is.

    A bare number counts minutes.
    """
    text = value.strip()
    return "" if text.lower() in _UNLIMITED else span(text, _CLOCK, MINUTE)


def memory(each: str, *, all_of_it: str) -> Formatter:
    """Explain `4G of memory per node`.

    A bare number counts MB, and `all_of_it` is the text for 0.
    """

    def formatter(value: str) -> str:
        text = value.strip()
        if _ZERO.fullmatch(text):
            return all_of_it
        amount = f"{text}M" if text.isdigit() else text
        return f"{amount} {each}" if each.startswith("of ") else f"{amount} of memory {each}"

    return formatter


def nodes(value: str) -> str:
    """`4 nodes`, `2 to 4 nodes`."""
    text = value
    low, dash, high = text.partition("-")
    if dash and low.isdigit() and high.isdigit() and low != high:
        return f"{low} to {high} nodes"
    return f"{low if low == high else text} {'node' if text in ('1', '1-1') else 'nodes'}"


def dependencies(value: str) -> str:
    """`starts after job 41 succeeded and job 42 ended`."""
    joined = " or " if "?" in value else " and "
    conditions = [one for one in re.split(r"[,?]", value) if one]
    return (
        "starts " + joined.join(_condition(one) for one in conditions)
        if conditions
        else "no dependency"
    )


def _condition(condition: str) -> str:
    kind, _, ids = condition.partition(":")
    if kind.lower() == "singleton":
        return "after your earlier jobs of this name end"
    job_ids = ids.split(":")
    if kind.lower() == "aftercorr":
        return f"each task after the same task of {jobs(job_ids)} succeeded"
    template = _DEPENDENCY_WORDS.get(kind.lower())
    if template is None or not ids:
        return f"after {condition}"
    if kind.lower() == "after" and "+" in ids:
        return " and ".join(
            f"{minutes} min after job {job} started" if plus else f"after job {job} started"
            for job, plus, minutes in (one.partition("+") for one in job_ids)
        )
    return "after " + template.format(jobs(job_ids))


def signal(value: str) -> str:
    """`sends USR1 to the batch shell 600 s before the limit`."""
    found = _SIGNAL.fullmatch(value)
    if found is None:
        return f"sends signal {value}"
    flags, name, seconds = found.groups()
    whom = "the batch shell" if "B" in (flags or "").upper() else "its steps"
    name = _SIGNAL_NAMES.get(name, name.upper())
    text = f"sends {name} to {whom} {seconds or _SIGNAL_SECONDS} s before the limit"
    return (
        f"{text}, or before a reservation takes its nodes" if "R" in (flags or "").upper() else text
    )


def gres(kind: str, each: str) -> Formatter:
    """`8 GPUs per node`, `2 GPUs (a100) per node and 4 shard per node`; `kind` where the value does
    not name it.
    """

    def formatter(value: str) -> str:
        parts = [_resource(one, kind) for one in value.split(",") if one]
        if parts == ["none"]:
            return "no GRES"
        return " and ".join(f"{part}{each}" for part in parts)

    return formatter


def _resource(text: str, kind: str) -> str:
    fields = re.split(r"[:=/]", text.removeprefix("gres/").removeprefix("gres:"))
    if text.lower() == "none":
        return "none"
    if not kind:
        kind, *fields = fields
        kind = "GPU" if kind.lower() == "gpu" else kind
    count = fields.pop() if fields and re.fullmatch(r"[0-9]+[kKmMgG]?", fields[-1]) else "1"
    plural = "s" if kind == "GPU" and count != "1" else ""
    typed = f" ({':'.join(fields)})" if fields else ""
    return f"{count} {kind}{plural}{typed}"


def mail_events(value: str) -> str:
    """`mail when it begins or fails`."""
    names = [name.lower() for name in value.split(",") if name]
    if "none" in names:
        return "no mail"
    if "all" in names:
        return "mail on all events"
    return "mail when " + " or ".join(_MAIL_WORDS.get(name, name.upper()) for name in names)


def export(value: str) -> str:
    """Explain which environment variables --export passes."""
    names = [name for name in value.split(",") if name]
    kinds = {name.upper() for name in names}
    rest = ", ".join(name for name in names if name.upper() not in ("ALL", "NONE", "NIL"))
    if kinds & {"NONE", "NIL"}:
        return "passes no environment variables"
    if "ALL" in kinds:
        return f"passes your environment and {rest}" if rest else "passes your environment"
    return f"passes only {rest} of your environment"


def cpu_frequency(value: str) -> str:
    """Explain `CPU frequency 2400000 to 3000000 kHz`; names such as high and low are unchanged."""
    text = value
    low, dash, high = text.partition("-")
    if dash and low.isdigit():
        return f"CPU frequency {low} to {high}"
    return f"CPU frequency {text}"


def switches(value: str) -> str:
    """`under at most 1 switch, waits 1 h for that`."""
    count, at, wait = value.partition("@")
    text = f"under at most {count} {'switch' if count == '1' else 'switches'}"
    return f"{text}, waits up to {duration(wait)}" if at else text


_HETEROGENEOUS = frozenset({"hetjob", "packjob"})
_FILES = {"none": "discarded", "/dev/null": "discarded"}

_WORDS: dict[str, Formatter] = {
    "account": "charged to account {}",
    "acctg-freq": "usage is sampled every {}",
    "array": array,
    "batch": "the script runs on a node with {}",
    "bb": "burst buffer {}",
    "bbf": "burst buffer settings from file {}",
    "begin": "starts no earlier than {}",
    "chdir": "runs in {}",
    "cluster-constraint": "only clusters with {}",
    "clusters": "on cluster {}",
    "comment": "comment: {}",
    "constraint": "only nodes with {}",
    "container": "in container {}",
    "container-id": "container name {}",
    "context": "SELinux context {}",
    "contiguous": "contiguous nodes",
    "core-spec": counted("core per node for the system", "cores per node for the system"),
    "cores-per-socket": counted("core per socket or more", "cores per socket or more"),
    "cpu-freq": cpu_frequency,
    "cpus-per-gpu": counted("CPU per GPU", "CPUs per GPU"),
    "cpus-per-task": counted("CPU per task", "CPUs per task"),
    "deadline": "removed if it cannot end by {}",
    "delay-boot": lambda value: (
        f"waits {duration(value)} before nodes are rebooted for its features"
    ),
    "dependency": dependencies,
    "distribution": "task distribution {}",
    "error": one_of({key: f"stderr {word}" for key, word in _FILES.items()}, "stderr to {}"),
    "exclude": "never on {}",
    "exclusive": one_of(
        {"": "exclusive nodes", "user": "nodes shared only with your own jobs"},
        "nodes shared only within the same {}",
    ),
    "export": export,
    "export-file": "environment read from {}",
    "extra": "extra: {}",
    "extra-node-info": "sockets:cores:threads {} per node",
    "get-user-env": one_of(
        {"": "environment of a login shell"}, "environment of a login shell ({})"
    ),
    "gid": "runs as group {}",
    "gpu-bind": "GPUs bound to tasks: {}",
    "gpu-freq": "GPU frequency {}",
    "gpus": gres("GPU", ""),
    "gpus-per-node": gres("GPU", " per node"),
    "gpus-per-socket": gres("GPU", " per socket"),
    "gpus-per-task": gres("GPU", " per task"),
    "gres": gres("", " per node"),
    "gres-flags": "GRES flags {}",
    "help": "prints sbatch's help: nothing is submitted",
    "hint": one_of(
        {
            "compute_bound": "compute-bound: all cores, one thread each",
            "memory_bound": "memory-bound: one core per socket",
            "multithread": "uses the cores' extra threads",
            "nomultithread": "does not use the cores' extra threads",
        },
        "hint {}",
    ),
    "hold": "submitted held",
    "ignore-pbs": "#PBS and #BSUB lines are not read",
    "input": "stdin from {}",
    "job-name": "called {}",
    "kill-on-invalid-dep": one_of(
        {
            "yes": "removed if its dependency can never be met",
            "no": "stays pending even if its dependency can never be met",
        },
        "if its dependency can never be met: {}",
    ),
    "licenses": "needs licenses {}",
    "mail-type": mail_events,
    "mail-user": "mail to {}",
    "mcs-label": "MCS label {}",
    "mem": memory("per node", all_of_it="all the memory of its nodes"),
    "mem-bind": "memory bound: {}",
    "mem-per-cpu": memory("per CPU", all_of_it="all the memory of its nodes"),
    "mem-per-gpu": memory("per GPU", all_of_it="all the memory of its nodes"),
    "mincpus": counted("CPU per node or more", "CPUs per node or more"),
    "network": "network {}",
    "nice": one_of({"": "priority lowered by 100"}, "priority lowered by {}"),
    "no-kill": one_of({"off": "ends if a node fails"}, "continues if a node fails"),
    "no-requeue": "never requeued",
    "nodefile": "on the nodes listed in {}",
    "nodelist": "on {}",
    "nodes": nodes,
    "ntasks": counted("task", "tasks"),
    "ntasks-per-core": counted("task per core at most", "tasks per core at most"),
    "ntasks-per-gpu": counted("task per GPU", "tasks per GPU"),
    "ntasks-per-node": counted("task per node", "tasks per node"),
    "ntasks-per-socket": counted("task per socket at most", "tasks per socket at most"),
    "ntasks-per-tres": counted("task per GPU", "tasks per GPU"),
    "oom-kill-step": one_of(
        {"0": "out of memory: only the process is killed"},
        "out of memory: the whole step is killed",
    ),
    "open-mode": one_of(
        {
            "append": "output is appended to its files",
            "a": "output is appended to its files",
            "truncate": "output files are truncated first",
            "t": "output files are truncated first",
        },
        "opens output files as {}",
    ),
    "output": one_of({key: f"stdout {word}" for key, word in _FILES.items()}, "stdout to {}"),
    "overcommit": "more than one task per CPU",
    "oversubscribe": "shares its CPUs with other jobs",
    "parsable": "sbatch prints only the job ID",
    "partition": lambda value: f"{'partitions' if ',' in (value or '') else 'partition'} {value}",
    "power": "power {}",
    "prefer": "prefers nodes with {}",
    "priority": "priority {}",
    "profile": "profiles {}",
    "propagate": one_of({"": "passes all your resource limits"}, "passes your resource limits: {}"),
    "qos": "QoS {}",
    "quiet": "no sbatch messages",
    "reboot": "nodes are rebooted first",
    "requeue": "may be requeued",
    "reservation": "in reservation {}",
    "resv-ports": one_of({"": "reserves ports"}, "reserves {} ports"),
    "segment": "nodes in segments of {}",
    "signal": signal,
    "sockets-per-node": counted("socket per node or more", "sockets per node or more"),
    "spread-job": "spread over as many nodes as possible",
    "stepmgr": "its first node manages the steps",
    "switches": switches,
    "test-only": "test only: nothing is submitted",
    "thread-spec": counted("thread per node for the system", "threads per node for the system"),
    "threads-per-core": counted("thread per core", "threads per core"),
    "time": lambda value: (
        "no time limit" if duration(value) == "" else f"time limit {duration(value)}"
    ),
    "time-min": lambda value: f"accepts a limit down to {duration(value)}",
    "tmp": memory("of local disk per node", all_of_it="no local disk"),
    "tres-bind": "bound: {}",
    "tres-per-task": gres("", " per task"),
    "uid": "runs as user {}",
    "usage": "prints sbatch's usage: nothing is submitted",
    "use-min-nodes": "takes the fewest nodes of its range",
    "verbose": "verbose sbatch messages",
    "version": "prints sbatch's version: nothing is submitted",
    "wait": "sbatch waits for the job to end",
    "wait-all-nodes": one_of(
        {"1": "starts when all nodes are ready", "0": "starts when its first node is ready"},
        "waits for its nodes: {}",
    ),
    "wckey": "workload key {}",
    "wrap": "runs: {}",
}


def explain(line: str) -> str:
    """Explain the request of one #SBATCH line; '' for any other line and an empty request.

    The values are still hostile.
    """
    if not line.startswith(MAGIC):
        return ""
    parts: list[str] = []
    rest = split_arguments(line[len(MAGIC) :].rstrip("\r\n"))
    while rest:
        read = read_command_line(rest)
        rest = list(read.script)
        parts.extend(explain_option(option, _WORDS, "Slurm") for option in read.given)
        if rest:
            word, *rest = rest
            if word.lower() in _HETEROGENEOUS:
                parts.append("the following lines are for the next part of the job")
            else:
                parts.append(f"not an option: {word}")
    return "; ".join(parts)
