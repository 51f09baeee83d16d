"""Explanations of why a job waits, and how it ended.

Source: squeue(1) JOB REASON CODES, slurm.conf(5), and the names in the sources of 22.05 to 25.05.
"""

from __future__ import annotations

import re

from hpcdash.backends.base import PolicyReason, ReasonsPart
from hpcdash.backends.queries import Row
from hpcdash.domain.job_text import format_requested
from hpcdash.domain.limits import format_resource
from hpcdash.domain.states import WAITING

_EXACT = {
    "Priority": "queued behind jobs with higher priority",
    "Resources": "next in line: waits for enough free nodes, CPUs, memory or GPUs",
    "Dependency": "waits for a job it depends on",
    "DependencyNeverSatisfied": (
        "will never start: a dependency can no longer be met; cancel the job or change the "
        "dependency"
    ),
    "JobHeldUser": "held by its owner; release it to let it run",
    "JobHeldAdmin": "held by an administrator; only they can release it",
    "job requeued in held state": "was requeued and held; release it to let it run",
    "BeginTime": "waiting for its start time (after a requeue, about two minutes)",
    "JobArrayTaskLimit": "the array's % limit on running tasks is reached",
    "Licenses": "waiting for a software licence",
    "PartitionDown": "the partition accepts jobs but does not start them",
    "PartitionInactive": "the partition is not accepting jobs",
    "PartitionTimeLimit": "will not start: asks for more time than the partition allows; lower its "
    "time limit",
    "PartitionNodeLimit": (
        "will not start: requests more (or fewer) nodes than the partition allows or has up; "
        "change the node count or the partition"
    ),
    "Constraints": "no available node meets its constraints; waiting for one",
    "MaxPoweredUpNodes": "the site's limit on powered-on nodes is reached; waiting for a free node",
    "MpiPortsBusy": "the required MPI ports are in use; waiting for free ports",
    "PowerNotAvail": "waiting for available power",
    "PowerReserved": "waiting for power kept for a reservation",
    "PartitionConfig": "the partition does not allow this request",
    "ReqNodeNotAvail": (
        "a required node, or every suitable node, is down, drained or reserved; waiting"
    ),
    "NodeDown": "a required node is down",
    "BadConstraints": "no node can ever meet the request; change it",
    "Reservation": "waiting for its reservation to begin",
    "ReservationDeleted": "its reservation no longer exists; change or cancel the job",
    "InvalidAccount": "its account is not valid here; ask the site or change the account",
    "InvalidQOS": "its QoS is not valid here; change it",
    "AccountNotAllowed": "its account is not allowed to use this partition",
    "QOSNotAllowed": "its QoS may not be used here",
    "Prolog": "the node's prologue is still running",
    "Cleaning": "its previous run is still being cleaned up",
    "InactiveLimit": "reached the inactivity limit",
    "launch failed requeued held": "could not be launched and was held; release it to try again",
    "user env retrieval failed requeued held": "the owner's environment could not be read; held",
    "NonZeroExitCode": "exited with an error status",
    "TimeLimit": "hit its time limit",
    "OutOfMemory": "used more memory than it requested",
    "JobLaunchFailure": "could not be launched; is the output path writable?",
    "RaisedSignal": "ended by a signal",
    "DeadLine": "cannot end before its deadline",
    "FedJobLock": "waiting for another cluster of the federation",
    "FrontEndDown": "the front-end node is down",
    "JobHoldMaxRequeue": "was requeued too often and is held; find out why, then release it",
    "ReservationInvalid": "its reservation is not valid; change or cancel it",
    "Reserved for maintenance": "all suitable nodes are reserved for maintenance",
    "SchedDefer": "deferred to the next main scheduling cycle",
    "SystemFailure": "the cluster failed; notify your administrators",
    "AccountingPolicy": "its account or QoS reached a limit; waiting for capacity",
    "BurstBufferOperation": "the burst buffer is being set up or torn down, or failed",
    "QOSUsageThreshold": "its QoS is below the usage the site requires",
    "QOSTimeLimit": "its QoS has used up its compute time, or the job requests more than is left",
    "AssociationTimeLimit": "its account has used up its compute time, or the job requests more "
    "than is left",
    "QOSJobLimit": "its QoS reached its limit of running jobs; waiting for a job to end",
    "AssociationJobLimit": "its account reached its limit of running jobs; waiting for a job to end",
    "MaxJobsPerAccount": "its account reached the QoS limit of running jobs; waiting for a job "
    "to end",
    "MaxMemPerLimit": "will not start: asks for more memory on a node or CPU than the partition "
    "allows",
    "MaxJobCount": "the cluster reached its job limit",
    "BurstBufferResources": "waiting for burst-buffer space",
    "BurstBufferStageIn": "files are being staged in",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        "all suitable nodes are down, drained or reserved for others"
    ),
}
# The limit's subject, by the words Slurm builds such reasons from: QOSMaxCpuPerUserLimit,
# AssocGrpGRESMinutes, …
_SUBJECTS = (
    ("Cpu", "CPUs"),
    ("CPU", "CPUs"),
    ("GRES", "GPUs or other devices"),
    ("Gres", "GPUs or other devices"),
    ("Mem", "memory"),
    ("Node", "nodes"),
    ("Submit", "jobs"),
    ("Job", "jobs"),
    ("Wall", "time"),
    ("License", "licences"),
    ("BB", "burst buffer"),
    ("Energy", "energy"),
    ("Billing", "billing units"),
)
_PER = (
    ("PerUser", " per user"),
    ("PerAccount", " per account"),
    ("PerNode", " per node"),
)
# The job's request is too large by itself.
_NEVER = ("PerJob", "PerNode")
_OF_SOMEBODY = re.compile(r"Max\w+Per(?:Account|User)")


