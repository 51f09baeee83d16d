"""Snapshots of tables, and the cache of each cluster's latest snapshots as Arrow files."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

import pyarrow as pa
from msgspec import Struct

from hpcdash.domain.schema import SCHEMAS
from hpcdash.domain.tables import Kind
from hpcdash.services.arrow_files import read_table, write_table

_TAKEN_AT = b"hpcdash.taken_at"
_FORMAT = b"hpcdash.format"
_SCHEDULER = b"hpcdash.scheduler"
# Raised when a schema changes: older files are then not read.
FORMAT_VERSION = b"1"
_MAX_ROWS = 200_000


class Snapshot(Struct, frozen=True):
    """A table in its kind's schema, taken at an epoch second; `cached` if it is from an earlier
    run.

    `scheduler` is the source of an earlier run's table: the backend's name and, if it was reported,
    the server's (`pbs pbs01`).
    """

    kind: Kind
    table: pa.Table
    taken_at: float
    rejected: tuple[str, ...] = ()
    cached: bool = False
    scheduler: str = ""

    def may_belong_to(self, scheduler: str) -> bool:
        """Whether the backends are the same and, if both are known, the servers."""
        parts = zip(self.scheduler.split(), scheduler.split(), strict=False)
        return all(own == other for own, other in parts)


class SnapshotCache:
    """Cache of a cluster's snapshots in a folder in `root`, 0700, its files 0600.

    Failures to read or write are ignored. Only whole files that this user wrote are read, and only
    those of `scheduler`, as in Snapshot, once it is known. `cluster` may contain any characters.
    """

    def __init__(self, root: Path, cluster: str) -> None:
        safe = re.sub(r"[^A-Za-z0-9_.@-]", "_", cluster)[:60]
        digest = hashlib.sha256(cluster.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        self.folder = root / f"{safe}-{digest}"
        self.scheduler = ""

    def load(self, kind: Kind) -> Snapshot | None:
        """Return the last snapshot of a kind; None if there is none that can be read."""
        if (table := read_table(self._path(kind))) is None:
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
        scheduler = metadata.get(_SCHEDULER, b"").decode("utf-8", "replace")
        snapshot = Snapshot(kind, table, taken_at, cached=True, scheduler=scheduler)
        return (
            snapshot if math.isfinite(taken_at) and snapshot.may_belong_to(self.scheduler) else None
        )

    def save(self, snapshot: Snapshot) -> bool:
        """Write a snapshot, whole or not at all; return False if it cannot be written."""
        table = snapshot.table.slice(0, _MAX_ROWS)
        metadata: dict[bytes, bytes | str] = {
            _TAKEN_AT: repr(snapshot.taken_at),
            _FORMAT: FORMAT_VERSION,
            _SCHEDULER: self.scheduler,
        }
        return write_table(self._path(snapshot.kind), table, metadata)

    def _path(self, kind: Kind) -> Path:
        return self.folder / f"{kind}.arrow"
