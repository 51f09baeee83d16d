"""Status of a launch, the same for all schedulers."""

from __future__ import annotations

from enum import StrEnum

from hpcdash.domain.states import JobState
from hpcdash.domain.text import counted


class LaunchStatus(StrEnum):
    """Status of a launch."""

    UNKNOWN = "UNKNOWN"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    TERMINATING = "TERMINATING"
    # The job left the queue and is not in the history: its end is unknown.
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
    """Return the status of a state of domain.states; UNKNOWN for any other text."""
    return _STATUS.get(state or "", LaunchStatus.UNKNOWN)


def is_pulling(state: str | None, containers: int, up: int | None) -> bool:
    """Whether a launch is running and not all of its `containers` are up; False if `up` is None."""
    return launch_status(state) is LaunchStatus.RUNNING and up is not None and up < containers


def format_status(state: str | None, containers: int = 0, up: int | None = None) -> str:
    """Format the status: `running`, or `pulling: 1 of 2 containers up`."""
    if is_pulling(state, containers, up):
        return f"pulling: {up} of {counted(containers, 'container')} up"
    return launch_status(state).lower()