def _nodes_hint(message: str) -> str:
    """Explains what follows ReqNodeNotAvail: `, UnavailableNodes:g[1-2]`, `(Unavailable:g1)`, `,
    Reserved for …`.
    """
    if "maintenance" in message:
        return (
            "would run into maintenance on all suitable nodes; a shorter time limit may let it "
            "start earlier"
        )
    if "reserved for other" in message:
        return (
            "all suitable nodes are reserved for another job; a shorter time limit may let it "
            "start earlier"
        )
    found = re.search(r"Unavailable(?:Nodes)?:([^)\s]+)", message)
    if found:
        return f"all suitable nodes ({found[1]}) are down, drained or reserved; waiting for them"
    return _EXACT["ReqNodeNotAvail"]


def _limit_hint(reason: str) -> str:
    if reason.startswith(("Max", "QOS")):
        limit = "its QoS limit"
    elif "Grp" in reason:
        limit = "the limit of its whole account"
    else:
        limit = "its account limit"
    if "Minutes" in reason or "RunMins" in reason:
        return f"{limit} on compute time is used up"
    per = next((text for mark, text in _PER if mark in reason), "")
    limited = re.sub(r"Per(?:User|Account|Node|Job)", "", reason)
    what = next((text for mark, text in _SUBJECTS if mark in limited), "resources")
    if "Min" in limited:
        return f"will not start: requests fewer {what}{per} than {limit} allows"
    if any(mark in reason for mark in _NEVER):
        return f"will not start: requests more {what}{per} than {limit} allows"
    if what == "jobs":
        state = "queued" if "Submit" in reason else "running"
        return f"{limit} on {state} jobs{per} is reached; waiting for a job to end"
    return f"{limit} on {what}{per} is reached; waiting for capacity"


_SHORT = {
    "Priority": "other jobs go first",
    "JobHeldUser": "held by its owner",
    "JobHeldAdmin": "held by an administrator",
    "job requeued in held state": "requeued and held",
    "launch failed requeued held": "launch failed; held",
    "DependencyNeverSatisfied": "never: a dependency failed",
    "JobArrayTaskLimit": "its array's own limit",
    "Licenses": "waits for a licence",
    "PartitionDown": "the queue is not starting jobs",
    "PartitionInactive": "the queue is not accepting jobs",
    "PartitionTimeLimit": "never: time above the queue's limit",
    "PartitionNodeLimit": "never: nodes above the queue's limit",
    "BadConstraints": "never: no node has these features",
    "Constraints": "no node with its features is free",
    "Reservation": "waits for its reservation",
}


# -- site rules

# The subject as it stands in a reason, its resource, and how that begins where it is counted by the
# minute.
_LIMIT_RESOURCES = (
    ("gres", "gpus", "gpu"),
    ("cpu", "cpus", "cpu"),
    ("mem", "memory_bytes", "mem"),
    ("node", "nodes", "node"),
    ("submit", "jobs_submitted", ""),
    ("job", "jobs_running", ""),
    ("wallduration", "limit_seconds", ""),
    ("wall", "wall_seconds", ""),
)
_LIMIT_PER = (("PerUser", "user"), ("PerAccount", "account"), ("PerJob", "job"), ("PerNode", "job"))
_OLD_LIMITS = {
    "QOSJobLimit": PolicyReason("limits", "qos", "", "jobs_running"),
    "AssociationJobLimit": PolicyReason("limits", "", "", "jobs_running"),
    "QOSTimeLimit": PolicyReason("limits", "qos"),
    "AssociationTimeLimit": PolicyReason("limits"),
    "AccountingPolicy": PolicyReason("limits"),
    "QOSUsageThreshold": PolicyReason("shares"),
    "Priority": PolicyReason("shares"),
}
_OF_RESERVATIONS = frozenset(
    {"Reservation", "ReservationDeleted", "ReservationInvalid", "Reserved for maintenance"}
)


# -- reasons that never end

