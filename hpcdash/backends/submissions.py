"""Arguments and results of submitting a batch script: the first time, again, or only for a start
estimate.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.queries import Query
from hpcdash.errors import UsageError

# How the comment of a job begins that was submitted from here.
MARK_START = "hpcdash:"


class Submission(Struct, frozen=True):
    """A batch script to hand in. `name` is its file's, for a script that names no job.

    `arguments` are the script's own, `options` the scheduler's in its words; `after` is what it
    waits for, as a request has it: `12` (however it ends), `afterok:13`. `mark` is found again in
    the queue where the answer was lost.
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
    # The account it is submitted as through sudo, '' for one's own; the submit command's own path
    # there, which sudo wants, '' where the PATH finds it.
    run_as: str = ""
    program: str = ""

    def as_account(self, *command: str) -> tuple[str, ...]:
        """Return a submit command as it is, or through sudo by its own path.

        Raises UsageError for a script on stdin, which sudo does not pass on.
        """
        if not self.run_as:
            return command
        if not self.file:
            raise UsageError(
                "a script on stdin is not submitted as another account", "Stage it first."
            )
        return ("sudo", "-n", "-u", self.run_as, self.program or command[0], *command[1:])


class NewLimits(Struct, frozen=True):
    """Limits that a job submitted again requests in place of its own; None: unchanged.

    Memory is that of a node.
    """

    time_seconds: int | None = None
    memory_bytes: int | None = None


AS_IT_WAS = NewLimits()
# How the comment of a copy names the job that it replaces, after its mark.
REPLACES = "replaces="


class Copy(Struct, frozen=True):
    """A held copy of a waiting job, and the place that it is submitted to.

    `queue`, `account` and `qos` replace the job's own; '': as the job was submitted. `job_id` is
    the job that it replaces, `replaces` the same with its cluster: 12@lab. `is_elsewhere`: on
    another cluster, whose defaults apply. `is_ours`: hpcdash submitted the job, whose environment
    is that of a new session.
    """

    job_id: str
    replaces: str
    queue: str = ""
    account: str = ""
    qos: str = ""
    is_elsewhere: bool = False
    is_ours: bool = False


class SubmitCommand(Struct, frozen=True):
    """A script that would be handed in, for the first time or once more; of an array perhaps some
    tasks.

    `notes` say in words what is left out, guessed or not known. Where the answer is lost the new
    job is found by `mark` in its comment or ID; `mark` is '' where it keeps a comment of its own,
    and then by `job_name` ('': not known).
    """

    command: ActionCommand
    notes: tuple[str, ...] = ()
    mark: str = ""
    job_name: str = ""
    # How many of its tasks may run at once; None for any number.
    throttle: int | None = None
    # Asked before it runs: raises SchedulerRefused where what the job needs is gone.
    check: Query[None] | None = None

    @property
    def named_command(self) -> ActionCommand:
        """The command with the name of the job it submits, by which a later run finds it."""
        return replace(self.command, job_name=self.job_name)


class SentFile(Struct, frozen=True):
    """A file of this machine that goes with a request."""

    content: bytes
    is_program: bool = False


class SubmittedRequest(Struct, frozen=True):
    """A request that is handed in without a batch script: what goes before, and the submission
    itself.

    `shown` is what will run, for a person to read: no value of a variable stands in it. `is_sent`
    tells whether what goes before was sent already, and is left out; None: it is always sent.
    """

    before: tuple[ActionCommand, ...]
    submission: SubmitCommand
    shown: str
    is_sent: Query[bool] | None = None


class StartEstimate(Struct, frozen=True):
    """Estimated start of a script that is submitted now. `starts_at_epoch` None: not reported.

    `node_list` is where, '' if not reported; `refusal` is why the scheduler would reject it, in its
    own words, and `hint` the same in plain ones. `is_known` is false if the scheduler cannot be
    queried: `hint` says so. `submitted_job` is the job that a wrapper of the scheduler's command
    submitted in place of an estimate. `is_nodes_missing`: it is refused because no nodes that are
    in service now can run it, though it may be accepted and wait for them.
    """

    is_known: bool = True
    starts_at_epoch: float | None = None
    cpus: int | None = None
    node_list: str = ""
    queue: str = ""
    refusal: str = ""
    hint: str = ""
    submitted_job: str = ""
    is_nodes_missing: bool = False
