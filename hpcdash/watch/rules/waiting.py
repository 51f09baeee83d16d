"""Will it ever start? Jobs that wait for what never comes. Knows the words of Slurm and PBS."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from hpcdash.domain.columns import text_of
from hpcdash.domain.states import WAITING, JobState
from hpcdash.domain.text import clip
from hpcdash.domain.units import parse_memory
from hpcdash.watch.findings import Finding, Severity, job_words, shown
from hpcdash.watch.rules.rows import rows_where

RULE = "never-starts"
# (state, reason) in plain words, as Backend.reason_hint.
ReasonHint = Callable[[str, str | None], str]
_REASON_CELLS = 80
_SAID_ALREADY = re.compile(r"^(?:it )?will (?:never|not) start: ")
_DEPENDENCY = "hpcdash cancel {id}, or submit it anew: what it depends on ended the wrong way."
_LIMIT = "It asks for more than its limits allow: hpcdash alter {id}, or submit it anew with less."
_TIME = "hpcdash alter {id} --time with a shorter limit, or another queue."
_RIGHTS = "Ask the site, or submit it anew with another account, QoS or queue."
_LAUNCH = "Find out why it could not be launched (is its output path writable?), then hpcdash release {id}"
_REQUEST = "Nothing there can give what it asks for: change the request and submit it anew."
# Reasons of squeue(1), JOB REASON CODES.
_SLURM = {
    "DependencyNeverSatisfied": _DEPENDENCY,
    "PartitionTimeLimit": _TIME,
    "PartitionNodeLimit": _LIMIT,
    "PartitionConfig": _RIGHTS,
    "MaxMemPerLimit": _LIMIT,
    "BadConstraints": _REQUEST,
    "InvalidAccount": _RIGHTS,
    "InvalidQOS": _RIGHTS,
    "AccountNotAllowed": _RIGHTS,
    "QOSNotAllowed": _RIGHTS,
    "ReservationDeleted": _RIGHTS,
    "ReservationInvalid": _RIGHTS,
    "JobHoldMaxRequeue": _LAUNCH,
    "launch failed requeued held": _LAUNCH,
    "user env retrieval failed requeued held": _LAUNCH,
    "DeadLine": "Its deadline is over: submit it anew.",
}
# QOSMaxWallDurationPerJobLimit, AssocMaxCpuPerJobLimit, QOSMaxGRESPerNode, QOSMinCpuNotSatisfied: by itself too much.
_OWN_LIMIT = re.compile(
    r"(?:QOS|Assoc)(?:Max|Grp)?\w*(?:PerJob|PerNode)(?:Limit)?|QOSMin\w+|QOSTimeLimit|AssociationTimeLimit"
)
_SLURM_BEGINNINGS = (("Job's QOS not permitted", _RIGHTS), ("Job's account not permitted", _RIGHTS))
_PBS = (
    (r"(?:Can )?Never Run", _REQUEST),
    (r"Not enough total nodes", _REQUEST),
    (r"Specified \S+ does not exist", _REQUEST),
    (r"too many failed attempts", _LAUNCH),
    (r"Error in calculation of (?:limit|formula)|Invalid Job/Resv", _REQUEST),
)
_PBS_LACKS = re.compile(r"Insufficient amount of .*\(R: (?P<asked>\S+) A: \S+ T: (?P<whole>\S+)\)", re.IGNORECASE)


def no_hint(state: str, reason: str | None) -> str:
    """No words but the scheduler's own."""
    return ""


def never_starts(state: str, reason: str | None) -> str:
    """What to do about a job that will not start by itself, with `{id}` for its id; '' where waiting may help.

    What its owner held is no such job.
    """
    if state not in WAITING or not reason:
        return ""
    for beginning, step in _SLURM_BEGINNINGS:
        if reason.startswith(beginning):
            return step
    head = re.split(r"[,(:]", reason, maxsplit=1)[0].strip()
    if head in _SLURM:
        return _SLURM[head]
    if _OWN_LIMIT.fullmatch(head):
        return _TIME if "Wall" in head or "Time" in head else _LIMIT
    for pattern, step in _PBS:
        if re.search(pattern, reason, re.IGNORECASE):
            return step
    lacks = _PBS_LACKS.search(reason)
    return _REQUEST if lacks and _is_more(lacks["asked"], lacks["whole"]) else ""


def never_words(state: str, reason: str, hint_of: ReasonHint = no_hint) -> str:
    """`will never start: the partition does not allow what it asks for (PartitionConfig)`."""
    hint = _SAID_ALREADY.sub("", hint_of(state, reason)).partition(";")[0].partition(": change ")[0]
    said = clip(shown(reason), _REASON_CELLS)
    return f"will never start: {shown(hint)} ({said})" if hint else f"will never start: {shown(reason)}"


def waits_for_ever(jobs: pa.Table, hint_of: ReasonHint = no_hint) -> list[Finding]:
    """One for each waiting job, or rest of an array, that will never start by itself.

    `hint_of` gives a scheduler's reason in plain words, '' where it has none.
    """
    # Queues are long and their reasons few.
    reasons = pc.unique(text_of(jobs["reason"])).to_pylist()
    never = [reason for reason in reasons if never_starts(JobState.PENDING, reason)]
    found = []
    for row in rows_where(jobs, reason=never, state=(JobState.PENDING, JobState.HELD, JobState.REQUEUED)):
        step = never_starts(row["state"], row["reason"])
        if step:
            words = f"{job_words(row['id'], row['name'])} {never_words(row['state'], row['reason'], hint_of)}"
            step = step.replace("{id}", shown(row["id"]))
            found.append(Finding(RULE, row["id"], Severity.WARNING, words, step, name=row["name"] or ""))
    return found


def _is_more(asked: str, whole: str) -> bool:
    try:
        return parse_memory(asked) > parse_memory(whole)
    except ValueError:
        return False
