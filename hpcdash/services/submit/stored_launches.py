"""The folders that launches of a cluster left there: how large and old they are, and which may be
removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from hpcdash.backends.actions import ActionCommand
from hpcdash.domain.job_ids import parse_job_number
from hpcdash.domain.states import ENDED
from hpcdash.errors import HpcdashError
from hpcdash.services.cluster.store import ClusterStore
from hpcdash.services.submit.cleanup import (
    LivingJobs,
    Row,
    belongs_to_launch,
    fetch_ended,
    fetch_living,
    has_completed,
    remove_folder,
    rows_by_job,
)
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.submit.staging import InspectedFolder, inspect_query, remove_libraries_argv

_FOLDERS_A_COMMAND = 50
_IDS_A_COMMAND = 100
_LIMIT_SECONDS = 120.0


class StoredLaunch(Struct, frozen=True):
    """A launch whose folder is there.

    `state` is completed, ended, unfinished or unknown; `ended_at` in epoch seconds.

    `kib` and `files` are None where its folder cannot be seen; `reason_kept` is '' where it may be
    removed.
    """

    record: LaunchRecord
    state: str
    ended_at: float | None
    kib: int | None
    files: int | None
    reason_kept: str


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
        folders += await store.ask(inspect_query(pairs))
    stored = []
    for record, folder in zip(found, folders, strict=True):
        if not folder.is_there and not record.run_as:
            # Its disk may not be mounted: its removal is not certain.
            continue
        rows = [row for row in by_job.get(record.job_id, ()) if belongs_to_launch(row, record)]
        rows = [row for row in rows if not record.name or row["name"] in (None, record.name)]
        state, ended_at = _state(record, rows, living)
        why = _reason_kept(record, state, also_failed=also_failed) or living.names(record)
        if not why and (ended_at is None or store.clock.now() < ended_at + least_age_seconds):
            why = "it ended later than that" if ended_at else "when it ended is not known"
        if not why and record.job_id in unread:
            why = "what it found of nodes is not read yet"
        stored.append(
            StoredLaunch(
                record, state, ended_at, folder.kib, folder.files, why or folder.reason_kept
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


def _reason_kept(record: LaunchRecord, state: str, *, also_failed: bool) -> str:
    if not record.job_id:
        return "whether it was submitted is not known"
    if state == "unknown":
        return "how its job ended is not known"
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
    left = await remove_folder(store, record.folder, record.sums, record.run_as, "", has_run=True)
    if not left:
        await asyncio.to_thread(records.removed, record)
    return left


async def remove_unused_libraries(store: ClusterStore, roots: Sequence[str]) -> tuple[int, int]:
    """Remove each library that no launch below these folders has: (how many, how many KiB)."""
    argv = remove_libraries_argv(roots)
    try:
        answer = await store.act(
            ActionCommand(argv, (), lambda answer: (), limit_seconds=_LIMIT_SECONDS)
        )
    except HpcdashError:
        # It is checked another time.
        return 0, 0
    sizes = [
        int(line) for line in answer.stdout.decode("ascii", "replace").split() if line.isdecimal()
    ]
    return len(sizes), sum(sizes)


def library_roots(launches: Sequence[StoredLaunch]) -> tuple[str, ...]:
    """The folders that launches may have their library below: their own, and one above, of a
    function's.
    """
    found: dict[str, None] = {}
    for one in launches:
        parent = one.record.folder.rpartition("/")[0]
        found |= dict.fromkeys(filter(None, (parent, parent.rpartition("/")[0])))
    return tuple(found)
