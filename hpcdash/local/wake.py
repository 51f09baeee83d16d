"""How commands wake the supervisor, and know whether one runs: a FIFO in the queue's folder, a lock beside it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path


def open_wake(folder: Path) -> int:
    """The supervisor's end: a descriptor that becomes readable when somebody wakes it."""
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
