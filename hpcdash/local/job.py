"""One job of the embedded queue as its store keeps it."""

from __future__ import annotations

from dataclasses import dataclass

ACTIVE = ("running", "suspended", "completing")
# Its values are those of ACTIVE.
IS_ACTIVE = "state IN (?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Job:
    """One row of `jobs`. Times are epoch seconds; `elapsed` is set once it ended.

    `number` is the submission's and of an array the same for all tasks; `id` is the job's alone. `attempt` counts how
    often it was started, `restarts` how often somebody wanted that.
    """

    id: int
    number: int
    task: int | None
    state: str
    held: int
    ready: int
    begin_at: float | None
    cpus: int
    gpus: int
    limit_seconds: int | None
    attempt: int
    restarts: int
    gpu_ids: str
    wanted: str | None
    started_at: float | None
    started_clock: float | None
    boot: str | None
    ended_at: float | None
    elapsed: float | None
    exit_code: int | None
    exit_signal: int | None
    reason: str | None
    cpu_seconds: float | None
    peak_bytes: int | None

    @property
    def shown_id(self) -> str:
        """'17', or '17_3' for a task of an array."""
        return str(self.number) if self.task is None else f"{self.number}_{self.task}"


JOB_COLUMNS = ", ".join(f"jobs.{name}" for name in Job.__slots__)
