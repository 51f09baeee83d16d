"""Path of a job's switch and its source: the launch, environment or script, else a person."""

from __future__ import annotations

import asyncio
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
from hpcdash.backends.job_detail import JobDetail
from hpcdash.domain.columns import as_array
from hpcdash.domain.job_ids import parse_job_number
from hpcdash.domain.job_text import state_word
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.switch_text import SwitchProgress
from hpcdash.domain.switches import (
    NamedSwitch,
    SwitchKind,
    absolute_path,
    comment_switch,
    format_unknown,
    path_problem,
    switch_in_environment,
    switch_in_script,
    variable_names,
    variables_in_list,
)
from hpcdash.domain.tables import Kind
from hpcdash.errors import HpcdashError, UnreachableError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.state.database import StateDatabase, StateUnusable
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.services.switches.scripts import values_query

Row = Mapping[str, Any]
# Fields in which a scheduler reports a job's environment, or its submission.
TOLD_OF_ENVIRONMENT = ("Variable_List", "SubmitLine", "Submit_arguments", "submit_args")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMED = "SELECT path FROM switches WHERE cluster = ? AND kind = ?"
_NEWEST = "ORDER BY id DESC LIMIT 1"
_COLUMNS = ("id", "array_id", "name", "user", "state", "work_dir", "comment", "_tasks")
# Clocks of a file server and a controller are this far apart at the most, or an end is taken for
# one before the drop.
CLOCKS_APART_SECONDS = 2.0


class Naming(Struct, frozen=True):
    """A switch's absolute path and in words who names it; `path` is '' where nobody does, or
    nothing that can be one: then `problem` says why.

    `overridden` is another path that a person named here before, '' where there is none. `is_remembered`:
    so was `path`.
    """

    path: str = ""
    source: str = ""
    problem: str = ""
    overridden: str = ""
    is_remembered: bool = False


