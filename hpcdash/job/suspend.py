"""Suspends a task of a shared pool when its coordinator asks, or when the task itself is ready.

    from hpcdash.job.suspend import go_suspend, receive_suspend_command

    for step in range(start, steps):
        train(step)
        if rank == 0 and receive_suspend_command():
            save(step)
            go_suspend()

The command is a file that the coordinator writes to; node 0 alone has its path, in HPCDASH_SUSPEND.
Outside a shared pool there is no such path, and both functions do nothing.
"""

from __future__ import annotations

import os
from time import monotonic, sleep

from hpcdash.job.aside import Aside
from hpcdash.job.warnings_once import OnceLog

SUSPEND, SUSPEND_READY = "HPCDASH_SUSPEND", "HPCDASH_SUSPEND_READY"
# A file that the first check creates: until then a program may be importing. Only the simulation
# sets it.
SUSPEND_LOOKED = "HPCDASH_SUSPEND_LOOKED"
# The file beside the command's, not empty once a process has seen the command.
SEEN_SUFFIX = ".seen"
# The file beside it, not empty once the task has saved and waits to be ended.
READY_SUFFIX = ".ready"
# A check opens a file, usually on a network file system: a loop of short steps asks the process
# instead.
_EVERY_SECONDS = 0.2
_WAIT_SECONDS = 2.0
# A program may save, sleep through the rest of its time, and then call go_suspend().
_SLEPT_SECONDS = 1.0
_log = OnceLog()


def suspend_deadline(queried_at: float, seen_at: float | None, grace_seconds: float) -> float:
    """Return when a task requested to suspend is ended by force.

    It has `grace_seconds` to see the command, and as long from then on to save. `seen_at` is None
    where it has not seen it.
    """
    latest = queried_at + grace_seconds
    if seen_at is None:
        return latest
    return min(max(seen_at, queried_at), latest) + grace_seconds + _SLEPT_SECONDS


class _Command:
    """State of the command in this process; once seen it stays."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.process = os.getpid()
        self.is_seen = False
        self._next_check = 0.0
        self._aside = Aside()
        if looked := os.environ.get(SUSPEND_LOOKED):
            _make(looked)

    def check(self) -> bool:
        now = monotonic()
        if not self.is_seen and now >= self._next_check:
            self._next_check = now + _EVERY_SECONDS
            found = self._aside.answer(self._is_given, _WAIT_SECONDS, None)
            if found is None:
                _log.warn(
                    self.path,
                    "cannot check for the suspend command: its file system does not respond",
                )
            self.is_seen = bool(found)
        return self.is_seen

    def _is_given(self) -> bool:
        try:
            # Opened again at each check: a network file system shows new content only after an
            # open.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                is_given = bool(os.read(file, 1))
            finally:
                os.close(file)
        except OSError as error:
            _log.warn(self.path, f"cannot check for the suspend command: {error}")
            return False
        if is_given:
            _make(self.path + SEEN_SUFFIX, b"seen\n")
        return is_given


_command: _Command | None = None


def receive_suspend_command() -> bool:
    """Whether the coordinator has asked this task to suspend; asking tells it that the task
    answers.

    True on node 0 alone, in each of its processes, and from then on: save, then call `go_suspend`.
    Looks at most every 0.2 s, so that it may be asked at each step.
    """
    global _command
    path = os.environ.get(SUSPEND, "")
    if not path:
        return False
    if _command is None or _command.path != path or _command.process != os.getpid():
        _command = _Command(path)
    return _command.check()


def go_suspend() -> None:
    """Reports that the state is saved and waits to be stopped; on any node, asked or not.

    Outside a shared pool it returns. The task starts again from its beginning when it is its turn.
    """
    path = os.environ.get(SUSPEND_READY, "")
    if not path:
        return
    import signal
    import threading

    from hpcdash.job.warnings_once import warn

    # A handler of TERM that saves has saved by now.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while not _make(path, b"ready\n"):
        sleep(_EVERY_SECONDS)
    warn("suspended: waiting for the pool's coordinator to free the nodes")
    while True:
        sleep(60.0)


def _make(path: str, content: bytes = b"") -> bool:
    """Makes a file; whether it is there."""
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
