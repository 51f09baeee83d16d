"""A file that several programs append lines to, each on the disk before the next step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdash.private_files import close_to_others

ROTATE_BYTES = 5_000_000
_LOCK_WAIT_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.02


def older_file(path: Path) -> Path:
    """Where a file goes when it has grown large."""
    return path.with_name(path.name + ".1")


def append_line(path: Path, line: bytes) -> None:
    """Append one line, which holds no newline, and wait until it is on the disk. Raises OSError.

    The file is made 0600, its folder 0700; one that is looser, and the older one beside it, is closed. A last line that
    a crash cut off stays a line of its own. Where other programs hold the lock for long, or the file system has no
    locks, it is written all the same.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in (path, older_file(path)):
        close_to_others(one)
    with _opened(path) as (file, is_new):
        size = os.fstat(file).st_size
        is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        _write(file, (b"\n" if is_cut else b"") + line + b"\n")
        os.fsync(file)
    if is_new:
        _sync_folder(path.parent)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, bool]]:
    """The file, locked where it can be, and whether it was made just now; a large one was moved aside before."""
    while True:
        is_new = not path.exists()
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(file)
            # Another program may have moved the file aside while this one waited.
            if _is_at(file, path) and (os.fstat(file).st_size < ROTATE_BYTES or not _moved_aside(path)):
                yield file, is_new
                return
        finally:
            os.close(file)


def _moved_aside(path: Path) -> bool:
    """Whether a large file could be; where it could not it grows on."""
    try:
        os.replace(path, older_file(path))
    except OSError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _lock(file: int) -> None:
    """Lock the file, for a bounded time; some network file systems have no locks."""
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR) or time.monotonic() > deadline:
                return
        time.sleep(_LOCK_POLL_SECONDS)


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _sync_folder(folder: Path) -> None:
    # Some file systems cannot: the file itself is on the disk.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