class SwitchNames:
    """Finds them for one cluster's jobs.

    `folder` is where launches and named paths are remembered; None: nowhere.
    """

    def __init__(self, store: ClusterStore, folder: Path | None) -> None:
        self.store = store
        self.memory = SwitchMemory(folder, store.name)
        self._records = LaunchRecords(folder, store.name)

    async def naming(self, kind: SwitchKind, job_id: str, detail: JobDetail) -> Naming:
        """Find the switch of a job and its source; raises the errors of an unreachable cluster."""
        row = detail.job.to_pylist()[0]
        name = str(row["name"] or "")
        owner = str(row["user"] or "")
        launched = await asyncio.to_thread(self.launched, kind, job_id, name)
        declared = launched or await self.find_declared(kind, job_id, row, detail)
        remembered = await asyncio.to_thread(self.remembered, kind, job_id, name, owner)
        named = self.settled(kind, job_id, remembered, row)
        found = self.settled(kind, job_id, declared, row)
        if not named.path:
            return found
        if not found.path:
            return Naming(named.path, named.source, is_remembered=True)
        return Naming(
            found.path, found.source, overridden=named.path if named.path != found.path else ""
        )

    def settled(self, kind: SwitchKind, job_id: str, named: NamedSwitch | None, row: Row) -> Naming:
        """Return the named path as an absolute one, or the reason that it cannot be a switch."""
        if named is None and row["user"] and row["user"] != self.store.user:
            who = f"what {row['user']} shows to others"
            return Naming(problem=f"no {kind.text} is named in the comment of {job_id} or in {who}")
        if named is None:
            return Naming(problem=f"no {kind.text} file is known for job {job_id}")
        whole = absolute_path(named.path, row["work_dir"])
        problem = format_unknown(named) if named.unknown else ""
        if not problem and (wrong := path_problem(whole)):
            problem = f"{whole!r} ({named.source}) cannot be its {kind.text}: {wrong}"
        return Naming("" if problem else whole, named.source, problem)

    def remembered(
        self, kind: SwitchKind, job_id: str, name: str, owner: str
    ) -> NamedSwitch | None:
        """Return the path that a person named for this job, else for another of its name."""
        if path := self.memory.find_by_job(kind, job_id, name):
            return NamedSwitch(path, "set here for this job before")
        if path := self.memory.find_by_name(kind, name, owner):
            return NamedSwitch(path, "set here for a job of this name before")
        return None

    def launched(self, kind: SwitchKind, job_id: str, name: str) -> NamedSwitch | None:
        """Return the switch in the request of this very job, if it was launched from here."""
        try:
            record = self._records.find_by_job(job_id, name)
        except StateUnusable:
            return None
        return None if record is None else requested_switch(kind, record.request)

    async def find_declared(
        self, kind: SwitchKind, job_id: str, row: Row, detail: JobDetail
    ) -> NamedSwitch | None:
        """Find the switch in the job's environment as reported, else in its script."""
        for field in TOLD_OF_ENVIRONMENT:
            variables = variables_in_list(detail.native.get(field, ""), variable_names(kind))
            if named := switch_in_environment(kind, variables, f"the job's {field}"):
                return named
        if row["user"] != self.store.user and (
            named := comment_switch(kind, str(row["comment"] or ""))
        ):
            # A scheduler may show a script to its owner alone.
            return named
        try:
            script = await fetch_script(self.store, job_id, detail=detail)
        except UnreachableError:
            raise
        except HpcdashError:
            return None
        return await self.in_script(kind, script.text, row)

    async def in_script(self, kind: SwitchKind, text: str, row: Row) -> NamedSwitch | None:
        """Find the switch in a script, with the variables of one's own login if it needs them."""
        known = known_values(row, self.store.backend)
        named = switch_in_script(kind, text, known)
        names = [name for name in named.unknown if name.isidentifier()] if named is not None else []
        if named is None or not names or row["user"] != self.store.user:
            return named
        # One's own login environment is what sbatch hands to a job.
        values = await self.store.run_query(values_query(names))
        return switch_in_script(kind, text, {**values, **known})


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
        self.cluster = cluster

    def remember(self, kind: SwitchKind, job_id: str, name: str, user: str, path: str) -> None:
        """Keep a path for a job; one that is kept already is not written again.

        Raises StateUnusable.
        """
        is_stored = (
            self.find_by_job(kind, job_id, name) == path
            and self.find_by_name(kind, name, user) == path
        )
        # The database cannot hold bytes that are no UTF-8.
        if self._database is None or is_stored or _SURROGATE.search(path + name + user):
            return
        sql = (
            "INSERT OR IGNORE INTO switches (cluster, kind, user, name, number, path, at) VALUES "
            "(?, ?, ?, ?, ?, ?, ?)"
        )
        values = (self.cluster, kind, user, name, parse_job_number(job_id), path, time.time())
        self._database.write((sql, values))

    def forget(self, kind: SwitchKind, job_id: str, name: str, user: str) -> tuple[str, ...]:
        """Keep no path for a job and others of its name; returns those that were kept.

        Raises StateUnusable.
        """
        remaining = tuple(
            dict.fromkeys(
                filter(
                    None,
                    (self.find_by_job(kind, job_id, name), self.find_by_name(kind, name, user)),
                )
            )
        )
        if remaining:
            self.remember(kind, job_id, name, user, "")
        return remaining

    def mark(self, kind: SwitchKind, path: str, mark: LogMark) -> None:
        """Keep how long the logs of one who looks for a switch were as it was dropped.

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
        values = (self.cluster, kind, path, mark.job_id, sizes, time.time())
        self._database.write((sql, values))

    def stored_mark(self, kind: SwitchKind, path: str) -> LogMark | None:
        """Return the log mark of the last time the switch was dropped from here."""
        found = self._newest(
            "SELECT job_id, sizes FROM log_marks WHERE cluster = ? AND kind = ? AND path = ?",
            kind,
            path,
        )
        return None if found is None else LogMark(found[0], json.loads(found[1]))

    def find_by_job(self, kind: SwitchKind, job_id: str, name: str) -> str:
        """Return the path that was last named for this job, '' for none.

        Numbers are reused, so the name counts too.
        """
        number = parse_job_number(job_id)
        found = (
            self._newest(f"{_NAMED} AND number = ? AND name = ? {_NEWEST}", kind, number, name)
            if number
            else None
        )
        return found[0] if found else ""

    def find_by_name(self, kind: SwitchKind, name: str, user: str) -> str:
        """Return the path that was last named for a job of this name and owner, '' for none."""
        found = (
            self._newest(f"{_NAMED} AND name = ? AND user = ? {_NEWEST}", kind, name, user)
            if name
            else None
        )
        return found[0] if found else ""

    def _newest(self, sql: str, *values: str) -> tuple[Any, ...] | None:
        """A row; None where there is none, or none that can be read."""
        try:
            found = self._database.read(sql, self.cluster, *values) if self._database else ()
        except StateUnusable:
            return None
        return found[0] if found else None


def living_table(store: ClusterStore) -> pa.Table:
    """Return the living jobs of oneself and of everyone, each once.

    `_unit` is the job or array.
    """
    parts: list[pa.Table] = []
    for kind in (Kind.MINE, Kind.EVERYONE):
        table = store.table(kind)
        if table is None:
            continue
        plain = pa.table(
            {
                name: as_array(table[name]).cast(
                    JOBS.field(name).type if name == "_tasks" else pa.string()
                )
                for name in _COLUMNS
            }
        )
        plain = plain.append_column("_unit", pc.coalesce(plain["array_id"], plain["id"]))
        plain = plain.filter(
            pc.invert(pc.is_in(plain["state"], pa.array([str(state) for state in ENDED])))
        )
        parts.append(
            plain.filter(pc.invert(pc.is_in(plain["id"], as_array(parts[0]["id"]))))
            if parts
            else plain
        )
    if not parts:
        columns = {
            name: pa.array([], pa.int64() if name == "_tasks" else pa.string()) for name in _COLUMNS
        }
        return pa.table({**columns, "_unit": pa.array([], pa.string())})
    return pa.concat_tables(parts)


def switch_progress(
    rows: Iterable[Row], dropped_at: float | None, were_living: Collection[str] = ()
) -> SwitchProgress:
    """Counts jobs that live, that ended since `dropped_at` (epoch seconds), and of those that ended
    with status 0.

    Those whose ids are among `were_living` lived when it was dropped, whatever the clocks say.
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
        is_clean = (
            row["state"] == JobState.COMPLETED and not row["exit_code"] and not row["exit_signal"]
        )
        clean += count if is_clean else 0
        if not is_clean:
            badly[_format_end(row)] += count
    one = ids[0] if living + ended == 1 else ""
    reported = ", ".join(text if one else f"{count} {text}" for text, count in badly.most_common())
    return SwitchProgress(living, ended, clean, reported, one)


def _format_end(row: Row) -> str:
    word = state_word(str(row["state"]))
    return f"{word}, status {row['exit_code']}" if row["exit_code"] else word


def requested_switch(kind: SwitchKind, text: str) -> NamedSwitch | None:
    """The switch of a launch's request."""
    try:
        request = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    environment = request.get("environment")
    given = (
        {str(name): str(value) for name, value in environment.items()}
        if isinstance(environment, dict)
        else {}
    )
    named = switch_in_environment(kind, given, "its request")
    if named is None and (path := str(request.get(f"{kind}_switch", ""))):
        named = NamedSwitch(path, f"{kind}_switch in its request")
    work_dir = str(request.get("work_dir", ""))
    return (
        None
        if named is None
        else NamedSwitch(absolute_path(named.path, work_dir or None), named.source)
    )


def known_values(row: Row, backend: Backend) -> dict[str, str]:
    """Return the variables of a job's environment that its row reports."""
    known = {
        "USER": row["user"],
        "LOGNAME": row["user"],
        "PWD": row["work_dir"],
        **backend.detail.variables(row),
    }
    return {name: str(value) for name, value in known.items() if value}
