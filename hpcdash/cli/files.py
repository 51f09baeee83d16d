"""`hpcdash files`, `get`: the files of a job, and copies of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from hpcdash.cli.jobs import print_table, with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_notes
from hpcdash.domain import query
from hpcdash.domain.schema import FILES as FILES_SCHEMA
from hpcdash.domain.schema import TRANSFERS as TRANSFERS_SCHEMA
from hpcdash.domain.spans import LOCAL_ZONE
from hpcdash.domain.tables import FILES, TRANSFERS, Kind
from hpcdash.domain.text import clip, counted
from hpcdash.domain.units import format_memory
from hpcdash.errors import EXIT_REFUSED
from hpcdash.services.cluster.snapshots import Snapshot
from hpcdash.services.job_files.checkpoints import judge_checkpoints
from hpcdash.services.job_files.download import Download, RemoteFile, Transfer, select_files
from hpcdash.services.job_files.listing import (
    build_folders_table,
    build_table,
    fetch_job_folders,
    folder_query,
    show_path,
    to_bytes,
)
from hpcdash.services.session import ClusterSession

_PROGRESS_SECONDS = 0.5
_NAME_CELLS = 40


def run_files(
    common: CommonOptions, job: str, path: str | None, *, expression: str, form: str
) -> None:
    """Print the folders of a job, or the entries of one, newest first."""
    requested = query.parse(expression, FILES_SCHEMA, LOCAL_ZONE)

    async def work(session: ClusterSession) -> tuple[pa.Table, ClusterSession]:
        await session.store.open()
        folders = await fetch_job_folders(session, job)
        if path is None:
            return build_folders_table(folders), session
        found = await session.store.run_query(folder_query(folders.resolve(to_bytes(path))))
        print_notes(*found.notes)
        return build_table(found, await judge_checkpoints(session.store, found)), session

    table, session = with_session(common, work)
    now = session.store.clock.now()
    table = query.apply(table, requested, now)
    print_table(FILES, Snapshot(Kind.MINE, table, now), form, session)
    if form == "table" and not table.num_rows:
        print(FILES.empty, file=sys.stderr)


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
    table = pa.Table.from_pylist(rows, TRANSFERS_SCHEMA)
    snapshot = Snapshot(Kind.MINE, table, session.store.clock.now())
    print_table(TRANSFERS, snapshot, form, session)
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

    def note(self, file: RemoteFile, done: int, size: int) -> None:
        self._done += done - self._sizes.get(file.to, 0)
        self._sizes[file.to] = done
        if not self._is_shown or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _PROGRESS_SECONDS
        self._is_open = True
        total = max(self._total, self._done)
        share = 100 * self._done // total if total else 100
        name = clip(show_path(file.to), _NAME_CELLS)
        text = f"{share:3d}%  {format_memory(self._done)} of {format_memory(total)}  {name}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line."""
        if self._is_open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
