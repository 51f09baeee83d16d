"""What qstat's jobs mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdash.backends.pbs.dialects import Dialect
from hpcdash.backends.pbs.jobs import PbsQueue, parse_jobs
from hpcdash.backends.pbs.listing import Want
from hpcdash.backends.pbs.states import exit_pair, job_state
from hpcdash.backends.queries import JobScope
from hpcdash.domain import schema
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.dependencies import parse_dependency
from hpcdash.domain.rfc3339 import table_to_json_rows
from hpcdash.errors import ControllerDown, HpcdashError, NoSuchJob, UnreadableOutput, UsageError
from hpcdash.transport.base import CommandResult
from tests.support.pbs import SCENES
from tests.support.pbs.job_text import (
    ARRAY,
    CLOCK,
    ENDED_JOB,
    JOB,
    TOKEN,
    WAITING_JOB,
    answered,
    dsv,
    fetch_rows,
    parsed,
    question,
    row,
)
from tests.support.records import for_each

SCENE_NAMES = sorted(folder.name for folder in SCENES.iterdir() if (folder / "jobs.dsv").is_file())
TORQUE = SCENES.parents[1] / "torque-6.1" / "printed"


def scene(name: str, *lists: str, want: Want = Want.NAMED) -> dict[str, dict[str, Any]]:
    """id → row of a recorded scene's lists."""
    raw = b"".join((SCENES / name / f"{which}.dsv").read_bytes() for which in lists)
    return {
        one["id"]: one for one in fetch_rows(parsed(raw.replace(b"@@", TOKEN.encode()), want=want))
    }


# -- states


@for_each(
    ("letter", "state"),
    [
        *(
            ("Q", "pending"),
            ("W", "pending"),
            ("T", "pending"),
            ("H", "held"),
            ("R", "running"),
            ("S", "suspended"),
        ),
        *(
            ("E", "completing"),
            ("U", "running"),
            ("M", "running"),
            ("Z", "unknown"),
            ("", "unknown"),
        ),
    ],
)
def test_pbs_s_letters_for_jobs_that_live(letter: str, state: str) -> None:
    assert job_state(letter) == state


@for_each("letter", ["F", "X"])
@for_each(
    ("substate", "exit_status", "state"),
    [
        *(
            (92, 0, "completed"),
            (93, 3, "failed"),
            (93, 139, "failed"),
            (93, 266, "failed"),
            (93, 143, "failed"),
        ),
        *(
            (91, 271, "cancelled"),
            (91, 143, "cancelled"),
            (91, 265, "cancelled"),
            (91, None, "cancelled"),
        ),
        *(
            (93, -29, "timeout"),
            (93, -28, "timeout"),
            (93, -27, "out_of_memory"),
            (93, -26, "out_of_memory"),
        ),
        *(
            (93, -20, "node_failed"),
            (93, -11, "preempted"),
            (93, -3, "failed"),
            (93, None, "failed"),
        ),
        # Of an array: a task of it failed.
        (93, 0, "failed"),
        # Without a substate the exit status alone tells.
        *(
            (None, 0, "completed"),
            (None, 3, "failed"),
            (None, 271, "cancelled"),
            (None, 143, "cancelled"),
        ),
        (None, None, "gone"),
    ],
)
def test_how_a_job_ended(
    letter: str, substate: int | None, exit_status: int | None, state: str
) -> None:
    assert job_state(letter, substate=substate, exit_status=exit_status) == state


@for_each(
    ("exit_status", "state"),
    [
        (0, "completed"),
        (1, "failed"),
        (271, "cancelled"),
        (-10, "out_of_memory"),
        (-11, "timeout"),
        (-12, "timeout"),
    ],
)
def test_torque_s_negative_exit_statuses_mean_other_things(exit_status: int, state: str) -> None:
    assert job_state("C", exit_status=exit_status, is_torque=True) == state


def test_a_torque_job_that_was_killed_at_its_time_limit_ran_out_of_time() -> None:
    assert job_state("C", exit_status=271, is_torque=True, used_all_its_time=True) == "timeout"


def test_a_job_that_never_started_was_cancelled() -> None:
    assert job_state("F", substate=92, has_started=False) == "cancelled"


@for_each(
    ("exit_status", "pair"),
    [
        (0, (0, 0)),
        (3, (3, 0)),
        (143, (143, 0)),
        (255, (255, 0)),
        (271, (0, 15)),
        (-29, (None, None)),
    ],
)
def test_an_exit_status_is_a_code_or_a_signal(
    exit_status: int, pair: tuple[int | None, int | None]
) -> None:
    assert exit_pair(exit_status) == pair


