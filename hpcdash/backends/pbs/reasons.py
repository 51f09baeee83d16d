"""PBS's comments in plain words: why a job waits, how it ended, and what to do.

Sources: the comments of OpenPBS's scheduler (fctt of job_info.cpp) and server, of Torque's pbs_sched, the substates of
job.h; what OpenPBS 23.06 printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hpcdash.backends.base import PolicyReason
from hpcdash.backends.pbs.values import duration_seconds, size_bytes
from hpcdash.domain.columns import digits
from hpcdash.domain.states import ENDED, WAITING, JobState
from hpcdash.domain.units import format_duration, format_memory, parse_memory

_EXECUTION = {
    -1: ("FAIL1", "could not be started"),
    -2: ("FAIL2", "could not be started, after its files were in place"),
    -3: ("RETRY", "could not be started, and is tried again"),
    -4: ("INITABT", "ended when its node's PBS came up again"),
    -5: ("INITRST", "ended when its node's PBS came up again, with a checkpoint"),
    -6: ("INITRMG", "ended when its node's PBS came up again, with a checkpoint that can move"),
    -7: ("BADRESRT", "could not be restarted"),
    -10: ("FAILUID", "its node does not know its user or group"),
    -11: ("RERUN", "was put back into the queue"),
    -12: ("CHKP", "was saved as a checkpoint and ended"),
    -13: ("FAIL_PASSWORD", "its password was refused"),
    -14: ("RERUN_SIS_FAIL", "a node of it could not be reached"),
    -15: ("QUERST", "waits to be restarted from its checkpoint"),
    -16: ("FAILHOOK_RERUN", "a hook of the site refused it, and put it back"),
    -17: ("FAILHOOK_DELETE", "a hook of the site refused it, and deleted it"),
    -18: ("HOOK_RERUN", "a hook of the site put it back"),
    -19: ("HOOK_DELETE", "a hook of the site deleted it"),
    -20: ("RERUN_MS_FAIL", "its first node could not be reached"),
    -21: ("FAIL_SECURITY", "its node's PBS folders are not safe"),
    -22: ("HOOKERROR", "a hook of the site failed"),
    -23: ("FAIL_KRB5", "has no Kerberos credentials"),
    -24: ("KILL_NCPUS_BURST", "exceeded resource ncpus (burst)"),
    -25: ("KILL_NCPUS_SUM", "exceeded resource ncpus (sum)"),
    -26: ("KILL_VMEM", "exceeded resource vmem"),
    -27: ("KILL_MEM", "exceeded resource mem"),
    -28: ("KILL_CPUT", "exceeded resource cput"),
    -29: ("KILL_WALLTIME", "exceeded resource walltime"),
    -30: ("JOINJOB", "its nodes could not come together"),
    -31: ("KILL_HPMEM", "exceeded resource hpmem"),
    -32: ("RERUN_ZOMBIE_JOB", "its node had lost it"),
}
# Torque's, where they are others.
_TORQUE_EXECUTION = {
    -8: ("CMDFAIL", "its command could not be executed"),
    -9: ("STDOUTFAIL", "its output file could not be opened"),
    -10: ("OVERLIMIT_MEM", "exceeded resource mem"),
    -11: ("OVERLIMIT_WT", "exceeded resource walltime"),
    -12: ("OVERLIMIT_CPUT", "exceeded resource cput"),
    -13: ("RETRY_CGROUP", "its cgroup could not be made"),
    -14: ("RETRY_PROLOGUE", "its prologue failed"),
}


def exit_reason(exit_status: int, *, is_torque: bool = False) -> str | None:
    """`its first node could not be reached (JOB_EXEC_RERUN_MS_FAIL, -20)`; None for what a job's own end left.

    For where the comment has no reason. Torque's −8 to −14 are others.
    """
    if exit_status >= 0:
        return None
    known = _TORQUE_EXECUTION.get(exit_status) if is_torque else None
    if known is None:
        known = _EXECUTION.get(exit_status)
    if known is None:
        return f"PBS ended it ({exit_status})"
    name, words = known
    return f"{words} (JOB_EXEC_{name}, {exit_status})"


# What stands for a comment where PBS writes none, by substate.
_BY_SUBSTATE = {
    "21": "waits for its partner jobs",
    "22": "waits for a dependency",
    "30": "waits for its start time",
    "37": "its files could not be staged in",
    "43": "suspended by a person",
    "45": "suspended by the scheduler",
    "71": "its node is being set up",
}
# Whose hold keeps a job where it does not say who made it; the owner's own needs no words.
_BY_HOLD = {"s": "held by PBS or a manager", "o": "held by an operator", "u": "held by its owner"}
# The reason of a job that ended without ever having started, though nobody deleted it: F, substate 92, no Exit_status.
DEPENDENCY_NOT_MET = "its dependency was not met"

_PLACED = r"(?i)Job (run|was sent for execution|started|Array Began|restarted)\b"
_ENDING = r"(?s) and (?:finished|failed|(?P<word>terminated(?: by \S+)?|exceeded resource .+?|rerun|requeued))\s*\Z"
_ENDED_WITHOUT = r"(?i)(?:Sub)?job (?:finished|failed|terminated)\.?"
_HELD_BY = r"(?s)Job held by (\S+) on [A-Z][a-z]{2} .*?(?= and |\Z)"
_NOT_RUNNING = r"(?i)Not Running(?:\s*[:-]\s*|\s+)"
_NEVER = r"(?i)(?:Can )?Never Run\s*[:-]\s*"


def reason_of(state: str, comment: str | None, *, substate: str | None = None, holds: str | None = None) -> str | None:
    """What of a job's comment is a reason: why it waits, or how it ended; None for `Job run at …` and the like.

    `substate`, and a held job's Hold_Types (`holds`), tell where the comment does not. A site's own text stays.
    """
    told = " ".join(comment.split()) if comment else ""
    if told:
        told = _parse_comment(state, told)
    by_substate = None if state in ENDED else _BY_SUBSTATE.get(substate or "")
    if state == JobState.SUSPENDED and told and by_substate:
        # The scheduler's comment tells why it does not go on: `Not Running: Insufficient amount of resource: ncpus`.
        return f"{by_substate}: {told}"
    if state == JobState.HELD and not told and not by_substate:
        return next((words for letter, words in _BY_HOLD.items() if letter in (holds or "")), None)
    return told or by_substate


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
_WHO_MANY = {"user": "its owner", "group": "its owner's group", "project": "its project"}


def _amount(resource: str, text: str) -> str:
    size = size_bytes(text) if resource in _MEMORY else None
    return text if size is None else format_memory(size)


def resource_amount(resource: str, text: str) -> str:
    """`4 CPUs`, `8G of memory`, `2:00:00 of CPU time`, `2 matlab`: an amount of one of PBS's resources."""
    words = RESOURCES.get(resource, resource)
    if resource in _TIMES and (seconds := duration_seconds(text)) is not None:
        return f"{format_duration(seconds)} of {words}"
    if text == "1" and words in _COUNTED:
        return f"1 {words.removesuffix('es' if words.endswith('sses') else 's')}"
    return f"{_amount(resource, text)} {'of ' if resource in _MEMORY else ''}{words}"


