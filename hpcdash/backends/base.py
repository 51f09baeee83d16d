"""Interface of a backend: the capabilities and queries of a scheduler, part by part."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa
from msgspec import Struct, field

from hpcdash.backends.actions import ActionCommand, ActionRequest, Verb
from hpcdash.backends.job_detail import Activity, JobDetail, LogFiles, OtherLog, Script, Usage
from hpcdash.backends.queries import (
    Answer,
    Facts,
    JobScope,
    Native,
    ParsedOffers,
    ParsedTable,
    Query,
    Row,
    Variables,
    decoded,
    require_whole,
)
from hpcdash.backends.submissions import (
    AS_IT_WAS,
    NewLimits,
    SentFile,
    StartEstimate,
    Submission,
    SubmitCommand,
    SubmittedRequest,
)
from hpcdash.domain import schema
from hpcdash.domain.array_tasks import ArrayTasks
from hpcdash.domain.offers import AccountOffer, QosOffer, QueueLimits
from hpcdash.domain.tables import Kind
from hpcdash.errors import AccountingUnavailable, UsageError

if TYPE_CHECKING:
    from hpcdash.backends.inside import InsideCommand, InsideStep
    from hpcdash.backends.node_samples import NodeSample
    from hpcdash.backends.script.body import BatchScript, Place
    from hpcdash.backends.script.cron import CronJob
    from hpcdash.backends.script.environment import JobEnvironment, NodeJobs
    from hpcdash.backends.shell import ShellCommand, ShellRequest
    from hpcdash.domain.demand import Demand, LintFinding
    from hpcdash.domain.offers import CpuShare, Offers
    from hpcdash.domain.request import Request
    from hpcdash.domain.scripts import ScriptBlock


class Capability(StrEnum):
    """Features of a scheduler; screens check these, never its name."""

    JOBS = "jobs"
    # Each job is somebody's.
    OWNERS = "owners"
    NODES = "nodes"
    QUEUES = "queues"
    HISTORY = "history"
    DETAIL = "detail"
    # A job can wait for another's end.
    CHAINS = "chains"
    EXPECTED_START = "expected_start"
    LOGS = "logs"
    # A job's stderr can have a file of its own.
    ERROR_LOGS = "error_logs"
    SCRIPT = "script"
    CANCEL = "cancel"
    HOLD = "hold"
    REQUEUE = "requeue"
    SUSPEND = "suspend"
    SIGNAL = "signal"
    ALTER = "alter"
    # It forgets a job that ended when it is asked to.
    DELETE = "delete"
    SUBMIT = "submit"
    # A request that is filled in on the screen becomes a batch script.
    FORM = "form"
    # A job can have just the nodes that are to be checked, and its log is read.
    NODE_CHECKS = "check_nodes"
    # There is a way into its running jobs.
    CONNECT = "connect"
    # It keeps the scripts of its jobs, and gives them back.
    KEEPS_SCRIPTS = "keeps_scripts"
    # A job can write its logs where they belong while it runs.
    LIVE_LOGS = "live_logs"
    # Parts of a job have logs besides its own output.
    OTHER_LOGS = "other_logs"
    # They may each end by themselves.
    WORKERS = "workers"
    SHARES = "shares"
    LIMITS = "limits"
    RESERVATIONS = "reservations"
    # Commands can be run on the nodes of a running job.
    INSIDE = "inside"
    # What a running job uses is told while one looks.
    LIVE_USE = "live_use"


# Capabilities of every scheduler of batch scripts.
BATCH_CAPABILITIES = frozenset(
    {
        Capability.JOBS,
        Capability.OWNERS,
        Capability.NODES,
        Capability.QUEUES,
        Capability.HISTORY,
        Capability.DETAIL,
        Capability.CHAINS,
        Capability.LOGS,
        Capability.ERROR_LOGS,
        Capability.SCRIPT,
        Capability.CANCEL,
        Capability.HOLD,
        Capability.REQUEUE,
        Capability.SUSPEND,
        Capability.SIGNAL,
        Capability.ALTER,
        Capability.SUBMIT,
        Capability.FORM,
        Capability.NODE_CHECKS,
        Capability.CONNECT,
        Capability.LIMITS,
        Capability.INSIDE,
        Capability.LIVE_USE,
    }
)

_SEE_LOG = "`hpcdash log JOB` shows what it writes."
_SEE_QUEUES = "`hpcdash queues` shows its queues and what is free."
# What a scheduler that lacks a capability has no way to do, and what a person can do instead.
_REFUSALS = {
    Capability.CHAINS: ("run jobs after each other", "Submit one when the other has ended."),
    Capability.INSIDE: ("run a command in a job", _SEE_LOG),
    Capability.CONNECT: ("open a shell in a job", "If the site allows it: ssh NODE"),
    Capability.LIVE_USE: ("measure a running job", _SEE_LOG),
    Capability.NODE_CHECKS: ("check nodes with a job", "Check its nodes by hand."),
    Capability.SHARES: ("show fair shares", _SEE_QUEUES),
    Capability.LIMITS: ("show limits", _SEE_QUEUES),
    Capability.RESERVATIONS: ("show reservations", _SEE_QUEUES),
}


class Probe(Struct, frozen=True):
    """Facts about the other end, queried once a connection: the user, the scheduler's own name.

    `clusters` are those that the person's environment directs commands to, () for the scheduler's
    own choice. `is_scheduling` False: the controller answers, and starts no job. `counts_gpus`: its
    records of jobs name the GPUs that these have, or no node has any. `ended_kept_seconds`: how
    long the list of jobs still has one that ended; None: unreported, or without a limit. `commands`
    maps each of the scheduler's commands to its path there, '' where it is missing. `dialect` is
    the backend's own word for which of several kinds was found; '' where there is one.
    """

    user: str
    version: str
    cluster: str = ""
    clusters: tuple[str, ...] = ()
    clock_epoch_seconds: float | None = None
    has_accounting: bool | None = None
    controller_answers: bool | None = None
    is_scheduling: bool | None = None
    counts_gpus: bool | None = None
    ended_kept_seconds: int | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    dialect: str = ""


def probe_values(answer: Answer) -> tuple[dict[str, str], dict[str, str]]:
    """(the first value of each key, the path of each command) in the KEY=VALUE lines of a probe."""
    require_whole(answer)
    found: dict[str, str] = {}
    commands: dict[str, str] = {}
    for line in decoded(answer.stdout).splitlines():
        key, _, value = line.partition("=")
        if key == "command":
            name, _, path = value.partition("=")
            commands[name] = path
        else:
            found.setdefault(key, value.strip())
    return found, commands


class ServerFiles(Struct, frozen=True):
    """Files of a machine that may name a scheduler's server: by the first group of `pattern`.

    `included` finds names of more files, beside the one that names them.
    """

    files: tuple[str, ...]
    pattern: re.Pattern[str]
    included: re.Pattern[str] | None = None


class LocalConfiguration(Struct, frozen=True):
    """Configuration that names the server of a scheduler's commands on a machine.

    One of `server_variables` names it, or one of `files`; `file_variable` names a file in place of
    the first of them, and of all where `is_file_alone`. `command` without any of that is a package
    that was installed, and no cluster: `unconfigured` says so.
    """

    server_variables: tuple[str, ...]
    file_variable: str
    files: tuple[ServerFiles, ...]
    command: str
    unconfigured: str
    is_file_alone: bool = False


class ScriptWriter(Protocol):
    """Module that writes batch scripts for a scheduler."""

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
        """The script of a request.

        Raises UsageError, naming the field, for what cannot be asked of this scheduler.

        `has_live_logs`: the scheduler can write logs where they belong while the job runs.
        `cpu_share` is what is asked for beside GPUs where the request does not say, and the site's
        scheduler does not either.
        """
        ...

    def node_options(self, nodes: Sequence[str]) -> NodeJobs:
        """(nodes, extra_args) of each job that is needed to have just these nodes."""
        ...


class ScriptReader(Protocol):
    """Module that reads what a batch script requests, and finds its errors; by default of scripts
    without directives, which request nothing.
    """

    def lint_script(
        self, script: bytes, offers: Offers, over: Sequence[str] = ()
    ) -> tuple[LintFinding, ...]:
        """Find errors in a script, with options `over` its own; see
        hpcdash.backends.script.lint.lint.
        """
        return ()

    def script_demand(self, script: bytes, over: Sequence[str] = ()) -> Demand:
        """Return the resources that a script requests, with options `over` its own."""
        from hpcdash.domain.demand import Demand

        return Demand()

    def queue_and_time_options(self, queue: str, limit_seconds: int | None) -> tuple[str, ...]:
        """Options for a queue ('' for none) and a time limit, over a script's own."""
        return ()

    def refusal_hint(
        self,
        text: str,
        version: str,
        script: str,
        options: Sequence[str] = (),
        gpu_types: Sequence[str] = (),
    ) -> str:
        """Return the next step after a refusal whose own `text` misleads; '' where they do not.

        `gpu_types` are those of the nodes, () where they are not known.
        """
        return ""