def test_an_unknown_letter_is_shown_as_it_is() -> None:
    found = row(job_state="Z")
    assert (found["state"], found["native_state"]) == ("unknown", "Z")


def test_a_job_held_by_its_user_is_held_not_pending() -> None:
    assert row(WAITING_JOB, job_state="H", Hold_Types="u")["state"] == "held"


def test_what_an_array_s_slot_limit_of_torque_holds_is_pending() -> None:
    assert row(WAITING_JOB, job_state="H", Hold_Types="l")["state"] == "pending"


def test_a_queued_job_that_still_carries_an_exit_status_waits_and_has_no_exit() -> None:
    found = row(WAITING_JOB, Exit_status="-20", run_count="1")
    assert (found["state"], found["exit_code"], found["exit_signal"]) == ("pending", None, None)


def test_a_requeued_job_that_runs_again_has_no_exit() -> None:
    found = row(Exit_status="-11")
    assert (found["state"], found["exit_code"]) == ("running", None)


def test_a_job_that_depends_on_what_cannot_be_any_more_was_cancelled_and_says_why() -> None:
    found = row(
        WAITING_JOB,
        job_state="F",
        substate="92",
        depend="afterok:9.pbs01@pbs01",
        history_timestamp="1795234298",
    )
    assert (found["state"], found["reason"]) == ("cancelled", "a dependency was not met")
    assert (found["started_at"], found["ends_at"]) == (None, "2026-11-21T04:11:38Z")
    assert (found["exit_code"], found["exit_signal"], found["elapsed_seconds"]) == (
        None,
        None,
        None,
    )


def test_a_deleted_job_ended_by_a_signal() -> None:
    found = row(
        ENDED_JOB,
        substate="91",
        Exit_status="271",
        comment="Job run at x on (cn01:ncpus=4) and terminated",
    )
    assert (found["state"], found["exit_code"], found["exit_signal"]) == ("cancelled", 0, 15)


def test_a_job_out_of_time_has_no_exit_code_but_a_reason() -> None:
    comment = "Job run at Sat Nov 21 at 04:01 on (gpu01[1]:ncpus=1) and exceeded resource walltime"
    found = row(ENDED_JOB, substate="93", Exit_status="-29", comment=comment)
    assert (found["state"], found["exit_code"], found["exit_signal"]) == ("timeout", None, None)
    assert found["reason"] == "exceeded resource walltime"


def test_where_a_job_runs_is_no_reason() -> None:
    assert row(comment="Job run at Sat Nov 21 at 04:01 on (cn01:ncpus=4)")["reason"] is None


def test_why_a_job_waits_is_its_comment_s_reason() -> None:
    found = row(
        WAITING_JOB,
        comment="Not Running: Insufficient amount of resource: ncpus (R: 60 A: 4 T: 64)",
    )
    assert found["reason"] == "Insufficient amount of resource: ncpus (R: 60 A: 4 T: 64)"


# -- times


def test_a_running_job_s_times() -> None:
    found = row()
    # 04:30:00 - 04:10:00, not the ten minutes that were sampled last.
    assert found["elapsed_seconds"] == 1200
    assert found["started_at"] == "2026-11-21T04:10:00Z"
    assert found["ends_at"] == "2026-11-21T06:10:00Z"
    assert found["eligible_at"] == "2026-11-21T04:02:00Z"


def test_a_job_was_submitted_when_it_was_created_not_when_it_came_into_this_queue() -> None:
    assert row()["submitted_at"] == "2026-11-21T04:01:41Z"


def test_a_login_node_whose_clock_is_behind_gives_no_negative_time() -> None:
    assert row(stime="Sat Nov 21 04:31:00 2026")["elapsed_seconds"] == 0


@pytest.mark.parametrize(("letter", "substate"), [("S", "45"), ("E", "51")])
def test_a_job_that_does_not_run_now_has_used_what_was_measured(letter: str, substate: str) -> None:
    found = row(job_state=letter, substate=substate)
    assert (found["elapsed_seconds"], found["ends_at"]) == (600, None)


def test_an_ended_job_s_times() -> None:
    found = row(ENDED_JOB)
    assert (found["elapsed_seconds"], found["ends_at"]) == (600, "2026-11-21T04:20:00Z")


