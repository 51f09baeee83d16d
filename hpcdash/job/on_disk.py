"""Writes files and folders durably: flushed to disk, and visible under their names only when
complete.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from time import monotonic, sleep, time

from hpcdash.job.warnings_once import OnceLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK_BYTES = 1 << 22
_BESIDE = ".saving@"
# Nothing was written there for so long: by a process that is gone, and by one that is invisible
# from here.
_GONE_SECONDS, _SILENT_SECONDS = 600, 3600
# Network file systems show a new name on other nodes after up to a minute.
_SEEN_SECONDS = 120.0
# Errors of a disk that did not store the data.
_LOST = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_log = OnceLog()


@contextmanager
def write_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write one file to, which gets its final name when the block ends without
    an error.

        with write_whole("model.pt") as beside:
            torch.save(model.state_dict(), beside)

    Anyone who reads `path`, at any moment and after any crash, finds either the old or the new
    file, complete. If `path` is a link, its target is written; an existing file keeps its mode.
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
        _copy_mode(final, beside)
        sync_file(beside)
        os.replace(beside, final)
    except BaseException:
        remove(beside)
        raise
    sync_folder(final.parent)


def _copy_mode(of: Path, to: Path) -> None:
    try:
        os.chmod(to, os.stat(of).st_mode & 0o7777)
    except OSError:
        # There was no file, or its file system keeps no modes.
        pass


def sync_file(path: str | os.PathLike[str]) -> None:
    """Waits until a file's bytes are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Wait until a folder's names are on the disk, on file systems that report so.

    Raises nothing.
    """
    try:
        sync_file(path)
    except OSError as error:
        # Some network file systems refuse fsync of a folder: they keep names on the server at once.
        if error.errno in _LOST:
            _log.warn(
                "unsynced", f"data saved in {os.fspath(path)} may not be on disk: {error.strerror}"
            )


def sync_tree(path: Path) -> None:
    """Waits until all that is in a folder is on the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            full = os.path.join(folder, name)
            if not os.path.islink(full):
                sync_file(full)
        sync_folder(folder)


def sync_file_system(path: Path) -> None:
    """Waits until all that this node wrote to the file system of `path` is on the disk: one call
    for many files.
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
    """Keep links to absolute paths in a folder valid when the folder is renamed.

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
    """Return the files in a folder by name, with sizes in bytes, and CRC-32 if requested.

    For links, the link text counts; the target is not looked at and need not exist.
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
    """Whether no process writes to `…@HOST@PROCESS` any more, as after a killed run."""
    host, _, process = path.name.partition("@")[2].rpartition("@")
    try:
        times = [os.lstat(path).st_mtime]
        times += [
            os.lstat(os.path.join(folder, name)).st_mtime
            for folder, _, names in os.walk(path)
            for name in names
        ]
    except OSError:
        # Another run was first, or it is in a folder without permission.
        return False
    # A process in another container has a number that is not seen here.
    is_gone = (
        host == host_name()
        and os.path.isdir("/proc/self")
        and not os.path.exists(f"/proc/{process}")
    )
    return time() - max(times) > (_GONE_SECONDS if is_gone else _SILENT_SECONDS)


def wait_until_seen(path: Path, rank: int) -> None:
    """Waits for a file that another rank sees. Raises RuntimeError after two minutes."""
    give_up_at = monotonic() + _SEEN_SECONDS
    while not path.exists():
        if monotonic() > give_up_at:
            raise RuntimeError(f"rank {rank} does not see {path}, which rank 0 resumes from")
        sleep(0.2)
        try:
            # A listing makes network file systems refresh.
            os.listdir(path.parent.parent)
        except OSError:
            # The folder itself may not be seen yet.
            pass


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
    """This host's name, without its domain."""
    return os.uname().nodename.partition(".")[0]


def _crc32(path: str) -> int:
    from zlib import crc32

    total = 0
    with open(path, "rb") as file:
        while True:
            chunk = file.read(_CHUNK_BYTES)
            if not chunk:
                return total
            total = crc32(chunk, total)