class UndirectedScripts(ScriptReader):
    """Reader of scripts without directives."""


_UNSUPPORTED = "this scheduler does not support that"


def _raise_no_history(_: Answer) -> NoReturn:
    raise AccountingUnavailable("this scheduler keeps no history")


class RequestField(Struct, frozen=True):
    """A key of REQUEST.toml that one scheduler alone has, and the field of domain.request.Request
    by its name.

    `read` gives what the request holds of a line of text, or without `is_text` of any value; it
    raises ValueError with what is wrong with it. Where `is_list` the key has an array of such
    lines.
    """

    name: str
    read: Callable[[Any], Any]
    is_list: bool = False
    is_text: bool = True


class ProbePart(ABC):
    """Detects a scheduler, and its configuration on a machine."""

    needs_answer: bool = False
    """Whether it has to be answered before anything else: it finds the dialect, or refuses a
    version whose output may be misread.
    """

    is_optional: bool = False
    """Whether the backend works where its probe finds nothing, as far as it goes: a wrapper may
    report no version.
    """

    usual_folder: str = ""
    """The folder of its commands on most clusters."""

    delegated_commands: tuple[str, ...] = ()
    """The commands that an account runs as others to submit for them; () where it submits for
    itself alone.
    """

    @abstractmethod
    def query(self) -> Query[Probe]:
        """Query whether this scheduler exists; parse raises CommandMissing where it does not."""

    def backend(self, found: Probe) -> Backend | None:
        """Return the backend for the dialect that was found; None: there is one kind."""
        return None