def test_a_job_deleted_after_it_was_put_back_ended_then_and_not_with_its_last_run() -> None:
    found = row(
        ENDED_JOB,
        substate="91",
        Exit_status="-20",
        stime=None,
        exec_host=None,
        history_timestamp="1795235100",
    )
    assert (found["state"], found["ends_at"]) == ("cancelled", "2026-11-21T04:25:00Z")


def test_a_waiting_job_has_neither_start_nor_end_nor_nodes() -> None:
    found = row(WAITING_JOB, stime="Sat Nov 21 04:10:00 2026", exec_host="cn01/0")
    assert [found[name] for name in ("started_at", "ends_at", "elapsed_seconds", "node_list")] == [
        None
    ] * 4


def test_a_job_that_waits_for_its_time_is_eligible_then() -> None:
    found = row(
        WAITING_JOB,
        job_state="W",
        substate="30",
        etime=None,
        Execution_Time="Sun Nov 22 04:01:41 2026",
    )
    assert found["eligible_at"] == "2026-11-22T04:01:41Z"


@for_each(
    ("estimated", "read"),
    [
        ("Sat Nov 21 05:00:00 2026", "2026-11-21T05:00:00Z"),
        ("1795237200", "2026-11-21T05:00:00Z"),
        ("UNKNOWN", None),
    ],
)
def test_the_scheduler_s_own_estimate_of_a_start(estimated: str, read: str | None) -> None:
    assert row(WAITING_JOB, estimated__start_time=estimated)["_expected_start_at"] == read


def test_a_limit_nobody_lives_to_see_has_no_end() -> None:
    found = row(Resource_List__walltime="999999999999")
    assert (found["limit_seconds"], found["ends_at"]) == (999999999999, None)


# -- what it asked for and who it is


def test_gpus_and_memory_are_those_of_the_whole_job() -> None:
    found = row(
        Resource_List__ngpus="2",
        Resource_List__mem="8gb",
        Resource_List__select="2:ncpus=2:ngpus=1:mem=4gb",
    )
    assert (found["gpus"], found["memory_bytes"], found["cpus"]) == (2, 8 << 30, 4)


def test_a_cray_s_accelerators_are_gpus() -> None:
    assert row(Resource_List__select="2:ncpus=2:naccelerators=1")["gpus"] == 2


def test_what_is_only_in_the_select_counts_for_each_chunk() -> None:
    found = row(
        Resource_List__ncpus=None,
        Resource_List__select="2:ncpus=3:gpus=1:mem=1gb+1:ncpus=2",
        exec_host=None,
    )
    assert (found["cpus"], found["gpus"], found["memory_bytes"], found["nodes"]) == (
        8,
        2,
        2 << 30,
        1,
    )


def test_torque_s_nodes_ask_for_processors_and_gpus() -> None:
    found = row(
        WAITING_JOB,
        Resource_List__ncpus=None,
        Resource_List__nodect=None,
        Resource_List__select=None,
        Resource_List__nodes="2:ppn=4:gpus=1+n07:ppn=2",
    )
    assert (found["nodes"], found["cpus"], found["gpus"]) == (3, 10, 2)


def test_nodes_are_those_it_runs_on_however_many_chunks_it_asked_for() -> None:
    found = row(Resource_List__nodect="4", exec_host="cn01/0*2+cn01/1*2+cn02/0*2+cn02/1*2")
    assert (found["nodes"], found["node_list"]) == (2, "cn[01-02]")


def test_a_waiting_job_s_nodes_are_its_chunks() -> None:
    assert row(WAITING_JOB, Resource_List__nodect="4")["nodes"] == 4


def test_the_user_is_the_owner_without_the_host() -> None:
    assert row(Job_Owner="d.vader@login1.example.org")["user"] == "d.vader"


def test_what_a_job_does_not_say_is_null() -> None:
    found = row()
    assert [
        found[name] for name in ("account", "qos", "memory_bytes", "comment", "dependency")
    ] == [None] * 5


def test_the_account_is_account_name() -> None:
    assert row(Account_Name="proj42")["account"] == "proj42"


def test_what_waits_for_a_job_is_not_what_it_waits_for() -> None:
    found = row(
        WAITING_JOB, depend="afterok:9.pbs01@pbs01:8.pbs01@pbs01,beforeany:11.pbs01@pbs01,on:2"
    )
    assert found["dependency"] == "afterok:9.pbs01:8.pbs01,on:2"
    waited_for = parse_dependency(found["dependency"]).job_ids
    assert {"9", "8"} <= {job_id.partition(".")[0] for job_id in waited_for}


