"""Finds the switches of jobs, and the jobs that name a switch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.job_ids import parse_array_id, parse_job_number
from hpcdash.domain.states import ENDED, JobState
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
from hpcdash.errors import HpcdashError, UnreachableError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.jobs.actions import Actions
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.submit.launch_records import LaunchRecords
from hpcdash.services.switches.names import (
    CLOCKS_APART_SECONDS,
    ENVIRONMENT_FIELDS,
    SwitchMemory,
    known_values,
    living_table,
    requested_switch,
)
from hpcdash.services.switches.scripts import (
    dropped_path,
    values_query,
)

Row = Mapping[str, Any]
# The scripts of so many other jobs are read at the most, to see whether they name the same switch.
MAX_READ = 8
DROPS = {SwitchKind.KILL: Verb.KILL_SWITCH, SwitchKind.SAVE: Verb.SAVE_SWITCH}
CLEARS = {SwitchKind.KILL: Verb.CLEAR_KILL_SWITCH, SwitchKind.SAVE: Verb.CLEAR_SAVE_SWITCH}
_NEWEST_ENTRIES = 200
# Local records are read for at most this many other jobs.
_MAX_LOOKED_UP = 200


class Switch(Struct, frozen=True):
    """A switch of a job."""

    kind: SwitchKind
    job_id: str
    name: str
    owner: str
    # Those of the job, or of its array, as the queue has them.
    rows: tuple[Row, ...]
    detail: JobDetail
    # Its absolute path; '' if unknown, or if what is named cannot be one: then `problem` says why.
    path: str
    # Where it is named, as text.
    source: str = ""
    problem: str = ""
    # Another path that a person named here before, which does not count; '' for none.
    overridden: str = ""
    # Whether the path was typed; or remembered of one that was.
    is_typed: bool = False
    is_remembered: bool = False

    @property
    def overridden_note(self) -> str:
        """Note on another path that was named for it before; '' for none."""
        if not self.overridden:
            return ""
        return f"set here earlier: {self.overridden}; {self.source} takes precedence"

    @property
    def living(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row["state"] not in ENDED)


class SwitchJobs(Struct, frozen=True):
    """The living jobs that name a switch, those of its own job first; `note` is on those that could
    not be read.
    """

    rows: tuple[Row, ...]
    note: str = ""

    @property
    def job_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(unit_id, self.rows)))


class JobSwitches:
    """The switches of one cluster's jobs.

    `folder` is where launches and named paths are remembered; None: nowhere.
    """

    def __init__(self, actions: Actions, folder: Path | None) -> None:
        self.actions = actions
        self.store: ClusterStore = actions.store
        self.memory = SwitchMemory(folder, self.store.name)
        self._records = LaunchRecords(folder, self.store.name)

    # -- path

    async def find(self, job_id: str, kind: SwitchKind, path: str = "") -> Switch:
        """Find the switch of a job: `path` where a person names it, else as it was launched, as its
        environment or script has it, or remembered.

        Raises NoSuchJob, UsageError for a path that can be none, and what keeps the cluster from
        answering.
        """
        store = self.store
        await store.open()
        detail, rows = await asyncio.gather(
            store.fetch_detail(job_id), self.actions.fetch_rows((parse_array_id(job_id),))
        )
        row = detail.job.to_pylist()[0]
        name = str(row["name"] or "")
        owner = str(row["user"] or "")
        switch = Switch(kind, job_id, name, owner, tuple(rows or (row,)), detail=detail, path="")
        if path:
            typed = self._resolve(switch, NamedSwitch(path, "as given"), row)
            if typed.problem:
                raise UsageError(typed.problem, "Pass the path of one file.")
            return replace(typed, is_typed=True)
        declared = await asyncio.to_thread(self._find_launched, kind, job_id, name)
        if declared is None:
            declared = await self._find_declared(kind, job_id, row, detail)
        remembered = await asyncio.to_thread(self.memory.find, kind, job_id, name, owner)
        resolved = self._resolve(switch, declared, row)
        named = self._resolve(switch, remembered, row)
        if not named.path:
            return resolved
        if not resolved.path:
            return replace(named, is_remembered=True)
        return replace(resolved, overridden=named.path if named.path != resolved.path else "")

    def _resolve(self, switch: Switch, named: NamedSwitch | None, row: Row) -> Switch:
        """Return the switch with an absolute path, or the reason that it has none."""
        text = switch.kind.text
        if named is None:
            problem = f"no {text} file is known for job {switch.job_id}"
            if switch.owner not in ("", self.store.user):
                problem = (
                    f"no {text} found in the comment of {switch.job_id} or in files that "
                    f"{switch.owner} shares"
                )
            return replace(switch, problem=problem)
        path = absolute_path(named.path, row["work_dir"])
        problem = format_unknown(named) if named.unknown else ""
        if not problem and (wrong := path_problem(path)):
            problem = f"{path!r} ({named.source}) cannot be the {text}: {wrong}"
        return replace(switch, path="" if problem else path, source=named.source, problem=problem)

    def _find_launched(self, kind: SwitchKind, job_id: str, name: str) -> NamedSwitch | None:
        """Return the switch in the request of this very job, if it was launched from here."""
        try:
            record = self._records.find_by_job(job_id, name)
        except StateUnusable:
            return None
        return None if record is None else requested_switch(kind, record.request)

    async def _find_declared(
        self, kind: SwitchKind, job_id: str, row: Row, detail: JobDetail
    ) -> NamedSwitch | None:
        """Find the switch in the job's environment as reported, else in its script."""
        for field in ENVIRONMENT_FIELDS:
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
        return await self._find_in_script(kind, script.text, row)

    async def _find_in_script(self, kind: SwitchKind, text: str, row: Row) -> NamedSwitch | None:
        """Find the switch in a script, with the variables of one's own login if it needs them."""
        known = known_values(row, self.store.backend)
        named = switch_in_script(kind, text, known)
        names = [name for name in named.unknown if name.isidentifier()] if named is not None else []
        if not names or row["user"] != self.store.user:
            return named
        # One's own login environment is what sbatch hands to a job.
        values = await self.store.run_query(values_query(names))
        return switch_in_script(kind, text, {**values, **known})

    def forget(self, switch: Switch) -> str:
        """Forget the paths remembered for its job and for jobs of that name; return a message."""
        try:
            paths = self.memory.forget(switch.kind, switch.job_id, switch.name, switch.owner)
        except StateUnusable as error:
            return f"could not forget the path: {error.message}"
        return f"forgotten: {', '.join(paths)}" if paths else "no saved path"

    # -- state

    async def switch_jobs(self, switch: Switch) -> SwitchJobs:
        """Find the living jobs that name the same file: of the known lists, one's own and those
        that are alike.
        """
        units, others = await asyncio.to_thread(self._find_alike, switch)
        stored = await asyncio.to_thread(
            lambda: [self._find_known(switch, rows[0]) for rows in units]
        )
        named_rows = [*switch.living]
        unread = []
        for rows, known in zip(units, stored, strict=True):
            if known is None:
                unread.append(rows)
            elif absolute_path(known.path, rows[0]["work_dir"]) == switch.path:
                named_rows += rows
        answers = await asyncio.gather(
            *(self._is_named(switch, rows[0]) for rows in unread[:MAX_READ])
        )
        answers += [None] * len(unread[MAX_READ:])
        for rows, is_same in zip(unread, answers, strict=True):
            if is_same is None:
                others += count_jobs(rows)
            elif is_same:
                named_rows += rows
        note = ""
        if others:
            jobs = "1 other job was" if others == 1 else f"{others} other jobs were"
            note = f"{jobs} not checked for this switch"
        return SwitchJobs(tuple(named_rows), note)

    def _find_alike(self, switch: Switch) -> tuple[list[list[Row]], int]:
        """Return the living rows of each job or array that may name the same file, those with the
        same name first; and the number of jobs that are left out.
        """
        own = unit_id(switch.rows[0])
        work_dir = switch.rows[0]["work_dir"]
        living = living_table(self.store)
        living = living.filter(pc.not_equal(living["_unit"], own))
        is_alike = pc.or_(
            pc.equal(living["user"], self.store.user), pc.equal(living["name"], switch.name)
        )
        if work_dir:
            is_alike = pc.or_(is_alike, pc.fill_null(pc.equal(living["work_dir"], work_dir), False))
        is_alike = pc.fill_null(is_alike, False)
        units: dict[str, list[Row]] = {}
        for row in living.filter(is_alike).to_pylist():
            units.setdefault(unit_id(row), []).append(row)

        def rank(rows: list[Row]) -> tuple[bool, int]:
            number = int(parse_job_number(unit_id(rows[0])) or 0)
            return rows[0]["name"] != switch.name, -number

        ranked = sorted(units.values(), key=rank)
        left_out = pc.sum(living.filter(pc.invert(is_alike))["_tasks"]).as_py() or 0
        left_out += sum(map(count_jobs, ranked[_MAX_LOOKED_UP:]))
        return ranked[:_MAX_LOOKED_UP], left_out

    def _find_known(self, switch: Switch, row: Row) -> NamedSwitch | None:
        """Return the known switch of another job without a query.

        A path that a person named counts only if nothing else is known.
        """
        unit = unit_id(row)
        name = str(row["name"] or "")
        launched = self._find_launched(switch.kind, unit, name)
        if launched is not None or not (switch.is_typed or switch.is_remembered):
            return launched
        return self.memory.find(switch.kind, unit, name, str(row["user"] or ""))

    async def _is_named(self, switch: Switch, row: Row) -> bool | None:
        """Check whether another job names this switch; None if that cannot be read."""
        kind = switch.kind
        unit = unit_id(row)
        if named := comment_switch(kind, str(row["comment"] or "")):
            return named.path == switch.path
        try:
            if Capability.KEEPS_SCRIPTS in self.store.backend.capabilities:
                script = await fetch_script(self.store, unit)
                named = await self._find_in_script(kind, script.text, row)
            else:
                detail = await self.store.fetch_detail(unit)
                named = await self._find_declared(kind, unit, row, detail)
        except HpcdashError:
            return None
        return named is not None and absolute_path(named.path, row["work_dir"]) == switch.path

    def living_jobs(self, job_ids: Sequence[str]) -> int:
        """Count the living jobs among some jobs and arrays in the known lists; queries nothing."""
        living = living_table(self.store)
        # It may have left the queue just now.
        living = living.filter(pc.not_equal(living["state"], str(JobState.UNKNOWN)))
        requested = pa.array(sorted(set(map(parse_array_id, job_ids))), pa.string())
        return pc.sum(living.filter(pc.is_in(living["_unit"], requested))["_tasks"]).as_py() or 0

    def dropped_here_seconds_ago(self, switch: Switch) -> float | None:
        """Return the age of its drop from here, by the journal; None if not dropped, or cleared.

        Actions before the job's submission were for another of its file's jobs.
        """
        times = [row["submitted_at"].timestamp() for row in switch.rows if row["submitted_at"]]
        since = min(times, default=0.0) - CLOCKS_APART_SECONDS
        drop = DROPS[switch.kind]
        verbs = (drop, CLEARS[switch.kind])
        try:
            entries, _ = self.actions.journal.read(_NEWEST_ENTRIES)
        except HpcdashError:
            return None
        for entry in entries:
            is_here = entry.cluster == self.store.name and entry.verb in verbs
            if not is_here or entry.state != "done":
                continue
            if entry.at < since:
                return None
            if any(dropped_path(argv) == switch.path for argv in entry.commands):
                return self.actions.journal.age_seconds(entry) if entry.verb == drop else None
        return None

    async def fetch_jobs(
        self, job_ids: Sequence[str], *, most: int | None = None
    ) -> tuple[Row, ...]:
        """Fetch the rows of some jobs and arrays as the queue, else the history, has them; raises
        what keeps from querying.

        The history is queried where the queue has less than `most` of these jobs (tasks count);
        None: in any case.
        """
        store = self.store
        ids = tuple(dict.fromkeys(map(parse_array_id, job_ids)))
        if not ids:
            return ()
        rows = await self.actions.fetch_rows(ids)
        past: Sequence[Row] = ()
        is_requested = most is None or count_jobs(rows) < most
        if is_requested and (store.probe is None or store.probe.has_accounting is not False):
            try:
                query = store.backend.history.jobs(None, 0, ids)
                past = (await store.run_query(query)).table.to_pylist()
            except UnreachableError:
                raise
            except HpcdashError:
                past = ()
        queued = {row["id"] for row in rows}
        return (*rows, *(row for row in past if row["id"] not in queued))


def unit_id(row: Row) -> str:
    """Return the id of a row's job, or of the array it is of."""
    return str(row["array_id"] or row["id"])
