"""A local folder that follows a folder of a job: new and grown files are brought, nothing is
deleted, and files that were changed here are left.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpcdash.errors import UsageError
from hpcdash.private_files import atomic_write
from hpcdash.services.job_files.download import Download, OnProgress, RemoteFile, Transfer
from hpcdash.services.job_files.listing import (
    Depth,
    decode_path,
    encode_path,
    folder_query,
    show_path,
)
from hpcdash.services.job_files.local_folder import LocalFolder, NotWritten
from hpcdash.services.session import ClusterSession

RECORD_NAME = ".hpcdash-sync.json"
_MAX_RECORD_BYTES = 256 << 20


class SyncedFile(Struct, frozen=True):
    """A file that was brought, as it was here and there."""

    size: int
    modified_ns: int
    sha256: str
    remote_identity: str
    remote_size: int
    remote_modified_at: float


class _Record(Struct):
    """Files that were brought, and their source; names are percent-encoded."""

    cluster: str
    folder: str
    files: dict[str, SyncedFile] = field(default_factory=dict)


class FolderSync:
    """Brings the files of a folder on the cluster to a folder here, and remembers them there."""

    def __init__(
        self,
        session: ClusterSession,
        folder: bytes,
        to: Path,
        on_progress: OnProgress = lambda name, done, size: None,
    ) -> None:
        """Raises UsageError if the folder here follows another one."""
        self._session = session
        self._folder = folder
        self._to = to
        self._on_progress = on_progress
        self._record = _Record(session.name, encode_path(folder))
        self._local: LocalFolder | None = None

    async def bring(self) -> list[Transfer]:
        """Bring what is new or has changed, and return what was brought, left or failed.

        Raises the errors of an unreachable cluster, UsageError and NotWritten.
        """
        listed = await self._session.store.run_query(folder_query(self._folder, Depth.DEEP))
        if listed.is_file:
            raise UsageError(f"{show_path(self._folder)} is not a folder")
        self._local = LocalFolder(self._to)
        try:
            self._record = self._read_record()
            # The record's own name is never that of a result.
            files = [
                RemoteFile(listed.path, entry, entry.name)
                for entry in listed.entries
                if entry.kind == "file" and entry.name != RECORD_NAME.encode()
            ]
            due, left = await asyncio.to_thread(self._choose, files)
            copying = Download(
                self._session.store,
                self._to,
                may_replace=self._may_replace,
                on_progress=self._on_progress,
                on_done=self._remember,
                seeds=True,
            )
            try:
                brought = await copying.run(due) if due else []
            finally:
                atomic_write(self._to / RECORD_NAME, msgspec.json.encode(self._record))
        finally:
            self._local.close()
        return [*brought, *left]

    def _choose(self, files: Sequence[RemoteFile]) -> tuple[list[RemoteFile], list[Transfer]]:
        """Return the files to bring, and those that are left."""
        left: list[Transfer] = []
        return [file for file in files if self._is_due(file, left)], left

    def _is_due(self, file: RemoteFile, left: list[Transfer]) -> bool:
        assert self._local is not None
        try:
            found = self._local.find(file.to)
        except NotWritten as error:
            left.append(Transfer(file.to, "failed", None, error.message, file.path))
            return False
        if found is None:
            return True
        known = self._record.files.get(encode_path(file.to))
        entry = file.entry
        if (
            known is not None
            and (known.size, known.modified_ns) == (found.st_size, found.st_mtime_ns)
            and (known.remote_identity, known.remote_size, known.remote_modified_at)
            == (entry.identity, entry.size, entry.modified_at)
        ):
            return False
        if self._may_replace(file, found):
            return True
        reason = "was not brought by sync" if known is None else "was changed here"
        left.append(Transfer(file.to, "left", found.st_size, f"{reason}: not replaced", file.path))
        return False

    def _may_replace(self, file: RemoteFile, found: os.stat_result) -> bool:
        """Return whether a file here is the one that was brought, unchanged."""
        known = self._record.files.get(encode_path(file.to))
        if known is None or self._local is None or not stat.S_ISREG(found.st_mode):
            return False
        if (known.size, known.modified_ns) != (found.st_size, found.st_mtime_ns):
            return False
        try:
            return self._local.file_sum(file.to) == known.sha256
        except OSError:
            return False

    def _remember(self, file: RemoteFile, digest: str) -> None:
        assert self._local is not None
        found = self._local.find(file.to)
        if found is not None:
            entry = file.entry
            self._record.files[encode_path(file.to)] = SyncedFile(
                found.st_size,
                found.st_mtime_ns,
                digest,
                remote_identity=entry.identity,
                remote_size=entry.size,
                remote_modified_at=entry.modified_at,
            )

    def _read_record(self) -> _Record:
        path = self._to / RECORD_NAME
        try:
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise UsageError(f"{show_path(os.fsencode(path))} is not a file of yours")
            record = msgspec.json.decode(path.read_bytes()[:_MAX_RECORD_BYTES], type=_Record)
        except FileNotFoundError:
            return replace(self._record, files={})
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{show_path(os.fsencode(path))} is unreadable: {error}",
                "Without it no file can be replaced safely: use another folder.",
            ) from None
        if (record.cluster, record.folder) != (self._record.cluster, self._record.folder):
            source = show_path(decode_path(record.folder))
            raise UsageError(
                f"{show_path(os.fsencode(self._to))} follows {source} on {record.cluster}",
                "Use another folder with --to.",
            )
        return record
