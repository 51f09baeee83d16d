"""Jobs that are handed in once more, and answers that are lost, on the embedded queue and on Slurm
alike.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any

import pytest

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.queries import Answer, JobScope
from hpcdash.backends.submissions import Submission
from hpcdash.domain.states import ENDED_BADLY
from hpcdash.errors import CommandTimedOut, UsageError
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.submit.recovery import reconcile
from hpcdash.services.submit.resubmission import plan_again, resubmissions
from hpcdash.services.submit.submission import SubmissionPlan, plan_submission
from tests.behaviour.clusters import Cluster, Row, bash

SWEEP = """#SBATCH --time=7
echo "task $SLURM_ARRAY_TASK_ID: $*"
case $SLURM_ARRAY_TASK_ID in 1|4) [ -e "repaired" ] || exit 3;; esac
"""
ARGUMENTS = ("--lr=0.1", "--epochs=3")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a history that is waited for here."""
    monkeypatch.setattr("hpcdash.services.submit.recovery._RETRY_SECONDS", 0.2)
    monkeypatch.setattr("hpcdash.services.submit.resubmission._HISTORY_LAG_SECONDS", 0.0)


@dataclass(frozen=True, slots=True)
class Earlier:
    """Jobs that ended, and that the history knows: an array of which two tasks failed, and plain
    ones.
    """

    array: str
    with_options: str
    plain: str
    with_comment: str


_EARLIER: dict[str, Earlier] = {}


@pytest.fixture
async def earlier(cluster: Cluster) -> Earlier:
    """Made once on each scheduler, and all together: a history takes some seconds."""
    if cluster.name not in _EARLIER:
        array, *jobs = await asyncio.gather(
            cluster.submit(SWEEP, "-c", "2", "-J", "sweep", array="0-5%3", arguments=ARGUMENTS),
            cluster.submit(
                "exit 3", "-J", "then", "-d", "singleton", "--comment=my own", "-t", "9", held=True
            ),
            cluster.submit("true", "-J", "again plain"),
            cluster.submit("true", "-J", "again with comment", "--comment", "my own"),
        )
        await cluster.do("release", jobs[0])
        await cluster.all_ended(*jobs, *(f"{array}_{task}" for task in range(6)))
        for job in (array, *jobs):
            await cluster.wait_for_history(job)
        _EARLIER[cluster.name] = Earlier(array, *jobs)
    return _EARLIER[cluster.name]


async def submitted(cluster: Cluster, again: SubmissionPlan) -> str:
    (outcome,) = (await cluster.actions.run(again.plan)).outcomes
    assert outcome.done, outcome
    return outcome.text.removeprefix("job ").partition(";")[0]


async def test_exactly_the_failed_tasks_are_submitted_again_as_they_were(
    cluster: Cluster, earlier: Earlier
) -> None:
    array = earlier.array
    failed = [row for row in await cluster.rows(array) if row["state"] in ENDED_BADLY]
    assert sorted(row["array_task"] for row in failed) == ["1", "4"]
    again = await plan_again(cluster.store, resubmissions(failed))
    assert again.plan.request.job_ids == (f"{array}_[1,4]",)
    (cluster.work / "repaired").touch()
    new = await submitted(cluster, again)
    rows = await cluster.all_ended(f"{new}_1", f"{new}_4")
    assert sorted(await cluster.tasks(new)) == [1, 4]
    names = ("name", "cpus", "limit_seconds", "work_dir", "queue")
    assert [[row[name] for name in names] for row in rows] == [
        [failed[0][name] for name in names]
    ] * 2
    assert [row["state"] for row in rows] == ["completed", "completed"]
    assert await cluster.log(f"{new}_4") == "task 4: --lr=0.1 --epochs=3\n"
    script = await fetch_script(cluster.store, f"{new}_1")
    assert script.text.encode() == bash(SWEEP)
    (cluster.work / "repaired").unlink()


async def test_what_was_meant_for_then_does_not_count_again(
    cluster: Cluster, earlier: Earlier
) -> None:
    row: Row = await cluster.row(earlier.with_options)
    again = await plan_again(cluster.store, resubmissions([row]))
    new = await submitted(cluster, again)
    row = await cluster.ended(new)
    assert (row["state"], row["name"], row["comment"], row["limit_seconds"]) == (
        "failed",
        "then",
        "my own",
        540,
    )
    assert any("keeps its comment" in aside for aside in again.notes)