def test_a_job_others_wait_for_waits_for_none() -> None:
    assert row(depend="beforeok:10.pbs01@pbs01,beforeany:11.pbs01@pbs01")["dependency"] is None


def test_only_our_own_mark_is_a_comment() -> None:
    assert row(HPCDASH_MARK="hpcdash:3f2a9c")["comment"] == "hpcdash:3f2a9c"
    assert row(HPCDASH_MARK="something else")["comment"] is None
    assert row(comment="a site's own words")["comment"] is None


def test_the_folder_it_was_submitted_from_may_hold_commas() -> None:
    assert row(PBS_O_WORKDIR=r"/home/alice/a\,b")["work_dir"] == "/home/alice/a,b"


# -- arrays


def array(*subjobs: bytes, want: Want = Want.NOW, **changed: str) -> list[dict[str, Any]]:
    return fetch_rows(parsed(dsv("14[].pbs01", ARRAY | changed), *subjobs, want=want))


def subjob(index: int, base: Mapping[str, str] = JOB, **changed: str) -> bytes:
    own = {"array_id": "14[].pbs01", "array_index": str(index)}
    return dsv(f"14[{index}].pbs01", dict(base) | own | changed)


def test_what_waits_of_an_array_is_one_row_with_its_throttle() -> None:
    waiting, _ = array(max_run_subjobs="3")
    assert (waiting["id"], waiting["array_id"], waiting["array_task"]) == (
        "14[6-10].pbs01",
        "14[].pbs01",
        "6-10%3",
    )
    assert (waiting["state"], waiting["native_state"], waiting["_task"], waiting["_tasks"]) == (
        "pending",
        "Q",
        6,
        5,
    )
    assert parse_tasks(waiting["array_task"]).throttle == 3
    assert [waiting[name] for name in ("started_at", "ends_at", "elapsed_seconds", "reason")] == [
        None
    ] * 4


def test_what_runs_of_an_array_and_was_not_listed_is_one_row() -> None:
    _, running = array()
    assert (running["id"], running["array_task"], running["state"], running["_tasks"]) == (
        "14[].pbs01",
        None,
        "running",
        3,
    )
    # They did not all start with the array; what they hold they hold together.
    assert (running["started_at"], running["ends_at"], running["cpus"]) == (None, None, 12)


def test_listed_subjobs_are_rows_of_their_own_and_nothing_counts_twice() -> None:
    rows = array(subjob(3), subjob(4), subjob(5, job_state="S", substate="43"))
    assert [one["id"] for one in rows] == [
        "14[3].pbs01",
        "14[4].pbs01",
        "14[5].pbs01",
        "14[6-10].pbs01",
    ]
    assert sum(one["_tasks"] for one in rows) == 8
    assert (rows[0]["array_id"], rows[0]["array_task"], rows[0]["_task"]) == ("14[].pbs01", "3", 3)


def test_subjobs_that_began_since_they_were_listed_are_one_row_more() -> None:
    rows = array(subjob(3), subjob(4))
    assert [(one["id"], one["_tasks"]) for one in rows[2:]] == [
        ("14[6-10].pbs01", 5),
        ("14[].pbs01", 1),
    ]


def test_the_parent_s_last_record_counts_which_came_with_its_subjobs() -> None:
    later = ARRAY | {
        "array_state_count": "Queued:4 Running:1 Exiting:0 Expired:5",
        "array_indices_remaining": "7-10",
    }
    rows = array(dsv("14[].pbs01", later), subjob(6))
    assert [(one["id"], one["_tasks"]) for one in rows] == [
        ("14[6].pbs01", 1),
        ("14[7-10].pbs01", 4),
    ]


def test_a_waiting_subjob_is_in_the_row_of_its_array() -> None:
    rows = array(subjob(6, WAITING_JOB), subjob(7, WAITING_JOB))
    assert [one["id"] for one in rows] == ["14[6-10].pbs01", "14[].pbs01"]


def test_ended_subjobs_are_no_part_of_the_queue() -> None:
    assert len(array(subjob(1, ENDED_JOB, job_state="X"))) == 2


def test_a_held_array_s_waiting_tasks_are_held_and_the_others_run_on() -> None:
    waiting, running = array(job_state="H", Hold_Types="u")
    assert (waiting["state"], waiting["native_state"]) == ("held", "H")
    assert (running["state"], running["native_state"]) == ("running", "R")


