"""`hpcdash launches`: lists and removes the folders of launches on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hpcdash.assembly import chosen_site
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import confirm, print_json, print_notes, print_text, require_prompt
from hpcdash.domain.rfc3339 import format_utc
from hpcdash.domain.text import align_cells, clip, counted, visible
from hpcdash.domain.units import format_age, format_memory, parse_duration
from hpcdash.errors import EXIT_REFUSED, UsageError
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.launch_folders import (
    StoredLaunch,
    read_stored_launches,
    remove_stored,
    remove_unused_libraries,
)

_MAX_REASON_LETTERS = 60
_NO_FOLDERS = "No launch folders on this cluster."


def run_list(common: CommonOptions, *, form: str) -> None:
    """Print the launches with a folder."""

    async def work(session: ClusterSession) -> tuple[tuple[StoredLaunch, ...], ClusterSession]:
        return await _read(session, 0.0, also_failed=True), session

    found, session = with_session(common, work)
    if form == "json":
        print_json(_answer(session, found))
    else:
        print_text(_table(found, session.store.clock.now()))
        if not found:
            print(_NO_FOLDERS, file=sys.stderr)


def run_prune(
    common: CommonOptions, *, older_than: str, failed: bool, dry_run: bool, form: str
) -> None:
    """Remove unneeded folders of launches after a confirmation; exits with 1 if one stays."""
    if not dry_run and chosen_site(common).is_read_only:
        raise UsageError(
            "launches prune is disabled: hpcdash is read-only", "--dry-run still works."
        )
    if not (dry_run or common.yes):
        require_prompt("launches prune")
    least_age = _seconds(older_than)

    async def work(
        session: ClusterSession,
    ) -> tuple[ClusterSession, tuple[StoredLaunch, ...], dict[str, str], tuple[int, int]]:
        found = await _read(session, least_age, also_failed=failed)
        unneeded = [launch for launch in found if not launch.reason_to_stay]
        if form != "json" or not (dry_run or common.yes):
            out = sys.stdout if dry_run and form != "json" else sys.stderr
            print(_table(unneeded, session.store.clock.now()), end="", file=out, flush=True)
            if not unneeded:
                print("No folders to remove." if found else _NO_FOLDERS, file=sys.stderr)
            for launch in found:
                if reason := clip(visible(launch.reason_to_stay), _MAX_REASON_LETTERS):
                    print(f"kept {visible(launch.record.folder)}: {reason}", file=sys.stderr)
        if dry_run:
            return session, found, {}, (0, 0)
        if unneeded and not common.yes:
            await confirm()
        records = session.launches.records
        reasons = {}
        for launch in unneeded:
            reasons[launch.record.folder] = await remove_stored(session.store, records, launch)
        # A folder that was removed by hand may have left its library.
        storage_root = session.launches.settings.site.storage_root
        libraries = await remove_unused_libraries(session.store, found, storage_root)
        return session, found, reasons, libraries

    session, found, reasons, (versions, kib) = with_session(common, work)
    if form == "json":
        print_json(_answer(session, found, reasons, versions))
    elif not dry_run:
        removed = [launch for launch in found if reasons.get(launch.record.folder) == ""]
        print(f"removed {counted(len(removed), 'folder')}: {_format_total(removed)}")
        if versions:
            unused = counted(versions, "unused version")
            print(f"removed {unused} of the job library: {_format_size(kib)}")
    for folder, reason in reasons.items():
        if reason:
            print_notes(f"{folder} was not removed: {reason}")
    sys.stdout.flush()
    if any(reasons.values()):
        sys.exit(EXIT_REFUSED)


async def _read(
    session: ClusterSession, least_age: float, *, also_failed: bool
) -> tuple[StoredLaunch, ...]:
    if session.launches.state_folder is None:
        return ()
    await session.store.open(force=True)
    return await read_stored_launches(
        session.store,
        session.launches.records,
        least_age_seconds=least_age,
        also_failed=also_failed,
    )


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text) if text else 0
    except ValueError:
        seconds = None
    if seconds is None:
        raise UsageError(f"--older-than: {text!r} is not a duration", "Use 12h or 14d.")
    return float(seconds)


def _table(found: Sequence[StoredLaunch], now: float) -> str:
    if not found:
        return ""
    rows: list[tuple[str, ...]] = [
        ("JOB", "NAME", "STATE", "ENDED", "SIZE", "FILES", "KEEP", "FOLDER", "")
    ]
    for launch in found:
        ended = ""
        if launch.ended_at is not None:
            ended = f"{format_age(max(0.0, now - launch.ended_at))} ago"
        files = "" if launch.files is None else str(launch.files)
        record = launch.record
        cells = (
            record.job_id or "?",
            record.name,
            launch.state,
            ended,
            _format_size(launch.kib),
            files,
            record.keep,
            record.folder,
            clip(visible(launch.reason_to_stay), _MAX_REASON_LETTERS),
        )
        rows.append(cells)
    total = f"{counted(len(found), 'folder')}: {_format_total(found)}"
    return "\n".join([*align_cells(rows), total, ""])


def _format_total(found: Sequence[StoredLaunch]) -> str:
    files = sum(launch.files or 0 for launch in found)
    kib = sum(launch.kib or 0 for launch in found)
    return f"{_format_size(kib)}, {counted(files, 'file')}"


def _format_size(kib: int | None) -> str:
    return "" if kib is None else format_memory(kib << 10)


def _answer(
    session: ClusterSession,
    found: Sequence[StoredLaunch],
    reasons: dict[str, str] | None = None,
    removed_libraries: int = 0,
) -> dict[str, Any]:
    """Build the JSON answer; `reasons` why a folder stays are None if none was to be removed."""
    now = session.store.clock.now()
    answer: dict[str, Any] = {
        **session.envelope(),
        "rejected_rows": 0,
        "launches": [_as_json(launch, now, reasons) for launch in found],
    }
    if reasons is not None:
        answer["libraries_removed"] = removed_libraries
    return answer


def _as_json(launch: StoredLaunch, now: float, reasons: dict[str, str] | None) -> dict[str, Any]:
    record = launch.record
    ended_at = None
    age_seconds = None
    if launch.ended_at is not None:
        ended_at = format_utc(launch.ended_at)
        age_seconds = round(now - launch.ended_at)
    row: dict[str, Any] = {
        "job_id": record.job_id or None,
        "name": record.name,
        "folder": visible(record.folder),
        "state": launch.state,
        "keep": record.keep,
        "ended_at": ended_at,
        "age_seconds": age_seconds,
        "bytes": None if launch.kib is None else launch.kib << 10,
        "files": launch.files,
        "kept_because": visible(launch.reason_to_stay) or None,
    }
    if reasons is not None:
        row["removed"] = reasons.get(record.folder) == ""
        row["kept_because"] = row["kept_because"] or visible(reasons.get(record.folder, "")) or None
    return row
