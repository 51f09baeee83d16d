"""Slurm's states of jobs and nodes, and ours.

Source: squeue(1) JOB STATE CODES, sinfo(1) NODE STATE CODES, and the sources up to 25.05 for those
they leave out.
"""

from __future__ import annotations

from hpcdash.domain.states import JobState, NodeState

_JOB_STATES = {
    "PENDING": JobState.PENDING,
    "SPECIAL_EXIT": JobState.HELD,
    # Its reservation was deleted.
    "RESV_DEL_HOLD": JobState.HELD,
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "RESIZING": JobState.SUSPENDED,
    "COMPLETING": JobState.COMPLETING,
    "REQUEUED": JobState.REQUEUED,
    "REQUEUE_FED": JobState.REQUEUED,
    "REQUEUE_HOLD": JobState.REQUEUED,
    # Since 25.11: requeued, and the first to start again.
    "EXPEDITING": JobState.REQUEUED,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "PREEMPTED": JobState.PREEMPTED,
    "NODE_FAIL": JobState.NODE_FAILED,
}
# Jobs with priority 0: none starts before it is released. `job requeued …` is that of `scontrol
# requeuehold`.
HELD_REASONS = frozenset(
    {
        *("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "job requeued in held state"),
        *("launch failed requeued held", "user env retrieval failed requeued held"),
    }
)

# A job that was cancelled before it began keeps one of these.
_WAITING_REASONS = HELD_REASONS | {
    "Priority",
    "Resources",
    "Dependency",
    "BeginTime",
    "JobArrayTaskLimit",
    "Licenses",
    "Reservation",
    "PartitionDown",
    "PartitionInactive",
    "PartitionTimeLimit",
    "PartitionNodeLimit",
    "ReqNodeNotAvail",
    "Constraints",
    "MaxPoweredUpNodes",
    "MpiPortsBusy",
}
# Other texts with this start are limits, or lists of nodes.
_WAITING_BEGINNINGS = ("QOS", "Assoc", "Max", "Nodes required for job")

_NODE_STATES = {
    "IDLE": NodeState.IDLE,
    "MIXED": NodeState.MIXED,
    "ALLOCATED": NodeState.ALLOCATED,
    "COMPLETING": NodeState.MIXED,
    "DRAINING": NodeState.DRAINING,
    "DRAINED": NodeState.DRAINED,
    "DOWN": NodeState.DOWN,
    "FAIL": NodeState.DOWN,
    "FAILING": NodeState.DRAINING,
    "ERROR": NodeState.DOWN,
    "INVAL": NodeState.DOWN,
    "INVALID_REG": NodeState.DOWN,
    "NO_RESPOND": NodeState.DOWN,
    "RESERVED": NodeState.RESERVED,
    "MAINT": NodeState.RESERVED,
    "PLANNED": NodeState.PLANNED,
    "UNKNOWN": NodeState.UNKNOWN,
}
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_FLAG_NAMES = {
    "not_responding": "not_responding",
    "maintenance": "maint",
    "reboot_requested": "reboot",
}


def job_state(native: str) -> JobState:
    """Our state for Slurm's word; sacct's 'CANCELLED by 1001' and a list's first word count; else
    unknown.
    """
    return _JOB_STATES.get(native.split(" ")[0].split(",")[0].upper(), JobState.UNKNOWN)


def is_held(reason: str) -> bool:
    """Whether a pending job waits for a release; of an array's records that squeue merged ('A,B'),
    all must.
    """
    return all(part.strip() in HELD_REASONS for part in reason.split(","))


def only_waits(reason: str) -> bool:
    """Whether a reason explains only why a job does not start, and not how it ended."""
    return reason.split(",")[0] in _WAITING_REASONS or reason.startswith(_WAITING_BEGINNINGS)


def node_state(complete: str) -> tuple[NodeState, list[str]]:
    """Our state and the flags of sinfo's StateComplete, such as 'idle+drain' or
    'down+not_responding'.
    """
    base, *raw_flags = complete.upper().replace("*", "+NOT_RESPONDING").split("+")
    flags = [_FLAG_NAMES.get(flag.lower(), flag.lower()) for flag in raw_flags if flag]
    state = _NODE_STATES.get(base, NodeState.UNKNOWN)
    is_busy = base in _BUSY or "completing" in flags
    if "drain" in flags:
        state = NodeState.DRAINING if is_busy else NodeState.DRAINED
    elif "fail" in flags:
        state = NodeState.DRAINING if is_busy else NodeState.DOWN
    elif "inval" in flags or "invalid_reg" in flags:
        state = NodeState.DOWN
    elif base == "COMPLETING" or (base == "IDLE" and "completing" in flags):
        state = NodeState.MIXED
    # blocked: from 24.05 on, by a job that has a part of the network for itself.
    elif base == "IDLE" and not {"reserved", "maint", "blocked"}.isdisjoint(flags):
        state = NodeState.RESERVED
    elif base == "IDLE" and "planned" in flags:
        state = NodeState.PLANNED
    return state, flags
