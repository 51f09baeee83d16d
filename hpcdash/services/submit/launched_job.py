"""Local records of a job's launch: its folder, switches and checkpoints, its call and result."""

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
    """Launch of a job; paths are on the cluster, absolute if known, '' for none.

    `item` is a task's item among `items`. For an array as a whole, which `has_siblings`,
    `item_index` is None, and N in `result_path` and `error_path` (and %a in `checkpoints`) stands
    for the task.
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
    # An allocation for runs.
    is_allocation: bool = False
    code: str = ""
    code_files: tuple[str, ...] = ()

    def for_json(self) -> dict[str, Any]:
        """Return the fields for JSON; null for missing values and for paths with a placeholder."""
        answer: dict[str, Any] = {
            "folder": self.folder,
            "function": self.function or None,
            "items": self.items or None,
            "item_index": self.item_index,
            "item": self.item,
        }
        texts = {
            "result_path": "" if self.has_siblings else self.result_path,
            "error_path": "" if self.has_siblings else self.error_path,
            "checkpoints": "" if "%a" in self.checkpoints else self.checkpoints,
            "kill_switch": self.kill_switch,
            "save_switch": self.save_switch,
            "code": self.code,
        }
        return answer | {name: text or None for name, text in texts.items()}

    def text(self) -> tuple[tuple[str, str], ...]:
        """Return the non-empty (label, text) pairs, a line each. Texts are hostile."""
        called = self.function
        if self.item_index is not None:
            item = clip(repr(self.item), _MAX_ITEM_LETTERS)
            called += f", item {self.item_index} of {self.items}, from 0: {item}"
        elif self.items:
            called += f", {format_items(self.items)}"
        changes, packages = (*self.code_files, "", "")[:2]
        pairs = {
            "calls": called,
            "result": self.result_path,
            "or traceback": self.error_path,
            "checkpoints": self.checkpoints,
            "kill switch": self.kill_switch,
            "save switch": self.save_switch,
            "code": self.code,
            "changes in": changes if self.code else "",
            "packages in": packages,
            "folder": self.folder,
        }
        return tuple((label, text) for label, text in pairs.items() if text)


async def launched_job(
    folder: Path | None, cluster: str, row: Row, *, is_whole_array: bool = False
) -> LaunchedJob | None:
    """Read the records of a job's launch in the state folder; None if it was not launched here."""
    return await asyncio.to_thread(_launched_job, folder, cluster, row, is_whole_array)


def _launched_job(
    folder: Path | None, cluster: str, row: Row, is_whole_array: bool
) -> LaunchedJob | None:
    record = find_launch_record(folder, cluster, row)
    if record is None:
        return None
    task = "" if is_whole_array else parse_task_part(str(row["id"]))
    task = task if task.isdigit() else ""
    request = launch_request(record)
    code_files = [f"{record.folder}/{PROVENANCE_NAME}"]
    if request is not None and request.files:
        code_files.append(f"{record.folder}/{PACKAGES_NAME}")
    job = LaunchedJob(
        record.folder,
        kill_switch=_switch(SwitchKind.KILL, record, row),
        save_switch=_switch(SwitchKind.SAVE, record, row),
        code=LaunchRecords(folder, cluster).code_state(record),
        code_files=tuple(code_files),
    )
    return job if request is None else _add_request(job, request, row, task)


def _add_request(job: LaunchedJob, request: Request, row: Row, task: str) -> LaunchedJob:
    """Return a launch with its request's checkpoints, and its function or allocation."""
    job = replace(job, checkpoints=checkpoint_folder(request, row, task))
    call = request.call
    if call is None:
        return replace(job, is_allocation=request.kind == KIND)
    path = result_path(request, job.folder, task)
    if task and int(task) < len(call.items):
        job = replace(job, item_index=int(task), item=call.items[int(task)])
    return replace(
        job,
        function=call.name,
        items=len(call.items),
        result_path=path,
        error_path=f"{path}.error",
        has_siblings=request.array is not None and not task,
    )


def find_launch_record(folder: Path | None, cluster: str, row: Row) -> LaunchRecord | None:
    """Return the launch of a row's job; None if it was not launched here, or is unreadable."""
    try:
        return LaunchRecords(folder, cluster).find_by_job(str(row["id"]), str(row["name"] or ""))
    except StateUnusable:
        return None


def launch_request(record: LaunchRecord) -> Request | None:
    """Return the request of a launch; None if it was not stored, or is not valid any more."""
    from hpcdash.config.request import read_request

    try:
        return read_request(record.request, user=record.run_as or None) if record.request else None
    except UsageError:
        return None


def checkpoint_folder(request: Request, row: Row, task: str) -> str:
    """Return the absolute path of a job's checkpoints; it contains %a if `task` is ''."""
    path = request.checkpoints
    if not path:
        return ""
    return absolute_path(task_folder(path, task) or path, request.work_dir or row["work_dir"])


def _switch(kind: SwitchKind, record: LaunchRecord, row: Row) -> str:
    named = requested_switch(kind, record.request)
    return "" if named is None else absolute_path(named.path, row["work_dir"])
