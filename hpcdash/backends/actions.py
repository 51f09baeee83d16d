"""Actions on jobs: the request, the commands for it, and the outcomes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from hpcdash.backends.queries import Answer, decoded
from hpcdash.domain.job_ids import BadJobId, JobId
from hpcdash.errors import UsageError, without_env

# What can be changed of a job, by the names of `hpcdash alter`.
ALTERABLE = ("time", "queue", "qos", "nice", "throttle")
# What programs change besides: the comment that marks a task of a shared pool, which only its owner
# can write.
COMMENT = "comment"
# And the nodes that a waiting job is to start on, joined with commas: those of a shared pool that
# is a list of nodes.
NODES = "nodes"
# And the account that a waiting job is charged to, where it is moved.
ACCOUNT = "account"
# How an outcome names a new job.
_NEW_JOB = re.compile(r"job ([^\s;]+)")


class Verb(StrEnum):
    """Action on jobs; the journal and the command line use these words."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    SUSPEND = "suspend"
    RESUME = "resume"
    SIGNAL = "signal"
    ALTER = "alter"
    # What the scheduler keeps of a job that ended is removed.
    DELETE = "delete"
    SUBMIT = "submit"
    # To another queue or cluster: in place, or by a copy there.
    MOVE = "move"
    # Files that a training looks for; no scheduler knows of them.
    KILL_SWITCH = "kill-switch"
    SAVE_SWITCH = "save-switch"
    CLEAR_KILL_SWITCH = "clear-kill-switch"
    CLEAR_SAVE_SWITCH = "clear-save-switch"
    # Files in a job's folders.
    PUT_FILES = "put"
    DELETE_FILES = "delete-files"


class ActionRequest(Struct, frozen=True):
    """An action on jobs.

    `job_ids` as in rows: 12, 12_3, 12_[3-5%1]; an array's number is the whole array.

    `signal` (USR1, TERM, …) and `recipient` ('' the job's steps, 'batch' its batch shell, 'full'
    both, or a step's number) are for SIGNAL; `changes` maps names of ALTERABLE, COMMENT, NODES or
    ACCOUNT to what the user typed, for ALTER, and queue, account and qos for MOVE. `force` is for
    CANCEL: the job leaves the queue even if the scheduler cannot end it on its node. `hold` is for
    REQUEUE: the job waits until it is released, and one that has ended meanwhile stays ended if the
    scheduler can tell. `at_once` is for RELEASE: the job may begin now, whatever its begin time.
    """

    verb: Verb
    job_ids: tuple[str, ...]
    signal: str = ""
    recipient: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    force: bool = False
    hold: bool = False
    at_once: bool = False


class Outcome(Struct, frozen=True):
    """The outcome for one job: `done` None is unknown; `text` is the scheduler's own.

    `is_unreachable`: nothing was done, because the scheduler could not be reached.
    `can_force`: refused, but the same with `force` may work.
    """

    job_id: str
    done: bool | None
    text: str = ""
    is_unreachable: bool = False
    can_force: bool = False

    @property
    def new_job(self) -> str:
        """The id of the job that a submission made, '' where there is none or it was not told: `7`
        of `job 7; …`.
        """
        found = _NEW_JOB.match(self.text) if self.done else None
        return found[1] if found else ""


class ActionCommand(Struct, frozen=True):
    """A command that acts on jobs.

    `read` gives one outcome for each of `job_ids`, and raises nothing.

    `pause_seconds` are let go by before it runs, to spare the scheduler. `shown` is what it does in
    a person's words, where `argv` is a script that nobody would read: `stage 3 files (12K) in
    /home/ada/x-1`. `explain` gives what a line means that it writes on stderr while it runs.
    `job_name` is that of the job it submits, '' where it submits none or the name is not known.
    """

    argv: tuple[str, ...]
    job_ids: tuple[str, ...]
    read: Callable[[Answer], tuple[Outcome, ...]]
    stdin: bytes | None = None
    limit_seconds: float = 60.0
    pause_seconds: float = 0.0
    shown: tuple[str, ...] = ()
    explain: Callable[[str], str] = str
    job_name: str = ""

    @property
    def text(self) -> str:
        """Text for a person: `shown`, or else the whole command as it is typed, without its `env`
        settings.
        """
        return " ".join(self.shown) or shlex.join(without_env(self.argv))


# -- what the schedulers' commands share

Job = tuple[str, JobId]
# timeout(1)'s own status, and a shell's of a command that was interrupted, killed or terminated.
CUT_OFF = (124, 130, 137, 143)
_LAST_SIGNAL = 64
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def parse_jobs(job_ids: Iterable[str], parse: Callable[[str], JobId]) -> list[Job]:
    """Return each ID as the user named it, once, with its meaning; raise UsageError with the place
    of what is no ID, and for no ID at all.
    """
    jobs = []
    for text in dict.fromkeys(job_ids):
        try:
            jobs.append((text, parse(text)))
        except BadJobId as error:
            raise UsageError(
                f"{text!r} is not a job ID: {error.why}\n  {text}\n  {' ' * error.position}^"
            ) from None
    if not jobs:
        raise UsageError("specify a job")
    return jobs


def parse_signal(text: str, known: Collection[str], scheduler: str) -> str:
    """USR1 of 'USR1', 'SIGUSR1', 'usr1'; a number as it is. Raises UsageError."""
    requested = text.strip().upper().removeprefix("SIG")
    if requested in known or (
        requested.isdecimal() and requested.isascii() and 1 <= int(requested[:6]) <= _LAST_SIGNAL
    ):
        return requested
    raise UsageError(
        f"{text!r} is not a signal that {scheduler} supports",
        f"A number up to {_LAST_SIGNAL}, or: {' '.join(known)}.",
    )


def parse_integer(field: str, value: str) -> int:
    """Return the integer that a user wrote for a field; raise UsageError."""
    if not _INTEGER.fullmatch(value):
        raise UsageError(f"{field}: {value!r} is not a whole number")
    return int(value)


def require_alterable(
    changes: Mapping[str, str], alterable: Sequence[str], others: Sequence[str] = ()
) -> None:
    """Raise UsageError for no change, and for one that is neither alterable by a user nor among
    `others`.
    """
    step = f"You can change: {', '.join(alterable)}."
    if unknown := [name for name in changes if name not in (*alterable, *others)]:
        raise UsageError(f"{unknown[0]!r} cannot be changed here", step)
    if not changes:
        raise UsageError("nothing to change", step)


def message_lines(answer: Answer) -> list[str]:
    """Return the lines that a command printed, without blank ones; its errors come last."""
    text = decoded(answer.stdout + b"\n" + answer.stderr)
    return [line.strip() for line in text.split("\n") if line.strip()]
