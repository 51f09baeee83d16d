"""One job of the embedded queue: the request of its submission, and its row in the store."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks

ACTIVE = ("running", "suspended", "completing")
# Its values are those of ACTIVE.
IS_ACTIVE = "state IN (?, ?, ?)"

# Argument of a requeue: the job then waits for its release.
HOLD = "hold"


@dataclass(frozen=True, slots=True)
class JobDependency:
    """One condition: `number` (None: singleton) and `task` (None: all of it) name a job; `minutes`
    delay an `after`.
    """

    kind: str
    number: int | None = None
    task: int | None = None
    minutes: int = 0

    def __str__(self) -> str:
        if self.number is None:
            return self.kind
        task = "" if self.task is None else f"_{self.task}"
        return f"{self.kind}:{self.number}{task}" + (f"+{self.minutes}" if self.minutes else "")


@dataclass(frozen=True, slots=True)
class JobSignal:
    """A signal some seconds before the time limit; to the batch shell alone, or to all that it
    started.
    """

    number: int
    seconds: int
    to_batch: bool


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """Request of one submission.

    Memory in bytes (None: not given), times in seconds or epoch seconds.
    """

    name: str = ""
    tasks: str = ""
    stdout: str = ""
    stderr: str = ""
    stdin: str = ""
    append: bool = False
    limit_seconds: int | None = None
    dependencies: tuple[JobDependency, ...] = ()
    any_dependency: bool = False
    processes: int = 1
    cpus: int = 1
    gpus: int = 0
    memory_bytes: int | None = None
    # Explicitly requested counts, by sbatch's name for them: the job's environment has only these.
    counts: dict[str, int] = field(default_factory=dict)
    memory_per_cpu_bytes: int | None = None
    early_signal: JobSignal | None = None
    work_dir: str = ""
    # None: all of the environment it was submitted from; else the inherited names, and those set.
    exported: tuple[str, ...] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    held: bool = False
    comment: str = ""
    account: str = ""
    begin_at: float | None = None
    requeue: bool = True
    # PBS variables are set as well where the script spoke PBS.
    is_pbs: bool = False

    @property
    def array(self) -> ArrayTasks | None:
        return parse_tasks(self.tasks) if self.tasks else None

    def to_json(self) -> dict[str, Any]:
        """Return the request in the form that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> QueueRequest:
        known = {name.name for name in fields(cls)}
        values = {name: value for name, value in written.items() if name in known}
        values["dependencies"] = tuple(
            JobDependency(**one) for one in values.get("dependencies") or ()
        )
        if values.get("early_signal"):
            values["early_signal"] = JobSignal(**values["early_signal"])
        if values.get("exported") is not None:
            values["exported"] = tuple(values["exported"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Job:
    """One row of `jobs`. Times are epoch seconds; `elapsed` is set once it ended.

    `number` is the submission's and of an array the same for all tasks; `id` is the job's alone.
    `attempt` counts its starts, `restarts` the requested ones.
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
