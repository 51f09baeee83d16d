"""`hpcdash metrics` of trainings on a real Slurm, over ssh: the curve is what the training wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.services.metrics.run import WatchedRun
from tests.e2e.live_store import store_on
from tests.e2e.program import Program
from tests.e2e.screen import dashboard
from tests.support.slurm import SlurmLab
from tests.support.slurm.daemons import wait_until

TRAIN = r"""#!/bin/bash
awk -v truth=truth-$SLURM_JOB_ID-$SLURM_ARRAY_TASK_ID -v first=$((SLURM_ARRAY_TASK_ID * 100 + 1)) 'BEGIN {
  srand(7)
  for (step = first; step < first + 200; step++) {
    loss = 10 / sqrt(step) + rand() / 10
    printf "step %d/500: loss %s, lr 0.001\n", step, loss; fflush()
    printf "[%d, %s]\n", step, loss > truth; fflush(truth)
    if (step % 20 == 0) system("sleep 0.2")
  }
}'
"""


@pytest.fixture(scope="module")
def lab(slurm_lab: SlurmLab) -> Iterator[SlurmLab]:
    yield slurm_lab
    slurm_lab.reset()


def truth(path: Path) -> list[tuple[int, float]]:
    return [(step, loss) for step, loss in map(json.loads, path.read_text().splitlines())]


def test_a_training_is_followed_to_its_end_and_its_curve_is_what_it_wrote(lab: SlurmLab, over_ssh: Program) -> None:
    job_id = lab.submit("alice", "-J", "gpt", "-o", "gpt-%j.out", "-e", "gpt-%j.err", script=TRAIN)
    # What is asked before the job has begun is told that there is no log yet.
    wait_until("its log", (lab.work_dir("alice") / f"gpt-{job_id}.out").exists, 30.0)
    answer = over_ssh("metrics", job_id, "-f", "--format", "json", "--metric", "loss").json
    assert (answer["schema"], answer["backend"]) == (1, "slurm")
    (series,) = answer["series"]
    wrote = truth(lab.work_dir("alice") / f"truth-{job_id}-")
    assert len(wrote) == 200
    assert list(zip(series["x"], series["y"], strict=True)) == wrote
    assert series["source"] == str(lab.work_dir("alice") / f"gpt-{job_id}.out")
    chart = over_ssh("metrics", job_id).text
    assert chart.startswith(f"{job_id} gpt\n")
    assert " loss  newest " in chart


def test_an_arrays_tasks_are_one_curve_in_which_the_newest_counts(lab: SlurmLab, over_ssh: Program) -> None:
    array = lab.submit("alice", "-J", "chain", "-o", "chain-%A_%a.out", "--array=0-2%1", script=TRAIN)
    folder = lab.work_dir("alice")
    wait_until("the first log", (folder / f"chain-{array}_0.out").exists, 30.0)
    answer = over_ssh("metrics", array, "-f", "--format", "json", "--metric", "loss", seconds=90).json
    (series,) = answer["series"]
    wrote: dict[int, float] = {}
    for task in range(3):
        (path,) = folder.glob(f"truth-*-{task}")
        wrote |= dict(truth(path))
        path.unlink()
    assert dict(zip(series["x"], series["y"], strict=True)) == wrote
    assert series["source"].split(", ") == [str(folder / f"chain-{array}_{task}.out") for task in range(3)]


async def test_the_end_of_a_large_log_is_there_at_once(lab: SlurmLab) -> None:
    job_id = lab.submit("alice", "-J", "large", "-o", "large-%j.out", script="#!/bin/sh\necho up\nsleep 600\n")
    path = lab.work_dir("alice") / f"large-{job_id}.out"
    wait_until("the job's file", lambda: path.exists() and path.stat().st_size > 0, 20.0)
    line = b"step %09d/2000000 | loss 2.5000 | lr 1.0e-4 | " + b"x" * 40 + b"\n"
    with path.open("wb") as file:
        for begin in range(0, 1_000_000, 100_000):
            file.write(b"".join(line % step for step in range(begin, begin + 100_000)))
    async with store_on(lab, "alice") as store:
        await store.open()
        run = WatchedRun(store, job_id)
        await run.open()
        assert run.run.series("loss").x[-1] == 999_999
        assert run.progress.read_bytes <= 1 << 20
        assert run.progress.total_bytes == path.stat().st_size
        assert await run.read_whole()
        assert run.run.series("loss").points.sum() == 1_000_000
    lab.as_user("alice", "scancel", job_id)


async def test_a_chart_in_a_terminal_is_drawn_as_the_training_goes_on(lab: SlurmLab, over_ssh: Program) -> None:
    job_id = lab.submit("alice", "-J", "live", "-o", "live-%j.out", script=TRAIN)
    async with dashboard(over_ssh, "metrics", job_id, "-f", columns=80, lines=30) as screen:
        await screen.until(lambda text: " loss  newest " in text and "at step 200" not in text)
        await screen.until(lambda text: "at step 200" in text)
        assert await screen.ended() == 0
