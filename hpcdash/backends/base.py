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
    Copy,
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
    from hpcdash.domain.offers import AccessRules, CpuShare, Offers
    from hpcdash.domain.request import Request
    from hpcdash.domain.scripts import ScriptBlock


class Capability(StrEnum):
    """Features of a scheduler; screens check these, never its name."""

    JOBS = "jobs"
    # Jobs have owners.
    OWNERS = "owners"
    NODES = "nodes"
    QUEUES = "queues"
    HISTORY = "history"
    DETAIL = "detail"
    # Jobs can depend on other jobs.
    CHAINS = "chains"
    EXPECTED_START = "expected_start"
    LOGS = "logs"
    # The shell of a login node reaches the files of jobs.
    FILES = "files"
    # A job can write stderr to a separate file.
    ERROR_LOGS = "error_logs"
    SCRIPT = "script"
    CANCEL = "cancel"
    HOLD = "hold"
    REQUEUE = "requeue"
    SUSPEND = "suspend"
    SIGNAL = "signal"
    ALTER = "alter"
    # Records of ended jobs can be deleted.
    DELETE = "delete"
    SUBMIT = "submit"
    # Requests become batch scripts.
    FORM = "form"
    # A job can request specific nodes, so that it can check them.
    NODE_CHECKS = "check_nodes"
    # A shell can be opened in a running job.
    CONNECT = "connect"
    # It stores job scripts and returns them.
    KEEPS_SCRIPTS = "keeps_scripts"
    # A running job can write its logs directly to their final path.
    LIVE_LOGS = "live_logs"
    # Parts of a job have their own logs.
    OTHER_LOGS = "other_logs"
    # These parts may end independently.
    WORKERS = "workers"
    SHARES = "shares"
    LIMITS = "limits"
    RESERVATIONS = "reservations"
    # Commands can run on the nodes of a running job.
    INSIDE = "inside"
    # Live usage of running jobs.
    LIVE_USE = "live_use"
    # Ports of running jobs can be reached.
    FORWARD = "forward"


# Capabilities of all batch schedulers.
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
        Capability.FILES,
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
        Capability.FORWARD,
    }
)

_SEE_LOG = "`hpcdash log JOB` shows its output."
_SEE_QUEUES = "`hpcdash queues` shows queues and free resources."
# What a scheduler without a capability cannot do, and the alternative.
_REFUSALS = {
    Capability.CHAINS: (
        "run jobs after each other",
        "Submit the next job when the previous one has ended.",
    ),
    Capability.INSIDE: ("run a command in a job", _SEE_LOG),
    Capability.FILES: ("reach the files of a job", _SEE_LOG),
    Capability.CONNECT: ("open a shell in a job", "If the site allows it: ssh NODE"),
    Capability.FORWARD: ("forward a port of a job", "If the site allows it: ssh -L"),
    Capability.LIVE_USE: ("measure a running job", _SEE_LOG),
    Capability.NODE_CHECKS: ("check nodes with a job", "Check the nodes by hand."),
    Capability.SHARES: ("show fair shares", _SEE_QUEUES),
    Capability.LIMITS: ("show limits", _SEE_QUEUES),
    Capability.RESERVATIONS: ("show reservations", _SEE_QUEUES),
}