_DEPENDENCY = "hpcdash cancel {id}, or resubmit it: its dependency can no longer be met."
_LIMIT = "The request exceeds its limits: hpcdash alter {id}, or resubmit it with less."
_TIME = "hpcdash alter {id} --time with a shorter limit, or another queue."
_RIGHTS = "Ask your administrators, or resubmit it with another account, QoS or queue."
_LAUNCH = (
    "Find out why the job could not be launched (check its output path), then hpcdash release {id}"
)
_REQUEST = "The request cannot be met there: change the request and resubmit."
# Reasons of squeue(1), JOB REASON CODES.
_NEVER_STARTS = {
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
    "DeadLine": "Its deadline has passed: resubmit it.",
}
# QOSMaxWallDurationPerJobLimit, AssocMaxCpuPerJobLimit, QOSMaxGRESPerNode, QOSMinCpuNotSatisfied:
# by itself too much.
_OWN_LIMIT = re.compile(
    r"(?:QOS|Assoc)(?:Max|Grp)?\w*(?:PerJob|PerNode)(?:Limit)?|QOSMin\w+|QOSTimeLimit|AssociationTimeLimit"
)
_NEVER_BEGINNINGS = (("Job's QOS not permitted", _RIGHTS), ("Job's account not permitted", _RIGHTS))


def _head(reason: str) -> str:
    """Return a reason without what follows it: names of nodes, and the like."""
    return re.split(r"[,(:]", reason, maxsplit=1)[0]


class SlurmReasons(ReasonsPart):
    """Slurm's reasons, which are codes."""

    def hint(self, state: str, reason: str | None) -> str:
        """Return one short clause, or '' where Slurm's own reason suffices."""
        if not reason:
            return "held; release it to let it run" if state == "held" else ""
        if reason in _EXACT:
            return _EXACT[reason]
        head = _head(reason)
        if head == "ReqNodeNotAvail":
            return _nodes_hint(reason[len(head) :])
        if reason.startswith("Nodes required for job are"):
            return "all suitable nodes are down, drained or reserved for others"
        if head in _EXACT:
            return _EXACT[head]
        if reason.startswith("Job's QOS not permitted"):
            return "its QoS may not use this partition; change one of them"
        if reason.startswith(("QOS", "Assoc")) or _OF_SOMEBODY.fullmatch(reason):
            return _limit_hint(reason)
        return ""

    def short(self, row: Row) -> str:
        reason = str(row["reason"] or "")
        head = _head(reason).strip()
        if head == "Resources":
            return f"next in line for {format_requested(row)}"
        if head == "ReqNodeNotAvail":
            return (
                "its nodes are due for maintenance soon"
                if "maintenance" in reason
                else "nodes are down or reserved"
            )
        policy = self.policy(str(row["state"]), reason)
        if policy is not None and policy.view == "limits":
            owner = "QoS" if policy.scope == "qos" else "account"
            return f"{owner} limit: {format_resource(policy.resource)}".removesuffix(": ")
        return _SHORT.get(head, "")

    def never_starts(self, state: str, reason: str | None) -> str:
        if state not in WAITING or not reason:
            return ""
        for beginning, step in _NEVER_BEGINNINGS:
            if reason.startswith(beginning):
                return step
        head = _head(reason).strip()
        if head in _NEVER_STARTS:
            return _NEVER_STARTS[head]
        if _OWN_LIMIT.fullmatch(head):
            return _TIME if "Wall" in head or "Time" in head else _LIMIT
        return ""

    def policy(self, state: str, reason: str | None) -> PolicyReason | None:
        """Return the policy behind a reason, by the parts from which Slurm builds such reasons."""
        if state not in WAITING or not reason:
            return None
        head = _head(reason).strip()
        if head in _OLD_LIMITS:
            return _OLD_LIMITS[head]
        if head in _OF_RESERVATIONS or (head == "ReqNodeNotAvail" and "reserved" in reason.lower()):
            return PolicyReason("reservations")
        if not head.startswith(("QOS", "Assoc")) and not _OF_SOMEBODY.match(head):
            return None
        if head in _EXACT or "Min" in head.replace("Minutes", "").replace("RunMins", ""):
            return None
        # A group limit of an association may come from an account above it.
        scope = "qos"
        if head.startswith("Assoc"):
            scope = "association" if head.startswith("AssocMax") else ""
        per = next(
            (word for mark, word in _LIMIT_PER if mark in head),
            "all" if scope == "qos" and "Grp" in head else "",
        )
        limited = re.sub(r"Per(?:User|Account|Node|Job)", "", head).lower()
        ending = "_minutes" if "minutes" in limited else ""
        if "runm" in limited:
            ending = "_run_minutes"
        for mark, name, short in _LIMIT_RESOURCES:
            if mark in limited:
                resource = short + ending if ending and short else name
                return PolicyReason("limits", scope, per, resource)
        return PolicyReason("limits", scope, per)
