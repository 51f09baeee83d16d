"""Reads how a PBS command failed: from its own words and its exit status to an error with a next
step.

Sources: pbs_messages.c and pbs_error.h of OpenPBS, pbs_error_db.h of Torque.
"""

from __future__ import annotations

import re

from hpcdash.backends.queries import FAILED, Answer, Failure, failed, missing, own_message
from hpcdash.errors import (
    AccountingUnavailable,
    CommandError,
    CommandTimedOut,
    ControllerDown,
    NoConfiguration,
    NoSuchJob,
    SchedulerRefused,
    program_name,
)

# What timeout(1) exits with when it had to end the command.
_TIMED_OUT_STATUS = 124
_LIST_HEADS = (b"Job Id: ", b"Queue: ", b"Server: ", b"Name=", b"<Data>", b"<?xml")
_NO_HISTORY_WORDS = b"not configured to maintain job history"
# The connection broke, or nobody answered, once the request was sent. 15031 is PBSE_PROTOCOL.
_LOST_ANSWER = re.compile(
    r"end of file|premature end|protocol error|communication failure|timed out|connection reset|"
    r"broken pipe|server returned error 15031",
    re.IGNORECASE,
)

_NO_HISTORY = Failure(
    AccountingUnavailable,
    "this PBS server does not keep job history (job_history_enable is off)",
    "Exit statuses are known only if hpcdash saw them or the output shows them. Administrators "
    "can enable job history.",
)
_ENDED = Failure(
    NoSuchJob, "this job has ended", "Finished jobs: `hpcdash history`, or key 4 in the app."
)
_UNKNOWN_JOB = Failure(
    NoSuchJob,
    "PBS no longer knows this job",
    "Finished jobs: `hpcdash history`, or key 4 in the app.",
)
_DOWN = Failure(
    ControllerDown,
    "the PBS server does not respond",
    "Running jobs continue; `qstat -B` shows when it is back.",
)
_UNAUTHORIZED = Failure(
    SchedulerRefused,
    "PBS denied permission",
    "It may be another user's job, a restricted queue, or an operator's action (suspend, resume, "
    "requeue).",
)
_BAD_STATE = Failure(
    SchedulerRefused,
    "PBS cannot do this in the job's current state",
    "Check the job's state: it may have started or ended meanwhile.",
)
_NO_QUEUE = Failure(SchedulerRefused, "no such queue", "`hpcdash queues` lists the queues.")
_CLOSED_QUEUE = Failure(
    SchedulerRefused,
    "this queue is not accepting jobs",
    "`hpcdash queues` shows queues that do; or wait until this queue is enabled.",
)
_RESOURCE_LIMITS = Failure(
    SchedulerRefused,
    "the request exceeds the limits of the queue or the server",
    "`qstat -Qf QUEUE` shows the limits (resources_max, resources_min): request less, or use "
    "another queue.",
)
_COUNT_LIMIT = Failure(
    SchedulerRefused,
    "you have reached your limit in this queue or on this server",
    "Wait until some of your jobs end; `qstat -Qf QUEUE` shows the limits.",
)
_INVALID = Failure(
    SchedulerRefused,
    "PBS cannot do this for these jobs",
    "Single array tasks cannot be held, released or changed; use the whole array.",
)
_AUTHENTICATION = Failure(
    ControllerDown,
    "this login node cannot authenticate you to the PBS server",
    "This is a site problem: send the message to the administrators (pbs_iff, munge or trqauthd).",
)
_BAD_HOST = Failure(
    ControllerDown,
    "the PBS server does not accept commands from this machine",
    "Log in to a submit host, or ask the site's administrators.",
)
_BUSY = Failure(
    ControllerDown,
    "the PBS server has no free connections",
    "hpcdash retries automatically; running jobs continue.",
)
_NO_SERVER = Failure(
    ControllerDown,
    "{name} cannot resolve the configured PBS server",
    "Check PBS_SERVER in /etc/pbs.conf, or the module or profile that sets it. `hpcdash doctor` "
    "shows more.",
)
_NO_CONFIGURATION = Failure(
    NoConfiguration,
    "{name} found no PBS configuration",
    "Set PBS_CONF_FILE on the login node (often done by a module or a login profile), then try "
    "again.",
)
_BAD_OPTION = Failure(
    SchedulerRefused,
    "{name} rejected an option or its value",
    "See the message above; `man {name}` explains it.",
)
_NO_RESOURCE = Failure(
    SchedulerRefused,
    "no such resource on this PBS",
    "See the message; sites define their own names (gpus, ngpus).",
)
_BAD_VALUE = Failure(
    SchedulerRefused, "PBS cannot parse a value", "See the message; `man pbs_resources` helps."
)
_NO_NODE = Failure(SchedulerRefused, "no such node", "`hpcdash nodes` lists the nodes.")
_NO_SIGNAL = Failure(
    SchedulerRefused, "no such signal on PBS", "TERM, USR1, … or a number; `kill -l` lists them."
)
_WINDOWS_LINES = Failure(
    SchedulerRefused,
    "the script has Windows line endings (CRLF)",
    "`sed -i 's/\\r$//' SCRIPT` fixes them.",
)
# Tried in this order: the first whose words are there tells. One failure often says several of
# them.
_BY_WORDS = {
    (
        r"Unknown (Array )?Job Id|Unknown Array ID|Unknown Job\b|unknown job id|Job not found"
        r"|[Ii]llegally formed job identifier|Job id .* not valid"
    ): _UNKNOWN_JOB,
    # Said of each job by its id as well, before what becomes of the id itself.
    r"not configured to maintain job history": _NO_HISTORY,
    r"Job has (already )?finished|finished array subjob": _ENDED,
    r"pbs_?conf error|pbs conf variables not found|[Cc]ould not load pbs conf": _NO_CONFIGURATION,
    (
        r"pbs_iff:|Unable to authenticate connection|auth: error returned|errno=150(07|19)\b"
        r"|MUNGE user-authentication|[Mm]unge (executable|encode|decode)"
        r"|(connect to|communicat\w+ with|in connection to) (the )?trqauthd|trqauthd unable"
        r"|Invalid credential|Expired credential"
    ): _AUTHENTICATION,
    r"Access from host not allowed|client is not allowed/trusted": _BAD_HOST,
    (
        r"Unknown [Hh]ost|errno=15008\b|[Nn]o default server|No server specified|errno=15034\b"
    ): _NO_SERVER,
    (
        r"No free connections|connection table full|errno=15033\b|Cannot assign requested "
        r"address|[Ss]erver busy"
        r"|too busy to run"
    ): _BUSY,
    (
        r"[Cc]annot connect to|Couldn't connect to|Connection refused|No route to host|Connection "
        r"timed out"
        r"|Connection reset|Network is unreachable|Communication failure|[Ee]nd of "
        r"[Ff]ile|shutting down"
        r"|Premature end of message|Batch protocol error|Bad DIS|(Unable to|could not) contact"
        r"|Could not connect to batch|Can not establish connection|Unable to get connection"
    ): _DOWN,
    r"Unauthorized Request|not authorized|Invalid user id": _UNAUTHORIZED,
    r"Unknown queue|queue does not exist": _NO_QUEUE,
    r"Queue is not enabled": _CLOSED_QUEUE,
    r"Access to queue is denied|Unauthorized queue": _UNAUTHORIZED,
    (
        r"resource limits|exceeds (queue|server|resource)|size limit|Resource limit exceeds"
    ): _RESOURCE_LIMITS,
    r"would exceed|Maximum number of jobs": _COUNT_LIMIT,
    (
        r"Request invalid for state|while job running|not rerunnable|already in (progress|exit "
        r"state)"
    ): _BAD_STATE,
    r"Unknown resource": _NO_RESOURCE,
    r"Unknown node": _NO_NODE,
    r"Unknown/illegal signal name": _NO_SIGNAL,
    r"script contains cr, lf": _WINDOWS_LINES,
    (
        r"Illegal attribute or resource value|node\(s\) specification error|cannot be used with "
        r".select. or .place."
        r"|Bad time specification|attribute value is out of range"
    ): _BAD_VALUE,
    r"(?m)^\w+: Invalid request\b": _INVALID,
    r"(?mi)invalid option|Unknown option|conflicting options|illegal -|^usage:": _BAD_OPTION,
}
# PBSE_… & 255, where the words told nothing. Several failures of one call leave one status.
_BY_STATUS = {
    35: _ENDED,
    36: _NO_HISTORY,
    38: _COUNT_LIMIT,
    39: _COUNT_LIMIT,
    153: _UNKNOWN_JOB,
    156: _INVALID,
    159: _UNAUTHORIZED,
    162: _DOWN,
    168: _BAD_STATE,
    170: _NO_QUEUE,
    173: _CLOSED_QUEUE,
    188: _RESOURCE_LIMITS,
}
# qstat's where it has no connection; others have it for anything.
_NO_CONNECTION_STATUS = 255


