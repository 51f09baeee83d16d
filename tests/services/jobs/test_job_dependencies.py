"""The jobs that a job waits for, on its page."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from hpcdash.domain.tables import Kind
from hpcdash.services.jobs.overview import JobFacts
from tests.support.scripted_cluster import Cluster

NATIVE = "JobId=99 JobName=eval\n   UserId=alice(1001) GroupId=alice(1001)\n"
WAITING = {
    "jobarrayid": "99",
    "arrayjobid": "99",
    "state": "PENDING",
    "reason": "Dependency",
    "dependency": "afterok:70(unfulfilled)",
    "starttime": "N/A",
    "endtime": "N/A",
}


async def test_the_state_of_a_dependency_is_not_that_of_the_last_run(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.transport.native = {"99": NATIVE}
    running = {"jobarrayid": "70", "arrayjobid": "70", "name": "train", "state": "RUNNING"}
    cluster.transport.mine = [WAITING, running]
    seen = await cluster.store.fetch(Kind.MINE)
    cluster.store.snapshots[Kind.MINE] = replace(seen, cached=True)
    cluster.clock.seconds += 3600
    cluster.transport.recent = [WAITING, {**running, "state": "FAILED"}]
    facts = JobFacts(cluster.store, "99")
    await facts.fetch()
    assert [(row["id"], row["state"]) for row in facts.related] == [("70", "failed")]
    await cluster.close()
