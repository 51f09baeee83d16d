"""Lint of batch scripts for sbatch, and the resources that their options request."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

from hpcdash.backends.options import Option
from hpcdash.backends.script.lint import (
    ScriptRules,
    demand_places,
    directive_part,
    lint,
    overridden_demand,
    parse_bytes,
    parse_count,
)
from hpcdash.backends.slurm.options import MAGIC, OPTIONS, read_command_line, read_directives
from hpcdash.domain.demand import Demand, LintFinding
from hpcdash.domain.offers import Offers
from hpcdash.domain.units import KIB, MINUTE, format_clock, parse_duration

_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|^~")
# sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, and days-hours with minutes and
# seconds or without.
_TIME = re.compile(r"[0-9]{1,9}(?:-[0-9]{1,9})?(?::[0-9]{1,9}){0,2}")
_FEATURES = re.compile(r"[\w.:-]+(?:&[\w.:-]+)*")
_UNLIMITED = frozenset({"infinite", "unlimited", "-1", "0"})


def lint_script(script: bytes, offers: Offers, over: Sequence[str] = ()) -> tuple[LintFinding, ...]:
    """Return the findings of hpcdash.backends.script.lint for a script for sbatch."""
    return lint(script, _RULES, offers, over)


def script_demand(script: bytes, over: Sequence[str] = ()) -> Demand:
    """Return the resources that a script requests with its directives, overridden by `over`."""
    on_line = read_command_line(over).options
    demand = build_demand((*read_directives(directive_part(script)).options, *on_line))
    names = {option.name for option in on_line}
    return overridden_demand(demand, names, queue="partition", limit_seconds="time")


def place_options(
    queue: str, limit_seconds: int | None, account: str = "", qos: str = ""
) -> tuple[str, ...]:
    """Return the options for a queue, a time limit, an account and a QoS, over a script's own."""
    named = (("partition", queue), ("account", account), ("qos", qos))
    options = tuple(f"--{name}={value}" for name, value in named if value)
    return (*options, f"--time={format_clock(limit_seconds)}") if limit_seconds else options


def _is_time(text: str) -> bool:
    """Whether sbatch takes it for a time."""
    return text.lower() in _UNLIMITED or _TIME.fullmatch(text) is not None


def build_demand(options: Sequence[Option]) -> Demand:
    """Build the demand of options read like sbatch; an unreadable option requests nothing."""
    last = {option.name: option for option in options}

    def value(name: str) -> str:
        return (last[name].value or "") if name in last else ""

    nodes = parse_count(value("nodes").partition("-")[0])
    tasks = parse_count(value("ntasks"))
    per_node = parse_count(value("ntasks-per-node"))
    if tasks is None and nodes is not None and per_node is not None:
        tasks = nodes * per_node
    each = parse_count(value("cpus-per-task"))
    at_once = tasks or nodes
    gpus, job_gpus = _gpus(value("gpus"))
    # `a100:2` of `gpu:a100:2,license:1`; a bare `gpu` is one.
    gres = (word.partition("(")[0] for word in value("gres").split(","))
    gres_gpus = (word[4:] or "1" for word in gres if word == "gpu" or word.startswith("gpu:"))
    on_node, node_gpus = _gpus(value("gpus-per-node"), *gres_gpus)
    cpus_per_node = (per_node or 1) * each if each is not None else per_node
    memory = parse_bytes(value("mem"), KIB**2)
    if memory is None and (cpu_memory := parse_bytes(value("mem-per-cpu"), KIB**2)):
        memory = cpu_memory * (cpus_per_node or 1)
    if gpus is None and on_node is not None and nodes is not None:
        gpus = nodes * on_node
    sources = {
        "queues": ("partition",),
        "account": ("account",),
        "qos": ("qos",),
        "limit_seconds": ("time",),
        "nodes": ("nodes",),
        "cpus": ("ntasks", "cpus-per-task", "ntasks-per-node"),
        "cpus_per_node": ("cpus-per-task", "ntasks-per-node"),
        "gpus": ("gpus", "gres", "gpus-per-node"),
        "gpus_per_node": ("gpus-per-node", "gres"),
        "gpu_type": ("gpus", "gpus-per-node", "gres"),
        "memory_per_node_bytes": ("mem", "mem-per-cpu"),
    }
    return Demand(
        queues=tuple(name for name in value("partition").split(",") if name),
        account=value("account"),
        qos=value("qos"),
        limit_seconds=_seconds(value("time")),
        nodes=nodes,
        cpus=at_once * (each or 1) if at_once is not None else each,
        cpus_per_node=cpus_per_node,
        gpus=gpus,
        gpus_per_node=on_node,
        gpu_type=job_gpus or node_gpus,
        memory_per_node_bytes=memory,
        features=_features(value("constraint")),
        is_exclusive="exclusive" in last,
        where=demand_places(sources, last),
    )


