"""Remembers which switches people named for their jobs, and how long a log was when one was dropped: JSON lines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

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


class _MarkLine(msgspec.Struct):
    """The schema is another, so that programs which know of no marks pass over it."""

    schema: int
    cluster: str
    kind: str
    path: str
    job: str
    sizes: dict[str, int]
    at: float


_Any = TypeVar("_Any", _Line, _MarkLine)


@dataclass(frozen=True, slots=True)
class LogMark:
    """How many bytes the logs of a job held, by their paths, just before a switch was dropped."""

    job_id: str
    sizes: Mapping[str, int]


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

    def forget(self, kind: SwitchKind, job_id: str, name: str, user: str) -> tuple[str, ...]:
        """Keep no path for a job and others of its name; returns those that were kept. Raises OSError."""
        kept = tuple(dict.fromkeys(filter(None, (self.of_job(kind, job_id, name), self.of_name(kind, name, user)))))
        if kept:
            self.remember(kind, job_id, name, user, "")
        return kept

    def mark(self, kind: SwitchKind, path: str, mark: LogMark) -> None:
        """Keep how long the logs of one who looks for a switch were as it was dropped. Raises OSError."""
        if self.path is None or _SURROGATE.search(path + "".join(mark.sizes)):
            return
        line = _MarkLine(2, self.cluster, kind, path, mark.job_id, dict(mark.sizes), time.time())
        append_line(self.path, msgspec.json.encode(line))

    def mark_of(self, kind: SwitchKind, path: str) -> LogMark | None:
        """That of the last time it was dropped from here."""
        found = (LogMark(one.job, one.sizes) for one in self._lines(kind, _MarkLine, 2) if one.path == path)
        return next(found, None)

    def of_job(self, kind: SwitchKind, job_id: str, name: str) -> str:
        """What was named for this job last, '' for nothing; numbers are used again, so the name counts too."""
        number = number_of(job_id)
        return next(
            (one.path for one in self._lines(kind, _Line, 1) if one.number == number and number and one.name == name),
            "",
        )

    def of_name(self, kind: SwitchKind, name: str, user: str) -> str:
        """What was named last for a job of this name and owner, '' for nothing."""
        found = (one.path for one in self._lines(kind, _Line, 1) if name and (one.name, one.user) == (name, user))
        return next(found, "")

    def _lines(self, kind: SwitchKind, form: type[_Any], schema: int) -> Iterator[_Any]:
        """The newest first; lines that cannot be read are left out."""
        for path in () if self.path is None else (self.path, older_file(self.path)):
            try:
                written = path.read_bytes()
            except OSError:
                continue
            for text in reversed(written.splitlines()):
                try:
                    line = msgspec.json.decode(text, type=form)
                except msgspec.DecodeError:
                    continue
                if (line.schema, line.cluster, line.kind) == (schema, self.cluster, kind):
                    yield line
