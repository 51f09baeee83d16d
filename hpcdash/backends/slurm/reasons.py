"""Why a job waits, and how it ended, in plain words. Source: squeue(1) JOB REASON CODES, slurm.conf(5)."""

from __future__ import annotations

_EXACT = {
    "Priority": "others are ahead of it; it starts when its turn comes",
    "Resources": "next in line: waits for enough free nodes, CPUs, memory or GPUs",
    "Dependency": "waits for another job it depends on",
    "DependencyNeverSatisfied": (
        "will never start: a job it depends on ended the wrong way; cancel it or change the dependency"
    ),
    "JobHeldUser": "held by its owner; release it to let it run",
    "JobHeldAdmin": "held by an administrator; only they can release it",
    "job requeued in held state": "was put back and held; release it to let it run",
    "BeginTime": "waits for the start time it asked for (or about two minutes after a requeue)",
    "JobArrayTaskLimit": "as many tasks of this array run as its % limit allows",
    "Licenses": "waits for a software licence",
    "PartitionDown": "the partition takes jobs but starts none now",
    "PartitionInactive": "the partition takes no jobs now",
    "PartitionTimeLimit": "will not start: asks for more time than the partition allows; lower its time limit",
    "PartitionNodeLimit": "will not start: asks for more (or fewer) nodes than the partition allows",
    "PartitionConfig": "the partition does not allow what it asks for",
    "ReqNodeNotAvail": "a node it insists on is down, drained or reserved",
    "NodeDown": "a node it needs is down",
    "BadConstraints": "no node can ever give what it asks for; change the request",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "its reservation is gone; change or cancel it",
    "InvalidAccount": "its account is not valid here; ask the site or change the account",
    "InvalidQOS": "its QoS is not valid here; change it",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QoS may not be used here",
    "Prolog": "the node's prologue is still running",
    "Cleaning": "its last run is still being cleaned up",
    "InactiveLimit": "reached the inactivity limit",
    "launch failed requeued held": "could not be launched and was held; release it to try again",
    "user env retrieval failed requeued held": "its owner's environment could not be read; held",
    "NonZeroExitCode": "its script ended with an error",
    "TimeLimit": "ran into its time limit",
    "OutOfMemory": "used more memory than it asked for",
    "JobLaunchFailure": "could not be launched, or ended by a signal; is its output path writable?",
    "RaisedSignal": "ended by a signal",
    "DeadLine": "could not end before its deadline",
    "FedJobLock": "waits for another cluster of the federation",
    "MaxJobCount": "the cluster holds as many jobs as it can",
    "BurstBufferResources": "waits for burst-buffer space",
    "BurstBufferStageIn": "its files are being staged in",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        "the nodes it could use are down, drained or kept for others"
    ),
}
# The limit's subject, by the words Slurm builds such reasons from: QOSMaxCpuPerUserLimit, AssocGrpGRESMinutes, …
_SUBJECTS = (
    ("Cpu", "CPUs"),
    ("CPU", "CPUs"),
    ("GRES", "GPUs or other devices"),
    ("Gres", "GPUs or other devices"),
    ("Mem", "memory"),
    ("Node", "nodes"),
    ("Jobs", "jobs running at once"),
    ("Submit", "jobs submitted"),
    ("Wall", "time"),
    ("License", "licences"),
    ("BB", "burst buffer"),
    ("Energy", "energy"),
    ("Billing", "billing units"),
)
_NEVER = (
    "MaxWallDurationPerJob",
    "PerJob",
    "MaxNodePerJob",
    "MinCpuNotSatisfied",
    "MinGRES",
    "MinMemory",
    "MinNode",
    "MinBilling",
)


def reason_hint(state: str, reason: str | None) -> str:
    """One short clause, or '' where Slurm's own word says it all."""
    if not reason:
        return {"held": "held; release it to let it run"}.get(state, "")
    known = _EXACT.get(reason)
    if known:
        return known
    head, _, tail = reason.partition(",")
    if head == "ReqNodeNotAvail":
        nodes = tail.partition(":")[2].strip()
        which = f" ({nodes})" if nodes else ""
        return f"the nodes it could use{which} are down, drained or reserved; it waits for them"
    if reason.startswith("Nodes required for job are"):
        return "the nodes it could use are down, drained or kept for others"
    if head in _EXACT:
        return _EXACT[head]
    if reason.startswith(("QOS", "Assoc")):
        return _limit_hint(reason)
    return ""


def _limit_hint(reason: str) -> str:
    if reason.startswith("QOS"):
        owner = "its QoS allows"
    elif "Grp" in reason:
        owner = "its account as a whole may use"
    else:
        owner = "its account allows"
    if "Minutes" in reason or "RunMins" in reason:
        return f"the share of computing time that {owner} is used up"
    what = next((words for mark, words in _SUBJECTS if mark in reason), "")
    per = next(
        (
            f" {words}"
            for mark, words in (
                ("PerUser", "for one user"),
                ("PerAccount", "for one account"),
                ("PerNode", "on one node"),
            )
            if mark in reason
        ),
        "",
    )
    subject = f"{what}{per}" if what else f"resources{per}"
    if any(mark in reason for mark in _NEVER):
        return (
            f"will not start: asks for more {subject} than {owner}"
            if "Min" not in reason
            else f"will not start: asks for fewer {subject} than {owner}"
        )
    return f"as many {subject} are in use as {owner}; it waits for some to be free"
