"""Suspends a task of a shared pool at its coordinator's request, or when the task is ready.

    from hpcdash.job.suspend import go_suspend, receive_suspend_command

    for step in range(start, steps):
        train(step)
        if rank == 0 and receive_suspend_command():
            save(step)
            go_suspend()

The command is a file that the coordinator writes to; only node 0 has its path, in HPCDASH_SUSPEND.
Outside a shared pool there is no path, and both functions do nothing.
"""

from __future__ import annotations

import os
from time import monotonic, sleep

from hpcdash.job.aside import Aside
from hpcdash.job.warnings_once import OnceLog

SUSPEND = "HPCDASH_SUSPEND"
SUSPEND_READY = "HPCDASH_SUSPEND_READY"
# File that the first check creates: until then a program may be importing. Only the simulation sets
# it.
SUSPEND_LOOKED = "HPCDASH_SUSPEND_LOOKED"
# Ending of a file beside the command, not empty once a process has seen the command.
SEEN_SUFFIX = ".seen"
# Ending of a file beside the command, not empty once the task has saved and waits to be ended.
READY_SUFFIX = ".ready"
# A check opens a file, usually on a network file system: it must not follow each short step.
_EVERY_SECONDS = 0.2
_WAIT_SECONDS = 2.0
# A program may save, sleep for the rest of its time, and then call go_suspend().
_SLEPT_SECONDS = 1.0
_log = OnceLog()


def suspend_deadline(queried_at: float, seen_at: float | None, grace_seconds: float) -> float:
    """Return the time at which a task that was requested to suspend is ended by force.

    The task has `grace_seconds` to see the command, and as long again to save. `seen_at` is None
    until it has seen the command.
    """
    latest = queried_at + grace_seconds
    if seen_at is None:
        return latest
    return min(max(seen_at, queried_at), latest) + grace_seconds + _SLEPT_SECONDS


class _Command:
    """State of the command in this process; once the command is seen, it stays seen."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.process = os.getpid()
        self.is_seen = False
        self._next_check = 0.0
        self._aside = Aside()
        if first_check := os.environ.get(SUSPEND_LOOKED):
            _write(first_check)

    def check(self) -> bool:
        now = monotonic()
        if not self.is_seen and now >= self._next_check:
            self._next_check = now + _EVERY_SECONDS
            is_seen = self._aside.answer(self._read, _WAIT_SECONDS, None)
            if is_seen is None:
                _log.warn(
                    self.path,
                    "cannot check for the suspend command: its file system does not respond",
                )
            self.is_seen = bool(is_seen)
        return self.is_seen

    def _read(self) -> bool:
        """Return whether the command was written, and confirm it in the file beside it."""
        try:
            # Opened again at each check: a network file system shows new content only after an
            # open.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                is_written = bool(os.read(file, 1))
            finally:
                os.close(file)
        except OSError as error:
            _log.warn(self.path, f"cannot check for the suspend command: {error}")
            return False
        if is_written:
            _write(self.path + SEEN_SUFFIX, b"seen\n")
        return is_written


_command: _Command | None = None


def receive_suspend_command() -> bool:
    """Return whether the coordinator has requested this task to suspend; if so, it is notified that
    the task has received the request.

    It is True only on node 0, in each of its processes, and stays True: save, then call
    `go_suspend`. It may be called at each step: it checks at most every 0.2 s.
    """
    global _command
    path = os.environ.get(SUSPEND, "")
    if not path:
        return False
    if _command is None or _command.path != path or _command.process != os.getpid():
        _command = _Command(path)
    return _command.check()


def go_suspend() -> None:
    """Report that the state is saved, and wait to be stopped; on any node, requested or not.

    Outside a shared pool it returns. The task starts again from its beginning at its next turn.
    """
    path = os.environ.get(SUSPEND_READY, "")
    if not path:
        return
    import signal
    import threading

    from hpcdash.job.warnings_once import warn

    # The state is saved: a handler of TERM need not save it again.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while not _write(path, b"ready\n"):
        sleep(_EVERY_SECONDS)
    warn("suspended: waiting for the pool's coordinator to free the nodes")
    while True:
        sleep(60.0)


def _write(path: str, content: bytes = b"") -> bool:
    """Write a file, created if missing; return whether that succeeded."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, content)
        finally:
            os.close(file)
    except OSError as error:
        _log.warn(path, f"{path} cannot be created: {error}")
        return False
    return True
