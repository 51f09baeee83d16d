"""Keeps the scripts that were submitted from here, for schedulers that give none back."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from msgspec import Struct

from hpcdash.domain.job_ids import BadJobId, JobId, covers, parse_job_id
from hpcdash.private_files import atomic_write, make_folder

# Of one cluster: more than a server's history holds, and at most a few MB.
MAX_KEPT = 1000
KEPT_SECONDS = 180 * 86400
# How far a job's time of submission may be from when its script was kept: the clocks of two
# machines, and an answer that was looked for. A server that counts from 0 again takes longer to
# come back to a number.
APART_SECONDS = 3600.0
_NAME = re.compile(r"(.+)~([0-9]{1,12})")
_UNFINISHED = ".new-"
_UNFINISHED_SECONDS = 86400


class StoredScript(Struct, frozen=True):
    """A script as it was handed in, and when, in epoch seconds."""

    script: bytes
    kept_at: float


class _File(Struct, frozen=True):
    path: Path
    job: JobId
    kept_at: int


class ScriptStore:
    """One folder a cluster in `folder`, 0700, its files 0600: a file a submission,
    `12.pbs01~1795250000`.

    Names of clusters and ids may hold any characters.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, cluster: str, job_id: str, script: bytes, at: float) -> None:
        """Keep the script of a job or array, whole or not at all; what is old, or one too many,
        goes. Raises OSError.

        What cannot be read as an id is not kept: nobody could ask for it.
        """
        if _read(job_id) is None:
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
        """The newest script of a job, of its array where it is a task; `12` is 12.pbs01 and
        12[].pbs01 as well.

        Where `submitted_at` is known, the one that was kept then; None where there is none from
        about that time.
        """
        requested = _read(job_id)
        if requested is None:
            return None
        whole = JobId(requested.number, server=requested.server)
        files = [file for file in _files(self._cluster_folder(cluster)) if covers(whole, file.job)]
        if submitted_at is None:
            files.sort(key=lambda file: -file.kept_at)
        else:
            files = [file for file in files if abs(file.kept_at - submitted_at) <= APART_SECONDS]
            files.sort(key=lambda file: abs(file.kept_at - submitted_at))
        for file in files:
            with contextlib.suppress(OSError):
                return StoredScript(_content(file.path), float(file.kept_at))
        return None

    def _cluster_folder(self, cluster: str) -> Path:
        digest = hashlib.sha256(cluster.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        return self.folder / f"{re.sub(r'[^A-Za-z0-9_@-]', '_', cluster)[:60]}-{digest}"

    def _make(self, folder: Path) -> None:
        """Ours alone, however loose the umask is; raises OSError where it cannot be."""
        make_folder(self.folder.parent)
        for one in (self.folder, folder):
            one.mkdir(mode=0o700, exist_ok=True)
            if one.is_symlink():
                raise OSError(None, f"{one} is a link to somewhere else")
            if one.stat().st_mode & 0o777 != 0o700:
                one.chmod(0o700)


def _read(job_id: str) -> JobId | None:
    try:
        return parse_job_id(job_id)
    except BadJobId:
        return None


def _files(folder: Path) -> Iterator[_File]:
    """The scripts of one cluster, in no order; none where the folder cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        found = _NAME.fullmatch(name)
        job = _read(unquote(found[1])) if found else None
        if found is not None and job is not None:
            yield _File(folder / name, job, int(found[2]))


def _content(path: Path) -> bytes:
    """Read a file of ours; raises OSError for a link and another's file."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        return file.read()


def _prune(folder: Path, now: float) -> None:
    """Delete what is old, what is more than MAX_KEPT, and what a crash left unfinished."""
    newest_first = sorted(_files(folder), key=lambda file: -file.kept_at)
    for position, file in enumerate(newest_first):
        if position >= MAX_KEPT or file.kept_at < now - KEPT_SECONDS:
            file.path.unlink(missing_ok=True)
    for unfinished in folder.glob(f"{_UNFINISHED}*"):
        if unfinished.stat().st_mtime < now - _UNFINISHED_SECONDS:
            unfinished.unlink(missing_ok=True)
