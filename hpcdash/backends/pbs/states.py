"""PBS's letters for the state of a job, with its substate and exit status, and our states for them.

Sources: JOB_STATE_LTR_…, JOB_SUBSTATE_… and JOB_EXEC_… of OpenPBS's job.h and Torque's pbs_job.h;
what 23.06 did.
"""

from __future__ import annotations

from hpcdash.domain.states import JobState

_ALIVE = {
    "Q": JobState.PENDING,
    "W": JobState.PENDING,
    "T": JobState.PENDING,
    "H": JobState.HELD,
    "R": JobState.RUNNING,
    "B": JobState.RUNNING,
    # Suspended while somebody types at its workstation.
    "U": JobState.RUNNING,
    # It lives on at another server.
    "M": JobState.RUNNING,
    "S": JobState.SUSPENDED,
    "E": JobState.COMPLETING,
}
# F: a job, X: a subjob of an array that lives on; C is Torque's.
ENDED_LETTERS = frozenset("FXC")
_TERMINATED = 91
_FINISHED = 92
_FAILED = 93
_BY_EXIT = {
    -11: JobState.PREEMPTED,
    # A node of it, or its first one, could not be reached any more.
    -14: JobState.NODE_FAILED,
    -20: JobState.NODE_FAILED,
    -26: JobState.OUT_OF_MEMORY,
    -27: JobState.OUT_OF_MEMORY,
    -28: JobState.TIMEOUT,
    -29: JobState.TIMEOUT,
    -31: JobState.OUT_OF_MEMORY,
}
_BY_EXIT_TORQUE = {
    -10: JobState.OUT_OF_MEMORY,
    -11: JobState.TIMEOUT,
    -12: JobState.TIMEOUT,
}
_SIGNAL_BASE = 256
# 256 + SIGKILL, 256 + SIGTERM, and what a shell makes of the latter: so qdel ends a job.
_DELETED = frozenset({265, 271, 143})
# Torque's array_slot_limit holds what is beyond it; nobody can release that.
_SLOT_LIMIT_HOLD = "l"
# By its owner, an operator, the system, or for a bad password.
_HOLDS = frozenset("uosp")


def job_state(
    letter: str,
    *,
    substate: int | None = None,
    exit_status: int | None = None,
    has_started: bool = True,
    hold_types: str = "",
    is_torque: bool = False,
    used_all_its_time: bool = False,
) -> JobState:
    """Our state for PBS's letter; unknown for one that we do not know.

    A job in the queue may carry the exit status of its last run; only that of an ended one counts.
    """
    if letter in ENDED_LETTERS:
        return _ended(substate, exit_status, has_started, is_torque, used_all_its_time)
    if letter == "H" and hold_types == _SLOT_LIMIT_HOLD:
        return JobState.PENDING
    # A task that waits is Q while its array is H, and has its array's holds.
    if letter == "Q" and _HOLDS & set(hold_types):
        return JobState.HELD
    return _ALIVE.get(letter, JobState.UNKNOWN)


def _ended(
    substate: int | None,
    exit_status: int | None,
    has_started: bool,
    is_torque: bool,
    used_all_its_time: bool,
) -> JobState:
    if substate == _TERMINATED:
        return JobState.CANCELLED
    if exit_status is not None and exit_status < 0:
        by_exit = _BY_EXIT_TORQUE if is_torque else _BY_EXIT
        return by_exit.get(exit_status, JobState.FAILED)
    if substate == _FAILED:
        return JobState.FAILED
    if exit_status is None:
        # One that depends on what cannot be any more is F with 92, though it never ran.
        if not has_started:
            return JobState.CANCELLED
        return JobState.COMPLETED if substate == _FINISHED else JobState.GONE
    if exit_status == 0 or substate == _FINISHED:
        return JobState.COMPLETED
    if exit_status in _DELETED:
        return (
            JobState.TIMEOUT
            if used_all_its_time and exit_status > _SIGNAL_BASE
            else JobState.CANCELLED
        )
    return JobState.FAILED


def exit_pair(exit_status: int) -> tuple[int | None, int | None]:
    """(exit code, signal) of an Exit_status: 256 + n is signal n; a negative one is no end of the
    job's own.
    """
    if exit_status < 0:
        return None, None
    if exit_status >= _SIGNAL_BASE:
        return 0, exit_status - _SIGNAL_BASE
    return exit_status, 0
