"""Events of a run: its start, end and completion, and the scheduler's reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    from hpcdash.job.context import JobContext


class RunStatus(str, Enum):
    """Outcome of a function; a member is equal to its text."""

    SUCCESS = "success"
    FAILURE = "failure"

    __str__ = str.__str__


class EmittedBy(str, Enum):
    """Source of a completion: the runner on the node, or the client by the scheduler's report."""

    RUNNER = "runner"
    CLIENT = "client"

    __str__ = str.__str__


@dataclass(frozen=True)
class Launch:
    """Values of the submission: function, the job's folder, logs, and the submitter's own ID."""

    module: str = ""
    function: str = ""
    job_dir: str | None = None
    stdout_path: str | None = None
    stderr_path: str | None = None
    pre_submission_id: str | None = None
    array_index: int | None = None


@dataclass(frozen=True)
class RunBegin:
    """Start of a run, right before the function is called.

    `environment` has the scheduler's variables, without secrets. Times are in epoch seconds.
    """

    launch: Launch
    job_context: JobContext
    began_at: float
    hostname: str
    pid: int
    python_executable: str
    python_version: str
    working_dir: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Exception raised by a function, or before its call."""

    type: str
    message: str
    traceback: str


class _MayFail:
    """Parts of a failure as attributes, which are None after a success."""

    failure: Failure | None

    @property
    def error_type(self) -> str | None:
        return self.failure.type if self.failure else None

    @property
    def error_message(self) -> str | None:
        return self.failure.message if self.failure else None

    @property
    def traceback(self) -> str | None:
        return self.failure.traceback if self.failure else None


@dataclass(frozen=True)
class RunEnd(_MayFail):
    """End of a run, after the function returned or raised and its result was written."""

    launch: Launch
    job_context: JobContext
    status: RunStatus
    began_at: float
    ended_at: float
    result: object = None
    result_path: str | None = None
    failure: Failure | None = None

    @property
    def duration_seconds(self) -> float:
        return self.ended_at - self.began_at


@dataclass(frozen=True)
class Completed(_MayFail):
    """Completion: from the runner at once, from the client when the scheduler reports the end.

    From the client, `job_context` and `failure` are None, and `status` is None if the outcome is
    unknown. From the runner, `scheduler_state` and `exit_status` are None.
    """

    launch: Launch
    emitted_by: EmittedBy
    status: RunStatus | None
    ended_at: float
    job_id: str | None = None
    job_context: JobContext | None = None
    began_at: float | None = None
    result_path: str | None = None
    failure: Failure | None = None
    scheduler_state: str | None = None
    exit_status: int | None = None


@dataclass(frozen=True)
class JobStatus:
    """Scheduler's state of a job at a time, for the client's callbacks.

    `is_ended` is set only if the scheduler or its history reports the end: a job that vanished has
    not ended. `is_success` is None if it is unknown.
    """

    job_id: str
    state: str
    seen_at: float
    is_ended: bool = False
    is_success: bool | None = None
    exit_status: int | None = None
    reason: str | None = None


# Names in other libraries.
RunBeginContext = RunBegin
RunEndContext = RunEnd
CompletedContext = Completed
JobStatusUpdatedContext = JobStatus