def test_an_array_of_which_all_wait_is_pending() -> None:
    (only,) = array(
        job_state="Q",
        array_state_count="Queued:10 Running:0 Exiting:0 Expired:0",
        array_indices_remaining="1-10",
    )
    assert (only["id"], only["state"], only["_tasks"]) == ("14[1-10].pbs01", "pending", 10)


def test_an_array_with_steps_keeps_them() -> None:
    waiting, _ = array(array_indices_submitted="0-20:5", array_indices_remaining="10-20:5")
    assert (waiting["id"], waiting["_tasks"], waiting["_task"]) == ("14[10-20:5].pbs01", 3, 10)


def test_nothing_of_an_array_waits_where_a_dash_remains() -> None:
    (only,) = array(
        array_state_count="Queued:0 Running:1 Exiting:2 Expired:7", array_indices_remaining="-"
    )
    assert (only["id"], only["state"], only["_tasks"]) == ("14[].pbs01", "running", 3)


def test_an_array_of_which_the_last_tasks_end_is_completing() -> None:
    (only,) = array(
        array_state_count="Queued:0 Running:0 Exiting:2 Expired:8", array_indices_remaining="-"
    )
    assert (only["state"], only["native_state"], only["_tasks"]) == ("completing", "E", 2)


def test_tasks_that_cannot_be_read_are_counted() -> None:
    (only,) = array(
        array_state_count="Queued:7 Running:0 Exiting:0 Expired:0", array_indices_remaining="all"
    )
    assert (only["id"], only["state"], only["_tasks"]) == ("14[].pbs01", "pending", 7)


def test_an_ended_array_is_one_row_for_all_it_had_and_its_exit_status_is_no_exit_code() -> None:
    (only,) = array(
        want=Want.NAMED,
        job_state="F",
        substate="93",
        Exit_status="1",
        array_state_count="Queued:0 Running:0 Exiting:0 Expired:0",
        array_indices_remaining="-",
        obittime="Sat Nov 21 04:20:00 2026",
    )
    assert (only["id"], only["array_task"], only["_tasks"], only["state"]) == (
        "14[].pbs01",
        "1-10",
        10,
        "failed",
    )
    assert (only["exit_code"], only["ends_at"]) == (None, "2026-11-21T04:20:00Z")


def test_an_ended_array_whose_tasks_are_listed_is_its_tasks() -> None:
    rows = array(
        subjob(1, ENDED_JOB),
        subjob(2, ENDED_JOB, substate="93", Exit_status="5"),
        want=Want.NAMED,
        job_state="F",
    )
    assert [(one["id"], one["state"]) for one in rows] == [
        ("14[1].pbs01", "completed"),
        ("14[2].pbs01", "failed"),
    ]


# Of a subjob without a record PBS shows what its array has, but for the state and this comment.
COPY = {key: value for key, value in ARRAY.items() if not key.startswith("array")} | {
    "job_state": "X"
}


def ended_subjobs(*lines: bytes) -> dict[str, dict[str, Any]]:
    return {
        one["id"]: one
        for one in fetch_rows(parsed(*lines, want=Want.RECENT))
        if one["native_state"] in "XF"
    }


@for_each(
    ("comment", "array_exit_status", "state"),
    [
        ("Subjob failed", None, "failed"),
        ("Subjob terminated", None, "cancelled"),
        # With no word of how it ended: the array lives on, or some of its tasks failed.
        ("Subjob finished", None, "gone"),
        ("Subjob finished", "1", "gone"),
        ("Subjob finished", "0", "completed"),
    ],
)
def test_a_subjob_without_a_record_ended_as_its_comment_says(
    comment: str, array_exit_status: str | None, state: str
) -> None:
    said = COPY | {"comment": comment, "Exit_status": array_exit_status, "substate": "93"}
    (task,) = ended_subjobs(dsv("12[2].pbs01", said)).values()
    assert task["state"] == state
    assert task["reason"] is None
    # These are its array's.
    assert (
        task["exit_code"],
        task["exit_signal"],
        task["started_at"],
        task["elapsed_seconds"],
    ) == (None,) * 4


def test_a_subjob_without_a_record_beside_others_that_have_one_never_began() -> None:
    copy = COPY | {
        "job_state": "F",
        "comment": "Subjob finished",
        "Exit_status": "0",
        "substate": "92",
    }
    other = dsv("13[5].pbs01", copy)
    tasks = ended_subjobs(dsv("12[1].pbs01", ENDED_JOB), dsv("12[5].pbs01", copy), other)
    assert {job_id: task["state"] for job_id, task in tasks.items()} == {
        "12[1].pbs01": "completed",
        "12[5].pbs01": "cancelled",
        "13[5].pbs01": "completed",
    }
    assert tasks["12[1].pbs01"]["exit_code"] == 0


