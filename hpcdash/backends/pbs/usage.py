"""What a job used of what it was given: resources_used of `qstat -f`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hpcdash.backends.job_detail import Usage
from hpcdash.backends.pbs.detail import parse_native
from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.listing import Listing, Want, listing
from hpcdash.backends.pbs.values import duration_seconds, size_bytes
from hpcdash.backends.queries import TEXT_BYTES, Answer, Query
from hpcdash.domain.columns import digits
from hpcdash.domain.states import ENDED, WAITING

RUNNING_NOTE = "as PBS sampled it last, which may be some minutes ago"
SPREAD_NOTE = "memory is what all its nodes held together, spread evenly over them"
NOTHING_NOTE = "PBS has measured nothing of it"


def usage_query(dialect: Dialect, row: Mapping[str, Any]) -> Query[Usage] | None:
    """As Backend.usage_query; None for one that did not start, for several tasks, and where nothing is measured."""
    if dialect is Dialect.SLURM_WRAPPERS or row["state"] in WAITING:
        return None
    if row["started_at"] is None or (row["_tasks"] or 1) > 1:
        return None
    question = listing(dialect, Want.WHOLE, job_ids=(str(row["id"]),))
    return Query(
        question.argv, partial(parse_usage, question=question, row=row), command=question.command, cap_bytes=TEXT_BYTES
    )


def parse_usage(answer: Answer, *, question: Listing, row: Mapping[str, Any]) -> Usage:
    """What was used so far, or in all; raises NoSuchJob."""
    native = parse_native(answer, question=question)
    used = {key.partition(".")[2]: text for key, text in native.items() if key.startswith("resources_used.")}
    notes = []
    if not used:
        notes.append(NOTHING_NOTE)
    elif row["state"] not in ENDED:
        notes.append(RUNNING_NOTE)
    nodes = max(1, row["nodes"] or 1)
    if nodes > 1 and "mem" in used:
        notes.append(SPREAD_NOTE)
    cpu_seconds = duration_seconds(used.get("cput", ""))
    return Usage(
        cpu_seconds=None if cpu_seconds is None else float(cpu_seconds),
        cpus=row["cpus"] or digits(used.get("ncpus")),
        elapsed_seconds=duration_seconds(used.get("walltime", "")) if used else row["elapsed_seconds"],
        memory_peak_bytes=_on_a_node(size_bytes(used.get("mem", "")), nodes),
        memory_asked_bytes=_on_a_node(row["memory_bytes"], nodes),
        gpus=row["gpus"],
        note="; ".join(notes),
    )


def _on_a_node(memory_bytes: int | None, nodes: int) -> int | None:
    return None if memory_bytes is None else memory_bytes // nodes
