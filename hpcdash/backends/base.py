"""What a backend is: queries (a command, how to read its answer) and capabilities. Knows no scheduler, runs nothing."""

from __future__ import annotations

import re
import secrets
import shlex
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.errors import program_words
from hpcdash.launch.offers import AccountOffer, QosOffer

if TYPE_CHECKING:
    from hpcdash.backends.stacks import Stacks

_ALPHABET = string.ascii_letters + string.digits
# How the comment of a job begins that was submitted from here.
MARK_START = "hpcdash:"
# How an outcome names a new job.
_NEW_JOB = re.compile(r"job ([^\s;]+)")
TOKEN_START = "\x1e"
TOKEN_RANDOM_LETTERS = 10
# What a recording writes where a poll's token stood.
TOKEN_PATTERN = TOKEN_START + f"[0-9A-Za-z]{{{TOKEN_RANDOM_LETTERS}}}"
RECORDED_TOKEN = TOKEN_START + "T" * TOKEN_RANDOM_LETTERS


def fresh_token() -> str:
    """A separator no job name can forge: a control byte and 10 random letters (62¹⁰ of them), new for each poll."""
    return TOKEN_START + "".join(secrets.choice(_ALPHABET) for _ in range(TOKEN_RANDOM_LETTERS))


class Capability(StrEnum):
    """What a scheduler can do; screens ask for these, never for its name."""

    JOBS = "jobs"
    NODES = "nodes"
    QUEUES = "queues"
    HISTORY = "history"
    DETAIL = "detail"
    EXPECTED_START = "expected_start"
    LOGS = "logs"
    SCRIPT = "script"
    CANCEL = "cancel"
    HOLD = "hold"
    REQUEUE = "requeue"
    SUSPEND = "suspend"
    SIGNAL = "signal"
    ALTER = "alter"
    SUBMIT = "submit"
    # It keeps the scripts of its jobs, and gives them back.
    KEEPS_SCRIPTS = "keeps_scripts"


class Verb(StrEnum):
    """What can be done to jobs; the journal and the command line use these words."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    SUSPEND = "suspend"
    RESUME = "resume"
    SIGNAL = "signal"
    ALTER = "alter"
    SUBMIT = "submit"
    # Files that a training looks for; no scheduler knows of them.
    KILL_SWITCH = "kill-switch"
    SAVE_SWITCH = "save-switch"
    CLEAR_KILL_SWITCH = "clear-kill-switch"
    CLEAR_SAVE_SWITCH = "clear-save-switch"


# What can be changed of a job, by the names of `hpcdash alter`.
ALTERABLE = ("time", "queue", "qos", "nice", "throttle")


class Answer(Protocol):
    """What a finished command left; transports give it."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def status(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def truncated(self) -> bool: ...


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Query(Generic[T_co]):
    """A command and how to read its answer; `parse` raises an HpcdashError when the answer is none.

    `command` is what a person would have called, where `argv` is a script around it.
    """

    argv: tuple[str, ...]
    parse: Callable[[Answer], T_co]
    limit_seconds: float = 30.0
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedTable:
    """Rows in a schema of domain.schema; `rejected` lists, in words, the rows that could not be read."""

    table: pa.Table
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedOffers(Generic[T_co]):
    """What a cluster offers of one kind; `rejected` lists, in words, the rows that could not be read."""

    offers: tuple[T_co, ...]
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job: a one-row table of domain.schema.JOBS with the paths filled in, and all the scheduler said, in order."""

    job: pa.Table
    native: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found at the other end, once a connection: who we are, what the scheduler calls itself.

    `commands` maps each of the scheduler's commands to its path there, '' where it is missing. `dialect` is the
    backend's own word for which of several kinds was found; '' where there is one.
    """

    user: str
    version: str
    cluster: str = ""
    clock_epoch_seconds: float | None = None
    has_accounting: bool | None = None
    controller_answers: bool | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    dialect: str = ""


