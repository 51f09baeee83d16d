"""A job's steps on its page, and in `show --steps`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from hpcdash.domain.schema import STEPS
from hpcdash.services.jobs.overview import JobFacts
from hpcdash.services.jobs.page import format_step, job_groups
from tests.backends.slurm.test_slurm_steps import JOB, STEP, text
from tests.support.job_rows import build_table
from tests.support.scripted_cluster import Cluster
from tests.support.slurm_text import TOKEN

NATIVE = (
    "JobId=26 JobName=train\n   UserId=alice(1001) GroupId=alice(1001)\n   "
    "StdOut=/home/alice/26.out\n"
)


async def test_the_page_of_an_ended_job_lists_its_steps_and_says_when_there_are_more(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    steps = [
        {**STEP, "jobid": f"26.{at}", "jobidraw": f"26.{at}", "jobname": "x\n\x1b[31m"}
        for at in range(14)
    ]
    ended = {"jobarrayid": "26", "arrayjobid": "26", "state": "COMPLETED"}
    cluster.transport.recent = [ended]
    cluster.transport.native = {"26": NATIVE}
    raw = text(JOB, *steps).replace(TOKEN.encode(), b"\x1eTTTTTTTTTT")
    cluster.transport.answers["sh -c sacct"] = raw
    picture = JobFacts(cluster.store, "26")
    await picture.fetch()
    groups = job_groups(picture, datetime.fromtimestamp(cluster.clock.now(), UTC), signs={})
    (shown,) = (group for group in groups if group.title == "Steps")
    assert len(shown.entries) == 13
    assert shown.entries[0].value.startswith(
        "completed · 1:30 · 4 tasks · on n[1-2] · 3.0 of 8 cores busy · peak 4M"
    )
    assert shown.entries[-1].value == "and 2 more; show --steps lists all"
    await cluster.close()


def test_what_is_not_known_of_a_step_is_left_out() -> None:
    (step,) = build_table(
        {"id": "batch", "name": "batch", "state": "failed", "exit_signal": 9}, schema=STEPS
    ).to_pylist()
    assert format_step(step) == ("batch", "failed · signal 9")