def has_no_history(answer: Answer) -> bool:
    """Whether the server said that it keeps no history; `qstat -x` exits 0 then, with nothing
    printed.
    """
    return _NO_HISTORY_WORDS in answer.stderr


def no_history(answer: Answer, command: tuple[str, ...]) -> CommandError:
    """Return the error of an answer for which `has_no_history`, whatever its other messages."""
    return failed(_NO_HISTORY, answer, command)


def failure(answer: Answer, command: tuple[str, ...] = ()) -> CommandError:
    """Return the error of a failed answer; `command` is what failed, where argv is a script around
    it.
    """
    argv = command or answer.argv
    if error := missing(answer, argv, "PBS"):
        return error
    # A list that was cut is no message: anybody may have written what a job's attributes say.
    is_list = not answer.stderr.strip() and answer.stdout.lstrip().startswith(_LIST_HEADS)
    reported = "" if is_list else own_message(answer)
    if answer.status == _TIMED_OUT_STATUS and not reported:
        return CommandTimedOut(
            f"{program_name(argv)} got no answer from the PBS server",
            "It may be hung or busy; running jobs continue.",
            argv=argv,
            status=answer.status,
        )
    kind = next(
        (kind for pattern, kind in _BY_WORDS.items() if re.search(pattern, reported)),
        _BY_STATUS.get(answer.status, FAILED),
    )
    if kind is FAILED and answer.status == _NO_CONNECTION_STATUS and not reported:
        kind = _DOWN
    return failed(kind, answer, argv)


def require_success(answer: Answer, command: tuple[str, ...] = ()) -> None:
    """Raise the error of an answer that ended badly; one that was cut at our output cap has printed
    what it has.
    """
    if answer.status != 0 and not answer.truncated:
        raise failure(answer, command)


def is_answer_lost(message: str) -> bool:
    """Whether a command's message leaves open if the server did what was requested."""
    return _LOST_ANSWER.search(message) is not None
