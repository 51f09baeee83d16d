"""Trains on the embedded queue and on Slurm alike: chained, found, held as a whole, appended to,
edited meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from hpcdash.backends.actions import Outcome
from hpcdash.backends.script.stub import stub_script
from hpcdash.backends.submissions import Submission
from hpcdash.domain.chains import JobChain, class_counts, format_wait, living_targets
from hpcdash.domain.impact import choose
from hpcdash.services.chains import (
    ChainReader,
    fetch_stubbed,
    plan_append,
    replace_stubbed,
    same_again,
)
from hpcdash.services.submit.launches import Launches
from hpcdash.services.submit.submission import SubmissionPlan, plan_submission
from tests.behaviour.clusters import Cluster, bash
from tests.support.waiting import wait_until


async def submit_links(cluster: Cluster, count: int, body: str, *options: str) -> list[str]:
    """The ids of jobs that run a body one after the other."""

    async def plan(after: tuple[str, ...]) -> SubmissionPlan:
        return plan_submission(
            cluster.store, Submission(bash(body), "link.sh", options, after=after)
        )

    outcomes = await Launches(cluster.store).submit_chain(plan, cluster.actions, count)
    ids = [outcome.new_job for outcome in outcomes]
    assert all(ids), outcomes
    return ids


async def train_when(
    cluster: Cluster, job_id: str, holds: Callable[[JobChain], object]
) -> JobChain:
    """The train of a job, once something holds of it."""
    reader = ChainReader(cluster.store, job_id)

    async def look() -> JobChain | None:
        train = await reader.read()
        told.append(train)
        return train if holds(train) else None

    told: list[JobChain] = []
    return await cluster.until(
        look, lambda: f"the train of {job_id} as it should be; it is {told[-1]}"
    )


async def act_on_all(cluster: Cluster, verb: str, train: JobChain) -> None:
    """As the whole train's row on the screen does it."""
    choice = choose(verb, *living_targets(train))
    assert choice.verb == verb
    await cluster.do(verb, *choice.job_ids)


def order(train: JobChain) -> list[str]:
    return [unit.job_id for unit in train.units]


def waits(train: JobChain) -> list[str]:
    return [format_wait(unit, train) for unit in train.units]


async def test_a_chain_goes_on_after_one_that_fails_and_is_told_whole_when_it_ended(
    cluster: Cluster,
) -> None:
    seen = cluster.work / "seen by the chain"
    body = f"echo x >> '{seen}'; [ $(wc -l < '{seen}') -ne 2 ]"
    ids = await submit_links(cluster, 3, body, "-J", "chain")
    await train_when(cluster, ids[2], lambda train: order(train) == ids)

    def is_whole(train: JobChain) -> bool:
        # The history may hear of a submission late.
        return (
            order(train) == ids
            and not train.living
            and not any(unit.by_name for unit in train.units)
        )

    ended = await train_when(cluster, ids[0], is_whole)
    assert [row["state"] for row in ended.rows] == ["completed", "failed", "completed"]
    assert waits(ended) == ["", f"after {ids[0]}", f"after {ids[1]}"]


async def test_an_array_with_a_job_after_it_is_held_and_released_as_a_whole(
    cluster: Cluster,
) -> None:
    gate = cluster.work / "gate of the held train"
    array = await cluster.submit(f"until [ -e '{gate}' ]; do sleep 0.05; done", array="1-3%1")
    last = await cluster.submit("true", after=(array,))
    running = await train_when(cluster, last, lambda train: class_counts(train.rows).get("running"))
    assert (order(running), class_counts(running.rows)) == (
        [array, last],
        {"running": 1, "waiting": 3},
    )
    await act_on_all(cluster, "hold", running)
    held = await train_when(cluster, array, lambda train: class_counts(train.rows).get("held") == 3)
    assert class_counts(held.rows) == {"running": 1, "held": 3}
    gate.touch()
    still = await train_when(
        cluster, array, lambda train: not class_counts(train.rows).get("running")
    )
    assert class_counts(still.rows) == {"done": 1, "held": 3}
    await act_on_all(cluster, "release", still)
    ended = await train_when(cluster, last, lambda train: not train.living)
    assert class_counts(ended.rows) == {"done": 4}
    assert order(ended) == [array, last]