def test_a_job_whose_comment_is_a_subjob_s_keeps_its_own_words() -> None:
    assert row(ENDED_JOB, comment="Subjob failed", Exit_status="0")["state"] == "completed"


def test_a_server_with_a_port_in_its_name_has_jobs_like_others() -> None:
    read = parse_jobs(
        answered(dsv("12[].srv:15101", ARRAY)),
        question=question(Want.NAMED),
    )
    assert [one["id"] for one in fetch_rows(read)] == ["12[6-10].srv:15101", "12[].srv:15101"]
    query = PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=("12.srv:15101",)))
    assert query.argv[-1] == "12.srv:15101"


def test_the_rows_of_an_array_stand_where_it_was_listed() -> None:
    lines = (
        dsv("1.pbs01", JOB),
        dsv("14[].pbs01", ARRAY),
        dsv("15.pbs01", JOB),
        subjob(4),
        subjob(3),
    )
    assert [one["id"] for one in fetch_rows(parsed(*lines))] == [
        *("1.pbs01", "14[3].pbs01", "14[4].pbs01", "14[6-10].pbs01", "14[].pbs01", "15.pbs01")
    ]


def test_more_tasks_than_a_column_counts_have_no_sum() -> None:
    (only,) = array(
        array_state_count="Queued:0 Running:999999999 Exiting:0 Expired:0",
        array_indices_remaining="-",
        **{"Resource_List.mem": "4eb"},
    )
    assert (only["_tasks"], only["memory_bytes"]) == (999999999, None)


# -- what ended a short while ago


def test_what_ended_a_short_while_ago_is_shown_where_it_is_asked_for() -> None:
    long_ago = ENDED_JOB | {"obittime": "Sat Nov 21 03:15:00 2026"}
    moved = JOB | {"job_state": "M", "substate": "94"}
    lines = (dsv("1.s", ENDED_JOB), dsv("2.s", long_ago), dsv("3.s", moved), dsv("4.s", JOB))
    assert parsed(*lines, want=Want.RECENT).table["id"].to_pylist() == ["1.s", "4.s"]
    assert parsed(*lines, want=Want.NOW).table["id"].to_pylist() == ["3.s", "4.s"]


# -- recorded


def test_a_recorded_array_adds_up_to_what_lives_of_it() -> None:
    everyone = scene("everyday", "jobs", want=Want.NOW)
    with_subjobs = scene("everyday", "jobs", "subjobs", want=Want.NOW)
    for number, alive in ((12, 3), (13, 5), (14, 8), (15, 1)):
        for rows in (everyone, with_subjobs):
            assert sum(one["_tasks"] for one in rows.values() if one["_number"] == number) == alive
    assert len(with_subjobs) == len(everyone) - 4 + 3 + 5 + 3 + 1


@for_each(
    ("job_id", "state"),
    [
        *(
            ("1", "failed"),
            ("17", "completed"),
            ("18", "failed"),
            ("19", "failed"),
            ("20", "timeout"),
        ),
        *(
            ("24", "cancelled"),
            ("25", "cancelled"),
            ("29", "failed"),
            ("32", "cancelled"),
            ("131", "cancelled"),
        ),
    ],
)
def test_how_recorded_jobs_ended(job_id: str, state: str) -> None:
    assert scene("finished", "ended")[f"{job_id}.pbs01"]["state"] == state


def test_a_job_whose_node_was_lost_waits_or_has_failed_with_it() -> None:
    found = scene("node-failed", "jobs", "ended")
    assert {job_id: one["state"] for job_id, one in found.items()} == {
        "175.pbs01": "pending",
        "176.pbs01": "node_failed",
        "177.pbs01": "running",
    }


def test_a_preempted_job_is_suspended_and_says_that_the_scheduler_did_it() -> None:
    found = scene("preempted", "jobs")["171.pbs01"]
    assert (found["state"], found["reason"]) == (
        "suspended",
        "suspended by the scheduler: Insufficient amount of resource: ncpus",
    )


def test_names_that_look_like_numbers_stay_names() -> None:
    names = {one["name"] for one in scene("odd", "jobs").values()}
    assert {
        "12345",
        "0012",
        "nan",
        "NaN",
        "1e5",
        "+5",
        ".5",
        "True",
        "null",
        "99999999999999999999999999",
    } <= names


