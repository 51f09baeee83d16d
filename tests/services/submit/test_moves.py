"""Moves of a waiting job: what is sent, what is refused, and what stands where after each failure
and each death of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdash.backends.submissions import MARK_START
from hpcdash.errors import UsageError
from hpcdash.services.submit import moves, recovery
from hpcdash.services.submit.launch_records import LaunchRecord
from hpcdash.services.submit.move_plan import CannotMove, Destination, MovePlan, plan_move
from hpcdash.services.submit.moves import MoveResult, run_move, settle_moves
from tests.support.moving_sites import CANCELLED, HELD, RUNS, WAITS, Killed, Sites

MAIN = Destination(queue="main")
ORIGINAL, COPY = 0, 1


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sites:
    async def no_pause(seconds: float) -> None:
        pass

    monkeypatch.setattr(moves, "pause", no_pause)
    monkeypatch.setattr(recovery, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(recovery, "_PATIENCE_SECONDS", 0.0)
    return Sites(tmp_path)


async def plan(sites: Sites) -> MovePlan:
    return await plan_move(sites.lab.session, sites.other.session, "12", MAIN)


async def move(sites: Sites) -> MoveResult:
    return await run_move(await plan(sites))


async def settle(sites: Sites, *, may_act: bool = True) -> list[str]:
    return await settle_moves(sites.lab.session, sites.find, may_act=may_act)


def become(sites: Sites, which: int, fields: dict[str, str]) -> Callable[[], None]:
    site, job_id = ((sites.lab, "12"), (sites.other, "93"))[which]
    return lambda: site.jobs[job_id].update(fields)


# -- in place


async def test_a_queue_of_the_same_cluster_is_changed_in_place_and_read_back(sites: Sites) -> None:
    lab = sites.lab
    lab.transport.answers["scontrol update"] = lambda command: (
        become(sites, ORIGINAL, {"partition": "long", "account": "chem"})() or (0, b"", b"")
    )
    planned = await plan_move(lab.session, lab.session, "12", Destination("long", "chem"))
    assert [command.text for command in planned.plan.commands] == [
        "scontrol update jobid=12 partition=long account=chem"
    ]
    result = await run_move(planned)
    assert (result.done, result.new_job) == (True, "")
    assert result.text.startswith("moved to queue long, account chem")
    assert [(entry.verb, entry.state) for entry in sites.entries()] == [("alter", "done")]


async def test_a_refused_change_in_place_says_where_the_job_is(sites: Sites) -> None:
    lab = sites.lab
    lab.transport.answers["scontrol update"] = (1, b"", b"Invalid partition name specified")
    result = await run_move(await plan_move(lab.session, lab.session, "12", Destination("long")))
    assert (result.done, result.text) == (
        False,
        "Invalid partition name specified; it has queue main",
    )


@pytest.mark.parametrize(
    ("destination", "text"),
    [(Destination(), "no place specified"), (MAIN, "job 12 has this place already: queue main")],
)
async def test_no_place_and_the_present_place_are_wrong_usage(
    sites: Sites, destination: Destination, text: str
) -> None:
    with pytest.raises(UsageError) as caught:
        await plan_move(sites.lab.session, sites.lab.session, "12", destination)
    assert caught.value.message == text


# -- by a copy


async def test_the_job_is_held_copied_held_cancelled_and_the_copy_released(sites: Sites) -> None:
    planned = await plan(sites)
    shown = [command.text for command in planned.plan.commands]
    assert shown[0] == "lab: scontrol hold 12"
    assert shown[1].startswith("lab2: sbatch ")
    assert shown[2:] == ["lab: scancel -v 12", "lab2: scontrol release COPY"]
    messages: list[str] = []
    result = await run_move(planned, messages.append)
    assert (result.done, result.new_job) == (True, "93")
    assert result.text == "moved: now job 93 on lab2"
    assert sites.states == ("cancelled", "pending")
    assert sites.lab.sent == ["scontrol hold 12", "scancel -v 12"]
    [submitted, released] = sites.other.sent
    assert released == "scontrol release 93"
    words = submitted.split()
    assert {"--hold", "--partition=main", "--chdir=/home/alice"} <= {*words}
    assert [f"{entry.verb} on {entry.cluster}: {entry.state}" for entry in sites.entries()] == [
        "release on lab2: done",
        "cancel on lab: done",
        "submit on lab2: done",
        "hold on lab: done",
        "move on lab: done",
    ]
    assert messages[0] == "holding job 12 on lab"


async def test_the_copy_names_the_job_that_it_replaces(sites: Sites) -> None:
    planned = await plan(sites)
    await run_move(planned)
    assert sites.other.jobs["93"]["comment"] == f"{planned.mark} replaces=12@lab"
    assert planned.mark.startswith(MARK_START)


async def test_a_held_job_gets_no_hold_and_a_copy_that_stays_held(sites: Sites) -> None:
    become(sites, ORIGINAL, HELD)()
    result = await move(sites)
    assert (result.done, sites.states) == (True, ("cancelled", "held"))
    assert "held as the job was" in result.text
    assert sites.lab.sent == ["scancel -v 12"]


async def test_a_waiting_array_moves_with_its_tasks(sites: Sites) -> None:
    del sites.lab.jobs["12"]
    sites.lab.add("12_[0-3]", arrayjobid="12", arraytaskid="0-3")
    sites.lab.submit_lines = {"12_[0-3]": "sbatch -a 0-3 train.sh", "12": "sbatch -a 0-3 train.sh"}
    result = await move(sites)
    assert result.done
    assert "--array=0-3" in sites.other.sent[0]


async def test_a_launch_s_folder_becomes_that_of_the_copy(sites: Sites) -> None:
    record = LaunchRecord(
        folder="/home/alice/launches/train", job_id="12", name="train", keep="nothing", at=1.0
    )
    here = sites.lab.session.launches.records
    here.launched(record)
    await move(sites)
    there = sites.other.session.launches.records.find_by_job("93", "train")
    assert there is not None
    assert there.folder == record.folder
    # The end of the cancelled job does not remove the folder that its copy needs.
    assert here.unsettled() == ()


# -- refused before anything is sent


def dependent(sites: Sites) -> None:
    sites.lab.add("13", dependency="afterok:12(unfulfilled)")


def partly_started(sites: Sites) -> None:
    sites.lab.jobs.clear()
    sites.lab.add("12_0", arrayjobid="12", arraytaskid="0", **RUNS)
    sites.lab.add("12_[1-3]", arrayjobid="12", arraytaskid="1-3")


REFUSALS: dict[str, tuple[Callable[[Sites], object], str]] = {
    "dependents": (dependent, "other jobs wait for job 12: 13"),
    "a dependency": (
        lambda sites: become(sites, 0, {"dependency": "afterok:7(unfulfilled)"})(),
        "job 12 waits for other jobs (afterok:7(unfulfilled))",
    ),
    "a begin time": (
        lambda sites: become(sites, 0, {"eligibletime": "1795299999", "reason": "BeginTime"})(),
        "job 12 has a begin time, which a copy would not keep",
    ),
    "running": (lambda sites: become(sites, 0, RUNS)(), "job 12 is not waiting: it is running"),
    "another's": (lambda sites: become(sites, 0, {"username": "bob"})(), "job 12 is bob's"),
    "partly started": (partly_started, "some tasks of array 12 have started"),
    "held by the site": (
        lambda sites: become(sites, 0, {"reason": "JobHeldAdmin"})(),
        "job 12@lab is held by an administrator",
    ),
    "environment": (
        lambda sites: become(sites, 0, {"comment": "(null)"})(),
        "the environment of job 12@lab is unknown: it was not submitted with hpcdash",
    ),
    "command line": (
        lambda sites: sites.lab.submit_lines.clear(),
        "the command line of job 12@lab is unknown: Slurm has not recorded it",
    ),
    "paths": (
        lambda sites: sites.other.paths.discard("/data/set"),
        "not on lab2: /data/set",
    ),
    "relative paths": (
        lambda sites: sites.other.paths.discard("/home/alice/train.py"),
        "not on lab2: /home/alice/train.py",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_a_copy_would_not_be_is_refused_with_the_reason(sites: Sites, name: str) -> None:
    prepare, text = REFUSALS[name]
    prepare(sites)
    with pytest.raises(CannotMove) as caught:
        await plan(sites)
    assert caught.value.message == text
    assert sites.lab.sent == sites.other.sent == []


async def test_an_exported_nothing_is_a_known_environment(sites: Sites) -> None:
    become(sites, ORIGINAL, {"comment": "(null)"})()
    sites.lab.submit_lines["12"] = "sbatch --export=NONE train.sh"
    assert (await plan(sites)).copy is not None


# -- refused, or otherwise, at a step


async def test_a_job_that_starts_before_the_hold_is_released_and_not_moved(sites: Sites) -> None:
    sites.lab.before["hold"] = become(sites, ORIGINAL, RUNS)
    result = await move(sites)
    assert result.done is False
    assert result.text == (
        "nothing was moved: job 12 on lab is running; job 12 on lab is running, released"
    )
    assert sites.lab.sent == ["scontrol hold 12", "scontrol release 12"]
    assert sites.other.sent == []


@pytest.mark.parametrize(
    ("step", "sent", "there"),
    [
        ("hold", ["hold"], []),
        ("submit", ["hold", "release"], ["sbatch"]),
        ("cancel", ["hold", "scancel", "release"], ["sbatch", "scancel"]),
    ],
)
async def test_a_refusal_at_a_step_leaves_only_the_released_job(
    sites: Sites, step: str, sent: list[str], there: list[str]
) -> None:
    site = sites.other if step == "submit" else sites.lab
    text = "scancel: error: Kill job error on job id 12: Access denied"
    site.refusals[step] = text if step == "cancel" else "Access denied for job 12"
    result = await move(sites)
    assert result.done is False
    assert "nothing was moved" in result.text
    assert "Access denied" in result.text
    assert sites.states in (("pending", ""), ("pending", "cancelled"))
    assert [word for one in sites.lab.sent for word in sent if word in one] == sent
    assert [word for one in sites.other.sent for word in there if word in one] == there
    assert sites.entries()[-1].state == "refused"


async def test_a_refused_release_of_the_copy_is_told_and_tried_again(sites: Sites) -> None:
    sites.other.refusals["release"] = "Access denied for job 93"
    result = await move(sites)
    assert result.done is None
    assert "now job 93 on lab2, which is held: its release failed: Access denied" in result.text
    sites.other.refusals.clear()
    [text] = await settle(sites)
    assert text.endswith("moved: now job 93 on lab2")
    assert sites.states == ("cancelled", "pending")


async def test_a_copy_that_is_not_held_there_is_cancelled_at_once(sites: Sites) -> None:
    sites.other.after["submit"] = become(sites, COPY, WAITS)
    result = await move(sites)
    assert result.done is False
    assert sites.states == ("pending", "cancelled")


@pytest.mark.parametrize("step", ["hold", "submit", "cancel", "release"])
async def test_a_lost_answer_is_looked_up_and_the_move_goes_on(sites: Sites, step: str) -> None:
    (sites.other if step in ("submit", "release") else sites.lab).lost.add(step)
    result = await move(sites)
    assert result.done is True
    assert sites.states == ("cancelled", "pending")


async def test_an_answer_that_stays_unclear_leaves_both_as_they_are(sites: Sites) -> None:
    lost: list[str] = []

    def vanish() -> None:
        lost.append("12")
        sites.lab.jobs.pop("12")

    sites.lab.after["cancel"] = vanish
    result = await move(sites)
    assert lost
    assert result.done is None
    assert result.text == (
        "unclear: job 12 on lab was cancelled, and is in an unknown state; left as they are: job "
        "12 on lab is in an unknown state, copy 93 on lab2 is held; `hpcdash journal --settle` "
        "looks again"
    )
    assert sites.other.state("93") == "held"
    assert sites.entries()[-1].state == "unknown"


async def test_a_job_that_was_started_and_ended_by_the_cancellation_leaves_its_copy(
    sites: Sites,
) -> None:
    sites.lab.before["cancel"] = become(sites, ORIGINAL, RUNS)
    result = await move(sites)
    assert result.done is True
    assert result.text == (
        "job 12 on lab had started, and was ended by the cancellation; copy 93 on lab2 takes its "
        "place"
    )
    assert sites.other.state("93") == "pending"


async def test_a_job_that_completed_meanwhile_takes_its_copy_with_it(sites: Sites) -> None:
    sites.lab.before["cancel"] = become(sites, ORIGINAL, {**RUNS, "state": "COMPLETED"})
    result = await move(sites)
    assert result.done is False
    assert "job 12 on lab has ended by itself" in result.text
    assert sites.states == ("completed", "cancelled")


# -- killed


STEPS = {
    # Step of the death: (before or after it is carried out, states after the settlement).
    "before hold": (("pending", ""), "nothing was moved: it was interrupted"),
    "after hold": (("pending", ""), "nothing was moved: it was interrupted"),
    "before submit": (("pending", ""), "nothing was moved: it was interrupted"),
    "after submit": (("pending", "cancelled"), "copy 93 on lab2 was cancelled before a start"),
    "before cancel": (("cancelled", "pending"), "moved: now job 93 on lab2"),
    "after cancel": (("cancelled", "pending"), "moved: now job 93 on lab2"),
    "before release": (("cancelled", "pending"), "moved: now job 93 on lab2"),
    "after release": (("cancelled", "pending"), "moved: now job 93 on lab2"),
}


@pytest.mark.parametrize("death", STEPS)
async def test_after_a_kill_the_next_start_says_what_stands_and_one_job_is_left(
    sites: Sites, death: str
) -> None:
    when, step = death.split()
    site = sites.other if step in ("submit", "release") else sites.lab
    (site.before if when == "before" else site.after)[step] = sites.die
    planned = await plan(sites)
    with pytest.raises(Killed):
        await run_move(planned)
    sites.restart()
    runnable = [state for state in sites.states if state in ("pending", "running")]
    assert len(runnable) <= 1
    with pytest.raises(UsageError, match=r"earlier move of job 12|not waiting"):
        await plan_again(sites)
    states, text = STEPS[death]
    [told] = await settle(sites)
    assert text in told
    assert told.startswith("the move of job 12 to lab2 at ")
    assert sites.states == states
    assert await settle(sites) == []


async def plan_again(sites: Sites) -> None:
    try:
        await plan(sites)
    except CannotMove as error:
        raise UsageError(error.message) from None


async def test_a_kill_while_it_is_undone_goes_on_undoing_it(sites: Sites) -> None:
    sites.lab.refusals["cancel"] = "scancel: error: Kill job error on job id 12: Access denied"
    sites.other.after["cancel"] = sites.die
    planned = await plan(sites)
    with pytest.raises(Killed):
        await run_move(planned)
    assert sites.states == ("held", "cancelled")
    sites.restart()
    [told] = await settle(sites)
    assert "job 12 on lab is pending, released" in told
    assert sites.states == ("pending", "cancelled")


async def test_a_job_that_somebody_else_cancelled_meanwhile_is_told_and_nothing_else(
    sites: Sites,
) -> None:
    sites.other.after["submit"] = sites.die
    planned = await plan(sites)
    with pytest.raises(Killed):
        await run_move(planned)
    sites.restart()
    become(sites, ORIGINAL, CANCELLED)()
    [told] = await settle(sites)
    assert "left as they are" in told
    assert "copy 93 on lab2 is held" in told
    assert sites.lab.sent == sites.other.sent == []
    # It is told at each start until it is clear.
    assert len(await settle(sites)) == 1


async def test_read_only_tells_what_stands_where_and_changes_nothing(sites: Sites) -> None:
    sites.lab.after["hold"] = sites.die
    planned = await plan(sites)
    with pytest.raises(Killed):
        await run_move(planned)
    sites.restart()
    [told] = await settle(sites, may_act=False)
    assert "job 12 on lab is held" in told
    assert (sites.states, sites.lab.sent) == (("held", ""), [])


async def test_a_cluster_that_is_not_configured_any_more_is_told(sites: Sites) -> None:
    sites.lab.after["hold"] = sites.die
    planned = await plan(sites)
    with pytest.raises(Killed):
        await run_move(planned)
    sites.restart()
    [told] = await settle_moves(sites.lab.session, lambda name: None)
    assert told.endswith("was interrupted, and lab2 is not configured here")
