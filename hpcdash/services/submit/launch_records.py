"""Records of local launches: folders that are not removed yet, and their jobs' checkpoints."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import astuple

from hpcdash.backends.script.allocation import KIND
from hpcdash.domain.job_ids import parse_job_key, parse_job_number, parse_task_part
from hpcdash.domain.switches import absolute_path
from hpcdash.services.state.database import StateDatabase, Statement, StateUnusable

# On all clusters; the oldest are removed.
MAX_LAUNCHES = 5000
Row = Mapping[str, Any]
# State of a folder that is kept for some days: `completed EPOCH_SECONDS`.
_COMPLETED = "completed "


class LaunchRecord(Struct, frozen=True):
    """One launch.

    `folder` is its folder on the cluster, `sums` the digest that identifies that folder. `job_id`
    is '' if the scheduler's answer was lost. `keep` and `run_as` are as in Site. `tasks` is its
    number of jobs, `at` its time in epoch seconds, `request` the text of its request, '' for none.
    """

    folder: str = ""
    sums: str = ""
    job_id: str = ""
    name: str = ""
    keep: str = ""
    run_as: str = ""
    tasks: int = 1
    at: float = 0.0
    request: str = ""


_FIELDS = LaunchRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)


class LaunchRecords:
    """The launches of one cluster, in the state database of a folder; None: nothing is stored.

    Each method raises StateUnusable.
    """

    def __init__(self, folder: Path | None, cluster: str) -> None:
        self._database = None if folder is None else StateDatabase(folder)
        self.cluster = cluster

    def launched(self, record: LaunchRecord, code_state: str = "") -> None:
        """Store a launch, and the summary of its code state."""
        marks = ", ".join("?" * len(_FIELDS))
        sql = f"INSERT OR IGNORE INTO launches (cluster, number, {_COLUMNS}) VALUES (?, ?, {marks})"
        values = (self.cluster, parse_job_number(record.job_id), *astuple(record))
        too_old = "DELETE FROM launches WHERE id <= (SELECT max(id) FROM launches) - ?"
        statements: list[Statement] = [(sql, values), (too_old, (MAX_LAUNCHES,))]
        if code_state:
            insert = "INSERT OR REPLACE INTO code_states VALUES (?, ?, ?)"
            orphans = "DELETE FROM code_states WHERE folder NOT IN (SELECT folder FROM launches)"
            statements += [(insert, (self.cluster, record.folder, code_state)), (orphans, ())]
        self._write(*statements)

    def code_state(self, record: LaunchRecord) -> str:
        """Return the state of the code that a launch was made from; '' if unknown."""
        if self._database is None:
            return ""
        sql = "SELECT words FROM code_states WHERE cluster = ? AND folder = ?"
        try:
            found = self._database.read(sql, self.cluster, record.folder)
        except StateUnusable:
            return ""
        return "".join(text for (text,) in found)

    def removed(self, record: LaunchRecord) -> None:
        """Record that its folder was removed."""
        sql = "UPDATE launches SET folder_state = 'removed' WHERE cluster = ? AND folder = ?"
        self._write((sql, (self.cluster, record.folder)))

    def completed(self, record: LaunchRecord, at: float) -> None:
        """Record its completion at an epoch second; its folder is removed some days later."""
        self._settle(record, f"{_COMPLETED}{at:.0f}")

    def completed_at(self) -> dict[str, float]:
        """Return the completion times of launches whose folders are removed later.

        They are in epoch seconds, by folder.
        """
        if self._database is None:
            return {}
        sql = (
            "SELECT folder, folder_state FROM launches WHERE cluster = ? AND folder_state LIKE "
            f"'{_COMPLETED}%'"
        )
        return {
            folder: float(at.removeprefix(_COMPLETED))
            for folder, at in self._database.read(sql, self.cluster)
        }

    def present(self) -> tuple[LaunchRecord, ...]:
        """Return the launches whose folder is not known to be removed, the oldest first.

        Of several with one folder the newest counts.
        """
        found = self._read("AND folder_state != 'removed' AND folder != ''")
        return tuple({record.folder: record for record in found}.values())

    def stays(self, record: LaunchRecord, why: str) -> None:
        """Record that its folder stays for good."""
        self._settle(record, why)

    def _settle(self, record: LaunchRecord, folder_state: str) -> None:
        sql = (
            "UPDATE launches SET folder_state = ? WHERE cluster = ? AND folder = ?"
            f" AND (folder_state = '' OR folder_state LIKE '{_COMPLETED}%')"
        )
        self._write((sql, (folder_state or "stays", self.cluster, record.folder)))

    def all(self) -> tuple[LaunchRecord, ...]:
        """Return the launches of this cluster, the oldest first."""
        return self._read("")

    def find_by_job(self, job_id: str, name: str) -> LaunchRecord | None:
        """Return the newest launch of a job, or of a task's array; None for none."""
        number = parse_job_number(job_id)
        found = self._read("AND number = ? AND name IN ('', ?)", number, name) if number else ()
        key = parse_job_key(job_id)
        return next((one for one in reversed(found) if parse_job_key(one.job_id) == key), None)

    def unsettled(self) -> tuple[LaunchRecord, ...]:
        """Return the launches whose folder will be removed after an end that is not yet known."""
        found = self._read(
            "AND (keep IN ('failed', 'nothing') AND folder_state = '' OR keep GLOB '[0-9]*d'"
            f" AND (folder_state = '' OR folder_state LIKE '{_COMPLETED}%')) AND job_id != ''"
        )
        return tuple({record.folder: record for record in found}.values())

    def unread_checks(self) -> frozenset[str]:
        """Return the IDs of the node check jobs whose log is still unread."""
        if self._database is None:
            return frozenset()
        sql = "SELECT job_id FROM check_jobs WHERE cluster = ?"
        return frozenset(job_id for (job_id,) in self._database.read(sql, self.cluster))

    def is_check_due(self, every_seconds: float) -> bool:
        """Whether no check was made within the last `every_seconds`; if so, record one now."""
        sql = (
            "INSERT INTO cleanups VALUES (?, ?) ON CONFLICT (cluster) DO UPDATE SET at = "
            "excluded.at WHERE excluded.at < at OR excluded.at >= at + ?"
        )
        return self._write((sql, (self.cluster, time.time(), every_seconds))) > 0

    def stamp(self) -> tuple[int, int] | None:
        """Return a stamp that differs once launches were added; None for none, or if unknown."""
        return None if self._database is None else self._database.stamp()

    def _write(self, *statements: Statement) -> int:
        return 0 if self._database is None else self._database.write(*statements)

    def _read(self, condition: str, *values: str) -> tuple[LaunchRecord, ...]:
        if self._database is None:
            return ()
        sql = f"SELECT {_COLUMNS} FROM launches WHERE cluster = ? {condition} ORDER BY id"
        return tuple(LaunchRecord(*row) for row in self._database.read(sql, self.cluster, *values))


