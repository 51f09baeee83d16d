"""A keeper's record on the disk: the start of the script, and its end.

Each attempt has a file, which is created and locked before the keeper starts, and is large enough
for the end as well. The keeper holds the lock while it lives.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_BEGUN_BYTES = 512
_ENDED_BYTES = 1536
_BYTES = _BEGUN_BYTES + _ENDED_BYTES
# `why` of a script whose keeper was terminated.
TERMINATED = "told"


@dataclass(frozen=True, slots=True)
class Begun:
    """The batch script's process, which leads its session and process group, and its keeper."""

    pid: int
    keeper: int
    boot: str


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a script.

    `status` is a wait status of os.waitpid. `why` is '' (it exited), 'limit' or TERMINATED;
    `problem` is the reason why it could not be started.
    """

    status: int
    at: float
    elapsed: float
    why: str = ""
    problem: str = ""
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    left_behind: int = 0


class Record:
    """The file of one attempt at one job."""

    def __init__(self, folder: Path, job_id: int, attempt: int) -> None:
        self.path = folder / "attempts" / f"{job_id}.{attempt}"

    def create(self) -> int:
        """Create and lock the file, and return its descriptor, which a forked keeper inherits.

        Raises OSError if there is no room, or the file exists.
        """
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if os.write(descriptor, b" " * _BYTES) < _BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fsync(descriptor)
            _sync_folder(self.path.parent)
        except OSError:
            os.close(descriptor)
            self.path.unlink(missing_ok=True)
            raise
        return descriptor

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def has_keeper(self) -> bool:
        """Whether the attempt's keeper lives."""
        try:
            descriptor = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read(self) -> tuple[Begun | None, Ended | None]:
        """Read the recorded start and end so far."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None, None
        begun = _object(content[:_BEGUN_BYTES])
        ended = _object(content[_BEGUN_BYTES:])
        return (Begun(**begun) if begun else None), (Ended(**ended) if ended else None)

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def note_begun(descriptor: int, begun: Begun) -> None:
    """Write the start to the disk; raises OSError."""
    _note(descriptor, asdict(begun), 0, _BEGUN_BYTES)


def note_ended(descriptor: int, ended: Ended) -> None:
    """Write the end to the disk; raises OSError."""
    _note(descriptor, asdict(ended), _BEGUN_BYTES, _ENDED_BYTES)


def _note(descriptor: int, values: dict[str, object], offset: int, room: int) -> None:
    line = json.dumps(values).encode()
    if len(line) > room - 1:
        # A character takes up to 12 bytes.
        line = json.dumps({**values, "problem": str(values["problem"])[:80] + "…"}).encode()
    os.pwrite(descriptor, line.ljust(room - 1) + b"\n", offset)
    os.fsync(descriptor)


def records(folder: Path) -> list[Record]:
    """Return all records in a queue's folder."""
    found = []
    for path in (folder / "attempts").glob("*.*"):
        if name := re.fullmatch(r"([0-9]+)\.([0-9]+)", path.name):
            found.append(Record(folder, int(name[1]), int(name[2])))
    return found


def _sync_folder(folder: Path) -> None:
    """Write a folder to the disk, with the names of its new files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
