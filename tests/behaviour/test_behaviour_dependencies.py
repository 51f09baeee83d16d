"""What waits for what, on the embedded queue and on Slurm alike."""

from __future__ import annotations

import asyncio

from tests.behaviour.clusters import Cluster


async def test_jobs_start_when_what_they_wait_for_ended_as_they_want_it(cluster: Cluster) -> None:
    gate = cluster.work / "gate of dependencies"
    wait = f"until [ -e '{gate}' ]; do sleep 0.05; done; "
    well, badly, array = await asyncio.gather(
        cluster.submit(f"{wait}true"),
        cluster.submit(f"{wait}false"),
        cluster.submit(f"{wait}exit $SLURM_ARRAY_TASK_ID", array="0-1"),
    )

    async def after(dependency: str) -> str:
        return await cluster.submit("true", f"--dependency={dependency}")

    will = await asyncio.gather(
        after(f"afterok:{well}"),
        after(f"afternotok:{badly}"),
        after(f"afterany:{well}:{badly}"),
        after(f"afterok:{well},afternotok:{array}"),
        after(f"afterok:{badly}?afterok:{well}"),
        after(f"afterok:{array}_0"),
        cluster.submit("true", after=(well, array)),
    )
    never = await asyncio.gather(
        after(f"afterok:{badly}"),
        after(f"afternotok:{well}"),
        after(f"afterok:{well},afterok:{array}"),
    )
    rows = await cluster.rows(*will, *never)
    assert len(rows) == 10
    assert {(row["state"], row["reason"], row["started_at"]) for row in rows} == {
        ("pending", "Dependency", None)
    }
    (row,) = (row for row in rows if row["id"] == will[0])
    assert row["dependency"].partition("(")[0] == f"afterok:{well}"
    gate.touch()
    rows = await cluster.all_ended(*will)
    assert {row["state"] for row in rows} == {"completed"}
    assert (await cluster.ended(badly))["state"] == "failed"
    for job in never:
        row = await cluster.wait(job, lambda row: row["reason"] != "Dependency")
        assert (row["state"], row["reason"], row["started_at"]) == (
            "pending",
            "DependencyNeverSatisfied",
            None,
        )
    await cluster.do("cancel", *never)


async def test_of_one_name_one_job_runs_at_a_time(cluster: Cluster) -> None:
    body = "until [ -e go-on-singleton ]; do sleep 0.05; done; date +%s%N; sleep 0.1; date +%s%N"
    first = await cluster.submit(body, "-J", "only one", "-d", "singleton")
    second = await cluster.submit(body, "-J", "only one", "-d", "singleton")
    third = await cluster.submit("true", "-J", "another", "-d", "singleton")
    await cluster.wait(first, "running")
    assert (await cluster.ended(third))["state"] == "completed"
    row = await cluster.row(second)
    assert (row["state"], row["reason"]) == ("pending", "Dependency")
    (cluster.work / "go-on-singleton").touch()
    await cluster.all_ended(first, second)
    times = [int(line) for job in (first, second) for line in (await cluster.log(job)).split()]
    assert times == sorted(times)


async def test_what_waits_for_a_job_that_is_cancelled_starts_or_never_does(
    cluster: Cluster,
) -> None:
    first = await cluster.submit("true", held=True)
    anyhow, badly, well = await asyncio.gather(
        *(
            cluster.submit("true", f"--dependency={kind}:{first}")
            for kind in ("afterany", "afternotok", "afterok")
        )
    )
    await cluster.do("cancel", first)
    rows = await cluster.all_ended(anyhow, badly)
    assert [row["state"] for row in rows] == ["completed", "completed"]
    row = await cluster.wait(well, lambda row: row["reason"] != "Dependency")
    assert (row["state"], row["reason"]) == ("pending", "DependencyNeverSatisfied")
    await cluster.do("cancel", well)


async def test_a_job_waits_for_its_time(cluster: Cluster) -> None:
    later, soon = await asyncio.gather(
        cluster.submit("true", "--begin=now+1hour", "-J", "later"),
        cluster.submit("true", "--begin=now+1"),
    )
    row = await cluster.wait(later, lambda row: row["reason"] not in (None, "None"))
    assert (row["state"], row["reason"]) == ("pending", "BeginTime")
    assert 3590 < row["eligible_at"].timestamp() - row["submitted_at"].timestamp() < 3610
    row = await cluster.ended(soon)
    assert row["state"] == "completed"
    assert row["started_at"].timestamp() - row["submitted_at"].timestamp() >= 1
    await cluster.do("cancel", later)
