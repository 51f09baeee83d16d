"""What a cluster has free, by queue, and what one has there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hpcdash.domain import schema
from hpcdash.services.cluster.summary import own_jobs, queue_uses


def table(of: pa.Schema, *rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{**dict.fromkeys(of.names), **row} for row in rows], of)


def queue(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "available": True,
        "cpus": 64,
        "cpus_used": 16,
        "gpus": 0,
        "gpus_used": 0,
        **fields,
    }


def mine(*jobs: tuple[str, str, int]) -> pa.Table:
    return table(
        schema.JOBS,
        *({"queue": name, "state": state, "_tasks": tasks} for name, state, tasks in jobs),
    )


def test_queues_with_own_jobs_come_first_then_gpus_then_the_largest() -> None:
    queues = table(
        schema.QUEUES,
        queue("small", cpus=8),
        queue("large", cpus=512),
        queue("gpu", gpus=8),
        queue("own"),
        queue("shut", cpus=900, available=False),
    )
    found = queue_uses(queues, mine(("own", "running", 1), ("own", "completed", 1)))
    assert [one.name for one in found] == ["own", "gpu", "large", "small", "shut"]
    assert [one.own for one in found] == [1, 0, 0, 0, 0]


def test_queues_that_refuse_the_user_come_after_the_open_ones() -> None:
    queues = table(
        schema.QUEUES, queue("vip", gpus=8), queue("cpu"), queue("shut", available=False)
    )
    found = queue_uses(queues, refused={"vip", "shut"})
    assert [(one.name, one.closed) for one in found] == [
        ("cpu", ""),
        ("shut", "closed"),
        ("vip", "no access"),
    ]


def test_slots_on_nodes_that_are_down_are_not_to_be_had() -> None:
    (found,) = queue_uses(
        table(schema.QUEUES, queue("gpu", gpus=16, gpus_used=12, _gpus_down=4, nodes_down=1))
    )
    assert (found.kind, found.used, found.total, found.share, found.nodes_down) == (
        "GPU",
        12,
        16,
        1.0,
        1,
    )


def test_a_queue_whose_use_is_not_told_has_a_size_alone() -> None:
    (found,) = queue_uses(table(schema.QUEUES, queue("workq", cpus_used=None)))
    assert (found.kind, found.used, found.total, found.share) == ("CPU", None, 64, 0.0)


def test_a_queue_without_slots_is_left_out() -> None:
    assert (
        queue_uses(table(schema.QUEUES, queue("route", cpus=None), queue("lost", _cpus_down=64)))
        == ()
    )


def test_own_jobs_are_counted_by_state_with_the_tasks_of_arrays() -> None:
    jobs = mine(
        ("a", "pending", 15),
        ("a", "running", 1),
        ("b", "running", 1),
        ("b", "failed", 1),
        ("b", "held", 1),
    )
    assert own_jobs(jobs) == (("running", 2), ("pending", 15), ("held", 1))


def test_a_job_whose_tasks_are_unknown_counts_as_one() -> None:
    jobs = table(
        schema.JOBS,
        *({"queue": "a", "state": "running", "_tasks": tasks} for tasks in (None, 3, None)),
    )
    assert own_jobs(jobs) == (("running", 5),)
