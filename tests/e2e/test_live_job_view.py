"""One job in full on a real Slurm: what it uses, its rank, what hangs on what, how it ended, and
why it failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hpcdash.domain.states import ENDED
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.overview import JobFacts
from tests.e2e.live_store import store_on
from tests.support.program import Program, together
from tests.support.screen import dashboard
from tests.support.slurm import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slurm_releases

_HOLDS_MEMORY = """#!/bin/sh
exec python3 -c '
import time
held = bytearray(60 << 20)
held[::4096] = b"x" * len(held[::4096])
end = time.process_time() + 2
while time.process_time() < end: pass
time.sleep(%d)'
"""
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs that hold 60 MB and used two seconds of a CPU, and jobs that wait."""

    lab: SlurmLab
    training: str
    array: str
    bobs: str
    ended: str
    failed: str
    hopeless: str
    waiting: str
    after_array: str

    def steps(self, *job_ids: str) -> bool:
        """Whether Slurm has sampled a step of each."""
        return all(
            self.lab.admin("sstat", "-a", "-n", "-j", job_id, check=False).stdout
            for job_id in job_ids
        )


@pytest.fixture(scope="module")
def jobs(slurm_lab: SlurmLab) -> Iterator[Jobs]:
    """On node g2, of which the waiting job wants all."""
    lab, node = slurm_lab, ("-p", "gpu", "-w", "g2")
    failed = lab.submit("alice", "-J", "prep", script="#!/bin/sh\nsleep 1\nexit 3\n")
    array = lab.submit("alice", *node, "--array=1-6%2", "--mem=200M", script=_HOLDS_MEMORY % 3000)
    made = Jobs(
        lab,
        training=lab.submit(
            "alice", *node, "-J", "buffer", "-c2", "--mem=200M", script=_HOLDS_MEMORY % 3000
        ),
        array=array,
        bobs=lab.submit("bob", *node),
        ended=lab.submit("alice", *node, "--mem=200M", script=_HOLDS_MEMORY % 0),
        failed=failed,
        hopeless=lab.submit("alice", "-J", "train", "-d", f"afterok:{failed}"),
        waiting=lab.submit("alice", *node, "-J", "whole node", "--exclusive", "--qos=low"),
        after_array=lab.submit("alice", "-J", "collect", "-d", f"afterany:{array}"),
    )
    lab.wait_state(made.ended, "COMPLETED")
    lab.wait_state(failed, "FAILED")
    wait_until("steps to be sampled", lambda: made.steps(made.training, made.bobs))
    wait_until(
        "the dependency to be given up", lambda: b"Never" in _squeue(lab, "%r", made.hopeless)
    )
    yield made
    left = (made.after_array, made.hopeless, made.waiting, made.training, array, made.bobs)
    lab.admin("scancel", "--quiet", "--full", "--signal=KILL", *left, check=False)
    lab.admin("scancel", "--quiet", *left, check=False)
    wait_until("these jobs to end", lambda: not _squeue(lab, "%i", ",".join(left)))


def _squeue(lab: SlurmLab, letter: str, job_ids: str) -> bytes:
    return lab.admin("squeue", "-h", "-o", letter, "-j", job_ids, check=False).stdout


def test_what_running_and_ended_jobs_use_is_what_they_did_use(
    jobs: Jobs, over_ssh: Program
) -> None:
    task = f"{jobs.array}_1"
    shows = together(
        over_ssh,
        *(("show", job_id, "--format", "json") for job_id in (jobs.training, task, jobs.ended)),
    )
    training, array_rows, ended = (run.json["job"]["usage"] for run in shows)
    for usage in (training, array_rows, ended):
        assert 60 * _MEGABYTE <= usage["memory_peak_bytes"] <= 150 * _MEGABYTE, usage
        assert usage["memory_asked_bytes"] == 200 * _MEGABYTE
    assert 1 <= training["cpu_seconds"] <= 10
    assert 1.5 <= ended["cpu_seconds"] <= 10
    assert (training["cpus"], ended["gpu_percent"]) == (2, None)


