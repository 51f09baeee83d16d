"""Occupancy of nodes: whose slots are used, and what is known of jobs on several nodes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from hpcdash.domain.schema import JOBS, NODES
from hpcdash.services.cluster.occupancy import NodeSlots, Occupancy, OwnSlots, cluster_occupancy
from tests.support.job_rows import job_row


def nodes(*rows: dict[str, Any]) -> pa.Table:
    blank = dict.fromkeys(NODES.names)
    return pa.Table.from_pylist([{**blank, "state": "mixed", **row} for row in rows], NODES)


def jobs(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([job_row(row.pop("id"), "running", **row) for row in rows], JOBS)


def gpu_node(name: str, used: int | None, total: int = 4, **rest: Any) -> dict[str, Any]:
    return {"name": name, "gpus": total, "gpus_used": used, "gpu_type": "a100", **rest}


def slots(occupancy: Occupancy) -> dict[str, NodeSlots]:
    return {node.name: node for node in occupancy.nodes}


def test_gpus_are_grouped_by_model_the_largest_group_first() -> None:
    found = cluster_occupancy(
        nodes(
            gpu_node("a1", 4),
            gpu_node("h1", 3, 8, gpu_type="h100"),
            {"name": "c1", "cpus": 64, "cpus_used": 64},
            gpu_node("a2", 1, state="drained"),
        )
    )
    assert (found.unit, [group.model for group in found.groups]) == ("GPU", ["a100", "h100"])
    assert [(group.total, group.used, group.free) for group in found.groups] == [
        (8, 5, 0),
        (8, 3, 5),
    ]
    assert found.unavailable == ("a2",)


def test_a_cluster_without_gpus_has_its_cpus() -> None:
    found = cluster_occupancy(nodes({"name": "c1", "cpus": 64, "cpus_used": 16, "gpus": 0}))
    assert (found.unit, slots(found)["c1"].free) == ("CPU", 48)


def test_own_jobs_newer_than_the_nodes_count_as_used_up_to_all_of_the_node() -> None:
    mine = jobs(
        {"id": "1", "node_list": "a1", "gpus": 2},
        {"id": "2", "node_list": "a2", "gpus": 3},
        {"id": "3", "node_list": "a2", "gpus": 3},
    )
    found = slots(cluster_occupancy(nodes(gpu_node("a1", 1), gpu_node("a2", 4)), mine))
    assert [(node.used, node.own_count, node.free) for node in found.values()] == [
        (2, 2, 2),
        (4, 4, 0),
    ]


def test_use_that_is_not_reported_is_neither_used_nor_free() -> None:
    [node] = cluster_occupancy(nodes(gpu_node("a1", None))).nodes
    assert (node.used, node.free) == (None, 0)


@pytest.mark.parametrize(
    ("node_list", "gpus", "used", "expected"),
    [
        ("a1", 2, (3, 0), {"a1": 2}),
        # Whole nodes, and all that is used.
        ("a[1-2]", 8, (4, 4), {"a1": 4, "a2": 4}),
        ("a[1-2]", 5, (3, 2), {"a1": 3, "a2": 2}),
        # Six of eight that are used may be any.
        ("a[1-2]", 6, (4, 4), {"a1": None, "a2": None}),
        ("a[1-2]", None, (4, 4), {"a1": None, "a2": None}),
        # A node that the table does not have.
        ("a1,x9", 4, (3, 0), {"a1": None}),
        ("a[", 4, (3, 0), {}),
    ],
)
def test_the_slots_of_an_own_job_are_those_that_are_certain(
    node_list: str, gpus: int | None, used: tuple[int, int], expected: dict[str, int | None]
) -> None:
    found = cluster_occupancy(
        nodes(gpu_node("a1", used[0]), gpu_node("a2", used[1])),
        jobs({"id": "7", "node_list": node_list, "gpus": gpus}),
    )
    assert {name: one.own for name, one in slots(found).items() if one.own} == {
        name: (OwnSlots("7", count),) for name, count in expected.items()
    }


def test_jobs_without_nodes_or_slots_are_on_no_node() -> None:
    found = cluster_occupancy(
        nodes(gpu_node("a1", 0)),
        jobs({"id": "1", "node_list": None, "gpus": 2}, {"id": "2", "node_list": "a1", "gpus": 0}),
    )
    assert not slots(found)["a1"].own
