"""Conditions of a requeue: a refusal, kill switches still set, checkpoints to resume from."""

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
# Local records are read for at most this many jobs and arrays.
MAX_LOOKED_UP = 100


class RequeueFacts(Struct, frozen=True):
    """Known facts of jobs before a requeue.

    `switches` are rows by the absolute path of their kill switch, `checkpoints` the folders that
    jobs are set to resume from, by a row's id; %a in one is the task.
    """

    switches: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)


async def requeue_facts(
    store: ClusterStore, folder: Path | None, rows: Sequence[Row]
) -> RequeueFacts:
    """Read the facts of jobs from the launches and named switches in `folder`; queries nothing."""
    return await asyncio.to_thread(_facts, store, folder, rows)


async def fetch_refusal(store: ClusterStore, rows: Sequence[Row]) -> str:
    """Fetch the reason that the scheduler would refuse to requeue a job or an array; '' for none.

    Several jobs are not queried one by one: '' as well.
    """
    units = {_unit(row) for row in rows}
    if len(units) != 1 or Capability.DETAIL not in store.backend.capabilities:
        return ""
    try:
        why = store.backend.detail.requeue_refusal(
            await store.run_query(store.backend.detail.native(str(rows[0]["id"])))
        )
    except HpcdashError:
        # A job that the scheduler has forgotten is refused with its own message.
        return ""
    return f"{min(units)} is not requeued: {why}" if why else ""


async def fetch_switch_warnings(store: ClusterStore, facts: RequeueFacts) -> tuple[str, ...]:
    """A sentence for each kill switch that is there, or of which that is not known; in one command
    of at most 10 s.
    """
    paths = tuple(facts.switches)
    if not paths:
        return ()
    try:
        found = await missing_paths(
            store, [RequiredPath("", path, PathKind.CLEARED, is_needed=False) for path in paths]
        )
    except HpcdashError as error:
        return tuple(
            f"cannot tell whether the kill switch {path} is set: {error.message}" for path in paths
        )
    return tuple(
        _dropped(path, facts.switches[path]) for path in paths if dropped_finding(path) in found
    )


def _dropped(path: str, rows: Sequence[Row]) -> str:
    ends = "the job ends" if count_jobs(rows) == 1 else "the jobs end"
    clears = shlex.join(("hpcdash", "kill-switch", _unit(rows[0]), "--clear"))
    return f"the kill switch {path} is set: {ends} at once. Clear it first: {clears}"


def _unit(row: Row) -> str:
    return str(row["array_id"] or row["id"])


def _facts(store: ClusterStore, folder: Path | None, rows: Sequence[Row]) -> RequeueFacts:
    memory = SwitchMemory(folder, store.name)
    units: dict[str, list[Row]] = {}
    for row in rows:
        if parse_job_number(str(row["id"])):
            units.setdefault(_unit(row), []).append(row)
    switches: dict[str, tuple[Row, ...]] = {}
    checkpoints: dict[str, str] = {}
    for unit_jobs in list(units.values())[:MAX_LOOKED_UP]:
        first = unit_jobs[0]
        record = find_launch_record(folder, store.name, first)
        named = None if record is None else requested_switch(SwitchKind.KILL, record.request)
        job_id = str(first["id"])
        name = str(first["name"] or "")
        owner = str(first["user"] or "")
        named = named or memory.find(SwitchKind.KILL, job_id, name, owner)
        path = (
            "" if named is None or named.unknown else absolute_path(named.path, first["work_dir"])
        )
        if path and not path_problem(path):
            switches[path] = (*switches.get(path, ()), *unit_jobs)
        request = None if record is None else launch_request(record)
        if request is not None and request.checkpoints:
            task = parse_task_part(job_id) if len(unit_jobs) == 1 else ""
            where = checkpoint_folder(request, first, task if task.isdigit() else "")
            checkpoints.update((str(row["id"]), where) for row in unit_jobs)
    return RequeueFacts(switches, checkpoints)