class QueuePart(ABC):
    """Waiting and running jobs, nodes and queues: tables of domain.schema.JOBS, NODES, QUEUES."""

    lists_ended: bool = False
    """Whether a list of one person's jobs costs no more with those that ended a short while ago."""

    @abstractmethod
    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        """Query jobs; parse raises NoSuchJob where none of those named is found."""

    def nodes(self) -> Query[ParsedTable]:
        """Query all nodes."""
        return Query(("true",), lambda _: ParsedTable(schema.NODES.empty_table()))

    def queues(self) -> Query[ParsedTable]:
        """Query all queues."""
        return Query(("true",), lambda _: ParsedTable(schema.QUEUES.empty_table()))

    def node_activity(self, node: str) -> Query[Activity] | None:
        """Query what programs have the scheduler run on a node, such as tasks; None: no such
        thing.
        """
        return None

    def down_hosts(self, hosts: Sequence[str]) -> Query[frozenset[str]] | None:
        """Query which hosts are down; None where no job is said to run on a host that is."""
        return None

    def pause(self) -> Query[str] | None:
        """Query why no job of the cluster starts at present, '' where jobs may start; None where
        the reason of each job reports it.
        """
        return None


class PolicyReason(Struct, frozen=True):
    """The site's rule that a job waits for. `view` is shares, limits or reservations.

    Of a limit the columns of domain.schema.LIMITS that tell which it is, as far as the reason does;
    '' where it does not.
    """

    view: str
    scope: str = ""
    per: str = ""
    resource: str = ""


class ReasonsPart:
    """The meaning of a job's state (of domain.states) and of the scheduler's reason for it."""

    def hint(self, state: str, reason: str | None) -> str:
        """Explain in plain words why a job waits or how it ended; '' where nothing is to add."""
        return ""

    def short(self, row: Row) -> str:
        """Return in a few words why a row of domain.schema.JOBS waits, for the cell of a table; ''
        where the reason itself says it.
        """
        return ""

    def cause(self, native: Native) -> str:
        """Return the scheduler's own message on why a job waits or failed, from its `native`
        attributes, where its reason is only a code; '' where nothing is to add.
        """
        return ""

    def never_starts(self, state: str, reason: str | None) -> str:
        """Return the step to take for a job that will not start by itself, with `{id}` for its id;
        '' where waiting may help, or its owner holds it.
        """
        return ""

    def policy(self, state: str, reason: str | None) -> PolicyReason | None:
        """Return the limit, share or reservation that a job waits for; None for any other wait."""
        return None

    def explain(self, row: Row) -> str:
        """Return `hint` for a row of domain.schema.JOBS; '' where a signal ended it, which says
        more.
        """
        return "" if row["exit_signal"] else self.hint(str(row["state"]), row["reason"])


