"""What #SBATCH lines ask for, in a few words each: `time limit 2 h; 8 GPUs a node`. Knows no script and no job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpcdash.backends.options import Option
from hpcdash.backends.slurm.directive_values import (
    count_of,
    cpu_frequency,
    dependencies,
    duration,
    export,
    gres,
    mail_events,
    memory,
    nodes,
    signal,
    switches,
    tasks,
)
from hpcdash.backends.slurm.options import MAGIC, read_command_line, split_words

# What to say of an option's value; of one that may come without its value, None.
Words = Callable[[str | None], str]
_HETEROGENEOUS = frozenset({"hetjob", "packjob"})


def _of(template: str) -> Words:
    """The value, as it is, where {} stands."""
    return lambda value: template.replace("{}", value or "")


def _or(without: str, template: str) -> Words:
    """An option that may come without a value."""
    return lambda value: without if value is None else template.replace("{}", value)


def _one_of(known: Mapping[str, str], template: str) -> Words:
    return lambda value: known.get((value or "").lower(), template.replace("{}", value or ""))


_FILES = {"none": "thrown away", "/dev/null": "thrown away"}

_WORDS: dict[str, Words] = {
    "account": _of("charged to account {}"),
    "acctg-freq": _of("usage is sampled every {}"),
    "array": tasks,
    "batch": _of("the script runs on a node with {}"),
    "bb": _of("burst buffer {}"),
    "bbf": _of("burst buffer as file {} says"),
    "begin": _of("starts no earlier than {}"),
    "chdir": _of("runs in {}"),
    "cluster-constraint": _of("only clusters with {}"),
    "clusters": _of("on cluster {}"),
    "comment": _of("comment: {}"),
    "constraint": _of("only nodes with {}"),
    "container": _of("in container {}"),
    "container-id": _of("container is called {}"),
    "context": _of("SELinux context {}"),
    "contiguous": _of("nodes side by side"),
    "core-spec": count_of("core a node for the system", "cores a node for the system"),
    "cores-per-socket": count_of("core a socket or more", "cores a socket or more"),
    "cpu-freq": cpu_frequency,
    "cpus-per-gpu": count_of("CPU a GPU", "CPUs a GPU"),
    "cpus-per-task": count_of("CPU a task", "CPUs a task"),
    "deadline": _of("removed if it cannot end by {}"),
    "delay-boot": lambda value: f"waits {duration(value)} before nodes are rebooted for its features",
    "dependency": dependencies,
    "distribution": _of("tasks spread as {}"),
    "error": _one_of({key: f"stderr {word}" for key, word in _FILES.items()}, "stderr to {}"),
    "exclude": _of("never on {}"),
    "exclusive": _one_of(
        {"": "nodes shared with no other job", "user": "nodes shared with one's own jobs only"},
        "nodes shared within the same {} only",
    ),
    "export": export,
    "export-file": _of("environment read from {}"),
    "extra": _of("extra: {}"),
    "extra-node-info": _of("sockets:cores:threads {} a node"),
    "get-user-env": _or("environment of a login shell", "environment of a login shell ({})"),
    "gid": _of("runs as group {}"),
    "gpu-bind": _of("GPUs bound to tasks: {}"),
    "gpu-freq": _of("GPU frequency {}"),
    "gpus": gres("GPU", ""),
    "gpus-per-node": gres("GPU", " a node"),
    "gpus-per-socket": gres("GPU", " a socket"),
    "gpus-per-task": gres("GPU", " a task"),
    "gres": gres("", " a node"),
    "gres-flags": _of("GRES flags {}"),
    "help": _of("prints sbatch's help: nothing is submitted"),
    "hint": _one_of(
        {
            "compute_bound": "made for computing: all cores, one thread each",
            "memory_bound": "made for memory: one core a socket",
            "multithread": "uses the cores' extra threads",
            "nomultithread": "does not use the cores' extra threads",
        },
        "hint {}",
    ),
    "hold": _of("submitted held"),
    "ignore-pbs": _of("#PBS and #BSUB lines are not read"),
    "input": _of("stdin from {}"),
    "job-name": _of("called {}"),
    "kill-on-invalid-dep": _one_of(
        {
            "yes": "removed if its dependency can never hold",
            "no": "stays waiting even if its dependency can never hold",
        },
        "if its dependency can never hold: {}",
    ),
    "licenses": _of("needs licenses {}"),
    "mail-type": mail_events,
    "mail-user": _of("mail to {}"),
    "mcs-label": _of("MCS label {}"),
    "mem": memory("a node", all_of_it="all the memory of its nodes"),
    "mem-bind": _of("memory bound: {}"),
    "mem-per-cpu": memory("a CPU", all_of_it="all the memory of its nodes"),
    "mem-per-gpu": memory("a GPU", all_of_it="all the memory of its nodes"),
    "mincpus": count_of("CPU a node or more", "CPUs a node or more"),
    "network": _of("network {}"),
    "nice": _or("priority lowered by 100", "priority lowered by {}"),
    "no-kill": _one_of({"off": "ends when a node fails"}, "goes on when a node fails"),
    "no-requeue": _of("never requeued"),
    "nodefile": _of("on the nodes that {} lists"),
    "nodelist": _of("on {}"),
    "nodes": nodes,
    "ntasks": count_of("task", "tasks"),
    "ntasks-per-core": count_of("task a core at most", "tasks a core at most"),
    "ntasks-per-gpu": count_of("task a GPU", "tasks a GPU"),
    "ntasks-per-node": count_of("task a node", "tasks a node"),
    "ntasks-per-socket": count_of("task a socket at most", "tasks a socket at most"),
    "ntasks-per-tres": count_of("task a GPU", "tasks a GPU"),
    "oom-kill-step": _one_of(
        {"0": "a step that runs out of memory is not ended whole"}, "a step that runs out of memory is ended whole"
    ),
    "open-mode": _one_of(
        {
            "append": "output is added to its files",
            "a": "output is added to its files",
            "truncate": "output files are emptied first",
            "t": "output files are emptied first",
        },
        "opens output files as {}",
    ),
    "output": _one_of({key: f"stdout {word}" for key, word in _FILES.items()}, "stdout to {}"),
    "overcommit": _of("more than one task a CPU"),
    "oversubscribe": _of("shares its CPUs with other jobs"),
    "parsable": _of("sbatch prints the number alone"),
    "partition": lambda value: f"{'partitions' if ',' in (value or '') else 'partition'} {value}",
    "power": _of("power {}"),
    "prefer": _of("rather on nodes with {}"),
    "priority": _of("priority {}"),
    "profile": _of("profiles {}"),
    "propagate": _or("takes all of one's resource limits along", "takes one's resource limits along: {}"),
    "qos": _of("QoS {}"),
    "quiet": _of("sbatch says nothing"),
    "reboot": _of("nodes are rebooted first"),
    "requeue": _of("may be requeued"),
    "reservation": _of("in reservation {}"),
    "resv-ports": _or("reserves ports", "reserves {} ports"),
    "segment": _of("nodes in segments of {}"),
    "signal": signal,
    "sockets-per-node": count_of("socket a node or more", "sockets a node or more"),
    "spread-job": _of("spread over as many nodes as can be"),
    "stepmgr": _of("its first node manages the steps"),
    "switches": switches,
    "test-only": _of("only tried: nothing is submitted"),
    "thread-spec": count_of("thread a node for the system", "threads a node for the system"),
    "threads-per-core": count_of("thread a core", "threads a core"),
    "time": lambda value: "no time limit" if duration(value) == "" else f"time limit {duration(value)}",
    "time-min": lambda value: f"content with a limit of {duration(value)}",
    "tmp": memory("of local disk a node", all_of_it="no local disk"),
    "tres-bind": _of("bound: {}"),
    "tres-per-task": gres("", " a task"),
    "uid": _of("runs as user {}"),
    "usage": _of("prints sbatch's usage: nothing is submitted"),
    "use-min-nodes": _of("takes the fewest nodes of its range"),
    "verbose": _of("sbatch tells more"),
    "version": _of("prints sbatch's version: nothing is submitted"),
    "wait": _of("sbatch waits for its end"),
    "wait-all-nodes": _one_of(
        {"1": "starts when all nodes are ready", "0": "starts when its first node is ready"}, "waits for its nodes: {}"
    ),
    "wckey": _of("workload key {}"),
    "wrap": _of("runs: {}"),
}


def explain(line: str) -> str:
    """What one #SBATCH line asks for; '' for any other line and one that says nothing. The values are hostile still."""
    if not line.startswith(MAGIC):
        return ""
    parts: list[str] = []
    rest = split_words(line[len(MAGIC) :].rstrip("\r\n"))
    while rest:
        read = read_command_line(rest)
        rest = list(read.script)
        parts.extend(_said(one) for one in read.given)
        if rest:
            word, *rest = rest
            if word.lower() in _HETEROGENEOUS:
                parts.append("what follows is for the next part of the job")
            else:
                parts.append(f"no option: {word}")
    return "; ".join(parts)


def _said(one: Option) -> str:
    if not one.name:
        return f"unknown to Slurm: {one.written}" if one.problem == "unknown" else f"{one.written} is {one.problem}"
    if one.value is not None:
        # Blanks around a value do not show.
        return _WORDS[one.name](one.value).rstrip()
    return _WORDS[one.name](None)
