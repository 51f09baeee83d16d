"""Folders of launches on a cluster: their state, and their removal.

The folder of a refused launch is removed at once, that of a finished one according to its `keep`,
any other by a person.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hpcdash.backends.actions import ActionCommand
from hpcdash.backends.queries import JobScope
from hpcdash.domain.job_ids import parse_job_key, parse_job_number
from hpcdash.domain.request import KEPT_DAYS
from hpcdash.domain.schema import JOBS
from hpcdash.domain.states import ENDED, JobState
from hpcdash.domain.tables import Kind
from hpcdash.errors import AccountingUnavailable, CommandMissing, HpcdashError, NoSuchJob, excerpt
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.submit.staging import (
    InspectedFolder,
    discard_argv,
    inspect_query,
    remove_libraries_argv,
)
from hpcdash.services.submit.submission import CLOCKS_APART
from hpcdash.services.submit.sudoers import NOTHING_THERE

# A job that neither list nor history has known for this long is not queried again.
_FORGOTTEN_SECONDS = 86400.0
_IDS_A_COMMAND = 100
_FOLDERS_A_COMMAND = 50
_LIMIT_SECONDS = 60.0
_LIBRARIES_LIMIT_SECONDS = 120.0
Row = Mapping[str, Any]


async def remove_finished_folders(
    store: ClusterStore, records: LaunchRecords, launch_program: str, *, every_seconds: float = 0.0
) -> tuple[str, ...]:
    """Remove the folders of launches that need not be kept any more; return a message for each.

    Root's `launch_program` removes those of other accounts. One query covers all launches that may
    have finished; it is skipped if one was made within the last `every_seconds`, from here or by
    another program. Raises StateUnusable, and the errors of an unreachable cluster.
    """
    waiting = await asyncio.to_thread(records.unsettled)
    mine = store.snapshots.get(Kind.MINE)
    stay = await asyncio.to_thread(records.unread_checks)
    if mine is not None and not mine.cached:
        stay |= unfinished_ids(mine.table, [record.job_id for record in waiting])
    completed = await asyncio.to_thread(records.completed_at)
    now = store.clock.now()
    due: list[LaunchRecord] = []
    may_have_ended: list[LaunchRecord] = []
    for record in waiting:
        if record.folder in completed:
            if now >= completed[record.folder] + parse_keep_seconds(record.keep):
                due.append(record)
        elif record.job_id not in stay and len(may_have_ended) < _IDS_A_COMMAND:
            may_have_ended.append(record)
    if not (may_have_ended or due):
        return ()
    if not await asyncio.to_thread(records.is_check_due, every_seconds):
        return ()
    ended = JOBS.empty_table()
    if may_have_ended:
        ended = await fetch_ended(store, [record.job_id for record in may_have_ended])
    by_job = await asyncio.to_thread(rows_by_job, ended)
    living: LivingJobs | None = None
    messages = []
    for record in (*due, *may_have_ended):
        rows = [row for row in by_job.get(record.job_id, ()) if belongs_to_launch(row, record)]
        is_due = record in due
        is_complete = has_completed(rows, record.tasks)
        if is_complete and not is_due and record.keep not in ("failed", "nothing"):
            ends = [row["ends_at"].timestamp() if row["ends_at"] else now for row in rows]
            await asyncio.to_thread(records.completed, record, max(ends))
            continue
        if is_due or is_complete or record.keep == "nothing":
            living = living or await fetch_living(store, records)
            if living.reason_to_stay(record):
                continue
        if not rows and not is_due and store.clock.now() - record.at > _FORGOTTEN_SECONDS:
            await asyncio.to_thread(records.stays, record, "exit status unknown")
        elif is_due or is_complete or (record.keep == "nothing" and has_failed(rows)):
            outcome = "completed" if is_due or is_complete else "ended"
            messages.append(
                await _remove_finished(store, records, record, launch_program, outcome=outcome)
            )
        elif has_failed(rows):
            await asyncio.to_thread(records.stays, record, "did not complete")
    return tuple(messages)


async def _remove_finished(
    store: ClusterStore,
    records: LaunchRecords,
    record: LaunchRecord,
    launch_program: str,
    *,
    outcome: str,
) -> str:
    """Remove the folder of a finished launch; return what was done as a message."""
    reason = await remove_folder(store, record, launch_program, has_run=True)
    job = f"job {record.job_id} {outcome}"
    if reason:
        await asyncio.to_thread(records.stays, record, reason)
        return f"{job}, but the files remain in {record.folder}: {reason}"
    await asyncio.to_thread(records.removed, record)
    return f"{job}: removed {record.folder}"


def has_completed(rows: Sequence[Row], tasks: int) -> bool:
    """Whether this many jobs are known, all of them completed."""
    return len(rows) >= tasks and all(row["state"] == JobState.COMPLETED for row in rows)


def has_failed(rows: Sequence[Row]) -> bool:
    """Whether all known jobs have ended, and at least one did not complete."""
    states = {row["state"] for row in rows}
    return states <= ENDED and bool(states - {JobState.COMPLETED})


def unfinished_ids(table: pa.Table, job_ids: Sequence[str]) -> frozenset[str]:
    """Return the given IDs of jobs and arrays with an unfinished row in a table of jobs."""
    number = pc.coalesce(table["array_id"], table["id"])
    rows = table.select(["state"]).append_column("number", number)
    rows = rows.filter(pc.is_in(number, value_set=pa.array(job_ids, pa.string())))
    return frozenset(row["number"] for row in rows.to_pylist() if row["state"] not in ENDED)


async def fetch_ended(store: ClusterStore, job_ids: Sequence[str]) -> pa.Table:
    """Fetch jobs and arrays from the history, or from the scheduler if there is no history."""
    if store.probe is None or store.probe.has_accounting is not False:
        try:
            return (await store.poll(store.backend.history.jobs(None, 0, job_ids))).table
        except (AccountingUnavailable, CommandMissing):
            pass
        except NoSuchJob:
            # PBS hides jobs of others where query_other_jobs is off.
            return JOBS.empty_table()
    scope = JobScope(job_ids=tuple(job_ids), ended=True)
    try:
        return (await store.poll(store.backend.queue.jobs(scope))).table
    except NoSuchJob:
        return JOBS.empty_table()


class LivingJobs(Struct, frozen=True):
    """One's unfinished jobs, their keys, and the requests of those launched from here."""

    rows: tuple[Row, ...]
    keys: frozenset[str]
    requests: tuple[str, ...]

    def reason_to_stay(self, record: LaunchRecord) -> str:
        """Return the reason that a launch's folder may be needed; '' if no known job names it.

        Links of a chain and resubmitted jobs run the script of an earlier job, and have its name.
        """
        launched = parse_job_key(record.job_id)
        number = re.compile(rf"(?<![0-9]){parse_job_number(record.job_id)}(?![0-9])")
        below = f"{record.folder}/"
        for row in self.rows:
            job_id = str(row["id"])
            if parse_job_key(job_id) == launched:
                return f"job {job_id} has not ended"
            if record.name and row["name"] == record.name:
                return f"job {job_id} has the same name"
            if number.search(str(row["dependency"] or "")):
                return f"job {job_id} depends on it"
            if f"{row['work_dir'] or ''}/".startswith(below):
                return f"job {job_id} is running in this folder"
        is_named = any(record.folder in request for request in self.requests)
        return "an unfinished job refers to this folder" if is_named else ""


