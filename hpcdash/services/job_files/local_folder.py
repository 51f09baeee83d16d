"""A folder of this machine that copies are written to: nothing outside of it is, and no link in it
is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hpcdash.errors import HpcdashError

_READ_BYTES = 1 << 20
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
# Errors of a file system without hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


class NotWritten(HpcdashError):
    """A file that cannot be written on this machine; `is_full` if there is no room for it."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


def local_problem(error: OSError) -> NotWritten:
    """Return the error of this machine for a person."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    reason = error.strerror or str(error)
    if error.errno == errno.ELOOP:
        reason = "a link is in the way here, and is not followed"
    elif error.errno == errno.ENOTDIR:
        reason = "a file or a link is in the way here"
    return NotWritten(reason, is_full=is_full)


class LocalFolder:
    """Folder of this machine, made if it does not exist."""

    def __init__(self, path: Path) -> None:
        """Open it; raises NotWritten."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise local_problem(error) from None

    def close(self) -> None:
        os.close(self._root)

    @contextlib.contextmanager
    def open_folder(self, name: bytes, *, is_made: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the descriptor of the folder of `name`, and the last part of the name.

        Raises OSError, and NotWritten for a name that leads elsewhere.
        """
        *folders, last = split_name(name)
        descriptor = os.dup(self._root)
        try:
            for part in folders:
                if is_made:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=descriptor)
                flags = os.O_RDONLY | os.O_DIRECTORY | _FLAGS
                within = os.open(part, flags, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = within
            yield descriptor, last
        finally:
            os.close(descriptor)

    def find(self, name: bytes) -> os.stat_result | None:
        """Return what is there under a name, without following a link; None for nothing."""
        try:
            with self.open_folder(name, is_made=False) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise local_problem(error) from None

    def file_sum(self, name: bytes) -> str:
        """Return the SHA-256 of a file. Raises OSError."""
        with self.open_folder(name, is_made=False) as (folder, last):
            flags = os.O_RDONLY | os.O_NONBLOCK | _FLAGS
            with os.fdopen(os.open(last, flags, dir_fd=folder), "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()


class PartialFile:
    """A file under a name of its own until it is complete; `size` is how much of it is there."""

    def __init__(self, folder: LocalFolder, name: bytes, source: bytes) -> None:
        """Open the part of a copy of `source`, or begin one. Raises OSError and NotWritten."""
        self.folder = folder
        self.name = name
        digest = hashlib.sha256(source + b"\0" + name).hexdigest()
        self._part = f".hpcdash-{digest[:16]}.part".encode()
        with folder.open_folder(name, is_made=True) as (descriptor, _):
            flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | _FLAGS
            self._file = os.open(self._part, flags, 0o600, dir_fd=descriptor)
        try:
            self._require_own()
        except BaseException:
            os.close(self._file)
            raise
        self.size = 0
        self._sum = hashlib.sha256()
        self._is_finished = False

    def _require_own(self) -> None:
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise NotWritten(f"{self._part.decode()} beside it is not a file of yours alone")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotWritten("another hpcdash is copying this file") from None
        except OSError:
            # A file system without locks.
            return

    def seed(self, size: int) -> None:
        """Begin with the present file of this name, if that is shorter than `size`."""
        if os.fstat(self._file).st_size:
            return
        with (
            contextlib.suppress(FileNotFoundError),
            self.folder.open_folder(self.name, is_made=False) as (folder, last),
            os.fdopen(
                os.open(last, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=folder), "rb"
            ) as old,
        ):
            if os.fstat(old.fileno()).st_size < size:
                offset = 0
                while chunk := old.read(_READ_BYTES):
                    offset += os.pwrite(self._file, chunk, offset)

    def read_part(self) -> str:
        """Read what arrived before; return its SHA-256."""
        while chunk := os.pread(self._file, _READ_BYTES, self.size):
            self._sum.update(chunk)
            self.size += len(chunk)
        return self._sum.hexdigest()

    def begin_at(self, size: int) -> None:
        """Continue after `size` bytes: all that are there, or none."""
        if size != self.size:
            os.ftruncate(self._file, 0)
            self.size = 0
            self._sum = hashlib.sha256()

    def write(self, content: bytes) -> None:
        """Append bytes. Raises OSError."""
        view = memoryview(content)
        while view:
            written = os.pwrite(self._file, view, self.size)
            self._sum.update(view[:written])
            self.size += written
            view = view[written:]

    @property
    def sum(self) -> str:
        return self._sum.hexdigest()

    def finish(self, modified_at: float, *, replaces: bool) -> None:
        """Give it its name and time; without `replaces`, only if nothing has that name.

        Raises FileExistsError and other OSErrors.
        """
        os.umask(mask := os.umask(0o077))
        os.fchmod(self._file, 0o666 & ~mask)
        os.utime(self._file, (modified_at, modified_at))
        os.fsync(self._file)
        with self.folder.open_folder(self.name, is_made=False) as (folder, last):
            part = os.stat(self._part, dir_fd=folder, follow_symlinks=False)
            if not os.path.samestat(part, os.fstat(self._file)):
                raise NotWritten(f"{self._part.decode()} beside it was replaced")
            self._is_finished = True
            if replaces:
                os.replace(self._part, last, src_dir_fd=folder, dst_dir_fd=folder)
                return
            try:
                os.link(
                    self._part, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False
                )
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if self.folder.find(self.name) is not None:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
                os.rename(self._part, last, src_dir_fd=folder, dst_dir_fd=folder)
                return
            os.unlink(self._part, dir_fd=folder)

    def remove(self) -> None:
        """Remove it under its own name: what arrived is worth nothing."""
        with (
            contextlib.suppress(OSError),
            self.folder.open_folder(self.name, is_made=False) as (folder, _),
        ):
            os.unlink(self._part, dir_fd=folder)

    def close(self) -> None:
        """Close it; nothing stays of a copy that has not begun."""
        if not self._is_finished and not os.fstat(self._file).st_size:
            self.remove()
        os.close(self._file)


def split_name(name: bytes) -> list[bytes]:
    """Return the parts of a relative name; raises NotWritten for one that leads elsewhere."""
    parts = name.split(b"/")
    if any(part in (b"", b".", b"..") or b"\0" in part for part in parts):
        raise NotWritten("its name leads out of the folder")
    return parts
