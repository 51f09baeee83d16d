"""Store of the scripts submitted from here, for schedulers that do not return them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from msgspec import Struct

from hpcdash.domain.job_ids import JobId, covers, read_job_id
from hpcdash.private_files import atomic_write, make_folder

# Of one cluster: more than a server's history holds, and at most a few MB.
MAX_KEPT = 1000
KEPT_SECONDS = 180 * 86400
# The most between a job's submission and the storage of its script: clocks differ, and an answer
# may be searched for. A server that counts from 0 again takes longer to reuse a number.
APART_SECONDS = 3600.0
_NAME = re.compile(r"(.+)~([0-9]{1,12})")
_UNFINISHED = ".new-"
_UNFINISHED_SECONDS = 86400


class StoredScript(Struct, frozen=True):
    """A script as submitted; `stored_at` is in epoch seconds."""

    script: bytes
    stored_at: float


class _File(Struct, frozen=True):
    path: Path
    job: JobId
    stored_at: int


class ScriptStore:
    """Scripts in a folder of each cluster, 0700, with a file, 0600, of each submission:
    `12.pbs01~1795250000`.

    Names of clusters and IDs may contain any characters.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, cluster: str, job_id: str, script: bytes, at: float) -> None:
        """Store the script of a job or array, whole or not at all, and delete old ones.

        Nothing is stored for a text that is not an ID. Raises OSError.
        """
        if read_job_id(job_id) is None:
            return
        folder = self._cluster_folder(cluster)
        self._make(folder)
        name = quote(job_id, safe="", errors="backslashreplace")
        atomic_write(folder / f"{name}~{int(at)}", script, prefix=_UNFINISHED)
        with contextlib.suppress(OSError):
            _prune(folder, at)

    def find(
        self, cluster: str, job_id: str, submitted_at: float | None = None
    ) -> StoredScript | None:
        """Find the newest script of a job, or of a task's array; `12` includes 12.pbs01 and
        12[].pbs01.

        If `submitted_at` is known, find the script stored at about that time. None if there is no
        script.
        """
        requested = read_job_id(job_id)
        if requested is None:
            return None
        whole = JobId(requested.number, server=requested.server)
        files = [
            file
            for file in _files(self._cluster_folder(cluster))
            if file.job.cluster == requested.cluster and covers(whole, file.job)
        ]
        if submitted_at is None:
            files.sort(key=lambda file: -file.stored_at)
        else:
            files = [file for file in files if abs(file.stored_at - submitted_at) <= APART_SECONDS]
            files.sort(key=lambda file: abs(file.stored_at - submitted_at))
        for file in files:
            with contextlib.suppress(OSError):
                return StoredScript(_content(file.path), float(file.stored_at))
        return None

    def _cluster_folder(self, cluster: str) -> Path:
        digest = hashlib.sha256(cluster.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        return self.folder / f"{re.sub(r'[^A-Za-z0-9_@-]', '_', cluster)[:60]}-{digest}"

    def _make(self, folder: Path) -> None:
        """Create a folder with mode 0700, whatever the umask; raises OSError."""
        make_folder(self.folder.parent)
        for private in (self.folder, folder):
            private.mkdir(mode=0o700, exist_ok=True)
            if private.is_symlink():
                raise OSError(None, f"{private} is a link to somewhere else")
            if private.stat().st_mode & 0o777 != 0o700:
                private.chmod(0o700)


def _files(folder: Path) -> Iterator[_File]:
    """Yield the scripts of a cluster in no order; none if the folder cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        job = read_job_id(unquote(found[1])) if found else None
        if found is not None and job is not None:
            yield _File(folder / name, job, int(found[2]))


def _content(path: Path) -> bytes:
    """Read a file; raises OSError for a link and for another user's file."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def _prune(folder: Path, now: float) -> None:
    """Delete old files, those beyond MAX_KEPT, and those that a crash left unfinished."""
    newest_first = sorted(_files(folder), key=lambda file: -file.stored_at)
    for position, file in enumerate(newest_first):
        if position >= MAX_KEPT or file.stored_at < now - KEPT_SECONDS:
            file.path.unlink(missing_ok=True)
    for unfinished in folder.glob(f"{_UNFINISHED}*"):
        if unfinished.stat().st_mtime < now - _UNFINISHED_SECONDS:
            unfinished.unlink(missing_ok=True)
