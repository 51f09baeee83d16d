"""`hpcdash files`, `get`, `put` and `sync`: the files of a job, and copies of them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from hpcdash.backends.actions import Outcome
from hpcdash.cli.actions import (
    exit_status,
    outcome_entries,
    refuse_read_only,
    refuse_unnamed_cluster,
)
from hpcdash.cli.jobs import print_table, with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.tables import print_rows
from hpcdash.cli.terminal import confirm, print_json, print_notes, print_text, require_prompt
from hpcdash.config.read import load_settings
from hpcdash.domain import query
from hpcdash.domain.schema import FILES as FILES_SCHEMA
from hpcdash.domain.schema import TRANSFERS as TRANSFERS_SCHEMA
from hpcdash.domain.spans import LOCAL_ZONE
from hpcdash.domain.states import ENDED
from hpcdash.domain.tables import FILES, TRANSFERS, Kind, TableSpec
from hpcdash.domain.text import clip, counted, visible
from hpcdash.domain.units import format_memory, parse_duration
from hpcdash.errors import EXIT_REFUSED, CommandTimedOut, UnreachableError, UsageError
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.job_files.checkpoints import judge_checkpoints
from hpcdash.services.job_files.delete import plan_deletion
from hpcdash.services.job_files.download import (
    NEEDS_A_PERSON,
    Download,
    Transfer,
    select_files,
)
from hpcdash.services.job_files.listing import (
    build_folders_table,
    build_table,
    fetch_job_folders,
    folder_query,
    show_path,
    to_bytes,
)
from hpcdash.services.job_files.sync import FolderSync
from hpcdash.services.job_files.upload import Upload, find_local_files
from hpcdash.services.session import ClusterSession

_PROGRESS_SECONDS = 0.5
_NAME_CELLS = 40
_SHORTEST_PAUSE_SECONDS = 5


def run_files(
    common: CommonOptions,
    job: str,
    paths: Sequence[str],
    *,
    expression: str,
    delete: bool,
    form: str,
) -> None:
    """Print the folders of a job, or the entries of one, newest first; or delete files."""
    if delete:
        _run_delete(common, job, paths, form)
        return
    if len(paths) > 1:
        raise UsageError("specify one folder to list", "Several can be deleted with --delete.")
    requested = query.parse(expression, FILES_SCHEMA, LOCAL_ZONE)

    async def work(session: ClusterSession) -> tuple[pa.Table, ClusterSession]:
        await session.store.open()
        folders = await fetch_job_folders(session, job)
        if not paths:
            return build_folders_table(folders), session
        path = folders.resolve(to_bytes(paths[0]))
        found = await session.store.run_query(folder_query(path))
        print_notes(*found.notes)
        return build_table(found, await judge_checkpoints(session.store, found)), session

    table, session = with_session(common, work)
    now = session.store.clock.now()
    table = query.apply(table, requested, now)
    _print_table(FILES, table, session, form)
    if form == "table" and not table.num_rows:
        print(FILES.empty, file=sys.stderr)


def _run_delete(common: CommonOptions, job: str, paths: Sequence[str], form: str) -> None:
    """Delete files of a job after a confirmation; exits with 1 if one was not deleted."""
    refuse_read_only(common, load_settings(common.config), "files --delete")
    if not paths:
        raise UsageError("--delete needs the paths to delete")
    if not common.yes:
        require_prompt("files --delete")

    async def work(session: ClusterSession) -> tuple[tuple[Outcome, ...], ClusterSession]:
        await session.store.open(force=True)
        refuse_unnamed_cluster(session, [job])
        folders = await fetch_job_folders(session, job)
        deletion = await plan_deletion(session, folders, [to_bytes(path) for path in paths])
        lines = [f"{deletion.title} on {visible(session.name)}", *deletion.lines]
        print("\n  ".join(lines), file=sys.stderr)
        if not common.yes:
            await confirm()
        report = await session.actions.run(deletion.plan)
        print_notes(report.journal_problem)
        return report.outcomes, session

    outcomes, session = with_session(common, work)
    if form == "json":
        print_json({**session.envelope(), "results": outcome_entries(outcomes)})
    else:
        for outcome in outcomes:
            print(visible(outcome.text), file=sys.stdout if outcome.done else sys.stderr)
    if status := exit_status(outcomes):
        sys.exit(status)


def run_get(
    common: CommonOptions, job: str, paths: Sequence[str], *, to: str, force: bool, form: str
) -> None:
    """Copy files of a job to a folder of this machine; exits with 1 if one was not copied."""
    target = Path(to)

    async def work(session: ClusterSession) -> tuple[list[Transfer], ClusterSession]:
        await session.store.open()
        folders = await fetch_job_folders(session, job)
        selection = await select_files(session.store, folders, [to_bytes(path) for path in paths])
        progress = Progress(selection.total)
        copying = Download(
            session.store,
            target,
            may_replace=lambda file, found: force,
            on_progress=progress.note,
        )
        try:
            copied = await copying.run(selection.files)
        finally:
            progress.end()
        return [*copied, *selection.skipped], session

    results, session = with_session(common, work)
    _print_transfers(results, session, form)


def run_put(
    common: CommonOptions, job: str, paths: Sequence[str], *, to: str, force: bool, form: str
) -> None:
    """Copy files of this machine to a folder of a job; exits with 1 if one was not copied."""
    refuse_read_only(common, load_settings(common.config), "put")
    files, skipped = find_local_files([os.fsencode(path) for path in paths])

    async def work(session: ClusterSession) -> tuple[list[Transfer], ClusterSession]:
        await session.store.open(force=True)
        refuse_unnamed_cluster(session, [job])
        folders = await fetch_job_folders(session, job)
        found = await session.store.run_query(folder_query(folders.resolve(to_bytes(to))))
        if found.is_file:
            raise UsageError(f"{show_path(to_bytes(to))} is not a folder there")
        progress = Progress(sum(file.size for file in files))
        copying = Upload(
            session, folders.job_id, found.path, force=force, on_progress=progress.note
        )
        try:
            copied = await copying.run(files)
        finally:
            progress.end()
        return [*copied, *skipped], session

    results, session = with_session(common, work)
    _print_transfers(results, session, form)


def run_sync(
    common: CommonOptions, job: str, folder: str, *, to: str | None, every: str, once: bool
) -> None:
    """Bring a folder of a job as it grows, until the job has ended; print what was brought.

    Exits with 1 if a file was left or failed in the last round.
    """
    pause = parse_duration(every)
    if pause is None or pause < _SHORTEST_PAUSE_SECONDS:
        raise UsageError(f"--every {every}: at least {_SHORTEST_PAUSE_SECONDS} s")

    async def work(session: ClusterSession) -> bool:
        await session.store.open()
        folders = await fetch_job_folders(session, job)
        found = await session.store.run_query(folder_query(folders.resolve(to_bytes(folder))))
        if found.is_file:
            raise UsageError(f"{show_path(to_bytes(folder))} is not a folder")
        target = Path(to) if to is not None else Path(os.fsdecode(os.path.basename(found.path)))
        progress = Progress(0)
        syncing = FolderSync(session, found.path, target, progress.note)
        reported: dict[bytes, str] = {}
        while True:
            # The state before the files: nothing is written after the end.
            has_ended = once or str(folders.row["state"]) in ENDED
            try:
                brought = await syncing.bring()
                progress.end()
                for one in brought:
                    text = f"{one.result}  {show_path(one.name)}  {one.problem}".rstrip()
                    if not one.is_failure or reported.get(one.name) != text:
                        print_text(f"{text}\n")
                    reported[one.name] = text
                if has_ended:
                    return any(one.is_failure for one in brought)
                await asyncio.sleep(pause)
                folders = await fetch_job_folders(session, job)
            except NEEDS_A_PERSON:
                raise
            except (UnreachableError, CommandTimedOut) as error:
                if once:
                    raise
                print_notes(f"{error.message} Retrying.")
                await asyncio.sleep(pause)

    if with_session(common, work):
        sys.exit(EXIT_REFUSED)


def _print_table(spec: TableSpec, table: pa.Table, session: ClusterSession, form: str) -> None:
    """Print a table, as text without its empty optional columns."""
    now = session.store.clock.now()
    if form != "table":
        print_table(spec, Snapshot(Kind.MINE, table, now), form, session)
        return
    columns = [
        name
        for name in spec.printed or spec.shown
        if (field := spec.sort_field(name)) not in spec.optional
        or table[field].null_count < table.num_rows
    ]
    print_rows(spec, table, form, utc_now=now, columns=columns)


def _print_transfers(results: Sequence[Transfer], session: ClusterSession, form: str) -> None:
    """Print what became of files, exit with 1 if one was not copied."""
    rows = [
        {
            "name": show_path(one.name),
            "result": one.result,
            "size_bytes": one.size,
            "problem": one.problem or None,
            "path": show_path(one.path) if one.path else None,
            "to": show_path(to_bytes(one.to)) if one.to else None,
        }
        for one in results
    ]
    _print_table(TRANSFERS, pa.Table.from_pylist(rows, TRANSFERS_SCHEMA), session, form)
    if not rows:
        print_notes(TRANSFERS.empty)
    if failed := sum(one.is_failure for one in results):
        print_notes(f"{counted(failed, 'file')} not copied")
        sys.exit(EXIT_REFUSED)


class Progress:
    """Line on the terminal with the file that is copied, and how much of all."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._sizes: dict[bytes, int] = {}
        self._done = 0
        self._next_at = time.monotonic() + _PROGRESS_SECONDS
        self._is_shown = sys.stderr.isatty()
        self._is_open = False

    def note(self, name: bytes, done: int, size: int) -> None:
        """Show the line from time to time: `done` bytes of a file are there."""
        self._done += done - self._sizes.get(name, 0)
        self._sizes[name] = done
        if not self._is_shown or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _PROGRESS_SECONDS
        self._is_open = True
        total = max(self._total, self._done)
        share = 100 * self._done // total if total else 100
        shown = clip(show_path(name), _NAME_CELLS)
        text = f"{share:3d}%  {format_memory(self._done)} of {format_memory(total)}  {shown}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line."""
        if self._is_open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
