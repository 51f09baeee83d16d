"""Local records of jobs' switches: paths that were named, living jobs and their ends."""

from __future__ import annotations

import json
import math
import re
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.base import Backend
from hpcdash.domain.columns import as_array
from hpcdash.domain.job_ids import parse_job_key
from hpcdash.domain.job_text import state_word
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.switch_text import SwitchProgress
from hpcdash.domain.switches import (
    NamedSwitch,
    SwitchKind,
    absolute_path,
    switch_in_environment,
)
from hpcdash.domain.tables import Kind
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.state.database import StateDatabase, StateUnusable

Row = Mapping[str, Any]
# Fields in which a scheduler reports a job's environment, or its submission.
ENVIRONMENT_FIELDS = ("Variable_List", "SubmitLine", "Submit_arguments", "submit_args")
_SURROGATE = re.compile("[\ud800-\udfff]")
_COLUMNS = ("id", "array_id", "name", "user", "state", "work_dir", "comment", "_tasks")
_LIVING = pa.schema(
    [(name, JOBS.field(name).type if name == "_tasks" else pa.string()) for name in _COLUMNS]
    + [("_unit", pa.string())]
)
# Clocks of a file server and a controller are this far apart at the most, or an end is taken for
# one before the drop.
CLOCKS_APART_SECONDS = 2.0


class LogMark(Struct, frozen=True):
    """Size in bytes of a job's logs, by their paths, just before a switch was dropped."""

    job_id: str
    sizes: Mapping[str, int]


class SwitchMemory:
    """The paths that were named for the jobs of a cluster, by job and by the job's name and owner.

    `folder` is that of the state database; None: nothing is remembered.
    """

    def __init__(self, folder: Path | None, cluster: str) -> None:
        self._database = None if folder is None else StateDatabase(folder)
        self._cluster = cluster

    def find(self, kind: SwitchKind, job_id: str, name: str, owner: str) -> NamedSwitch | None:
        """Return the path that a person named for this job, else for another of its name."""
        if path := self._find_by_job(kind, job_id, name):
            return NamedSwitch(path, "set here earlier for this job")
        if path := self._find_by_name(kind, name, owner):
            return NamedSwitch(path, "set here earlier for a job with this name")
        return None

    def remember(self, kind: SwitchKind, job_id: str, name: str, owner: str, *, path: str) -> None:
        """Store a path for a job; one that is stored already is not written again.

        Raises StateUnusable.
        """
        is_stored = (
            self._find_by_job(kind, job_id, name) == path
            and self._find_by_name(kind, name, owner) == path
        )
        # The database cannot hold bytes that are no UTF-8.
        if self._database is None or is_stored or _SURROGATE.search(path + name + owner):
            return
        sql = (
            "INSERT OR IGNORE INTO switches (cluster, kind, user, name, number, path, at) VALUES "
            "(?, ?, ?, ?, ?, ?, ?)"
        )
        key = parse_job_key(job_id)
        values = (self._cluster, kind, owner, name, key, path, time.time())
        self._database.write((sql, values))

    def forget(self, kind: SwitchKind, job_id: str, name: str, owner: str) -> tuple[str, ...]:
        """Remove the paths of a job and of others of its name; return them.

        Raises StateUnusable.
        """
        paths = (self._find_by_job(kind, job_id, name), self._find_by_name(kind, name, owner))
        stored = tuple(dict.fromkeys(filter(None, paths)))
        if stored:
            self.remember(kind, job_id, name, owner, path="")
        return stored

    def mark(self, kind: SwitchKind, path: str, mark: LogMark) -> None:
        """Store the sizes of a job's logs as its switch was dropped.

        Raises StateUnusable.
        """
        if self._database is None or _SURROGATE.search(path + "".join(mark.sizes)):
            return
        sql = (
            "INSERT INTO log_marks VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (cluster, kind, path) DO "
            "UPDATE SET job_id = excluded.job_id, sizes = excluded.sizes, at = excluded.at"
            " WHERE excluded.at >= at"
        )
        sizes = json.dumps(dict(mark.sizes))
        values = (self._cluster, kind, path, mark.job_id, sizes, time.time())
        self._database.write((sql, values))

    def stored_mark(self, kind: SwitchKind, path: str) -> LogMark | None:
        """Return the log mark of the last time the switch was dropped from here."""
        sql = "SELECT job_id, sizes FROM log_marks WHERE cluster = ? AND kind = ? AND path = ?"
        row = self._read(sql, kind, path)
        return None if row is None else LogMark(row[0], json.loads(row[1]))

    def _find_by_job(self, kind: SwitchKind, job_id: str, name: str) -> str:
        # Numbers are reused, so the name counts too.
        key = parse_job_key(job_id)
        return self._find_path("number = ? AND name = ?", kind, key, name) if key else ""

    def _find_by_name(self, kind: SwitchKind, name: str, owner: str) -> str:
        return self._find_path("name = ? AND user = ?", kind, name, owner) if name else ""

    def _find_path(self, condition: str, *values: str) -> str:
        sql = "SELECT path FROM switches WHERE cluster = ? AND kind = ? AND "
        row = self._read(f"{sql}{condition} ORDER BY id DESC LIMIT 1", *values)
        return str(row[0]) if row else ""

    def _read(self, sql: str, *values: str) -> tuple[Any, ...] | None:
        """Return the first row; None where there is none, or none that can be read."""
        try:
            rows = self._database.read(sql, self._cluster, *values) if self._database else ()
        except StateUnusable:
            return None
        return rows[0] if rows else None


