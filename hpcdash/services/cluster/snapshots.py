"""Snapshots: a table and when it was true, and the last ones of each cluster kept on disk as Arrow
files.
"""

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
_KEPT_ROWS = 200_000


class Snapshot(Struct, frozen=True):
    """A table in its kind's schema, taken at an epoch second; `cached` when it is from an earlier
    run.

    `scheduler` is who an earlier run asked: the backend's name and, where that was told, the
    server's (`pbs pbs01`).
    """

    kind: Kind
    table: pa.Table
    taken_at: float
    rejected: tuple[str, ...] = ()
    cached: bool = False
    scheduler: str = ""

    def may_belong_to(self, scheduler: str) -> bool:
        """Whether it may be of this scheduler: of the same backend, and where both name a server,
        of the same one.
        """
        mine = self.scheduler.split()
        other = scheduler.split()
        return all(one == two for one, two in zip(mine, other, strict=False))


class SnapshotCache:
    """One folder a cluster, 0700, its files 0600.

    Every failure to read or write is silent: a cache may be absent.

    Only what this user wrote is read, and only whole. `cluster` may hold any characters; its folder
    is in `root`. `scheduler`, once it is known, is as Snapshot has it: it is written, and what is
    of another one is not read.
    """

    def __init__(self, root: Path, cluster: str) -> None:
        safe = re.sub(r"[^A-Za-z0-9_.@-]", "_", cluster)[:60]
        digest = hashlib.sha256(cluster.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        self.folder = root / f"{safe}-{digest}"
        self.scheduler = ""

    def load(self, kind: Kind) -> Snapshot | None:
        """The last snapshot of a kind, or None where there is none that can be read."""
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
        """Write a snapshot, whole or not at all; False where the disk would not have it."""
        table = snapshot.table.slice(0, _KEPT_ROWS)
        metadata: dict[bytes, bytes | str] = {
            _TAKEN_AT: repr(snapshot.taken_at),
            _FORMAT: FORMAT_VERSION,
            _SCHEDULER: self.scheduler,
        }
        return write_table(self._path(snapshot.kind), table, metadata)

    def _path(self, kind: Kind) -> Path:
        return self.folder / f"{kind}.arrow"