class LaunchedCheckpoints:
    """Checkpoint folders of one cluster's jobs, from the launch records in the state `folder`.

    The records are reloaded when they change; None: nothing is stored.
    """

    def __init__(self, folder: Path | None, cluster: str) -> None:
        self._records = LaunchRecords(folder, cluster)
        self._read: tuple[int, int] | None = None
        # The newest launch of a number is the job that has it now.
        self._by_key: dict[str, LaunchRecord] = {}

    def folder(self, row: Row) -> str:
        """Return the absolute path for a job or a task; '' if no local request names one."""
        self._reload()
        record = self._by_key.get(parse_job_key(str(row["id"])))
        if record is None or record.name not in ("", row["name"]):
            return ""
        try:
            request = tomllib.loads(record.request)
        except tomllib.TOMLDecodeError:
            return ""
        from hpcdash.backends.script.resume import task_folder

        checkpoints = request.get("checkpoints")
        if not isinstance(checkpoints, str):
            return ""
        path = task_folder(checkpoints, parse_task_part(str(row["id"])))
        if not path:
            return ""
        path = absolute_path(path, str(request.get("work_dir", "")) or None)
        path = absolute_path(path, row["work_dir"])
        return path if path.startswith("/") else ""

    def allocations(self, jobs: pa.Table) -> tuple[str, ...]:
        """Return the IDs of the jobs that were launched from here as allocations for runs."""
        self._reload()
        names = {one.job_id: one.name for one in self._by_key.values() if is_allocation(one)}
        if not names:
            return ()
        is_launched = pc.is_in(jobs["id"], value_set=pa.array(list(names), pa.string()))
        rows = jobs.filter(is_launched).select(["id", "name"]).to_pylist()
        return tuple(row["id"] for row in rows if names[row["id"]] == row["name"])

    def _reload(self) -> None:
        stamp = self._records.stamp()
        if stamp is not None and stamp == self._read:
            return
        try:
            records = self._records.all()
        except StateUnusable:
            # A watch rule may still name the folder.
            records = ()
            stamp = None
        by_key = {parse_job_key(one.job_id): one for one in records}
        by_key.pop("", None)
        self._by_key = by_key
        self._read = stamp


def is_allocation(record: LaunchRecord) -> bool:
    """Whether a launch is an allocation for runs."""
    if KIND not in record.request:
        return False
    try:
        return tomllib.loads(record.request).get("kind") == KIND
    except tomllib.TOMLDecodeError:
        return False