def _lacks(found: re.Match[str]) -> str:
    resource, rest = found["resource"], found["rest"].strip()
    words = RESOURCES.get(resource, resource)
    where = {"queue": " in its queue", "server": " on this server"}.get(found["where"] or "", "")
    figures = re.search(_FIGURES, rest)
    if figures is None:
        if words == "the node":
            return "the node it asks for is not free, or not there"
        if rest or words not in RESOURCES.values():
            return f"no node that it could use gives the {resource} it asks for now"
        return f"waits for enough {words} to be free{where}"
    asked, free, whole = (_amount(resource, figures[name]) for name in ("asked", "free", "whole"))
    if (most := digits(whole)) is not None and (digits(asked) or 0) > most:
        return f"needs {asked} {words}, of {whole} in all{where}"
    of = "of " if resource in _MEMORY else ""
    needed = resource_amount(resource, asked) if words in _COUNTED else f"{asked} {of}{words}"
    verb = "are" if words in _COUNTED and free != "1" else "is"
    return f"needs {needed}, {free} {verb} free of {whole} in all{where}"


def _limit(found: re.Match[str]) -> str:
    """As many run, or as much is used, as is allowed: whose, of what, where, as far as the comment tells."""
    groups = found.groupdict()
    who = _WHO_MANY.get((groups.get("who") or groups.get("each") or "").lower(), "all together")
    queue, resource = groups.get("queue"), groups.get("resource")
    where = f"in queue {queue}" if queue else "on this server"
    if not resource:
        return f"as many jobs run as {who} may have {where}; it waits for one to end"
    what = RESOURCES.get(resource, resource)
    used = f"many {what} are" if what in _COUNTED else f"much {what} is"
    return f"as {used} in use as {who} may have {where}; it waits for some to be free"


