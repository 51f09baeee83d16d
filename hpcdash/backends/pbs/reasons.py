"""PBS's comments in plain words: why a job waits, how it ended, and what to do.

Sources: the comments of OpenPBS's scheduler (fctt of job_info.cpp) and server, of Torque's
pbs_sched, the substates of job.h; what OpenPBS 23.06 printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hpcdash.backends.base import PolicyReason, ReasonsPart
from hpcdash.backends.pbs.values import duration_seconds, size_bytes
from hpcdash.domain.columns import digits
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.domain.units import format_duration, format_memory, parse_memory

_EXECUTION = {
    -1: ("FAIL1", "could not be started"),
    -2: ("FAIL2", "could not start after staging its files"),
    -3: ("RETRY", "could not start; PBS retries"),
    -4: ("INITABT", "ended by a restart of PBS on the node"),
    -5: ("INITRST", "ended by a restart of PBS on the node, with a checkpoint"),
    -6: ("INITRMG", "ended by a restart of PBS on the node, with a migratable checkpoint"),
    -7: ("BADRESRT", "could not be restarted"),
    -10: ("FAILUID", "user or group unknown on the node"),
    -11: ("RERUN", "was requeued"),
    -12: ("CHKP", "was checkpointed and ended"),
    -13: ("FAIL_PASSWORD", "password rejected"),
    -14: ("RERUN_SIS_FAIL", "one of its nodes was unreachable"),
    -15: ("QUERST", "waiting to restart from a checkpoint"),
    -16: ("FAILHOOK_RERUN", "rejected and requeued by a site hook"),
    -17: ("FAILHOOK_DELETE", "rejected and deleted by a site hook"),
    -18: ("HOOK_RERUN", "requeued by a site hook"),
    -19: ("HOOK_DELETE", "deleted by a site hook"),
    -20: ("RERUN_MS_FAIL", "the first node was unreachable"),
    -21: ("FAIL_SECURITY", "the PBS folders on the node failed a security check"),
    -22: ("HOOKERROR", "a site hook failed"),
    -23: ("FAIL_KRB5", "has no Kerberos credentials"),
    -24: ("KILL_NCPUS_BURST", "exceeded resource ncpus (burst)"),
    -25: ("KILL_NCPUS_SUM", "exceeded resource ncpus (sum)"),
    -26: ("KILL_VMEM", "exceeded resource vmem"),
    -27: ("KILL_MEM", "exceeded resource mem"),
    -28: ("KILL_CPUT", "exceeded resource cput"),
    -29: ("KILL_WALLTIME", "exceeded resource walltime"),
    -30: ("JOINJOB", "the nodes could not connect to each other"),
    -31: ("KILL_HPMEM", "exceeded resource hpmem"),
    -32: ("RERUN_ZOMBIE_JOB", "the node lost track of the job"),
}
# Torque's, where they are others.
_TORQUE_EXECUTION = {
    -8: ("CMDFAIL", "the command could not be executed"),
    -9: ("STDOUTFAIL", "the output file could not be opened"),
    -10: ("OVERLIMIT_MEM", "exceeded resource mem"),
    -11: ("OVERLIMIT_WT", "exceeded resource walltime"),
    -12: ("OVERLIMIT_CPUT", "exceeded resource cput"),
    -13: ("RETRY_CGROUP", "the cgroup could not be created"),
    -14: ("RETRY_PROLOGUE", "the prologue failed"),
}


def exit_reason(exit_status: int, *, is_torque: bool = False) -> str | None:
    """`the first node was unreachable (JOB_EXEC_RERUN_MS_FAIL, -20)`; None for what a job's own end
    left.

    For where the comment has no reason. Torque's −8 to −14 are others.
    """
    if exit_status >= 0:
        return None
    known = _TORQUE_EXECUTION.get(exit_status) if is_torque else None
    if known is None:
        known = _EXECUTION.get(exit_status)
    if known is None:
        return f"ended by PBS ({exit_status})"
    name, text = known
    return f"{text} (JOB_EXEC_{name}, {exit_status})"


# What stands for a comment where PBS writes none, by substate.
_BY_SUBSTATE = {
    "21": "waits for its partner jobs",
    "22": "waits for a dependency",
    "30": "waits for its start time",
    "37": "files could not be staged in",
    "43": "suspended by a user",
    "45": "suspended by the scheduler",
    "71": "the node is being provisioned",
}
# Whose hold keeps a job where it does not say who made it; the owner's own needs no words.
_BY_HOLD = {"s": "held by PBS or a manager", "o": "held by an operator", "u": "held by its owner"}
# The reason of a job that ended without ever having started, though nobody deleted it: F, substate
# 92, no Exit_status.
DEPENDENCY_NOT_MET = "a dependency was not met"
# The reason of a job in a reservation's queue, which PBS calls not started.
RESERVATION_NOT_BEGUN = "waiting for its reservation to begin"
QUEUE_NOT_STARTED = "Queue not started"

_PLACED = r"(?i)Job (run|was sent for execution|started|Array Began|restarted)\b"
_ENDING = (
    r"(?s) and (?:finished|failed|(?P<word>terminated(?: by \S+)?|exceeded resource "
    r".+?|rerun|requeued))\s*\Z"
)
_ENDED_WITHOUT = r"(?i)(?:Sub)?job (?:finished|failed|terminated)\.?"
_HELD_BY = r"(?s)Job held by (\S+) on [A-Z][a-z]{2} .*?(?= and |\Z)"
_NOT_RUNNING = r"(?i)Not Running(?:\s*[:-]\s*|\s+)"
_NO_SUCH_NODE = r"resource: (?:host|vnode) \((?P<name>\S+) != "
_NEVER = r"(?i)(?:Can )?Never Run\s*[:-]\s*"


def find_reason(
    state: str, comment: str | None, *, substate: str | None = None, holds: str | None = None
) -> str | None:
    """Return the part of a job's comment that is a reason: why it waits, or how it ended; None for
    `Job run at …` and the like.

    `substate`, and a held job's Hold_Types (`holds`), tell where the comment does not. A site's own
    text stays.
    """
    reported = " ".join(comment.split()) if comment else ""
    if reported:
        reported = _parse_comment(state, reported)
    by_substate = None if state in ENDED else _BY_SUBSTATE.get(substate or "")
    if state == JobState.SUSPENDED and reported and by_substate:
        # The scheduler's comment tells why it does not go on: `Not Running: Insufficient amount of
        # resource: ncpus`.
        return f"{by_substate}: {reported}"
    if state == JobState.HELD and not reported and not by_substate:
        return next((text for letter, text in _BY_HOLD.items() if letter in (holds or "")), None)
    return reported or by_substate


def _parse_comment(state: str, comment: str) -> str:
    ending = re.search(_ENDING, comment)
    start = comment[: ending.start()] if ending else comment
    if state in ENDED:
        word = (ending["word"] or "") if ending else ""
        if re.match(_PLACED, start):
            return word
        if re.fullmatch(_ENDED_WITHOUT, start):
            return ""
        if held := re.match(_HELD_BY, comment):
            return f"held by {held[1]}{comment[held.end() :]}"
        return comment
    if re.match(_PLACED, comment) or re.fullmatch(_ENDED_WITHOUT, comment):
        return ""
    if held := re.match(_HELD_BY, comment):
        # It stays when the job is released, until the scheduler comes by.
        return f"held by {held[1]}" if state == JobState.HELD else ""
    waits = re.match(_NOT_RUNNING, comment)
    if waits is None:
        return comment
    return comment[waits.end() :] if state in WAITING or state == JobState.SUSPENDED else ""


RESOURCES = {
    "ncpus": "CPUs",
    "ngpus": "GPUs",
    "gpus": "GPUs",
    "mpiprocs": "MPI processes",
    "mem": "memory",
    "vmem": "virtual memory",
    "nodect": "nodes",
    "nodes": "nodes",
    "walltime": "time",
    "cput": "CPU time",
    "host": "the node",
    "vnode": "the node",
}
_COUNTED = frozenset({"CPUs", "GPUs", "MPI processes", "nodes"})
_MEMORY = frozenset({"mem", "vmem", "pmem", "pvmem", "hpmem"})
_TIMES = frozenset({"walltime", "cput", "pcput"})
_FIGURES = r"\(R: (?P<asked>\S*) A: (?P<free>\S*) T: (?P<whole>\S*)\)"
_ENTITY = r"(?P<who>user|group|project)"
_WHO_MANY = {"user": "the owner", "group": "the owner's group", "project": "the project"}


def _amount(resource: str, text: str) -> str:
    size = size_bytes(text) if resource in _MEMORY else None
    return text if size is None else format_memory(size)


def resource_amount(resource: str, text: str) -> str:
    """`4 CPUs`, `8G of memory`, `2:00:00 of CPU time`, `2 matlab`: an amount of one of PBS's
    resources.
    """
    message = RESOURCES.get(resource, resource)
    if resource in _TIMES and (seconds := duration_seconds(text)) is not None:
        return f"{format_duration(seconds)} of {message}"
    if text == "1" and message in _COUNTED:
        return f"1 {message.removesuffix('es' if message.endswith('sses') else 's')}"
    return f"{_amount(resource, text)} {'of ' if resource in _MEMORY else ''}{message}"


def _lacks(found: re.Match[str]) -> str:
    resource = found["resource"]
    rest = found["rest"].strip()
    text = RESOURCES.get(resource, resource)
    where = {"queue": " in the queue", "server": " on this server"}.get(found["where"] or "", "")
    figures = re.search(_FIGURES, rest)
    if figures is None:
        if text == "the node":
            return "the requested node is busy or does not exist"
        if rest or text not in RESOURCES.values():
            return f"no suitable node has the requested {resource}"
        return f"waiting for enough free {text}{where}"
    requested, free, whole = (
        _amount(resource, figures[name]) for name in ("asked", "free", "whole")
    )
    if (most := digits(whole)) is not None and (digits(requested) or 0) > most:
        return f"needs {requested} {text}; only {whole} exist{where}"
    of = "of " if resource in _MEMORY else ""
    needed = resource_amount(resource, requested) if text in _COUNTED else f"{requested} {of}{text}"
    verb = "are" if text in _COUNTED and free != "1" else "is"
    return f"needs {needed}; {free} of {whole} {verb} free{where}"


def _limit(found: re.Match[str]) -> str:
    """Explain a limit on running jobs or on resources: whose, of what, where, as far as the comment
    tells.
    """
    groups = found.groupdict()
    who = _WHO_MANY.get(
        (groups.get("who") or groups.get("each") or "").lower(), "all users together"
    )
    queue = groups.get("queue")
    resource = groups.get("resource")
    where = f"in queue {queue}" if queue else "on this server"
    if not resource:
        return f"{who} reached the limit on running jobs {where}; waiting for a job to end"
    what = RESOURCES.get(resource, resource)
    return f"{who} reached the limit on {what} {where}; waiting for capacity"


# A text with the groups of its pattern, or a function.
_Hint = str | Callable[["re.Match[str]"], str]
_QUEUE = r"queue (?P<queue>\S+?)(?:'s)?"
_HINTS: dict[str, _Hint] = {
    (
        r"Insufficient amount of (?:(?P<where>queue|server) )?resource: "
        r"*(?P<resource>[^\s(]+)(?P<rest>.*)"
    ): _lacks,
    r"(?:is|are) down\Z": (
        "the job's state there is unknown; PBS gives up after some minutes, or use cancel "
        "--force now"
    ),
    RESERVATION_NOT_BEGUN: "`hpcdash reservations` shows when it begins",
    QUEUE_NOT_STARTED: "the queue accepts jobs but does not start them",
    r"not an execution queue": "the queue only routes jobs, and no destination accepted this job",
    rf"{_ENTITY} has reached (?:server|{_QUEUE}) running(?: job)? limit": _limit,
    (
        r"(?:server|queue (?P<queue>\S+)) per-(?P<who>user|group|project) limit reached on "
        r"resource (?P<resource>\S+)"
    ): _limit,
    rf"(?:server|queue (?P<queue>\S+)) job limit reached for {_ENTITY}": _limit,
    (
        rf"would exceed (?:{_ENTITY} \S+|per-(?P<each>user|group|project)|overall) limit on "
        rf"resource (?P<resource>\S+)"
        rf" in (?:complex|queue (?P<queue>\S+))"
    ): _limit,
    r"would exceed (?:queue (?P<queue>\S+?)|complex)'s per-(?P<who>user|group|project) limit": _limit,
    r"(?:server|queue (?P<queue>\S+?)) job limit has been reached": _limit,
    r"running subjobs limit reached": "the array's limit on running tasks is reached",
    r"cross dedicated time": "would run into dedicated time; request less time",
    r"dedicated time": "dedicated time for other work; the job starts afterwards",
    r"right type of nodes": "waiting for enough nodes of the requested type",
    r"not enough free nodes": "waiting for enough free nodes",
    r"not enough total nodes": "requests more nodes than exist",
    r"conflict with reservation or top job|interfere with a (?:top job|confirmed reservation)": (
        "would delay a reservation or a job with higher priority; a shorter time limit may help"
    ),
    r"in nonprimetime only|not a nonprimetime": "the queue runs jobs only outside prime time",
    r"in primetime only|not a primetime": "the queue runs jobs only in prime time",
    r"cross into (?:non-?)?prime": "would run past the queue's hours; request less time",
    r"Specified \S+ does not exist: (?P<name>\S+)": "requests {name}, which does not exist",
    r"no available resources on nodes": "no node has enough free resources",
    r"preempt enough work": "cannot preempt enough jobs to start",
    r"zero shares": "the owner has no fair share; contact your administrators",
    r"fairshare|fair share": "the owner exceeded their fair share; other jobs go first",
    r"ineligible state: *(?P<state>\S+)": "a required node is {state}",
    r"ineligible type": "a required node has the wrong type",
    r"exclusive node and node is in use": "needs an exclusive node, and no node is empty",
    r"node has reached (?P<who>job|user|group) run limit": (
        "all suitable nodes reached their job limit"
    ),
    r"multi-node job": "a required node cannot run multi-node jobs",
    r"licen[cs]e": "waiting for a software licence",
    r"pack placement": "must fit on one node (place=pack), and no node has enough free resources",
    r"strict (?:sorted order|fifo order)": "jobs start strictly in order, and other jobs are ahead",
    r"top job": "other jobs are ahead",
    r"cannot provision|provision conflict|provisioning": (
        "the required node cannot be provisioned now"
    ),
    r"set (?P<set>\S+) has too few free": "node group {set} has too few free resources",
    r"too few free resources": "waiting for free resources",
    r"largest placement set": "no placement set is large enough",
    r"invalid job/resv": "PBS cannot parse the request",
    r"job_sort_formula threshold": "priority is below the start threshold",
    r"mission": "the group used up its share",
    r"draining system|starving job": "the machine is draining for a starving job",
    r"timesharing nodes are too loaded": "all suitable nodes are overloaded",
    r"queue is (?:configured to be )?ignored": "the scheduler ignores the queue",
    r"token usage": "waiting for a free site token",
    r"internal scheduling error": "internal scheduler error; report it if it persists",
    r"PBS Error: *(?P<said>.+)": "PBS could not start the job and will retry: {said}",
    r"too many failed attempts": (
        "PBS failed to start the job too often: check that the output folder exists and is "
        "writable. Have an operator release the job, or delete and resubmit it"
    ),
    r"^held by (?:PBS|an operator)": "only they can release it, or PBS when its condition is met",
    r"^held by its owner": "release it to let it run",
    r"^held by (?P<who>\S+)": "held by {who}; release it to let it run",
    rf"^{_BY_SUBSTATE['22']}": "waits for a job it depends on",
    rf"^{_BY_SUBSTATE['30']}": "waiting for its requested start time",
    rf"^{_BY_SUBSTATE['37']}": "staging the input files failed; PBS retries: check that they exist",
    rf"^{_BY_SUBSTATE['43']}": "suspended; resume it to continue",
    # Maui and Moab.
    r"BatchHold|Job deferred|\bdeferred\b": "the scheduler failed to start the job and deferred it",
    r"throttling polic|usage limit|violates .*polic": "the owner reached the site's usage limit",
    r"NoResources|insufficient (?:idle )?(?:procs|nodes)": "waiting for free resources",
}
_ENDINGS: dict[str, _Hint] = {
    r"^terminated by (?P<who>[^@\s]+)@(?P<host>\S+)": "deleted by {who}, from {host}",
    r"^terminated$": "deleted",
    # As domain.job_text describes the states that these end in.
    r"^exceeded resource walltime": "hit its time limit",
    r"^exceeded resource (?:mem|hpmem)\b": "used more memory than it requested",
    r"^exceeded resource vmem": "used more virtual memory than requested",
    r"^exceeded resource cput": "used more CPU time than requested",
    r"^exceeded resource ncpus": "used more CPUs than requested",
    r"^exceeded resource (?P<resource>.+)": "used more {resource} than requested",
    rf"^{DEPENDENCY_NOT_MET}": (
        "never started: a job it depends on did not end as required or is unknown"
    ),
    r"JOB_EXEC_(?:FAIL1|FAIL2|RETRY)\b": (
        "check that the output folder exists and is writable, and that the home directory is "
        "mounted on the nodes"
    ),
    r"JOB_EXEC_RERUN\b": "was preempted or requeued",
    r"JOB_EXEC_(?:RERUN_MS_FAIL|RERUN_SIS_FAIL|JOINJOB|RERUN_ZOMBIE_JOB)\b": (
        "one of its nodes failed"
    ),
    r"JOB_EXEC_(?:FAILHOOK|HOOK)": "see the output, or contact your administrators",
}
_OUTLIVED = r" and (terminated(?: by \S+)?)\Z"


def _ended_hint(reason: str) -> str:
    outlived = re.search(_OUTLIVED, reason)
    before = reason[: outlived.start()] if outlived else reason
    never = re.match(_NEVER, before)
    waiting = re.match(_NOT_RUNNING, before)
    start = never or waiting
    if outlived is None and start is None:
        return _hint(_ENDINGS, reason)
    # What it waited for stays where it was deleted before it started.
    text = _hint(_HINTS, before[start.end() :] if start else before)
    how = f"{_hint(_ENDINGS, outlived[1])} before it started" if outlived else "did not start"
    if never:
        how += ", and never could have"
    return how + (f": {text}" if text and "release" not in text else "")


def _hint(table: Mapping[str, _Hint], reason: str) -> str:
    for pattern, hint in table.items():
        if found := re.search(pattern, reason, re.IGNORECASE):
            return hint.format(**found.groupdict()) if isinstance(hint, str) else hint(found)
    return ""


# -- site rules

_POLICY_RESOURCES = {"ncpus": "cpus", "ngpus": "gpus", "mem": "memory", "nodect": "nodes"}


# -- reasons that never end

_LAUNCH = (
    "Find out why the job could not be launched (check its output path), then hpcdash release {id}"
)
_REQUEST = "The request cannot be met there: change it and resubmit."
_NEVER_STARTS = {
    r"(?:Can )?Never Run": _REQUEST,
    r"Not enough total nodes": _REQUEST,
    r"Specified \S+ does not exist": _REQUEST,
    r"too many failed attempts": _LAUNCH,
    r"Error in calculation of (?:limit|formula)|Invalid Job/Resv": _REQUEST,
}
_LACKS = re.compile(
    r"Insufficient amount of .*\(R: (?P<asked>\S+) A: \S+ T: (?P<whole>\S+)\)", re.IGNORECASE
)


class PbsReasons(ReasonsPart):
    """PBS's comments on jobs, which say more than a code."""

    def hint(self, state: str, reason: str | None) -> str:
        """One short clause, with figures where the comment has them; '' where it says it all."""
        if not reason:
            return "held; release it to let it run" if state == JobState.HELD else ""
        if state in ENDED:
            return _ended_hint(reason)
        if state == JobState.SUSPENDED and reason.startswith(_BY_SUBSTATE["45"]):
            text = _hint(_HINTS, reason.partition(": ")[2])
            return "preempted by a job with higher priority; it continues afterwards" + (
                f"; now {text}" if text else ""
            )
        never = re.match(_NEVER, reason)
        text = _hint(_HINTS, reason[never.end() :] if never else reason)
        if never:
            # What can never run was tried on all hosts, whatever runs there.
            if (absent := re.search(_NO_SUCH_NODE, reason)) is not None:
                text = f"the node {absent['name']} does not exist"
            return (
                f"will never start: {text or 'the request cannot be met here'}; change the "
                "request or delete the job"
            )
        if not text:
            # A job that was put back keeps what its last run ended with.
            text = _hint(_ENDINGS, reason)
        if not text and state == JobState.HELD:
            return "held; release it to let it run"
        return text

    def never_starts(self, state: str, reason: str | None) -> str:
        if state not in WAITING or not reason:
            return ""
        for pattern, step in _NEVER_STARTS.items():
            if re.search(pattern, reason, re.IGNORECASE):
                return step
        lacks = _LACKS.search(reason)
        try:
            is_more = lacks and parse_memory(lacks["asked"]) > parse_memory(lacks["whole"])
        except ValueError:
            is_more = False
        return _REQUEST if is_more else ""

    def policy(self, state: str, reason: str | None) -> PolicyReason | None:
        """By the comments that `_limit` puts into words, and those on shares and reservations."""
        if state not in WAITING or not reason:
            return None
        for pattern, hint in _HINTS.items():
            found = re.search(pattern, reason, re.IGNORECASE)
            if found is None:
                continue
            if hint is _limit:
                groups = found.groupdict()
                resource = groups.get("resource")
                return PolicyReason(
                    "limits",
                    "queue" if groups.get("queue") else "server",
                    (groups.get("who") or groups.get("each") or "all").lower(),
                    _POLICY_RESOURCES.get(resource, resource) if resource else "jobs_running",
                )
            return PolicyReason("reservations") if "reservation" in pattern else None
        return None
