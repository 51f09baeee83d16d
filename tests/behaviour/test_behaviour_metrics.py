"""The curve of a training that runs, on the embedded queue and on Slurm alike: it is what the
training wrote.
"""

from __future__ import annotations

import asyncio
import json

from hpcdash.services.metrics.run import WatchedRun
from tests.behaviour.clusters import Cluster

# Writes what it says beside it, so that a curve can be compared with it.
TRAIN = r"""
rm -f truth-$SLURM_JOB_ID
awk -v last=__LAST__ -v truth=truth-$SLURM_JOB_ID 'BEGIN {
  srand(7)
  for (step = 1; step <= last; step++) {
    loss = 10 / sqrt(step) + rand() / 10
    if (step == 40) loss = "nan"
    printf "step %d/%d: loss %s, lr 0.001\n", step, last, loss; fflush()
    printf "[%d, \"%s\"]\n", step, loss > truth; fflush(truth)
    if (step % 20 == 0) system("sleep 0.2")
  }
}'
"""


def training(steps: int) -> str:
    return TRAIN.replace("__LAST__", str(steps))


async def test_the_curve_of_a_run_grows_while_it_runs_and_is_what_it_wrote(
    cluster: Cluster,
) -> None:
    job = await cluster.submit(training(300), name="train.sh")
    await cluster.wait(job, ("running", "completed"))
    run = WatchedRun(cluster.store, job)
    await run.open()
    lengths: list[int] = []
    all_there = asyncio.Event()

    def changed() -> None:
        lengths.append(len(run.run.series("loss")))
        if lengths[-1] == 300 and run.is_over:
            all_there.set()

    following = asyncio.create_task(run.follow(changed))
    try:
        await all_there.wait()
    finally:
        await run.close()
        await asyncio.wait({following})
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 2
    truth = [json.loads(line) for line in (cluster.work / f"truth-{job}").read_text().splitlines()]
    series = run.run.series("loss")
    assert series.x.tolist() == [step for step, _ in truth]
    assert [f"{value:g}" for value in series.values] == [f"{float(loss):g}" for _, loss in truth]
    assert run.run.last_step == 300
    assert (run.problem, run.progress.is_whole) == ("", True)


async def test_a_requeued_job_that_adds_to_its_log_has_two_attempts(cluster: Cluster) -> None:
    body = (
        'for s in $(seq 1 30); do echo "step $s: loss $SLURM_RESTART_COUNT.5"; done; echo up; '
        "sleep 600"
    )
    job = await cluster.up(body, "--requeue", "--open-mode=append")
    await cluster.do("requeue", job)
    await cluster.may_start_again(job)
    run = WatchedRun(cluster.store, job)

    async def look() -> bool | None:
        await run.open()
        await run.read_whole()
        return (len(run.run.attempts) == 2 and len(run.run.overlap("loss")) == 1) or None

    await cluster.wait(job, "running")
    await cluster.until(look, lambda: f"two attempts; there are {run.run.attempts}")
    assert run.run.series("loss").x.tolist() == [*range(1, 31)]
    assert set(run.run.series("loss").values.tolist()) == {1.5}
    assert run.run.lost_time().restarts == 1
    await cluster.do("cancel", job)
