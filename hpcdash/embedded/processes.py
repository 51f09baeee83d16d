"""Processes of this machine: descendants, usage, signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
# A variable of supervisors and of their forks, the keepers: they are not part of a job.
APART = "HPCDASH_SUPERVISOR"
# A variable of all processes of an attempt at a job.
MARK = "HPCDASH_ATTEMPT"


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may contain anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    """Return the living descendants of a process; [] without /proc.

    Processes that are APART and their descendants are left out: a job may have started the queue's
    supervisor.
    """
    children: dict[int, list[int]] = {}
    for child in _pids():
        if (fields := _stat(child)) is not None and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(child)
    apart = f"{APART}=".encode()
    found: list[int] = []
    parents = [pid]
    while parents:
        for child in children.get(parents.pop(), []):
            if not any(variable.startswith(apart) for variable in _variables(child)):
                found.append(child)
                parents.append(child)
    return found


def _variables(pid: int) -> list[bytes]:
    """Return the initial environment of a process."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def stop(find: Callable[[], list[int]]) -> None:
    """Send SIGSTOP to the processes of `find`, and again until none of them can start another."""
    stopped: set[int] = set()
    while new := set(find()) - stopped:
        send(new, signal.SIGSTOP)
        stopped |= new


def group(leader: int) -> list[int]:
    """Return a process group in the form of `send`; [] if none of its processes is left."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        pass
    return [-leader]


def marked(variable: str) -> list[int]:
    """Return the processes with `NAME=value` in the environment, and their descendants.

    [] without /proc. Children inherit the variable, so that it identifies a job's processes even
    after they left their session and their parent.
    """
    requested = variable.encode("utf-8", "surrogateescape")
    found = [pid for pid in _pids() if requested in _variables(pid)]
    for pid in [*found]:
        found += descendants(pid)
    return list(dict.fromkeys(found))


def _pids() -> list[int]:
    if not _PROC.is_dir():
        return []
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def usage(pids: Iterable[int]) -> tuple[float, int]:
    """Return the total (CPU seconds, resident bytes) of processes."""
    seconds = 0.0
    resident = 0
    for pid in pids:
        if (fields := _stat(pid)) is not None:
            # utime, stime and those of reaped children; rss in pages.
            seconds += sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
            resident += int(fields[21]) * _PAGE_BYTES
    return seconds, resident


def close_from(lowest: int, keep: Iterable[int]) -> None:
    """Close all descriptors from `lowest` on except those in `keep`."""
    start = lowest
    for descriptor in sorted(keep):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 65536)


def default_signals() -> None:
    """Reset all signals: Python ignores some, and a supervisor blocks others."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
