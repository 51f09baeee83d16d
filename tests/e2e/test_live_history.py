"""The archive of runs on a real Slurm: its totals are sacct's own, to the second."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpcdash.domain.spans import Span
from hpcdash.services.cluster.snapshots import SnapshotCache
from hpcdash.services.usage.archive import RunSelection
from hpcdash.services.usage.sooner import fetch_earlier_start, fetch_start_options
from tests.e2e.live_store import store_on
from tests.support.slurm import SlurmLab

pytestmark = pytest.mark.slurm_releases

HOSTILE = "x\n1|forged\x1b[31m"
SACCT = ("sacct", "-n", "-P", "-X", "-D", "-o", "jobid,state,cputimeraw,start,end")


def told_by_sacct(lab: SlurmLab, job_ids: list[str]) -> dict[tuple[str, str], int]:
    """(id, first word of the state) of each run, and its CPU seconds, as sacct counts them."""
    lines = lab.as_user("alice", *SACCT, "-j", ",".join(job_ids)).stdout.decode().splitlines()
    rows = [line.split("|") for line in lines if line]
    return {(row[0], row[1].split()[0]): int(row[2]) for row in rows if row[4] != "Unknown"}


def counted(rows: list[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    return {
        (row["id"], row["native_state"].split()[0]): row["elapsed_seconds"]
        * (row["cpus"] if row["started_at"] else 0)
        for row in rows
    }


async def test_runs_are_those_of_sacct_to_the_second(clean_slurm: SlurmLab, tmp_path: Path) -> None:
    """Ended well and badly, put back once, held and cancelled before it was eligible, and of a
    hostile name.
    """
    lab = clean_slurm
    ran = [
        lab.submit("alice", "-n2", "-J", HOSTILE, script="#!/bin/sh\nsrun -n2 sleep 1\n"),
        lab.submit("alice", script="#!/bin/sh\nsleep 1; exit 3\n"),
    ]
    held = lab.submit("alice", "--hold")
    put_back = lab.submit("alice", "--requeue", script="#!/bin/sh\nsleep 300\n")
    for job_id in ran:
        await asyncio.to_thread(partial(lab.wait_state, job_id, "COMPLETED", "FAILED"))
    await asyncio.to_thread(partial(lab.wait_state, put_back, "RUNNING"))
    await asyncio.to_thread(lab.admin, "scontrol", "requeue", put_back)
    await asyncio.to_thread(lab.as_user, "alice", "scancel", held)
    jobs = [*ran, held, put_back]

    cache = SnapshotCache(tmp_path, "lab")
    async with store_on(lab, "alice", cache=cache) as store:
        # The accounting hears of an end some moments later.
        while True:
            now = int(store.clock.now())
            fetched = await store.archive.fetch_runs(Span(now - 86_400, now + 1))
            rows = [row for row in fetched.table.to_pylist() if row["id"] in jobs]
            expected = await asyncio.to_thread(told_by_sacct, lab, jobs)
            if {row["id"] for row in rows} == set(jobs) and counted(rows) == expected:
                break
            await asyncio.sleep(0.5)
        assert fetched.is_whole
        assert fetched.rejected == ()
        assert {row["name"] for row in rows if row["id"] == ran[0]} == {HOSTILE}
        (never,) = (row for row in rows if row["id"] == held)
        assert (never["state"], never["started_at"]) == ("cancelled", None)
        assert {row["state"] for row in rows if row["id"] == put_back} == {"requeued"}
        bobs = await store.archive.fetch_runs(
            Span(now - 86_400, now + 1), RunSelection(users=(lab.bob,))
        )
        assert not set(jobs) & set(bobs.table["id"].to_pylist())
        # What was there at a moment: the runs that began before it and ended after.
        begins, ends = (
            sorted(row[name] for row in rows if row["id"] == ran[0])[0]
            for name in ("started_at", "ends_at")
        )
        past = Span(now - 3 * 86_400, int(begins.timestamp()) + 1)
        assert int(ends.timestamp()) >= past.until
        assert ran[0] in (await store.archive.fetch_runs(past)).table["id"].to_pylist()


async def test_what_would_start_sooner_is_asked_without_submitting(clean_slurm: SlurmLab) -> None:
    lab = clean_slurm
    job = lab.submit("alice", "--hold", "-N2", "--time=4:00:00", script="#!/bin/sh\nsleep 300\n")
    async with store_on(lab, "alice") as store:
        options = await fetch_start_options(store, job)
        earlier = await fetch_earlier_start(store, job, memory_bytes=1 << 30, limit_seconds=3600)
        now = store.clock.now()
    changes = [option.change for option in options]
    assert changes == ["unchanged", "time limit 02:00:00", "time limit 01:00:00", "1 node of 2"]
    assert [option.estimate.refusal for option in options] == [""] * 4
    assert {option.format(now).split()[0] for option in options} <= {"now", "in"}
    assert all(option.command.startswith("sbatch --test-only ") for option in options)
    assert (earlier.as_it_was.change, earlier.changed.change) == (
        "unchanged",
        "1G of memory and a limit of 01:00:00",
    )
    # Of the memory each of its two nodes has a half, of one CPU: which option says so depends on
    # what Slurm tells.
    words = set(earlier.changed.command.split())
    assert "--time=60" in words
    assert len(words & {"--mem-per-cpu=512M", "--mem=512M"}) == 1
    assert earlier.earlier_seconds is not None
    assert lab.admin("squeue", "-h", "-o", "%i").stdout.decode().split() == [job]
