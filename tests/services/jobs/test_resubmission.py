"""What is submitted again is gathered by job and array; a lost answer is settled by what the queue
has.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcdash.backends.actions import Outcome
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.errors import ControllerDown, UsageError
from hpcdash.services.cluster.clock import FrozenClock
from hpcdash.services.cluster.queries import CommandBudget
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Report
from hpcdash.services.jobs.triage import fetch_tasks
from hpcdash.services.submit import recovery as lost_answers
from hpcdash.services.submit import resubmission
from hpcdash.services.submit.recovery import Search, reconcile
from hpcdash.services.submit.resubmission import plan_again, resubmissions
from hpcdash.services.submit.submission import SubmissionPlan
from tests.support.scripted_cluster import failed_array
from tests.support.scripted_transport import RECENT, ScriptedTransport

NOW = 1_795_250_000.0


def store_of(transport: ScriptedTransport) -> ClusterStore:
    return ClusterStore(
        "lab",
        transport,
        (BACKEND,),
        clock=FrozenClock(NOW),
        budget=CommandBudget(600),
        user="alice",
    )


async def prepared(transport: ScriptedTransport, store: ClusterStore) -> SubmissionPlan:
    tasks = await fetch_tasks(store, "88")
    return await plan_again(
        store, resubmissions([row for row in tasks.ended if row["state"] == "failed"])
    )


def lost(again: SubmissionPlan) -> Report:
    return Report(
        again.plan,
        tuple(Outcome(job_id, None, "no answer") for job_id in again.plan.request.job_ids),
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_answers, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(lost_answers, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(resubmission, "_HISTORY_LAG_SECONDS", 0.0)


async def test_tasks_of_an_array_are_one_submission_and_each_plain_job_is_one(
    tmp_path: Path,
) -> None:
    tasks = await fetch_tasks(store_of(failed_array(tmp_path)), "88")
    plain = {**tasks.ended[0], "id": "90", "array_id": None, "array_task": None}
    wanted = resubmissions([tasks.ended[3], plain, tasks.ended[1], {**plain, "id": "91"}])
    assert [(one.job_id, str(one.tasks or "")) for one in wanted] == [
        ("90", ""),
        ("91", ""),
        ("88", "1,3"),
    ]


async def test_a_person_is_told_where_the_script_comes_from_and_what_is_not_as_it_was(
    tmp_path: Path,
) -> None:
    transport = failed_array(tmp_path)
    again = await prepared(transport, store_of(transport))
    assert again.notes[0] == "script: 3 lines, as stored by Slurm"
    assert "fresh environment" in again.notes[-1]
    assert transport.submitted == []


async def test_a_new_job_with_our_mark_is_found_after_a_lost_answer(tmp_path: Path) -> None:
    transport = failed_array(tmp_path)
    store = store_of(transport)
    again = await prepared(transport, store)
    [search] = again.searches.values()
    transport.recent.append({"jobarrayid": "93_[3-9]", "arrayjobid": "93", "comment": search.mark})
    assert await reconcile(store, again, lost(again)) == (Outcome("88_[3,7-9]", True, "job 93"),)


async def test_where_no_job_has_our_mark_it_was_not_submitted_and_that_is_looked_up_twice(
    tmp_path: Path,
) -> None:
    transport = failed_array(tmp_path)
    store = store_of(transport)
    again = await prepared(transport, store)
    [outcome] = await reconcile(store, again, lost(again))
    assert outcome.done is False
    assert transport.count(RECENT) == 2


async def test_where_no_history_is_kept_a_job_may_have_ended_without_a_trace(
    tmp_path: Path,
) -> None:
    transport = failed_array(tmp_path)
    transport.storage = "accounting_storage/none"
    store = store_of(transport)
    again = await prepared(transport, store)
    [outcome] = await reconcile(store, again, lost(again))
    assert outcome.done is None
    assert "without a history" in outcome.text


async def test_where_the_queue_cannot_be_asked_it_stays_unknown(tmp_path: Path) -> None:
    transport = failed_array(tmp_path)
    store = store_of(transport)
    again = await prepared(transport, store)
    transport.fails[RECENT] = ControllerDown("it does not answer")
    [outcome] = await reconcile(store, again, lost(again))
    assert outcome.done is None
    assert "it does not answer" in outcome.text


@pytest.mark.parametrize(("numbers", "done"), [((), False), (("93",), True), (("93", "94"), None)])
async def test_a_job_with_a_comment_of_its_own_is_looked_for_by_name_and_time(
    tmp_path: Path, numbers: tuple[str, ...], done: bool | None
) -> None:
    transport = failed_array(tmp_path)
    store = store_of(transport)
    again = await prepared(transport, store)
    search = Search("", "lr-sweep", datetime.fromtimestamp(NOW - 60, UTC))
    again = replace(again, searches=dict.fromkeys(again.searches, search))
    for number in numbers:
        new = {
            "jobarrayid": number,
            "arrayjobid": number,
            "name": "lr-sweep",
            "submittime": str(int(NOW)),
        }
        transport.recent.append(new)
    [outcome] = await reconcile(store, again, lost(again))
    assert outcome.done is done


async def test_more_jobs_than_a_person_could_look_over_are_refused(tmp_path: Path) -> None:
    transport = failed_array(tmp_path)
    tasks = await fetch_tasks(store_of(transport), "88")
    plain = [{**tasks.ended[0], "id": str(number), "array_id": None} for number in range(100, 111)]
    with pytest.raises(UsageError, match="11 jobs and arrays are too many"):
        await plan_again(store_of(transport), resubmissions(plain))
