"""What is wrong with a batch script that is for qsub, and what its options ask for."""

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
    first_line_with,
    lint,
    overridden_demand,
    parse_bytes,
    parse_count,
    refused,
)
from hpcdash.domain.demand import Demand, LintFinding
from hpcdash.domain.offers import Offers
from hpcdash.domain.units import parse_duration

_TIME = re.compile(r"[0-9]{1,9}(?::[0-9]{1,9}){0,2}(?:\.[0-9]{1,3})?")


def lint_script(script: bytes, offers: Offers, over: Sequence[str] = ()) -> tuple[LintFinding, ...]:
    """What is wrong with a script for qsub, as hpcdash.backends.script.lint has it."""
    return lint(script, _RULES, offers, over)


def script_demand(script: bytes, over: Sequence[str] = ()) -> Demand:
    """What a script asks for with its own directives, and what is said over them.

    Of a script's resources the first counts, of all else the last.
    """
    given = [
        option for option in read_directives(directive_part(script)).given if not option.problem
    ]
    messages = [option for option in read_command_line(over).given if not option.problem]
    demanded = [option for option in messages if option.name == "l"]
    demand = build_demand(
        (*demanded, *given, *(option for option in messages if option.name != "l"))
    )
    return overridden_demand(
        demand, set(settings(messages, in_script=False)), queues={"q"}, limit_seconds={"l.walltime"}
    )


def queue_and_time_options(queue: str, limit_seconds: int | None) -> tuple[str, ...]:
    """Options for a queue ('' for none) and a time limit, over a script's own."""
    options = ("-q", queue) if queue else ()
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
    """Nothing: what PBS refuses it says."""
    return ""


def _is_time(text: str) -> bool:
    """Whether qsub takes it for a walltime: seconds, or hours:minutes:seconds."""
    return _TIME.fullmatch(text) is not None


def build_demand(options: Sequence[Option]) -> Demand:
    """Of a script's options as qsub reads them: -q, -A, and of -l select (or nodes), walltime,
    ncpus, mem.
    """
    last = {option.name: option for option in options}
    reported = settings(options, in_script=True)
    lines = {
        f"l.{name}": one
        for one in options
        if one.name == "l"
        for name, _ in resources(one.value or "")
    }
    select = (
        chunks(reported.get("l.select") or reported.get("l.nodes") or "")
        if {"l.select", "l.nodes"} & reported.keys()
        else []
    )
    counted = [(parse_count(count or "1") or 1, dict(parts)) for count, parts in select]

    def most(*names: str) -> int | None:
        found = [
            amount
            for _, parts in counted
            for name in names
            if (amount := parse_count(parts.get(name, ""))) is not None
        ]
        return max(found, default=None)

    def in_all(*names: str) -> int | None:
        found = [
            count * amount
            for count, parts in counted
            for name in names
            if (amount := parse_count(parts.get(name, ""))) is not None
        ]
        return sum(found) if found else None

    walltime = reported.get("l.walltime", "")
    memories = [parse_bytes(parts.get("mem", ""), 1) for _, parts in counted]
    chunk_place = ("l.select", "l.nodes")
    sources = {
        "queues": ("q",),
        "account": ("A",),
        "limit_seconds": ("l.walltime",),
        "nodes": chunk_place,
        "cpus": (*chunk_place, "l.ncpus"),
        "cpus_per_node": (*chunk_place, "l.ncpus"),
        "gpus": (*chunk_place, "l.ngpus"),
        "gpus_per_node": (*chunk_place, "l.ngpus"),
        "memory_per_node_bytes": (*chunk_place, "l.mem"),
    }
    # A select's chunks may share a node; nodes= are so many.
    nodes = sum(count for count, _ in counted) if "l.nodes" in reported else None
    queue = reported.get("q", "").partition("@")[0]
    return Demand(
        queues=(queue,) if queue else (),
        account=reported.get("A", ""),
        limit_seconds=parse_duration(walltime) if _is_time(walltime) else None,
        nodes=nodes,
        cpus=in_all("ncpus", "ppn") or parse_count(reported.get("l.ncpus", "")),
        cpus_per_node=most("ncpus", "ppn") or parse_count(reported.get("l.ncpus", "")),
        gpus=in_all("ngpus", "gpus") or parse_count(reported.get("l.ngpus", "")),
        gpus_per_node=most("ngpus", "gpus") or parse_count(reported.get("l.ngpus", "")),
        memory_per_node_bytes=max((amount for amount in memories if amount), default=None),
        where=demand_places(sources, {**last, **lines}),
    )


def _unknown(option: Option, place: str) -> LintFinding:
    return refused(option, place, "qsub")


def _value(option: Option, place: str) -> Iterator[LintFinding]:
    if option.name != "l":
        return
    for name, amount in resources(option.value or ""):
        if name == "walltime" and not _is_time(amount):
            yield LintFinding(
                "error", place, f"walltime={amount} is not a time", "Write hours:minutes:seconds."
            )


def _foreign(lines: Sequence[str], has_own: bool) -> Iterator[LintFinding]:
    first = first_line_with(lines, "#SBATCH")
    if not first:
        return
    text = "#SBATCH lines are for Slurm; qsub treats them as comments"
    if has_own:
        yield LintFinding("warning", f"line {first}", text, "")
    else:
        yield LintFinding(
            "error",
            f"line {first}",
            f"{text}, and there is no #PBS line",
            "Write #PBS lines instead.",
        )


_RULES = ScriptRules(
    "qsub",
    MAGIC,
    read_directives,
    script_demand,
    option_findings=_value,
    unknown=_unknown,
    foreign=_foreign,
    not_taken=("warning", "your login shell will run it"),
    crlf="the shell treats the CR as part of each word",
    comments=("#", ":"),
    begins_line=False,
)
