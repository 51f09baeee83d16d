"""Checks before a requeue: refusals, kill switches that are set, checkpoints to resume from."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from hpcdash.backends.base import Capability
from hpcdash.domain.impact import count_jobs
from hpcdash.domain.job_ids import parse_job_number, parse_task_part
from hpcdash.domain.switches import SwitchKind, absolute_path, path_problem
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.checks import PathKind, RequiredPath, dropped_finding, missing_paths
from hpcdash.services.submit.launched_job import (
    checkpoint_folder,
    find_launch_record,
    launch_request,
)
from hpcdash.services.switches.names import SwitchMemory, requested_switch

Row = Mapping[str, Any]
# Launch records and named switches are read for at most this many jobs and arrays.
_MAX_UNITS = 100


class RequeueFacts(Struct, frozen=True):
    """Kill switches and checkpoints of jobs.

    `switches` has rows by the absolute path of their kill switch, `checkpoints` the folders that
    jobs resume from by row ID, with %a for the task.
    """

    switches: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)


async def requeue_facts(
    store: ClusterStore, folder: Path | None, rows: Sequence[Row]
) -> RequeueFacts:
    """Read the facts from the launch records and named switches in `folder`. Queries nothing."""
    return await asyncio.to_thread(_read_facts, store, folder, rows)


async def fetch_refusal(store: ClusterStore, rows: Sequence[Row]) -> str:
    """Fetch the reason that the scheduler would refuse to requeue a job or an array.

    '' for none, and for several jobs, which are not queried.
    """
    units = {_unit(row) for row in rows}
    if len(units) != 1 or Capability.DETAIL not in store.backend.capabilities:
        return ""
    try:
        native = await store.run_query(store.backend.detail.native(str(rows[0]["id"])))
    except HpcdashError:
        # The scheduler refuses an unknown job with its own message.
        return ""
    why = store.backend.detail.requeue_refusal(native)
    return f"{min(units)} is not requeued: {why}" if why else ""


async def fetch_switch_warnings(store: ClusterStore, facts: RequeueFacts) -> tuple[str, ...]:
    """Check the kill switches with one command of at most 10 s; a sentence for each that is set or
    could not be checked.
    """
    if not facts.switches:
        return ()
    required = [
        RequiredPath("", path, PathKind.CLEARED, is_needed=False) for path in facts.switches
    ]
    try:
        found = await missing_paths(store, required)
    except HpcdashError as error:
        return tuple(
            f"could not check the kill switch {path}: {error.message}" for path in facts.switches
        )
    warnings = []
    for path, rows in facts.switches.items():
        if dropped_finding(path) in found:
            ends = "the job would stop" if count_jobs(rows) == 1 else "the jobs would stop"
            clear = shlex.join(("hpcdash", "kill-switch", _unit(rows[0]), "--clear"))
            text = f"the kill switch {path} is set: {ends} at once. Clear it first: {clear}"
            warnings.append(text)
    return tuple(warnings)


def _unit(row: Row) -> str:
    return str(row["array_id"] or row["id"])


def _read_facts(store: ClusterStore, folder: Path | None, rows: Sequence[Row]) -> RequeueFacts:
    memory = SwitchMemory(folder, store.name)
    units: dict[str, list[Row]] = {}
    for row in rows:
        if parse_job_number(str(row["id"])):
            units.setdefault(_unit(row), []).append(row)
    switches: dict[str, tuple[Row, ...]] = {}
    checkpoints: dict[str, str] = {}
    for unit_rows in list(units.values())[:_MAX_UNITS]:
        first = unit_rows[0]
        job_id = str(first["id"])
        record = find_launch_record(folder, store.name, first)
        switch = None if record is None else requested_switch(SwitchKind.KILL, record.request)
        if switch is None:
            name = str(first["name"] or "")
            switch = memory.find(SwitchKind.KILL, job_id, name, str(first["user"] or ""))
        if switch is not None and not switch.unknown:
            path = absolute_path(switch.path, first["work_dir"])
            if path and not path_problem(path):
                switches[path] = (*switches.get(path, ()), *unit_rows)
        request = None if record is None else launch_request(record)
        if request is not None and request.checkpoints:
            task = parse_task_part(job_id) if len(unit_rows) == 1 else ""
            checkpoints_folder = checkpoint_folder(request, first, task if task.isdigit() else "")
            checkpoints.update((str(row["id"]), checkpoints_folder) for row in unit_rows)
    return RequeueFacts(switches, checkpoints)