class Probe(Struct, frozen=True):
    """Facts about the cluster, queried once per connection: the user, the cluster's name.

    `clusters` are the ones that the user's environment selects, () for the scheduler's default.
    `is_scheduling` False: the controller answers but does not start jobs. `counts_gpus`: job
    records have the jobs' GPUs, or no node has GPUs. `ended_kept_seconds`: how long ended jobs
    stay in the job list; None: not reported, or unlimited. `commands` maps each of the scheduler's
    commands to its path, '' if it is missing. `dialect` is the backend's name of the scheduler
    variant; '' if there is only one.
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
    """Parse the KEY=VALUE lines of a probe: the first value of each key, the path of each
    command.
    """
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
    """Configuration files that may contain the server name: the first group of `pattern`.

    `included` matches names of further files in the same folder.
    """

    files: tuple[str, ...]
    pattern: re.Pattern[str]
    included: re.Pattern[str] | None = None


class LocalConfiguration(Struct, frozen=True):
    """Configuration files and variables that name the server of a scheduler's commands.

    The server is in one of `server_variables` or `files`; `file_variable` replaces the first of
    these files, or all if `is_file_alone`. If only `command` exists, the output of `server_command`
    names the server of a configuration that is elsewhere; the first group of `server_pattern`.
    Without it the package is installed but not configured, and `unconfigured` is the message.
    """

    server_variables: tuple[str, ...]
    file_variable: str
    files: tuple[ServerFiles, ...]
    command: str
    unconfigured: str
    is_file_alone: bool = False
    server_command: tuple[str, ...] = ()
    server_pattern: re.Pattern[str] = re.compile(r"(?!)")


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
        """Write the batch script of a request.

        Raises UsageError with the field for what this scheduler does not support.

        `has_live_logs`: a running job can write its logs directly to their final path. `cpu_share`
        is the default number of CPUs per GPU if neither request nor site set one.
        """
        ...

    def node_options(self, nodes: Sequence[str]) -> NodeJobs:
        """Return (nodes, extra_args) for each job that is needed to request exactly these nodes."""
        ...


class ScriptReader(Protocol):
    """Module that reads and lints the directives of batch scripts.

    By default for scripts without directives, which request nothing.
    """

    def lint_script(
        self, script: bytes, offers: Offers, over: Sequence[str] = ()
    ) -> tuple[LintFinding, ...]:
        """Find errors in a script; options `over` override its own. See
        hpcdash.backends.script.lint.lint.
        """
        return ()

    def script_demand(self, script: bytes, over: Sequence[str] = ()) -> Demand:
        """Return the resources that a script requests; options `over` override its own."""
        from hpcdash.domain.demand import Demand

        return Demand()

    def place_options(
        self, queue: str, limit_seconds: int | None, account: str = "", qos: str = ""
    ) -> tuple[str, ...]:
        """Return options for a queue, a time limit, an account and a QoS that override a script's
        own; '' and None: unchanged.
        """
        return ()

    def refusal_hint(
        self,
        text: str,
        version: str,
        script: str,
        options: Sequence[str] = (),
        gpu_types: Sequence[str] = (),
    ) -> str:
        """Return the next step after a rejection whose own `text` is misleading; else ''.

        `gpu_types` are the GPU types of the nodes, () if unknown.
        """
        return ""


class UndirectedScripts(ScriptReader):
    """Reader of scripts without directives."""


_UNSUPPORTED = "this scheduler does not support that"


def _raise_no_history(_: Answer) -> NoReturn:
    raise AccountingUnavailable("this scheduler keeps no history")


class RequestField(Struct, frozen=True):
    """A scheduler-specific key of REQUEST.toml, which is also a field of domain.request.Request.

    `read` parses a line of text, or any value unless `is_text`; it raises ValueError with the
    problem. If `is_list`, the key is an array of such lines.
    """

    name: str
    read: Callable[[Any], Any]
    is_list: bool = False
    is_text: bool = True


class ProbePart(ABC):
    """Detection of a scheduler and of its configuration on a machine."""

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
        """Query whether the scheduler exists; parse raises CommandMissing if not."""

    def backend(self, found: Probe) -> Backend | None:
        """Return the backend for the detected dialect; None if there is only one."""
        return None

    def site_clusters(self) -> Query[tuple[str, ...]] | None:
        """Query the clusters of the site, () if it does not list them.

        None for a scheduler that has one cluster.
        """
        return None


class QueuePart(ABC):
    """Pending and running jobs, nodes and queues: tables of domain.schema.JOBS, NODES, QUEUES."""

    lists_ended: bool = False
    """Whether a list of one person's jobs costs no more with those that ended a short while ago."""

    finds_ended: bool = True
    """Whether a job that ended a moment ago is found by its ID also where no history is kept."""

    @abstractmethod
    def jobs(self, scope: JobScope) -> Query[ParsedTable]:
        """Query jobs; parse raises NoSuchJob if none of the given jobs exists."""

    def nodes(self) -> Query[ParsedTable]:
        """Query all nodes."""
        return Query(("true",), lambda _: ParsedTable(schema.NODES.empty_table()))

    def queues(self) -> Query[ParsedTable]:
        """Query all queues."""
        return Query(("true",), lambda _: ParsedTable(schema.QUEUES.empty_table()))

    def node_activity(self, node: str) -> Query[Activity] | None:
        """Query the scheduler's tasks on a node, such as Ray's; None if it has none."""
        return None

    def down_hosts(self, hosts: Sequence[str]) -> Query[frozenset[str]] | None:
        """Query which hosts are down; None if job states already account for that."""
        return None

    def pause_reason(self) -> Query[str] | None:
        """Query why jobs are not starting on this cluster, '' if they are; None if each job's
        reason reports it.
        """
        return None


