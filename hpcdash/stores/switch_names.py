"""Which file is a job's switch, and who says so: its launch, its environment, its script, else what a person named.

Looks at no switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdash.backends.job_detail import JobDetail
from hpcdash.domain.switches import (
    NamedSwitch,
    SwitchKind,
    absolute_path,
    path_problem,
    switch_in_environment,
    switch_in_script,
    unknown_words,
    variable_names,
    variables_in_list,
)
from hpcdash.errors import HpcdashError, UnreachableError
from hpcdash.stores.cluster import ClusterStore
from hpcdash.stores.launch_records import LaunchRecords
from hpcdash.stores.scripts import fetch_script
from hpcdash.stores.switch_jobs import known_values, requested_switch
from hpcdash.stores.switch_memory import SwitchMemory
from hpcdash.stores.switch_scripts import values_query

Row = Mapping[str, Any]
RECORDS_NAME = "launches.jsonl"
# Where a scheduler tells what a job was given of its environment, or how it was submitted.
TOLD_OF_ENVIRONMENT = ("Variable_List", "SubmitLine", "Submit_arguments", "submit_args")


@dataclass(frozen=True, slots=True)
class Naming:
    """A switch's absolute path and in words who names it; `path` is '' where nobody does, or nothing that can be one:
    then `problem` says why.

    `also` is another path that a person named here before, '' where there is none. `is_remembered`: so was `path`.
    """

    path: str = ""
    whence: str = ""
    problem: str = ""
    also: str = ""
    is_remembered: bool = False


class SwitchNames:
    """Finds them for one cluster's jobs. `folder` is where launches and named paths are remembered; None: nowhere."""

    def __init__(self, store: ClusterStore, folder: Path | None) -> None:
        self.store = store
        self.memory = SwitchMemory(folder, store.name)
        self._records = LaunchRecords(folder / RECORDS_NAME if folder else None, store.name)

    async def naming(self, kind: SwitchKind, job_id: str, detail: JobDetail) -> Naming:
        """Who names the switch of a job; raises what keeps the cluster from answering."""
        row = detail.job.to_pylist()[0]
        name, owner = str(row["name"] or ""), str(row["user"] or "")
        launched = await asyncio.to_thread(self.launched, kind, job_id, name)
        told = launched or await self.told(kind, job_id, row, detail)
        remembered = await asyncio.to_thread(self.remembered, kind, job_id, name, owner)
        kept = self.settled(kind, job_id, remembered, row)
        found = self.settled(kind, job_id, told, row)
        if not kept.path:
            return found
        if not found.path:
            return Naming(kept.path, kept.whence, is_remembered=True)
        return Naming(found.path, found.whence, also=kept.path if kept.path != found.path else "")

    def settled(self, kind: SwitchKind, job_id: str, named: NamedSwitch | None, row: Row) -> Naming:
        """What is named as an absolute path, or why it can be none."""
        if named is None:
            return Naming(problem=f"neither the launch nor the script of {job_id} names its {kind.words}")
        whole = absolute_path(named.path, row["work_dir"])
        problem = unknown_words(named) if named.unknown else ""
        if not problem and (wrong := path_problem(whole)):
            problem = f"{whole!r} ({named.whence}) cannot be its {kind.words}: {wrong}"
        return Naming("" if problem else whole, named.whence, problem)

    def remembered(self, kind: SwitchKind, job_id: str, name: str, owner: str) -> NamedSwitch | None:
        """What a person named for this job, else for another of its name."""
        if path := self.memory.of_job(kind, job_id, name):
            return NamedSwitch(path, "named here for this job before")
        if path := self.memory.of_name(kind, name, owner):
            return NamedSwitch(path, "named here for a job of this name before")
        return None

    def launched(self, kind: SwitchKind, job_id: str, name: str) -> NamedSwitch | None:
        """What the request says that this very job was launched with from here."""
        try:
            record = self._records.of_job(job_id, name)
        except OSError:
            return None
        return None if record is None else requested_switch(kind, record.request)

    async def told(self, kind: SwitchKind, job_id: str, row: Row, detail: JobDetail) -> NamedSwitch | None:
        """What the scheduler tells of the job's environment, else its script."""
        for field in TOLD_OF_ENVIRONMENT:
            variables = variables_in_list(detail.native.get(field, ""), variable_names(kind))
            if named := switch_in_environment(kind, variables, f"the job's {field}"):
                return named
        try:
            script = await fetch_script(self.store, job_id, detail=detail)
        except UnreachableError:
            raise
        except HpcdashError:
            return None
        return await self.in_script(kind, script.text, row)

    async def in_script(self, kind: SwitchKind, text: str, row: Row) -> NamedSwitch | None:
        """What a script says, with the variables of one's own login where it needs them."""
        known = known_values(row, self.store.backend)
        named = switch_in_script(kind, text, known)
        names = [name for name in named.unknown if name.isidentifier()] if named is not None else []
        if named is None or not names or row["user"] != self.store.user:
            return named
        # One's own login environment is what sbatch hands to a job.
        values = await self.store.ask(values_query(names))
        return switch_in_script(kind, text, {**values, **known})
