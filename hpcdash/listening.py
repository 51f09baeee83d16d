"""Address for a browser: a port local to this machine, or a unix socket of its owner."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcdash.errors import HpcdashError, UsageError
from hpcdash.private_files import find_weak_spot

_ANOTHER_PATH = "Use a path in a folder of your own, such as your home folder."


def listen_on_loopback(port: int) -> socket.socket:
    """Return a listening socket on 127.0.0.1; port 0 is any free port. Raises HpcdashError."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise HpcdashError(
            f"cannot listen on 127.0.0.1:{port}: {error.strerror}",
            "Remove --port to use any free port.",
        ) from error
    return listening


@contextmanager
def listen_on_socket(path: Path) -> Iterator[socket.socket]:
    """Listen on a unix socket, mode 0600, which is removed afterwards. Raises UsageError.

    In each folder above it, only its owner and root may be able to replace it. Our own socket is
    replaced if no program listens on it; other files at the path are refused.
    """
    try:
        # Links in the folders are followed only now; a link at the path itself is not followed.
        path = Path(os.path.realpath(path.parent), path.name)
        _require_safe_folders(path.parent)
        _remove_dead_socket(path)
    except OSError as error:
        raise UsageError(f"{error.filename or path}: {error.strerror}", _ANOTHER_PATH) from error
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        old_mask = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(old_mask)
        listening.listen()
    except OSError as error:
        listening.close()
        # A path that is too long has no errno.
        raise UsageError(
            f"cannot listen on {path}: {error.strerror or error}", _ANOTHER_PATH
        ) from error
    ours = os.lstat(path)
    try:
        yield listening
    finally:
        listening.close()
        try:
            if os.path.samestat(ours, os.lstat(path)):
                path.unlink()
        except OSError:
            pass


def _require_safe_folders(folder: Path) -> None:
    spot = find_weak_spot(folder, allows_private_group=False)
    if spot is None:
        return
    if spot.owner:
        raise UsageError(
            f"{spot.path} belongs to another user, {spot.owner}, who could replace the socket",
            _ANOTHER_PATH,
        )
    raise UsageError(
        f"other users may write to {spot.path} and could replace the socket", _ANOTHER_PATH
    )


def _remove_dead_socket(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise UsageError(
            f"{path} already exists and is not your socket",
            "Remove it, or use another path.",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as query:
        status = query.connect_ex(str(path))
    if status != errno.ECONNREFUSED:
        raise UsageError(f"another program listens on {path}", "Stop it, or use another path.")
    path.unlink()