class HistoryScope(Struct, frozen=True):
    """Limits of the history for a user: whether others' ended jobs are hidden, and for how long
    ended jobs are kept.

    None is not known; of `retention_seconds` also that it is not limited.
    """

    hides_others: bool | None = None
    retention_seconds: int | None = None


class HistoryPart:
    """Ended jobs."""

    is_sliced: bool = False
    """Whether a part of a span costs a part of the whole: long spans are queried in slices."""

    keeps_ended: bool = False
    """Whether the record of an ended job never changes: only what ended since has to be queried."""

    forgotten: str = ""
    """Why a job may be in no list and in no history, where there is a usual reason."""

    no_history: str = "not kept here"
    """What it means that the site's scheduler keeps none."""

    def jobs(
        self, user: str | None, since_seconds: int, job_ids: Sequence[str] = ()
    ) -> Query[ParsedTable]:
        """Query jobs that ended within the last `since_seconds`, of a user as in JobScope; or
        `job_ids`, ended or not.

        parse raises AccountingUnavailable.
        """
        return Query(("true",), _raise_no_history)

    def runs(self, user: str | None, since: int, until: int, now: int) -> Query[ParsedTable]:
        """Query rows of domain.schema.RUNS that ended from `since` to before `until`, of a user as
        in JobScope; by default those of `jobs`, without what each used.

        All are epoch seconds of the cluster's clock, which is at `now`. The answer may hold more
        than was requested. parse raises AccountingUnavailable.
        """
        return self.jobs(user, max(0, now - since))

    def runs_at(self, user: str | None, at: int) -> Query[ParsedTable] | None:
        """Query the runs that had begun and not ended by `at` (epoch seconds), and have ended
        since. None where `runs` to this day is as cheap.
        """
        return None

    def native(self, job_id: str) -> Query[Native]:
        """Query all attributes of a job in the accounting database; parse raises NoSuchJob or
        AccountingUnavailable.
        """
        return Query(("true",), _raise_no_history)

    def scope(self, user: str) -> Query[HistoryScope] | None:
        """Query what the history shows a user; None: the scheduler does not report it."""
        return None

    def newly_ended(self, user: str, seconds: int) -> Query[tuple[str, ...]] | None:
        """Query the ids of a user's jobs that ended within so many seconds, and no more of them.

        None where the scheduler has no such list, or its queue `lists_ended`.
        """
        return None


class DetailPart(ABC):
    """All about one job. A `row` is one of domain.schema.JOBS; `native` holds the attributes that
    the scheduler reports of the job.
    """

    holds_requeued: bool = False
    """Whether its jobs can be put back into the queue and held, as tasks of a shared pool are."""

    @abstractmethod
    def native(self, job_id: str) -> Query[Native]:
        """Query all attributes of a job that the scheduler still holds; parse raises NoSuchJob."""

    def join(self, job: pa.Table, native: Native) -> JobDetail:
        """Join a job's row with its attributes: fills the paths."""
        return JobDetail(job, native)

    def usage(self, row: Row) -> Query[Usage] | None:
        """Query what a job uses (running) or used (ended); None for one that has not started."""
        return None

    def steps(self, row: Row) -> Query[ParsedTable] | None:
        """Query the steps of a job's last run: rows of domain.schema.STEPS. None for one that has
        not started, and where the scheduler knows no steps.
        """
        return None

    def facts(self, native: Native) -> Mapping[str, Facts]:
        """Return groups of the job page that this scheduler alone has: title → label → value."""
        return {}

    def activity(self, row: Row, native: Native) -> Query[Activity] | None:
        """Query what the job's program has the scheduler run within the job, such as tasks; None
        for one that has nothing of the kind.
        """
        return None

    def workers(self, detail: JobDetail) -> Query[ParsedTable] | None:
        """Query the workers of one job that each end by themselves: rows of domain.schema.JOBS as
        those of an array's tasks, each with the path of its log. None of a job without.
        """
        return None

    def shell(self, row: Row, request: ShellRequest) -> ShellCommand | None:
        """Build the command that runs a shell in a running job; None: there is no way onto its
        nodes.
        """
        return None

    def priority(self, job_id: str) -> Query[Facts] | None:
        """Query the factors of a waiting job's priority, as text for a person; {} where it is not
        reported, None where the scheduler has no such thing.
        """
        return None

    def requeue_refusal(self, native: Native) -> str:
        """Return why a job is not put back into the queue; '' where nothing forbids it."""
        return ""

    def task_refusal(self, native: Native) -> str:
        """Return why a job cannot be a task of a shared pool: it is not put back into the queue, or
        is more than one job; '' where nothing forbids it.
        """
        return self.requeue_refusal(native)

    def submit_line(self, native: Native) -> str:
        """Return the command line that a job was submitted with, from its attributes here or in the
        history; '' where it is not reported.
        """
        return ""

    def variables(self, row: Row) -> Variables:
        """Return the variables of a job's environment that its row reports; None for a value that
        it does not.
        """
        return {}