class PolicyReason(Struct, frozen=True):
    """Site policy that a job waits for. `view` is shares, limits or reservations.

    For a limit, the columns of domain.schema.LIMITS that identify it, as far as the reason tells;
    else ''.
    """

    view: str
    scope: str = ""
    per: str = ""
    resource: str = ""


class ReasonsPart:
    """Explanations of job states (domain.states) and of the scheduler's reasons."""

    def hint(self, state: str, reason: str | None) -> str:
        """Explain why a job is pending or how it ended; '' if there is nothing to add."""
        return ""

    def short(self, row: Row) -> str:
        """Return why a job is pending, short enough for a table cell; '' if the reason itself is
        clear.
        """
        return ""

    def cause(self, native: Native) -> str:
        """Return the scheduler's own message, from a job's `native` attributes, on why it is
        pending or failed, if its reason is only a code; else ''.
        """
        return ""

    def never_starts(self, state: str, reason: str | None) -> str:
        """Return the next step for a job that will never start, with `{id}` for its ID; '' if
        waiting may help or its owner holds it.
        """
        return ""

    def policy(self, state: str, reason: str | None) -> PolicyReason | None:
        """Return the limit, share or reservation that a job waits for, if any."""
        return None

    def explain(self, row: Row) -> str:
        """Return `hint` for a row of domain.schema.JOBS; '' if a signal ended it, which is more
        specific.
        """
        return "" if row["exit_signal"] else self.hint(str(row["state"]), row["reason"])


class HistoryScope(Struct, frozen=True):
    """Visible part of the history for a user: whether other users' ended jobs are hidden, and how
    long ended jobs are kept.

    None: unknown; for `retention_seconds` also unlimited.
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

    no_history: str = "not recorded here"
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
        """Query what the history shows to a user; None if the scheduler does not report it."""
        return None

    def newly_ended(self, user: str, seconds: int) -> Query[tuple[str, ...]] | None:
        """Query only the IDs of a user's jobs that ended within some seconds.

        None if the scheduler has no such list, or its queue `lists_ended`.
        """
        return None


class DetailPart(ABC):
    """Details of one job. `row` follows domain.schema.JOBS; `native` are the scheduler's own
    attributes of the job.
    """

    holds_requeued: bool = False
    """Whether its jobs can be put back into the queue and held, as tasks of a shared pool are."""

    @abstractmethod
    def native(self, job_id: str) -> Query[Native]:
        """Query all attributes of a job in the scheduler's memory; parse raises NoSuchJob."""

    def join(self, job: pa.Table, native: Native) -> JobDetail:
        """Complete a job's row with paths from its attributes."""
        return JobDetail(job, native)

    def usage(self, row: Row) -> Query[Usage] | None:
        """Query the usage of a running or ended job; None if it has not started."""
        return None

    def steps(self, row: Row) -> Query[ParsedTable] | None:
        """Query the steps of a job's last run: rows of domain.schema.STEPS. None if it has not
        started or the scheduler has no steps.
        """
        return None

    def facts(self, native: Native) -> Mapping[str, Facts]:
        """Return scheduler-specific groups of the job page: title → label → value."""
        return {}

    def activity(self, row: Row, native: Native) -> Query[Activity] | None:
        """Query the scheduler's tasks within the job, such as Ray's; None if it has none."""
        return None

    def workers(self, detail: JobDetail) -> Query[ParsedTable] | None:
        """Query a job's workers that end independently: rows of domain.schema.JOBS like array
        tasks, each with its log path. None if it has none.
        """
        return None

    def shell(self, row: Row, request: ShellRequest) -> ShellCommand | None:
        """Build the command that runs a shell in a running job; None if its nodes are
        unreachable.
        """
        return None

    def priority(self, job_id: str) -> Query[Facts] | None:
        """Query the priority factors of a pending job as text; {} if not reported, None if the
        scheduler has none.
        """
        return None

    def requeue_refusal(self, native: Native) -> str:
        """Return why a job cannot be requeued; '' if it can."""
        return ""

    def task_refusal(self, native: Native) -> str:
        """Return why a job cannot be a task of a shared pool, such as an array or a job that cannot
        be requeued; '' if it can.
        """
        return self.requeue_refusal(native)

    def submit_line(self, native: Native) -> str:
        """Return the submission command line from a job's attributes or its history; '' if not
        reported.
        """
        return ""

    def variables(self, row: Row) -> Variables:
        """Return the environment variables that a job's row reports; None for an unreported
        value.
        """
        return {}


