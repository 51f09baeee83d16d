"""Commands that act on jobs, and what Slurm's answers to them mean for each job; the bytes are
Slurm 22.05.8's.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.slurm.backend import BACKEND
from hpcdash.errors import UsageError, without_env
from hpcdash.transport.base import CommandResult
from hpcdash.transport.shell import remote_command
from tests.support.records import for_each

LOADED = (
    b"scancel: select/cons_tres: common_init: select/cons_tres loaded\n"
    b"scancel: select/cray_aries: init: Cray/Aries node selection plugin loaded\n"
)


def commands(
    verb: str,
    *job_ids: str,
    signal: str = "",
    recipient: str = "",
    changes: Mapping[str, str] | None = None,
) -> tuple[ActionCommand, ...]:
    return BACKEND.actions.commands(
        ActionRequest(Verb(verb), job_ids, signal, recipient, changes or {})
    )


def lines(made: tuple[ActionCommand, ...]) -> list[str]:
    return [" ".join(without_env(command.argv)) for command in made]


def answered(
    command: ActionCommand, stderr: bytes, status: int
) -> dict[str, tuple[bool | None, str]]:
    outcomes = command.read(CommandResult(command.argv, status, b"", stderr, 0.01))
    assert tuple(outcome.job_id for outcome in outcomes) == command.job_ids
    return {outcome.job_id: (outcome.done, outcome.text) for outcome in outcomes}


# -- what is asked


def test_jobs_are_cancelled_by_one_command_without_throttles() -> None:
    (command,) = commands("cancel", "41", "88_[3-9%1]", "90_2", "65+1", "41")
    assert lines((command,)) == ["scancel -v 41 88_[3-9] 90_2 65+1"]
    assert command.job_ids == ("41", "88_[3-9%1]", "90_2", "65+1")


def test_a_task_of_a_pool_is_put_back_while_it_runs_and_begins_at_once() -> None:
    suspended = BACKEND.actions.commands(ActionRequest(Verb.REQUEUE, ("41",), hold=True))
    assert lines(suspended) == ["scontrol requeuehold incomplete 41"]
    # Slurm lets a job that was requeued begin after two minutes.
    started = BACKEND.actions.commands(ActionRequest(Verb.RELEASE, ("41",), at_once=True))
    assert lines(started) == ["scontrol update jobid=41 starttime=now", "scontrol release 41"]


def test_a_persons_own_scancel_settings_are_left_out() -> None:
    (command,) = commands("cancel", "41")
    assert ("-u", "SCANCEL_INTERACTIVE") in zip(command.argv, command.argv[1:], strict=False)


def test_many_tasks_are_cancelled_as_one_list_and_few_one_by_one() -> None:
    assert lines(commands("cancel", "7_1", "7_2")) == ["scancel -v 7_1 7_2"]
    many = [f"7_{task}" for task in range(60)]
    (command,) = commands("cancel", *many, "8")
    assert lines((command,)) == ["scancel -v 7_[0-59] 8"]
    assert command.job_ids == (*many, "8")


def test_a_task_of_an_array_that_is_cancelled_whole_is_not_cancelled_twice() -> None:
    (command,) = commands("cancel", "7_1", "7", "7_[3-5]")
    assert lines((command,)) == ["scancel -v 7"]
    assert command.job_ids == ("7_1", "7", "7_[3-5]")


@for_each(
    ("verb", "line"),
    [
        ("hold", "scontrol hold 41,88_[3-9],90_[2-3]"),
        ("release", "scontrol release 41,88_[3-9],90_[2-3]"),
        ("requeue", "scontrol requeue 41,88_[3-9],90_[2-3]"),
        ("suspend", "scontrol suspend 41,88_[3-9],90_[2-3]"),
        ("resume", "scontrol resume 41,88_[3-9],90_[2-3]"),
    ],
)
def test_scontrol_takes_all_jobs_in_one_list(verb: str, line: str) -> None:
    assert lines(commands(verb, "41", "88_[3-9%1]", "90_3", "90_2")) == [line]


def test_tasks_in_steps_are_written_out_as_slurm_reads_no_steps() -> None:
    assert lines(commands("hold", "5_[0-12:4]")) == ["scontrol hold 5_[0,4,8,12]"]
    assert lines(commands("hold", "5_[5,3,4]")) == ["scontrol hold 5_[3-5]"]


@for_each(
    "job_ids",
    [
        [str(number) for number in range(100_000, 105_000)],
        [f"{number}_[0-3%1]" for number in range(100_000, 105_000)],
        ["7_[0-200000:2]"],
        [f"7_{task}" for task in range(0, 60_000, 2)],
    ],
    ids=["jobs", "arrays", "steps", "tasks"],
)
@for_each("verb", ["cancel", "hold"])
def test_however_many_jobs_each_command_can_be_sent_and_no_job_is_left_out(
    verb: str, job_ids: list[str]
) -> None:
    made = commands(verb, *job_ids)
    for command in made:
        remote_command(command.argv, limit_seconds=command.limit_seconds)
    assert {job_id for command in made for job_id in command.job_ids} == set(job_ids)
    assert len(made) <= 20


def test_signals_go_to_running_jobs_only_and_are_given_up_before_they_are_sent_again() -> None:
    made = commands("signal", "41", "88_3", "42", "88_[4-5]", signal="sigusr1", recipient="batch")
    assert lines(made) == [
        "timeout 4 scancel -v --state=RUNNING --signal=USR1 --batch 41 88_3 42 88_[4-5]",
    ]
    assert lines(commands("signal", "41", signal="10", recipient="full")) == [
        "timeout 4 scancel -v --state=RUNNING --signal=10 --full 41"
    ]


def test_a_step_of_each_task_is_signalled_on_its_own() -> None:
    made = commands("signal", "41", "42", "88_3", "88_4", signal="TERM", recipient="0")
    assert [line.partition("--signal=TERM ")[2] for line in lines(made)] == [
        "41.0 42.0",
        "88_3.0",
        "88_4.0",
    ]


@for_each("time", ["90", "1:30:00", "90m", "1.5h"])
def test_a_time_limit_is_read_as_people_write_it(time: str) -> None:
    assert lines(commands("alter", "41", "42", changes={"time": time})) == [
        "scontrol update jobid=41,42 timelimit=01:30:00"
    ]


def test_a_limit_is_changed_by_an_amount_job_by_job() -> None:
    assert lines(commands("alter", "41", "88_[3-4]", changes={"time": "-1h"})) == [
        "scontrol update jobid=41 timelimit=-01:00:00",
        "scontrol update jobid=88_3 timelimit=-01:00:00",
        "scontrol update jobid=88_4 timelimit=-01:00:00",
    ]


def test_a_throttle_is_changed_of_the_array_and_the_rest_of_the_tasks() -> None:
    changes = {
        "queue": "main,debug",
        "qos": "low",
        "nice": "-5",
        "comment": "a+b:/c",
        "nodes": "n1,n2",
        "throttle": "3",
    }
    assert lines(commands("alter", "88_[3-9%1]", changes=changes)) == [
        "scontrol update jobid=88_[3-9] partition=main,debug qos=low nice=-5 comment=a+b:/c "
        "reqnodelist=n1,n2",
        "scontrol update jobid=88 arraytaskthrottle=3",
    ]


@pytest.mark.parametrize("task", ["88_5", "88_[5]"])
def test_a_throttle_is_no_task_s(task: str) -> None:
    with pytest.raises(UsageError, match=r"throttle: 88_.* is an array task") as refused:
        commands("alter", "41_[1-4]", task, changes={"throttle": "3"})
    assert refused.value.next_step == "Use its array: 88"


@for_each(
    ("changes", "named"),
    [
        ({"time": "soon"}, "time"),
        ({"time": "0"}, "time"),
        ({"time": "+"}, "time"),
        ({"time": "+unlimited"}, "time"),
        ({"queue": "a b"}, "queue"),
        ({"queue": "a,,b"}, "queue"),
        ({"qos": "low userid=0"}, "qos"),
        ({"qos": "low\n"}, ""),
        ({"nice": "1.5"}, "nice"),
        ({"nodes": "n1 userid=0"}, "nodes"),
        ({"throttle": "-1"}, "throttle"),
        ({"priority": "9"}, "priority"),
        ({}, "nothing"),
    ],
)
def test_a_change_that_cannot_be_read_is_refused_by_name(
    changes: dict[str, str], named: str
) -> None:
    if changes == {"qos": "low\n"}:
        assert lines(commands("alter", "41", changes=changes)) == [
            "scontrol update jobid=41 qos=low"
        ]
        return
    with pytest.raises(UsageError, match=named):
        commands("alter", "41", changes=changes)


@for_each("signal", ["", "FOO", "0", "65", "999", "USR1 --full", "²"])
def test_what_is_no_signal_is_refused(signal: str) -> None:
    with pytest.raises(UsageError, match=r"not a signal|nobody to signal"):
        commands("signal", "41", signal=signal)


@for_each("job_id", ["", "x", "41;rm", "41_", "-v", "41_[3", "41.0", "41 42"])
@for_each("verb", ["cancel", "hold"])
def test_what_is_no_job_is_refused_with_its_place(verb: str, job_id: str) -> None:
    with pytest.raises(UsageError, match=r"not a job ID[^\n]*\n.*\n *\^"):
        commands(verb, "41", job_id)


# -- what is answered


def test_scancel_names_the_jobs_it_could_not_cancel() -> None:
    (command,) = commands("cancel", "5_99", "4_[5-7]", "3", "999999", "6", "4_1")
    stderr = (
        b"scancel: Terminating job 5_99\nscancel: Terminating job 4_[5-7]\nscancel: Terminating "
        b"job 3\n"
        b"scancel: Terminating job 999999\nscancel: Terminating job 6\nscancel: Terminating job "
        b"4_1\n"
        b"scancel: error: Kill job error on job id 5_99: Invalid job id specified\n"
        b"scancel: error: Kill job error on job id 3: Access/permission denied\n"
        b"scancel: error: Kill job error on job id 6: Job/step already completing or completed\n"
        b"scancel: error: Kill job error on job id 999999: Invalid job id specified\n"
    )
    assert answered(command, stderr, 210) == {
        "5_99": (False, "Invalid job id specified"),
        "4_[5-7]": (True, ""),
        "3": (False, "Access/permission denied"),
        "999999": (False, "Invalid job id specified"),
        "6": (False, "Job/step already completing or completed"),
        "4_1": (True, ""),
    }


def test_scancel_ends_well_for_a_job_nobody_knows_and_is_not_believed() -> None:
    (command,) = commands("cancel", "999999")
    stderr = (
        b"scancel: Terminating job 999999\nscancel: error: Kill job error on job id 999999: "
        b"Invalid job id specified\n"
    )
    assert answered(command, stderr, 0) == {"999999": (False, "Invalid job id specified")}


def test_of_a_list_of_tasks_with_one_that_ended_the_others_may_be_cancelled() -> None:
    (command,) = commands("cancel", "4_[5-7,9%2]")
    stderr = (
        b"scancel: Terminating job 4_[5-7,9]\n"
        b"scancel: error: Kill job error on job id 4_[5-7,9]: Invalid job id specified\n"
    )
    done, words = answered(command, stderr, 0)["4_[5-7,9%2]"]
    assert done is None
    assert words.startswith("Invalid job id specified")


@pytest.mark.parametrize(
    ("words", "status", "done"),
    [
        (b"Unable to contact slurm controller (connect failure)", 8, False),
        (b"Socket timed out on send/recv operation", 140, None),
    ],
)
def test_a_cancel_that_may_have_arrived_is_unknown(
    words: bytes, status: int, done: bool | None
) -> None:
    (command,) = commands("cancel", "2", "3")
    stderr = (
        b"scancel: Terminating job 3\nscancel: Terminating job 2\n"
        b"scancel: error: Kill job error on job id 2: " + words + b"\n"
        b"scancel: error: Kill job error on job id 3: " + words + b"\n"
    )
    assert answered(command, stderr, status) == dict.fromkeys(("2", "3"), (done, words.decode()))


def test_a_missing_command_did_nothing() -> None:
    for verb, name in (("cancel", "scancel"), ("hold", "scontrol")):
        (command,) = commands(verb, "41")
        stderr = f"env: '{name}': No such file or directory\n".encode()
        assert answered(command, stderr, 127) == {"41": (False, f"{name}: command not found")}


# Slurm 26.05 leaves out the space.
@for_each("summary", [b"slurm_suspend error: No error\n", b"slurm_suspend error:Invalid user id\n"])
def test_scontrol_names_the_jobs_it_refused_and_does_the_others(summary: bytes) -> None:
    (command,) = commands("hold", "1", "3", "999999", "2")
    stderr = b"Invalid user id for job 3\nInvalid job id specified for job 999999\n" + summary
    assert answered(command, stderr, 1) == {
        "1": (True, ""),
        "3": (False, "Invalid user id"),
        "999999": (False, "Invalid job id specified"),
        "2": (True, ""),
    }


# Slurm 26.05 puts the tasks in brackets.
@for_each("tasks", [(b"10_0", b"10_1-3,6-9", b"12_5"), (b"10_[0]", b"10_[1-3,6-9]", b"12_[5]")])
def test_scontrol_says_of_an_array_which_tasks_it_refused(
    tasks: tuple[bytes, bytes, bytes],
) -> None:
    (command,) = commands("requeue", "10_[0-3]", "11", "12_5", "12_6")
    stderr = (
        b"%b: No error\n%b: Job is pending execution\nJob is pending execution for job 11\n"
        b"%b: Job is pending execution\n" % tasks
    )
    assert answered(command, stderr, 1) == {
        "10_[0-3]": (False, "10_[1-3,6-9]: Job is pending execution (done: 10_0)"),
        "11": (False, "Job is pending execution"),
        "12_5": (False, "Job is pending execution"),
        "12_6": (True, ""),
    }


def test_a_requeue_that_slurm_refuses_without_a_reason_says_why() -> None:
    (command,) = commands("requeue", "1", "12_5", "3")
    stderr = (
        b"Requested operation is presently disabled for job 1\n"
        b"12_5: Requested operation is presently disabled\nAccess/permission denied for job 3\n"
    )
    said = answered(command, stderr, 1)
    assert said["1"] == (
        False,
        "Requested operation is presently disabled: submitted with --no-requeue (`scontrol "
        "update JobId=1 Requeue=1` allows it)",
    )
    assert "JobId=12 Requeue=1" in said["12_5"][1]
    assert said["3"] == (False, "Access/permission denied")


def test_of_tasks_in_a_list_that_slurm_cut_short_it_is_not_guessed() -> None:
    tasks = [f"7_{task}" for task in range(0, 60, 2)]
    (command,) = commands("hold", *tasks)
    refused = b"7_0,2,4,6,8,10,12,14,16,18,20,...: Invalid job id specified\n"
    assert answered(command, refused, 1) == dict.fromkeys(
        tasks, (False, "Invalid job id specified")
    )
    outcomes = answered(command, refused + b"7_32,34,36,38,40,42,44,46,48,50,52,...: No error\n", 1)
    assert outcomes["7_4"] == (False, "Invalid job id specified")
    assert outcomes["7_34"] == (True, "")
    assert outcomes["7_24"] == (None, "Invalid job id specified or No error")


def test_a_whole_array_of_somebody_else_is_refused() -> None:
    (command,) = commands("hold", "12")
    assert answered(command, b"12_0-3: Invalid user id\n", 1) == {
        "12": (False, "12_[0-3]: Invalid user id")
    }


def test_a_controller_that_does_not_answer_scontrol_leaves_it_unknown() -> None:
    (command,) = commands("hold", "2", "25_3")
    stderr = (
        b"Unexpected message received for job 2\nUnexpected message received for job 25_3\n"
        b"slurm_suspend error: Unexpected message received\n"
    )
    assert answered(command, stderr, 1) == dict.fromkeys(
        ("2", "25_3"), (None, "Unexpected message received")
    )


@for_each(
    ("stderr", "words"),
    [
        (
            b"scontrol: error: TimeLimit decrement larger than current time limit (500 > 45)\n",
            "TimeLimit decrement larger than current time limit (500 > 45)",
        ),
        (
            b"scontrol: error: TimeLimit increment/decrement not supported for job arrays\n",
            "TimeLimit increment/decrement not supported for job arrays",
        ),
        (
            b"scontrol: error: Could not load state information for job 41: Invalid job id "
            b"specified\n",
            "Invalid job id specified",
        ),
        (b"Access/permission denied for job 41\n", "Access/permission denied"),
    ],
)
def test_an_alteration_is_refused_in_slurms_words(stderr: bytes, words: str) -> None:
    (command,) = commands("alter", "41", changes={"time": "-500"})
    assert answered(command, stderr, 1) == {"41": (False, words)}


def test_a_signal_went_to_the_jobs_that_run() -> None:
    (command,) = commands("signal", "29", "3", "11", "999999", signal="USR1")
    stderr = LOADED + (
        b"scancel: error: Kill job error on job id 999999: Invalid job id specified\n"
        b"scancel: Signal 10 to job 29\nscancel: Signal 10 to job 3\n"
        b"scancel: error: Kill job error on job id 3: Access/permission denied\n"
    )
    assert answered(command, stderr, 210) == {
        "29": (True, ""),
        "3": (False, "Access/permission denied"),
        "11": (False, "not sent: the job is not running"),
        "999999": (False, "Invalid job id specified"),
    }


def test_a_task_of_an_array_of_which_others_wait_got_its_signal() -> None:
    (command,) = commands("signal", "30_0", "30_3", "41", signal="USR1", recipient="batch")
    stderr = LOADED + (
        b"scancel: Signal 10 to batch job 30_0\nscancel: Signal 10 to batch job 41\n"
        b"scancel: Job is in transitional state, retrying\n"
    )
    outcomes = answered(command, stderr, 124)
    assert outcomes["30_0"][0] is True
    assert outcomes["30_3"] == (False, "not sent: the job is not running")
    assert outcomes["41"] == (True, "")


def test_a_job_in_transition_may_not_have_got_its_signal() -> None:
    (command,) = commands("signal", "41", "42_0", signal="CONT")
    transition = b"scancel: Job is in transitional state, retrying\n"
    stderr = (
        LOADED + b"scancel: Signal 18 to job 41\nscancel: Signal 18 to job 42_0\n" + transition * 2
    )
    assert answered(command, stderr, 124) == dict.fromkeys(
        ("41", "42_0"), (None, "Job is in transitional state")
    )


def test_a_step_of_a_task_is_answered_for_under_another_number() -> None:
    (command,) = commands("signal", "30_1", signal="USR1", recipient="0")
    stderr = LOADED + (
        b"scancel: Signal 10 to step 32.0\nscancel: route/default: init: route default plugin "
        b"loaded\n"
    )
    assert answered(command, stderr, 0) == {"30_1": (True, "")}


def test_a_signal_before_which_the_controller_did_not_answer_was_not_sent() -> None:
    (command,) = commands("signal", "41", signal="USR1")
    assert answered(command, b"", 124)["41"][0] is False


@given(st.binary(max_size=300), st.integers(0, 255), st.sampled_from(["cancel", "hold", "signal"]))
def test_any_answer_gives_each_job_one_outcome(stderr: bytes, status: int, verb: str) -> None:
    for command in commands(verb, "41", "88_[3-9%1]", "88_2", "65+1", signal="USR1"):
        answered(command, stderr, status)
        answered(
            command, stderr + b" for job 88_[3\n41_9: x\nscancel: Signal 9 to job 88_\n", status
        )
