"""The states of jobs and nodes, whatever the scheduler calls them."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    PENDING = "pending"
    HELD = "held"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    REQUEUED = "requeued"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_FAILED = "node_failed"
    GONE = "gone"
    UNKNOWN = "unknown"


ENDED = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.TIMEOUT,
        JobState.OUT_OF_MEMORY,
        JobState.CANCELLED,
        JobState.PREEMPTED,
        JobState.NODE_FAILED,
        JobState.GONE,
    }
)
WAITING = frozenset({JobState.PENDING, JobState.HELD, JobState.REQUEUED})
ACTIVE = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})
ENDED_BADLY = ENDED - {JobState.COMPLETED}


class NodeState(StrEnum):
    IDLE = "idle"
    MIXED = "mixed"
    ALLOCATED = "allocated"
    DRAINING = "draining"
    DRAINED = "drained"
    DOWN = "down"
    RESERVED = "reserved"
    PLANNED = "planned"
    UNKNOWN = "unknown"


# Of nodes that may start a job now.
STARTING = frozenset({NodeState.IDLE, NodeState.MIXED})
# Of nodes that start no job.
UNAVAILABLE = frozenset({NodeState.DOWN, NodeState.DRAINED, NodeState.DRAINING})


class QueueStanding(StrEnum):
    """Treatment of jobs by a queue that is not simply open or down."""

    # It refuses jobs.
    DISABLED = "disabled"
    # It takes jobs, and starts none.
    STOPPED = "stopped"
    # It refuses one's own jobs.
    CLOSED = "closed"
    # It passes jobs on.
    ROUTING = "routing"
    # A reservation's.
    RESERVED = "reserved"
    # It takes jobs that name it; the site does not list it.
    HIDDEN = "hidden"


REFUSING = frozenset({QueueStanding.DISABLED, QueueStanding.CLOSED})
# Not proposed to people; who names one is not contradicted.
UNLISTED = frozenset({QueueStanding.CLOSED, QueueStanding.HIDDEN})