@dataclass(frozen=True, slots=True)
class JobScope:
    """Which jobs: `user` None is everyone, '' is whoever runs the command; `ended` asks for
    those that ended a short while ago as well.

    `job_ids` narrows to these jobs or arrays, ended ones included.
    """

    user: str | None = None
    ended: bool = False
    job_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """What a person wants done. `job_ids` as rows have them: 12, 12_3, 12_[3-5%1]; an array's number is all of it.

    `signal` (USR1, TERM, …) and `recipient` ('' the job's steps, 'batch' its batch shell, 'full' both, or a step's
    number) are for SIGNAL; `changes` maps names of ALTERABLE to what a person typed, for ALTER. `all_waiting` are those
    ids that mean all tasks of an array that wait, None where nobody looked.
    """

    verb: Verb
    job_ids: tuple[str, ...]
    signal: str = ""
    recipient: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    all_waiting: frozenset[str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went for one job: `done` None is unknown; `words` are the scheduler's own."""

    job_id: str
    done: bool | None
    words: str = ""

    @property
    def new_job(self) -> str:
        """The id of the job that a submission made, '' where there is none or it was not told: `7` of `job 7; …`."""
        found = _NEW_JOB.match(self.words) if self.done else None
        return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class ActionCommand:
    """A command that acts on jobs. `read` gives one outcome for each of `job_ids`, and raises nothing.

    `pause_seconds` are let go by before it runs, to spare the scheduler. `shown` is what it does in a person's words,
    where `argv` is a script that nobody would read: `stage 3 files (12K) in /home/ada/x-1`.
    """

    argv: tuple[str, ...]
    job_ids: tuple[str, ...]
    read: Callable[[Answer], tuple[Outcome, ...]]
    stdin: bytes | None = None
    limit_seconds: float = 60.0
    pause_seconds: float = 0.0
    shown: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """As a person reads it: what is shown, else the command as it is typed, whole, without its `env` settings."""
        return " ".join(self.shown) or shlex.join(program_words(self.argv))


@dataclass(frozen=True, slots=True)
class Script:
    """A batch script as it was submitted; `source` says in words where this text comes from.

    Bytes that are no UTF-8 are lone surrogates: `text.encode("utf-8", "surrogateescape")` gives back what was there.
    """

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Where a job's output is. `stderr` is None where it goes into stdout's file; `stdout` None: not known, see `note`.

    `note` says in words what is not certain about the paths, '' where the scheduler itself gave them. `host` is the
    node on whose own disk they are for now, '' where the login node has them.
    """

    stdout: str | None
    stderr: str | None
    note: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job used of what it was given; None is unknown. CPU times are sums over all its processes, in seconds."""

    cpu_seconds: float | None = None
    cpus: int | None = None
    elapsed_seconds: int | None = None
    # The largest sum over a node's tasks that was sampled.
    memory_peak_bytes: int | None = None
    memory_asked_bytes: int | None = None
    gpus: int | None = None
    gpu_percent: float | None = None
    gpu_memory_peak_bytes: int | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None
    # What is not certain about these, in words.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Handover:
    """A script that would be handed in, for the first time or once more; of an array perhaps some tasks.

    `notes` say in words what is left out, guessed or not known. Where the answer is lost the new job is found by `mark`
    in its comment; `mark` is '' where it keeps a comment of its own, and then by `job_name` ('': not known).
    """

    command: ActionCommand
    notes: tuple[str, ...] = ()
    mark: str = ""
    job_name: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A batch script to hand in. `name` is its file's, for a script that names no job.

    `arguments` are the script's own, `options` the scheduler's in its words; `after` are jobs whose end is waited for,
    however they end. `mark` is found again in the queue where the answer was lost.
    """

    script: bytes
    name: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    array: str = ""
    after: tuple[str, ...] = ()
    held: bool = False
    mark: str = ""
    # Where the script is on the login node already, '' where it is to be handed over.
    file: str = ""
    # The account it is submitted as through sudo, '' for one's own; the submit command's own path there, which sudo
    # wants, '' where the PATH finds it.
    run_as: str = ""
    program: str = ""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a script would start were it submitted now. `starts_at_epoch` None: not told.

    `node_list` is where, '' not told; `refusal` is why it would not be taken at all, in the scheduler's own words, and
    `hint` the same in plain ones. `is_known` is false where the scheduler cannot be asked: `hint` says so.
    """

    is_known: bool = True
    starts_at_epoch: float | None = None
    cpus: int | None = None
    node_list: str = ""
    queue: str = ""
    refusal: str = ""
    hint: str = ""


class Backend(Protocol):
    """A scheduler. All methods build or read; nothing runs here."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[Capability]: ...
    @property
    def directives(self) -> str:
        """Whose directives generated scripts have: "slurm" (#SBATCH), "pbs" (#PBS, select), '' where none can be."""
        ...

    @property
    def alterable(self) -> tuple[str, ...]:
        """What of ALTERABLE can be changed here."""
        ...

    @property
    def has_whole_ids(self) -> bool:
        """Whether an id that a person writes is whole: 12 is no other scheduler's word for 12[].server."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether its questions can be asked before its probe was answered."""
        ...

    def settled(self, probe: Probe) -> Backend:
        """The backend for what the probe found: itself, where there is one kind."""
        ...

    def probe_query(self) -> Query[Probe]:
        """Whether this scheduler is there at all; parse raises CommandMissing where it is not."""
        ...

    def jobs_query(self, scope: JobScope) -> Query[ParsedTable]: ...
    def nodes_query(self) -> Query[ParsedTable]: ...
    def queues_query(self) -> Query[ParsedTable]: ...

    def history_query(self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()) -> Query[ParsedTable]:
        """Jobs that ended within the last `since_seconds`, of a user as in JobScope; or `job_ids`, ended or not."""
        ...

    def native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        """Everything the scheduler says of a job it still holds; parse raises NoSuchJob."""
        ...

    def history_native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        """Everything the accounting database says of a job; parse raises NoSuchJob."""
        ...

    def job_detail(self, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
        """Join a job's row with its native answer: fills the paths."""
        ...

    def reason_hint(self, state: str, reason: str | None) -> str:
        """In plain words why a job waits or how it ended, or '' where there is nothing to add."""
        ...

    def log_files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        """Where a job writes; `script` is asked for only where the detail does not say it (`needs_script_for_logs`)."""
        ...

    def needs_script_for_logs(self, detail: JobDetail) -> bool:
        """Whether only the batch script's own directives can tell the paths."""
        ...

    def script_query(self, job_id: str) -> Query[Script] | None:
        """The batch script of a job the scheduler still holds; parse raises NoSuchJob or SchedulerRefused.

        None where it gives none back (no KEEPS_SCRIPTS).
        """
        ...

    def history_script_query(self, job_id: str) -> Query[Script] | None:
        """The batch script the accounting database keeps; parse raises NoSuchJob, or AccountingUnavailable where it
        keeps none. None as above."""
        ...

    def submitted_file(self, detail: JobDetail) -> str | None:
        """The file on the login node that a job's script was read from when it was submitted, where that is told."""
        ...

    def explain_directive(self, line: str) -> str:
        """What one #SBATCH (#PBS …) line of a script asks for, in a few words; '' for any other line."""
        ...

    def usage_query(self, row: Mapping[str, Any]) -> Query[Usage] | None:
        """What a job of domain.schema.JOBS uses (running) or used (ended); None for one that has not started."""
        ...

    def stacks_query(self, row: Mapping[str, Any]) -> Query[Stacks] | None:
        """Where the Python processes of a running job of domain.schema.JOBS stand, on each of its nodes.

        None where the scheduler has no way onto them.
        """
        ...

    def priority_query(self, job_id: str) -> Query[Mapping[str, str]] | None:
        """What a waiting job's priority is made of: factor → value, in words a person reads; {} where not told.

        None, here and below, where the scheduler has no such thing.
        """
        ...

    def qos_query(self, qos: str) -> Query[Mapping[str, str]] | None:
        """What a QoS allows and who may take its jobs' places: preemption, grace time, limits; {} where not told."""
        ...

    def queue_rules_query(self, queue: str) -> Query[Mapping[str, str]] | None:
        """What becomes of a queue's jobs that make way for others; {} where none has to, or it is not told."""
        ...

    def preemption_query(self, queue: str) -> Query[Mapping[str, str]] | None:
        """Which queues' jobs take the place of a queue's, and how its own make way, in the words of qos_query."""
        ...

    def action_commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        """As few commands as the scheduler allows; raises UsageError for what cannot be asked (a signal or time that is
        none, a change there is no such thing as), naming it."""
        ...

    def resubmission(
        self, detail: JobDetail, past: Mapping[str, str], script: Script, tasks: ArrayTasks | None, mark: str
    ) -> Handover:
        """Submit a job's script with its options again, of an array only `tasks` (None: all it had), as they were.

        `past` is what history_native_query says, {} where that is not to be had. The command's one outcome is for the
        job's id, or `12_[3,7-9]` with tasks; its words name the new job: `job 93`. Raises UsageError for what cannot
        be submitted so.
        """
        ...

    def submission(self, wanted: Submission) -> Handover:
        """Hand a script in, from the folder the command runs in. The command's one outcome is for `wanted.name`; its
        words name the new job: `job 93`, and may go on with what else is to be said of it. Raises UsageError."""
        ...

    def associations_query(self, user: str, cluster: str = "") -> Query[ParsedOffers[AccountOffer]] | None:
        """The accounts that `user` may charge on `cluster` ('': any), with their QoS. None, here and below, where the
        scheduler has no such thing; parse raises AccountingUnavailable."""
        ...

    def qos_offers_query(self) -> Query[ParsedOffers[QosOffer]] | None:
        """All QoS with their limits; parse raises AccountingUnavailable."""
        ...

    def start_estimate_query(self, wanted: Submission) -> Query[StartEstimate] | None:
        """When a script would start: nothing is submitted. `wanted.file`, or the command's stdin, gives the script.

        A refusal is an answer; parse raises for what is none (controller down). Raises UsageError for what cannot be
        asked.
        """
        ...
