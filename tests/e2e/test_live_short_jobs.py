"""Jobs of a real Slurm that begin and end between two looks at the queue."""

from __future__ import annotations

import pytest

from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import ClusterStore
from tests.e2e.live_store import store_on
from tests.support.slurm import SlurmLab

pytestmark = pytest.mark.slurm
TASK = '#!/bin/sh\nexit "$((SLURM_ARRAY_TASK_ID % 2))"\n'


def states(store: ClusterStore, number: str) -> list[str]:
    table = store.table(Kind.MINE)
    assert table is not None
    return [
        row["state"]
        for row in table.select(["id", "state"]).to_pylist()
        if row["id"].partition("_")[0] == number
    ]


async def test_a_short_job_is_shown_and_told_by_the_one_command_of_a_poll(
    clean_slurm: SlurmLab,
) -> None:
    async with store_on(clean_slurm, "alice") as store:
        await store.open()
        await store.fetch(Kind.MINE)
        sent = store.budget.sent
        job = clean_slurm.submit("alice", script="#!/bin/sh\nexit 3\n")
        clean_slurm.wait_state(job, "FAILED")
        await store.fetch(Kind.MINE)
        assert store.budget.sent == sent + 1
        assert [(event.job_id, event.after) for event in store.events] == [(job, "failed")]
        assert states(store, job) == ["failed"]


async def test_tasks_that_were_only_ever_seen_in_their_array_are_counted_right(
    clean_slurm: SlurmLab,
) -> None:
    async with store_on(clean_slurm, "alice") as store:
        await store.open()
        array = clean_slurm.submit("alice", "--array=1-6%2", "--hold", script=TASK)
        await store.fetch(Kind.MINE)
        clean_slurm.as_user("alice", "scontrol", "release", array)
        clean_slurm.wait_state(array, "FAILED", "COMPLETED")
        await store.fetch(Kind.MINE)
        assert sorted(states(store, array)) == ["completed"] * 3 + ["failed"] * 3
        assert len(store.events) == 6


async def test_the_controller_tells_how_long_it_has_jobs_that_ended(clean_slurm: SlurmLab) -> None:
    async with store_on(clean_slurm, "alice") as store:
        probe = await store.open()
        assert probe.ended_kept_seconds == clean_slurm.settings.min_job_age