class InsidePart:
    """Commands and usage inside running jobs."""

    measures_use: bool = False
    """Whether the scheduler itself measures the use of its jobs; else a step samples its nodes."""

    def step(self, row: Row, command: InsideCommand) -> InsideStep:
        """Build the command that runs another on each node of a running job, as its owner.

        `row` follows domain.schema.JOBS. Raises UsageError with the reason if that is impossible.
        """
        raise UsageError(_UNSUPPORTED)

    def use_nodes(self, native: Native) -> Query[tuple[str, ...]]:
        """Query the nodes of a running job, with the scheduler's own names, for `use`.

        parse raises UsageError if the job is unknown.
        """
        raise UsageError(_UNSUPPORTED)

    def use(self, native: Native, nodes: tuple[str, ...]) -> Query[tuple[NodeSample, ...]]:
        """Query the live usage of a job on these nodes."""
        raise UsageError(_UNSUPPORTED)


class LogsPart:
    """Log files of jobs."""

    has_results: bool = False
    """Whether the log of a call ends with its result, as its job has no folder to fetch it from."""

    def files(self, detail: JobDetail, script: Script | None) -> LogFiles:
        """Return the paths of a job's logs; the script is passed only if `needs_script`."""
        stdout, stderr = (
            detail.job[column][0].as_py() for column in ("stdout_path", "stderr_path")
        )
        return LogFiles(stdout, None if stderr == stdout else stderr)

    def needs_script(self, detail: JobDetail) -> bool:
        """Whether the paths depend on directives in the batch script."""
        return False

    def others(self, detail: JobDetail, files: LogFiles) -> Query[tuple[OtherLog, ...]] | None:
        """Query the logs of parts of a job; `files` are the job's own. None if there are none."""
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
    """Batch scripts: writer, reader, and the scripts of jobs."""

    request_fields: tuple[RequestField, ...] = ()
    """The keys of a request that this scheduler alone has."""

    def writer(self) -> ScriptWriter | None:
        """Return the script writer; None if the scheduler has no batch scripts."""
        return None

    def reader(self) -> ScriptReader:
        """Return the reader of script directives."""
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
    """Site policy. A query is None if the scheduler does not have it."""

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

    def access_rules(self, version: str) -> Query[AccessRules] | None:
        """Query the accounts and QoS that each queue admits, and the sizes of its jobs, for a
        version of the scheduler; None where queues report that themselves.
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

    movable: frozenset[str] = frozenset()
    """Those of queue, account and qos that ALTER changes for a waiting job, which keeps its ID."""

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

    estimates_starts: bool = False
    """Whether `start_estimate` has a query."""

    new_limits: frozenset[str] = frozenset()
    """The fields of NewLimits that a resubmission can have."""

    copies: bool = False
    """Whether `resubmission` can submit a waiting job's copy in another place."""

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
        copy: Copy | None = None,
    ) -> SubmitCommand:
        """Build the command that submits a job's script with its options again, as they were but
        for `limits`; of an array only `tasks` (None: all it had).

        With `copy` it is submitted held, in another place, and the job may be another cluster's.
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

    Its parts only build commands and parse answers; they do not run anything. The default of a
    part is for a scheduler without that feature.
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

    on_cluster: Callable[[str], Backend] | None = None
    """Return the backend for one of several clusters of a site, by its name; None if a site has one
    cluster.
    """

    has_whole_ids: bool = True
    """Whether an id that a person writes is whole: 12 is no other scheduler's word for 12[].server.
    """

    is_embedded: bool = False
    """Whether its queue is a folder of this machine, and hpcdash runs its jobs."""

    def require(self, capability: Capability) -> None:
        """Raise UsageError where the scheduler lacks a capability."""
        if capability not in self.capabilities:
            action, step = _REFUSALS.get(capability, (f"provide: {capability}", ""))
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
