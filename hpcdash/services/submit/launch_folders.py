"""Folders of launches on a cluster: which are there, which may be removed, and their removal.

A launch that was refused is removed at once, one that has ended as its `keep` says, any other by a
person.
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
from hpcdash.domain.job_ids import parse_job_number
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


async def tidy_folders(
    store: ClusterStore, records: LaunchRecords, launch_program: str, *, every_seconds: float = 0.0
) -> tuple[str, ...]:
    """Remove the folders of launches that completed, those of other accounts with root's
    `launch_program` there.

    One question for those that may have ended; none where one was asked within the last
    `every_seconds`, from here or by another program.

    Raises what keeps the cluster from answering, and StateUnusable.
    """
    waiting = await asyncio.to_thread(records.unsettled)
    mine = store.snapshots.get(Kind.MINE)
    ids = [record.job_id for record in waiting]
    alive = frozenset() if mine is None or mine.cached else unfinished_ids(mine.table, ids)
    stay = alive | await asyncio.to_thread(records.unread_checks)
    completed = await asyncio.to_thread(records.completed_at)
    now = store.clock.now()
    due = [
        one
        for one in waiting
        if one.folder in completed and now >= completed[one.folder] + parse_keep_seconds(one.keep)
    ]
    may_have_ended = [
        one for one in waiting if one.job_id not in stay and one.folder not in completed
    ]
    may_have_ended = may_have_ended[:_IDS_A_COMMAND]
    if not (may_have_ended or due) or not await asyncio.to_thread(
        records.is_check_due, every_seconds
    ):
        return ()
    ended = JOBS.empty_table()
    if may_have_ended:
        ended = await fetch_ended(store, [record.job_id for record in may_have_ended])
    by_job = await asyncio.to_thread(rows_by_job, ended)
    living: LivingJobs | None = None
    reported = []
    for record in (*due, *may_have_ended):
        rows = [row for row in by_job.get(record.job_id, ()) if belongs_to_launch(row, record)]
        if (
            record.keep not in ("failed", "nothing")
            and record not in due
            and has_completed(rows, record.tasks)
        ):
            ends = [row["ends_at"].timestamp() if row["ends_at"] else now for row in rows]
            await asyncio.to_thread(records.completed, record, max(ends))
            continue
        if record in due or has_completed(rows, record.tasks) or record.keep == "nothing":
            living = living or await fetch_living(store, records)
            if living.names(record):
                continue
        if not rows and record not in due and store.clock.now() - record.at > _FORGOTTEN_SECONDS:
            await asyncio.to_thread(records.stays, record, "its exit is unknown")
        elif (is_done := record in due or has_completed(rows, record.tasks)) or (
            record.keep == "nothing" and has_failed(rows, record.tasks)
        ):
            how = "completed" if is_done else "ended"
            left = await remove_folder(store, record, launch_program, has_run=True)
            if left:
                reported.append(
                    f"job {record.job_id} {how}, but its files remain in {record.folder}: {left}"
                )
                await asyncio.to_thread(records.stays, record, left)
            else:
                reported.append(f"job {record.job_id} {how}: removed {record.folder}")
                await asyncio.to_thread(records.removed, record)
        elif has_failed(rows, record.tasks):
            await asyncio.to_thread(records.stays, record, "it did not complete")
    return tuple(reported)


def has_completed(rows: Sequence[Row], tasks: int) -> bool:
    """Whether each of so many jobs is known as completed."""
    return len(rows) >= tasks and all(row["state"] == JobState.COMPLETED for row in rows)


def has_failed(rows: Sequence[Row], tasks: int) -> bool:
    """Whether all there is has ended, and not all of it well."""
    return all(row["state"] in ENDED for row in rows) and any(
        row["state"] in ENDED and row["state"] != JobState.COMPLETED for row in rows
    )


def unfinished_ids(table: pa.Table, job_ids: Sequence[str]) -> frozenset[str]:
    """Return those of the IDs of jobs and arrays of which a row of domain.schema.JOBS has not
    ended.
    """
    number = pc.coalesce(table["array_id"], table["id"])
    rows = table.select(["state"]).append_column("number", number)
    rows = rows.filter(pc.is_in(number, value_set=pa.array(job_ids, pa.string())))
    return frozenset(row["number"] for row in rows.to_pylist() if row["state"] not in ENDED)


async def fetch_ended(store: ClusterStore, job_ids: Sequence[str]) -> pa.Table:
    """Jobs and arrays as the history has them; where there is none, as the scheduler still knows
    them.
    """
    if store.probe is None or store.probe.has_accounting is not False:
        try:
            return (await store.poll(store.backend.history.jobs(None, 0, job_ids))).table
        except (AccountingUnavailable, CommandMissing):
            pass
        except NoSuchJob:
            # PBS hides jobs of others where query_other_jobs is off.
            return JOBS.empty_table()
    try:
        return (
            await store.poll(store.backend.queue.jobs(JobScope(job_ids=tuple(job_ids), ended=True)))
        ).table
    except NoSuchJob:
        return JOBS.empty_table()


class LivingJobs(Struct, frozen=True):
    """One's jobs that have not ended, and the requests of those that were launched from here."""

    rows: tuple[Row, ...]
    requests: tuple[str, ...]

    def names(self, record: LaunchRecord) -> str:
        """Return the reason that a launch's folder may be needed; '' if no known job names it.

        Links of a chain and resubmitted jobs run the script of an earlier job, and have its name.
        """
        number = re.compile(rf"(?<![0-9]){re.escape(parse_job_number(record.job_id))}(?![0-9])")
        below = f"{record.folder}/"
        for row in self.rows:
            job_id = str(row["id"])
            if parse_job_number(job_id) == parse_job_number(record.job_id):
                return f"job {job_id} has not ended"
            if record.name and row["name"] == record.name:
                return f"job {job_id} has its name"
            if number.search(str(row["dependency"] or "")):
                return f"job {job_id} waits for it"
            if f"{row['work_dir'] or ''}/".startswith(below):
                return f"job {job_id} works in it"
        return (
            "an unfinished job names it"
            if any(record.folder in one for one in self.requests)
            else ""
        )


