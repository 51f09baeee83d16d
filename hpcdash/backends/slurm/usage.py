"""Use of a Slurm job: samples of its running steps from sstat, of its ended steps from sacct.

Both print only fields of Slurm's own, so their `|` is never part of a person's field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.job_detail import Usage, is_one_run, node_memory
from hpcdash.backends.queries import (
    TEXT_BYTES,
    Answer,
    Native,
    Query,
    Row,
    decoded,
    unreadable,
)
from hpcdash.backends.slurm.commands import slurm
from hpcdash.backends.slurm.errors import failure, require_success
from hpcdash.backends.slurm.history import sacct_id
from hpcdash.backends.slurm.jobs import queue_id
from hpcdash.backends.slurm.values import duration_seconds, memory_bytes, piped_rows, tres
from hpcdash.domain import nodelist
from hpcdash.domain.columns import digits
from hpcdash.domain.states import ENDED
from hpcdash.errors import SchedulerRefused

N = TypeVar("N", int, float)
RUNNING_FIELDS = (
    "jobid",
    "ntasks",
    "nodelist",
    "tresusageintot",
    "tresusageinmax",
    "tresusageouttot",
    "maxrss",
)
ENDED_FIELDS = (
    "jobid",
    "ntasks",
    "nnodes",
    "start",
    "end",
    "elapsedraw",
    "ncpus",
    "alloctres",
    "totalcpu",
    "tresusageintot",
    "tresusageinmax",
    "tresusageouttot",
    "maxrss",
)
# sstat takes '6_1' and '25+1' for jobs 6 and 25: it gets the number that each task and component
# has of its own. squeue lists all components when one is requested.
_SSTAT_BY_OWN_NUMBER = (
    'known=$(squeue -a -h -t all -o "%i %A" -j "$1") || exit; id=$(printf "%s\\n" "$known" | sed '
    '-n "s/^$1 //p"); '
    '[ -n "$id" ] || exit 0; exec sstat -a -n -P -j "$id" -o "$2"'
)
_NO_STEP = "No steps running for job"
_REFUSED = ("Invalid user id", "Access/permission denied")
RUNNING_NOTE = "includes only running steps"
NO_STEP_NOTE = "no step is running right now"


class _Step(Struct, frozen=True):
    """One step: sums over its tasks, the largest of one task, and when it ran (None: not known, or
    to this day).
    """

    name: str
    tasks: int
    nodes: int
    cpu_seconds: float | None
    memory_bytes: int | None
    gpu_percent: float | None
    gpu_memory_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    start: int | None = None
    end: int | None = None


def usage_query(row: Row) -> Query[Usage] | None:
    """sstat for a job that runs, sacct for one that ended; None for one that did not start, and for
    a whole array.
    """
    job_id = str(row["id"])
    if not is_one_run(row):
        return None
    if row["state"] in ENDED:
        argv = slurm("sacct", "-n", "-P", "-j", sacct_id(job_id), "-o", ",".join(ENDED_FIELDS))
        return Query(argv, partial(parse_ended, gpus=row["gpus"]), cap_bytes=TEXT_BYTES)
    requested = Usage(
        cpus=row["cpus"],
        elapsed_seconds=row["elapsed_seconds"],
        requested_memory_bytes=node_memory(row["memory_bytes"], row["nodes"]),
        gpus=row["gpus"],
    )
    fields = ",".join(RUNNING_FIELDS)
    number = queue_id(job_id)
    command = ("sstat", "-a", "-n", "-P", "-j", number, "-o", fields)
    if number.isdigit():
        argv = slurm(*command)
    else:
        argv = slurm("sh", "-c", _SSTAT_BY_OWN_NUMBER, "sh", number, fields)
    parse = partial(parse_running, requested=requested)
    return Query(argv, parse, command=command, cap_bytes=TEXT_BYTES)


def parse_running(answer: Answer, *, requested: Usage) -> Usage:
    """Add the running steps' use to `requested`; raises SchedulerRefused for others' jobs.

    sstat always exits 0; if stdout is empty, its stderr has the error.
    """
    require_success(answer)
    text = decoded(answer.stderr)
    steps = []
    for row in _rows(answer, RUNNING_FIELDS):
        amounts = (part.partition("=") for part in row["tresusageintot"].split(","))
        clock = next((amount for name, _, amount in amounts if name == "cpu"), "")
        try:
            nodes = max(1, nodelist.count(row["nodelist"]))
        except ValueError:
            nodes = 1
        steps.append(_step(row, nodes, clock_seconds(clock)))
    if not steps and any(phrase in text for phrase in _REFUSED):
        raise SchedulerRefused(
            "Slurm reports a running job's usage only to its owner",
            "Try again once it has ended: accounting may show it to everyone.",
            argv=answer.argv,
            status=answer.status,
            output=text.strip(),
        )
    if not steps:
        if text.strip() and _NO_STEP not in text:
            raise failure(answer)
        return replace(requested, note=NO_STEP_NOTE)
    return replace(
        _summed(requested, steps, _sum_known(step.cpu_seconds for step in steps)), note=RUNNING_NOTE
    )


def parse_ended(answer: Answer, *, gpus: int | None = None) -> Usage:
    """Parse the use of a job's steps from accounting; all None where it has no record."""
    require_success(answer)
    rows = _rows(answer, ENDED_FIELDS)
    whole = next((row for row in rows if "." not in row["jobid"]), None)
    if whole is None:
        return Usage(note="not in accounting")
    steps = [
        replace(
            _step(row, digits(row["nnodes"]) or 1, clock_seconds(row["totalcpu"])),
            start=digits(row["start"]),
            end=digits(row["end"]),
        )
        for row in rows
        if "." in row["jobid"]
    ]
    allocated_gpus, memory_bytes = tres(whole["alloctres"])
    requested = Usage(
        cpus=digits(whole["ncpus"]),
        elapsed_seconds=digits(whole["elapsedraw"]),
        requested_memory_bytes=node_memory(memory_bytes, digits(whole["nnodes"])),
        gpus=allocated_gpus or gpus,
    )
    cpu_seconds = clock_seconds(whole["totalcpu"])
    if not cpu_seconds and all(step.memory_bytes is None for step in steps):
        # Without a gathering plugin Slurm writes a CPU time of 0, and no memory.
        cpu_seconds = None
    return _summed(requested, steps, cpu_seconds)