_Hint = str | Callable[["re.Match[str]"], str]
_QUEUE = r"queue (?P<queue>\S+?)(?:'s)?"
_HINTS: tuple[tuple[str, _Hint], ...] = (
    (r"Insufficient amount of (?:(?P<where>queue|server) )?resource: *(?P<resource>[^\s(]+)(?P<rest>.*)", _lacks),
    (
        r"(?:is|are) down\Z",
        "what the job does there is unknown; PBS gives it up after some minutes, cancel --force removes it now",
    ),
    (r"Queue not started", "its queue takes jobs but starts none now"),
    (r"not an execution queue", "its queue only passes jobs on, and no queue behind it has taken this one"),
    (rf"{_ENTITY} has reached (?:server|{_QUEUE}) running(?: job)? limit", _limit),
    (
        r"(?:server|queue (?P<queue>\S+)) per-(?P<who>user|group|project) limit reached on resource (?P<resource>\S+)",
        _limit,
    ),
    (rf"(?:server|queue (?P<queue>\S+)) job limit reached for {_ENTITY}", _limit),
    (
        rf"would exceed (?:{_ENTITY} \S+|per-(?P<each>user|group|project)|overall) limit on resource (?P<resource>\S+)"
        rf" in (?:complex|queue (?P<queue>\S+))",
        _limit,
    ),
    (r"would exceed (?:queue (?P<queue>\S+?)|complex)'s per-(?P<who>user|group|project) limit", _limit),
    (r"(?:server|queue (?P<queue>\S+?)) job limit has been reached", _limit),
    (r"running subjobs limit reached", "as many tasks of this array run as its limit allows"),
    (r"cross dedicated time", "would not end before the time that is set aside for other work; ask for less time"),
    (r"dedicated time", "the machine is set aside for other work now; it starts afterwards"),
    (r"right type of nodes", "waits for enough nodes of the kind it asks for"),
    (r"not enough free nodes", "waits for enough free nodes"),
    (r"not enough total nodes", "asks for more nodes than there are"),
    (
        r"conflict with reservation or top job|interfere with a (?:top job|confirmed reservation)",
        "would be in the way of a reservation or of a job that comes first; a shorter time limit may let it in",
    ),
    (r"in nonprimetime only|not a nonprimetime", "its queue runs jobs outside of prime time only"),
    (r"in primetime only|not a primetime", "its queue runs jobs in prime time only"),
    (r"cross into (?:non-?)?prime", "would run on into a time of day its queue does not use; ask for less time"),
    (r"Specified \S+ does not exist: (?P<name>\S+)", lambda found: f"it asks for {found['name']}, which is not there"),
    (r"no available resources on nodes", "no node has anything free for it"),
    (r"preempt enough work", "may take others' places, yet not enough of them to fit in"),
    (r"zero shares", "its owner has no share of the machine: ask the site"),
    (r"fairshare|fair share", "its owner has used more than their share lately; others go first"),
    (r"ineligible state: *(?P<state>\S+)", lambda found: f"a node it needs is {found['state']}"),
    (r"ineligible type", "a node it needs is of another kind"),
    (r"exclusive node and node is in use", "wants a node for itself alone, and none is empty"),
    (
        r"node has reached (?P<who>job|user|group) run limit",
        "as many jobs run on the nodes it could use as these allow",
    ),
    (r"multi-node job", "a node it needs cannot be part of a job of several nodes"),
    (r"licen[cs]e", "waits for a software licence"),
    (r"pack placement", "all of it has to fit on one node (place=pack), and no node has so much free"),
    (r"strict (?:sorted order|fifo order)", "jobs start strictly in order here, and others are ahead of it"),
    (r"top job", "others are ahead of it"),
    (r"cannot provision|provision conflict|provisioning", "the node it needs cannot be set up for it now"),
    (
        r"set (?P<set>\S+) has too few free",
        lambda found: f"the group of nodes {found['set']} has too little free for it",
    ),
    (r"too few free resources", "waits for enough to be free"),
    (r"largest placement set", "no group of nodes that belong together is large enough for it"),
    (r"invalid job/resv", "PBS cannot make sense of what it asks for"),
    (r"job_sort_formula threshold", "its priority is too low to be started yet"),
    (r"mission", "its group has used the share of the machine it has"),
    (r"draining system|starving job", "the machine is kept free for a job that has waited long"),
    (r"timesharing nodes are too loaded", "the nodes it could use are too busy"),
    (r"queue is (?:configured to be )?ignored", "the scheduler does not look at its queue"),
    (r"token usage", "waits for a token of the site to be free"),
    (r"internal scheduling error", "the scheduler failed on it; tell the site if that stays so"),
    (r"PBS Error: *(?P<said>.+)", lambda found: f"PBS could not start it, and tries again; it said: {found['said']}"),
    (
        r"too many failed attempts",
        "PBS could not start it, time and again: is the folder of its output there and writable? An operator has to "
        "release it; or delete it and submit it anew",
    ),
    (r"^held by (?:PBS|an operator)", "only they can release it, or PBS once what it waits for is there"),
    (r"^held by its owner", "release it to let it run"),
    (r"^held by (?P<who>\S+)", lambda found: f"held by {found['who']}; release it to let it run"),
    (rf"^{_BY_SUBSTATE['22']}", "waits for another job it depends on"),
    (rf"^{_BY_SUBSTATE['30']}", "waits for the start time it asked for"),
    (rf"^{_BY_SUBSTATE['37']}", "its input files could not be copied; it is tried again: are they there?"),
    (rf"^{_BY_SUBSTATE['43']}", "was suspended; it goes on when it is resumed"),
    # Maui and Moab.
    (r"BatchHold|Job deferred|\bdeferred\b", "the scheduler failed to start it and leaves it alone for a while"),
    (r"throttling polic|usage limit|violates .*polic", "its owner runs as much as the site's policy allows"),
    (r"NoResources|insufficient (?:idle )?(?:procs|nodes)", "waits for enough to be free"),
)
_ENDINGS: tuple[tuple[str, _Hint], ...] = (
    (
        r"^terminated by (?P<who>[^@\s]+)@(?P<host>\S+)",
        lambda found: f"deleted by {found['who']}, from {found['host']}",
    ),
    (r"^terminated$", "deleted"),
    # As domain.exits has them for the states these end in: said once.
    (r"^exceeded resource walltime", "ran into its time limit"),
    (r"^exceeded resource (?:mem|hpmem)\b", "used more memory than it requested"),
    (r"^exceeded resource vmem", "used more virtual memory than it asked for"),
    (r"^exceeded resource cput", "used more CPU time than it asked for"),
    (r"^exceeded resource ncpus", "kept more CPUs busy than it asked for"),
    (r"^exceeded resource (?P<resource>.+)", lambda found: f"used more {found['resource']} than it asked for"),
    (
        rf"^{DEPENDENCY_NOT_MET}",
        "it never started: a job it depends on ended the wrong way, or is not known any more",
    ),
    (r"JOB_EXEC_(?:FAIL1|FAIL2|RETRY)\b", "is the folder of its output there and writable, and its home on the nodes?"),
    (r"JOB_EXEC_RERUN\b", "made way for another job, or was put back by hand"),
    (r"JOB_EXEC_(?:RERUN_MS_FAIL|RERUN_SIS_FAIL|JOINJOB|RERUN_ZOMBIE_JOB)\b", "a node it ran on failed"),
    (r"JOB_EXEC_(?:FAILHOOK|HOOK)", "its output or the site can tell why"),
)
_OUTLIVED = r" and (terminated(?: by \S+)?)\Z"


