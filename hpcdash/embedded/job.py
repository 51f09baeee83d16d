"""A job of the embedded queue: the request of its submission, and its row in the store."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hpcdash.domain.array_tasks import ArrayTasks, parse_tasks

ACTIVE = ("running", "suspended", "completing")
# Its values are those of ACTIVE.
IS_ACTIVE = "state IN (?, ?, ?)"

# Argument of a requeue after which the job waits for its release.
HOLD = "hold"


@dataclass(frozen=True, slots=True)
class JobDependency:
    """A dependency on a job (`number`, None: singleton) or its `task`; `minutes` delay `after`."""

    kind: str
    number: int | None = None
    task: int | None = None
    minutes: int = 0

    def __str__(self) -> str:
        if self.number is None:
            return self.kind
        task = "" if self.task is None else f"_{self.task}"
        delay = f"+{self.minutes}" if self.minutes else ""
        return f"{self.kind}:{self.number}{task}{delay}"


@dataclass(frozen=True, slots=True)
class JobSignal:
    """A signal `seconds` before the time limit, to the batch shell or its descendants."""

    number: int
    seconds: int
    to_batch: bool


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """Request of a submission; times are seconds or epoch seconds."""

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
    # Explicitly requested counts by sbatch's names: the job's environment has only these.
    counts: dict[str, int] = field(default_factory=dict)
    memory_per_cpu_bytes: int | None = None
    early_signal: JobSignal | None = None
    work_dir: str = ""
    # Names inherited from the submitting environment (None: all), and variables to set.
    exported: tuple[str, ...] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    held: bool = False
    comment: str = ""
    account: str = ""
    begin_at: float | None = None
    requeue: bool = True
    # Whether the script has PBS directives: the job then has PBS's variables as well.
    is_pbs: bool = False

    @property
    def array(self) -> ArrayTasks | None:
        return parse_tasks(self.tasks) if self.tasks else None

    def to_json(self) -> dict[str, Any]:
        """Return the request in the form that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> QueueRequest:
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in written.items() if name in known}
        dependencies = values.get("dependencies") or ()
        values["dependencies"] = tuple(JobDependency(**entry) for entry in dependencies)
        if values.get("early_signal"):
            values["early_signal"] = JobSignal(**values["early_signal"])
        if values.get("exported") is not None:
            values["exported"] = tuple(values["exported"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Job:
    """A row of `jobs`. Times are epoch seconds; `elapsed` is set at the end.

    `number` is the submission's, which an array's tasks share; `id` is the job's own. `attempt`
    counts starts, `restarts` counts requeues.
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
        """ID as shown: '17', or '17_3' for a task of an array."""
        return str(self.number) if self.task is None else f"{self.number}_{self.task}"


JOB_COLUMNS = ", ".join(f"jobs.{name}" for name in Job.__slots__)