def living_table(store: ClusterStore) -> pa.Table:
    """Return the living jobs of oneself and of everyone, each once.

    `_unit` is the job or array.
    """
    ended = pa.array([str(state) for state in ENDED])
    living = _LIVING.empty_table()
    for kind in (Kind.MINE, Kind.EVERYONE):
        table = store.table(kind)
        if table is None:
            continue
        columns = {name: as_array(table[name]).cast(_LIVING.field(name).type) for name in _COLUMNS}
        columns["_unit"] = pc.coalesce(columns["array_id"], columns["id"])
        part = pa.table(columns, schema=_LIVING)
        is_known = pc.is_in(part["id"], as_array(living["id"]))
        part = part.filter(pc.invert(pc.or_(is_known, pc.is_in(part["state"], ended))))
        living = pa.concat_tables((living, part))
    return living


def switch_progress(
    rows: Iterable[Row], dropped_at: float | None, were_living: Collection[str] = ()
) -> SwitchProgress:
    """Count the jobs that live, that ended since `dropped_at` (epoch seconds), and of those that
    ended with status 0.

    Those whose ids are among `were_living` lived when it was dropped, whatever the clocks report.
    """
    since = math.inf if dropped_at is None else dropped_at - CLOCKS_APART_SECONDS
    living = ended = clean = 0
    badly: Counter[str] = Counter()
    ids = []
    for row in rows:
        count = row.get("_tasks") or 1
        if row["state"] not in ENDED:
            living += count
            ids.append(str(row["id"]))
            continue
        ends_at = row["ends_at"]
        is_since = ends_at is not None and ends_at.timestamp() >= since
        if not is_since and row["id"] not in were_living:
            continue
        ended += count
        ids.append(str(row["id"]))
        if row["state"] == JobState.COMPLETED and not row["exit_code"] and not row["exit_signal"]:
            clean += count
            continue
        word = state_word(str(row["state"]))
        badly[f"{word}, status {row['exit_code']}" if row["exit_code"] else word] += count
    if living + ended == 1:
        return SwitchProgress(living, ended, clean, "".join(badly), job_id=ids[0])
    counts = ", ".join(f"{count} {text}" for text, count in badly.most_common())
    return SwitchProgress(living, ended, clean, counts)


def requested_switch(kind: SwitchKind, text: str) -> NamedSwitch | None:
    """Return the switch of a launch's request, as TOML."""
    try:
        request = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    environment = request.get("environment")
    variables: dict[str, str] = {}
    if isinstance(environment, dict):
        variables = {str(name): str(value) for name, value in environment.items()}
    named = switch_in_environment(kind, variables, "its request")
    if named is None and (path := str(request.get(f"{kind}_switch", ""))):
        named = NamedSwitch(path, f"{kind}_switch in the request")
    if named is None:
        return None
    work_dir = str(request.get("work_dir", "")) or None
    return NamedSwitch(absolute_path(named.path, work_dir), named.source)


def known_values(row: Row, backend: Backend) -> dict[str, str]:
    """Return the variables of a job's environment that its row reports."""
    known = {
        "USER": row["user"],
        "LOGNAME": row["user"],
        "PWD": row["work_dir"],
        **backend.detail.variables(row),
    }
    return {name: str(value) for name, value in known.items() if value}
