"""Local records of a job's launch: its folder, switches and checkpoints, its call and result.

Queries no cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdash.backends.script.allocation import KIND
from hpcdash.backends.script.call import format_items, result_path
from hpcdash.backends.script.folder import PACKAGES_NAME, PROVENANCE_NAME
from hpcdash.backends.script.resume import task_folder
from hpcdash.domain.job_ids import parse_task_part
from hpcdash.domain.request import Request
from hpcdash.domain.switches import SwitchKind, absolute_path
from hpcdash.domain.text import clip
from hpcdash.errors import UsageError
from hpcdash.services.state.database import StateUnusable
from hpcdash.services.submit.launch_records import LaunchRecord, LaunchRecords
from hpcdash.services.switches.names import requested_switch

Row = Mapping[str, Any]
_MAX_ITEM_LETTERS = 200


class LaunchedJob(Struct, frozen=True):
    """Paths are there, absolute where that is known; '' for none.

    `item` is the one of `items` that a task has.

    Where it `has_siblings` tasks, of an array as a whole, `item_index` is None, and N in
    `result_path` and `error_path` (and %a in `checkpoints`) stands for the task.
    """

    folder: str
    checkpoints: str = ""
    kill_switch: str = ""
    save_switch: str = ""
    function: str = ""
    items: int = 0
    item_index: int | None = None
    item: Any = None
    result_path: str = ""
    error_path: str = ""
    has_siblings: bool = False
    # It waits for runs, or did.
    is_allocation: bool = False
    code: str = ""
    code_files: tuple[str, ...] = ()

    def for_json(self) -> dict[str, Any]:
        """The same by name; null for what there is none of, and for paths in which something stands
        for the task.
        """
        return {
            "folder": self.folder,
            "function": self.function or None,
            "items": self.items or None,
            "item_index": self.item_index,
            "item": self.item,
            "result_path": None if self.has_siblings else self.result_path or None,
            "error_path": None if self.has_siblings else self.error_path or None,
            "checkpoints": None if "%a" in self.checkpoints else self.checkpoints or None,
            "kill_switch": self.kill_switch or None,
            "save_switch": self.save_switch or None,
            "code": self.code or None,
        }

    def text(self) -> tuple[tuple[str, str], ...]:
        """(label, words) of what there is, in a few lines. As hostile as the request is."""
        called = self.function
        if self.item_index is not None:
            called += (
                f", item {self.item_index} of {self.items}, from 0: "
                f"{clip(repr(self.item), _MAX_ITEM_LETTERS)}"
            )
        elif self.items:
            called += f", {format_items(self.items)}"
        pairs = (
            ("calls", called),
            ("result", self.result_path),
            ("or traceback", self.error_path),
            ("checkpoints", self.checkpoints),
            ("kill switch", self.kill_switch),
            ("save switch", self.save_switch),
            ("code", self.code),
            ("changes in", self.code_files[0] if self.code_files and self.code else ""),
            ("packages in", self.code_files[1] if len(self.code_files) > 1 else ""),
            ("folder", self.folder),
        )
        return tuple((label, text) for label, text in pairs if text)


async def launched_job(
    folder: Path | None, cluster: str, row: Row, *, is_whole_array: bool = False
) -> LaunchedJob | None:
    """Read the records of a job's launch in the state folder.

    None if it was not launched from here.
    """
    return await asyncio.to_thread(_launched_job, folder, cluster, row, is_whole_array)


def _launched_job(
    folder: Path | None, cluster: str, row: Row, is_whole_array: bool
) -> LaunchedJob | None:
    record = find_launch_record(folder, cluster, row)
    if record is None:
        return None
    task = "" if is_whole_array else parse_task_part(str(row["id"]))
    request = launch_request(record)
    files = [PROVENANCE_NAME, *([PACKAGES_NAME] if request is not None and request.files else [])]
    return replace(
        _build_launched_job(record, request, row, task if task.isdigit() else ""),
        code=LaunchRecords(folder, cluster).code_state(record),
        code_files=tuple(f"{record.folder}/{name}" for name in files),
    )


def find_launch_record(folder: Path | None, cluster: str, row: Row) -> LaunchRecord | None:
    """The launch of a row's job, None where it was not launched from here or that cannot be
    read.
    """
    try:
        return LaunchRecords(folder, cluster).find_by_job(str(row["id"]), str(row["name"] or ""))
    except StateUnusable:
        return None


def launch_request(record: LaunchRecord) -> Request | None:
    """The request of a launch, None where it is not kept or cannot be read any more."""
    from hpcdash.config.request import read_request

    try:
        return read_request(record.request, user=record.run_as or None) if record.request else None
    except UsageError:
        return None


def checkpoint_folder(request: Request, row: Row, task: str) -> str:
    """The folder of its checkpoints, %a left in where `task` is ''."""
    path = request.checkpoints
    if not path:
        return ""
    return absolute_path(task_folder(path, task) or path, request.work_dir or row["work_dir"])


def _build_launched_job(
    record: LaunchRecord, request: Request | None, row: Row, task: str
) -> LaunchedJob:
    kill, save = (_switch(kind, record, row) for kind in (SwitchKind.KILL, SwitchKind.SAVE))
    checkpoints = "" if request is None else checkpoint_folder(request, row, task)
    if request is None or request.call is None:
        is_allocation = request is not None and request.kind == KIND
        return LaunchedJob(record.folder, checkpoints, kill, save, is_allocation=is_allocation)
    call = request.call
    path = result_path(request, record.folder, task)
    index = int(task) if task and int(task) < len(call.items) else None
    return LaunchedJob(
        record.folder,
        checkpoints,
        kill,
        save,
        call.name,
        len(call.items),
        index,
        None if index is None else call.items[index],
        path,
        f"{path}.error",
        has_siblings=request.array is not None and not task,
    )


def _switch(kind: SwitchKind, record: LaunchRecord, row: Row) -> str:
    named = requested_switch(kind, record.request)
    return "" if named is None else absolute_path(named.path, row["work_dir"])