def reason_hint(state: str, reason: str | None) -> str:
    """As ReasonsPart.hint: one short clause, with figures where the comment has them; '' where it says it all."""
    if not reason:
        return "held; release it to let it run" if state == JobState.HELD else ""
    if state in ENDED:
        return _ended_hint(reason)
    if state == JobState.SUSPENDED and reason.startswith(_BY_SUBSTATE["45"]):
        words = _hint(_HINTS, reason.partition(": ")[2])
        return "makes way for a job that comes first, and goes on afterwards" + (f"; now {words}" if words else "")
    never = re.match(_NEVER, reason)
    words = _hint(_HINTS, reason[never.end() :] if never else reason)
    if never:
        return (
            f"it will never start: {words or 'nothing here can give what it asks for'}: change the request or delete it"
        )
    if not words:
        # A job that was put back keeps what its last run ended with.
        words = _hint(_ENDINGS, reason)
    if not words and state == JobState.HELD:
        return "held; release it to let it run"
    return words


def _ended_hint(reason: str) -> str:
    outlived = re.search(_OUTLIVED, reason)
    before = reason[: outlived.start()] if outlived else reason
    never, waiting = re.match(_NEVER, before), re.match(_NOT_RUNNING, before)
    start = never or waiting
    if outlived is None and start is None:
        return _hint(_ENDINGS, reason)
    # What it waited for stays where it was deleted before it started.
    words = _hint(_HINTS, before[start.end() :] if start else before)
    how = f"{_hint(_ENDINGS, outlived[1])} before it started" if outlived else "it did not start"
    if never:
        how += ", which it never could have"
    return how + (f": {words}" if words and "release" not in words else "")


