from __future__ import annotations

from typing import Any

import pyarrow as pa

from hpcdash.domain import schema
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.job_counts import with_job_counts
from tests.support.job_rows import build_table


def jobs(*rows: tuple[str, str | None, str | None, int]) -> pa.Table:
    """Rows of state, queue, node list and tasks."""
    names = ("state", "queue", "node_list", "_tasks")
    return build_table(*(dict(zip(names, row, strict=True)) for row in rows))


def nodes(*names: str) -> pa.Table:
    return build_table(*({"name": name, "queues": ["gpu"]} for name in names), schema=schema.NODES)


def queues(*names: str) -> pa.Table:
    return build_table(*({"name": name} for name in names), schema=schema.QUEUES)


def counted(kind: Kind, table: pa.Table, queue: pa.Table) -> dict[str, Any]:
    joined = with_job_counts(kind, table, queue)
    assert joined.schema == table.schema
    if kind is Kind.NODES:
        return dict(zip(joined["name"].to_pylist(), joined["jobs"].to_pylist(), strict=True))
    pairs = zip(joined["jobs_running"].to_pylist(), joined["jobs_pending"].to_pylist(), strict=True)
    return dict(zip(joined["name"].to_pylist(), pairs, strict=True))


def test_a_job_counts_on_each_of_its_nodes_while_it_is_active() -> None:
    queue = jobs(
        ("running", "gpu", "g[1-3]", 1),
        ("running", "gpu", "g[1-3]", 1),
        ("completing", "gpu", "g3,h1", 1),
        ("suspended", "gpu", "g2", 1),
        ("pending", "gpu", None, 5),
        ("completed", "gpu", "g1", 1),
        ("unknown", "gpu", "g1", 1),
    )
    assert counted(Kind.NODES, nodes("g1", "g2", "g3", "g4", "h1"), queue) == {
        "g1": 2,
        "g2": 3,
        "g3": 3,
        "g4": 0,
        "h1": 1,
    }


def test_a_node_list_that_makes_no_sense_is_counted_nowhere() -> None:
    queue = jobs(
        ("running", "gpu", "g[1-", 1),
        ("running", "gpu", "g[1-99999999]", 1),
        ("running", "gpu", "g1", 1),
    )
    assert counted(Kind.NODES, nodes("g1"), queue) == {"g1": 1}


def test_a_job_over_a_whole_large_machine_is_counted() -> None:
    assert counted(
        Kind.NODES, nodes("c000007"), jobs(("running", "all", "c[000000-158975]", 1))
    ) == {"c000007": 1}


def test_waiting_tasks_count_each_and_in_every_queue_that_was_asked_for() -> None:
    queue = jobs(
        ("running", "gpu", "g1", 1),
        ("pending", "gpu,long", None, 1),
        ("held", "long", None, 10),
        ("requeued", "gpu", None, 1),
        ("completed", "gpu", None, 1),
        ("pending", None, None, 3),
    )
    assert counted(Kind.QUEUES, queues("gpu", "long", "idle"), queue) == {
        "gpu": (1, 2),
        "long": (0, 11),
        "idle": (0, 0),
    }


def test_an_empty_queue_is_none_everywhere() -> None:
    nothing = schema.empty(schema.JOBS)
    assert counted(Kind.NODES, nodes("g1"), nothing) == {"g1": 0}
    assert counted(Kind.QUEUES, queues("gpu"), nothing) == {"gpu": (0, 0)}
    assert counted(Kind.NODES, nodes(), jobs(("running", "gpu", "g1", 1))) == {}


def test_fifty_thousand_jobs_are_counted_in_a_moment() -> None:
    queue = jobs(
        *(("running", f"q{n % 20}", f"n[{n % 5000}-{n % 5000 + 3}]", 1) for n in range(50_000))
    )
    counts = counted(Kind.NODES, nodes(*(f"n{n}" for n in range(5000))), queue)
    assert counts["n100"] == 40


def test_what_a_node_says_of_its_jobs_stays() -> None:
    table = build_table({"name": "g1", "jobs": 8}, {"name": "g2"}, schema=schema.NODES)
    assert counted(Kind.NODES, table, jobs(("running", "gpu", "g[1-2]", 1))) == {"g1": 8, "g2": 1}


def test_of_a_queues_own_counts_and_those_of_its_rows_the_larger_ones_count() -> None:
    table = build_table(
        {"name": "gpu", "jobs_running": 20, "jobs_pending": 1}, schema=schema.QUEUES
    )
    queue = jobs(("running", "gpu", "g1", 1), ("pending", "gpu", None, 5))
    assert counted(Kind.QUEUES, table, queue) == {"gpu": (20, 5)}
