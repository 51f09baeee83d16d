"""Writes files and folders durably: flushed to disk, and visible under their names only when
complete.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from time import monotonic, sleep, time

from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK_BYTES = 1 << 22
_BESIDE = ".saving@"
# Time without a write after which a file is abandoned: by a process of this host that is gone, and
# by a process that cannot be seen from here.
_GONE_SECONDS = 600
_SILENT_SECONDS = 3600
# Network file systems show a new name on other nodes after up to a minute.
_SEEN_SECONDS = 120.0
# Errors of a disk that did not store the data.
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_log = OnceLog()


@contextmanager
def write_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write a file to; it is renamed to `path` if the block succeeds.

        with write_whole("model.pt") as beside:
            torch.save(model.state_dict(), beside)

    Anyone who reads `path`, at any time and after any crash, finds either the old or the new file,
    complete. If `path` is a link, its target is written; an existing file keeps its mode.
    """
    from pathlib import Path

    final = Path(os.path.abspath(os.fspath(path)))
    if final.is_symlink():
        final = Path(os.path.realpath(final))
    beside = final.with_name(f".{final.name}{_BESIDE}{host_name()}@{os.getpid()}")
    for name in os.listdir(final.parent):
        if name.startswith(f".{final.name}{_BESIDE}") and is_abandoned(final.parent / name):
            remove(final.parent / name)
    try:
        yield beside
        # There may be no file yet, or its file system has no modes.
        with suppress(OSError):
            os.chmod(beside, final.stat().st_mode & 0o7777)
        sync_file(beside)
        os.replace(beside, final)
    except BaseException:
        remove(beside)
        raise
    sync_folder(final.parent)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Wait until a file's bytes are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Wait until a folder's names are on the disk; a failure is logged, and nothing is raised."""
    try:
        sync_file(path)
    except OSError as error:
        # Some network file systems refuse fsync of a folder: the server stores names at once.
        if error.errno in _LOST:
            _log.warn(
                "unsynced", f"data saved in {os.fspath(path)} may not be on disk: {error.strerror}"
            )


def sync_tree(path: Path) -> None:
    """Wait until the whole content of a folder is on the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            full = os.path.join(folder, name)
            if not os.path.islink(full):
                sync_file(full)
        sync_folder(folder)


def sync_file_system(path: Path) -> None:
    """Wait until all that this node wrote to the file system of `path` is on the disk.

    This is faster than `sync_tree` for many files.
    """
    import ctypes

    folder = os.open(path, os.O_RDONLY)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(folder) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(folder)


def relink(path: Path) -> bool:
    """Make links with absolute paths inside a folder relative, so that the folder can be renamed.

    Returns whether there were any.
    """
    is_changed = False
    for base in {os.path.abspath(path), os.path.realpath(path)}:
        for folder, below, names in os.walk(path):
            for full in (os.path.join(folder, name) for name in (*below, *names)):
                text = os.readlink(full) if os.path.islink(full) else ""
                if text.startswith(os.path.join(base, "")):
                    inside = os.path.join(path, os.path.relpath(text, base))
                    os.unlink(full)
                    os.symlink(os.path.relpath(inside, folder), full)
                    is_changed = True
    return is_changed


def file_sums(path: Path, has_checksum: bool) -> Iterator[tuple[str, dict[str, int | str]]]:
    """Yield the files in a folder by name, with sizes in bytes, and CRC-32 if requested.

    A link has its text; its target is not checked and need not exist.
    """
    for folder, below, names in os.walk(path):
        for name in (*below, *names):
            full = os.path.join(folder, name)
            found = os.lstat(full)
            sums: dict[str, int | str] = {"bytes": found.st_size}
            if stat.S_ISLNK(found.st_mode):
                sums = {"link": os.readlink(full)}
            elif stat.S_ISDIR(found.st_mode):
                continue
            elif has_checksum:
                sums["crc32"] = _crc32(full)
            yield os.path.relpath(full, path), sums


def is_abandoned(path: Path) -> bool:
    """Return whether no process writes to `…@HOST@PROCESS` any more, as after a killed run."""
    host, _, process = path.name.partition("@")[2].rpartition("@")
    try:
        times = [os.lstat(path).st_mtime]
        times += [
            os.lstat(os.path.join(folder, name)).st_mtime
            for folder, _, names in os.walk(path)
            for name in names
        ]
    except OSError:
        # Another run has removed it, or there is no permission.
        return False
    # The process may also be in another container, whose numbers are not seen here.
    is_gone = (
        host == host_name()
        and os.path.isdir("/proc/self")
        and not os.path.exists(f"/proc/{process}")
    )
    return time() - max(times) > (_GONE_SECONDS if is_gone else _SILENT_SECONDS)


def wait_until_seen(path: Path, rank: int) -> None:
    """Wait for a file that rank 0 sees; raises RuntimeError after two minutes."""
    deadline = monotonic() + _SEEN_SECONDS
    while not path.exists():
        if monotonic() > deadline:
            raise RuntimeError(f"rank {rank} does not see {path}, which rank 0 resumes from")
        sleep(0.2)
        # A listing makes network file systems refresh; the folder itself may not be visible yet.
        with suppress(OSError):
            os.listdir(path.parent.parent)


def remove(path: Path) -> None:
    """Delete a file or a folder; a failure is logged once, and nothing is raised."""
    try:
        if path.is_dir() and not path.is_symlink():
            from shutil import rmtree

            rmtree(path, ignore_errors=True)
            is_left = os.path.lexists(path)
        else:
            path.unlink()
            is_left = False
    except FileNotFoundError:
        return
    except OSError:
        is_left = True
    if is_left:
        _log.warn("undeleted", f"{path} cannot be deleted and still uses disk space")


def host_name() -> str:
    """Return this host's name without its domain."""
    return os.uname().nodename.partition(".")[0]


def _crc32(path: str) -> int:
    from zlib import crc32

    total = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            total = crc32(chunk, total)
    return total
