"""Status of a launch in a few words that are the same for all schedulers."""

from __future__ import annotations

from enum import StrEnum

from hpcdash.domain.states import JobState


class LaunchStatus(StrEnum):
    """Status of a launch for people who need only this much detail."""

    UNKNOWN = "UNKNOWN"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    TERMINATING = "TERMINATING"
    # Its job was seen, and is in no list and no history any more: its end is unknown.
    MISSING = "MISSING"
    TERMINATED = "TERMINATED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


_STATUS: dict[str, LaunchStatus] = {
    JobState.PENDING: LaunchStatus.PENDING,
    JobState.HELD: LaunchStatus.PENDING,
    JobState.REQUEUED: LaunchStatus.PENDING,
    JobState.RUNNING: LaunchStatus.RUNNING,
    JobState.SUSPENDED: LaunchStatus.RUNNING,
    JobState.COMPLETING: LaunchStatus.TERMINATING,
    JobState.COMPLETED: LaunchStatus.COMPLETED,
    JobState.FAILED: LaunchStatus.FAILED,
    JobState.TIMEOUT: LaunchStatus.FAILED,
    JobState.OUT_OF_MEMORY: LaunchStatus.FAILED,
    JobState.NODE_FAILED: LaunchStatus.FAILED,
    JobState.CANCELLED: LaunchStatus.TERMINATED,
    JobState.PREEMPTED: LaunchStatus.TERMINATED,
    JobState.GONE: LaunchStatus.MISSING,
    JobState.UNKNOWN: LaunchStatus.UNKNOWN,
}


def launch_status(state: str | None) -> LaunchStatus:
    """The status for a state of domain.states; UNKNOWN for a word that is none of them."""
    return _STATUS.get(state or "", LaunchStatus.UNKNOWN)


def is_pulling(state: str | None, containers: int, up: int | None) -> bool:
    """Whether a launch runs and not all of its `containers` are up; `up` None is unknown, and then
    it is not said.
    """
    return launch_status(state) is LaunchStatus.RUNNING and up is not None and up < containers


def format_status(state: str | None, containers: int = 0, up: int | None = None) -> str:
    """The status in lower case; `pulling: 1 of 2 containers up` until each node's container
    reported.
    """
    if is_pulling(state, containers, up):
        return (
            f"pulling: {up} of {containers} {'container' if containers == 1 else 'containers'} up"
        )
    return launch_status(state).lower()