def test_somebody_else_s_running_job_says_who_may_ask(jobs: Jobs, over_ssh: Program) -> None:
    words = over_ssh("show", jobs.bobs)
    assert (words.status, "only to its owner" in words.text) == (0, True)
    assert over_ssh("show", jobs.bobs, "--format", "json").json["job"]["usage"] is None


def test_root_may_ask_of_everybody_s(jobs: Jobs, locally: Program) -> None:
    assert "uses memory" in locally("show", jobs.bobs).text


def test_a_job_after_one_that_failed_is_said_to_be_hopeless(jobs: Jobs, over_ssh: Program) -> None:
    hopeless, failed, collect = together(
        over_ssh, ("show", jobs.hopeless), ("show", jobs.failed), ("show", jobs.after_array)
    )
    assert f"can never start: {jobs.failed} did not end as required" in hopeless.text
    assert "exit 3" in failed.text
    assert "after all tasks end" in collect.text
    assert "running" in collect.text.split("Waits for\n")[1]


def test_a_waiting_job_has_a_rank_and_a_qos_that_makes_way(jobs: Jobs, over_ssh: Program) -> None:
    text = over_ssh("show", jobs.waiting).text
    assert "fair share" in text
    assert "may be preempted by" in text
    assert "is put back into the queue" in text


async def test_a_job_s_page_tells_it_all(jobs: Jobs, over_ssh: Program) -> None:
    async with dashboard(over_ssh, columns=120, lines=48) as screen:
        await screen.until("buffer")
        screen.type("/")
        await screen.until(lambda text: any(line.startswith(" /") for line in text.splitlines()))
        screen.type("name:buffer")
        await screen.until(lambda text: "buffer" in text and "train" not in text)
        screen.type("\r")
        await screen.until(
            lambda text: not any(line.startswith(" /") for line in text.splitlines())
        )
        screen.type("\r")
        text = await screen.until("peak ")
        assert "uses memory" in text
        screen.type("d")
        await screen.until("JobId")


# Rank 0 loses its peer a moment after rank 1 failed.
_TWO_NODES = """#!/bin/bash
srun -l python3 -c '
import os, time
if os.environ["SLURM_PROCID"] == "0":
    time.sleep(0.5)
    raise ConnectionResetError("Connection reset by peer")
raise ValueError("shard 7 has no labels")'
"""
_CONTAINER = """#!/bin/bash
# in_container: echo "hpcdash: the container is up on $(hostname)"
echo "hpcdash: the container is up on here" >&2
for number in $(seq 40); do echo "layer $number" >&2; done
echo "FATAL:   While making image from oci registry: manifest unknown" >&2
exit 255
"""


async def ended(store: ClusterStore, job_id: str) -> JobFacts:
    """The job's picture, once it has ended."""
    picture = JobFacts(store, job_id)
    while True:
        await picture.fetch()
        if picture.row is not None and picture.row["state"] in ENDED:
            return picture
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("separate", [False, True], ids=["one file", "two files"])
async def test_of_two_nodes_the_rank_that_failed_first_tells_why(
    slurm_lab: SlurmLab, separate: bool
) -> None:
    home = f"/home/{slurm_lab.alice}"
    files = ("-o", f"{home}/failed-%j.out", *(("-e", f"{home}/failed-%j.err") if separate else ()))
    job_id = slurm_lab.submit(
        "alice", "-N2", "-n2", "--ntasks-per-node=1", *files, script=_TWO_NODES
    )
    async with store_on(slurm_lab, "alice") as store:
        failure = (await ended(store, job_id)).failure
    assert failure is not None
    assert failure.text == "rank 1: ValueError: shard 7 has no labels"
    assert failure.stream == ("stderr" if separate else "log")


async def test_of_a_launch_whose_containers_did_not_all_come_up_all_is_shown(
    slurm_lab: SlurmLab,
) -> None:
    files = ("-o", f"/home/{slurm_lab.alice}/failed-%j.out", "--comment=hpcdash:0123456789")
    job_id = slurm_lab.submit("alice", "-N2", *files, script=_CONTAINER)
    async with store_on(slurm_lab, "alice") as store:
        failure = (await ended(store, job_id)).failure
    assert failure is not None
    assert failure.excerpt is not None
    assert failure.text == "FATAL: While making image from oci registry: manifest unknown"
    assert len(failure.excerpt.lines) == 42
