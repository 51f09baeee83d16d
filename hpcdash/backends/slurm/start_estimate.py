"""When Slurm would start a script, by `sbatch --test-only`; reads its answer. Runs nothing.

Each trait named here was seen on Slurm 22.05.8: all is said on stderr, nothing is submitted though a job number is used
up, and neither a hold nor what a job waits for counts. A time over the partition's limit, and a partition that starts
no jobs, are no refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from hpcdash.backends.options import Option, last_value
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.backends.slurm.errors import failure
from hpcdash.backends.slurm.options import read_command_line, read_directives
from hpcdash.backends.slurm.submit import submission
from hpcdash.backends.submissions import StartEstimate, Submission
from hpcdash.errors import CommandMissing, ControllerDown, NoConfiguration, excerpt

_TO_START = re.compile(
    r"Job [0-9]+ to start at (\S+) using ([0-9]{1,9}) processors on(?: nodes)? (\S+) in partition (\S+)"
)
_PREFIX = re.compile(r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?")
_EPOCH_DIGITS = 11
_LIMIT_SECONDS = 20.0
_SHOWN_LINES = 3
_NOT_COUNTED = (("hold", "it is held"), ("dependency", "it waits for other jobs"))
# sbatch(1) and slurm_strerror's words → what to do about them.
_HINTS = (
    ("Requested node configuration is not available", "no node has what it asks for: fewer GPUs, CPUs or less memory"),
    ("Invalid account or account/partition", "you may not charge this account, or not in this partition"),
    ("Invalid qos", "there is no such QoS, or your account may not use it"),
    ("Invalid partition name", "there is no such partition"),
    ("Invalid --time", "write minutes, hours:minutes:seconds or days-hours:minutes:seconds, without a unit"),
    ("requested time limit is invalid", "it asks for more time than the partition allows"),
    ("Node count specification invalid", "it asks for more nodes than the partition allows"),
    ("accounting/QOS policy", "it is over a limit of its account or QoS: time, size, or the number of jobs"),
    ("not permitted to use this partition", "this partition is not for your group or account"),
    ("partition configuration not available now", "it asks for more than the partition allows"),
    ("partition not available", "the partition takes no jobs now"),
    ("Memory specification can not be satisfied", "no node of the partition has so much memory"),
    ("CPU count per node can not be satisfied", "no node of the partition has so many CPUs"),
    ("Invalid generic resource", "there is no such device: the GPU's type may be another one here"),
    ("Invalid feature", "no node has this feature"),
    ("dependency problem", "a job it waits for is not there"),
    ("DOS line breaks", "save it with the line ends of UNIX"),
    ("does not look like a batch script", "its first line has to be #!/bin/bash or the like, with nothing before"),
)


def start_estimate_query(wanted: Submission) -> Query[StartEstimate]:
    """The command that would submit it, with --test-only; the script goes through stdin as for that."""
    argv = submission(replace(wanted, mark="")).command.argv
    at = argv.index("sbatch") + 1
    given = read_command_line(wanted.options).options
    in_script = read_directives(wanted.script.decode("utf-8", "surrogateescape")).options
    notes = _not_counted((*in_script, *given), wanted)
    tested = ("env", "LC_ALL=C", "SLURM_TIME_FORMAT=%s", *argv[:at], "--test-only", *argv[at:])
    return Query(tested, partial(parse_start_estimate, notes=notes), _LIMIT_SECONDS, cap_bytes=TEXT_BYTES)


def parse_start_estimate(answer: Answer, *, notes: Iterable[str] = ()) -> StartEstimate:
    """The start, or why it would be refused; raises ControllerDown, NoConfiguration, CommandMissing."""
    words = answer.stderr.decode("utf-8", "replace")
    if answer.status != 0:
        error = failure(answer)
        if isinstance(error, ControllerDown | NoConfiguration | CommandMissing):
            raise error
        refusal = _refusal(words) or f"sbatch ended with status {answer.status}"
        return StartEstimate(refusal=refusal, hint=_hint(refusal))
    found = _TO_START.search(words)
    if found is None:
        return StartEstimate(hint="it would be taken; Slurm tells no start")
    told, cpus, nodes, queue = found.groups()
    is_epoch = told.isdecimal() and len(told) <= _EPOCH_DIGITS
    clock = () if is_epoch else (f"it would start at {told} by the clock there",)
    return StartEstimate(
        starts_at_epoch=float(told) if is_epoch else None,
        cpus=int(cpus),
        node_list=nodes,
        queue=queue,
        hint="; ".join((*clock, *notes)),
    )


def _not_counted(given: tuple[Option, ...], wanted: Submission) -> tuple[str, ...]:
    asked = {option.name for option in given}
    waits = [why for name, why in _NOT_COUNTED if name in asked]
    waits += ["it is held"] if wanted.held and "hold" not in asked else []
    waits += ["it waits for other jobs"] if wanted.after and "dependency" not in asked else []
    notes = [f"not counted here: {' and '.join(waits)}"] if waits else []
    return (*notes, "of an array, its first task") if wanted.array or last_value(given, "array") else tuple(notes)


def _refusal(words: str) -> str:
    lines = [_PREFIX.sub("", line.strip()) for line in excerpt(words.encode()).splitlines()]
    told = list(dict.fromkeys(line for line in lines if line and not line.startswith("Try ")))[-_SHOWN_LINES:]
    # A sentence goes on over several lines.
    return "; ".join(told).replace("; line must", " line must").replace("; instead", " instead")


def _hint(refusal: str) -> str:
    return next((hint for words, hint in _HINTS if words.lower() in refusal.lower()), "")
