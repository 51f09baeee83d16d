"""Processes of this machine for a keeper: descendants, use, signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
# A variable of supervisors and of keepers, which are their forks: they belong to no job.
APART = "HPCDASH_SUPERVISOR"
# A variable of all processes of one attempt at a job.
MARK = "HPCDASH_ATTEMPT"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, which may hold anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    """All that live below a process, zombies left out; without /proc none.

    What is APART, and all below it, is not among them: a job may have started the queue's
    supervisor.
    """
    children: dict[int, list[int]] = {}
    for one in _pids():
        if (fields := _stat(one)) is not None and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(one)
    found: list[int] = []
    rest = [pid]
    while rest:
        below = [one for one in children.get(rest.pop(), []) if not _is_apart(one)]
        found += below
        rest += below
    return found


def _is_apart(pid: int) -> bool:
    return any(variable.startswith(f"{APART}=".encode()) for variable in _variables(pid))


def _variables(pid: int) -> list[bytes]:
    """The environment a program was started with."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def send(pids: Iterable[int], number: int) -> None:
    """A signal to each of them that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def stop(below: Callable[[], list[int]]) -> None:
    """SIGSTOP to all that `below` finds, until none is new: who is not stopped yet may start
    another.
    """
    stopped: set[int] = set()
    while new := set(below()) - stopped:
        send(new, signal.SIGSTOP)
        stopped |= new


def group(leader: int) -> list[int]:
    """Return a whole process group in the form of `send`; [] where no process of it is left."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        pass
    return [-leader]


def marked(variable: str) -> list[int]:
    """Return the living processes with `NAME=value` in the environment, and all below them.

    Without /proc none. A child inherits it from its parent: it identifies a job's processes even
    after they left their session and their parent.
    """
    requested = variable.encode("utf-8", "surrogateescape")
    found = [pid for pid in _pids() if requested in _variables(pid)]
    return list(dict.fromkeys([*found, *(below for pid in found for below in descendants(pid))]))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()] if _PROC.is_dir() else []


def usage(pids: Iterable[int]) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of some processes together."""
    seconds = resident = 0.0
    for pid in pids:
        if (fields := _stat(pid)) is not None:
            # utime, stime and those of children that were waited for; rss in pages.
            seconds += sum(map(int, fields[11:15])) / _TICKS_A_SECOND
            resident += int(fields[21]) * _PAGE_BYTES
    return seconds, int(resident)


def close_from(lowest: int, keep: Iterable[int]) -> None:
    """Close all descriptors from `lowest` on but some."""
    start = lowest
    for descriptor in sorted(keep):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, 65536)


def default_signals() -> None:
    """Every signal as a fresh program has it: Python ignores some, a supervisor blocks others."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
