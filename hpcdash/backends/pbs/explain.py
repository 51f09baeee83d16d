"""Explanations of #PBS lines, in a few words each: `2 chunks of 4 CPUs; time limit 2 h`."""

from __future__ import annotations

import re

from hpcdash.backends.pbs.options import (
    MAGIC,
    attributes,
    chunks,
    read_directive,
    resources,
    split_list,
)
from hpcdash.backends.script.explain import (
    DEPENDENCIES,
    Formatter,
    array,
    counted,
    explain_option,
    fill,
    jobs,
    one_of,
    span,
)

_CLOCK = re.compile(r"(?=.{1,20}$)[0-9]+(:[0-9]+){0,3}")
_SIZE = re.compile(r"([0-9]+)([kmgtp]?)([bw]?)", re.IGNORECASE)
# What others wait for.
_AWAITED = {"before": "start", "beforeok": "success", "beforenotok": "failure", "beforeany": "end"}
_MAIL_WORDS = {
    "a": "it is aborted",
    "b": "it begins",
    "e": "it ends",
    "j": "for each task",
    "f": "it fails",
}
_STREAMS = {"o": "stdout", "e": "stderr"}
_PLACES = {
    "free": "chunks on any nodes",
    "pack": "all chunks on one node",
    "scatter": "each chunk on its own node",
    "vscatter": "each chunk on its own vnode",
    "excl": "exclusive nodes",
    "exclhost": "whole exclusive nodes",
    "shared": "nodes shared with other jobs",
}
# Resource → one of it, many of it.
_COUNTED = {
    "ncpus": ("CPU", "CPUs"),
    "ppn": ("CPU", "CPUs"),
    "ngpus": ("GPU", "GPUs"),
    "gpus": ("GPU", "GPUs"),
    "naccelerators": ("accelerator", "accelerators"),
    "mpiprocs": ("MPI process", "MPI processes"),
    "ompthreads": ("OpenMP thread", "OpenMP threads"),
}
_SIZED = {
    "mem": "of memory",
    "pmem": "of memory per process",
    "vmem": "of virtual memory",
    "file": "of disk",
}
_TIMES = {
    "walltime": "time limit {}",
    "cput": "CPU time limit {}",
    "pcput": "CPU time limit per process {}",
    "min_walltime": "accepts a limit down to {}",
    "max_walltime": "accepts a limit up to {}",
}


def explain(line: str) -> str:
    """Explain the request of one #PBS line; '' for any other line and an empty request.

    The values are hostile still.
    """
    text = line.lstrip(" \t")
    if not text.startswith(MAGIC):
        return ""
    given = read_directive(text[len(MAGIC) :].rstrip("\\\r\n")).given
    parts = (explain_option(option, _WORDS, "PBS") for option in given)
    return "; ".join(part for part in parts if part)


def _size(value: str) -> str:
    """`8gb` as `8 GB`; a bare number counts bytes."""
    found = _SIZE.fullmatch(value)
    if found is None:
        return value
    unit = "words" if found[3].lower() == "w" else "B"
    return f"{found[1]} {found[2].upper()}{unit}"


def _resource(name: str, amount: str) -> str:
    if name in _COUNTED:
        return counted(*_COUNTED[name])(amount)
    if name in _SIZED:
        return f"{_size(amount)} {_SIZED[name]}"
    return f"{name} {amount}" if amount else name


def _chunks(value: str, one: str, many: str) -> str:
    """`2 chunks of 4 CPUs, 1 GPU, 8 GB of memory and 1 chunk of 1 CPU`."""
    spoken = []
    for count, pairs in chunks(value):
        held = ", ".join(_resource(name, amount) for name, amount in pairs)
        spoken.append(counted(one, many)(count or "1") + (f" of {held}" if held else ""))
    return " and ".join(spoken)


def _resources(value: str) -> str:
    return "; ".join(_requested(name, amount) for name, amount in resources(value))


def _requested(name: str, amount: str) -> str:
    if name == "select":
        return _chunks(amount, "chunk", "chunks")
    if name == "nodes":
        return _chunks(amount, "node", "nodes")
    if name == "place":
        return ", ".join(
            f"on nodes of the same {word.partition('=')[2]}"
            if word.startswith("group=")
            else _PLACES.get(word, word)
            for word in amount.split(":")
        )
    if name in _TIMES:
        return _TIMES[name].replace("{}", span(amount, _CLOCK))
    return _resource(name, amount)


