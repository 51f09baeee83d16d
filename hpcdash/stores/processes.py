"""Whether a process of this machine is still the one it was."""

from __future__ import annotations

import os
from pathlib import Path


def started_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the machine did; None where there is no /proc to tell, or it ended.

    proc_pid_stat(5): the 22nd field; the 2nd, in parentheses, may hold anything.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, started: int | None) -> bool:
    """Whether the process that had this number and began at `started` (ticks; None: not known) still runs."""
    if pid <= 0:
        return False
    if started is not None:
        return started_ticks(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