class InsidePart:
    """A running job from within."""

    measures_use: bool = False
    """Whether the scheduler itself measures the use of its jobs; else a step samples its nodes."""

    def step(self, row: Row, command: InsideCommand) -> InsideStep:
        """Build the command that runs another on each node of a running job, as its owner.

        `row` is one of domain.schema.JOBS. Raises UsageError with the reason where that cannot be.
        """
        raise UsageError(_UNSUPPORTED)

    def use_nodes(self, native: Native) -> Query[tuple[str, ...]]:
        """Query the nodes that a running job uses, by the scheduler's own names, for `use`.

        parse raises UsageError where nothing is known of the job.
        """
        raise UsageError(_UNSUPPORTED)

    def use(self, native: Native, nodes: tuple[str, ...]) -> Query[tuple[NodeSample, ...]]:
        """Query the present use of a job on these nodes."""
        raise UsageError(_UNSUPPORTED)


class LogsPart:
    """The files that jobs write."""

    has_results: bool = False
    """Whether the log of a call ends with its result, as its job has no folder to fetch it from."""

    def files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        """Return the paths of a job's logs; the script is given only where `needs_script`."""
        stdout, stderr = (
            detail.job[column][0].as_py() for column in ("stdout_path", "stderr_path")
        )
        return LogFiles(stdout, None if stderr == stdout else stderr)

    def needs_script(self, detail: JobDetail) -> bool:
        """Whether the paths depend on the directives of the batch script."""
        return False

    def others(self, detail: JobDetail, files: LogFiles) -> Query[tuple[OtherLog, ...]] | None:
        """Query the logs of parts of a job; `files` are its own. None where there are none."""
        return None

    def request(self, path: str) -> str:
        """Return the path of the HTTP request that streams a log, by its path of `files`; '' for
        any other path.
        """
        return ""

    def result(self, content: bytes) -> tuple[bytes | None, bytes | None]:
        """Return the result and the failure, both JSON, from the end of a call's log."""
        return None, None


class ScriptsPart:
    """Batch scripts: how they are written and read, and those of jobs."""

    request_fields: tuple[RequestField, ...] = ()
    """The keys of a request that this scheduler alone has."""

    def writer(self) -> ScriptWriter | None:
        """Return the writer; None where no scripts can be made."""
        return None

    def reader(self) -> ScriptReader:
        """Return the reader of the directives that its scripts have."""
        return UndirectedScripts()

    def explain(self, line: str) -> str:
        """Explain in a few words what one #SBATCH (#PBS …) line of a script requests; '' for any
        other line.
        """
        return ""

    def blocks(self) -> tuple[ScriptBlock, ...]:
        """Return the blocks of lines that generated scripts have besides the person's own."""
        return ()

    def query(self, job_id: str) -> Query[Script] | None:
        """Query the batch script of a job the scheduler still holds; parse raises NoSuchJob or
        SchedulerRefused. None where it gives none back (no KEEPS_SCRIPTS).
        """
        return None

    def history_query(self, job_id: str) -> Query[Script] | None:
        """Query the batch script in the accounting database; parse raises NoSuchJob, or
        AccountingUnavailable where it has none. None as above.
        """
        return None

    def submitted_file(self, detail: JobDetail) -> str | None:
        """Return the file on the login node that a job's script was read from when it was
        submitted, where that is reported.
        """
        return None

    def cron_script(self, job: CronJob) -> str:
        """Return the script of a job that stands in for cron; raises UsageError where there can be
        none, and for what no script can hold.
        """
        raise UsageError(_UNSUPPORTED)