@for_each("name", SCENE_NAMES)
def test_recorded_lists_are_read_whole(name: str) -> None:
    for which in ("jobs", "ended", "subjobs"):
        raw = (SCENES / name / f"{which}.dsv").read_bytes().replace(b"@@", TOKEN.encode())
        read = parsed(raw, want=Want.NAMED)
        assert read.table.schema == schema.JOBS
        assert (read.rejected, len(read.table) == 0) == ((), not raw)


# -- Torque


def backend_for(
    dialect: Dialect, raw: bytes, want: Want = Want.RECENT, owner: bytes = b""
) -> dict[str, dict[str, Any]]:
    head = b"Clock: 1772616600\n" + (b"Owner: " + owner + b"\n" if owner else b"")
    answer = CommandResult((), 0, head + raw, b"", 0.1)
    table = parse_jobs(answer, question=question(want, dialect)).table
    return {
        one["id"].partition(".")[0]: one for one in table_to_json_rows(table, table.column_names)
    }


def test_a_job_in_a_reservation_s_queue_waits_for_it_to_begin() -> None:
    stopped = {"comment": "Not Running: Queue not started."}
    assert (
        row(WAITING_JOB, queue="R18", **stopped)["reason"] == "waiting for its reservation to begin"
    )
    assert row(WAITING_JOB, queue="long", **stopped)["reason"] == "Queue not started."


def test_a_backslash_of_a_folder_is_one() -> None:
    lines = dsv(
        "12.s", WAITING_JOB | {"Account_Name": r"ac\\ct", "PBS_O_WORKDIR": r"/tmp/back\\\\slash\,x"}
    )
    (found,) = fetch_rows(parsed(lines))
    assert (found["account"], found["work_dir"]) == (r"ac\ct", r"/tmp/back\slash,x")


def test_torque_s_jobs() -> None:
    found = backend_for(Dialect.TORQUE, (TORQUE / "qstat-x-t.xml").read_bytes())
    by_state: dict[str, set[str]] = {}
    for job_id, one in found.items():
        by_state.setdefault(one["state"], set()).add(job_id)
    assert by_state == {
        "running": {"1042", "1043[2]", "1043[3]"},
        "pending": {"1043[4]", "1046", "1047", "1048", "1049", "1052"},
        "held": {"1044", "1045"},
        "suspended": {"1051"},
        "completing": {"1050"},
        "completed": {"1043[1]", "1030"},
        "failed": {"1031", "1037"},
        "cancelled": {"1032", "1033"},
        "out_of_memory": {"1034"},
        "timeout": {"1035", "1036"},
    }
    training = found["1042"]
    assert (training["cpus"], training["gpus"], training["nodes"], training["memory_bytes"]) == (
        5,
        2,
        2,
        64 << 30,
    )
    assert (training["comment"], training["elapsed_seconds"]) == ("hpcdash:3f2a9c", 6450)
    assert (found["1043[2]"]["array_id"], found["1043[2]"]["_task"]) == (
        "1043[].trq01.example.org",
        2,
    )
    assert found["1045"]["dependency"] == "afterok:1042.trq01.example.org"
    assert found["1052"]["cpus"] == 16


@for_each(
    ("requested", "cpus"),
    [
        ({"ncpus": "1", "nodect": "1", "nodes": "1:ppn=4"}, 4),
        ({"ncpus": "1", "nodect": "2", "nodes": "g01:ppn=4+g02"}, 5),
        ({"ncpus": "8", "nodect": "1", "nodes": "1"}, 8),
        ({"ncpus": "1", "nodect": "1", "nodes": "1", "procs": "16"}, 16),
        ({"nodect": "2", "nodes": "2"}, 2),
    ],
)
def test_torque_s_processors_come_before_its_queue_s_default_ncpus(
    requested: Mapping[str, str], cpus: int
) -> None:
    listed = "".join(f"<{name}>{value}</{name}>" for name, value in requested.items())
    xml = (
        "<Data><Job><Job_Id>7.srv</Job_Id><Job_Name>roddy</Job_Name><Job_Owner>a@h</Job_Owner>"
        f"<job_state>Q</job_state><Resource_List>{listed}</Resource_List></Job></Data>"
    )
    (found,) = backend_for(Dialect.TORQUE, xml.encode()).values()
    assert found["cpus"] == cpus


def test_torque_s_ended_jobs_are_not_in_the_queue() -> None:
    found = backend_for(Dialect.TORQUE, (TORQUE / "qstat-x-t.xml").read_bytes(), Want.NOW)
    assert "1043[1]" not in found
    assert "1030" not in found
    assert "1042" in found


