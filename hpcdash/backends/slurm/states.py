"""Slurm's states of jobs and nodes, and ours.

Source: squeue(1) JOB STATE CODES, sinfo(1) NODE STATE CODES, and the sources up to 25.05 for those
they leave out.
"""

from __future__ import annotations

from hpcdash.domain.states import JobState, NodeState

_NATIVE_JOB_STATES = {
    JobState.PENDING: ("PENDING",),
    # RESV_DEL_HOLD: its reservation was deleted.
    JobState.HELD: ("SPECIAL_EXIT", "RESV_DEL_HOLD"),
    JobState.RUNNING: ("RUNNING", "CONFIGURING", "SIGNALING", "STAGE_OUT"),
    JobState.SUSPENDED: ("SUSPENDED", "STOPPED", "RESIZING"),
    JobState.COMPLETING: ("COMPLETING",),
    # EXPEDITING, since 25.11: requeued, and the first to start again.
    JobState.REQUEUED: ("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "EXPEDITING"),
    JobState.COMPLETED: ("COMPLETED",),
    JobState.FAILED: ("FAILED", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    JobState.TIMEOUT: ("TIMEOUT", "DEADLINE"),
    JobState.OUT_OF_MEMORY: ("OUT_OF_MEMORY",),
    JobState.CANCELLED: ("CANCELLED", "REVOKED"),
    JobState.PREEMPTED: ("PREEMPTED",),
    JobState.NODE_FAILED: ("NODE_FAIL",),
}
_JOB_STATES = {name: state for state, names in _NATIVE_JOB_STATES.items() for name in names}
# Jobs with priority 0: none starts before it is released. `job requeued …` is that of `scontrol
# requeuehold`.
HELD_REASONS = frozenset(
    {
        "JobHeldUser",
        "JobHeldAdmin",
        "JobHoldMaxRequeue",
        "job requeued in held state",
        "launch failed requeued held",
        "user env retrieval failed requeued held",
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

_NATIVE_NODE_STATES = {
    NodeState.IDLE: ("IDLE",),
    NodeState.MIXED: ("MIXED", "COMPLETING"),
    NodeState.ALLOCATED: ("ALLOCATED",),
    NodeState.DRAINING: ("DRAINING", "FAILING"),
    NodeState.DRAINED: ("DRAINED",),
    NodeState.DOWN: ("DOWN", "FAIL", "ERROR", "INVAL", "INVALID_REG", "NO_RESPOND"),
    NodeState.RESERVED: ("RESERVED", "MAINT"),
    NodeState.PLANNED: ("PLANNED",),
    NodeState.UNKNOWN: ("UNKNOWN",),
}
_NODE_STATES = {name: state for state, names in _NATIVE_NODE_STATES.items() for name in names}
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
