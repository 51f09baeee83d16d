"""Finds the switches of jobs, looks at them, drops and clears them, and follows what comes of
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.actions import ActionRequest, Outcome, Verb
from hpcdash.backends.base import Capability
from hpcdash.backends.job_detail import JobDetail
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.job_ids import parse_array_id, parse_job_number
from hpcdash.domain.states import ACTIVE, ENDED, JobState
from hpcdash.domain.switch_text import (
    SwitchSnapshot,
    clear_refusal,
    format_log,
    refusal,
    telling_line,
)
from hpcdash.domain.switches import NamedSwitch, SwitchKind, absolute_path, comment_switch
from hpcdash.errors import CommandTimedOut, HpcdashError, UnreachableError, UsageError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.files import Chunk
from hpcdash.services.jobs.actions import ANSWER_LOST, Actions, Plan
from hpcdash.services.jobs.scripts import fetch_script
from hpcdash.services.logs.locate import fetch_log_files
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.switches.names import (
    CLOCKS_APART_SECONDS,
    LogMark,
    Naming,
    SwitchNames,
    living_table,
)
from hpcdash.services.switches.scripts import (
    clear_command,
    drop_command,
    dropped_path,
    snapshot_query,
    written_query,
)

Row = Mapping[str, Any]
# The scripts of so many other jobs are read at the most, to see whether they name the same switch.
MAX_READ = 8
_DROPS = {SwitchKind.KILL: Verb.KILL_SWITCH, SwitchKind.SAVE: Verb.SAVE_SWITCH}
_CLEARS = {SwitchKind.KILL: Verb.CLEAR_KILL_SWITCH, SwitchKind.SAVE: Verb.CLEAR_SAVE_SWITCH}
_NEWEST_ENTRIES = 200
# Local records are read for at most this many other jobs.
_MAX_LOOKED_UP = 200
_LONG_LINE = 16_000


class SwitchRefused(HpcdashError):
    """Refusal to drop or clear a switch because of the entry at its path."""


class Switch(Struct, frozen=True):
    """A switch of a job. `rows` are those of the job, or of its array, as the queue has them.

    `named_by_person` where the path was typed.
    """

    kind: SwitchKind
    job_id: str
    name: str
    owner: str
    naming: Naming
    rows: tuple[Row, ...]
    detail: JobDetail
    named_by_person: bool = False

    @property
    def path(self) -> str:
        """Its file, '' where nobody knows it: then `naming.problem` says what was looked at."""
        return self.naming.path

    @property
    def overridden_note(self) -> str:
        """Note on another path that was named for it before, which does not count; '' for none."""
        overridden = self.naming.overridden
        return (
            f"set here before: {overridden}; {self.naming.source} takes precedence"
            if overridden
            else ""
        )

    @property
    def living(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row["state"] not in ENDED)


class SwitchJobs(Struct, frozen=True):
    """The living jobs that name a switch, those of its own job first; `note` says in words which
    could not be read.
    """

    rows: tuple[Row, ...]
    note: str = ""

    @property
    def job_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_unit(row) for row in self.rows))


class JobSwitches:
    """The switches of one cluster's jobs.

    `folder` is where launches and named paths are remembered; None: nowhere.
    """

    def __init__(self, actions: Actions, folder: Path | None) -> None:
        self.actions = actions
        self.store: ClusterStore = actions.store
        self.names = SwitchNames(self.store, folder)

    # -- path

    async def find(self, job_id: str, kind: SwitchKind, path: str = "") -> Switch:
        """The switch of a job: `path` where a person names it, else as it was launched, told,
        scripted or remembered.

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
        if path:
            naming = self.names.settled(kind, job_id, NamedSwitch(path, "as given"), row)
            if naming.problem:
                raise UsageError(naming.problem, "Give the path of one file.")
        else:
            naming = await self.names.naming(kind, job_id, detail)
        return Switch(kind, job_id, name, owner, naming, tuple(rows or (row,)), detail, bool(path))

    def forget(self, switch: Switch) -> str:
        """Forget the paths remembered for its job and for jobs of that name; returns what happened,
        in words.
        """
        try:
            remaining = self.names.memory.forget(
                switch.kind, switch.job_id, switch.name, switch.owner
            )
        except StateUnusable as error:
            return f"could not forget it: {error.message}"
        return f"forgotten: {', '.join(remaining)}" if remaining else "nothing was remembered"

    def switch_log(self, switch: Switch) -> SwitchLog:
        """Its log, read from where it ended when the switch was dropped from here last."""
        return SwitchLog(
            self.store, switch, self.names.memory.stored_mark(switch.kind, switch.path)
        )

    # -- state

    async def fetch_snapshot(self, switch: Switch) -> SwitchSnapshot:
        """Query the entry at its path now; raises CommandTimedOut if its disk does not answer."""
        try:
            return await self.store.run_query(snapshot_query(switch.path, switch.owner))
        except CommandTimedOut as error:
            error.message = f"the disk of {switch.path} does not respond"
            raise

    async def switch_jobs(self, switch: Switch) -> SwitchJobs:
        """The living jobs that name the same file: of the lists there are, one's own and those that
        look alike.
        """
        units, others = await asyncio.to_thread(self._candidates, switch)
        found = [*switch.living]
        unread = []
        for unit, rows, known in units:
            if known is None:
                unread.append((unit, rows))
            elif absolute_path(known.path, rows[0]["work_dir"]) == switch.path:
                found += rows
        answers = await asyncio.gather(
            *(self._names(switch, unit, rows[0]) for unit, rows in unread[:MAX_READ])
        )
        for (_, rows), is_same in zip(unread, answers, strict=False):
            if is_same is None:
                others += count_jobs(rows)
            elif is_same:
                found += rows
        others += sum(count_jobs(rows) for _, rows in unread[MAX_READ:])
        note = f"{others} other jobs were not checked for this switch" if others > 1 else ""
        return SwitchJobs(
            tuple(found), note or ("1 other job was not checked for this switch" if others else "")
        )

    def _candidates(
        self, switch: Switch
    ) -> tuple[list[tuple[str, list[Row], NamedSwitch | None]], int]:
        """(job or array, its living rows, what is remembered about it) for each that may name the
        same file, those with the same name first; and how many jobs are not checked.
        """
        own = _unit(switch.rows[0]) if switch.rows else parse_array_id(switch.job_id)
        living = living_table(self.store)
        is_other = pc.not_equal(living["_unit"], own)
        work_dir = switch.rows[0]["work_dir"] if switch.rows else None
        is_like = pc.or_(
            pc.equal(living["user"], self.store.user), pc.equal(living["name"], switch.name)
        )
        if work_dir:
            is_like = pc.or_(is_like, pc.fill_null(pc.equal(living["work_dir"], work_dir), False))
        is_like = pc.fill_null(is_like, False)
        units: dict[str, list[Row]] = {}
        for row in living.filter(pc.and_(is_other, is_like)).to_pylist():
            units.setdefault(_unit(row), []).append(row)
        unlike = living.filter(pc.and_(is_other, pc.invert(is_like)))
        ranked = sorted(
            units.items(), key=lambda pair: (pair[1][0]["name"] != switch.name, -_number(pair[0]))
        )
        others = (pc.sum(unlike["_tasks"]).as_py() or 0) + sum(
            count_jobs(rows) for _, rows in ranked[_MAX_LOOKED_UP:]
        )
        return [
            (unit, rows, self._known(switch, unit, rows[0]))
            for unit, rows in ranked[:_MAX_LOOKED_UP]
        ], others

    def _known(self, switch: Switch, unit: str, row: Row) -> NamedSwitch | None:
        """Return the known switch of another job without a query.

        A path that a person named counts only if nothing else is known.
        """
        name = str(row["name"] or "")
        owner = str(row["user"] or "")
        launched = self.names.launched(switch.kind, unit, name)
        is_named = switch.named_by_person or switch.naming.is_remembered
        return launched or (
            self.names.remembered(switch.kind, unit, name, owner) if is_named else None
        )

    async def _names(self, switch: Switch, unit: str, row: Row) -> bool | None:
        """Check whether another job names this switch; None if that cannot be read."""
        if named := comment_switch(switch.kind, str(row["comment"] or "")):
            return named.path == switch.path
        try:
            if Capability.KEEPS_SCRIPTS in self.store.backend.capabilities:
                script = await fetch_script(self.store, unit)
                named = await self.names.in_script(switch.kind, script.text, row)
            else:
                named = await self.names.find_declared(
                    switch.kind, unit, row, await self.store.fetch_detail(unit)
                )
        except HpcdashError:
            return None
        return named is not None and absolute_path(named.path, row["work_dir"]) == switch.path

    def living_jobs(self, job_ids: Sequence[str]) -> int:
        """Count the living jobs among some jobs and arrays in the known lists; queries nothing."""
        living = living_table(self.store)
        # It may have left the queue just now.
        living = living.filter(pc.not_equal(living["state"], str(JobState.UNKNOWN)))
        requested = pa.array(sorted(set(map(parse_array_id, job_ids))), pa.string())
        return int(
            pc.sum(living.filter(pc.is_in(living["_unit"], requested))["_tasks"]).as_py() or 0
        )

    def dropped_here_seconds_ago(self, switch: Switch) -> float | None:
        """Return the age of its drop from here, by the journal; None if not dropped, or cleared.

        Actions before the job's submission were for another of its file's jobs.
        """
        submitted = [
            row["submitted_at"].timestamp()
            for row in switch.rows
            if row["submitted_at"] is not None
        ]
        since = min(submitted, default=0.0) - CLOCKS_APART_SECONDS
        drop = _DROPS[switch.kind]
        clear = _CLEARS[switch.kind]
        try:
            entries, _ = self.actions.journal.read(_NEWEST_ENTRIES)
        except HpcdashError:
            return None
        for entry in entries:
            if (
                entry.cluster != self.store.name
                or entry.verb not in (drop, clear)
                or entry.state != "done"
            ):
                continue
            if entry.at < since:
                return None
            if any(dropped_path(argv) == switch.path for argv in entry.commands):
                return self.actions.journal.age_seconds(entry) if entry.verb == drop else None
        return None

    # -- actions

    def plan_drop(self, switch: Switch, check: SwitchSnapshot, job_ids: Sequence[str] = ()) -> Plan:
        """Plan the drop of the switch; raises SwitchRefused if something is in the way."""
        if why := refusal(check):
            raise SwitchRefused(f"{switch.path}: {why}", _next_step(switch, check))
        return self._plan(
            _DROPS[switch.kind],
            switch,
            drop_command(check, switch.owner, job_ids or (switch.job_id,)),
        )

    def plan_clear(
        self, switch: Switch, check: SwitchSnapshot, job_ids: Sequence[str] = ()
    ) -> Plan:
        """Plan the removal of the file; raises SwitchRefused if it is missing, or no switch."""
        if why := clear_refusal(check):
            raise SwitchRefused(f"{switch.path}: {why}")
        return self._plan(
            _CLEARS[switch.kind], switch, clear_command(check, job_ids or (switch.job_id,))
        )

    def _plan(self, verb: Verb, switch: Switch, command: Any) -> Plan:
        return Plan(ActionRequest(verb, command.job_ids), switch.rows, (command,))

    async def fetch_jobs(
        self, job_ids: Sequence[str], *, most: int | None = None
    ) -> tuple[Row, ...]:
        """The rows of some jobs and arrays as the queue, else the history, has them; raises what
        keeps from asking.

        The history is asked where the queue has less than `most` of these jobs (tasks count); None:
        in any case.
        """
        backend = self.store.backend
        store = self.store
        ids = tuple(dict.fromkeys(map(parse_array_id, job_ids)))
        if not ids:
            return ()
        rows = list(await self.actions.fetch_rows(ids))
        past: Sequence[Row] = ()
        is_requested = most is None or count_jobs(rows) < most
        if is_requested and (store.probe is None or store.probe.has_accounting is not False):
            try:
                past = (await store.run_query(backend.history.jobs(None, 0, ids))).table.to_pylist()
            except UnreachableError:
                raise
            except HpcdashError:
                past = ()
        queued = {row["id"] for row in rows}
        return (*rows, *(row for row in past if row["id"] not in queued))

    async def carry_out(
        self, switch: Switch, plan: Plan, log: SwitchLog | None = None
    ) -> tuple[tuple[Outcome, ...], list[str]]:
        """Run a plan; return the outcomes, and messages on what could not be stored.

        After a drop the path is remembered, if a person named it, and the size of `log`. An unknown
        outcome says how to check.
        """
        report = await self.actions.run(plan)
        problems = [report.journal_problem] if report.journal_problem else []
        is_drop = plan.request.verb == _DROPS[switch.kind]
        if is_drop and any(outcome.done for outcome in report.outcomes):
            try:
                if switch.named_by_person:
                    self.names.memory.remember(
                        switch.kind, switch.job_id, switch.name, switch.owner, switch.path
                    )
            except StateUnusable as error:
                problems.append(f"could not remember the path: {error.message}")
            try:
                if log is not None and log.now is not None:
                    self.names.memory.mark(switch.kind, switch.path, log.now)
            except StateUnusable as error:
                problems.append(f"what its log says later cannot be reported: {error.message}")
        check = f"hpcdash {switch.kind}-switch {switch.job_id} --status"
        lost = f"the answer was lost; check with: {check}"
        outcomes = tuple(
            replace(one, text=one.text.replace(ANSWER_LOST, lost, 1)) if one.done is None else one
            for one in report.outcomes
        )
        return outcomes, problems


