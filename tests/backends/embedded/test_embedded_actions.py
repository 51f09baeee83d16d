"""The embedded queue's actions: the commands, run for real, and the outcomes read from them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.embedded.actions import read_outcomes
from hpcdash.backends.embedded.backend import EmbeddedSubmit, embedded_backend
from hpcdash.backends.submissions import Submission
from hpcdash.errors import UsageError
from tests.backends.embedded.test_embedded_tables import Answered
from tests.embedded.queue_lab import QueueLab
from tests.support.records import for_each


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueLab]:
    lab = QueueLab(tmp_path / "queue", tmp_path / "work")
    yield lab
    lab.end()


def act(queue: QueueLab, request: ActionRequest) -> tuple[Outcome, ...]:
    outcomes: list[Outcome] = []
    for command in embedded_backend(queue.program).actions.commands(request):
        done = subprocess.run(command.argv, capture_output=True, env=queue.environment, check=False)
        outcomes += command.read(Answered(command.argv, done.returncode, done.stdout, done.stderr))
    return tuple(outcomes)


@pytest.mark.system
def test_each_job_has_an_outcome_of_its_own(queue: QueueLab) -> None:
    array = queue.submit("true", "--array=1-3", "--hold")
    ended = queue.submit("true")
    queue.ended(ended)
    assert act(queue, ActionRequest(Verb.CANCEL, (f"{array}_[1-2]", ended, "99"))) == (
        Outcome(f"{array}_[1-2]", True, ""),
        Outcome(ended, False, "already finished (completed)"),
        Outcome("99", False, "no such job in this queue"),
    )
    assert [job.state for job in queue.store.find(1)] == ["cancelled", "cancelled", "pending"]


@pytest.mark.system
def test_a_throttle_is_no_task_s(queue: QueueLab) -> None:
    array = queue.submit("true", "--array=1-3%1", "--hold")
    with pytest.raises(UsageError, match="throttle: 1_2 is an array task\nUse its array: 1"):
        act(queue, ActionRequest(Verb.ALTER, (f"{array}_2",), changes={"throttle": "3"}))
    assert act(queue, ActionRequest(Verb.ALTER, (array,), changes={"throttle": "3"})) == (
        Outcome(array, True),
    )


@pytest.mark.system
def test_every_verb_does_what_it_says(queue: QueueLab) -> None:
    number = queue.submit(
        "trap 'echo got it' USR1; echo ready; while :; do sleep 0.02; done", "--hold"
    )
    changes = {"time": "+5"}
    assert not act(queue, ActionRequest(Verb.ALTER, (number,), changes=changes))[0].done
    assert act(queue, ActionRequest(Verb.ALTER, (number,), changes={"time": "5"})) == (
        Outcome(number, True),
    )
    assert queue.job(number).limit_seconds == 300
    assert act(queue, ActionRequest(Verb.RELEASE, (number,)))[0].done
    queue.wait_for_output(number, "ready")
    assert act(queue, ActionRequest(Verb.HOLD, (number,))) == (
        Outcome(number, False, "already running"),
    )
    assert act(queue, ActionRequest(Verb.SIGNAL, (number,), signal="USR1", recipient="batch"))[
        0
    ].done
    queue.wait_for_output(number, "got it")
    assert act(queue, ActionRequest(Verb.SUSPEND, (number,)))[0].done
    assert queue.job(number).state == "suspended"
    assert act(queue, ActionRequest(Verb.RESUME, (number,)))[0].done
    assert act(queue, ActionRequest(Verb.REQUEUE, (number,)))[0].done
    queue.wait(number, "running")
    assert act(queue, ActionRequest(Verb.CANCEL, (number,)))[0].done
    assert queue.ended(number).state == "cancelled"


def test_what_cannot_be_asked_is_refused_before_anything_runs(queue: QueueLab) -> None:
    backend = embedded_backend(queue.program)
    for request, words in (
        (ActionRequest(Verb.SIGNAL, ("1",), signal="USR1", recipient="3"), "no numbered steps"),
        (ActionRequest(Verb.SIGNAL, ("1",), signal="NOPE"), "'NOPE' is not a signal"),
        (
            ActionRequest(Verb.ALTER, ("1",), changes={"qos": "x"}),
            "qos: not supported for jobs in this queue",
        ),
        (ActionRequest(Verb.ALTER, ("1",), changes={"time": "soon"}), "'soon' is not a duration"),
        (
            ActionRequest(Verb.ALTER, ("1",), changes={"throttle": "x"}),
            "'x' is not a number of tasks",
        ),
        (ActionRequest(Verb.SUBMIT, ("1",)), "not a job"),
    ):
        with pytest.raises(UsageError, match=words):
            backend.actions.commands(request)


@pytest.mark.system
def test_ids_that_are_options_are_not_taken_for_them(queue: QueueLab) -> None:
    number = queue.submit("true", "--hold")
    outcomes = act(queue, ActionRequest(Verb.CANCEL, ("--help", number, "$(x)")))
    assert [one.done for one in outcomes] == [False, True, False]
    assert outcomes[0].text == "'--help' is not a job: use 17, 17_3 or 17_[3-5]"
    assert queue.job(number).state == "cancelled"


def test_many_jobs_go_into_as_many_commands_as_fit() -> None:
    ids = tuple(str(number) for number in range(4500))
    commands = embedded_backend(("q",)).actions.commands(ActionRequest(Verb.HOLD, ids))
    assert tuple(job for command in commands for job in command.job_ids) == ids
    assert [len(command.argv) for command in commands] == [2002, 2002, 502]


def test_a_command_that_fails_as_a_whole_fails_for_each_job() -> None:
    answer = Answered(
        ("q",), 1, b'{"job_id":"1","done":true,"words":""}\nnonsense\n', b"the disk is full\n"
    )
    assert read_outcomes(answer, job_ids=("1", "2")) == (
        Outcome("1", True, ""),
        Outcome("2", False, "the disk is full"),
    )


@for_each(
    ("status", "stderr", "done", "words"),
    [
        # timeout(1), KILL, TERM.
        (124, b"", None, "the queue exited with status 124"),
        (137, b"", None, "the queue exited with status 137"),
        (143, b"", None, "the queue exited with status 143"),
        (0, b"", None, "the queue exited with status 0"),
        (1, b"no such partition", False, "no such partition"),
    ],
)
def test_a_submission_that_was_cut_off_may_have_been_made(
    status: int, stderr: bytes, done: bool | None, words: str
) -> None:
    command = (
        EmbeddedSubmit(("queue",))
        .submission(Submission(b"#!/bin/sh\n", "one", mark="hpcdash:1"))
        .command
    )
    assert command.read(Answered(command.argv, status, b"", stderr)) == (
        Outcome("one", done, words),
    )
