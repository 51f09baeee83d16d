"""How long jobs like one waited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdash.domain.schema import RUNS
from hpcdash.services.jobs.overview import JobPicture
from hpcdash.services.usage.waits import wait_times, waits_of
from tests.support.accounting import RUNS_ASKED, Accounting
from tests.support.job_rows import at, job_row, table_of
from tests.support.scripted_cluster import Cluster


def run(minutes: float, **more: Any) -> dict[str, Any]:
    """A run that started so long after it was eligible, which was an hour after it was submitted."""
    asked = {"queue": "gpu", "nodes": 1, "gpus": 4, "limit_seconds": 3600, "submitted_at": at(0), "eligible_at": at(60)}
    return {**job_row("1"), **asked, "started_at": at(60 + minutes), **more}


def test_jobs_of_its_queue_size_and_time_tell_and_where_they_are_few_others_too() -> None:
    like_it = [run(minutes) for minutes in range(1, 11)]
    longer = [run(1000, limit_seconds=86_400) for _ in range(10)]
    elsewhere = [run(5000, queue="cpu") for _ in range(20)]
    never = [run(1, started_at=None) for _ in range(9)]
    waits = waits_of(table_of(*like_it, *longer, *elsewhere, *never))
    job = run(0, started_at=None)

    found = wait_times(waits, job)
    assert found is not None
    assert (found.runs, found.median_seconds, found.most_seconds) == (10, 330, 492)
    assert str(found) == (
        "half started within 5 min, 80% within 8 min (10 jobs in gpu with 2 to 4 GPUs and a time limit up to 1 h)"
    )
    without_time = wait_times(waits, {**job, "limit_seconds": 2 * 86_400})
    assert without_time is not None
    assert (without_time.runs, without_time.like) == (20, "jobs in gpu with 2 to 4 GPUs")
    of_queue = wait_times(waits, {**job, "gpus": 0, "nodes": 40})
    assert of_queue is not None
    assert (of_queue.runs, of_queue.like) == (20, "jobs in gpu")
    assert wait_times(waits, {**job, "queue": "long"}) is None
    assert wait_times(waits, {**job, "queue": None}) is None
    assert wait_times(waits_of(RUNS.empty_table()), job) is None


async def test_a_waiting_job_s_page_has_them_and_asks_nothing_for_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    now = int(cluster.clock.now())
    times = {"submit": str(now - 7200), "eligible": str(now - 7200), "start": str(now - 6600), "end": str(now - 3600)}
    runs = [{"jobid": str(number), **times} for number in range(20)]
    cluster.transport.answers[RUNS_ASKED] = Accounting(runs)  # type: ignore[arg-type]
    from hpcdash.domain.spans import Span

    await cluster.store.archive.fetch_runs(Span(now - 86_400, now))
    asked = cluster.transport.count(RUNS_ASKED)
    waiting = {"jobarrayid": "99", "state": "PENDING", "reason": "Priority", "starttime": "N/A", "endtime": "N/A"}
    cluster.transport.recent = [waiting]
    cluster.transport.native = {"99": "JobId=99 JobName=train\n   UserId=alice(1001) GroupId=alice(1001)\n"}
    picture = JobPicture(cluster.store, "99")
    await picture.fetch()
    assert picture.waits is not None
    assert (picture.waits.runs, picture.waits.median_seconds) == (20, 600)
    assert cluster.transport.count(RUNS_ASKED) == asked
    await cluster.close()
