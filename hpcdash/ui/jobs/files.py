"""Files of a job: its folders, and the entries of a folder, listed when opened and at ctrl+r."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from hpcdash.domain.tables import FILES
from hpcdash.domain.text import clip_path, visible
from hpcdash.domain.units import format_memory
from hpcdash.errors import HpcdashError, UnreadableOutput
from hpcdash.services.job_files.checkpoints import judge_checkpoints
from hpcdash.services.job_files.data_table import (
    MAX_BYTES,
    DataTable,
    fetch_data_table,
    is_data_file,
)
from hpcdash.services.job_files.listing import (
    BROKEN,
    Folder,
    JobFolders,
    build_folders_table,
    build_table,
    decode_path,
    encode_path,
    fetch_job_folders,
    folder_query,
    show_path,
    to_text,
)
from hpcdash.services.session import ClusterSession
from hpcdash.ui.table_view import TableView
from hpcdash.ui.widgets import cells
from hpcdash.ui.workers import start_worker

_CRUMB_CELLS = 60
_WAY_CELLS = 24


def name_cell(value: str, row: cells.RowContext) -> cells.Cell:
    """Return the name, with a slash after that of a folder."""
    if row["kind"] == "folder":
        return f"{value}/", cells.STRONG
    return (value, cells.MUTED) if row["kind"] != "file" else value


def checkpoint_cell(value: str | None, row: cells.RowContext) -> cells.Cell:
    if value is None:
        return ""
    return value, cells.BAD if value == BROKEN else cells.GOOD


class FilesView(TableView):
    """The folders of a job; with `path`, percent-encoded, the entries of that folder."""

    SPEC = FILES
    NEWEST_FIRST = True

    def __init__(
        self, session: ClusterSession, *, job_id: str, path: str = "", **rest: Any
    ) -> None:
        super().__init__(session, **rest)
        self.job_id = job_id
        self.folders: JobFolders | None = None
        # Its real path is known once it is listed.
        self.folder: Folder | None = None
        self._path = decode_path(path)
        self._table: pa.Table | None = None

    def on_mount(self) -> None:
        self.do_refresh()

    def source(self) -> pa.Table | None:
        return self._table

    def cell_functions(self) -> Mapping[str, cells.CellFunction]:
        return {"name": name_cell, "checkpoint": checkpoint_cell}

    def placeholder(self) -> str:
        return "The folder is empty. Press q to go back"

    def scope_crumbs(self) -> Sequence[str]:
        path = self._path if self.folder is None else self.folder.path
        if path:
            return (self.job_id, clip_path(show_path(path), _CRUMB_CELLS))
        return ("files", self.job_id)

    def way_crumb(self) -> str:
        return clip_path(show_path(os.path.basename(self._path)), _WAY_CELLS) or "files"

    def row_hint(self, row: Mapping[str, Any]) -> str:
        parts = [row["path"]]
        if row["target"]:
            parts.append(f"a link to {row['target']}")
        if row["size_bytes"] is not None:
            parts.append(format_memory(row["size_bytes"]))
        if row["checkpoint"]:
            problem = f": {visible(row['problem'])}" if row["problem"] else ""
            parts.append(f"{row['format']} checkpoint, {row['checkpoint']}{problem}")
        elif row["format"]:
            parts.append(row["format"])
        return "  ·  ".join(parts)

    def pointed_job(self) -> str | None:
        return self.job_id

    def do_refresh(self) -> bool:
        start_worker(self, self._fetch, group="fetch", exclusive=True)
        return True

    async def _fetch(self) -> None:
        store = self.session.store
        try:
            if self.folders is None or not self._path:
                self.folders = await fetch_job_folders(self.session, self.job_id)
            if self._path:
                folder = await store.run_query(folder_query(self._path))
                # Large folders are shown before their checkpoints are judged.
                await self._show_folder(folder, {})
                await self._show_folder(folder, await judge_checkpoints(store, folder))
            else:
                self._table = build_folders_table(self.folders)
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        else:
            self._error = None
            self._taken_at = store.clock.now()
        self.reload()

    async def _show_folder(self, folder: Folder, judgements: Mapping[bytes, Any]) -> None:
        self._table = await asyncio.to_thread(build_table, folder, judgements)
        self.folder = folder
        self.reload()

    def open_row(self, row_id: str, row: Mapping[str, Any]) -> None:
        if row["kind"] == "folder":
            self._open_folder(row_id)
        elif row["kind"] == "file":
            self._open_file(row_id)
        elif row["kind"] == "link":
            start_worker(self, self._open_link, row_id, group="open", exclusive=True)
        else:
            self.show_notice("not a regular file")

    async def _open_link(self, path: str) -> None:
        """Open what a link leads to; the crumbs show where that is."""
        try:
            found = await self.session.store.run_query(folder_query(decode_path(path)))
        except HpcdashError as error:
            self.show_notice(error.message)
            return
        if found.is_file:
            self._open_file(path)
        else:
            self._open_folder(encode_path(found.path))

    def _open_folder(self, path: str) -> None:
        self.post_message(self.Requested("files", job_id=self.job_id, path=path))

    def _open_file(self, path: str) -> None:
        if is_data_file(decode_path(path)):
            start_worker(self, self._open_rows, path, group="open", exclusive=True)
        else:
            self._open_text(path)

    async def _open_rows(self, path: str) -> None:
        """Open the rows of a file as a table; as text if there are none."""
        try:
            rows = await fetch_data_table(self.session.store, decode_path(path))
        except UnreadableOutput:
            self._open_text(path)
        except HpcdashError as error:
            self.show_notice(error.message)
        else:
            self.post_message(
                self.Requested("data", job_id=self.job_id, path=path, rows=rows, spec=rows.spec)
            )

    def _open_text(self, path: str) -> None:
        self.post_message(
            self.Requested("log", job_id=self.job_id, path=to_text(decode_path(path)))
        )

    def selected_paths(self) -> list[bytes]:
        """Return the paths of the marked rows, else of the one under the cursor."""
        rows = self.rows
        cursor_id = rows.cursor_id
        ids = rows.marked or ({cursor_id} if cursor_id is not None else set())
        return [decode_path(row_id) for row_id in sorted(ids)]

    def do_copy(self) -> None:
        if (row := self.rows.cursor_row) is not None:
            self.app.copy_to_clipboard(str(row["path"]))
            self.notify(f"copied {row['path']}")


class DataView(TableView):
    """The rows of a CSV or JSON lines file, read when opened and at ctrl+r."""

    def __init__(
        self, session: ClusterSession, *, job_id: str, path: str, rows: DataTable, **rest: Any
    ) -> None:
        super().__init__(session, **rest)
        self.job_id = job_id
        self._path = decode_path(path)
        self._rows = rows

    def on_mount(self) -> None:
        self._taken_at = self.session.store.clock.now()
        self.reload()

    def source(self) -> pa.Table | None:
        return self._rows.table

    def scope_crumbs(self) -> Sequence[str]:
        return (self.job_id, clip_path(show_path(self._path), _CRUMB_CELLS))

    def row_hint(self, row: Mapping[str, Any]) -> str:
        cut = f"only the first {format_memory(MAX_BYTES)} are shown" if self._rows.is_cut else ""
        return "  ·  ".join(filter(None, (f"row {row['row']}", cut)))

    def pointed_job(self) -> str | None:
        return self.job_id

    def do_refresh(self) -> bool:
        start_worker(self, self._fetch, group="fetch", exclusive=True)
        return True

    async def _fetch(self) -> None:
        try:
            rows = await fetch_data_table(self.session.store, self._path)
        except HpcdashError as error:
            self._error = error.with_traceback(None)
        else:
            self._error = None
            self._taken_at = self.session.store.clock.now()
            if rows.spec.fields == self._rows.spec.fields:
                self._rows = rows
            else:
                self.show_notice("the columns changed: open the file again")
        self.reload()
