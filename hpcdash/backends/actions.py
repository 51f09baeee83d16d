"""What can be done to jobs: what a person wants, the commands for it, how it went."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from hpcdash.backends.queries import Answer
from hpcdash.errors import without_env

# What can be changed of a job, by the names of `hpcdash alter`.
ALTERABLE = ("time", "queue", "qos", "nice", "throttle")
# What programs change besides: the comment that marks a task of a shared pool, which only its owner
# can write.
COMMENT = "comment"
# And the nodes that a waiting job is to start on, joined with commas: those of a shared pool that
# is a list of nodes.
NODES = "nodes"
# How an outcome names a new job.
_NEW_JOB = re.compile(r"job ([^\s;]+)")


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
    # What the scheduler keeps of a job that ended is removed.
    DELETE = "delete"
    SUBMIT = "submit"
    # Files that a training looks for; no scheduler knows of them.
    KILL_SWITCH = "kill-switch"
    SAVE_SWITCH = "save-switch"
    CLEAR_KILL_SWITCH = "clear-kill-switch"
    CLEAR_SAVE_SWITCH = "clear-save-switch"


class ActionRequest(Struct, frozen=True):
    """An action on jobs.

    `job_ids` as in rows: 12, 12_3, 12_[3-5%1]; an array's number is the whole array.

    `signal` (USR1, TERM, …) and `recipient` ('' the job's steps, 'batch' its batch shell, 'full'
    both, or a step's number) are for SIGNAL; `changes` maps names of ALTERABLE, COMMENT or NODES to
    what the user typed, for ALTER. `force` is for CANCEL: the job leaves the queue even if the
    scheduler cannot end it on its node. `hold` is for REQUEUE: the job waits until it is released,
    and one that has ended meanwhile stays ended if the scheduler can tell. `at_once` is for
    RELEASE: the job may begin now, whatever its begin time.
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
    """The outcome for one job: `done` None is unknown; `words` are the scheduler's own.

    `is_unreachable`: nothing was done, because the scheduler could not be reached.
    `can_force`: refused, but the same with `force` may work.
    """

    job_id: str
    done: bool | None
    words: str = ""
    is_unreachable: bool = False
    can_force: bool = False

    @property
    def new_job(self) -> str:
        """The id of the job that a submission made, '' where there is none or it was not told: `7`
        of `job 7; …`.
        """
        found = _NEW_JOB.match(self.words) if self.done else None
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
    def words(self) -> str:
        """As a person reads it: what is shown, else the command as it is typed, whole, without its
        `env` settings.
        """
        return " ".join(self.shown) or shlex.join(without_env(self.argv))