def test_a_list_the_login_node_did_not_narrow_is_narrowed_to_the_owner() -> None:
    found = backend_for(Dialect.TORQUE, (TORQUE / "qstat-x-t.xml").read_bytes(), owner=b"jon")
    assert {one["user"] for one in found.values()} == {"jon"}
    assert len(found) == 4


# -- failures


def test_an_empty_queue_is_an_empty_table() -> None:
    assert parsed().table.num_rows == 0


def test_a_job_asked_for_that_is_not_there_is_no_such_job() -> None:
    with pytest.raises(NoSuchJob) as caught:
        parse_jobs(
            answered(),
            question=question(Want.NAMED, Dialect.OPENPBS, "12"),
        )
    assert caught.value.argv == ("qstat", "-x", "-f", "12")


def test_a_server_that_is_down_is_said_to_be() -> None:
    answer = answered(
        status=255,
        stderr=b"Connection refused\nqstat: cannot connect to server pbs01 (errno=15010)\n",
    )
    with pytest.raises(ControllerDown) as caught:
        parse_jobs(answer, question=question())
    assert caught.value.argv == ("qstat", "-f")


@for_each("printed", [b"", b"Clock: now\n", b"Welcome to the cluster!\n"])
def test_an_answer_without_the_clock_is_no_answer(printed: bytes) -> None:
    with pytest.raises(UnreadableOutput):
        parse_jobs(
            CommandResult((), 0, printed, b"", 0.1),
            question=question(),
        )


def test_words_before_the_clock_are_a_login_shell_s() -> None:
    raw = b"Welcome!\nClock: %d\n" % CLOCK + dsv("1.pbs01", JOB)
    answer = CommandResult((), 0, raw, b"", 0.1)
    assert parse_jobs(answer, question=question()).table.num_rows == 1


def test_a_record_with_no_job_s_id_is_rejected_and_the_rest_stands() -> None:
    read = parsed(dsv("x$(id)", JOB), dsv("1.pbs01", JOB))
    assert (read.table["id"].to_pylist(), read.rejected) == (
        ["1.pbs01"],
        ("not a job ID: 'x$(id)'",),
    )


@for_each("text", ["", "x", "12;id", "-x", "12 13", "$(id)", "65+1", "12[a]"])
def test_what_is_no_job_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        PbsQueue(Dialect.OPENPBS).jobs(JobScope(job_ids=(text,)))


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_no_answer_breaks_the_reader(data: st.DataObject) -> None:
    raw = bytearray(
        dsv("1.pbs01", ENDED_JOB)
        + dsv("14[].pbs01", ARRAY)
        + subjob(3)
        + dsv("15.pbs01", WAITING_JOB)
    )
    for _ in range(data.draw(st.integers(0, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    want = data.draw(st.sampled_from([Want.NOW, Want.RECENT, Want.NAMED]))
    try:
        read = parse_jobs(answered(cut), question=question(want))
    except HpcdashError:
        return
    assert read.table.schema == schema.JOBS
    table_to_json_rows(read.table, read.table.column_names)


@for_each(
    ("dialect", "file"),
    [
        (Dialect.TORQUE, TORQUE / "qstat-x-t.xml"),
        (Dialect.PBS_TEXT, TORQUE / "qstat-f-t.txt"),
    ],
    ids=str,
)
def test_no_cut_breaks_the_reader_of_other_dialects(dialect: Dialect, file: Any) -> None:
    raw = file.read_bytes()
    for end in range(0, len(raw), 997):
        try:
            backend_for(dialect, raw[:end], Want.NAMED)
        except HpcdashError:
            continue


def test_a_task_that_waits_for_the_release_of_its_array_is_held() -> None:
    task = {**WAITING_JOB, "Hold_Types": "u", "substate": "20"}
    found = row(task, job_id="6[5].pbs01")
    assert (found["state"], found["native_state"], found["reason"]) == (
        "held",
        "Q",
        "held by its owner",
    )
    assert row(task, job_id="6[5].pbs01", Hold_Types="n")["state"] == "pending"


def test_a_job_that_was_sent_to_its_node_began_then() -> None:
    sent = row(stime=None, substate="41", resources_used__walltime=None)
    assert (sent["state"], sent["started_at"], sent["elapsed_seconds"]) == (
        "running",
        "2026-11-21T04:29:00Z",
        60,
    )
    assert row(stime=None, substate="42")["started_at"] is None
