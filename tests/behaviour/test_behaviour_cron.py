"""The job that stands in for cron, on the embedded queue and on Slurm: it comes again, whatever its
scripts do.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.queries import Answer
from hpcdash.backends.script.cron import CronJob
from hpcdash.domain.states import WAITING
from hpcdash.errors import CommandTimedOut
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.folders import queue_program
from hpcdash.services.watch.cron import CronStand, fetch_stands, install, remove
from tests.behaviour.clusters import Cluster

EVERY_SECONDS = 2


def job_in(cluster: Cluster, folder: Path) -> CronJob:
    queue = Path(cluster.work).parent / "queue"
    program = queue_program(queue) if cluster.store.backend.is_embedded else ()
    return CronJob(EVERY_SECONDS, str(folder), program=program)


async def stand_of(cluster: Cluster, job: CronJob) -> CronStand | None:
    _, found = await fetch_stands(cluster.store, job.folder)
    return next((one for one in found if one.label == job.label), None)


async def fetch_rows(cluster: Cluster, job: CronJob) -> tuple[dict[str, object], ...]:
    stand = await stand_of(cluster, job)
    return stand.rows if stand is not None else ()


async def until(
    cluster: Cluster, holds: Callable[[], Awaitable[bool]], what: Callable[[], str]
) -> None:
    async def look() -> bool | None:
        return await holds() or None

    await cluster.until(look, what)


def script(job: CronJob, name: str, body: str) -> Path:
    path = Path(job.scripts_folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def taken_out(job: CronJob) -> None:
    Path(job.script_path).unlink(missing_ok=True)


def outputs_of(job: CronJob) -> list[str]:
    return [path.read_text() for path in sorted(Path(job.output_folder).glob("[0-9]*.out"))]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest_asyncio.fixture
async def job(cluster: Cluster, tmp_path: Path) -> AsyncIterator[CronJob]:
    """Not installed yet; nothing of it is left behind."""
    await cluster.store.open()
    found = job_in(cluster, tmp_path / "cron")
    yield found
    taken_out(found)

    async def is_gone() -> bool:
        rows = await fetch_rows(cluster, found)
        waiting = [str(row["id"]) for row in rows if row["state"] in WAITING]
        if waiting:
            await cluster.does("cancel", *waiting)
        return not rows

    await until(cluster, is_gone, lambda: "the cron job to be gone")


async def test_it_comes_again_runs_all_scripts_though_one_fails_and_ends_when_moved_away(
    cluster: Cluster, job: CronJob, tmp_path: Path
) -> None:
    ran, submitted = tmp_path / "ran", tmp_path / "submitted"
    script(job, "1-fails", "exit 3")
    script(job, "2-writes", f"date +%s >> {ran}")
    script(job, "3-taken-out.off", f"echo off >> {ran}")
    script(job, "4-no-program", f"echo no >> {ran}").chmod(0o644)
    script(job, "5-job.sbatch", f"echo $$ >> {submitted}")
    old, new = (Path(job.output_folder) / name for name in ("old.out", "new.out"))
    old.parent.mkdir(parents=True)
    for path, days in ((old, 7.1), (new, 6.9)):
        path.write_text("what it said\n")
        os.utime(path, (time.time() - days * 86400,) * 2)

    # Almost its name, and waiting: it is none of it.
    other = await cluster.submit("sleep 60", "--hold", "--job-name=hpcdash-2s2")
    said = await install(cluster.store, cluster.actions, job, await stand_of(cluster, job))
    assert said[-1].startswith("hpcdash-2s: job ")
    again = await install(cluster.store, cluster.actions, job, await stand_of(cluster, job))
    assert again[-1].endswith("not submitted again")

    async def has_run() -> bool:
        assert len([row for row in await fetch_rows(cluster, job) if row["state"] in WAITING]) <= 1
        return len(lines_of(ran)) >= 3 and len(lines_of(submitted)) >= 2

    # A Slurm looks every two seconds for jobs whose time has come.
    await until(
        cluster, has_run, lambda: f"three runs; there were {lines_of(ran)}, {lines_of(submitted)}"
    )
    await cluster.do("cancel", other)
    moments = list(map(int, lines_of(ran)))
    assert moments == sorted(moments)
    assert all(later - earlier >= EVERY_SECONDS - 1 for earlier, later in pairwise(moments))
    assert (old.exists(), new.exists()) == (False, True)
    outputs = outputs_of(job)
    assert any(f"exit status 3: {job.scripts_folder}/1-fails" in output for output in outputs)
    assert any("4-no-program is not executable: skipped" in output for output in outputs)

    os.rename(job.script_path, tmp_path / "away.sh")

    async def is_over() -> bool:
        return not await fetch_rows(cluster, job)

    await until(cluster, is_over, lambda: "no cron job in the queue")


async def test_two_of_it_become_one(cluster: Cluster, job: CronJob) -> None:
    await install(cluster.store, cluster.actions, job, None)
    await install(cluster.store, cluster.actions, job, None)
    highest = 0

    async def is_one() -> bool:
        nonlocal highest
        rows = await fetch_rows(cluster, job)
        running = [row for row in rows if row["state"] == "running"]
        assert len(running) <= 1
        highest = max([highest, *(int(str(row["id"])) for row in rows)])
        return len(rows) == 1 and int(str(rows[0]["id"])) >= first + 3

    first = min(int(str(row["id"])) for row in await fetch_rows(cluster, job))
    await until(cluster, is_one, lambda: f"one of it; the last was {highest}")


async def test_removed_nothing_of_it_waits(cluster: Cluster, job: CronJob) -> None:
    await install(cluster.store, cluster.actions, job, None)

    async def waits() -> bool:
        return any(row["state"] in WAITING for row in await fetch_rows(cluster, job))

    await until(cluster, waits, lambda: "the next one to wait")
    said = await remove(cluster.store, cluster.actions, job, await stand_of(cluster, job))
    assert said[0] == f"moved {job.script_path} to {job.folder}/removed"
    stand = await stand_of(cluster, job)
    assert stand is None or not stand.is_installed

    async def is_over() -> bool:
        return not await fetch_rows(cluster, job)

    await until(cluster, is_over, lambda: "no cron job in the queue")


@pytest.mark.parametrize("name", ["hpcdash-2", "hpcdash-2s2", "x-hpcdash-2s", "hpcdash-2s "])
async def test_a_job_with_almost_its_name_is_another(
    cluster: Cluster, job: CronJob, name: str
) -> None:
    other = await cluster.submit("sleep 60", "--hold", f"--job-name={name}")
    try:
        assert await fetch_rows(cluster, job) == ()
    finally:
        await cluster.do("cancel", other)


async def test_where_the_answer_to_its_submission_is_lost_its_job_is_found(
    cluster: Cluster, job: CronJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ClusterStore.act

    async def act(store: ClusterStore, command: ActionCommand, *more: Any) -> Answer:
        answer = await plain(store, command, *more)
        if command.job_ids:
            raise CommandTimedOut("no answer", argv=command.argv)
        return answer

    # Its first run lasts until the test has seen it.
    seen = tmp_path / "seen"
    script(job, "1-waits", f"while [ ! -e {seen} ]; do sleep 0.1; done")
    monkeypatch.setattr(ClusterStore, "act", act)
    told = await install(cluster.store, cluster.actions, job, await stand_of(cluster, job))
    monkeypatch.undo()
    # It may have started meanwhile, and submitted itself again.
    rows = await fetch_rows(cluster, job)
    seen.touch()
    assert len([row for row in rows if row["state"] in WAITING]) <= 1
    found = told[-1].removeprefix("hpcdash-2s: job ").split()[0].rstrip(",")
    assert found in [str(row["id"]) for row in rows]