class PolicyPart:
    """The rules of the site. None throughout: the scheduler has no such thing."""

    def qos(self, qos: str) -> Query[Facts] | None:
        """Query what a QoS allows and who may take its jobs' places: preemption, grace time,
        limits; {} where it is not reported.
        """
        return None

    def queue_rules(self, queue: str) -> Query[Facts] | None:
        """Query what becomes of a queue's jobs that make way for others; {} where none has to, or
        it is not reported.
        """
        return None

    def queue_limits(self) -> Query[Mapping[str, QueueLimits]] | None:
        """Query what each queue gives a chunk by default and allows a job; None where the scheduler
        has no chunks.
        """
        return None

    def preemption(self, queue: str) -> Query[Facts] | None:
        """Query which queues' jobs take the place of a queue's, and how its own make way, by the
        keys of `qos`.
        """
        return None

    def associations(
        self, user: str, cluster: str = ""
    ) -> Query[ParsedOffers[AccountOffer]] | None:
        """Query the accounts that a user may charge on a cluster ('': any), with their QoS; parse
        raises AccountingUnavailable.
        """
        return None

    def qos_offers(self) -> Query[ParsedOffers[QosOffer]] | None:
        """Query all QoS with their limits; parse raises AccountingUnavailable."""
        return None

    def shares(self, user: str) -> Query[ParsedTable]:
        """Query rows of domain.schema.SHARES; parse raises AccountingUnavailable."""
        raise UsageError(_UNSUPPORTED)

    def limits(self, user: str, cluster: str) -> Query[ParsedTable]:
        """Query rows of domain.schema.LIMITS that hold for a user, on a cluster as in
        `associations`; parse raises AccountingUnavailable.
        """
        raise UsageError(_UNSUPPORTED)

    def reservations(self, user: str) -> Query[ParsedTable]:
        """Query rows of domain.schema.RESERVATIONS, and whether that user may use them."""
        raise UsageError(_UNSUPPORTED)


class ActionsPart:
    """Actions on jobs."""

    alterable: tuple[str, ...] = ()
    """Those of ALTERABLE that can be changed here."""

    whole_array_verbs: frozenset[Verb] = frozenset()
    """The verbs that apply to whole arrays only, and are refused for tasks of one."""

    def commands(self, request: ActionRequest) -> tuple[ActionCommand, ...]:
        """Build as few commands as the scheduler allows.

        Raises UsageError that names the signal, time or change which does not exist.
        """
        raise UsageError(_UNSUPPORTED)


