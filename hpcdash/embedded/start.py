"""Opens a queue's folder, and starts, wakes and finds its supervisor: by a FIFO and a lock."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

from hpcdash.embedded import FOLDER_VARIABLE, processes
from hpcdash.private_files import make_private


def open_folder(folder: Path, *, takes_jobs: bool) -> None:
    """Create a queue's folder, or make the existing one private. Raises NotPrivate.

    A folder that others could replace accepts no jobs, but its jobs can still be shown and ended.
    """
    make_private(
        folder, FOLDER_VARIABLE, may_be_replaced=not takes_jobs and (folder / "queue.db").exists()
    )


def open_wake(folder: Path) -> int:
    """Return the supervisor's descriptor, which becomes readable when it is woken."""
    path = folder / "wake"
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    # Open for writing as well: a FIFO without a writer is always readable.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def wake(folder: Path) -> bool:
    """Wake the supervisor; False if there is none."""
    try:
        descriptor = os.open(folder / "wake", os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return False
        raise
    try:
        os.write(descriptor, b"!")
    except BlockingIOError:
        # The FIFO is full, so the supervisor will wake.
        pass
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)
    return True


def drain(descriptor: int) -> None:
    """Read everything that woke the supervisor."""
    try:
        while os.read(descriptor, 65536):
            pass
    except BlockingIOError:
        pass


def lock(folder: Path) -> int | None:
    """Take the supervisor's lock; return its descriptor, or None if another supervisor runs."""
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
    """Return the running supervisor's pid; None if there is none."""
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
    """Wake the supervisor, or start one that outlives this program; `folder` is absolute."""
    if wake(folder):
        return
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return
    # A new program, as SQLite's state must not be inherited by a fork.
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
        # The package may not be installed. The supervisor is not part of a job that starts it.
        root = str(Path(__file__).resolve().parent.parent.parent)
        environment = {name: value for name, value in os.environ.items() if name != processes.MARK}
        environment |= {"PYTHONPATH": root, processes.APART: str(folder)}
        argv = [sys.executable, "-P", "-m", "hpcdash.embedded", str(folder), "supervise"]
        os.execve(sys.executable, argv, environment)
    finally:
        os._exit(1)
