"""Where jobs that were launched from here save: what their requests say. Asks no cluster."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdash.backends.script.resume import folder_of
from hpcdash.domain.job_ids import number_of, task_of
from hpcdash.domain.switches import absolute_path
from hpcdash.stores.launch_records import LaunchRecord, LaunchRecords

Row = Mapping[str, Any]


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