def _seconds(text: str) -> int | None:
    if not _TIME.fullmatch(text):
        return None
    return parse_duration(text, bare_unit_seconds=MINUTE) or None


def _features(constraint: str) -> tuple[str, ...]:
    """Return the features that all nodes must have; () for a choice between several."""
    return tuple(constraint.split("&")) if _FEATURES.fullmatch(constraint) else ()


def _gpus(*texts: str) -> tuple[int | None, str]:
    """(how many, of which type) of `4`, `a100:4`, `a100:2,v100:2`; '' for no type, or several."""
    total: int | None = None
    types = set()
    for item in (item for text in texts for item in text.split(",") if item):
        kind, _, count = item.rpartition(":")
        amount = parse_count(count)
        if amount is None:
            # A type alone is one of it.
            kind = item
            amount = 1
        total = (total or 0) + amount
        types.add(kind)
    return total, types.pop() if len(types) == 1 else ""


def _unknown(option: Option, place: str) -> LintFinding:
    near = difflib.get_close_matches(option.written.lstrip("-")[:60], OPTIONS, n=1, cutoff=0.75)
    text = f"sbatch has no option {option.written}"
    if near:
        return LintFinding("error", place, text, f"Did you mean --{near[0]}?")
    return LintFinding(
        "warning", place, text, "It rejects the script unless a site plugin accepts it."
    )


def _value(option: Option, place: str) -> Iterator[LintFinding]:
    if option.name == "time" and not _is_time(option.value or ""):
        text = f"{option.value!r} is not a time for sbatch, which does not accept units"
        yield LintFinding("error", place, text, "Use minutes, hours:minutes:seconds or days-hours.")
    elif option.value and (found := _VARIABLE.search(option.value)):
        text = f"sbatch does not expand variables: {found[0]} is used literally in --{option.name}"
        yield LintFinding(
            "warning", place, text, "Write the value itself, or set the option on the command line."
        )


# Seen on 22.05: beside #SBATCH lines too.
_FOREIGN = "#PBS lines are for PBS: sbatch applies some of them and ignores the rest"
_RULES = ScriptRules(
    "sbatch",
    MAGIC,
    read_directives,
    script_demand,
    option_findings=_value,
    unknown=_unknown,
    foreign_magic="#PBS",
    foreign=("warning", _FOREIGN, "Use #SBATCH lines instead."),
    foreign_beside=("warning", _FOREIGN, "Remove them, or use --ignore-pbs."),
    not_taken=("error", "sbatch rejects it"),
    crlf="sbatch rejects it",
    empty="sbatch rejects it.",
)


_NOT_AVAILABLE = "Requested node configuration is not available"
_NODE_RANGE = re.compile(r"--nodes=1-[0-9]+")
_GPU_TYPE = re.compile(r"--(?:gpus|gpus-per-(?:node|task)|gres)=(?:gpu:)?([^:=,0-9][^:=,]*):[0-9]+")
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")
# Slurm's bug 15857, fixed in 22.05.9.
_FIRST_BAD = (22, 5, 5)
_LAST_BAD = (22, 5, 8)


def _bug_hint(text: str, version: str, options: Iterable[str]) -> str:
    """Return the fix for a refusal that is a bug of this version of Slurm.

    '' where none is known.
    """
    found = _VERSION.search(version)
    given = list(options)
    is_requested_so = any(option.startswith("--gpus=") for option in given) and any(
        map(_NODE_RANGE.fullmatch, given)
    )
    if _NOT_AVAILABLE not in text or found is None or not is_requested_so:
        return ""
    if not _FIRST_BAD <= tuple(map(int, found.groups())) <= _LAST_BAD:
        return ""
    return (
        f"Slurm {found[0]} rejects some GPU requests over a node range that it could fulfil (bug "
        "15857, fixed in 22.05.9): set slots_per_node, with tres_supported = "
        "false under [site]"
    )


def refusal_hint(
    text: str,
    version: str,
    script: str,
    options: Sequence[str] = (),
    gpu_types: Sequence[str] = (),
) -> str:
    """Return a hint on a refusal whose message is misleading; '' where it is not."""
    if _NOT_AVAILABLE not in text:
        return ""
    own = [word for option in read_directives(script).options for word in option.arguments]
    given = (*own, *options)
    requested = next((found[1] for word in given if (found := _GPU_TYPE.fullmatch(word))), "")
    if requested and gpu_types and requested.casefold() not in map(str.casefold, gpu_types):
        return f"no node has a GPU of type {requested}; available: {', '.join(gpu_types)}"
    return _bug_hint(text, version, given)
