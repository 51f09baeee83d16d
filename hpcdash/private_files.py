"""Folders and files of a person's own, which nobody else may read, fill, replace, or lead elsewhere by a link."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
import sys
from pathlib import Path

from hpcdash.errors import EXIT_USAGE, HpcdashError

_ROOT = 0
_OPEN_STREAM = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/([0-9]{1,9})")
_STREAMS = {"stdout": 1, "stderr": 2}


class NotPrivate(HpcdashError):
    """A folder of one's own that is somebody else's, or holds what somebody else put there."""

    exit_status = EXIT_USAGE


def require_own(folder: Path, variable: str) -> None:
    """Raises NotPrivate where a folder, the link that leads to it, or something in it is somebody else's.

    A folder that is not there, or that tells nothing of itself, is left to whoever opens it. Root may own links and
    what is in it. Others' permission to write there is taken away. `variable` names another folder.
    """
    own = (os.geteuid(), _ROOT)
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        if (owner := os.lstat(folder).st_uid) not in own or (owner := os.stat(folder).st_uid) != os.geteuid():
            raise NotPrivate(f"{folder} belongs to {user_name(owner)}, not to you", _another(variable))
        mode = os.stat(folder).st_mode & 0o7777
        if mode & 0o022:
            os.chmod(folder, mode & ~0o022)
        with os.scandir(folder) as entries:
            for entry in entries:
                if (owner := entry.stat(follow_symlinks=False).st_uid) not in own:
                    raise NotPrivate(
                        f"{entry.path} belongs to {user_name(owner)}, who could have put it there for you to write to",
                        f"Remove it if it is nothing you know. {_another(variable)}",
                    )


def make_private(folder: Path, variable: str) -> None:
    """Make a folder with its parents, or close the one that is there to everybody else. Raises NotPrivate."""
    try:
        make_folder(folder)
        require_own(folder, variable)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise NotPrivate(f"the folder {folder} cannot be made: {error.strerror}", _another(variable)) from error


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, each 0700 whatever the umask: `mkdir -p` makes parents by the umask alone."""
    for one in reversed([parent for parent in folder.parents if not parent.exists()]):
        one.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def close_to_others(file: Path) -> None:
    """Make a file 0600 where it is there and looser; what cannot be changed stays."""
    with contextlib.suppress(OSError):
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)


def atomic_write(
    file: Path, *content: bytes | memoryview, mode: int = 0o600, prefix: str = ".new-", sync: bool = True
) -> None:
    """Write a file whole or not at all, in the place of what was there. Raises OSError.

    `prefix` begins the name that it has until then. `sync`: it is on the disk before it takes the place.
    """
    import tempfile

    descriptor, unfinished = tempfile.mkstemp(dir=file.parent, prefix=prefix)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.writelines(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if sync:
                os.fsync(stream.fileno())
        os.replace(unfinished, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def write_output(path: Path, content: bytes) -> None:
    """Write to a path that a person named: to a pipe or an open stream as it is, else in the place of what was there.

    A link is replaced, never followed. Raises OSError.
    """
    if found := _OPEN_STREAM.fullmatch(str(path)):
        sys.stdout.flush()
        _write_all(_STREAMS.get(found[1]) or int(found[2]), content)
        return
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        there = None
    if there is not None and (stat.S_ISFIFO(there.st_mode) or stat.S_ISCHR(there.st_mode)):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if os.path.samestat(there, os.fstat(descriptor)):
                _write_all(descriptor, content)
                return
        finally:
            os.close(descriptor)
    os.umask(mask := os.umask(0o077))
    is_own_file = there is not None and stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid()
    mode = stat.S_IMODE(there.st_mode) & 0o777 if there is not None and is_own_file else 0o666 & ~mask
    atomic_write(path, content, mode=mode)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _another(variable: str) -> str:
    return f"Set {variable} to a folder of your own."


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
