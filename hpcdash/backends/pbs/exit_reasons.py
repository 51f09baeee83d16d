"""What PBS and Torque say of a job by a negative exit status: JOB_EXEC_… of OpenPBS's job.h and Torque's pbs_job.h."""

from __future__ import annotations

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
