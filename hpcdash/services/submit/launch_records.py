"""Records of what was launched from here: which folders are still to be looked after, and where their jobs save."""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpcdash.backends.script.resume import folder_of
from hpcdash.domain.job_ids import number_of, task_of
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.switches import absolute_path
from hpcdash.services.state.journal import append_line, older_file

_NOT_IN_FILES = re.compile(r"[^A-Za-z0-9._@-]")
_LAUNCHED, _REMOVED, _STAYS = "launched", "removed", "stays"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch. `job_id` is '' where the scheduler's answer was lost; `at` is when, in epoch seconds.

    `folder` there holds it, and `sums` tells that folder from any other; `keep` and `run_as` are as in Site. `tasks`
    are how many jobs it is, `request` is the text of its request, '' where there was none.
    """

    folder: str
    sums: str
    job_id: str
    name: str
    keep: str
    run_as: str
    tasks: int
    at: float
    request: str = ""


class LaunchRecords:
    """The launches of one cluster in a file that all clusters share; `path` None: nothing is remembered."""

    def __init__(self, path: Path | None, cluster: str) -> None:
        self.path = path
        self.cluster = cluster

    def launched(self, record: LaunchRecord) -> None:
        """Remember a launch. Raises OSError."""
        self._append({"event": _LAUNCHED, "time": format_utc(record.at), **asdict(record)})

    def removed(self, record: LaunchRecord) -> None:
        """Its folder is no more. Raises OSError."""
        self._append({"event": _REMOVED, "folder": record.folder})

    def stays(self, record: LaunchRecord, why: str) -> None:
        """Its folder stays, and is not looked after any more. Raises OSError."""
        self._append({"event": _STAYS, "folder": record.folder, "why": why})

    def all(self) -> tuple[LaunchRecord, ...]:
        """The launches of this cluster, the oldest first; lines that cannot be read are left out. Raises OSError."""
        return tuple(record for line in self._lines() if (record := _record(line)) is not None)

    def of_job(self, job_id: str, name: str) -> LaunchRecord | None:
        """The newest launch that was this very job, or the array of this task; None for none. Raises OSError."""
        number = number_of(job_id)
        for record in reversed(self.all()) if number else ():
            if number_of(record.job_id) == number and record.name in ("", name):
                return record
        return None

    def to_look_after(self) -> tuple[LaunchRecord, ...]:
        """Those whose folder goes when they have completed, and of which that is not known yet. Raises OSError."""
        open_: dict[str, LaunchRecord] = {}
        for line in self._lines():
            record = _record(line)
            if record is None:
                open_.pop(str(line.get("folder")), None)
            elif record.keep == "failed" and record.job_id:
                open_[record.folder] = record
        return tuple(open_.values())

    def looks_now(self, every_seconds: float) -> bool:
        """Whether nobody looked how these ended within `every_seconds`; if so, now is noted. Raises OSError."""
        if self.path is None:
            return False
        looked = self.path.with_name(f"{self.path.stem}.{_NOT_IN_FILES.sub('_', self.cluster)}.looked")
        now = time.time()
        if every_seconds and looked.exists() and 0 <= now - looked.stat().st_mtime < every_seconds:
            return False
        looked.touch()
        return True

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is not None:
            append_line(self.path, msgspec.json.encode({"schema": 1, "cluster": self.cluster, **line}))

    def _lines(self) -> Iterator[dict[str, Any]]:
        for path in () if self.path is None else (older_file(self.path), self.path):
            try:
                written = path.read_bytes()
            except FileNotFoundError:
                continue
            for text in written.splitlines():
                try:
                    line = msgspec.json.decode(text)
                except msgspec.DecodeError:
                    continue
                if isinstance(line, dict) and line.get("cluster") == self.cluster:
                    yield line


def _record(line: dict[str, Any]) -> LaunchRecord | None:
    if line.get("event") != _LAUNCHED:
        return None
    try:
        return msgspec.convert(line, LaunchRecord)
    except msgspec.ValidationError:
        return None


class LaunchedCheckpoints:
    """The folders of checkpoints of one cluster's jobs; what is remembered of launches is read again once it changed.

    `path` is the file of launches; None: nothing is remembered.
    """

    def __init__(self, path: Path | None, cluster: str) -> None:
        self._records = LaunchRecords(path, cluster)
        self._read: tuple[int, int] | None = None
        # The newest launch of a number is the job that has it now.
        self._by_number: dict[str, LaunchRecord] = {}

    def folder(self, row: Row) -> str:
        """The absolute path for a job or a task, '' where no request from here names one."""
        self._read_again()
        record = self._by_number.get(number_of(str(row["id"])))
        if record is None or record.name not in ("", row["name"]):
            return ""
        try:
            request = tomllib.loads(record.request)
        except tomllib.TOMLDecodeError:
            return ""
        named = request.get("checkpoints")
        path = folder_of(named, task_of(str(row["id"]))) if isinstance(named, str) else ""
        if not path:
            return ""
        path = absolute_path(absolute_path(path, str(request.get("work_dir", "")) or None), row["work_dir"])
        return path if path.startswith("/") else ""

    def _read_again(self) -> None:
        if self._records.path is None:
            return
        try:
            found = os.stat(self._records.path)
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp != self._read:
                records = [one for one in self._records.all() if number_of(one.job_id)]
                self._by_number, self._read = {number_of(one.job_id): one for one in records}, stamp
        except OSError:
            # No launch yet, or none that can be read: the rule says where it saves, or nobody does.
            self._by_number, self._read = {}, None