async def test_no_element_begins_because_the_one_before_it_is_cancelled(cluster: Cluster) -> None:
    began = cluster.work / "began in the cancelled chain"
    ids = await submit_links(cluster, 4, f"echo $SLURM_JOB_ID >> '{began}'; exec sleep 60")
    train = await train_when(
        cluster,
        ids[3],
        lambda train: began.exists() and class_counts(train.rows).get("running") == 1,
    )
    await act_on_all(cluster, "cancel", train)
    ended = await train_when(cluster, ids[0], lambda train: not train.living)
    assert class_counts(ended.rows) == {"cancelled": 4}
    assert began.read_text().split() == ids[:1]


async def test_the_same_again_is_appended_to_a_chain_and_to_an_array(cluster: Cluster) -> None:
    gate = cluster.work / "gate of the appended"
    body = f"until [ -e '{gate}' ]; do sleep 0.05; done"
    [first] = await submit_links(cluster, 1, body, "-J", "grows", "-t", "7")
    await cluster.wait_for_history(first)
    appendix = await same_again(cluster.store, first)

    async def plan(after: tuple[str, ...]) -> SubmissionPlan:
        return plan_append(cluster.store, appendix, after or (first,))

    outcomes = await Launches(cluster.store).submit_chain(plan, cluster.actions, 2)
    ids = [first, *(outcome.new_job for outcome in outcomes)]
    array = (await append(cluster, ids[2], "1-2%1"))[0].new_job
    train = await train_when(cluster, first, lambda train: len(train.units) == 4)
    assert order(train) == [*ids, array]
    assert waits(train)[1:] == [f"after {leader}" for leader in ids]
    assert {(row["name"], row["limit_seconds"]) for row in train.rows} == {("grows", 420)}
    again = (await append(cluster, array))[0].new_job
    gate.touch()
    ended = await train_when(
        cluster, again, lambda train: not train.living and order(train) == [*ids, array, again]
    )
    assert class_counts(ended.rows)["done"] >= 6


async def append(cluster: Cluster, job_id: str, array: str = "") -> tuple[Outcome, ...]:
    """The same script as a job's after it."""
    await cluster.wait_for_history(job_id)
    appendix = await same_again(cluster.store, job_id)

    async def plan(after: tuple[str, ...]) -> SubmissionPlan:
        return plan_append(cluster.store, appendix, (job_id,), array)

    return await Launches(cluster.store).submit_chain(plan, cluster.actions, 1)


async def test_what_the_next_task_runs_is_edited_while_the_array_waits(cluster: Cluster) -> None:
    real, gate = cluster.work / "the real one.sh", cluster.work / "gate of the stub"
    begun = cluster.work / "begun"
    real.write_bytes(bash(f": > '{begun}'; until [ -e '{gate}' ]; do sleep 0.05; done; echo old"))
    os.chmod(real, 0o640)
    stub = stub_script(real.read_text(), str(real))
    wanted = Submission(stub.encode(), "stub.sh", ("-o", "stub-%a.out"), array="1-2%1")
    report = await cluster.actions.run(plan_submission(cluster.store, wanted).plan)
    array = report.outcomes[0].new_job
    await cluster.wait(f"{array}_1", "running")
    # A task that runs may not have read its script yet.
    await asyncio.to_thread(wait_until, "the old script is read", begun.exists)
    before = await fetch_stubbed(cluster.store, array)
    assert (before.path, before.content) == (str(real), real.read_bytes())
    written = await replace_stubbed(cluster.store, before, bash("echo new"))
    assert written.done, written
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (bash("echo new"), 0o640)
    again = await replace_stubbed(cluster.store, before, bash("echo lost update"))
    assert (again.done, again.text) == (
        False,
        "the file was changed meanwhile: nothing was written",
    )
    assert real.read_bytes() == bash("echo new")
    gate.touch()
    await cluster.all_ended(f"{array}_1", f"{array}_2")
    outputs = [(cluster.work / f"stub-{task}.out").read_text() for task in (1, 2)]
    assert outputs == ["old\n", "new\n"]
    assert not [name for name in os.listdir(cluster.work) if name.startswith("the real one.sh.")]


async def test_two_who_edit_at_once_do_not_overwrite_each_other(cluster: Cluster) -> None:
    real = cluster.work / "edited by two.sh"
    real.write_bytes(bash("echo old"))
    stub = stub_script(real.read_text(), str(real))
    job = await cluster.submit(stub.removeprefix("#!/bin/bash\n"), held=True)
    before = await fetch_stubbed(cluster.store, job)
    texts = [bash(f"echo {number}") for number in range(4)]
    outcomes = await asyncio.gather(
        *(replace_stubbed(cluster.store, before, text) for text in texts)
    )
    done = [text for text, outcome in zip(texts, outcomes, strict=True) if outcome.done]
    assert real.read_bytes() in done
    await cluster.do("cancel", job)
