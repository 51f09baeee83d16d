"""How long jobs like one waited."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcdash.backends.pbs.backend import BACKEND as PBS
from hpcdash.backends.pbs.listing import Want
from hpcdash.domain.schema import RUNS
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.overview import JobFacts
from hpcdash.services.jobs.page import job_groups
from hpcdash.services.usage.waits import WaitTimes, compute_waits, wait_times
from tests.support.accounting import RUNS_ASKED, Accounting
from tests.support.job_rows import at, build_table, job_row
from tests.support.pbs.job_text import WAITING_JOB, dsv, parsed
from tests.support.records import for_each
from tests.support.scripted_cluster import Cluster
from tests.support.scripted_transport import ScriptedTransport


def run(minutes: float, **more: Any) -> dict[str, Any]:
    """A run that started so long after it was eligible, which was an hour after it was
    submitted.
    """
    asked = {
        "queue": "gpu",
        "nodes": 1,
        "gpus": 4,
        "limit_seconds": 3600,
        "submitted_at": at(0),
        "eligible_at": at(60),
    }
    return {**job_row("1"), **asked, "started_at": at(60 + minutes), **more}


def test_jobs_of_its_queue_size_and_time_tell_and_where_they_are_few_others_too() -> None:
    like_it = [run(minutes) for minutes in range(1, 11)]
    longer = [run(1000, limit_seconds=86_400) for _ in range(10)]
    elsewhere = [run(5000, queue="cpu") for _ in range(20)]
    never = [run(1, started_at=None) for _ in range(9)]
    waits = compute_waits(build_table(*like_it, *longer, *elsewhere, *never))
    job = run(0, started_at=None)

    found = wait_times(waits, job)
    assert found is not None
    assert (found.runs, found.median_seconds, found.most_seconds) == (10, 330, 492)
    assert str(found) == (
        "half started within 5 min, 80% within 8 min (10 jobs in gpu with 2 to 4 GPUs and a time "
        "limit up to 1 h)"
    )
    without_time = wait_times(waits, {**job, "limit_seconds": 2 * 86_400})
    assert without_time is not None
    assert (without_time.runs, without_time.like) == (20, "jobs in gpu with 2 to 4 GPUs")
    queue_rows = wait_times(waits, {**job, "gpus": 0, "nodes": 40})
    assert queue_rows is not None
    assert (queue_rows.runs, queue_rows.like) == (20, "jobs in gpu")
    assert wait_times(waits, {**job, "queue": "long"}) is None
    assert wait_times(waits, {**job, "queue": None}) is None
    assert wait_times(compute_waits(RUNS.empty_table()), job) is None


def test_the_score_compares_the_last_waits_with_the_median_of_those_before_each() -> None:
    # Twenty waited 10 min; then ten 15 min, four 1 min and six 2 h.
    later = [10.0] * 20 + [15.0] * 10 + [1.0] * 4 + [120.0] * 6
    runs = [
        run(minutes, submitted_at=at(number), eligible_at=at(60))
        for number, minutes in enumerate(later)
    ]
    runs.reverse()
    found = wait_times(compute_waits(build_table(*runs)), run(0, started_at=None))
    assert found is not None
    assert found.score == (
        "of the last 30, 20 started within half to twice the median, 4 earlier, 6 later"
    )
    few = wait_times(compute_waits(build_table(*runs[:19])), run(0, started_at=None))
    assert few is not None
    assert few.score == ""


async def test_a_waiting_job_s_page_has_them_and_asks_nothing_for_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    now = int(cluster.clock.now())
    times = {
        "submit": str(now - 7200),
        "eligible": str(now - 7200),
        "start": str(now - 6600),
        "end": str(now - 3600),
    }
    runs = [{"jobid": str(number), **times} for number in range(20)]
    cluster.transport.answers[RUNS_ASKED] = Accounting(runs)  # type: ignore[arg-type]
    from hpcdash.domain.spans import Span

    await cluster.store.archive.fetch_runs(Span(now - 86_400, now))
    asked = cluster.transport.count(RUNS_ASKED)
    waiting = {
        "jobarrayid": "99",
        "state": "PENDING",
        "reason": "Priority",
        "starttime": "N/A",
        "endtime": "N/A",
    }
    cluster.transport.recent = [waiting]
    cluster.transport.native = {
        "99": "JobId=99 JobName=train\n   UserId=alice(1001) GroupId=alice(1001)\n"
    }
    picture = JobFacts(cluster.store, "99")
    await picture.fetch()
    assert picture.waits is not None
    assert (picture.waits.runs, picture.waits.median_seconds) == (20, 600)
    assert cluster.transport.count(RUNS_ASKED) == asked
    await cluster.close()


@for_each(
    ("comment", "is_shown"),
    [
        ("Not Running: Insufficient amount of resource: ncpus (R: 4 A: 2 T: 16)", True),
        ("Not Running: Insufficient amount of resource: ncpus (R: 40 A: 16 T: 16)", False),
        ("Can Never Run: Insufficient amount of resource: ncpus (R: 40 A: 16 T: 16)", False),
    ],
)
def test_a_job_that_pbs_never_starts_is_not_compared_with_others(
    comment: str, is_shown: bool
) -> None:
    budget, clock = CommandBudget(600), FrozenClock(1_795_250_000.0)
    store = ClusterStore("lab", ScriptedTransport(), (PBS,), clock=clock, budget=budget)
    picture = JobFacts(store, "12.pbs01")
    waiting = {**WAITING_JOB, "comment": comment}
    [picture.row] = parsed(dsv("12.pbs01", waiting), want=Want.NAMED).table.to_pylist()
    picture.waits = WaitTimes(20, 300, 480, "jobs in gpu")
    groups = job_groups(picture, datetime.fromtimestamp(clock.now(), UTC), signs={})
    labels = {entry.label for group in groups for entry in group.entries}
    assert ("similar jobs" in labels) == is_shown