async def fetch_living(store: ClusterStore, records: LaunchRecords) -> LivingJobs:
    """Raises what keeps the cluster from answering, and StateUnusable."""
    snapshot = await store.fetch(Kind.MINE)
    rows = tuple(row for row in snapshot.table.to_pylist() if row["state"] not in ENDED)
    numbers = {parse_job_number(str(row["id"])) for row in rows}
    launched = await asyncio.to_thread(records.all)
    return LivingJobs(
        rows, tuple(one.request for one in launched if parse_job_number(one.job_id) in numbers)
    )


def parse_keep_seconds(keep: str) -> float:
    """Parse how many seconds a folder is kept after the end; infinity if `keep` names no days."""
    found = KEPT_DAYS.fullmatch(keep)
    return int(found[1]) * 86400.0 if found else math.inf


def belongs_to_launch(row: Row, record: LaunchRecord) -> bool:
    """Whether a job is that of a launch: numbers begin anew where a scheduler was installed
    anew.
    """
    submitted = row["submitted_at"]
    return submitted is None or submitted.timestamp() >= record.at - CLOCKS_APART.total_seconds()


def rows_by_job(table: pa.Table) -> dict[str, list[Row]]:
    """Rows by their array, or their own id."""
    found: dict[str, list[Row]] = {}
    for row in table.select(
        ["id", "array_id", "name", "state", "submitted_at", "ends_at"]
    ).to_pylist():
        found.setdefault(row["array_id"] or row["id"], []).append(row)
    return found


