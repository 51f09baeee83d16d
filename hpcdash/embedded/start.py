"""Opens a queue's folder; starts and wakes the supervisor, and knows whether one runs: a FIFO, and
a lock beside it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

from hpcdash.embedded import FOLDER_VARIABLE, processes
from hpcdash.private_files import make_private


def open_folder(folder: Path, *, takes_jobs: bool) -> None:
    """Make a queue's folder, or close the one that is there. Raises NotPrivate.

    Where others could replace it, it takes no job, but those that are in it can be seen and ended.
    """
    make_private(
        folder, FOLDER_VARIABLE, may_be_replaced=not takes_jobs and (folder / "queue.db").exists()
    )


def open_wake(folder: Path) -> int:
    """Open the supervisor's end: a descriptor that becomes readable when it is woken."""
    path = folder / "wake"
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    # Open for writing too: with no other writer a FIFO would be readable all the time.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def wake(folder: Path) -> bool:
    """Wake the supervisor; False where none runs."""
    try:
        descriptor = os.open(folder / "wake", os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return False
        raise
    try:
        os.write(descriptor, b"!")
    except BlockingIOError:
        # It is full: it will wake.
        pass
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)
    return True


def drain(descriptor: int) -> None:
    """Take out what woke the supervisor."""
    try:
        while os.read(descriptor, 65536):
            pass
    except BlockingIOError:
        pass


def lock(folder: Path) -> int | None:
    """The lock only one supervisor has: its descriptor, or None where another runs."""
    descriptor = os.open(folder / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def supervisor_pid(folder: Path) -> int | None:
    """The pid of the supervisor that runs, if any."""
    try:
        descriptor = os.open(folder / "supervisor.lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None


def ensure_supervisor(folder: Path) -> None:
    """Wake the supervisor, or start one that outlives this program and its terminal; `folder` is
    absolute.
    """
    if wake(folder):
        return
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return
    # A program of its own: SQLite's state must not come along into a fork.
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.chdir("/")
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        processes.close_from(3, [])
        processes.default_signals()
        # The package may not be installed: it is found where this one is. A job that calls this is
        # not its parent.
        found_in = str(Path(__file__).resolve().parent.parent.parent)
        environment = {name: value for name, value in os.environ.items() if name != processes.MARK}
        environment |= {"PYTHONPATH": found_in, processes.APART: str(folder)}
        argv = [sys.executable, "-P", "-m", "hpcdash.embedded", str(folder), "supervise"]
        os.execve(sys.executable, argv, environment)
    finally:
        os._exit(1)
