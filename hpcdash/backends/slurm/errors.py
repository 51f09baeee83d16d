"""Errors of Slurm commands: from exit status and own message to an error with a next step."""

from __future__ import annotations

import re

from hpcdash.backends.queries import FAILED, Answer, Failure, failed, missing, own_message
from hpcdash.errors import (
    AccountingUnavailable,
    CommandError,
    ControllerDown,
    NoConfiguration,
    NoSuchJob,
    SchedulerRefused,
    program_name,
)

_NO_ACCOUNTING = Failure(
    AccountingUnavailable,
    "this cluster does not keep history (no accounting storage)",
    "Ended jobs stay visible for a few minutes only; the exit status of older ones is unknown.",
)
_ACCOUNTING_DOWN = Failure(
    AccountingUnavailable,
    "the Slurm accounting database does not respond",
    "Only the history is affected; jobs and nodes are not.",
)
_DOWN = Failure(
    ControllerDown,
    "the Slurm controller (slurmctld) does not respond",
    "Running jobs continue; `scontrol ping` shows its state.",
)
_CONTROLLER_WORDS = (
    "Unable to contact slurm controller|Socket timed out on send/recv|Connection refused"
    "|Zero Bytes were transmitted or received|Unable to establish controller machine"
    "|Transport endpoint is not connected"
)
# The request may have reached the controller. scontrol prints "Unexpected message" for one that is
# down, too.
_LOST_ANSWERS = (
    "Socket timed out on send/recv",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
    "send failure",
    "receive failure",
    "Communication connection failure",
)
_NO_SUCH_JOB = {
    # scontrol's message on a task that ended a while ago, of an array with remaining tasks.
    r"Invalid job id|Bad job/step specified|Invalid job array"
    r"|(?m:^Job [0-9]+_[0-9]+ not found$)": Failure(
        NoSuchJob,
        "Slurm no longer knows this job",
        "Finished jobs: `hpcdash history`, or key 4 in the app.",
    )
}
# Tried in this order. Output of Slurm 22.05 with its controller stopped, hung, or its configuration
# absent; see fixtures/slurm.
_FAILURES = _NO_SUCH_JOB | {
    "Unable to process configuration file|cannot stat file"
    "|Could not establish a configuration source|DNS SRV lookup failed": Failure(
        NoConfiguration,
        "{name} found no Slurm configuration",
        "Set SLURM_CONF on the login node (often done by a module or a login profile), then "
        "try again.",
    ),
    "No cluster '.*' known by database|invalid entry for --cluster": Failure(
        SchedulerRefused,
        "Slurm has no such cluster, or cannot reach it",
        "`sacctmgr show clusters` lists its clusters; `slurm_cluster` in config.toml names one.",
    ),
    _CONTROLLER_WORDS: _DOWN,
    "Munge encode failed|munge|Protocol authentication error|auth plugin": Failure(
        ControllerDown,
        "Slurm authentication (munge) fails on this login node",
        "This is a site problem: notify the administrators.",
    ),
}
# Those of sacct and sacctmgr.
_ACCOUNTING_FAILURES = (
    _NO_SUCH_JOB
    | {
        "Slurm accounting storage is disabled|accounting_storage/none"
        "|Only 'accounting_storage/slurmdbd' is supported": _NO_ACCOUNTING,
        "Problem talking to the database|slurm_persist_conn_open|Unable to connect to database"
        f"|{_CONTROLLER_WORDS}": _ACCOUNTING_DOWN,
    }
    | _FAILURES
)


def failure(answer: Answer, command: tuple[str, ...] = ()) -> CommandError:
    """Return the error of a failed answer; `command` is what failed, where argv is a script around
    it.
    """
    argv = command or answer.argv
    if error := missing(answer, argv, "Slurm"):
        return error
    is_accounting = program_name(argv) in ("sacct", "sacctmgr")
    text = own_message(answer)
    known = _ACCOUNTING_FAILURES if is_accounting else _FAILURES
    return failed(
        next((kind for pattern, kind in known.items() if re.search(pattern, text)), FAILED),
        answer,
        argv,
    )


def unknown_job(answer: Answer) -> NoSuchJob:
    """Return the error of an answer that has nothing of a job."""
    return NoSuchJob("Slurm no longer knows this job", argv=answer.argv, status=answer.status)


def accounting_unavailable(
    answer: Answer,
    message: str = "no shares or limits here: slurmdbd is not configured",
    next_step: str = "Only an administrator can set up accounting; `hpcdash queues` shows what "
    "partitions allow.",
    *,
    command: tuple[str, ...] = (),
) -> CommandError:
    """Return the error of an answer that reports no accounting; `command` as in `failure`."""
    kind = Failure(AccountingUnavailable, message, next_step)
    return failed(kind, answer, command or answer.argv)


def require_success(answer: Answer) -> None:
    """Raise the error of an answer that ended badly.

    squeue and sinfo exit 1 on failure. A command cut at our output cap has printed what it has
    printed.
    """
    if answer.status != 0 and not answer.truncated:
        raise failure(answer)


def is_answer_lost(message: str) -> bool:
    """Whether a command's message leaves open if the controller did what was requested."""
    return any(phrase in message for phrase in _LOST_ANSWERS)
