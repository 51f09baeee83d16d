"""Errors of Slurm commands: from exit status and own message to an error with a next step."""

from __future__ import annotations

import re

from hpcdash.backends.queries import Answer
from hpcdash.errors import (
    AccountingUnavailable,
    CommandError,
    CommandMissing,
    ControllerDown,
    NoConfiguration,
    NoSuchJob,
    SchedulerRefused,
    UnreadableOutput,
    excerpt,
    program_name,
)

_MISSING_STATUS = 127
# Output of Slurm 22.05 with its controller stopped, hung, or its configuration absent; see
# fixtures/slurm.
_CONTROLLER_WORDS = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv",
    "Connection refused",
    "Zero Bytes were transmitted or received",
    "Unable to establish controller machine",
    "Transport endpoint is not connected",
)
_CONFIGURATION_WORDS = (
    "Unable to process configuration file",
    "cannot stat file",
    "Could not establish a configuration source",
    "DNS SRV lookup failed",
)
_AUTHENTICATION_WORDS = (
    "Munge encode failed",
    "munge",
    "Protocol authentication error",
    "auth plugin",
)
_NO_SUCH_JOB_WORDS = ("Invalid job id", "Bad job/step specified", "Invalid job array")
# Message of scontrol on a task that ended a while ago, of an array with remaining tasks.
_NO_SUCH_TASK = re.compile(r"^Job [0-9]+_[0-9]+ not found$", re.MULTILINE)
_ACCOUNTING_WORDS = (
    "Slurm accounting storage is disabled",
    "Problem talking to the database",
    "slurm_persist_conn_open",
    "Only 'accounting_storage/slurmdbd' is supported",
    "accounting_storage/none",
    "Unable to connect to database",
)


def failure(answer: Answer, command: tuple[str, ...] = ()) -> CommandError:
    """The error a failed answer stands for; `command` is what failed, where argv is a script around
    it.
    """
    text = excerpt(answer.stderr) or excerpt(answer.stdout)
    argv = command or answer.argv
    name = program_name(argv)

    def error(kind: type[CommandError], message: str, next_step: str) -> CommandError:
        return kind(message, next_step, argv=argv, status=answer.status, words=text)

    def has(phrases: tuple[str, ...]) -> bool:
        return any(phrase in text for phrase in phrases)

    if answer.status == _MISSING_STATUS:
        return error(
            CommandMissing,
            f"{name} is not on the PATH here",
            'If Slurm lives elsewhere, set path = "/…/bin" in the configuration; `hpcdash doctor` '
            "searches for it.",
        )
    if has(_NO_SUCH_JOB_WORDS) or _NO_SUCH_TASK.search(text):
        return error(
            NoSuchJob,
            "Slurm no longer knows this job",
            "Finished jobs: `hpcdash history`, or key 4 in the app.",
        )
    if name in {"sacct", "sacctmgr"} and has((*_ACCOUNTING_WORDS, *_CONTROLLER_WORDS)):
        if "disabled" in text or "accounting_storage/none" in text or "is supported" in text:
            return error(
                AccountingUnavailable,
                "this cluster keeps no history (no accounting storage)",
                "Ended jobs stay visible for a few minutes only; how older ones ended is unknown.",
            )
        return error(
            AccountingUnavailable,
            "the Slurm accounting database does not respond",
            "Only the history is affected; jobs and nodes are not.",
        )
    if has(_CONFIGURATION_WORDS):
        return error(
            NoConfiguration,
            f"{name} found no Slurm configuration",
            "Set SLURM_CONF on the login node (often done by a module or a login profile), then "
            "try again.",
        )
    if has(_CONTROLLER_WORDS):
        return error(
            ControllerDown,
            "the Slurm controller (slurmctld) does not respond",
            "Running jobs continue; `scontrol ping` shows its state.",
        )
    if has(_AUTHENTICATION_WORDS):
        return error(
            ControllerDown,
            "Slurm authentication (munge) fails on this login node",
            "This is a site problem: tell the administrators.",
        )
    return error(SchedulerRefused, f"{name} failed", f"See its message; `man {name}` explains it.")


def accounting_unavailable(
    answer: Answer,
    message: str = "no shares or limits here: slurmdbd is not configured",
    next_step: str = "Only an administrator can set up accounting; `hpcdash queues` shows what "
    "partitions allow.",
    *,
    command: tuple[str, ...] = (),
) -> AccountingUnavailable:
    """Return the error of an answer that reports no accounting; `command` as in `failure`."""
    text = excerpt(answer.stderr) or excerpt(answer.stdout)
    return AccountingUnavailable(
        message, next_step, argv=command or answer.argv, status=answer.status, words=text
    )


def require_success(answer: Answer) -> None:
    """Raises the error of an answer that ended badly.

    squeue and sinfo exit 1 on failure. A command cut at our output cap has printed what it has
    printed.
    """
    if answer.status != 0 and not answer.truncated:
        raise failure(answer)


def unreadable(answer: Answer, what: str, command: tuple[str, ...] = ()) -> UnreadableOutput:
    """Return the error of a successful answer in an unexpected format.

    `command` as in `failure`.
    """
    argv = command or answer.argv
    name = program_name(argv)
    return UnreadableOutput(
        f"{name} printed something that is not a list of {what}",
        f"Is {name} a wrapper or an alias here? `hpcdash doctor` shows its path and version.",
        argv=argv,
        status=answer.status,
        words=excerpt(answer.stdout[:400]) or excerpt(answer.stderr),
    )
