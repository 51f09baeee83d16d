"""More of what a job was ended for want of is proposed, in round amounts, and no more than its
queue gives.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from hpcdash.backends.job_detail import Usage
from hpcdash.backends.submissions import NewLimits
from hpcdash.domain.tables import Kind
from hpcdash.domain.units import HOUR
from hpcdash.errors import SchedulerRefused, UsageError
from hpcdash.services.submit.resubmission import propose, read_limits
from tests.support.records import for_each

GIB = 1 << 30
BOTH = frozenset({"time_seconds", "memory_bytes"})


def row(state: str, **fields: Any) -> dict[str, Any]:
    had = {
        "limit_seconds": 12 * HOUR,
        "memory_bytes": 32 * GIB,
        "nodes": 2,
        "queue": "gpu",
        "exit_signal": None,
    }
    return {"state": state, **had, **fields}


def store(
    usage: Usage | None = None,
    offered: frozenset[str] = BOTH,
    most_seconds: int | None = None,
    most: int = 512,
) -> Any:
    queues = pa.table({"name": ["gpu"], "limit_seconds": pa.array([most_seconds], pa.int64())})
    nodes = pa.table({"queues": [["gpu"], ["cpu"]], "memory_bytes": [most * GIB, 4096 * GIB]})

    async def run_query(query: Any) -> Usage:
        if usage is None:
            raise SchedulerRefused("no accounting")
        return usage

    return SimpleNamespace(
        backend=SimpleNamespace(
            submit=SimpleNamespace(new_limits=offered),
            detail=SimpleNamespace(usage=lambda row: "sacct"),
        ),
        table={Kind.QUEUES: queues, Kind.NODES: nodes}.get,
        run_query=run_query,
    )


async def test_after_a_timeout_half_as_much_time_again_is_proposed() -> None:
    found = await propose(store(), [row("timeout")])
    assert found is not None
    assert (found.before, found.proposed) == (NewLimits(12 * HOUR), NewLimits(18 * HOUR))
    odd = await propose(store(), [row("timeout", limit_seconds=70 * 60)])
    assert odd is not None
    assert odd.proposed.time_seconds == 105 * 60


async def test_no_more_time_is_proposed_than_the_queue_gives() -> None:
    found = await propose(store(most_seconds=16 * HOUR), [row("timeout")])
    assert found is not None
    assert found.proposed == NewLimits(16 * HOUR)
    assert "queue gpu allows at most 16 h" in found.notes


async def test_after_running_out_of_memory_what_was_asked_counts_and_what_was_used() -> None:
    sampled_low = Usage(memory_peak_bytes=3 * GIB, requested_memory_bytes=16 * GIB)
    found = await propose(store(sampled_low), [row("out_of_memory")])
    assert found is not None
    assert (found.before.memory_bytes, found.proposed.memory_bytes) == (16 * GIB, 24 * GIB)
    over = Usage(memory_peak_bytes=20 * GIB, requested_memory_bytes=16 * GIB)
    found = await propose(store(over), [row("out_of_memory")])
    assert found is not None
    assert found.proposed.memory_bytes == 28 * GIB
    assert found.notes == ("ran out of memory (limit 16G per node, usage 20G measured)",)


@for_each(
    ("usage", "bytes_or_none"),
    [
        (Usage(memory_peak_bytes=20 * GIB, requested_memory_bytes=16 * GIB), 28 * GIB),
        (Usage(memory_peak_bytes=20 * GIB), 28 * GIB),
        (Usage(memory_peak_bytes=9 * GIB, requested_memory_bytes=16 * GIB), None),
        (Usage(requested_memory_bytes=16 * GIB), None),
        (None, None),
    ],
)
async def test_a_kill_is_for_want_of_memory_where_more_was_used_than_asked(
    usage: Usage | None, bytes_or_none: int | None
) -> None:
    killed = row("failed", exit_signal=9)
    found = await propose(store(usage), [killed])
    assert (found and found.proposed.memory_bytes) == bytes_or_none
    assert await propose(store(usage), [killed, row("failed", exit_signal=11)]) is None


async def test_without_accounting_the_row_says_what_a_node_had() -> None:
    found = await propose(store(None), [row("out_of_memory")])
    assert found is not None
    assert (found.before.memory_bytes, found.proposed.memory_bytes) == (16 * GIB, 24 * GIB)


async def test_no_more_memory_is_proposed_than_a_node_of_the_queue_has() -> None:
    found = await propose(store(None, most=20), [row("out_of_memory")])
    assert found is not None
    assert found.proposed.memory_bytes == 20 * GIB
    assert "no node of gpu has more than 20G" in found.notes


async def test_nothing_is_proposed_for_other_ends_or_for_what_a_scheduler_cannot_change() -> None:
    assert await propose(store(), [row("failed")]) is None
    assert await propose(store(Usage(memory_peak_bytes=20 * GIB)), [row("failed")]) is None
    assert await propose(store(), [row("timeout"), row("failed")]) is None
    assert await propose(store(offered=frozenset({"time_seconds"})), [row("out_of_memory")]) is None


def test_limits_are_read_as_people_write_them() -> None:
    assert read_limits({"time": "90m", "memory": "24G"}) == NewLimits(5400, 24 * GIB)
    for typed in ({"time": "unlimited"}, {"time": "soon"}, {"memory": "0"}, {"memory": "much"}):
        with pytest.raises(UsageError):
            read_limits(typed)