async def fetch_living(store: ClusterStore, records: LaunchRecords) -> LivingJobs:
    """Fetch one's unfinished jobs.

    Raises StateUnusable, and the errors of an unreachable cluster.
    """
    snapshot = await store.fetch(Kind.MINE)
    rows = tuple(row for row in snapshot.table.to_pylist() if row["state"] not in ENDED)
    keys = frozenset(parse_job_key(str(row["id"])) for row in rows)
    launched = await asyncio.to_thread(records.all)
    requests = [one.request for one in launched if parse_job_key(one.job_id) in keys]
    return LivingJobs(rows, keys, tuple(requests))


def parse_keep_seconds(keep: str) -> float:
    """Parse `keep`: the seconds from the end of a job to the removal; infinity without days."""
    found = KEPT_DAYS.fullmatch(keep)
    return int(found[1]) * 86400.0 if found else math.inf


def belongs_to_launch(row: Row, record: LaunchRecord) -> bool:
    """Whether a job is not older than a launch: a reinstalled scheduler reuses its numbers."""
    submitted = row["submitted_at"]
    return submitted is None or submitted.timestamp() >= record.at - CLOCKS_APART.total_seconds()


def rows_by_job(table: pa.Table) -> dict[str, list[Row]]:
    """Group rows by their array's ID, or their own."""
    columns = ["id", "array_id", "name", "state", "submitted_at", "ends_at"]
    found: dict[str, list[Row]] = {}
    for row in table.select(columns).to_pylist():
        found.setdefault(row["array_id"] or row["id"], []).append(row)
    return found


async def remove_folder(
    store: ClusterStore, record: LaunchRecord, launch_program: str, *, has_run: bool = False
) -> str:
    """Remove a launch's folder; return '' once it is gone, else the reason that it stays.

    The folder of a job that `has_run` stays if it contains more than staged files. Never raises
    HpcdashError.
    """
    root, _, name = record.folder.rpartition("/")
    if not root.startswith("/") or name in ("", ".", ".."):
        return "not a launch folder"
    argv = discard_argv(
        root,
        name,
        record.sums,
        has_run=has_run,
        run_as=record.run_as,
        launch_program=launch_program,
    )
    command = ActionCommand(argv, (), lambda answer: (), limit_seconds=_LIMIT_SECONDS)
    try:
        await store.open()
        answer = await store.act(command)
    except HpcdashError as error:
        return error.message
    if answer.status in (0, NOTHING_THERE):
        return ""
    return excerpt(answer.stderr) or "the contents differ from the staged files"


class StoredLaunch(Struct, frozen=True):
    """A launch whose folder exists.

    `state` is completed, ended, unfinished or unknown; `ended_at` is in epoch seconds. `kib` and
    `files` are None if its folder is inaccessible; `reason_to_stay` is '' if it may be removed.
    """

    record: LaunchRecord
    state: str
    ended_at: float | None
    kib: int | None
    files: int | None
    reason_to_stay: str