async def lost(
    cluster: Cluster, again: SubmissionPlan, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> tuple[Any, str]:
    """What is found out after the answer to a submission was lost."""
    send = cluster.store.act

    async def lose(command: ActionCommand) -> Answer:
        if is_sent:
            await send(command)
        raise CommandTimedOut("no answer", argv=command.argv)

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "act", lose)
        report = await cluster.actions.run(again.plan)
    assert [outcome.done for outcome in report.outcomes] == [None]
    (outcome,) = await reconcile(cluster.store, again, report)
    return outcome.done, outcome.text


async def jobs_named(cluster: Cluster, name: str) -> list[str]:
    """The ids of all jobs of a name that were submitted here."""
    query = cluster.store.backend.queue.jobs(JobScope(user=cluster.store.user, ended=True))
    rows = (await cluster.store.run_query(query)).table.to_pylist()
    return [
        row["id"] for row in rows if (row["name"], row["work_dir"]) == (name, str(cluster.work))
    ]


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_submission_whose_answer_was_lost_is_found_by_its_mark(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    name = f"lost-{is_sent}"
    wanted = Submission(bash("true"), name, held=True)
    # Another of its name does not stand for it.
    other = await cluster.submit("true", name=name, held=True)
    done, words = await lost(
        cluster, plan_submission(cluster.store, wanted), monkeypatch, is_sent=is_sent
    )
    new = [job for job in await jobs_named(cluster, name) if job != other]
    assert len(new) == is_sent
    assert (done, words) == ((True, f"job {new[0]}") if is_sent else (False, words))
    await cluster.do("cancel", other, *new)


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_submission_with_a_comment_of_its_own_is_found_by_its_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    name = f"lost with comment {secrets.token_hex(4)}"
    wanted = Submission(bash(f"#SBATCH --comment='my own' -J '{name}'\ntrue"), "job.sh", held=True)
    done, words = await lost(
        cluster, plan_submission(cluster.store, wanted), monkeypatch, is_sent=is_sent
    )
    new = await jobs_named(cluster, name)
    assert len(new) == is_sent
    expected = f"job {new[0]} (the only job with that name submitted since)" if is_sent else words
    assert (done, words) == (is_sent, expected)
    if new:
        await cluster.do("cancel", *new)


async def test_a_job_submitted_again_whose_answer_was_lost_is_found_by_its_mark(
    cluster: Cluster, earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = await plan_again(cluster.store, resubmissions([await cluster.row(earlier.plain)]))
    done, words = await lost(cluster, again, monkeypatch, is_sent=True)
    (new,) = [job for job in await jobs_named(cluster, "again plain") if job != earlier.plain]
    assert (done, words) == (True, f"job {new}")


async def test_one_that_keeps_its_own_comment_is_looked_for_by_its_name(
    cluster: Cluster, earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = earlier.with_comment
    again = await plan_again(cluster.store, resubmissions([await cluster.row(first)]))
    done, words = await lost(cluster, again, monkeypatch, is_sent=True)
    (new,) = [job for job in await jobs_named(cluster, "again with comment") if job != first]
    # The first one has it too, and is not taken for it.
    assert (done, words) == (True, f"job {new} (the only job with that name submitted since)")


async def test_what_is_no_option_or_no_script_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError):
        plan_submission(cluster.store, Submission(bash("true"), "job.sh", ("stray",)))
    for script, options in (
        (b"echo no first line\n", ()),
        (b"#!/bin/sh\r\necho\r\n", ()),
        (bash("true"), ("--no-such-option",)),
        (bash("true"), ("--array=5-3",)),
        (bash("true"), ("--time=soon",)),
        (bash("true"), ("--dependency=afterwards:1",)),
    ):
        again = plan_submission(cluster.store, Submission(script, "refused", options))
        (outcome,) = (await cluster.actions.run(again.plan)).outcomes
        assert (outcome.done, bool(outcome.text)) == (False, True), (script, options, outcome)
    assert await jobs_named(cluster, "refused") == []