def _hint(table: tuple[tuple[str, _Hint], ...], reason: str) -> str:
    for pattern, words in table:
        if found := re.search(pattern, reason, re.IGNORECASE):
            return words if isinstance(words, str) else words(found)
    return ""


# -- reasons that are the site's rules

_POLICY_RESOURCES = {"ncpus": "cpus", "ngpus": "gpus", "mem": "memory", "nodect": "nodes"}


def policy_reason(state: str, reason: str | None) -> PolicyReason | None:
    """As ReasonsPart.policy: by the comments that `_limit` puts into words, and those on shares and reservations."""
    if state not in WAITING or not reason:
        return None
    for pattern, words in _HINTS:
        found = re.search(pattern, reason, re.IGNORECASE)
        if found is None:
            continue
        if words is _limit:
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


# -- reasons that no waiting ends

_LAUNCH = "Find out why it could not be launched (is its output path writable?), then hpcdash release {id}"
_REQUEST = "Nothing there can give what it asks for: change the request and submit it anew."
_NEVER_STARTS = (
    (r"(?:Can )?Never Run", _REQUEST),
    (r"Not enough total nodes", _REQUEST),
    (r"Specified \S+ does not exist", _REQUEST),
    (r"too many failed attempts", _LAUNCH),
    (r"Error in calculation of (?:limit|formula)|Invalid Job/Resv", _REQUEST),
)
_LACKS = re.compile(r"Insufficient amount of .*\(R: (?P<asked>\S+) A: \S+ T: (?P<whole>\S+)\)", re.IGNORECASE)


def never_starts(state: str, reason: str | None) -> str:
    """What to do about a job that will not start by itself, with `{id}` for its id; '' where waiting may help.

    What its owner held is no such job.
    """
    if state not in WAITING or not reason:
        return ""
    for pattern, step in _NEVER_STARTS:
        if re.search(pattern, reason, re.IGNORECASE):
            return step
    lacks = _LACKS.search(reason)
    return _REQUEST if lacks and _is_more(lacks["asked"], lacks["whole"]) else ""


def _is_more(asked: str, whole: str) -> bool:
    try:
        return parse_memory(asked) > parse_memory(whole)
    except ValueError:
        return False