def _unit(row: Row) -> str:
    """The job, or the array a row is of."""
    return str(row["array_id"] or row["id"])


def _number(job_id: str) -> int:
    return int(parse_job_number(job_id) or 0)


def _next_step(switch: Switch, check: SwitchSnapshot) -> str:
    if check.is_dropped:
        return f"It stays until it is cleared: hpcdash {switch.kind}-switch {switch.job_id} --clear"
    if check.problem:
        return "If the job creates this folder, wait for it; --path names another file."
    return ""


class SwitchLog:
    """The output of the one job that runs, or of the first of an array's tasks that do."""

    def __init__(self, store: ClusterStore, switch: Switch, mark: LogMark | None = None) -> None:
        self._store = store
        self._switch = switch
        self._of = ""
        self._paths: tuple[str, ...] = ()
        self._why_none = ""
        # Bytes of each file that were read since the mark, with what was there before.
        self._read: dict[str, int] = {}
        self._marked_job = ""
        self._last_line = ""
        self._mark = mark
        # Size of each at the last check.
        self._sizes: dict[str, int] = {}

    async def read(self, living: Sequence[Row], *, is_dropped: bool) -> tuple[str | None, str]:
        """Read what the log reports of the switch, and whether it shows that the job still checks
        its switches; raises nothing.

        The first value is the line since the mark that reports best, '' for none, None where it is
        unknown; it is read if the switch `is_dropped`. `living` are rows of its jobs.
        """
        active = [row for row in living if row["state"] in ACTIVE]
        message: str | None = None
        text = "pending: it checks for the switch once it starts" if living else "it has ended"
        try:
            if is_dropped and self._read:
                message, growth = await self._read_new_lines()
                if any(str(row["id"]) == self._marked_job for row in active):
                    return message, growth
            if not active:
                return message, text
            await self._find(str(active[0]["id"]))
            if not self._paths:
                return message, self._why_none
            return message, self._grows(await self._read_logs(dict.fromkeys(self._paths)))
        except CommandTimedOut:
            text = "the disk of its log does not respond: cannot tell whether the job still runs"
            return message, text
        except HpcdashError as error:
            return message, f"cannot tell whether its log is growing: {error.message}"

    async def resume(self) -> None:
        """Make `read` cover the output since the given mark, if the logs are the same."""
        if self._mark is None:
            return
        try:
            await self._find(self._mark.job_id)
        except HpcdashError:
            return
        if self._paths and set(self._paths) <= self._mark.sizes.keys():
            self._read = {path: self._mark.sizes[path] for path in self._paths}
            self._marked_job = self._of
            self._last_line = ""

    async def mark(self, living: Sequence[Row]) -> None:
        """Make `read` cover the output from now on.

        If the end of the logs cannot be found, it reports nothing.
        """
        self._read = {}
        self._last_line = ""
        self._sizes = {}
        active = [row for row in living if row["state"] in ACTIVE]
        if not active:
            return
        try:
            await self._find(str(active[0]["id"]))
            if self._paths:
                await self._read_logs(dict.fromkeys(self._paths))
                self._read, self._marked_job = dict(self._sizes), self._of
        except HpcdashError:
            return

    @property
    def now(self) -> LogMark | None:
        """Sizes of its files at the last check; None if there was none."""
        return LogMark(self._of, dict(self._sizes)) if self._sizes else None

    async def _read_new_lines(self) -> tuple[str, str]:
        """Return the line since the mark that reports best on the switch, '' for none, and text on
        the log's growth; raises nothing.
        """
        try:
            found = await self._read_logs(self._read)
        except HpcdashError as error:
            return self._last_line, f"cannot tell whether its log is growing: {error.message}"
        for path, chunk in zip(self._read, found, strict=True):
            if not chunk.stat.is_there:
                continue
            text = chunk.content.decode("utf-8", "surrogateescape")
            # An incomplete line is read again, unless it fills all that is read at once.
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            if not end and len(text) > _LONG_LINE:
                end = len(text)
            self._last_line = telling_line(self._switch.kind, text[:end], self._last_line)
            read = self._read[path] + len(text[:end].encode("utf-8", "surrogateescape"))
            self._read[path] = read if read <= chunk.stat.size else 0
        return self._last_line, self._grows(found)

    async def _read_logs(self, read: Mapping[str, int | None]) -> tuple[Chunk, ...]:
        found = await self._store.run_query(written_query(tuple(read), tuple(read.values())))
        self._sizes = {path: chunk.stat.size for path, chunk in zip(read, found, strict=True)}
        return found

    def _grows(self, found: Sequence[Chunk]) -> str:
        ages = [chunk.stat.age_seconds for chunk in found if chunk.stat.age_seconds is not None]
        is_there = any(chunk.stat.is_there for chunk in found)
        unknown = "it is not known when its log grew" if is_there else "it has no log yet"
        return format_log(min(ages, default=None), unknown)

    async def _find(self, job_id: str) -> None:
        if self._of == job_id:
            return
        detail = self._switch.detail
        if job_id != detail.job["id"][0].as_py():
            detail = await self._store.fetch_detail(job_id)
        files = await fetch_log_files(self._store, job_id, detail)
        self._of = job_id
        self._paths = ()
        if files.host:
            self._why_none = (
                f"its log is on {files.host}'s local disk: cannot tell whether it is growing"
            )
            return
        self._paths = tuple(
            path for path in (files.stdout, files.stderr) if path and "\0" not in path
        )
        self._why_none = format_log(None, files.note)
