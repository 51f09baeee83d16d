"""Remembers each cluster's last tables between runs, as Arrow files only their owner can read. Knows no scheduler."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as pa_ipc

from hpcdash.stores.snapshots import SCHEMAS, Kind, Snapshot

_TAKEN_AT = b"hpcdash.taken_at"
_FORMAT = b"hpcdash.format"
# Raised when a schema changes: older files are then not read.
FORMAT_VERSION = b"1"
_KEPT_ROWS = 200_000


class SnapshotCache:
    """One folder a cluster, 0700, its files 0600. Every failure to read or write is silent: a cache may be absent."""

    def __init__(self, root: Path, cluster: str) -> None:
        safe = re.sub(r"[^A-Za-z0-9_.@-]", "_", cluster)[:60]
        digest = hashlib.sha256(cluster.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        self.folder = root / f"{safe}-{digest}"

    def load(self, kind: Kind) -> Snapshot | None:
        """The last snapshot of a kind, or None where there is none that can be read."""
        try:
            with pa.OSFile(str(self._path(kind))) as source:
                table = pa_ipc.open_file(source).read_all()
        except (OSError, pa.ArrowException):
            return None
        metadata = table.schema.metadata or {}
        if metadata.get(_FORMAT) != FORMAT_VERSION:
            return None
        table = table.replace_schema_metadata(None)
        if not table.schema.equals(SCHEMAS[kind]):
            return None
        try:
            taken_at = float(metadata.get(_TAKEN_AT, b""))
        except ValueError:
            return None
        return Snapshot(kind, table, taken_at, cached=True)

    def save(self, snapshot: Snapshot) -> bool:
        """Write a snapshot, whole or not at all; False where the disk would not have it."""
        table = snapshot.table.slice(0, _KEPT_ROWS)
        table = table.replace_schema_metadata({_TAKEN_AT: repr(snapshot.taken_at).encode(), _FORMAT: FORMAT_VERSION})
        written = ""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkstemp makes the file 0600.
            descriptor, written = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            with os.fdopen(descriptor, "wb") as target:
                options = pa_ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)
                with pa_ipc.new_file(target, table.schema, options=options) as writer:
                    writer.write_table(table)
            os.replace(written, self._path(snapshot.kind))
        except (OSError, pa.ArrowException):
            if written:
                with contextlib.suppress(OSError):
                    os.unlink(written)
            return False
        return True

    def _path(self, kind: Kind) -> Path:
        return self.folder / f"{kind}.arrow"