def _rows(answer: Answer, fields: Sequence[str]) -> list[dict[str, str]]:
    text = decoded(answer.stdout)
    if answer.truncated:
        # The last line is not whole.
        text = text.rstrip("\n").rpartition("\n")[0]
    rows, rejected = piped_rows(text, fields)
    if rejected:
        raise unreadable(answer, "a job's steps")
    return rows


def _step(values: Native, nodes: int, cpu_seconds: float | None) -> _Step:
    tasks = digits(values["ntasks"]) or 1
    total = _amounts(values["tresusageintot"])
    most = _amounts(values["tresusageinmax"])
    written = _amounts(values["tresusageouttot"])
    return _Step(
        name=values["jobid"].rpartition(".")[2],
        tasks=tasks,
        nodes=nodes,
        cpu_seconds=cpu_seconds,
        memory_bytes=_memory_peak(
            total.get("mem"), memory_bytes(values["maxrss"]) or most.get("mem"), tasks, nodes
        ),
        gpu_percent=_largest(total.get("gres/gpuutil"), most.get("gres/gpuutil")),
        gpu_memory_bytes=_largest(total.get("gres/gpumem"), most.get("gres/gpumem")),
        read_bytes=_largest(total.get("fs/disk"), most.get("fs/disk")),
        written_bytes=written.get("fs/disk"),
    )


def _memory_peak(total: int | None, largest: int | None, tasks: int, nodes: int) -> int | None:
    """Return the peak memory of a node's tasks: the largest task's peak times the tasks per node.

    Slurm's sum over all tasks is that of the last sample, so it may be less than the peak of one of
    them.
    """
    if largest is None:
        return None if total is None else total // nodes
    return max(largest * -(-tasks // nodes), (total or 0) // nodes)


def _summed(requested: Usage, steps: Sequence[_Step], cpu_seconds: float | None) -> Usage:
    gpu_percent = _largest(*(step.gpu_percent for step in steps))
    if gpu_percent is not None:
        gpu_percent = min(100.0, gpu_percent / max(1, requested.gpus or 1))
    return replace(
        requested,
        cpu_seconds=cpu_seconds,
        memory_peak_bytes=_peak(steps),
        gpu_percent=gpu_percent,
        gpu_memory_peak_bytes=_largest(*(step.gpu_memory_bytes for step in steps)),
        disk_read_bytes=_sum_known(step.read_bytes for step in steps),
        disk_written_bytes=_sum_known(step.written_bytes for step in steps),
    )


def _peak(steps: Sequence[_Step]) -> int | None:
    """The largest step, where srun's steps that ran at the same time count together."""
    # The others are the batch shell's, and those of the node's own.
    numbered = [step for step in steps if step.name.isdigit()]
    alone = [step.memory_bytes for step in steps if not step.name.isdigit()]
    together = [
        _sum_known(
            other.memory_bytes for other in numbered if other is step or _runs_at(other, step)
        )
        for step in numbered
    ]
    return _largest(*alone, *together)


def _runs_at(other: _Step, step: _Step) -> bool:
    """Whether `other` ran when `step` began."""
    if step.start is None or other.start is None:
        return True
    return other.start <= step.start and (other.end is None or other.end > step.start)


def _sum_known(amounts: Iterable[N | None]) -> N | None:
    """The sum of what is known; None where nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _largest(*amounts: N | None) -> N | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def _amounts(text: str) -> dict[str, int]:
    """Sizes and counts of 'cpu=00:00:27,fs/disk=48616,mem=367864K'; what is no number is left
    out.
    """
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        size = memory_bytes(value)
        if size is not None:
            found[name] = size
    return found


def clock_seconds(text: str) -> float | None:
    """Seconds of '1-02:03:04', '00:10.909'; None for '' and what is no time."""
    clock, _, fraction = text.partition(".")
    whole = duration_seconds(clock)
    if whole is None or not re.fullmatch("[0-9]*", fraction):
        return None
    return whole + float(f"0.{fraction}")