def _keep(value: str) -> str:
    if value.lower() == "n":
        return "output is copied when the job ends"
    streams = [word for letter, word in _STREAMS.items() if letter in value]
    spoken = " and ".join(streams) or "output"
    if "d" in value:
        what = streams[0] if len(streams) == 1 else "the log"
        return f"writes {what} directly to its destination: readable while the job runs"
    return f"{spoken} {'stay' if len(streams) > 1 else 'stays'} in the home folder of its node"


def _mail(value: str) -> str:
    if "n" in value:
        return "no mail"
    return "mail when " + " or ".join(_MAIL_WORDS.get(letter, letter) for letter in value)


def _attributes(value: str) -> str:
    found = attributes(value)
    if not found:
        return f"-W {value} is not NAME=VALUE"
    return "; ".join(fill(_ATTRIBUTES.get(name, f"{name} {{}}"), text) for name, text in found)


def _depend(value: str) -> str:
    """`starts after job 41 succeeded and job 42 ended; job 50 waits for its end`."""
    waits = []
    awaited = []
    for condition in filter(None, value.split(",")):
        kind, _, ids = condition.partition(":")
        if end := _AWAITED.get(kind.removesuffix("array")):
            verb = "wait" if ":" in ids else "waits"
            awaited.append(f"{jobs(ids.split(':'))} {verb} for its {end}")
        else:
            waits.append(_condition(kind, ids))
    starts = [f"starts {' and '.join(waits)}"] if waits else []
    return "; ".join(starts + awaited) or "no dependency"


def _condition(kind: str, ids: str) -> str:
    if kind == "on":
        return f"after {counted('job', 'jobs')(ids)} with a before dependency release it"
    template = DEPENDENCIES.get(kind.removesuffix("array"))
    if template and ids:
        return f"after {fill(template, jobs(ids.split(':')))}"
    return f"after {kind}:{ids}"


def _variables(value: str) -> str:
    names = [item.partition("=")[0].strip() for item in split_list(value)]
    return f"sets {', '.join(name for name in names if name)}"


_ATTRIBUTES: dict[str, Formatter] = {
    "block": one_of(
        {"true": "qsub waits for the job to end", "false": "qsub does not wait for the job to end"},
        "block {}",
    ),
    "depend": _depend,
    "group_list": "runs as group {}",
    "interactive": one_of({"true": "runs in your terminal"}, "interactive {}"),
    "max_run_subjobs": "{} tasks at a time",
    "run_count": "run count {}",
    "sandbox": one_of(
        {"private": "runs in its own folder", "home": "runs in the home folder"}, "sandbox {}"
    ),
    "stagein": "files copied in before the job starts: {}",
    "stageout": "files copied out after the job ends: {}",
    "umask": "creates files with umask {}",
}
_WORDS: dict[str, Formatter] = {
    "a": "starts no earlier than {}",
    "A": "charged to account {}",
    "b": "qsub tries for {} s",
    "c": "checkpoints: {}",
    "C": "directives begin with {}",
    "d": "runs in {}",
    "D": "root folder {}",
    "e": "stderr to {}",
    "f": "qsub leaves no process behind",
    "F": "script arguments: {}",
    "h": "submitted held",
    "I": "runs in your terminal",
    "j": one_of(
        {"oe": "stderr goes into stdout's file", "eo": "stdout goes into stderr's file"}, "joins {}"
    ),
    "J": array,
    "k": _keep,
    "K": "killed after {} s",
    "l": _resources,
    "L": "resources {}",
    "m": _mail,
    "M": "mail to {}",
    "n": "exclusive nodes",
    "N": "called {}",
    "o": "stdout to {}",
    "p": "priority {}",
    "P": "project {}",
    "q": "queue {}",
    "r": one_of({"y": "may be rerun", "n": "never rerun"}, "run again: {}"),
    "R": "removes its output if it succeeds: {}",
    "S": "run by {}",
    "t": array,
    "T": "prologue {}",
    "u": "runs as user {}",
    "v": _variables,
    "V": "passes your environment",
    "w": "runs in {}",
    "W": _attributes,
    "x": "runs a command",
    "X": "forwards X11",
    "z": "qsub prints no job ID",
}
