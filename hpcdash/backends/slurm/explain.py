"""Explanations of #SBATCH lines, in a few words each: `time limit 2 h; 8 GPUs per node`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hpcdash.backends.options import Option
from hpcdash.backends.slurm.options import MAGIC, read_command_line, split_arguments
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.units import MINUTE, format_span, parse_duration

Formatter = Callable[[str | None], str]
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
    "after": "{} began",
    "afterany": "{} ended",
    "afterburstbuffer": "{} and its burst buffer ended",
    "afternotok": "{} failed",
    "afterok": "{} succeeded",
}
_MAIL_WORDS = {
    "begin": "it begins",
    "end": "it ends",
    "fail": "it fails",
    "requeue": "it is requeued",
    "invalid_depend": "its dependency can never be met",
    "stage_out": "its files are staged out",
    "time_limit": "its time limit is reached",
    "time_limit_90": "90 % of its time is used",
    "time_limit_80": "80 % of its time is used",
    "time_limit_50": "half of its time is used",
    "array_tasks": "for each task of the array",
}


def duration(value: str | None) -> str:
    """`2:00:00` as `2 h`; '' for no limit; what cannot be read as it is.

    A bare number counts minutes.
    """
    text = (value or "").strip()
    if text.lower() in _UNLIMITED:
        return ""
    if not _CLOCK.fullmatch(text):
        return text
    try:
        return format_span(parse_duration(text, bare_unit_seconds=MINUTE) or 0, exact=True)
    except ValueError:
        return text


def count_phrase(one: str, many: str) -> Formatter:
    """`4 tasks per node`; `1 task per node`."""
    return lambda value: f"{value} {one if value == '1' else many}"


def memory(each: str, *, all_of_it: str) -> Formatter:
    """Explain `4G of memory per node`.

    A bare number counts MB, and `all_of_it` is the text for 0.
    """

    def formatter(value: str | None) -> str:
        text = (value or "").strip()
        if _ZERO.fullmatch(text):
            return all_of_it
        amount = f"{text}M" if text.isdigit() else text
        return f"{amount} {each}" if each.startswith("of ") else f"{amount} of memory {each}"

    return formatter


def nodes(value: str | None) -> str:
    """`4 nodes`, `2 to 4 nodes`."""
    text = value or ""
    low, dash, high = text.partition("-")
    if dash and low.isdigit() and high.isdigit() and low != high:
        return f"{low} to {high} nodes"
    return f"{low if low == high else text} {'node' if text in ('1', '1-1') else 'nodes'}"


def tasks(value: str | None) -> str:
    """`array of 10 tasks, one at a time`."""
    text = value or ""
    indices, percent, throttle = text.partition("%")
    try:
        held = parse_tasks(indices)
        many = held.count if held is not None else None
    except ValueError:
        many = None
    message = (
        f"array {indices}"
        if many is None
        else f"array of {many} {'task' if many == 1 else 'tasks'}"
    )
    if percent and throttle != "0":
        message += ", one at a time" if throttle == "1" else f", {throttle} at a time"
    return message


def dependencies(value: str | None) -> str:
    """`starts after job 41 ended well and job 42 ended`."""
    text = value or ""
    joined = " or " if "?" in text else " and "
    conditions = [one for one in re.split(r"[,?]", text) if one]
    return (
        "starts " + joined.join(_condition(one) for one in conditions)
        if conditions
        else "starts after nothing"
    )


def _condition(condition: str) -> str:
    kind, _, ids = condition.partition(":")
    if kind.lower() == "singleton":
        return "after your earlier jobs of this name end"
    jobs = ids.split(":")
    if kind.lower() == "aftercorr":
        return f"each task after the same task of {_jobs(jobs)} ended well"
    template = _DEPENDENCY_WORDS.get(kind.lower())
    if template is None or not ids:
        return f"after {condition}"
    if kind.lower() == "after" and "+" in ids:
        return " and ".join(
            f"{minutes} min after job {job} began" if plus else f"after job {job} began"
            for job, plus, minutes in (one.partition("+") for one in jobs)
        )
    return "after " + template.format(_jobs(jobs))


def _jobs(ids: list[str]) -> str:
    return f"{'job' if len(ids) == 1 else 'jobs'} {', '.join(ids)}"


def signal(value: str | None) -> str:
    """`sends USR1 to the batch shell 600 s before the limit`."""
    found = _SIGNAL.fullmatch(value or "")
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

    def formatter(value: str | None) -> str:
        parts = [_resource(one, kind) for one in (value or "").split(",") if one]
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


def mail_events(value: str | None) -> str:
    """`mail when it begins or fails`."""
    names = [name.lower() for name in (value or "").split(",") if name]
    if "none" in names:
        return "no mail"
    if "all" in names:
        return "mail whenever something happens"
    return "mail when " + " or ".join(_MAIL_WORDS.get(name, name.upper()) for name in names)


def export(value: str | None) -> str:
    """Explain which environment variables --export passes."""
    names = [name for name in (value or "").split(",") if name]
    kinds = {name.upper() for name in names}
    rest = ", ".join(name for name in names if name.upper() not in ("ALL", "NONE", "NIL"))
    if kinds & {"NONE", "NIL"}:
        return "passes no environment variables"
    if "ALL" in kinds:
        return f"passes your environment and {rest}" if rest else "passes your environment"
    return f"passes only {rest} of your environment"


def cpu_frequency(value: str | None) -> str:
    """Explain `CPU frequency 2400000 to 3000000 kHz`; names such as high and low are unchanged."""
    text = value or ""
    low, dash, high = text.partition("-")
    if dash and low.isdigit():
        return f"CPU frequency {low} to {high}"
    return f"CPU frequency {text}"


def switches(value: str | None) -> str:
    """`under at most 1 switch, waits 1 h for that`."""
    count, at, wait = (value or "").partition("@")
    text = f"under at most {count} {'switch' if count == '1' else 'switches'}"
    return f"{text}, waits {duration(wait)} for that" if at else text


# Explanation of an option's value; None for an option without its optional value.
_HETEROGENEOUS = frozenset({"hetjob", "packjob"})


def _fill(template: str) -> Formatter:
    """The value, as it is, where {} stands."""
    return lambda value: template.replace("{}", value or "")


def _or(without: str, template: str) -> Formatter:
    """An option that may come without a value."""
    return lambda value: without if value is None else template.replace("{}", value)


def _one_of(known: Mapping[str, str], template: str) -> Formatter:
    return lambda value: known.get((value or "").lower(), template.replace("{}", value or ""))


_FILES = {"none": "discarded", "/dev/null": "discarded"}

_WORDS: dict[str, Formatter] = {
    "account": _fill("charged to account {}"),
    "acctg-freq": _fill("usage is sampled every {}"),
    "array": tasks,
    "batch": _fill("the script runs on a node with {}"),
    "bb": _fill("burst buffer {}"),
    "bbf": _fill("burst buffer as file {} says"),
    "begin": _fill("starts no earlier than {}"),
    "chdir": _fill("runs in {}"),
    "cluster-constraint": _fill("only clusters with {}"),
    "clusters": _fill("on cluster {}"),
    "comment": _fill("comment: {}"),
    "constraint": _fill("only nodes with {}"),
    "container": _fill("in container {}"),
    "container-id": _fill("container is called {}"),
    "context": _fill("SELinux context {}"),
    "contiguous": _fill("nodes side by side"),
    "core-spec": count_phrase("core per node for the system", "cores per node for the system"),
    "cores-per-socket": count_phrase("core per socket or more", "cores per socket or more"),
    "cpu-freq": cpu_frequency,
    "cpus-per-gpu": count_phrase("CPU per GPU", "CPUs per GPU"),
    "cpus-per-task": count_phrase("CPU per task", "CPUs per task"),
    "deadline": _fill("removed if it cannot end by {}"),
    "delay-boot": lambda value: (
        f"waits {duration(value)} before nodes are rebooted for its features"
    ),
    "dependency": dependencies,
    "distribution": _fill("tasks spread as {}"),
    "error": _one_of({key: f"stderr {word}" for key, word in _FILES.items()}, "stderr to {}"),
    "exclude": _fill("never on {}"),
    "exclusive": _one_of(
        {"": "nodes shared with no other job", "user": "nodes shared only with your own jobs"},
        "nodes shared within the same {} only",
    ),
    "export": export,
    "export-file": _fill("environment read from {}"),
    "extra": _fill("extra: {}"),
    "extra-node-info": _fill("sockets:cores:threads {} per node"),
    "get-user-env": _or("environment of a login shell", "environment of a login shell ({})"),
    "gid": _fill("runs as group {}"),
    "gpu-bind": _fill("GPUs bound to tasks: {}"),
    "gpu-freq": _fill("GPU frequency {}"),
    "gpus": gres("GPU", ""),
    "gpus-per-node": gres("GPU", " per node"),
    "gpus-per-socket": gres("GPU", " per socket"),
    "gpus-per-task": gres("GPU", " per task"),
    "gres": gres("", " per node"),
    "gres-flags": _fill("GRES flags {}"),
    "help": _fill("prints sbatch's help: nothing is submitted"),
    "hint": _one_of(
        {
            "compute_bound": "made for computing: all cores, one thread each",
            "memory_bound": "made for memory: one core per socket",
            "multithread": "uses the cores' extra threads",
            "nomultithread": "does not use the cores' extra threads",
        },
        "hint {}",
    ),
    "hold": _fill("submitted held"),
    "ignore-pbs": _fill("#PBS and #BSUB lines are not read"),
    "input": _fill("stdin from {}"),
    "job-name": _fill("called {}"),
    "kill-on-invalid-dep": _one_of(
        {
            "yes": "removed if its dependency can never be met",
            "no": "stays waiting even if its dependency can never be met",
        },
        "if its dependency can never be met: {}",
    ),
    "licenses": _fill("needs licenses {}"),
    "mail-type": mail_events,
    "mail-user": _fill("mail to {}"),
    "mcs-label": _fill("MCS label {}"),
    "mem": memory("per node", all_of_it="all the memory of its nodes"),
    "mem-bind": _fill("memory bound: {}"),
    "mem-per-cpu": memory("per CPU", all_of_it="all the memory of its nodes"),
    "mem-per-gpu": memory("per GPU", all_of_it="all the memory of its nodes"),
    "mincpus": count_phrase("CPU per node or more", "CPUs per node or more"),
    "network": _fill("network {}"),
    "nice": _or("priority lowered by 100", "priority lowered by {}"),
    "no-kill": _one_of({"off": "ends if a node fails"}, "continues if a node fails"),
    "no-requeue": _fill("never requeued"),
    "nodefile": _fill("on the nodes that {} lists"),
    "nodelist": _fill("on {}"),
    "nodes": nodes,
    "ntasks": count_phrase("task", "tasks"),
    "ntasks-per-core": count_phrase("task per core at most", "tasks per core at most"),
    "ntasks-per-gpu": count_phrase("task per GPU", "tasks per GPU"),
    "ntasks-per-node": count_phrase("task per node", "tasks per node"),
    "ntasks-per-socket": count_phrase("task per socket at most", "tasks per socket at most"),
    "ntasks-per-tres": count_phrase("task per GPU", "tasks per GPU"),
    "oom-kill-step": _one_of(
        {"0": "a process that runs out of memory is killed alone"},
        "a step that runs out of memory is killed as a whole",
    ),
    "open-mode": _one_of(
        {
            "append": "output is appended to its files",
            "a": "output is appended to its files",
            "truncate": "output files are truncated first",
            "t": "output files are truncated first",
        },
        "opens output files as {}",
    ),
    "output": _one_of({key: f"stdout {word}" for key, word in _FILES.items()}, "stdout to {}"),
    "overcommit": _fill("more than one task per CPU"),
    "oversubscribe": _fill("shares its CPUs with other jobs"),
    "parsable": _fill("sbatch prints only the job ID"),
    "partition": lambda value: f"{'partitions' if ',' in (value or '') else 'partition'} {value}",
    "power": _fill("power {}"),
    "prefer": _fill("prefers nodes with {}"),
    "priority": _fill("priority {}"),
    "profile": _fill("profiles {}"),
    "propagate": _or("passes all your resource limits", "passes your resource limits: {}"),
    "qos": _fill("QoS {}"),
    "quiet": _fill("no sbatch messages"),
    "reboot": _fill("nodes are rebooted first"),
    "requeue": _fill("may be requeued"),
    "reservation": _fill("in reservation {}"),
    "resv-ports": _or("reserves ports", "reserves {} ports"),
    "segment": _fill("nodes in segments of {}"),
    "signal": signal,
    "sockets-per-node": count_phrase("socket per node or more", "sockets per node or more"),
    "spread-job": _fill("spread over as many nodes as possible"),
    "stepmgr": _fill("its first node manages the steps"),
    "switches": switches,
    "test-only": _fill("test only: nothing is submitted"),
    "thread-spec": count_phrase(
        "thread per node for the system", "threads per node for the system"
    ),
    "threads-per-core": count_phrase("thread per core", "threads per core"),
    "time": lambda value: (
        "no time limit" if duration(value) == "" else f"time limit {duration(value)}"
    ),
    "time-min": lambda value: f"accepts a limit down to {duration(value)}",
    "tmp": memory("of local disk per node", all_of_it="no local disk"),
    "tres-bind": _fill("bound: {}"),
    "tres-per-task": gres("", " per task"),
    "uid": _fill("runs as user {}"),
    "usage": _fill("prints sbatch's usage: nothing is submitted"),
    "use-min-nodes": _fill("takes the fewest nodes of its range"),
    "verbose": _fill("verbose sbatch messages"),
    "version": _fill("prints sbatch's version: nothing is submitted"),
    "wait": _fill("sbatch waits for its end"),
    "wait-all-nodes": _one_of(
        {"1": "starts when all nodes are ready", "0": "starts when its first node is ready"},
        "waits for its nodes: {}",
    ),
    "wckey": _fill("workload key {}"),
    "wrap": _fill("runs: {}"),
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
        parts.extend(_quote(one) for one in read.given)
        if rest:
            word, *rest = rest
            if word.lower() in _HETEROGENEOUS:
                parts.append("the following lines are for the next part of the job")
            else:
                parts.append(f"not an option: {word}")
    return "; ".join(parts)


def _quote(one: Option) -> str:
    if not one.name:
        return (
            f"unknown to Slurm: {one.written}"
            if one.problem == "unknown"
            else f"{one.written} is {one.problem}"
        )
    if one.value is not None:
        # Blanks around a value do not show.
        return _WORDS[one.name](one.value).rstrip()
    return _WORDS[one.name](None)