async def read_stored_launches(
    store: ClusterStore,
    records: LaunchRecords,
    *,
    least_age_seconds: float = 0.0,
    also_failed: bool = False,
) -> tuple[StoredLaunch, ...]:
    """Read the stored launches of this cluster from here, the oldest first.

    A launch may be removed if it completed (or ended, with `also_failed`) that long ago, no
    unfinished job names it, and it holds only staged files and logs. Raises the errors of an
    unreachable cluster, and StateUnusable.
    """
    found = await asyncio.to_thread(records.present)
    if not found:
        return ()
    living = await fetch_living(store, records)
    unread = await asyncio.to_thread(records.unread_checks)
    job_ids = [one.job_id for one in found if one.job_id]
    ended_ids = [one for one in job_ids if parse_job_key(one) not in living.keys]
    ended_ids = list(dict.fromkeys(ended_ids))
    by_job: dict[str, list[Row]] = {}
    for at in range(0, len(ended_ids), _IDS_A_COMMAND):
        table = await fetch_ended(store, ended_ids[at : at + _IDS_A_COMMAND])
        by_job |= await asyncio.to_thread(rows_by_job, table)
    folders: list[InspectedFolder] = []
    for at in range(0, len(found), _FOLDERS_A_COMMAND):
        pairs = [(one.folder, one.sums) for one in found[at : at + _FOLDERS_A_COMMAND]]
        folders += await store.run_query(inspect_query(pairs))
    stored = []
    for record, folder in zip(found, folders, strict=True):
        if not folder.exists and not record.run_as:
            # Its disk may not be mounted: its removal is not certain.
            continue
        rows = [row for row in by_job.get(record.job_id, ()) if belongs_to_launch(row, record)]
        rows = [row for row in rows if not record.name or row["name"] in (None, record.name)]
        state, ended_at = _state(record, rows, living)
        reason = _reason_to_stay(record, state, also_failed=also_failed)
        reason = reason or living.reason_to_stay(record)
        if not reason and ended_at is None:
            reason = "end time unknown"
        elif not reason and ended_at and store.clock.now() < ended_at + least_age_seconds:
            reason = "ended more recently"
        elif not reason and record.job_id in unread:
            reason = "node-check results not read yet"
        stored.append(
            StoredLaunch(
                record=record,
                state=state,
                ended_at=ended_at,
                kib=folder.kib,
                files=folder.files,
                reason_to_stay=reason or folder.reason_to_stay,
            )
        )
    return tuple(stored)


def _state(
    record: LaunchRecord, rows: Sequence[Row], living: LivingJobs
) -> tuple[str, float | None]:
    """Return a launch's state, and the epoch second of its end."""
    key = parse_job_key(record.job_id)
    if key and key in living.keys:
        return "unfinished", None
    if not record.job_id or len(rows) < record.tasks:
        return "unknown", None
    if any(row["state"] not in ENDED for row in rows):
        return "unfinished", None
    ends = [row["ends_at"].timestamp() for row in rows if row["ends_at"] is not None]
    ended_at = max(ends) if len(ends) == len(rows) else None
    return "completed" if has_completed(rows, record.tasks) else "ended", ended_at


def _reason_to_stay(record: LaunchRecord, state: str, *, also_failed: bool) -> str:
    if not record.job_id:
        return "submission status unknown"
    if state == "unknown":
        return "the job's exit status is unknown"
    if state == "unfinished":
        return f"job {record.job_id} has not ended"
    if record.run_as:
        return f"belongs to {record.run_as}"
    return "" if state == "completed" or also_failed else "the job did not complete (--failed)"


async def remove_stored(store: ClusterStore, records: LaunchRecords, launch: StoredLaunch) -> str:
    """Inspect a folder again and remove it; return '' once it is gone, else the reason it stays.

    Raises StateUnusable.
    """
    record = launch.record
    reason = await remove_folder(store, record, "", has_run=True)
    if not reason:
        await asyncio.to_thread(records.removed, record)
    return reason


async def remove_unused_libraries(
    store: ClusterStore, launches: Sequence[StoredLaunch], storage_root: str
) -> tuple[int, int]:
    """Remove the libraries beside these folders and in the storage root that no launch uses.

    Returns their number and their KiB.
    """
    # The library of a function's launch is one level above.
    beside = {one.record.folder.rpartition("/")[0] for one in launches}
    roots = {storage_root, *beside, *(folder.rpartition("/")[0] for folder in beside)} - {""}
    if not roots:
        return 0, 0
    argv = remove_libraries_argv(sorted(roots))
    try:
        answer = await store.act(
            ActionCommand(argv, (), lambda answer: (), limit_seconds=_LIBRARIES_LIMIT_SECONDS)
        )
    except HpcdashError:
        # The next run retries.
        return 0, 0
    sizes = answer.stdout.decode("ascii", "replace").split()
    kib = [int(size) for size in sizes if size.isdecimal()]
    return len(kib), sum(kib)
