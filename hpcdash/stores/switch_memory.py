"""Remembers which switches people named for their jobs, as JSON lines in the state folder. Knows no cluster."""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec

from hpcdash.domain.job_ids import number_of
from hpcdash.domain.switches import SwitchKind
from hpcdash.stores.appended_lines import append_line, older_file

MEMORY_NAME = "switches.jsonl"
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Line(msgspec.Struct):
    schema: int
    cluster: str
    kind: str
    user: str
    name: str
    number: str
    path: str
    at: float


class SwitchMemory:
    """The paths that were named for the jobs of a cluster, by job and by the job's name and owner. The file is 0600."""

    def __init__(self, folder: Path | None, cluster: str) -> None:
        self.path = folder / MEMORY_NAME if folder else None
        self.cluster = cluster

    def remember(self, kind: SwitchKind, job_id: str, name: str, user: str, path: str) -> None:
        """Keep a path for a job; one that is kept already is not written again. Raises OSError."""
        is_kept = self.of_job(kind, job_id, name) == path and self.of_name(kind, name, user) == path
        # JSON cannot hold bytes that are no UTF-8.
        if self.path is None or is_kept or _SURROGATE.search(path + name + user):
            return
        line = _Line(1, self.cluster, kind, user, name, number_of(job_id), path, time.time())
        append_line(self.path, msgspec.json.encode(line))

    def of_job(self, kind: SwitchKind, job_id: str, name: str) -> str:
        """What was named for this job last, '' for nothing; numbers are used again, so the name counts too."""
        number = number_of(job_id)
        return next(
            (line.path for line in self._lines(kind) if line.number == number and number and line.name == name), ""
        )

    def of_name(self, kind: SwitchKind, name: str, user: str) -> str:
        """What was named last for a job of this name and owner, '' for nothing."""
        return next((line.path for line in self._lines(kind) if name and (line.name, line.user) == (name, user)), "")

    def _lines(self, kind: SwitchKind) -> list[_Line]:
        """The newest first; lines that cannot be read are left out."""
        found: list[_Line] = []
        for path in () if self.path is None else (older_file(self.path), self.path):
            try:
                written = path.read_bytes()
            except OSError:
                continue
            for text in written.splitlines():
                try:
                    line = msgspec.json.decode(text, type=_Line)
                except msgspec.DecodeError:
                    continue
                if (line.schema, line.cluster, line.kind) == (1, self.cluster, kind):
                    found.append(line)
        return found[::-1]
