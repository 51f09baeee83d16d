"""How much of a limit is used, as jobs tell it, and which limit a job waits for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hpcdash.backends.base import PolicyReason
from hpcdash.domain.limits import format_limit
from hpcdash.domain.schema import JOBS, LIMITS
from hpcdash.services.usage.limits import find_limits, has_uncounted, policy_lines, with_counted_use
from tests.support.job_rows import job_row


def limit(resource: str = "jobs_running", maximum: int = 4, **fields: Any) -> dict[str, Any]:
    row = dict.fromkeys(LIMITS.names) | {
        "scope": "queue",
        "name": "q",
        "per": "user",
        "subject": "ada",
    }
    return (
        row
        | {"resource": resource, "maximum": maximum, "native": resource, "_id": resource}
        | fields
    )


def limits(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), LIMITS)


def jobs(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{"_tasks": 1, **row, "user": "ada"} for row in rows], JOBS)


MINE = jobs(
    job_row(
        "1", state="running", queue="q", qos="long", account="lab", cpus=4, memory_bytes=1 << 30
    ),
    job_row(
        "2", state="running", queue="other", qos="long", account="lab", cpus=2, memory_bytes=None
    ),
    job_row("3_[0-9]", state="pending", queue="q", qos="long", account="bio", cpus=8, _tasks=10),
    job_row("4", state="held", queue="q", qos="short", account="lab", cpus=1),
    job_row("5", state="completed", queue="q", qos="long", account="lab", cpus=64),
)
OF_ADA = {"_of_user": "ada"}


def test_jobs_that_run_or_wait_use_a_limit_up_and_ended_ones_do_not() -> None:
    told = [
        (limit(**OF_ADA), 2),
        (limit(**OF_ADA, _of_queue="q"), 1),
        (limit("jobs_submitted", **OF_ADA, _of_queue="q"), 12),
        (limit("jobs_waiting", **OF_ADA), 11),
        (limit("cpus", **OF_ADA), 6),
        (limit("cpus_submitted", **OF_ADA, _of_queue="q"), 4 + 80 + 1),
        (limit("cpus", **OF_ADA, _of_qos="short"), 0),
        (limit("jobs_submitted", **OF_ADA, _of_account="bio"), 10),
        (limit("memory_bytes", **OF_ADA, _of_queue="q"), 1 << 30),
        # Of one of them it is not known.
        (limit("memory_bytes", **OF_ADA), None),
        (limit("licenses", **OF_ADA), None),
        # Nothing says which jobs use it, and what the scheduler says stands.
        (limit(), None),
        (limit(used=3, **OF_ADA), 3),
        # Others' jobs use it too, and are not known.
        (limit(_of_queue="q"), None),
    ]
    counted = with_counted_use(limits(*(row for row, _ in told)), MINE, None, "ada").to_pylist()
    assert [row["used"] for row in counted] == [used for _, used in told]
    assert [row["free"] for row in counted[:3]] == [2, 3, 0]


def test_a_limit_of_many_is_counted_from_everyone_s_jobs() -> None:
    table = limits(limit(per="all", subject=None, _of_queue="q"))
    assert has_uncounted(table)
    [row] = with_counted_use(
        table, MINE, jobs(*MINE.to_pylist(), *MINE.to_pylist()), "ada"
    ).to_pylist()
    assert row["used"] == 2
    assert not has_uncounted(limits(limit(used=1, **OF_ADA), limit()))


def test_a_job_waits_for_the_limit_of_its_reason_s_kind_and_its_own_names() -> None:
    table = limits(
        limit(scope="qos", name="long", used=2, free=2),
        limit(scope="qos", name="short", used=4, free=0),
        limit(scope="qos", name="part", used=4, free=0, queues=["gpu"]),
        limit(scope="association", name="lab/ada", used=4, free=0),
        limit(scope="association", name="bio/ada", used=4, free=0),
        limit(scope="account", name="lab", per="account", used=1, free=3),
        limit("cpus", scope="qos", name="long", used=4, free=0),
    )
    job = job_row("9", state="pending", user="ada", queue="q", qos="long", account="lab")
    qos_offers = PolicyReason("limits", "qos", "user", "jobs_running")
    assert [row["name"] for row in find_limits(qos_offers, job, table)] == ["long"]
    in_gpu = find_limits(qos_offers, {**job, "queue": "gpu"}, table)
    # Of those that are used up no others are named.
    assert [row["name"] for row in in_gpu] == ["part"]
    of_association = PolicyReason("limits", "", "", "jobs_running")
    assert [row["name"] for row in find_limits(of_association, job, table)] == ["lab/ada"]
    lines = policy_lines(of_association, job, table)
    assert lines == [
        "association lab/ada: 4 of 4 running jobs, for user ada",
        "see :limits, or hpcdash limits",
    ]
    assert policy_lines(PolicyReason("shares"), job, None) == ["see :shares, or hpcdash shares"]


def test_amounts_are_written_in_the_resource_s_unit() -> None:
    told = {
        "memory_bytes": "queue q: 1G of 2G memory used, for user ada",
        "cpu_minutes": "queue q: 17.9M of 35.8M CPU-hours used, for user ada",
        "license/x_run_minutes": "queue q: 17.9M of 35.8M license/x hours of running jobs used, "
        "for user ada",
        "license/x": "queue q: 1.1G of 2.1G license/x used, for user ada",
    }
    for resource, words in told.items():
        assert format_limit(limit(resource, maximum=2 << 30, used=1 << 30)) == words