async def remove_folder(
    store: ClusterStore, record: LaunchRecord, launch_program: str, *, has_run: bool = False
) -> str:
    """Remove a launch's folder; '' once it does not exist any more, else why it stays.

    One that `has_run` stays where it holds more than was staged. Raises nothing of HpcdashError.
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
        gone = await store.act(command)
    except HpcdashError as error:
        return error.message
    if gone.status in (0, NOTHING_THERE):
        return ""
    return excerpt(gone.stderr) or "its contents are not what was staged"


class StoredLaunch(Struct, frozen=True):
    """A launch whose folder exists.

    `state` is completed, ended, unfinished or unknown; `ended_at` in epoch seconds.

    `kib` and `files` are None where its folder cannot be seen; `reason_to_stay` is '' where it may
    be removed.
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
    alive = {parse_job_number(str(row["id"])) for row in living.rows}
    ids = [one.job_id for one in found if one.job_id and parse_job_number(one.job_id) not in alive]
    by_job: dict[str, list[Row]] = {}
    ids = list(dict.fromkeys(ids))
    for at in range(0, len(ids), _IDS_A_COMMAND):
        table = await fetch_ended(store, ids[at : at + _IDS_A_COMMAND])
        by_job |= await asyncio.to_thread(rows_by_job, table)
    folders: list[InspectedFolder] = []
    for at in range(0, len(found), _FOLDERS_A_COMMAND):
        pairs = [(one.folder, one.sums) for one in found[at : at + _FOLDERS_A_COMMAND]]
        folders += await store.run_query(inspect_query(pairs))
    stored = []
    for record, folder in zip(found, folders, strict=True):
        if not folder.is_there and not record.run_as:
            # Its disk may not be mounted: its removal is not certain.
            continue
        rows = [row for row in by_job.get(record.job_id, ()) if belongs_to_launch(row, record)]
        rows = [row for row in rows if not record.name or row["name"] in (None, record.name)]
        state, ended_at = _state(record, rows, living)
        reason = _reason_to_stay(record, state, also_failed=also_failed) or living.names(record)
        if not reason and (ended_at is None or store.clock.now() < ended_at + least_age_seconds):
            reason = "it ended later than that" if ended_at else "its end time is unknown"
        if not reason and record.job_id in unread:
            reason = "its findings on nodes were not read yet"
        stored.append(
            StoredLaunch(
                record, state, ended_at, folder.kib, folder.files, reason or folder.reason_to_stay
            )
        )
    return tuple(stored)


def _state(
    record: LaunchRecord, rows: Sequence[Row], living: LivingJobs
) -> tuple[str, float | None]:
    number = parse_job_number(record.job_id)
    if number and any(parse_job_number(str(row["id"])) == number for row in living.rows):
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
        return "unknown whether it was submitted"
    if state == "unknown":
        return "the exit of its job is unknown"
    if state == "unfinished":
        return f"job {record.job_id} has not ended"
    if record.run_as:
        return f"it is {record.run_as}'s"
    return "" if state == "completed" or also_failed else "its job did not complete (--failed)"


async def remove_stored(store: ClusterStore, records: LaunchRecords, launch: StoredLaunch) -> str:
    """Remove a folder, which is looked at once more; '' where it is gone, else why it stays.

    Raises StateUnusable.
    """
    record = launch.record
    left = await remove_folder(store, record, "", has_run=True)
    if not left:
        await asyncio.to_thread(records.removed, record)
    return left


async def remove_unused_libraries(
    store: ClusterStore, launches: Sequence[StoredLaunch], storage_root: str
) -> tuple[int, int]:
    """Remove the libraries beside these folders, and in the storage root, that no launch has: (how
    many, how many KiB).
    """
    # A function's launch has its library one level above.
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
        # It is checked another time.
        return 0, 0
    sizes = [
        int(line) for line in answer.stdout.decode("ascii", "replace").split() if line.isdecimal()
    ]
    return len(sizes), sum(sizes)
