"""Why real jobs failed, as their logs tell: of two nodes the rank that failed first, and a job past its time."""

from __future__ import annotations

import asyncio

import pytest

from hpcdash.domain.states import ENDED
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.overview import JobPicture
from tests.e2e.live_store import store_on
from tests.support.slurm import SlurmLab

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


async def ended(store: ClusterStore, job_id: str) -> JobPicture:
    """The job's picture, once it has ended."""
    picture = JobPicture(store, job_id)
    async with asyncio.timeout(60):
        while True:
            await picture.fetch()
            if picture.row is not None and picture.row["state"] in ENDED:
                return picture
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("separate", [False, True], ids=["one file", "two files"])
async def test_of_two_nodes_the_rank_that_failed_first_tells_why(slurm_lab: SlurmLab, separate: bool) -> None:
    home = f"/home/{slurm_lab.alice}"
    files = ("-o", f"{home}/failed-%j.out", *(("-e", f"{home}/failed-%j.err") if separate else ()))
    job_id = slurm_lab.submit("alice", "-N2", "-n2", "--ntasks-per-node=1", *files, script=_TWO_NODES)
    async with store_on(slurm_lab, "alice") as store:
        failure = (await ended(store, job_id)).failure
    assert failure is not None
    assert failure.words == "rank 1: ValueError: shard 7 has no labels"
    assert failure.stream == ("stderr" if separate else "log")


async def test_of_a_launch_whose_containers_did_not_all_come_up_all_is_shown(slurm_lab: SlurmLab) -> None:
    files = ("-o", f"/home/{slurm_lab.alice}/failed-%j.out", "--comment=hpcdash:0123456789")
    job_id = slurm_lab.submit("alice", "-N2", *files, script=_CONTAINER)
    async with store_on(slurm_lab, "alice") as store:
        failure = (await ended(store, job_id)).failure
    assert failure is not None
    assert failure.excerpt is not None
    assert failure.words == "FATAL: While making image from oci registry: manifest unknown"
    assert len(failure.excerpt.lines) == 42
