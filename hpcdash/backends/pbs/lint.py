"""Lint of batch scripts for qsub, and the resources that their options request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcdash.backends.options import Option
from hpcdash.backends.pbs.options import (
    MAGIC,
    chunks,
    read_command_line,
    read_directives,
    resources,
    settings,
)
from hpcdash.backends.pbs.values import format_walltime
from hpcdash.backends.script.lint import (
    ScriptRules,
    demand_places,
    directive_part,
    lint,
    overridden_demand,
    parse_bytes,
    parse_count,
)
from hpcdash.domain.demand import Demand, LintFinding
from hpcdash.domain.offers import Offers
from hpcdash.domain.units import parse_duration

_TIME = re.compile(r"[0-9]{1,9}(?::[0-9]{1,9}){0,2}(?:\.[0-9]{1,3})?")


def lint_script(script: bytes, offers: Offers, over: Sequence[str] = ()) -> tuple[LintFinding, ...]:
    """Return the findings of hpcdash.backends.script.lint for a script for qsub."""
    return lint(script, _RULES, offers, over)


def script_demand(script: bytes, over: Sequence[str] = ()) -> Demand:
    """Return the resources that a script requests with its directives, overridden by `over`.

    Of a script's resources the first counts, of all else the last.
    """
    on_line = read_command_line(over).options
    demanded = [option for option in on_line if option.name == "l"]
    others = [option for option in on_line if option.name != "l"]
    given = read_directives(directive_part(script)).options
    demand = build_demand((*demanded, *given, *others))
    names = set(settings(on_line, in_script=False))
    return overridden_demand(demand, names, queue="q", limit_seconds="l.walltime")


def place_options(
    queue: str, limit_seconds: int | None, account: str = "", qos: str = ""
) -> tuple[str, ...]:
    """Return the options for a queue, a time limit and an account, over a script's own.

    PBS has no QoS.
    """
    options = (*(("-q", queue) if queue else ()), *(("-A", account) if account else ()))
    if not limit_seconds:
        return options
    return (*options, "-l", f"walltime={format_walltime(limit_seconds)}")


def refusal_hint(
    text: str,
    version: str,
    script: str,
    options: Sequence[str] = (),
    gpu_types: Sequence[str] = (),
) -> str:
    """Return '': PBS's own messages on refusals are clear."""
    return ""


def _is_time(text: str) -> bool:
    """Whether qsub takes it for a walltime: seconds, or hours:minutes:seconds."""
    return _TIME.fullmatch(text) is not None


def build_demand(options: Sequence[Option]) -> Demand:
    """Build the demand of options read like qsub: -q, -A, and of -l select (or nodes), walltime,
    ncpus, mem.
    """
    reported = settings(options, in_script=True)
    given = {option.name: option for option in options}
    for option in options:
        if option.name == "l":
            given |= {f"l.{name}": option for name, _ in resources(option.value or "")}
    select = chunks(reported.get("l.select") or reported.get("l.nodes") or "")
    counted = [(parse_count(count or "1") or 1, dict(parts)) for count, parts in select]

    def amounts(*names: str) -> list[tuple[int, int]]:
        """(how many chunks, amount in each) of the chunks that name one of these resources."""
        return [
            (count, amount)
            for count, parts in counted
            for name in names
            if (amount := parse_count(parts.get(name, ""))) is not None
        ]

    cpus = amounts("ncpus", "ppn")
    gpus = amounts("ngpus", "gpus")
    job_cpus, job_gpus = (parse_count(reported.get(f"l.{name}", "")) for name in ("ncpus", "ngpus"))
    walltime = reported.get("l.walltime", "")
    memories = [parse_bytes(parts.get("mem", ""), 1) for _, parts in counted]
    in_chunks = ("l.select", "l.nodes")
    sources = {
        "queues": ("q",),
        "account": ("A",),
        "limit_seconds": ("l.walltime",),
        "nodes": in_chunks,
        **dict.fromkeys(("cpus", "cpus_per_node"), (*in_chunks, "l.ncpus")),
        **dict.fromkeys(("gpus", "gpus_per_node"), (*in_chunks, "l.ngpus")),
        "memory_per_node_bytes": (*in_chunks, "l.mem"),
    }
    # A select's chunks may share a node; nodes= are so many.
    nodes = sum(count for count, _ in counted) if "l.nodes" in reported else None
    queue = reported.get("q", "").partition("@")[0]
    return Demand(
        queues=(queue,) if queue else (),
        account=reported.get("A", ""),
        limit_seconds=parse_duration(walltime) if _is_time(walltime) else None,
        nodes=nodes,
        cpus=sum(count * amount for count, amount in cpus) or job_cpus,
        cpus_per_node=max((amount for _, amount in cpus), default=None) or job_cpus,
        gpus=sum(count * amount for count, amount in gpus) or job_gpus,
        gpus_per_node=max((amount for _, amount in gpus), default=None) or job_gpus,
        memory_per_node_bytes=max((amount for amount in memories if amount), default=None),
        where=demand_places(sources, given),
    )


def _value(option: Option, place: str) -> Iterator[LintFinding]:
    if option.name != "l":
        return
    for name, amount in resources(option.value or ""):
        if name == "walltime" and not _is_time(amount):
            yield LintFinding(
                "error", place, f"walltime={amount} is not a time", "Use hours:minutes:seconds."
            )


_FOREIGN = "#SBATCH lines are for Slurm; qsub treats them as comments"
_RULES = ScriptRules(
    "qsub",
    MAGIC,
    read_directives,
    script_demand,
    option_findings=_value,
    foreign_magic="#SBATCH",
    foreign=("error", f"{_FOREIGN}, and there is no #PBS line", "Use #PBS lines instead."),
    foreign_beside=("warning", _FOREIGN, ""),
    not_taken=("warning", "your login shell will run the script"),
    crlf="the shell treats the CR as part of each word",
    comments=("#", ":"),
    begins_line=False,
)
