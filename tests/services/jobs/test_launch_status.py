"""A launch has one of eight statuses, and pulls until every node's container is up."""

from __future__ import annotations

from hpcdash.domain.states import ACTIVE, ENDED, ENDED_BADLY, WAITING, JobState
from hpcdash.services.jobs.launch_status import (
    LaunchStatus,
    format_status,
    is_pulling,
    launch_status,
)
from tests.support.records import for_each


def test_every_state_has_its_status() -> None:
    assert {launch_status(state) for state in WAITING} == {LaunchStatus.PENDING}
    assert {launch_status(state) for state in ACTIVE} == {
        LaunchStatus.RUNNING,
        LaunchStatus.TERMINATING,
    }
    assert {launch_status(state) for state in ENDED - ENDED_BADLY} == {LaunchStatus.COMPLETED}
    assert {launch_status(state) for state in ENDED_BADLY} == {
        LaunchStatus.FAILED,
        LaunchStatus.TERMINATED,
        LaunchStatus.MISSING,
    }


def test_a_job_that_vanished_is_missing_and_not_completed() -> None:
    assert launch_status(JobState.GONE) is LaunchStatus.MISSING


@for_each("state", [None, "", "SPECIAL_EXIT", JobState.UNKNOWN])
def test_a_state_that_nobody_knows_is_unknown(state: str | None) -> None:
    assert launch_status(state) is LaunchStatus.UNKNOWN


@for_each(
    ("state", "containers", "up", "words"),
    [
        (JobState.RUNNING, 2, 1, "pulling: 1 of 2 containers up"),
        (JobState.RUNNING, 1, 0, "pulling: 0 of 1 container up"),
        (JobState.RUNNING, 2, 2, "running"),
        (JobState.RUNNING, 2, None, "running"),
        (JobState.RUNNING, 0, 0, "running"),
        (JobState.PENDING, 2, 0, "pending"),
        (JobState.FAILED, 2, 1, "failed"),
    ],
)
def test_a_launch_pulls_while_it_runs_and_not_all_containers_are_up(
    state: JobState, containers: int, up: int | None, words: str
) -> None:
    assert format_status(state, containers, up) == words
    assert is_pulling(state, containers, up) == words.startswith("pulling")
