"""What a backend is: what a scheduler can do and be asked, and who answers there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.job_detail import JobDetail, LogFiles, Script, Usage
from hpcdash.backends.queries import JobScope, ParsedOffers, ParsedTable, Query
from hpcdash.backends.submissions import Handover, StartEstimate, Submission
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.offers import AccountOffer, QosOffer, QueueLimits

if TYPE_CHECKING:
    from hpcdash.backends.script.body import BatchScript, Place
    from hpcdash.backends.script.cron import CronJob, CronParts
    from hpcdash.backends.script.environment import JobEnvironment
    from hpcdash.backends.stacks import Stacks
    from hpcdash.domain.demand import Demand, Finding
    from hpcdash.domain.offers import CpuShare, Offers
    from hpcdash.domain.request import Request


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
    # A job can write its logs where they belong while it runs.
    LIVE_LOGS = "live_logs"


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found at the other end, once a connection: who we are, what the scheduler calls itself.

    `is_scheduling` False: the controller answers, and starts no job. `commands` maps each of the scheduler's commands
    to its path there, '' where it is missing. `dialect` is the backend's own word for which of several kinds was
    found; '' where there is one.
    """

    user: str
    version: str
    cluster: str = ""
    clock_epoch_seconds: float | None = None
    has_accounting: bool | None = None
    controller_answers: bool | None = None
    is_scheduling: bool | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    dialect: str = ""


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Files of a machine that may name a scheduler's server: by the first group of `pattern`.

    `included` finds names of more files, beside the one that names them.
    """

    files: tuple[str, ...]
    pattern: re.Pattern[str]
    included: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class LocalConfiguration:
    """How a machine tells the commands of a scheduler which server they are of.

    One of `server_variables` names it, or one of `files`; `file_variable` names a file in place of the first of them,
    and of all where `is_file_alone`. `command` without any of that is a package that was installed, and no cluster:
    `unconfigured` says so.
    """

    server_variables: tuple[str, ...]
    file_variable: str
    files: tuple[ServerFiles, ...]
    command: str
    unconfigured: str
    is_file_alone: bool = False


class ScriptWriter(Protocol):
    """How batch scripts are written for a scheduler: a module."""

    @property
    def ENVIRONMENT(self) -> JobEnvironment: ...

    def batch_script(
        self,
        request: Request,
        place: Place,
        *,
        queue_has_gpus: bool = True,
        has_live_logs: bool = True,
        cpu_share: CpuShare | None = None,
    ) -> BatchScript:
        """The script of a request. Raises UsageError, naming the field, for what cannot be asked of this scheduler.

        `has_live_logs`: the scheduler can write logs where they belong while the job runs. `cpu_share` is what is asked
        for beside GPUs where the request does not say, and the site's scheduler does not either.
        """
        ...


class ScriptReader(Protocol):
    """What a batch script asks of a scheduler, and what is wrong with it: a module."""

    def lint_script(self, script: bytes, offers: Offers, over: Sequence[str] = ()) -> tuple[Finding, ...]:
        """What is wrong with a script, with options `over` its own; see hpcdash.backends.script.lint.lint."""
        ...

    def script_demand(self, script: bytes, over: Sequence[str] = ()) -> Demand:
        """What a script asks for, with options `over` its own."""
        ...

    def queue_and_time_options(self, queue: str, limit_seconds: int | None) -> tuple[str, ...]:
        """Options for a queue ('' for none) and a time limit, over a script's own."""
        ...

    def refusal_hint(self, words: str, version: str, script: str, options: Sequence[str] = ()) -> str:
        """What to do about a refusal of a script whose own `words` mislead; '' where they do not."""
        ...


class Backend(Protocol):
    """A scheduler. All methods build or read; nothing runs here."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def capabilities(self) -> frozenset[Capability]: ...
    @property
    def script_writer(self) -> ScriptWriter | None:
        """None where no scripts can be made."""
        ...

    @property
    def script_reader(self) -> ScriptReader:
        """Of the directives that its scripts have."""
        ...

    @property
    def delegated_commands(self) -> tuple[str, ...]:
        """The commands that an account runs as others to submit for them; () where it submits for itself alone."""
        ...

    @property
    def local_configuration(self) -> LocalConfiguration | None:
        """None where it is of no configuration."""
        ...

    @property
    def usual_folder(self) -> str:
        """Where its commands are on most clusters."""
        ...

    @property
    def alterable(self) -> tuple[str, ...]:
        """What of ALTERABLE can be changed here."""
        ...

    @property
    def whole_array_verbs(self) -> frozenset[Verb]:
        """The verbs that it does to whole arrays only, and refuses for tasks of one."""
        ...

    @property
    def has_whole_ids(self) -> bool:
        """Whether an id that a person writes is whole: 12 is no other scheduler's word for 12[].server."""
        ...

    @property
    def keeps_ended(self) -> bool:
        """Whether what its history told of an ended job stays as it is: only what ended since has to be asked for."""
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

    def down_hosts_query(self, hosts: Sequence[str]) -> Query[frozenset[str]] | None:
        """Which of some hosts are down; None where no job is said to run on a host that is."""
        ...

    def history_query(self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()) -> Query[ParsedTable]:
        """Jobs that ended within the last `since_seconds`, of a user as in JobScope; or `job_ids`, ended or not."""
        ...

    def native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        """Everything the scheduler says of a job it still holds; parse raises NoSuchJob."""
        ...

    def history_native_query(self, job_id: str) -> Query[Mapping[str, str]]:
        """Everything the accounting database says of a job; parse raises NoSuchJob."""
        ...

    def requeue_refusal(self, native: Mapping[str, str]) -> str:
        """Why a job is not put back into the queue, by what `native_query` says of it; '' where nothing forbids it."""
        ...

    def job_detail(self, row: pa.Table, native: Mapping[str, str]) -> JobDetail:
        """Join a job's row with its native answer: fills the paths."""
        ...

    def reason_hint(self, state: str, reason: str | None) -> str:
        """In plain words why a job waits or how it ended, or '' where there is nothing to add."""
        ...

    def never_starts(self, state: str, reason: str | None) -> str:
        """What to do about a job that will not start by itself, with `{id}` for its id; '' where waiting may help."""
        ...

    @property
    def no_history(self) -> str:
        """What it means that the site's scheduler keeps no history."""
        ...

    def job_variables(self, row: Mapping[str, Any]) -> Mapping[str, str | None]:
        """What of a job's environment a row of domain.schema.JOBS tells; None where it does not."""
        ...

    def cron_parts(self, job: CronJob) -> CronParts:
        """The parts of a job's script that stands in for cron."""
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

    def queue_limits_query(self) -> Query[Mapping[str, QueueLimits]] | None:
        """What each queue gives a chunk by default and allows a job; None where the scheduler has no chunks."""
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

    def array_refusal_query(self, wanted: Submission) -> Query[str] | None:
        """Why the cluster would take no array as large as a submission's, in words, '' where it would.

        None where nothing has to be asked for.
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