class SubmitPart:
    """Submission of scripts and requests."""

    program: str = ""
    """The submit command's name, whose path a probe finds; '' where none is submitted as anyone
    else.
    """

    takes_requests: bool = False
    """Whether a request is submitted as it is, by `request`; else it becomes a batch script."""

    without_fields: frozenset[str] = frozenset()
    """The keys of a request that `request` refuses."""

    new_limits: frozenset[str] = frozenset()
    """The fields of NewLimits that a resubmission can have."""

    def submission(self, submission: Submission) -> SubmitCommand:
        """Build the command that submits a script, from the folder the command runs in.

        Its one outcome is for the submission's `name`; its text names the new job: `job 93`, and
        may continue. Raises UsageError.
        """
        raise UsageError(_UNSUPPORTED)

    def resubmission(
        self,
        detail: JobDetail,
        past: Native,
        script: Script,
        tasks: ArrayTasks | None,
        mark: str,
        limits: NewLimits = AS_IT_WAS,
    ) -> SubmitCommand:
        """Build the command that submits a job's script with its options again, as they were but
        for `limits`; of an array only `tasks` (None: all it had).

        `past` holds the attributes of HistoryPart.native, {} where it has none. The command's one
        outcome is for the job's id, or `12_[3,7-9]` with tasks; its text names the new job:
        `job 93`. Raises UsageError for what cannot be submitted so.
        """
        raise UsageError(_UNSUPPORTED)

    def log_folders(self, submission: Submission) -> tuple[str, ...]:
        """Return the folders of a submission's logs, relative ones from where it is submitted,
        without which the job fails and which the scheduler does not make. Patterns that it fills in
        are left as they are.
        """
        return ()

    def array_parts(self, tasks: ArrayTasks) -> tuple[ArrayTasks, ...]:
        """Return the tasks that one submission each can have, where a list of tasks is not an
        array's.
        """
        return (tasks,)

    def request(
        self,
        request: Request,
        library: bytes,
        mark: str,
        files: Mapping[str, SentFile] = MappingProxyType({}),
    ) -> SubmittedRequest:
        """Build the commands that submit a request as it is, with hpcdash.job as a zip (`library`)
        and the request's own files by their names.

        Raises UsageError, naming the field, for what the scheduler does not have.
        """
        raise UsageError(_UNSUPPORTED)

    def request_findings(self, request: Request, offers: Offers) -> tuple[LintFinding, ...]:
        """Return what a request that is submitted as it is asks for and the cluster does not have
        now.
        """
        return ()

    def array_refusal(self, submission: Submission) -> Query[str] | None:
        """Query why the cluster would take no array as large as a submission's, '' where it would.
        None where nothing has to be queried.
        """
        return None

    def start_estimate(self, submission: Submission) -> Query[StartEstimate] | None:
        """Query when a script would start: nothing is submitted. Its `file`, or the command's
        stdin, gives the script; None where the scheduler has no such thing.

        A refusal is an answer; parse raises for what is none (controller down). Raises UsageError
        for what cannot be requested.
        """
        return None

    def start_again_estimate(
        self,
        detail: JobDetail,
        past: Native,
        script: Script,
        limits: NewLimits,
        nodes: int | None,
    ) -> Query[StartEstimate] | None:
        """Query the same for a job as it was submitted, with limits and a number of nodes (None: as
        it was) in place of its own. The command's stdin gives the script.
        """
        return None


class Backend(Struct, frozen=True, kw_only=True):
    """A scheduler.

    All its parts build or read; nothing runs here. A part that is left out is one it has not.
    """

    name: str
    title: str
    capabilities: frozenset[Capability]
    probe: ProbePart
    queue: QueuePart
    detail: DetailPart
    reasons: ReasonsPart = ReasonsPart()
    history: HistoryPart = HistoryPart()
    inside: InsidePart = InsidePart()
    logs: LogsPart = LogsPart()
    scripts: ScriptsPart = ScriptsPart()
    policy: PolicyPart = PolicyPart()
    actions: ActionsPart = ActionsPart()
    submit: SubmitPart = SubmitPart()

    has_whole_ids: bool = True
    """Whether an id that a person writes is whole: 12 is no other scheduler's word for 12[].server."""

    is_embedded: bool = False
    """Whether its queue is a folder of this machine, and hpcdash runs its jobs."""

    def require(self, capability: Capability) -> None:
        """Raise UsageError where the scheduler lacks a capability."""
        if capability not in self.capabilities:
            action, step = _REFUSALS[capability]
            raise UsageError(f"{self.title} cannot {action}", step)

    def table(
        self, kind: Kind, user: str, cluster: str, history_seconds: int
    ) -> Query[ParsedTable]:
        """Return the query that fills a table, of a `user` or of everyone as `kind` has it; raise
        UsageError where the scheduler lacks it.

        `cluster` is as in `policy.associations`; history ended within `history_seconds`.
        """
        match kind:
            case Kind.MINE:
                return self.queue.jobs(JobScope(user=user, ended=self.queue.lists_ended))
            case Kind.EVERYONE:
                return self.queue.jobs(JobScope())
            case Kind.NODES:
                return self.queue.nodes()
            case Kind.QUEUES:
                return self.queue.queues()
            case Kind.HISTORY:
                return self.history.jobs(user, history_seconds)
            case Kind.HISTORY_EVERYONE:
                return self.history.jobs(None, history_seconds)
            case Kind.SHARES:
                self.require(Capability.SHARES)
                return self.policy.shares(user)
            case Kind.LIMITS:
                self.require(Capability.LIMITS)
                return self.policy.limits(user, cluster)
            case Kind.RESERVATIONS:
                self.require(Capability.RESERVATIONS)
                return self.policy.reservations(user)

    def for_probe(self, probe: Probe) -> Backend:
        """The backend for what the probe found: itself, where there is one kind."""
        return self.probe.backend(probe) or self
