"""Proposes a longer time limit or more memory for a job that was ended for want of it, within what
its queue gives.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.job_detail import Usage
from hpcdash.backends.submissions import AS_IT_WAS, NewLimits
from hpcdash.domain.states import JobState
from hpcdash.domain.tables import Kind
from hpcdash.domain.units import (
    DAY,
    HOUR,
    MINUTE,
    format_memory,
    format_span,
    parse_duration,
    parse_memory,
)
from hpcdash.errors import HpcdashError, UsageError
from hpcdash.services.cluster.store import ClusterStore

Row = Mapping[str, Any]
_MIB = 1 << 20
_GIB = 1 << 30
_MORE = 1.5
# Above the most that was sampled; samples miss short peaks.
_ABOVE_PEAK = 1.4
# (up to, in steps of): what a person would write.
_TIME_STEPS = ((HOUR, 5 * MINUTE), (6 * HOUR, 15 * MINUTE), (DAY, HOUR), (float("inf"), 6 * HOUR))
_MEMORY_STEPS = (
    (_GIB, 64 * _MIB),
    (8 * _GIB, 512 * _MIB),
    (64 * _GIB, _GIB),
    (float("inf"), 8 * _GIB),
)


class Proposal(Struct, frozen=True):
    """Limits as they were and as they are proposed, None for what is not known or stays; `notes`
    say why.
    """

    before: NewLimits
    proposed: NewLimits
    notes: tuple[str, ...]


async def propose(store: ClusterStore, rows: Sequence[Row]) -> Proposal | None:
    """What to ask for where all these rows of a job or an array ended for want of time or memory;
    else None.

    Asks for usage, queues and nodes; what cannot be had only makes the proposal poorer.
    """
    states = {row["state"] for row in rows}
    if all(_was_killed(row) for row in rows):
        return await _after_a_kill(store, rows[0])
    if not states <= {JobState.TIMEOUT, JobState.OUT_OF_MEMORY}:
        # What failed by itself would not do better with more.
        return None
    offered = store.backend.submit.new_limits
    wants_time = JobState.TIMEOUT in states and "time_seconds" in offered
    wants_memory = JobState.OUT_OF_MEMORY in states and "memory_bytes" in offered
    if not wants_time and not wants_memory:
        return None
    starved = rows[0]
    nothing = AS_IT_WAS
    if not wants_memory:
        queues = await _table(store, Kind.QUEUES)
        return _joined(_more_time(starved, queues), (nothing, nothing, ()))
    usage, nodes = await asyncio.gather(_usage(store, starved), _table(store, Kind.NODES))
    memory_limit = _more_memory(starved, usage, nodes)
    if not wants_time:
        return _joined((NewLimits(starved["limit_seconds"]), nothing, ()), memory_limit)
    return _joined(_more_time(starved, await _table(store, Kind.QUEUES)), memory_limit)


def _was_killed(row: Row) -> bool:
    return bool(row["state"] == JobState.FAILED and row["exit_signal"] == signal.SIGKILL)


async def _after_a_kill(store: ClusterStore, killed: Row) -> Proposal | None:
    """More memory where it used more than it had: Slurm without cgroups ends such a job by a signal
    alone.
    """
    if "memory_bytes" not in store.backend.submit.new_limits:
        return None
    usage = await _usage(store, killed)
    if usage.memory_peak_bytes is None or usage.memory_peak_bytes <= (
        _requested_memory(killed, usage) or math.inf
    ):
        return None
    nodes = await _table(store, Kind.NODES)
    return _joined(
        (NewLimits(killed["limit_seconds"]), AS_IT_WAS, ()), _more_memory(killed, usage, nodes)
    )


_Part = tuple[NewLimits, NewLimits, tuple[str, ...]]


def _joined(time: _Part, memory: _Part) -> Proposal:
    return Proposal(
        NewLimits(time[0].time_seconds, memory[0].memory_bytes),
        NewLimits(time[1].time_seconds, memory[1].memory_bytes),
        (*time[2], *memory[2]),
    )


def _more_time(row: Row, queues: pa.Table | None) -> _Part:
    had = row["limit_seconds"]
    if not had:
        return AS_IT_WAS, AS_IT_WAS, ("it ran out of time; its time limit is unknown",)
    notes = [f"it hit its time limit of {format_span(had, exact=True)}"]
    wanted = _rounded_up(int(had * _MORE), _TIME_STEPS)
    most = _most(queues, "limit_seconds", "name", row["queue"])
    if most is not None and wanted > most:
        wanted = max(most, had)
        notes.append(f"queue {row['queue']} allows at most {format_span(most, exact=True)}")
    return NewLimits(had), NewLimits(wanted), tuple(notes)


def _more_memory(row: Row, usage: Usage, nodes: pa.Table | None) -> _Part:
    had = _requested_memory(row, usage)
    peak = usage.memory_peak_bytes
    if had is None and peak is None:
        return AS_IT_WAS, AS_IT_WAS, ("it ran out of memory; its limit and usage are unknown",)
    said = [f"of the {format_memory(had)} it had on a node" if had is not None else "it had"]
    said += [
        f"measured usage {format_memory(peak)}" if peak is not None else "its usage is unknown"
    ]
    notes = [f"it ran out of memory: {', '.join(said)}"]
    wanted = _rounded_up(int(max((had or 0) * _MORE, (peak or 0) * _ABOVE_PEAK)), _MEMORY_STEPS)
    most = _most(nodes, "memory_bytes", "queues", row["queue"])
    if most is not None and wanted > most:
        wanted = max(most // _MIB * _MIB, had or 0)
        notes.append(f"no node of {row['queue']} has more than {format_memory(most)}")
    return NewLimits(memory_bytes=had), NewLimits(memory_bytes=wanted), tuple(notes)


def _requested_memory(row: Row, usage: Usage) -> int | None:
    """Bytes on a node."""
    if usage.memory_asked_bytes is not None or row["memory_bytes"] is None:
        return usage.memory_asked_bytes
    return int(row["memory_bytes"]) // max(1, row["nodes"] or 1)


def _rounded_up(amount: int, steps: Sequence[tuple[float, int]]) -> int:
    step = next(step for most, step in steps if amount <= most)
    return -(-amount // step) * step


def _most(table: pa.Table | None, column: str, key: str, queue: str | None) -> int | None:
    """The largest value of what belongs to a queue; None where there is no such row, or one has no
    limit.
    """
    if table is None or queue is None:
        return None
    if pa.types.is_list(table.schema.field(key).type):
        lists = table[key].to_pylist()
        table = table.filter(pa.array([queue in (names or ()) for names in lists], pa.bool_()))
    else:
        table = table.filter(pc.fill_null(pc.equal(table[key], queue), False))
    if not table.num_rows or table[column].null_count:
        return None
    return int(pc.max(table[column]).as_py())


async def _table(store: ClusterStore, kind: Kind) -> pa.Table | None:
    """As the store has it, else as the cluster says now."""
    if (known := store.table(kind)) is not None:
        return known
    try:
        return (await store.fetch(kind)).table
    except HpcdashError:
        return None


async def _usage(store: ClusterStore, row: Row) -> Usage:
    query = store.backend.detail.usage(row)
    try:
        return Usage() if query is None else await store.ask(query)
    except HpcdashError:
        return Usage()


def read_limits(typed: Mapping[str, str]) -> NewLimits:
    """Limits as a person writes them, by `time` and `memory`; raises UsageError for what is
    none.
    """
    try:
        time = parse_duration(typed["time"], bare_unit_seconds=MINUTE) if "time" in typed else None
        memory = parse_memory(typed["memory"], bare_unit_bytes=_MIB) if "memory" in typed else None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if "time" in typed and not time:
        raise UsageError("a time limit must be finite and above zero: write 2h or 1-12:00:00")
    if memory == 0:
        raise UsageError("memory must be above zero: write 16G")
    return NewLimits(time, memory)
